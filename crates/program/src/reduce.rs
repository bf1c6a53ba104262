//! Reductions: sums over ranks in a fixed order.
//!
//! By default every rank is the reducer of one slice: it is sent the others' parts, combines them in tree order (never in order of
//! arrival), and sends the result back. The bytes are those of a ring. Ranks without samples send nothing to add.
//! Or slices go around a ring, each rank adding its own: as many bytes, only neighbours talk, and the order of a sum depends on the
//! slice it is in and on how many ranks there are. Or a library makes the sum, in whatever order it likes; all ranks ask it for one sum after
//! the other. The twin of all three is `comm`'s `all_reduce`.

use crate::lower::Builder;
use crate::program::{Action, BufferId, Number, Part, Purpose, What};
use convoy_split::{Rank, block};
use std::ops::Range;

/// In which order gradients are summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SumOrder {
    /// That of a fixed tree.
    #[default]
    Tree,
    /// Around a ring.
    Ring,
    /// What the MPI library takes.
    Library,
}

/// What ops that take turns write.
const TURN_BYTES: usize = 64;

/// A sum over ranks whose parts are on their way.
#[derive(Clone, Debug)]
pub(crate) struct Reduction {
    buffer: BufferId,
    number: Number,
    team: Vec<usize>,
    /// This rank's position in the team.
    me: usize,
    subject: u64,
    /// By position: its part of the slice that this rank reduces.
    pub parts: Vec<Option<Part>>,
    /// By position: the bytes that it reduces.
    slices: Vec<Range<usize>>,
}

impl Reduction {
    fn tag(&self, phase: u64, reducer: usize, from: usize) -> u64 {
        Purpose::Reduction.tag() | self.subject << 24 | phase << 20 | (reducer as u64) << 10 | from as u64
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.team.len()).filter(move |&q| q != me)
    }

    fn rank(&self, position: usize) -> Rank {
        Rank(self.team[position])
    }
}

