//! Grids and placements: into how many parts a layer is cut, and which ranks take them.
//!
//! Always true
//! - Ranks are ordered with width varying fastest, then height, depth, channel, filter, and samples slowest: the parts of one
//!   sample sit on neighbouring ranks.
//! - The parts of an axis are disjoint and cover it; some may be empty.

use convoy_net::{Axis, Region, Shape};
use std::fmt;

/// One member of the job: a thread team with its own memory, addressed by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Part `i` of `parts` of an axis of `n` points: the first `n mod parts` have one more.
pub fn block(n: usize, parts: usize, i: usize) -> (isize, isize) {
    let at = |i: usize| (i * (n / parts) + i.min(n % parts)) as isize;
    (at(i), at(i + 1))
}

/// Part `i` of `parts` of `n` samples. The cuts fall on cuts between leaves whenever `parts` divides their number, so that a
/// rank holds whole leaves.
pub fn sample_block(n: usize, parts: usize, i: usize) -> (isize, isize) {
    ((i * n / parts) as isize, ((i + 1) * n / parts) as isize)
}

/// Into how many parts a layer is cut along each axis.
///
/// ```
/// use convoy_split::Grid;
/// let grid: Grid = "data:2,spatial:2x3".parse().unwrap();
/// assert_eq!((grid.sample, grid.height, grid.width, grid.parts()), (2, 2, 3, 12));
/// assert_eq!(grid.to_string(), "data:2,spatial:2x3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    pub sample: usize,
    /// Output channels.
    pub filter: usize,
    /// Input channels: outputs are then partial sums, which are added up where they are owned. Layers that do not sum over
    /// channels are cut along their output's instead.
    pub channel: usize,
    pub depth: usize,
    pub height: usize,
    pub width: usize,
}

impl Default for Grid {
    fn default() -> Grid {
        Grid { sample: 1, filter: 1, channel: 1, depth: 1, height: 1, width: 1 }
    }
}

impl Grid {
    /// Samples over `parts` ranks.
    pub fn data(parts: usize) -> Grid {
        Grid { sample: parts, ..Grid::default() }
    }

    /// Rows over `parts` ranks.
    pub fn rows(parts: usize) -> Grid {
        Grid { height: parts, ..Grid::default() }
    }

    /// Parts in all.
    pub fn parts(&self) -> usize {
        self.sample * self.filter * self.channel * self.depth * self.height * self.width
    }

    /// Parts along depth, height and width.
    pub fn space(&self) -> [usize; 3] {
        [self.depth, self.height, self.width]
    }

    /// The region of an output of `shape` that part `i` owns. An empty part is empty only along the axis that has too little
    /// to give: it still says which channels, and so which parameters, belong to it.
    pub fn region(&self, shape: Shape, i: usize) -> Region {
        let (computed, (_, c)) = (self.computed(shape, i), self.filter_and_channel(i));
        let (first, end) = computed.range(Axis::Channel);
        let (start, stop) = block((end - first) as usize, self.channel, c);
        computed.with(Axis::Channel, first + start, first + stop)
    }

    /// The region whose sums part `i` computes: the same for all parts that differ only in their input channels.
    pub fn computed(&self, shape: Shape, i: usize) -> Region {
        let w = i % self.width;
        let h = i / self.width % self.height;
        let d = i / (self.width * self.height) % self.depth;
        let (f, _) = self.filter_and_channel(i);
        let n = self.sample_part(i);
        let mut region = Region::whole(shape);
        let cuts = [
            (Axis::Sample, sample_block(shape.samples(), self.sample, n)),
            (Axis::Channel, block(shape.channels(), self.filter, f)),
            (Axis::Depth, block(shape.along(Axis::Depth), self.depth, d)),
            (Axis::Height, block(shape.along(Axis::Height), self.height, h)),
            (Axis::Width, block(shape.along(Axis::Width), self.width, w)),
        ];
        for (axis, (start, end)) in cuts {
            region = region.with(axis, start, end);
        }
        region
    }
}

impl Grid {
    /// Which part of the samples part `i` has.
    pub fn sample_part(&self, i: usize) -> usize {
        i * self.sample / self.parts()
    }

    /// Which part of the filters and which part of the channels part `i` has.
    fn filter_and_channel(&self, i: usize) -> (usize, usize) {
        let inner = i / (self.width * self.height * self.depth);
        (inner / self.channel % self.filter, inner % self.channel)
    }

    /// The channels of an input of so many whose terms part `i` sums.
    pub fn channels(&self, channels: usize, i: usize) -> (isize, isize) {
        block(channels, self.channel, self.filter_and_channel(i).1)
    }
}

impl std::str::FromStr for Grid {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Grid, crate::Error> {
        let mut grid = Grid::default();
        for word in text.split(',') {
            let wrong = || crate::Error::Word { text: text.into(), word: word.into() };
            let (name, parts) = word.split_once(':').ok_or_else(wrong)?;
            let parts: Result<Vec<usize>, _> = parts.split('x').map(str::parse).collect();
            let parts = parts.ok().filter(|p| !p.contains(&0)).ok_or_else(wrong)?;
            match (name, parts.as_slice()) {
                ("data", &[n]) => grid.sample = n,
                ("filter", &[n]) => grid.filter = n,
                ("channel", &[n]) => grid.channel = n,
                ("spatial", &[h]) => grid.height = h,
                ("spatial", &[h, w]) => (grid.height, grid.width) = (h, w),
                ("spatial", &[d, h, w]) => (grid.depth, grid.height, grid.width) = (d, h, w),
                _ => return Err(wrong()),
            }
        }
        Ok(grid)
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut words = vec![];
        for (name, parts) in [("data", self.sample), ("filter", self.filter), ("channel", self.channel)] {
            if parts > 1 {
                words.push(format!("{name}:{parts}"));
            }
        }
        match (self.depth, self.height, self.width) {
            (1, 1, 1) => {}
            (1, h, 1) => words.push(format!("spatial:{h}")),
            (1, h, w) => words.push(format!("spatial:{h}x{w}")),
            (d, h, w) => words.push(format!("spatial:{d}x{h}x{w}")),
        }
        if words.is_empty() {
            words.push("data:1".into());
        }
        f.write_str(&words.join(","))
    }
}

