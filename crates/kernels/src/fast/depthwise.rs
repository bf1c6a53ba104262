//! Depthwise convolutions: every channel is a group of its own, so lines of 16 channels are multiplied lane by lane.
//!
//! There are few products for each line, so what counts is how memory is passed over: row after row, all blocks of a row (or as many as
//! leave the rows under a window in the second-level cache) before the next, as they lie in memory. Targets of a row are written
//! together, whatever the stride: an input gradient reads each row of the output's gradient once.
//!
//! Where a batch norm reads the targets, a row's sums are made while the row is in the first-level cache.
//!
//! Always true
//! - A target element is one chain in the order of taps, an element of a leaf's gradient one chain over the leaf's points in order.

use super::fold;
use super::isa::{Isa, STREAM_BYTES, fence, isa};
use super::lane_rows::{Collect, Gather, LaneTap, Lines};
use super::leaves::{Leaves, Subtrees};
use super::norm::{COLUMNS, sums_of};
use super::norm_rows::Spread;
use super::phases::Along;
use super::strips::{Strip, Strips};
use super::sweep::Start;
use super::tiles;
use super::windowed::Direct;
use crate::{BLOCK, Kernel, Layout, Operand, Operands, Work, leaf_range};
use convoy_net::{Axis, Region};
use std::ops::Range;

/// Bytes of rows that stay in the second-level cache.
const ROWS_BYTES: usize = if cfg!(test) { 1 << 10 } else { 256 << 10 };

