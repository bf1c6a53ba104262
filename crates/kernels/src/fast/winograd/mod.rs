//! Winograd's convolutions F(4x4, 3x3), F(2x2, 3x3) and F(2x2, 5x5) of stride 1, and F(4x4, 3x3) of stride 2: all three passes.
//!
//! Outputs are cut into tiles of m x m points. Inputs, weights and gradients are transformed to `(m + r - 1)²` planes; in each
//! plane a convolution is a matrix product (a sweep), which is transformed back. An input gradient is the same on transposed,
//! flipped weights; or it is forward's adjoint, step by step, where that has clearly fewer tiles (`adjoint.rs`).
//!
//! With stride 2 every other input meets the outer taps, and those between the middle one. Both are transformed, to planes of their own,
//! and what they have at the same point is one sum: 81 planes of inputs and weights, 25 of sums, 5.1 products for an output instead of 9.
//! The input gradient is always forward's adjoint.
//!
//! Two ways, with the same bits. *Fused*: weights are brought to planes first; then a worker takes some tiles through all steps in its
//! scratch: for many tiles and few channels. *Staged*: the source is brought to planes first; then a worker takes some target blocks, brings
//! their weights to planes in its scratch, and does all else: for few tiles and many channels, whose planes would go to memory and back.
//!
//! Always true
//! - Tiles lie on multiples of m of the output's global coordinates. A tile that a region holds in full, or up to the tensor's
//!   end, has the same bits whatever the region: what it reads beyond its own outputs' windows counts as zero. The adjoint's are tiles of
//!   what it reads: a point has the same bits where all tiles whose windows touch it are read in full.
//! - Weight gradients are summed leaf by leaf, over tiles in order.
//! - Which size and which way of an input gradient is chosen depends on the layer's global shape and the job's setting alone.

mod adjoint;
mod convolve;
mod gradient;

pub use convolve::{Convolution, Direction};
pub use gradient::Gradient;

use super::isa::{Isa, prefetch};
use super::transforms::{After, Transform, Transforms};
use crate::{BLOCK, Layout, Winograd, leaf_range};
use convoy_net::{Axis, Region, Shape};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Floats of the weights between two blocks at one tap or in one plane.
const PAIR: usize = BLOCK * BLOCK;
/// Floats of scratch that a fused pass may use.
const SCRATCH: usize = 2 << 20;
/// Tiles that a fused pass takes at once: at least, and at most if its scratch allows. Tests have few tiles.
const FEWEST_TILES: usize = if cfg!(test) { 3 } else { 24 };
const FUSED_TILES: usize = if cfg!(test) { 7 } else { 96 };
/// Tiles that a leaf should have. With 8, resnet50's 512 -> 512 on 7 x 7 points took 39 ms instead of 21 directly; with 16, vgg16's
/// on 14 x 14 took 32 instead of 43. Tests have few tiles.
const LEAF_TILES: usize = if cfg!(test) { 1 } else { 12 };
/// Lines that a tile of a transform should write: about 100 microseconds.
const TILE_LINES: usize = 16 << 10;

/// Which of the four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// F(4x4, 3x3).
    Four,
    /// F(2x2, 3x3).
    Two,
    /// F(2x2, 5x5), on the points of F(4x4, 3x3); [`Winograd`] says how both round.
    Wide,
    /// F(4x4, 3x3) of stride 2.
    Stepped,
}

/// A square window, the same along both axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Square {
    pub taps: usize,
    pub stride: usize,
}

impl Size {
    /// The size for such windows, if any pays: the one with the fewest products, if those are fewer by half than of windows over the
    /// output.
    pub fn choose(setting: Winograd, square: Square, output: Shape) -> Option<Size> {
        let (size, products) = Size::fewest(setting, square, output)?;
        pays(products, square.taps, output).then_some(size)
    }

