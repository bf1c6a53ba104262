//! Strips: the pieces in which sums over space are taken.
//!
//! A sample's rows (over depth and height, in order) are grouped into strips of about [`POINTS`] points. Strips lie on the
//! tensor's own rows, whatever part of it is here: a sum over a strip that is here whole has the same bits everywhere.

use super::lines::{Span, TILE_BYTES};
use super::tiles;
use crate::BLOCK;
use convoy_net::{Axis, Region, Shape};
use std::ops::Range;

/// Points of a strip, about. Strips that are not a sample's only one are so many rows, or multiples: whole rows of Winograd's tiles.
const POINTS: usize = 1024;
const ROWS: usize = 4;

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
    /// Tiles that share a strip, some blocks for each.
    parts: usize,
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
        let (all, tiles) = (depth * height, bytes.div_ceil(TILE_BYTES));
        Strips { region: *region, height, all, rows_of_strip, first, count, blocks, tiles, parts: 1 }.at_most(blocks)
    }

    /// The same with at most so many blocks in a tile. A tile has whole strips otherwise, unless there are few: rows with all their
    /// blocks are runs of memory, which a processor foresees.
    pub fn at_most(mut self, blocks: usize) -> Strips {
        let strips = self.region.size(Axis::Sample) * self.count * self.blocks.min(1);
        let few = tiles::enough(self.tiles).div_ceil(strips.max(1)).min(self.blocks);
        self.parts = few.max(self.blocks.div_ceil(blocks.max(1))).max(1);
        self.tiles = self.tiles.div_ceil(self.parts).min(strips) * self.parts;
        self
    }

    /// Blocks of the tiles that have most of them.
    pub fn most_blocks(&self) -> usize {
        self.blocks.div_ceil(self.parts)
    }

    /// The strips of a tile, each from a block of it on and with how many blocks of it.
    pub fn of(&self, tile: usize) -> impl Iterator<Item = (Strip, usize)> + use<> {
        let range = |i: usize, of: usize, all: usize| i * all / of..(i + 1) * all / of;
        let (count, start, samples) = (self.count, self.region.start[0], self.region.size(Axis::Sample));
        let blocks = range(tile % self.parts, self.parts, self.blocks);
        range(tile / self.parts, self.tiles / self.parts, samples * count).map(move |i| {
            let sample = i / count;
            (Strip { n: start + sample as isize, sample, strip: i % count, block: blocks.start }, blocks.len())
        })
    }

    /// The same of tiles counted from the end of memory to its beginning: what was written last before a pass is still in a cache, and so
    /// is what it reads last for the pass that follows.
    pub fn backwards(&self, tile: usize) -> impl Iterator<Item = (Strip, usize)> + use<> {
        self.of(self.tiles - 1 - tile)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every block of every strip is one tile's, and tiles have all blocks of strips unless these are few or fewer blocks are wanted.
    #[test]
    fn tiles_share_what_there_is() {
        for ([samples, channels, height, width], most, all) in [
            ([20, 70, 40, 30], 9, true),
            ([3, 70, 40, 30], 2, false),
            ([2, 300, 9, 9], 99, false),
            ([2, 5, 0, 9], 9, true),
        ] {
            let shape = Shape([samples, channels, 1, height, width]);
            let strips = Strips::new(shape, &Region::whole(shape), 1).at_most(most);
            let tiles = (0..strips.tiles).map(|tile| strips.of(tile).collect::<Vec<_>>());
            let runs: Vec<(Strip, usize)> = tiles.inspect(|tile| assert!(!tile.is_empty())).flatten().collect();
            let seen = runs.iter().flat_map(|(s, blocks)| (0..*blocks).map(move |i| (s.n, s.strip, s.block + i)));
            let seen: Vec<_> = seen.collect();
            assert_eq!(seen.len(), samples * strips.count * strips.blocks);
            assert_eq!(seen.len(), seen.iter().collect::<BTreeSet<_>>().len());
            let longest = runs.iter().map(|(_, blocks)| *blocks).max();
            assert!(longest.is_none_or(|blocks| blocks <= most && blocks == strips.most_blocks()));
            assert_eq!(strips.parts == 1, all, "{shape}");
        }
    }
}
