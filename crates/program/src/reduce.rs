//! Reductions: sums over ranks in a fixed order.
//!
//! Every rank is the reducer of one slice: it is sent the others' parts, combines them in tree order (never in order of
//! arrival), and sends the result back. The bytes are those of a ring. Ranks without samples send nothing to add.

use crate::lower::Builder;
use crate::program::{Action, BufferId, Number, Part, Purpose, What};
use convoy_split::{Rank, block};

impl Builder<'_> {
    /// Makes `buffer`, which holds this rank's part of a sum, hold the sum over the ranks of a team, in its order. `has_part`
    /// says by rank whether its part counts. `subject` keys the messages.
    pub fn reduce(&mut self, buffer: BufferId, number: Number, team: &[usize], has_part: &[bool], subject: u64) {
        let (ranks, rank) = (team.len(), self.rank.0);
        if ranks == 1 {
            return;
        }
        let me = team.iter().position(|&q| q == rank).expect("bug: a rank outside its team");
        let has_part: Vec<bool> = team.iter().map(|&q| has_part[q]).collect();
        let rank_of = |q: usize| Rank(team[q]);
        let count = self.buffers[buffer.0].bytes / number.bytes();
        let slice = |r: usize| {
            let (start, end) = block(count, ranks, r);
            start as usize * number.bytes()..end as usize * number.bytes()
        };
        let mine = slice(me);
        let others: Vec<usize> = (0..ranks).filter(|&q| q != me).collect();
        let staging = self.buffer(What::Parts, mine.len() * (ranks - 1));
        let tag = |phase: u64, reducer: usize, from: usize| {
            Purpose::Reduction.tag() | subject << 24 | phase << 20 | (reducer as u64) << 10 | from as u64
        };
        for &q in &others {
            if has_part[me] {
                self.send(Part { buffer, bytes: slice(q) }, rank_of(q), tag(0, q, me));
            }
        }
        let mut parts = vec![None; ranks];
        for (i, &q) in others.iter().enumerate() {
            if has_part[q] {
                let part = Part { buffer: staging, bytes: i * mine.len()..(i + 1) * mine.len() };
                self.receive(part.clone(), rank_of(q), tag(0, me, q));
                parts[q] = Some(part);
            }
        }
        let own = Part { buffer, bytes: mine };
        if has_part[me] {
            parts[me] = Some(own.clone());
        }
        self.push(Action::Combine { parts, into: own.clone(), number });
        for &q in &others {
            self.send(own.clone(), rank_of(q), tag(1, me, q));
        }
        for &q in &others {
            self.receive(Part { buffer, bytes: slice(q) }, rank_of(q), tag(1, q, me));
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
