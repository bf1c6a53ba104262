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

    fn with_block(stored: Region, block: usize) -> Layout {
        let blocks = stored.size(Axis::Channel).div_ceil(block);
        let plane = stored.size(Axis::Width) * block;
        let row = plane * blocks;
        let depth = row * stored.size(Axis::Height);
        let sample = depth * stored.size(Axis::Depth);
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