impl Builder<'_> {
    /// Makes `buffer`, which holds this rank's part of a sum, hold the sum over the ranks of a team, in its order. `has_part`
    /// says by rank whether its part counts. `subject` keys the messages.
    pub fn reduce(&mut self, buffer: BufferId, number: Number, team: &[usize], has_part: &[bool], subject: u64) {
        if team.len() > 1 {
            let slices = self.slices(buffer, number, team.len());
            let reduction = self.begin_reduction((buffer, number), slices, team, has_part, subject);
            self.write_late();
            self.end_reduction(reduction);
        }
    }

    /// The same around a ring.
    pub fn ring(&mut self, buffer: BufferId, number: Number, team: &[usize], has_part: &[bool], subject: u64) {
        let (ranks, slices) = (team.len(), self.slices(buffer, number, team.len()));
        let me = team.iter().position(|&q| q == self.rank.0).expect("bug: a rank outside its team");
        let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        if !has_part[team[me]] {
            let into = Part { buffer, bytes: 0..self.buffers[buffer.0].bytes };
            self.push(Action::Combine { parts: vec![None], into, number });
        }
        // Twice around: once adding, once replacing. In each turn a rank passes on the slice that it completed in the turn before.
        for turn in 0..2 * (ranks - 1) {
            let slice = |back: usize| Part { buffer, bytes: slices[(me + 2 * ranks - back) % ranks].clone() };
            let tag =
                |from: usize| Purpose::Reduction.tag() | subject << 24 | 2 << 20 | (turn as u64) << 10 | from as u64;
            let (out, own) = (slice(turn), slice(turn + 1));
            self.send(out, Rank(team[next]), tag(me));
            if turn < ranks - 1 {
                let staging = self.buffer(What::Parts, own.bytes.len());
                let came = Part { buffer: staging, bytes: 0..own.bytes.len() };
                self.receive(came.clone(), Rank(team[before]), tag(before));
                self.push(Action::Combine { parts: vec![Some(own.clone()), Some(came)], into: own, number });
            } else {
                self.receive(own, Rank(team[before]), tag(before));
            }
        }
    }

    /// The same, made by the library that carries messages. It must be asked for sums in the same order everywhere: each waits for the one
    /// before, and programs of all ranks have those that they share in the same order.
    pub fn by_library(&mut self, buffer: BufferId, number: Number, team: &[usize], has_part: &[bool], subject: u64) {
        let into = Part { buffer, bytes: 0..self.buffers[buffer.0].bytes };
        let from = Part { buffer: self.buffer(What::Parts, into.bytes.len()), ..into.clone() };
        let own = has_part[self.rank.0].then(|| into.clone());
        self.push(Action::Combine { parts: vec![own], into: from.clone(), number });
        let turn = self.buffer(What::Turn, TURN_BYTES);
        let tag = Purpose::Reduction.tag() | subject << 24 | 3 << 20;
        self.push(Action::AllReduce { from, into, team: team.to_vec(), number, tag, turn });
    }

    /// By position: the bytes that it reduces of a buffer.
    pub fn slices(&self, buffer: BufferId, number: Number, ranks: usize) -> Vec<Range<usize>> {
        let each = number.bytes();
        let slice = |position: usize| {
            let (start, end) = block(self.buffers[buffer.0].bytes / each, ranks, position);
            start as usize * each..end as usize * each
        };
        (0..ranks).map(slice).collect()
    }

    /// The first half: parts to their reducers.
    pub fn begin_reduction(
        &mut self,
        (buffer, number): (BufferId, Number),
        slices: Vec<Range<usize>>,
        team: &[usize],
        has_part: &[bool],
        subject: u64,
    ) -> Reduction {
        let me = team.iter().position(|&q| q == self.rank.0).expect("bug: a rank outside its team");
        let (mine, parts) = (slices[me].clone(), vec![None; team.len()]);
        let mut reduction = Reduction { buffer, number, team: team.to_vec(), me, subject, parts, slices };
        let staging = self.buffer(What::Parts, mine.len() * (team.len() - 1));
        for q in reduction.others().filter(|_| has_part[team[me]]) {
            let part = Part { buffer, bytes: reduction.slices[q].clone() };
            self.send(part, reduction.rank(q), reduction.tag(0, q, me));
        }
        for (i, q) in reduction.others().enumerate().filter(|(_, q)| has_part[team[*q]]) {
            let part = Part { buffer: staging, bytes: i * mine.len()..(i + 1) * mine.len() };
            self.receive(part.clone(), reduction.rank(q), reduction.tag(0, me, q));
            reduction.parts[q] = Some(part);
        }
        if has_part[team[me]] {
            reduction.parts[me] = Some(Part { buffer, bytes: mine });
        }
        reduction
    }

    /// The second half: each reducer's sum to everyone.
    pub fn end_reduction(&mut self, reduction: Reduction) {
        let (buffer, me) = (reduction.buffer, reduction.me);
        let own = Part { buffer, bytes: reduction.slices[me].clone() };
        let (parts, number) = (reduction.parts.clone(), reduction.number);
        self.push(Action::Combine { parts, into: own.clone(), number });
        for q in reduction.others() {
            self.send(own.clone(), reduction.rank(q), reduction.tag(1, me, q));
        }
        for q in reduction.others() {
            let part = Part { buffer, bytes: reduction.slices[q].clone() };
            self.receive(part, reduction.rank(q), reduction.tag(1, q, me));
        }
    }

    /// Sends part of a buffer, if there is anything in it.
    pub fn send(&mut self, from: Part, to: Rank, tag: u64) {
        if !from.bytes.is_empty() {
            self.push(Action::Send { from, to, tag });
        }
    }

    /// Receives part of a buffer, if there is anything in it.
    pub fn receive(&mut self, into: Part, from: Rank, tag: u64) {
        if !into.bytes.is_empty() {
            self.push(Action::Receive { into, from, tag });
        }
    }
}