/// An ordered set of ranks and a grid over them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// One rank for each part of the grid, in order.
    pub ranks: Vec<Rank>,
    pub grid: Grid,
    /// How many samples each of their parts has, relative to the others; nothing where all have equally many.
    pub shares: Vec<usize>,
}

impl Placement {
    /// The first ranks, as many as the grid has parts.
    pub fn over(grid: Grid) -> Placement {
        Placement { ranks: (0..grid.parts()).map(Rank).collect(), grid, shares: vec![] }
    }

    /// The region of an output of `shape` that part `i` owns ([`Grid::region`]), by shares.
    pub fn region(&self, shape: Shape, i: usize) -> Region {
        self.shared(self.grid.region(shape, i), shape, i)
    }

    /// A part's region with the samples that its share says.
    fn shared(&self, region: Region, shape: Shape, i: usize) -> Region {
        if self.shares.is_empty() {
            return region;
        }
        let part = self.grid.sample_part(i);
        let before = |part: usize| self.shares[..part].iter().sum::<usize>();
        let at = |part: usize| (shape.samples() * before(part) / before(self.shares.len())) as isize;
        region.with(Axis::Sample, at(part), at(part + 1))
    }

    /// What each of `ranks` ranks owns of an output of `shape`.
    pub fn owned(&self, shape: Shape, ranks: usize) -> Vec<Region> {
        self.by_rank(ranks, Region::EMPTY, |i| self.region(shape, i))
    }

    /// What each of `ranks` ranks computes sums for, of an output of `shape` ([`Grid::computed`]).
    pub fn computed(&self, shape: Shape, ranks: usize) -> Vec<Region> {
        self.by_rank(ranks, Region::EMPTY, |i| self.shared(self.grid.computed(shape, i), shape, i))
    }

    /// The channels of an input of so many that each of `ranks` ranks sums over.
    pub fn channels(&self, channels: usize, ranks: usize) -> Vec<(isize, isize)> {
        self.by_rank(ranks, (0, 0), |i| self.grid.channels(channels, i))
    }

    fn by_rank<T: Clone>(&self, ranks: usize, nothing: T, part: impl Fn(usize) -> T) -> Vec<T> {
        let mut all = vec![nothing; ranks];
        self.ranks.iter().enumerate().for_each(|(i, rank)| all[rank.0] = part(i));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_point_once() {
        let shape = Shape([5, 7, 2, 9, 4]);
        for grid in
            ["data:3", "data:2,filter:3", "spatial:2x3x2", "data:2,spatial:4x3", "filter:8", "filter:2,channel:3"]
        {
            let grid: Grid = grid.parse().unwrap();
            let mut seen = vec![0; shape.len()];
            for part in 0..grid.parts() {
                let r = grid.region(shape, part);
                for (i, seen) in seen.iter_mut().enumerate() {
                    let s = shape.0;
                    let at = [
                        i / (s[1] * s[2] * s[3] * s[4]),
                        i / (s[2] * s[3] * s[4]) % s[1],
                        i / (s[3] * s[4]) % s[2],
                        i / s[4] % s[3],
                        i % s[4],
                    ];
                    let inside = (0..5).all(|a| r.start[a] <= at[a] as isize && (at[a] as isize) < r.end[a]);
                    *seen += inside as usize;
                }
            }
            assert!(seen.iter().all(|&n| n == 1), "{grid}");
        }
    }

    /// Ranks that share samples have the same, in proportion, and together they have all.
    #[test]
    fn shares_cut_samples() {
        let shape = Shape([8, 4, 1, 6, 1]);
        let grid: Grid = "data:3,spatial:2".parse().unwrap();
        let placement = Placement { shares: vec![2, 1, 1], ..Placement::over(grid) };
        let samples: Vec<_> = placement.owned(shape, 6).iter().map(|r| r.range(Axis::Sample)).collect();
        assert_eq!(samples, [(0, 4), (0, 4), (4, 6), (4, 6), (6, 8), (6, 8)]);
        let few: Vec<_> = placement.owned(Shape([1, 4, 1, 6, 1]), 6).iter().map(|r| r.size(Axis::Sample)).collect();
        assert_eq!(few, [0, 0, 0, 0, 1, 1]);
    }

    /// PAPERS.md 1.3: blocks of 10 rows over 3 ranks, of 9 over 4.
    #[test]
    fn blocks_are_the_golden_ones() {
        assert_eq!([0, 1, 2].map(|i| block(10, 3, i)), [(0, 4), (4, 7), (7, 10)]);
        assert_eq!([0, 1, 2, 3].map(|i| block(9, 4, i)), [(0, 3), (3, 5), (5, 7), (7, 9)]);
    }

    #[test]
    fn wrong_words_are_named() {
        assert!(
            matches!("data:2,spacial:2".parse::<Grid>(), Err(crate::Error::Word { word, .. }) if word == "spacial:2")
        );
        assert!("data:0".parse::<Grid>().is_err());
        assert!("data".parse::<Grid>().is_err());
    }
}
