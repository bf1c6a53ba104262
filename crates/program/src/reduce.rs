//! Reductions: sums over ranks in a fixed order.
//!
//! Every rank is the reducer of one slice: it is sent the others' parts, combines them in tree order (never in order of
//! arrival), and sends the result back. The bytes are those of a ring. Ranks without samples send nothing to add.

use crate::lower::Builder;
use crate::program::{Action, BufferId, Number, Part, Purpose, What};
use convoy_split::{Rank, block};
use std::ops::Range;

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
            self.end_reduction(reduction);
        }
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
