//! Layouts: where the elements of a stored region lie in memory.
//!
//! Activations are `[sample][depth][height][channel block][width][16]`: one point of one channel block is one line of 64
//! bytes, and a strip of rows is one contiguous piece. What is stored may be larger than the tensor: margins around it hold
//! zero padding and halos, so that inner loops have no branches.
//!
//! Always true
//! - Coordinates are those of the whole tensor; margins may be negative or past the end.
//! - Channels that fill up the last block ("filler") are zero in every activation and every gradient.

use convoy_net::{Axis, Region};

/// Channels of a block: 16 floats are one cache line.
pub const BLOCK: usize = 16;

/// Where the elements of a stored region lie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// What is stored: a rank's part of a tensor with its margins.
    pub stored: Region,
    /// Channels per block: 16, or the number of channels of a narrow image.
    pub block: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Distances in floats between samples, between depths, between rows, between blocks (between points it is `block`).
    pub sample: usize,
    pub depth: usize,
    pub row: usize,
    pub plane: usize,
    /// Floats in all.
    pub len: usize,
}

impl Layout {
    /// Blocks of 16 channels: everything that is computed.
    pub fn blocked(stored: Region) -> Layout {
        Layout::with_block(stored, BLOCK)
    }

    /// An image of fewer than 16 channels in one narrow block, without filler; with 16 or more it is blocked.
    pub fn image(stored: Region) -> Layout {
        Layout::with_block(stored, stored.size(Axis::Channel).clamp(1, BLOCK))
    }

    /// Blocks of 16 channels, rows without gaps: what a layer keeps for itself row after row.
    pub fn dense(stored: Region) -> Layout {
        let layout = Layout::blocked(stored);
        let row = layout.plane * layout.blocks;
        let depth = row * stored.size(Axis::Height);
        let sample = depth * stored.size(Axis::Depth);
        Layout { sample, depth, row, len: sample * stored.size(Axis::Sample), ..layout }
    }

    fn with_block(stored: Region, block: usize) -> Layout {
        let blocks = stored.size(Axis::Channel).div_ceil(block);
        let width = stored.size(Axis::Width);
        let plane = width * block;
        let row = if block == BLOCK { spread(width * blocks, width) * BLOCK } else { plane * blocks };
        let depth = row * stored.size(Axis::Height);
        let sample = depth * stored.size(Axis::Depth);
        // Odd, so that the same point of many samples spreads over the sets of a cache too.
        let sample = if block == BLOCK { ((sample / BLOCK) | 1) * BLOCK } else { sample };
        Layout { stored, block, blocks, sample, depth, row, plane, len: sample * stored.size(Axis::Sample) }
    }

    /// Offset of a point of a block. Blocks count from the stored region's first channel, all else in the tensor's own
    /// coordinates, which must be stored.
    #[inline]
    pub fn offset(&self, n: isize, block: usize, d: isize, h: isize, w: isize) -> usize {
        let s = &self.stored.start;
        debug_assert!(
            n >= s[0] && n < self.stored.end[0] && block < self.blocks && d >= s[2] && d < self.stored.end[2],
            "bug: sample {n}, block {block}, depth {d} outside {}",
            self.stored
        );
        debug_assert!(
            h >= s[3] && h < self.stored.end[3] && w >= s[4] && w <= self.stored.end[4],
            "bug: row {h}, column {w} outside {}",
            self.stored
        );
        (n - s[0]) as usize * self.sample
            + (d - s[2]) as usize * self.depth
            + (h - s[3]) as usize * self.row
            + block * self.plane
            + (w - s[4]) as usize * self.block
    }

    /// Offset of one element.
    #[inline]
    pub fn index(&self, n: isize, c: isize, d: isize, h: isize, w: isize) -> usize {
        let c = (c - self.stored.start[1]) as usize;
        self.offset(n, c / self.block, d, h, w) + c % self.block
    }
}

/// Distance between rows in lines, at least `least`, such that rows of one block that a kernel visits together (about 128 lines,
/// `len` a row) spread over the 64 sets of a first-level cache. Without it, 512 channels of 7 x 7 points with a margin of one put
/// every row of a block into the same eight sets: the weight gradient fell from 88 to 72 % of peak.
fn spread(least: usize, len: usize) -> usize {
    const SETS: usize = 64;
    let rows = (128 / len.max(1)).max(2);
    let crowd = |distance: usize| {
        let mut lines = [0; SETS];
        (0..rows * len).for_each(|i| lines[(i / len * distance + i % len) % SETS] += 1);
        lines.into_iter().max().unwrap_or(0)
    };
    (least..least + SETS).find(|&distance| crowd(distance) <= rows * len / SETS + 2).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoy_net::Shape;

    /// No two elements share a place, and rows of a block do not crowd a few cache sets.
    #[test]
    fn rows_are_spread_and_nothing_overlaps() {
        for (c, h, w) in [(512, 9, 8), (64, 3, 5), (2048, 7, 7), (17, 1, 300), (16, 4, 64), (3, 2, 2)] {
            let layout = Layout::blocked(Region::whole(Shape([2, c, 1, h, w])));
            assert!(
                layout.row >= layout.plane * layout.blocks && layout.row < layout.plane * layout.blocks + 64 * BLOCK
            );
            let mut seen = vec![false; layout.len];
            for (n, d, i) in (0..2).flat_map(|n| (0..c).flat_map(move |d| (0..h * w).map(move |i| (n, d, i)))) {
                let at = layout.index(n, d as isize, 0, (i / w) as isize, (i % w) as isize);
                assert!(!std::mem::replace(&mut seen[at], true), "{c}x{h}x{w}: two elements at {at}");
            }
        }
        let layout = Layout::blocked(Region::whole(Shape([1, 512, 1, 9, 8])));
        assert_ne!(layout.row / BLOCK % 64, 0, "all rows of a block in the same sets");
    }
}