    /// The same for the input gradient, and how: over tiles of the input, or as forward's adjoint if the output has fewer by a sixth, as
    /// small images without padding have. Adding windows costs more than writing tiles: with 3 % fewer, 16 samples of 16 channels on
    /// 226 x 226 points took 33 ms instead of 26; with 23 % fewer, of 64 and 256 channels on 30 x 30 a tenth to a quarter less.
    pub fn choose_for_input(
        setting: Winograd,
        square: Square,
        input: Shape,
        output: Shape,
    ) -> Option<(Size, Direction)> {
        let over_output = Size::fewest(setting, square, output)?;
        let over_input = if square.stride == 1 { Size::fewest(setting, square, input) } else { None };
        let ((size, products), direction) = match over_input {
            Some(over_input) if 6 * over_output.1 > 5 * over_input.1 => (over_input, Direction::Backward),
            _ => (over_output, Direction::Adjoint),
        };
        pays(products, square.taps, output).then_some((size, direction))
    }

    /// The size with the fewest products for the planes of such a tensor's tiles, and how many.
    fn fewest(setting: Winograd, square: Square, tiled: Shape) -> Option<(Size, usize)> {
        let [_, height, width] = tiled.space();
        let products = |size: Size| size.planes() * height.div_ceil(size.tile()) * width.div_ceil(size.tile());
        let sizes: &[Size] = match (setting, square.taps, square.stride) {
            (Winograd::Four, 3, 1) => &[Size::Two, Size::Four],
            (Winograd::Two, 3, 1) => &[Size::Two],
            (Winograd::Four, 5, 1) => &[Size::Wide],
            (Winograd::Four, 3, 2) => &[Size::Stepped],
            _ => &[],
        };
        sizes.iter().map(|&size| (size, products(size))).min_by_key(|found| found.1)
    }

    /// The same for a weight gradient summed over leaves of at most so many samples: a leaf's sums are transformed back, and that pays only where a
    /// leaf has enough tiles.
    pub fn choose_for_weights(setting: Winograd, square: Square, output: Shape, samples: usize) -> Option<Size> {
        let size = Size::choose(setting, square, output)?;
        let [depth, height, width] = output.space();
        let per_sample = depth * height.div_ceil(size.tile()) * width.div_ceil(size.tile());
        (samples * per_sample >= LEAF_TILES).then_some(size)
    }

    /// Points of a tile along an axis.
    pub fn tile(self) -> usize {
        match self {
            Size::Four | Size::Stepped => 4,
            Size::Two | Size::Wide => 2,
        }
    }

    /// Taps of a window along an axis.
    fn taps(self) -> usize {
        match self {
            Size::Four | Size::Two | Size::Stepped => 3,
            Size::Wide => 5,
        }
    }

    fn stride(self) -> usize {
        if self == Size::Stepped { 2 } else { 1 }
    }

    /// Floats of the weights between two blocks.
    fn weights(self) -> usize {
        self.taps() * self.taps() * PAIR
    }

    /// Points along an axis of the window that a tile reads, and of its planes.
    fn window(self) -> usize {
        self.stride() * (self.tile() - 1) + self.taps()
    }

    /// Planes of the transform domain in which inputs and weights are.
    pub fn planes(self) -> usize {
        self.window() * self.window()
    }

    /// The point along an axis at which each plane's products are summed: those of the outer taps, then those of the middle one.
    fn sum_points(self) -> &'static [usize] {
        match self {
            Size::Two => &[0, 1, 2, 3],
            Size::Four | Size::Wide => &[0, 1, 2, 3, 4, 5],
            Size::Stepped => &[0, 1, 2, 3, 4, 0, 1, 2, 4],
        }
    }

    /// Points of sums along an axis.
    fn sum_window(self) -> usize {
        if self == Size::Stepped { 5 } else { self.window() }
    }

    /// Planes of sums.
    fn sum_planes(self) -> usize {
        self.sum_window() * self.sum_window()
    }

    /// The plane in which the products of plane `q` are summed.
    fn sum_plane(self, q: usize) -> usize {
        let [row, column] = [q / self.window(), q % self.window()].map(|i| self.sum_points()[i]);
        row * self.sum_window() + column
    }

    fn transforms(self, isa: &'static Isa) -> &'static Transforms {
        match self {
            Size::Four => &isa.four,
            Size::Two => &isa.two,
            Size::Wide => &isa.wide,
            Size::Stepped => &isa.stepped,
        }
    }
}