/// What is computed: `along` depth, height and width, each in one or several evenly spaced phases.
pub struct Spec<'s> {
    pub source: (Operand, &'s Layout),
    pub target: (Operand, &'s Layout),
    /// The targets to compute.
    pub region: &'s Region,
    pub bias: Option<Operand>,
    pub accumulate: bool,
    pub clamp: Option<[f32; 2]>,
    /// Whether a batch norm wants sums of the strips of the targets: all of space then.
    pub sums: bool,
    pub along: &'s [Vec<Along>; 3],
    pub kernel: [usize; 3],
}

/// The taps of one phase along each axis, for sources stored so: in order.
fn taps(phases: [&Along; 3], kernel: [usize; 3], source: &Layout) -> Vec<LaneTap> {
    let [d, h, w] = phases.map(|along| &along.taps);
    let mut taps = vec![];
    for depth in d {
        for row in h {
            for column in w {
                let number = (depth.number * kernel[1] + row.number) * kernel[2] + column.number;
                let from = depth.at * source.depth + row.at * source.row + column.at * source.block;
                taps.push(LaneTap { from, weight: number * BLOCK });
            }
        }
    }
    taps
}

/// The phase that each point of a span belongs to, and its first source.
fn places(phases: &[Along], (start, end): (isize, isize)) -> Vec<(usize, isize)> {
    let place = |i: isize| {
        let mut found = phases.iter().enumerate().filter_map(|(number, along)| {
            let j = (i - along.start) / along.step as isize;
            let is = i >= along.start && j < along.count as isize && (i - along.start) % along.step as isize == 0;
            is.then_some((number, along.from + j * along.from_step as isize))
        });
        found.next().expect("bug: a point of no phase")
    };
    (start..end).map(place).collect()
}

/// Blocks of so many rows of a source that stay in the second-level cache.
fn most_blocks(rows: usize, source: &Layout) -> usize {
    (ROWS_BYTES / (rows * source.stored.size(Axis::Width) * BLOCK * 4).max(1)).max(1)
}

/// A pass over targets as a kernel.
pub struct Depthwise {
    isa: &'static Isa,
    source: (Operand, Layout),
    target: (Operand, Layout),
    region: Region,
    bias: Option<Operand>,
    accumulate: bool,
    clamp: Option<[f32; 2]>,
    /// Whether targets are written past the caches.
    stream: bool,
    /// Of the targets, counted from the region's first: cut into tiles, and summed if they are to be. A tile has so few blocks that
    /// the rows under a window stay in the second-level cache until the next row is computed.
    strips: Strips,
    sums: bool,
    /// By depth and by height of a target: its phase and first source.
    depths: Vec<(usize, isize)>,
    heights: Vec<(usize, isize)>,
    columns: Vec<Along>,
    /// By phase of depth, height and width.
    taps: Vec<Vec<Vec<Vec<LaneTap>>>>,
    /// Of the whole window.
    panel: usize,
    /// Where a row's points are while sums are taken of them: side by side.
    side_by_side: Vec<u32>,
    work: Work,
}

impl Depthwise {
    pub fn new(spec: &Spec) -> Depthwise {
        let (source, target, region) = (spec.source.1, spec.target.1, spec.region);
        let [depths, heights, columns] = spec.along;
        let each = |d: &Along, h: &Along| columns.iter().map(|w| taps([d, h, w], spec.kernel, source)).collect();
        let taps: Vec<Vec<Vec<Vec<LaneTap>>>> =
            depths.iter().map(|d| heights.iter().map(|h| each(d, h)).collect()).collect();
        let blocks = region.size(Axis::Channel).div_ceil(BLOCK);
        let written = region.len() / region.size(Axis::Channel).max(1) * blocks * BLOCK;
        let read = source.len / source.stored.size(Axis::Sample).max(1) * region.size(Axis::Sample);
        let products: usize =
            spec.along.iter().map(|a| a.iter().map(|p| p.count * p.taps.len()).sum::<usize>()).product();
        let weights = spec.kernel.iter().product::<usize>() * blocks * BLOCK;
        let most = |along: &[Along]| along.iter().map(|a| a.taps.len()).max().unwrap_or(1);
        let shape = region.shape();
        Depthwise {
            isa: isa(),
            stream: !spec.accumulate && 4 * written > STREAM_BYTES,
            sums: spec.sums,
            strips: Strips::new(shape, &Region::whole(shape), 2)
                .at_most(most_blocks(most(depths) * most(heights), source)),
            depths: places(depths, region.range(Axis::Depth)),
            heights: places(heights, region.range(Axis::Height)),
            columns: columns.clone(),
            taps,
            panel: spec.kernel.iter().product::<usize>() * BLOCK,
            side_by_side: (0..region.size(Axis::Width)).map(|i| (i * BLOCK) as u32).collect(),
            work: Work {
                flops: 2.0 * (products * region.size(Axis::Sample) * blocks * BLOCK) as f64,
                bytes: 4.0 * (read + written + weights) as f64,
            },
            source: (spec.source.0, source.clone()),
            target: (spec.target.0, target.clone()),
            region: *region,
            bias: spec.bias,
            accumulate: spec.accumulate,
            clamp: spec.clamp,
        }
    }

    /// Some blocks of one row of targets, from the first block of `strip` on; adds them to `sums`, one of each block, if there are any.
    fn row(
        &self,
        strip: Strip,
        (d, h): (isize, isize),
        blocks: usize,
        sums: &mut [[[f64; BLOCK]; 2]],
        operands: &Operands,
        scratch: &mut [f32],
    ) {
        let (x, weights) = (operands.floats(self.source.0), operands.floats(Operand::Parameter(0)));
        let bias = self.bias.map(|bias| operands.floats(bias));
        let to = operands.slot(self.target.0);
        let (depth, from_d) = self.depths[d as usize];
        let (height, from_h) = self.heights[h as usize];
        let [n0, _, d0, h0, w0] = self.region.start;
        let n = n0 + strip.n;
        let target = |w: isize| self.target.1.offset(n, strip.block, d0 + d, h0 + h, w);
        // A row that is summed and then written past the caches is side by side in scratch until it is complete.
        let aside = self.sums && self.stream;
        let distance = self.side_by_side.len() * BLOCK;
        for (along, taps) in self.columns.iter().zip(&self.taps[depth][height]).filter(|(along, _)| along.count > 0) {
            let column = (along.start - w0) as usize;
            let (first, room, block) = match aside {
                true => (scratch[column * BLOCK..].as_mut_ptr(), scratch.len() - column * BLOCK, distance),
                false => {
                    let at = target(along.start);
                    ((to.data as *mut f32).wrapping_add(at), to.bytes / 4 - at, self.target.1.plane)
                }
            };
            // A phase without taps has no sources.
            let from = match taps.is_empty() {
                true => x,
                false => &x[self.source.1.offset(n, strip.block, from_d, from_h, along.from)..],
            };
            let row = Gather {
                from: Lines { first: from.as_ptr(), point: along.from_step * BLOCK, block: self.source.1.plane },
                taps,
                weights: weights[strip.block * self.panel..].as_ptr(),
                panel: self.panel,
                to: Lines { first, point: along.step * BLOCK, block },
                points: along.count,
                blocks,
                start: match bias {
                    _ if self.accumulate => Start::Held,
                    Some(bias) => Start::Line(bias[strip.block * BLOCK..][..blocks * BLOCK].as_ptr()),
                    None => Start::Zero,
                },
                clamp: self.clamp,
                stream: self.stream && !aside,
            };
            row.assert_inside(from.len(), weights.len() - strip.block * self.panel, room);
            // SAFETY: tables were made from the layouts of these operands, as asserted above; these blocks of the row, or scratch,
            // are this tile's alone.
            unsafe { self.isa.gather(&row) }
        }
        let own = (to.data as *mut f32).wrapping_add(target(w0));
        for (i, sums) in sums.iter_mut().enumerate() {
            let spread = |from: *const f32| Spread { from, offsets: &self.side_by_side };
            let own = own.wrapping_add(i * self.target.1.plane);
            let onward = Spread { from: own, offsets: &self.side_by_side };
            let (lines, onward) = match aside {
                true => (spread(scratch[i * distance..].as_ptr()), Some(&onward)),
                false => (spread(own), None),
            };
            // SAFETY: the row's lines have just been written; where they go on to, they begin at multiples of 64 bytes and are this
            // tile's alone.
            unsafe { (self.isa.norm.moments)(&lines, onward, sums) }
        }
    }
}

impl Direct for Depthwise {
    fn tiles(&self) -> usize {
        self.strips.tiles
    }
    fn scratch(&self) -> usize {
        let aside = self.sums && self.stream;
        if aside { self.side_by_side.len() * BLOCK * self.strips.most_blocks() } else { 0 }
    }
    fn work(&self) -> Work {
        self.work
    }
    fn makes_sums(&self) -> bool {
        self.sums
    }
}

impl Kernel for Depthwise {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        for (strip, blocks) in self.strips.of(tile) {
            let sums = match self.sums {
                // SAFETY: these columns of this strip are this tile's alone.
                true => unsafe { sums_of(operands, Operand::OutputSums, self.strips.places(strip, blocks, COLUMNS)) },
                false => &mut [],
            };
            for row in self.strips.rows(strip) {
                self.row(strip, row, blocks, sums, operands, scratch);
            }
        }
        fence();
    }
}

