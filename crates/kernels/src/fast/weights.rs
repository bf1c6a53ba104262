//! Weights in kernel order: `[filter block][channel block][tap][channel][filter 16]`; of depthwise convolutions
//! `[block][tap][16]`.
//!
//! Only blocks that meet are there: with groups, a filter block meets the channel blocks of its groups. Where a pair of
//! blocks holds several groups, weights between groups are filler, zero like that of channels and filters beyond the last.
//! The adjoint (of all but depthwise ones) wants the same weights with filters and channels swapped: `dense.rs` swaps those that
//! it is about to use.

use super::Packing;
use crate::BLOCK;
use std::ops::Range;

/// One side of a product over channels: so many channels in blocks of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub channels: usize,
    pub block: usize,
}

impl Side {
    pub fn blocks(&self) -> usize {
        self.channels.div_ceil(self.block)
    }

    /// Whether at most half of a block's 16 lanes are channels.
    pub fn narrow(&self, block: usize) -> bool {
        self.channels <= block * BLOCK + BLOCK / 2
    }
}

/// Which blocks of inner channels each block of outer channels meets, and where their weights are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    pub outer: Side,
    pub inner: Side,
    pub groups: usize,
    /// Every channel is a group: channels meet only themselves, lane by lane.
    pub depthwise: bool,
    /// Per outer block: the inner blocks it meets.
    pub meets: Vec<Range<usize>>,
    /// Per outer block: pairs before it.
    pub before: Vec<usize>,
    /// Pairs in all.
    pub count: usize,
}

impl Pairs {
    pub fn new(outer: Side, inner: Side, groups: usize) -> Pairs {
        let per_group = |side: Side| {
            assert!(side.channels.is_multiple_of(groups), "bug: {} channels in {groups} groups", side.channels);
            side.channels / groups
        };
        let (out, inn) = (per_group(outer), per_group(inner));
        let depthwise = groups > 1 && out == 1 && inn == 1 && outer == inner;
        let meets = (0..outer.blocks()).map(|o| {
            let last = ((o + 1) * outer.block).min(outer.channels) - 1;
            let (first, last) = (o * outer.block / out * inn, (last / out + 1) * inn - 1);
            first / inner.block..last / inner.block + 1
        });
        let meets: Vec<Range<usize>> = meets.collect();
        let before = meets.iter().scan(0, |sum, m| {
            *sum += m.len();
            Some(*sum - m.len())
        });
        let before = before.collect();
        let count = meets.iter().map(|m| m.len()).sum();
        Pairs { outer, inner, groups, depthwise, meets, before, count }
    }

    /// Some outer blocks in runs of at most so many which meet the same inner blocks, all about as long.
    pub fn alike(&self, blocks: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut rest = blocks;
        std::iter::from_fn(move || {
            let (first, others) = self.meets[rest.clone()].split_first()?;
            let same = if most == 1 { 1 } else { 1 + others.iter().take_while(|meets| *meets == first).count() };
            let run = rest.start..rest.start + same.div_ceil(same.div_ceil(most));
            rest.start = run.end;
            Some(run)
        })
    }

    /// The same with the sides swapped, both in blocks of 16.
    pub fn adjoint(&self) -> Pairs {
        let wide = |side: Side| Side { block: BLOCK, ..side };
        Pairs { depthwise: self.depthwise, ..Pairs::new(wide(self.inner), wide(self.outer), self.groups) }
    }

    /// Lines of 16 weights of one pair at one tap.
    pub fn lines(&self) -> usize {
        if self.depthwise { 1 } else { self.inner.block }
    }

    /// Lines of the `number`th inner block that an outer block meets which are not filler of the last block.
    pub fn real_lines(&self, number: usize) -> usize {
        match self.groups {
            1 => self.lines().min(self.inner.channels - number * self.inner.block),
            _ => self.lines(),
        }
    }

    /// Whether some inner block has filler.
    pub fn has_filler(&self) -> bool {
        (0..self.inner.blocks()).any(|block| self.real_lines(block) < self.lines())
    }

    /// Floats of the weights of one pair at one tap.
    pub fn line(&self) -> usize {
        self.lines() * self.outer.block
    }

    /// Floats of all weights, filler included.
    pub fn floats(&self, taps: usize) -> usize {
        self.count * taps * self.line()
    }

