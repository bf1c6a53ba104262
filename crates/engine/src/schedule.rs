//! The schedule: which tiles are ready, and who gets which.
//!
//! Ops have positions, the first being the most urgent; an op that is ready sets its position's bit. A worker takes a tile of
//! the first set bit by counting up that op's next tile. No lock, no allocation.
//!
//! Always true
//! - A tile is given out once, and only after every op that its op waits for is complete.

use crate::Order;
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use convoy_program::Program;

/// All that the schedule knows of an op.
#[derive(Clone, Debug)]
pub struct Node {
    pub after: Vec<usize>,
    pub tiles: usize,
    pub communicates: bool,
    pub remaining: f64,
}

/// What is fixed: who waits for whom, and in which order ready ops are taken.
#[derive(Debug)]
pub struct Schedule {
    successors: Vec<Vec<u32>>,
    pending: Vec<u32>,
    tiles: Vec<u32>,
    communicates: Vec<bool>,
    /// By op: its position. First in, first out gives positions as ops become ready.
    positions: Option<Vec<u32>>,
    state: State,
}

/// What changes during a step.
#[derive(Debug)]
struct State {
    pending: Vec<AtomicU32>,
    next: Vec<AtomicU32>,
    left: Vec<AtomicU32>,
    /// Bits by position: ops with tiles to give out; and ops that wait to talk to other ranks.
    ready: Vec<AtomicU64>,
    talking: Vec<AtomicU64>,
    /// By position: its op.
    at: Vec<AtomicU32>,
    tickets: AtomicU32,
    /// Ops that are not complete.
    open: AtomicUsize,
}

fn zeros(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

impl Schedule {
    pub fn new(program: &Program, order: Order) -> Schedule {
        let node = |op: &convoy_program::Op| Node {
            after: op.after.iter().map(|before| before.0).collect(),
            tiles: op.tiles,
            communicates: op.communicates(),
            remaining: op.remaining,
        };
        Schedule::of(&program.ops.iter().map(node).collect::<Vec<_>>(), order)
    }

    /// The schedule of ops, of which only this is known.
    pub fn of(nodes: &[Node], order: Order) -> Schedule {
        let n = nodes.len();
        let mut successors = vec![vec![]; n];
        for (i, node) in nodes.iter().enumerate() {
            node.after.iter().for_each(|&before| successors[before].push(i as u32));
        }
        let mut urgent: Vec<usize> = (0..n).collect();
        match order {
            // Longest remaining path first; ties by the written order.
            Order::LongestPath => urgent.sort_by(|&a, &b| nodes[b].remaining.total_cmp(&nodes[a].remaining)),
            Order::FirstIn => {}
            Order::Random(seed) => {
                let key = |i: usize| {
                    (i as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
                };
                urgent.sort_by_key(|&i| key(i).wrapping_mul(0xbf58_476d_1ce4_e5b9));
            }
        }
        let mut positions = vec![0; n];
        urgent.iter().enumerate().for_each(|(position, &op)| positions[op] = position as u32);
        let words = n.div_ceil(64);
        Schedule {
            successors,
            pending: nodes.iter().map(|node| node.after.len() as u32).collect(),
            tiles: nodes.iter().map(|node| node.tiles as u32).collect(),
            communicates: nodes.iter().map(|node| node.communicates).collect(),
            positions: (order != Order::FirstIn).then_some(positions),
            state: State {
                pending: zeros(n),
                next: zeros(n),
                left: zeros(n),
                ready: (0..words).map(|_| AtomicU64::new(0)).collect(),
                talking: (0..words).map(|_| AtomicU64::new(0)).collect(),
                at: zeros(n),
                tickets: AtomicU32::new(0),
                open: AtomicUsize::new(0),
            },
        }
    }

    /// Back to the start of a step. No worker may be at work.
    pub fn reset(&self) {
        let s = &self.state;
        s.tickets.store(0, Relaxed);
        s.ready.iter().chain(&s.talking).for_each(|word| word.store(0, Relaxed));
        for i in 0..self.tiles.len() {
            s.pending[i].store(self.pending[i], Relaxed);
            s.next[i].store(0, Relaxed);
            s.left[i].store(self.tiles[i], Relaxed);
        }
        s.open.store(self.tiles.len(), Release);
        for i in 0..self.tiles.len() {
            if self.pending[i] == 0 {
                self.offer(i);
            }
        }
    }

    /// Whether every op is complete.
    pub fn over(&self) -> bool {
        self.open() == 0
    }

    /// Ops that are not complete.
    pub fn open(&self) -> usize {
        self.state.open.load(Acquire)
    }

    /// Whether a tile may be had.
    pub fn has_tiles(&self) -> bool {
        self.state.ready.iter().any(|word| word.load(SeqCst) != 0)
    }

    /// A tile of the most urgent op that has one: op, tile.
    pub fn take(&self) -> Option<(usize, usize)> {
        for (w, word) in self.state.ready.iter().enumerate() {
            let mut bits = word.load(Acquire);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                let op = self.state.at[w * 64 + bit.trailing_zeros() as usize].load(Acquire) as usize;
                let tile = self.state.next[op].fetch_add(1, Relaxed);
                if tile + 1 >= self.tiles[op] {
                    word.fetch_and(!bit, Relaxed);
                }
                if tile < self.tiles[op] {
                    return Some((op, tile as usize));
                }
                bits &= !bit;
            }
        }
        None
    }

    /// Ops that wait to talk, by urgency; `each` says whether it is done.
    pub fn talk<E>(&self, mut each: impl FnMut(usize) -> Result<bool, E>) -> Result<bool, E> {
        let mut any = false;
        for (w, word) in self.state.talking.iter().enumerate() {
            let mut bits = word.load(Acquire);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits &= !bit;
                let op = self.state.at[w * 64 + bit.trailing_zeros() as usize].load(Acquire) as usize;
                if each(op)? {
                    word.fetch_and(!bit, Relaxed);
                    self.complete(op);
                    any = true;
                }
            }
        }
        Ok(any)
    }

    /// Counts a tile as done. True if its op is now complete; the caller then calls `complete`.
    pub fn finish_tile(&self, op: usize) -> bool {
        self.state.left[op].fetch_sub(1, AcqRel) == 1
    }

    /// Releases those that waited for a complete op; true if that made something ready or ended the step.
    pub fn complete(&self, op: usize) -> bool {
        let mut woke = false;
        for &next in &self.successors[op] {
            if self.state.pending[next as usize].fetch_sub(1, AcqRel) == 1 {
                self.offer(next as usize);
                woke = true;
            }
        }
        self.state.open.fetch_sub(1, AcqRel) == 1 || woke
    }

    fn offer(&self, op: usize) {
        let s = &self.state;
        let position = match &self.positions {
            Some(positions) => positions[op],
            None => s.tickets.fetch_add(1, Relaxed),
        } as usize;
        s.at[position].store(op as u32, Release);
        let words = if self.communicates[op] { &s.talking } else { &s.ready };
        words[position / 64].fetch_or(1 << (position % 64), SeqCst);
    }
}