/// What a weight gradient is summed from.
pub struct GradientSpec<'s> {
    pub input: &'s Layout,
    pub gradient: &'s Layout,
    pub region: &'s Region,
    pub batch: usize,
    pub leaves: usize,
    /// Of outputs.
    pub along: &'s [Vec<Along>; 3],
    pub kernel: [usize; 3],
    /// Where subtrees of leaves are summed apart.
    pub sums: Operand,
}

/// A weight gradient as a kernel: a tile has some blocks, over a subtree of the leaves.
pub struct DepthwiseGradient {
    isa: &'static Isa,
    input: Layout,
    gradient: Layout,
    /// Phases that have outputs and taps.
    phases: Vec<([Along; 3], Vec<LaneTap>)>,
    /// Per leaf: its samples.
    samples: Vec<Range<isize>>,
    subtrees: Subtrees,
    blocks: usize,
    /// Blocks of a tile.
    part: usize,
    panel: usize,
    to: Operand,
    work: Work,
}

impl DepthwiseGradient {
    pub fn new(spec: &GradientSpec) -> DepthwiseGradient {
        let [depths, heights, columns] = spec.along;
        let mut phases = vec![];
        for d in depths {
            for h in heights {
                for w in columns.iter().filter(|w| d.count * h.count * w.count > 0) {
                    phases.push(([d, h, w].map(Clone::clone), taps([d, h, w], spec.kernel, spec.input)));
                }
            }
        }
        phases.retain(|(_, taps)| !taps.is_empty());
        let here = spec.region.range(Axis::Sample);
        let samples = (0..spec.leaves).map(|leaf| {
            let leaf = leaf_range(spec.batch, spec.leaves, leaf);
            here.0.max(leaf.start as isize)..here.1.min(leaf.end as isize)
        });
        let samples: Vec<Range<isize>> = samples.collect();
        let empty: Vec<bool> = samples.iter().map(|samples| phases.is_empty() || samples.is_empty()).collect();
        let blocks = spec.region.size(Axis::Channel).div_ceil(BLOCK);
        let per_sample = |l: &Layout| l.len / l.stored.size(Axis::Sample).max(1);
        let panel = spec.kernel.iter().product::<usize>() * BLOCK;
        let moved =
            (per_sample(spec.input) + per_sample(spec.gradient)) * spec.region.size(Axis::Sample) + panel * blocks;
        let products: usize =
            phases.iter().map(|(p, taps)| p.iter().map(|a| a.count).product::<usize>() * taps.len()).sum();
        let work = Work {
            flops: 2.0 * (products * spec.region.size(Axis::Sample) * blocks * BLOCK) as f64,
            bytes: 4.0 * moved as f64,
        };
        let wanted = tiles::enough(tiles::of_bytes(work.bytes));
        let most = most_blocks(spec.kernel[0] * spec.kernel[1], spec.input);
        let leaves = empty.iter().filter(|empty| !**empty).count().max(1);
        let parts = wanted.div_ceil(leaves).max(blocks.div_ceil(most)).clamp(1, blocks);
        let part = blocks.div_ceil(parts);
        let subtrees = Subtrees::new(&empty, blocks.div_ceil(part), wanted);
        DepthwiseGradient {
            isa: isa(),
            input: spec.input.clone(),
            gradient: spec.gradient.clone(),
            phases,
            samples,
            to: if subtrees.is_whole() { Operand::ParameterGradient(0) } else { spec.sums },
            subtrees,
            blocks,
            part,
            panel,
            work,
        }
    }

