//! Strips: the pieces in which sums over space are taken.
//!
//! A sample's rows (over depth and height, in order) are grouped into strips of about [`POINTS`] points. Strips lie on the
//! tensor's own rows, whatever part of it is here: a sum over a strip that is here whole has the same bits everywhere.

use super::lines::{Span, TILE_BYTES};
use crate::BLOCK;
use convoy_net::{Axis, Region, Shape};
use std::ops::Range;

/// Points of a strip, about. Strips that are not a sample's only one are so many rows, or multiples: whole rows of Winograd's tiles.
const POINTS: usize = 1024;
const ROWS: usize = 4;
/// Bytes of a row's blocks that a pass reads one after the other, about: the processor foresees runs of memory, not steps between short ones.
const RUN_BYTES: usize = if cfg!(test) { 1 << 10 } else { 16 << 10 };

/// The strips of a region, by sample, strip and block.
#[derive(Clone, Debug)]
pub struct Strips {
    region: Region,
    /// Rows of a depth of the whole tensor, and of all depths.
    height: usize,
    all: usize,
    /// Rows of a strip.
    pub rows_of_strip: usize,
    /// The first strip that the region has rows of.
    first: usize,
    /// Strips of a sample.
    pub count: usize,
    pub blocks: usize,
    pub tiles: usize,
}

/// One block of one strip.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    pub n: isize,
    /// Counted from the region's first sample.
    pub sample: usize,
    /// Counted from the region's first strip.
    pub strip: usize,
    pub block: usize,
}

impl Strips {
    /// Of a region of a tensor; `lines` is how many lines are read for each of the region.
    pub fn new(shape: Shape, region: &Region, lines: usize) -> Strips {
        let [_, _, depth, height, width] = shape.0;
        let rows = POINTS / width.max(1);
        let rows_of_strip = if rows < depth * height { (rows / ROWS).max(1) * ROWS } else { rows };
        let [samples, channels, depths, here, columns] = region.shape().0;
        let row = |d: isize, h: isize| d as usize * height + h as usize;
        let [_, _, d, h, _] = region.start;
        let (first, count) = match region.is_empty() {
            true => (0, 0),
            false => {
                let first = row(d, h) / rows_of_strip;
                (first, row(region.end[2] - 1, region.end[3] - 1) / rows_of_strip + 1 - first)
            }
        };
        let blocks = channels.div_ceil(BLOCK);
        let bytes = samples * blocks * depths * here * columns * lines * BLOCK * 4;
        let tiles = bytes.div_ceil(TILE_BYTES).min(samples * count * blocks);
        Strips { region: *region, height, all: depth * height, rows_of_strip, first, count, blocks, tiles }
    }

    /// The strips of a tile, block after block.
    pub fn of(&self, tile: usize) -> impl Iterator<Item = Strip> + use<> {
        let (blocks, count, start) = (self.blocks, self.count, self.region.start[0]);
        let all = self.region.size(Axis::Sample) * count * blocks;
        (tile * all / self.tiles..(tile + 1) * all / self.tiles).map(move |i| {
            let sample = i / (blocks * count);
            Strip { n: start + sample as isize, sample, strip: i / blocks % count, block: i % blocks }
        })
    }

    /// The strips of a tile, each with how many blocks of it from its own on are to be passed over row by row. Tiles are counted from the end of
    /// memory to its beginning: what was written last before a pass is still in a cache, and so is what it reads last for the pass that
    /// follows.
    pub fn backwards(&self, tile: usize) -> impl Iterator<Item = (Strip, usize)> + use<> {
        let width = self.region.size(Axis::Width);
        let most = (RUN_BYTES / (width * BLOCK * 4).max(1)).max(1);
        let mut strips = self.of(self.tiles - 1 - tile).peekable();
        std::iter::from_fn(move || {
            let first = strips.next()?;
            let mut blocks = 1;
            while blocks < most && strips.next_if(|next| next.block == first.block + blocks).is_some() {
                blocks += 1;
            }
            Some((first, blocks))
        })
    }

    /// Columns of the region.
    pub fn columns(&self) -> Span {
        self.region.range(Axis::Width)
    }

    /// Where the `columns` numbers of a strip's block lie in `[sample][strip][block][column]`.
    pub fn place(&self, strip: Strip, columns: usize) -> Range<usize> {
        self.places(strip, 1, columns)
    }

    /// The same of some blocks, from the strip's own on.
    pub fn places(&self, strip: Strip, blocks: usize, columns: usize) -> Range<usize> {
        let first = ((strip.sample * self.count + strip.strip) * self.blocks + strip.block) * columns;
        first..first + blocks * columns
    }

    /// The depths and heights of a strip's rows that the region holds.
    #[inline(always)]
    pub fn rows(&self, strip: Strip) -> impl Iterator<Item = (isize, isize)> + use<> {
        let first = (self.first + strip.strip) * self.rows_of_strip;
        let (height, region) = (self.height, self.region);
        let inside = move |axis: Axis, at: isize| {
            let (start, end): Span = region.range(axis);
            start <= at && at < end
        };
        (first..(first + self.rows_of_strip).min(self.all))
            .map(move |row| ((row / height) as isize, (row % height) as isize))
            .filter(move |&(d, h)| inside(Axis::Depth, d) && inside(Axis::Height, h))
    }
}