/// Whether so many products are fewer by half than those of windows over the output.
fn pays(products: usize, taps: usize, output: Shape) -> bool {
    let [_, rows, columns] = output.space();
    3 * products <= 2 * rows * columns * taps * taps
}

/// Distance between planes of so many lines: odd, so that planes do not share cache sets.
fn plane(lines: usize) -> usize {
    (lines | 1) * BLOCK
}

/// Lines of 16 floats one after the other.
fn lines(count: usize) -> Vec<u32> {
    (0..count).map(|i| (i * BLOCK) as u32).collect()
}

/// The tiles of a region, in the order sample, depth, row, column.
#[derive(Clone, Debug)]
struct Grid {
    tile: isize,
    region: Region,
    /// Number of the first tile along height and width, and how many there are.
    first: [isize; 2],
    count: [usize; 2],
}

/// A tile: its first point, and which of its rows and columns are in the region.
struct Place {
    n: isize,
    d: isize,
    start: [isize; 2],
    inside: [(isize, isize); 2],
}

impl Grid {
    fn new(region: &Region, size: Size) -> Grid {
        let tile = size.tile() as isize;
        let span = |axis: usize| (region.start[axis].div_euclid(tile), (region.end[axis] + tile - 1).div_euclid(tile));
        let spans = [span(3), span(4)];
        let count = spans.map(|(a, b)| if region.is_empty() { 0 } else { (b - a) as usize });
        Grid { tile, region: *region, first: spans.map(|s| s.0), count }
    }

    /// Of one sample and depth.
    fn per_plane(&self) -> usize {
        self.count[0] * self.count[1]
    }

    fn per_sample(&self) -> usize {
        self.region.size(Axis::Depth) * self.per_plane()
    }

    fn len(&self) -> usize {
        self.region.size(Axis::Sample) * self.per_sample()
    }

    fn place(&self, tile: usize) -> Place {
        let [rows, columns] = self.count;
        let at = [tile / columns % rows, tile % columns];
        let start = [0, 1].map(|i| (self.first[i] + at[i] as isize) * self.tile);
        let inside = [0, 1]
            .map(|i| (start[i].max(self.region.start[3 + i]), (start[i] + self.tile).min(self.region.end[3 + i])));
        let plane = tile / (rows * columns);
        let depth = self.region.size(Axis::Depth);
        let n = self.region.start[0] + (plane / depth) as isize;
        Place { n, d: self.region.start[2] + (plane % depth) as isize, start, inside }
    }

    /// Tiles of the leaf's samples.
    fn leaf(&self, batch: usize, leaves: usize, leaf: usize) -> Range<usize> {
        let leaf = leaf_range(batch, leaves, leaf);
        let number =
            |sample: usize| (sample as isize).clamp(self.region.start[0], self.region.end[0]) - self.region.start[0];
        number(leaf.start) as usize * self.per_sample()..number(leaf.end) as usize * self.per_sample()
    }
}

/// How windows of a stored tensor become planes.
struct Windows {
    grid: Grid,
    layout: Layout,
    transform: Transform,
    /// Points of a window along an axis, and of its planes.
    size: usize,
    planes: usize,
    /// From one point's window of a tile to the next's, and how far before the first the tile's begins along height and width.
    stride: isize,
    before: [isize; 2],
}

/// Points of the largest window.
const MOST_POINTS: usize = 81;