    fn parts(&self) -> usize {
        self.blocks.div_ceil(self.part)
    }

    /// The sum over one leaf of some blocks.
    fn leaf(&self, leaf: usize, blocks: Range<usize>, x: &[f32], dy: &[f32], sums: &mut [f32]) {
        sums.fill(0.0);
        for n in self.samples[leaf].clone() {
            for ([d, h, w], taps) in &self.phases {
                let source = |along: &Along, j: usize| along.from + (j * along.from_step) as isize;
                let target = |along: &Along, j: usize| along.start + (j * along.step) as isize;
                for (i, j) in (0..d.count).flat_map(|i| (0..h.count).map(move |j| (i, j))) {
                    let from = &x[self.input.offset(n, blocks.start, source(d, i), source(h, j), w.from)..];
                    let gradient = &dy[self.gradient.offset(n, blocks.start, target(d, i), target(h, j), w.start)..];
                    let row = Collect {
                        from: Lines { first: from.as_ptr(), point: w.from_step * BLOCK, block: self.input.plane },
                        taps,
                        gradient: Lines { first: gradient.as_ptr(), point: w.step * BLOCK, block: self.gradient.plane },
                        sums: sums.as_mut_ptr(),
                        panel: self.panel,
                        points: w.count,
                        blocks: blocks.len(),
                    };
                    row.assert_inside(from.len(), gradient.len(), sums.len());
                    // SAFETY: tables were made from the layouts of these operands, as asserted above; the sums are ours.
                    unsafe { self.isa.collect(&row) }
                }
            }
        }
    }
}

impl Direct for DepthwiseGradient {
    fn tiles(&self) -> usize {
        self.parts() * self.subtrees.ranges.len()
    }
    fn scratch(&self) -> usize {
        fold::levels(self.subtrees.longest()) * self.part * self.panel
    }
    fn work(&self) -> Work {
        self.work
    }
    fn fold(&self) -> Option<(Leaves, usize)> {
        let len = self.blocks * self.panel;
        (!self.subtrees.is_whole()).then(|| (self.subtrees.fold(self.to, len), 4 * len * self.subtrees.ranges.len()))
    }
}

impl Kernel for DepthwiseGradient {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (subtree, part) = (tile % self.subtrees.ranges.len(), tile / self.subtrees.ranges.len());
        let blocks = part * self.part..((part + 1) * self.part).min(self.blocks);
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let len = blocks.len() * self.panel;
        let mut levels: [&mut [f32]; 24] = Default::default();
        levels.iter_mut().zip(scratch.chunks_exact_mut(len)).for_each(|(level, buffer)| *level = buffer);
        let any = fold::tree(
            self.subtrees.ranges[subtree].clone(),
            &mut levels,
            &|l| self.samples[l].is_empty(),
            &mut |l, into: &mut &mut [f32]| self.leaf(l, blocks.clone(), x, dy, into),
            &|into, from| fold::add(self.isa, into, from),
        );
        let first = (subtree * self.blocks + blocks.start) * self.panel;
        // SAFETY: these blocks of this subtree's sums are this tile's alone.
        let to = unsafe { operands.floats_mut(self.to, first..first + len) };
        match any {
            true => to.copy_from_slice(levels[0]),
            false => to.fill(0.0),
        }
    }
}
