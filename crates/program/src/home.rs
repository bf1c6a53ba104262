//! Homes: where parameters live between steps.
//!
//! Everywhere: every rank that uses a parameter keeps all of it and makes the same step. Sharded: of each bucket a rank keeps one
//! slice, and the optimizer's state of that slice; weights are pulled before layers use them, once forward and once backward,
//! gradients are pushed to the slice's owner, who makes the step. Sums run in the same order and steps go number by number: the
//! same bits.
//!
//! Parameters that no rank shares with another, or whose gradients are whole on every rank, stay where they are used.

use crate::bucket::Bucket;
use crate::lower::Builder;
use crate::program::{Action, Home, KeptAt, Number, Part, Program, Purpose, Shard, What};
use crate::reduce::Reduction;
use convoy_kernels::Operand;
use convoy_net::LayerId;
use convoy_split::{Rank, block};
use std::ops::Range;

/// Where parameters live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ParameterHome {
    /// With every rank that uses them.
    #[default]
    Everywhere,
    /// Divided over the ranks that use them.
    Sharded,
}

/// Slices begin on cache lines.
const GRAIN: usize = 64;

/// The bytes of a bucket that a position of its team keeps.
pub(crate) fn slice(bucket: &Bucket, position: usize) -> Range<usize> {
    let (start, end) = block(bucket.bytes / GRAIN, bucket.team.len(), position);
    start as usize * GRAIN..end as usize * GRAIN
}

impl Builder<'_> {
    /// Whether parameters of buckets are divided. An update that needs more of a parameter than a number at a time cannot be.
    pub fn is_sharded(&self) -> bool {
        let by_number = self.options.update.stages(1).iter().all(|stage| stage.makes.is_empty());
        self.options.division.home == ParameterHome::Sharded && by_number
    }

    /// Gives this rank's slices their memory.
    pub fn lay_out_shards(&mut self) {
        for bucket in self.buckets.clone() {
            let (l, p) = bucket.first();
            self.kept_buffer(What::Shard(l, p), self.own_slice(&bucket).len());
        }
    }

    fn own_slice(&self, bucket: &Bucket) -> Range<usize> {
        slice(bucket, self.position(bucket))
    }

    fn position(&self, bucket: &Bucket) -> usize {
        bucket.team.iter().position(|&q| q == self.rank.0).expect("bug: a rank outside its team")
    }

    /// Before a layer's forward or backward pass: its parameters, and what lies in the same buckets.
    pub fn pull(&mut self, l: LayerId, pass: usize) {
        if !self.is_sharded() {
            return;
        }
        let is_its = |b: &&Bucket| b.members.iter().any(|m| m.0 == l);
        for bucket in self.buckets.iter().filter(is_its).cloned().collect::<Vec<_>>() {
            let (first, p) = bucket.first();
            if !self.found.contains_key(&What::Pull(first, p, pass)) {
                self.pull_bucket(&bucket, pass);
            }
        }
    }

    fn pull_bucket(&mut self, bucket: &Bucket, pass: usize) {
        let (first, p) = bucket.first();
        let pulled = self.buffer(What::Pull(first, p, pass), bucket.bytes);
        for &(l, p, at) in &bucket.members {
            let bytes = self.packed_bytes(l, p);
            let inner = self.buffer(What::Pulled(l, p, pass), bytes);
            self.buffers[inner.0].within = Some((pulled, at));
        }
        let (me, own) = (self.position(bucket), self.own_slice(bucket));
        let kept = Part { buffer: self.found[&What::Shard(first, p)], bytes: 0..own.len() };
        let subject = (first.0 as u64) << 16 | (pass as u64) << 12 | p as u64;
        let tag = |from: usize| Purpose::Redistribution.tag() | 1 << 58 | subject << 20 | from as u64;
        if !own.is_empty() {
            let into = Part { buffer: pulled, bytes: own };
            self.push(Action::Combine { parts: vec![Some(kept.clone())], into, number: Number::Single });
        }
        let others = || bucket.team.iter().enumerate().filter(|(q, _)| *q != me);
        for (_, &rank) in others() {
            self.send(kept.clone(), Rank(rank), tag(me));
        }
        for (q, &rank) in others() {
            self.receive(Part { buffer: pulled, bytes: slice(bucket, q) }, Rank(rank), tag(q));
        }
    }

    /// The owner's sum of a slice's gradients, and its step.
    pub fn push_bucket(&mut self, bucket: &Bucket, reduction: &Reduction) {
        let own = self.own_slice(bucket);
        if own.is_empty() {
            return;
        }
        let (l, p) = bucket.first();
        let pushed = self.buffer(What::Pushed(l, p), own.len());
        let into = Part { buffer: pushed, bytes: 0..own.len() };
        self.push(Action::Combine { parts: reduction.parts.clone(), into, number: Number::Single });
        let (update, len) = (self.options.update, own.len() / 4);
        for stage in update.stages(len) {
            let mut operands = vec![];
            for &operand in stage.reads.iter().chain(&stage.writes) {
                let buffer = match operand {
                    Operand::Parameter(_) => self.found[&What::Shard(l, p)],
                    Operand::ParameterGradient(_) => pushed,
                    Operand::State(k) => self.kept_buffer(What::ShardState(l, p, k), own.len()),
                    other => unreachable!("bug: {other:?} of an update that goes number by number"),
                };
                operands.push((operand, buffer));
            }
            operands.sort();
            operands.dedup();
            self.push(Action::Update { layer: l, parameter: p, update, len, stage, operands });
        }
    }

    fn kept_buffer(&mut self, what: What, bytes: usize) -> crate::BufferId {
        self.buffer_with(what, bytes, Home::Kept, None)
    }

    /// What a finished program says about them.
    pub fn shards(&self) -> Vec<Shard> {
        if !self.is_sharded() {
            return vec![];
        }
        let shard = |bucket: &Bucket| {
            let own = self.own_slice(bucket);
            let members = bucket.members.iter().map(|&(l, p, first)| (l, p, first / 4)).collect();
            Shard { members, own: own.start / 4..own.end / 4 }
        };
        self.buckets.iter().map(shard).collect()
    }
}

impl Program {
    /// Where this rank keeps what it has of a layer's parameter.
    pub fn kept_at(&self, layer: LayerId, number: usize) -> KeptAt {
        for shard in &self.shards {
            if let Some(&(_, _, first)) = shard.members.iter().find(|m| (m.0, m.1) == (layer, number)) {
                let (l, p, _) = shard.members[0];
                return KeptAt { parameter: What::Shard(l, p), first: first as isize - shard.own.start as isize };
            }
        }
        KeptAt { parameter: What::Parameter(layer, number), first: 0 }
    }
}

impl KeptAt {
    /// Where the optimizer's state of the same numbers is.
    pub fn state(&self, k: usize) -> What {
        match self.parameter {
            What::Shard(l, p) => What::ShardState(l, p, k),
            What::Parameter(l, p) => What::State(l, p, k),
            other => unreachable!("bug: {other:?} is no home"),
        }
    }

    /// Whether other ranks keep the rest.
    pub fn is_sharded(&self) -> bool {
        matches!(self.parameter, What::Shard(..))
    }

    /// Where in the kept memory, of so many floats, a number is that stands at `place` in kernel order; nothing where another
    /// rank has it.
    pub fn index(&self, place: u32, floats: usize) -> Option<usize> {
        usize::try_from(place as isize + self.first).ok().filter(|&at| at < floats)
    }
}