    /// Floats of the weights of one outer block, filler included.
    pub fn panel(&self, outer: usize, taps: usize) -> usize {
        self.meets[outer].len() * taps * self.line()
    }

    /// Number of the pair of two blocks that meet.
    pub fn number(&self, outer: usize, inner: usize) -> usize {
        debug_assert!(self.meets[outer].contains(&inner), "bug: blocks {outer} and {inner} do not meet");
        self.before[outer] + inner - self.meets[outer].start
    }

    /// Outer channels of a block that share a group with inner channel `inner`, as lanes of the block.
    pub fn lanes(&self, outer: usize, inner: usize) -> Range<usize> {
        let per = self.outer.channels / self.groups;
        let group = inner / (self.inner.channels / self.groups);
        let lane = |channel: usize| channel.saturating_sub(outer * self.outer.block).min(self.outer.block);
        lane(group * per)..lane((group + 1) * per)
    }

    /// Whether some pairs hold weights between groups, which are filler.
    pub fn mixed(&self) -> bool {
        self.groups > 1
            && !self.depthwise
            && [self.outer, self.inner].iter().any(|s| !(s.channels / self.groups).is_multiple_of(s.block))
    }

    /// Place of the weight of an outer and an inner channel at a tap.
    fn place(&self, outer: usize, inner: usize, (tap, taps): (usize, usize)) -> u32 {
        let pair = self.number(outer / self.outer.block, inner / self.inner.block);
        let line = (pair * taps + tap) * self.lines() + if self.depthwise { 0 } else { inner % self.inner.block };
        (line * self.outer.block + outer % self.outer.block) as u32
    }

    /// From `[outer][inner of the group][tap]`, as PyTorch stores a convolution, to kernel order.
    pub fn packing(&self, taps: usize) -> Packing {
        let (per_outer, per_inner) = (self.outer.channels / self.groups, self.inner.channels / self.groups);
        let mut places = vec![];
        for outer in 0..self.outer.channels {
            for inner in 0..per_inner {
                let inner = outer / per_outer * per_inner + inner;
                places.extend((0..taps).map(|tap| self.place(outer, inner, (tap, taps))));
            }
        }
        Packing { len: self.floats(taps), places }
    }

    /// From `[inner][outer of the group][tap]`, as PyTorch stores a transposed convolution.
    pub fn packing_by_inner(&self, taps: usize) -> Packing {
        let (per_outer, per_inner) = (self.outer.channels / self.groups, self.inner.channels / self.groups);
        let mut places = vec![];
        for inner in 0..self.inner.channels {
            for outer in 0..per_outer {
                let outer = inner / per_inner * per_outer + outer;
                places.extend((0..taps).map(|tap| self.place(outer, inner, (tap, taps))));
            }
        }
        Packing { len: self.floats(taps), places }
    }
}

/// A bias, filled up to whole blocks.
pub fn bias_packing(outer: Side) -> Packing {
    Packing { len: outer.blocks() * BLOCK, places: (0..outer.channels as u32).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every weight has a place of its own, in a pair of its blocks; pairs are the same from both sides.
    #[test]
    fn places_are_distinct_and_pairs_symmetric() {
        for (filters, channels, groups, block) in [
            (16, 16, 1, 16),
            (40, 3, 1, 3),
            (24, 48, 1, 16),
            (24, 48, 3, 16),
            (10, 5, 5, 5),
            (72, 72, 3, 16),
            (64, 32, 32, 16),
        ] {
            let side = |channels, block| Side { channels, block };
            let pairs = Pairs::new(side(filters, 16), side(channels, block), groups);
            let packing = pairs.packing(6);
            let mut seen = vec![false; packing.len];
            for &p in &packing.places {
                assert!(!std::mem::replace(&mut seen[p as usize], true), "two weights at {p}");
            }
            assert_eq!(packing.places.len(), filters * channels / groups * 6);
            if block == BLOCK {
                let adjoint = pairs.adjoint();
                for o in 0..pairs.outer.blocks() {
                    for i in 0..pairs.inner.blocks() {
                        assert_eq!(pairs.meets[o].contains(&i), adjoint.meets[i].contains(&o));
                    }
                }
                assert_eq!(pairs.count, adjoint.count);
            }
        }
    }
}