impl Windows {
    /// Tiles of some blocks to planes. The first tile's line of the first block and plane is at `to`; planes and blocks are
    /// `distances` apart.
    ///
    /// # Safety
    /// Lines of these tiles and blocks in all planes may be written, by nobody else.
    unsafe fn transform(
        &self,
        data: &[f32],
        blocks: Range<usize>,
        tiles: Range<usize>,
        to: *mut f32,
        distances: (usize, usize),
    ) {
        // A row of tiles at a time: all blocks of an image row lie together.
        let columns = self.grid.count[1];
        let mut first = tiles.start;
        while first < tiles.end {
            let end = ((first / columns + 1) * columns).min(tiles.end);
            for (i, block) in blocks.clone().enumerate() {
                for tile in first..end {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let to = to.add((tile - tiles.start) * BLOCK + i * distances.1);
                        self.one(data, block, tile, to, distances.0);
                    }
                }
            }
            first = end;
        }
    }

    /// One tile of one block to planes `distance` apart.
    ///
    /// # Safety
    /// Its lines in all planes may be written, by nobody else.
    unsafe fn one(&self, data: &[f32], block: usize, tile: usize, to: *mut f32, distance: usize) {
        let at = self.grid.place(tile);
        // By how much a window is longer than its tile's points are apart.
        let longer = self.size as isize - self.stride * self.grid.tile;
        let whole = (0..2).all(|a| at.inside[a].1 - at.inside[a].0 == self.grid.tile);
        let [h, w] = [0, 1].map(|a| self.stride * at.inside[a].0 - self.before[a]);
        let mut room = MaybeUninit::<[f32; MOST_POINTS * BLOCK]>::uninit();
        let (source, from) = if whole {
            let source = &data[self.layout.offset(at.n, block, at.d, h, w)..];
            // Two tiles on: rows of a block are far apart, and the processor does not foresee them.
            let tile = (self.stride * self.grid.tile) as usize;
            let ahead = (2 * tile + longer as usize) * BLOCK;
            for row in 0..self.size {
                for line in 0..tile {
                    prefetch(source.as_ptr().wrapping_add(row * self.layout.row + ahead + line * BLOCK));
                }
            }
            (source, (self.layout.row, BLOCK))
        } else {
            let (first, len) = (room.as_mut_ptr() as *mut f32, self.size * self.size * BLOCK);
            // SAFETY: no window has more points than there is room for; those of this one are cleared here, and only they are in the slice.
            let copy = unsafe {
                first.write_bytes(0, len);
                std::slice::from_raw_parts_mut(first, len)
            };
            let [rows, columns] = [0, 1].map(|a| (self.stride * (at.inside[a].1 - at.inside[a].0) + longer) as usize);
            let [down, right] = [0, 1].map(|a| (self.stride * (at.inside[a].0 - at.start[a])) as usize);
            for row in 0..rows {
                let from = self.layout.offset(at.n, block, at.d, h + row as isize, w);
                let to = ((down + row) * self.size + right) * BLOCK;
                copy[to..to + columns * BLOCK].copy_from_slice(&data[from..from + columns * BLOCK]);
            }
            (&*copy, (self.size * BLOCK, BLOCK))
        };
        debug_assert!((self.size - 1) * from.0 + self.size * BLOCK <= source.len(), "bug: a window outside");
        // SAFETY: the window is inside `source`, as asserted; the rest is the caller's promise.
        unsafe { (self.transform)(source.as_ptr(), from, to, (self.planes * distance, distance), &After::NOTHING) };
    }
}

/// Tiles that a fused pass takes at once, for so many lines of each in scratch.
fn at_once(size: Size, lines: usize) -> usize {
    let most = FUSED_TILES * if size == Size::Two { 2 } else { 1 };
    (SCRATCH / (lines * BLOCK)).clamp(FEWEST_TILES, most)
}

/// `len` in parts of at most `most`, all about as long: how long.
fn even(len: usize, most: usize) -> usize {
    len.div_ceil(len.div_ceil(most).max(1))
}

/// A range in parts of at most `most`, all about as long.
fn parts(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let size = even(range.len(), most.max(1)).max(1);
    range.clone().step_by(size).map(move |first| first..(first + size).min(range.end))
}

/// Parts of `count` blocks so that each writes about `TILE_LINES` lines: how many blocks.
fn blocks_at_once(count: usize, lines_per_block: usize) -> usize {
    even(count, (TILE_LINES / lines_per_block.max(1)).clamp(1, count.div_ceil(8).max(1)))
}

/// What tests force, if they do.
fn forced() -> Option<bool> {
    #[cfg(test)]
    return FORCED.get();
    #[cfg(not(test))]
    None
}

#[cfg(test)]
thread_local! {
    /// One way or the other, whatever the number of tiles.
    static FORCED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
mod tests;
