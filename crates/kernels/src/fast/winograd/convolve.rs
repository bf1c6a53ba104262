//! Convolutions in the transform domain: forward, and the input gradient on transposed, flipped weights; or on transposed ones, ending with
//! `adjoint.rs`.
//!
//! Where a batch norm reads the target, its sums are made strip by strip while the strip is near: a worker's tiles are then those of whole
//! strips.

use super::adjoint::{self, Overlaps};
use super::{FEWEST_TILES, Grid, PAIR, Size, Windows, at_once, blocks_at_once, even, forced, lines, parts, plane};
use crate::fast::isa::{Isa, MOST_BLOCKS, isa};
use crate::fast::norm::COLUMNS;
use crate::fast::norm_rows::Spread;
use crate::fast::strips::{Strip, Strips};
use crate::fast::sweep::{Start, Step, Sweep};
use crate::fast::transforms::After;
use crate::fast::weights::{Pairs, Side};
use crate::{BLOCK, Kernel, Layout, Make, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region};
use std::ops::Range;
use std::ptr::null;

/// Weights of one group of steps stay in the first-level cache: 16 KiB of one target block, 32 of several at once.
const GROUP: usize = 16;
const WIDE_GROUP: usize = 8;
/// A sweep's source above this leaves the second-level cache.
const SOURCE_FLOATS: usize = 80 << 10;
/// Source blocks whose weights a tile of a staged pass has in planes at once.
const HELD: usize = if cfg!(test) { 2 } else { 8 };
/// Lines of each target block that a worker of a staged pass has in planes: with 192 tiles instead of 400, vgg16's layers on 28 x 28 points,
/// which have 392, took 5 to 15 % longer.
const STAGED_LINES: usize = if cfg!(test) { 180 } else { 14400 };
/// Tiles that a staged pass should have.
const STAGED_TILES: usize = 8;
/// Planes of source and target, as if all of both were kept, up to which a pass is staged. With 96 MiB instead of 64, alexnet's layers on 13 x 13 points and unet's with
/// 256 channels on 64 x 64 took a sixth less time with vectors of 16 floats; with 256, others took half as long again.
const STAGED_BYTES: usize = 96 << 20;
/// Planes of the tiles that a fused pass takes at once are about as large as the weights, which pass through the same cache, or this. With
/// 32 tiles instead of 96, 64 to 64 channels took 10 to 15 % less time with vectors of 16 floats; wider layers, which read more weights,
/// did not gain.
const NEAR_PLANES: usize = 512 << 10;
/// Weights in planes that stay in the caches from one block of tiles to the next: with 128 channels on 1024 tiles and more a fused
/// pass is faster by 5 to 30 %, with 256 and more not.
pub(super) const NEAR_WEIGHTS: usize = 4 << 20;

/// Which weights a convolution uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    /// Transposed and flipped, for the input gradient.
    Backward,
    /// Transposed, for the input gradient as forward's adjoint.
    Adjoint,
}

/// A convolution, described.
pub struct Convolution<'s> {
    pub size: Size,
    pub direction: Direction,
    pub source: (Operand, &'s Layout),
    pub target: (Operand, &'s Layout),
    /// The part of the target to compute.
    pub region: &'s Region,
    /// What is cut into tiles: that part, or for the adjoint the part of the source that reaches it.
    pub tiled: &'s Region,
    /// How far before its tile a window begins along height and width.
    pub before: [isize; 2],
    pub bias: Option<Operand>,
    pub accumulate: bool,
    /// Least and greatest result.
    pub clamp: Option<[f32; 2]>,
    /// Strips of all targets whose sums a batch norm wants: made if that can be.
    pub sums: Option<Strips>,
    /// As the weights are stored.
    pub pairs: &'s Pairs,
    /// Numbers that the pass before the last may have, and the operand that it makes: weights in planes; if staged, the source. Pieces of a layer
    /// share planes of weights, and may be staged or not.
    pub numbers: [usize; 2],
    /// The pass that writes the target.
    pub last: Pass,
}

impl Convolution<'_> {
    fn blocks(&self) -> (usize, usize) {
        let (outer, inner) = (self.pairs.outer.blocks(), self.pairs.inner.blocks());
        match self.direction {
            Direction::Forward => (inner, outer),
            Direction::Backward | Direction::Adjoint => (outer, inner),
        }
    }

    /// Whether workers have target blocks, and bring weights to planes: always where tiles are too few for workers to have blocks of them; else
    /// where weights are many and planes are not too large.
    fn staged(&self) -> bool {
        let tiles = Grid::new(self.tiled, self.size).len();
        let (weights, of_tile) = self.bytes();
        forced().unwrap_or(tiles < 512 || weights > NEAR_WEIGHTS && tiles * of_tile <= STAGED_BYTES)
    }

    /// Of the pass before the last.
    fn number(&self) -> usize {
        self.numbers[usize::from(self.staged())]
    }

    /// Tiles that a fused pass takes at once.
    fn at_once(&self) -> usize {
        let (weights, of_tile) = self.bytes();
        let lines = of_tile / (4 * BLOCK);
        at_once(self.size, lines).min((weights.max(NEAR_PLANES) / of_tile).max(FEWEST_TILES))
    }

    /// Planes of source and target.
    fn planes(&self) -> [usize; 2] {
        match self.direction {
            Direction::Adjoint => [self.size.sum_planes(), self.size.planes()],
            _ => [self.size.planes(), self.size.sum_planes()],
        }
    }

    /// Bytes of the weights in planes, and of one tile's source and target in planes.
    fn bytes(&self) -> (usize, usize) {
        let (inner, outer) = self.blocks();
        let [from, to] = self.planes();
        (4 * self.size.planes() * inner * outer * PAIR, 4 * (from * inner + to * outer) * BLOCK)
    }

    /// The stages, in order.
    pub fn stages(&self) -> Vec<Stage> {
        let new = || Convolve::new(self);
        match self.staged() {
            true => vec![ToPlanes(new()).stage(), Panels(new()).stage()],
            false => vec![Weights(new()).stage(), Fused(new()).stage()],
        }
    }

    /// The kernel of one of the stages, if it is one.
    pub fn prepare(&self, pass: Pass) -> Option<Box<dyn Kernel>> {
        let new = || Convolve::new(self);
        let is_last = pass == self.last;
        (is_last || pass == Pass::Transform(self.number())).then(|| -> Box<dyn Kernel> {
            match (self.staged(), is_last) {
                (true, false) => Box::new(ToPlanes(new())),
                (true, true) => Box::new(Panels(new())),
                (false, false) => Box::new(Weights(new())),
                (false, true) => Box::new(Fused(new())),
            }
        })
    }
}

/// Sums of targets.
struct Sums {
    strips: Strips,
    region: Region,
    /// First tiles of all strips, and the end.
    firsts: Vec<usize>,
    /// Offsets of a strip's points, row by row.
    offsets: Vec<u32>,
}

impl Sums {
    /// If they are wanted, and strips are whole rows of tiles in one plane.
    fn new(spec: &Convolution) -> Option<Sums> {
        let strips = spec.sums.clone()?;
        let (grid, tile) = (Grid::new(spec.tiled, spec.size), spec.size.tile());
        let [_, _, depth, height, width] = spec.region.shape().0;
        let rows = strips.rows_of_strip.min(height);
        if depth != 1 || spec.accumulate || strips.count > 1 && !rows.is_multiple_of(tile) {
            return None;
        }
        let first = |strip: usize| {
            strip / strips.count * grid.per_sample() + strip % strips.count * (rows / tile) * grid.count[1]
        };
        let all = spec.region.size(Axis::Sample) * strips.count;
        let points = (0..rows).flat_map(|row| (0..width).map(move |column| row * spec.target.1.row + column * BLOCK));
        Some(Sums {
            firsts: (0..all).map(first).chain([grid.len()]).collect(),
            offsets: points.map(|offset| offset as u32).collect(),
            region: *spec.region,
            strips,
        })
    }

    /// Numbers of the strips whose tiles these are.
    fn of(&self, tiles: &Range<usize>) -> Range<usize> {
        self.firsts.partition_point(|first| *first < tiles.start)
            ..self.firsts.partition_point(|first| *first < tiles.end)
    }

    /// Tiles in parts of whole strips, about `most` in each.
    fn cut(&self, most: usize) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = vec![];
        for strip in self.firsts.windows(2) {
            match parts.last_mut() {
                Some(last) if strip[1] - last.start <= most + most / 3 => last.end = strip[1],
                _ => parts.push(strip[0]..strip[1]),
            }
        }
        parts
    }
}

/// A convolution from windows of the source to tiles of the target.
struct Convolve {
    isa: &'static Isa,
    size: Size,
    source: Operand,
    target: Operand,
    /// That of the pass before the last and of what it makes.
    number: usize,
    last: Pass,
    /// Planes of source and target.
    counts: [usize; 2],
    bias: Option<Operand>,
    accumulate: bool,
    clamp: Option<[f32; 2]>,
    windows: Windows,
    region: Region,
    layout: Layout,
    /// How the adjoint's results are added.
    overlaps: Option<Overlaps>,
    weights: WeightPlanes,
    inner: usize,
    outer: usize,
    /// The targets' channels.
    side: Side,
    sums: Option<Sums>,
    /// Tiles of a worker's part, which are whole strips where sums are made and whole planes of a sample for the adjoint; and how many
    /// target blocks.
    parts: Vec<Range<usize>>,
    outer_at_once: usize,
    /// How many tiles lie side by side in planes of source and target, and the offsets of their lines.
    block: [usize; 2],
    offsets: Vec<u32>,
    /// Source blocks whose weights are in planes together.
    held: usize,
    /// By plane of the target: from the first of the source's and of the weights'. Of [`HELD`] source blocks, then of the next.
    steps: Vec<Vec<Step>>,
}

impl Convolve {
    fn new(spec: &Convolution) -> Convolve {
        let grid = Grid::new(spec.tiled, spec.size);
        assert!(spec.source.1.block == BLOCK, "bug: a narrow image in the transform domain");
        let (inner, outer) = spec.blocks();
        let (channels, side) = match spec.direction {
            Direction::Forward => (spec.pairs.inner.channels, spec.pairs.outer),
            Direction::Backward | Direction::Adjoint => (spec.pairs.outer.channels, spec.pairs.inner),
        };
        let staged = spec.staged();
        let (sums, most) = (Sums::new(spec), if staged { STAGED_LINES / spec.planes()[1] } else { spec.at_once() });
        let overlaps = (spec.direction == Direction::Adjoint).then(|| Overlaps::new(spec));
        let (parts, outer_at_once) = match (&sums, &overlaps) {
            (_, Some(_)) if staged => (adjoint::whole_planes(&grid, most / grid.per_plane().max(1)), outer),
            (_, Some(_)) => adjoint::cut(&grid, spec.size, most, (inner, outer)),
            (Some(sums), None) => (sums.cut(most), outer),
            _ => (parts(0..grid.len(), most).collect(), outer),
        };
        let longest = parts.iter().map(|part| part.len()).max().unwrap_or(0);
        let (block, outer_at_once, held) = match staged {
            true => {
                // Two at a time take 3 % longer than four, and are twice as many tiles.
                let most = if parts.len() * outer.div_ceil(MOST_BLOCKS) < STAGED_TILES { 2 } else { MOST_BLOCKS };
                ([grid.len(), longest], even(outer, most), inner.min(HELD))
            }
            false => ([even(longest, most); 2], outer_at_once, inner),
        };
        let isa = isa();
        let transforms = spec.size.transforms(isa);
        let tile = spec.size.tile();
        let (transform, size, planes, stride, before) = match spec.direction {
            Direction::Adjoint => (transforms.gradient, tile, spec.size.sum_window(), 1, [0, 0]),
            _ => (transforms.input, spec.size.window(), spec.size.window(), spec.size.stride(), spec.before),
        };
        let counts = spec.planes();
        let mut steps = vec![vec![]; counts[1]];
        for first in (0..inner).step_by(HELD) {
            for q in 0..spec.size.planes() {
                let (from, to) = match spec.direction {
                    Direction::Adjoint => (spec.size.sum_plane(q), q),
                    _ => (q, spec.size.sum_plane(q)),
                };
                // Filler channels are passed over.
                steps[to].extend((first..inner.min(first + HELD)).map(|i| Step {
                    a: (from * plane(inner * block[0]) + i * block[0] * BLOCK) as isize,
                    b: (q * plane(held * BLOCK) + i % held * PAIR) as isize,
                    len: BLOCK.min(channels - i * BLOCK),
                }));
            }
        }
        Convolve {
            isa,
            size: spec.size,
            source: spec.source.0,
            target: spec.target.0,
            number: spec.number(),
            last: spec.last,
            counts,
            bias: spec.bias,
            accumulate: spec.accumulate,
            clamp: spec.clamp,
            windows: Windows {
                grid,
                layout: spec.source.1.clone(),
                transform,
                size,
                planes,
                stride: stride as isize,
                before,
            },
            region: *spec.region,
            overlaps,
            layout: spec.target.1.clone(),
            weights: WeightPlanes::new(spec, held),
            inner,
            outer,
            side,
            sums,
            parts,
            outer_at_once,
            block,
            offsets: lines(block[1]),
            held,
            steps,
        }
    }

    /// What the stage before the last makes.
    fn made(&self) -> Operand {
        Operand::Internal(self.number)
    }

    /// The stage before the last.
    fn making(&self, reads: Operand, bytes: usize, tiles: usize, read_bytes: f64) -> Stage {
        Stage {
            pass: Pass::Transform(self.number),
            reads: vec![reads],
            writes: vec![self.made()],
            makes: vec![Make::Internal { number: self.number, bytes }],
            tiles,
            scratch: 0,
            work: Work { flops: 0.0, bytes: read_bytes + bytes as f64 },
        }
    }

    /// The last stage.
    fn finishing(&self, reads: Operand, scratch: usize, read_bytes: f64) -> Stage {
        let held = self.accumulate.then_some(self.target);
        Stage {
            pass: self.last,
            reads: [reads, self.made()].into_iter().chain(self.bias).chain(held).collect(),
            writes: [self.target].into_iter().chain(self.sums.as_ref().map(|_| Operand::OutputSums)).collect(),
            makes: vec![],
            tiles: self.parts.len() * self.times(),
            scratch,
            work: Work { flops: self.flops(), bytes: read_bytes + (4 * self.region.len()) as f64 },
        }
    }

    /// Tiles of the grid.
    fn len(&self) -> usize {
        self.windows.grid.len()
    }

    /// How often a part is gone over, for some target blocks each time.
    fn times(&self) -> usize {
        self.outer.div_ceil(self.outer_at_once)
    }

    /// A tile of the last stage: which part, and which target blocks.
    fn tile(&self, tile: usize) -> (Range<usize>, Range<usize>) {
        let first = tile / self.parts.len() * self.outer_at_once;
        (self.parts[tile % self.parts.len()].clone(), first..(first + self.outer_at_once).min(self.outer))
    }

    /// Distances between planes of source and target.
    fn distances(&self) -> [usize; 2] {
        [plane(self.inner * self.block[0]), plane(self.outer_at_once * self.block[1])]
    }

    /// Floats of all planes of source and target.
    fn floats(&self) -> [usize; 2] {
        let distances = self.distances();
        [0, 1].map(|side| self.counts[side] * distances[side])
    }

    fn flops(&self) -> f64 {
        2.0 * (self.len() * self.size.planes() * self.inner * self.outer * PAIR) as f64
    }

    fn stored_weight_bytes(&self) -> f64 {
        (4 * self.inner * self.outer * self.size.weights()) as f64
    }

    fn source_bytes(&self) -> f64 {
        (4 * self.windows.grid.region.len() / self.windows.grid.region.size(Axis::Channel).max(1) * self.inner * BLOCK)
            as f64
    }

    /// Adds products of some target blocks: `from` are the planes of `count` tiles of the source, `weights` and `to` those of these blocks. The
    /// source blocks are those whose weights are held, from `first` on; where that is the first of all, what was there is overwritten.
    fn products(
        &self,
        first: usize,
        blocks: Range<usize>,
        count: usize,
        from: &[f32],
        weights: &[f32],
        to: &mut [f32],
    ) {
        let per_group = if self.isa.blocks == 1 { GROUP } else { WIDE_GROUP };
        for (steps, to) in self.steps.iter().zip(to.chunks_mut(self.distances()[1])) {
            let per_block = steps.len() / self.inner;
            let steps = &steps[first * per_block..(first + self.held).min(self.inner) * per_block];
            let mut some = |o: Range<usize>, group: usize| {
                let panel = self.weights.panel();
                let panels = &weights[o.start * panel..o.end * panel];
                let to = &mut to[o.start * self.block[1] * BLOCK..o.end * self.block[1] * BLOCK];
                let rows = &self.offsets[..count];
                let sweep = Sweep {
                    a: from.as_ptr(),
                    a_off: rows,
                    b: panels.as_ptr(),
                    steps: &steps[group * per_group..((group + 1) * per_group).min(steps.len())],
                    ak: 1,
                    bk: BLOCK,
                    c: to.as_mut_ptr(),
                    c_off: rows,
                    blocks: o.len(),
                    b_block: panel,
                    c_block: self.block[1] * BLOCK,
                    start: if first + group == 0 { Start::Zero } else { Start::Held },
                    clamp: None,
                    narrow: o.len() == 1 && self.side.narrow(blocks.start + o.start),
                    stream: false,
                };
                sweep.assert_inside(from.len(), panels.len(), to.len());
                // SAFETY: inside, as asserted.
                unsafe { self.isa.sweep(&sweep) }
            };
            let (groups, together) = (steps.len().div_ceil(per_group), || parts(0..blocks.len(), self.isa.blocks));
            if count * steps.len() * BLOCK > SOURCE_FLOATS {
                (0..groups).for_each(|g| together().for_each(|o| some(o, g)));
            } else {
                together().for_each(|o| (0..groups).for_each(|g| some(o.clone(), g)));
            }
        }
    }

    /// One target block of some tiles, from planes `distance` apart whose first line is `from`'s, and the sums of their strips.
    fn finish(&self, o: usize, tiles: Range<usize>, from: &[f32], distance: usize, operands: &Operands) {
        let Some(sums) = &self.sums else { return self.output(o, tiles, from, distance, operands) };
        for number in sums.of(&tiles) {
            let strip = sums.firsts[number]..sums.firsts[number + 1];
            self.output(o, strip.clone(), &from[(strip.start - tiles.start) * BLOCK..], distance, operands);
            self.sum(sums, number, o, operands);
        }
    }

    /// The sums of a strip that was just written.
    fn sum(&self, sums: &Sums, number: usize, block: usize, operands: &Operands) {
        let Sums { strips, region, .. } = sums;
        let (sample, strip) = (number / strips.count, number % strips.count);
        let row = strip * strips.rows_of_strip;
        let rows = strips.rows_of_strip.min(region.size(Axis::Height) - row);
        let [n, _, d, h, w] = region.start;
        let at = self.layout.offset(n + sample as isize, block, d, h + row as isize, w);
        let offsets = &sums.offsets[..rows * region.size(Axis::Width)];
        let from = operands.slot(self.target).data as *const f32;
        // SAFETY: these columns of this strip are this tile's alone.
        let into = unsafe {
            operands.doubles_mut(Operand::OutputSums, strips.place(Strip { n, sample, strip, block }, COLUMNS))
        };
        into.fill(0.0);
        let (halves, _) = into.as_chunks_mut::<BLOCK>();
        let halves: &mut [[f64; BLOCK]; 2] = halves.try_into().expect("bug: other columns");
        // SAFETY: the strip's lines are inside the target, and nobody writes them any more.
        unsafe { (self.isa.norm.moments)(&Spread { from: from.add(at), offsets }, None, halves) };
    }

    /// One target block of some tiles, from planes `distance` apart whose first line is `from`'s.
    fn output(&self, o: usize, tiles: Range<usize>, from: &[f32], distance: usize, operands: &Operands) {
        let slot = operands.slot(self.target);
        if let Some(overlaps) = &self.overlaps {
            // SAFETY: all windows of these tiles' planes are, in this block, ours alone.
            return unsafe { overlaps.add(&self.windows.grid, o, tiles, (from, distance), slot) };
        }
        let transform = self.size.transforms(self.isa).output;
        let (tile, window) = (self.size.tile(), self.size.sum_window());
        let target = slot.data as *mut f32;
        let line = self.bias.map_or(null(), |bias| operands.floats(bias)[o * BLOCK..][..BLOCK].as_ptr());
        let after = &After { line, clamp: self.clamp };
        let mut copy = [0f32; 16 * BLOCK];
        for (i, t) in tiles.enumerate() {
            let at = self.windows.grid.place(t);
            let from = &from[i * BLOCK..];
            debug_assert!((self.counts[1] - 1) * distance + BLOCK <= from.len(), "bug: a tile outside");
            let [rows, columns] = [0, 1].map(|a| (at.inside[a].1 - at.inside[a].0) as usize);
            let to = |row: usize| self.layout.offset(at.n, o, at.d, at.inside[0].0 + row as isize, at.inside[1].0);
            debug_assert!(to(rows - 1) + columns * BLOCK <= slot.bytes / 4, "bug: targets outside");
            // SAFETY: windows and targets are inside, as asserted; this tile's lines of this block are ours alone.
            unsafe {
                let from = (from.as_ptr(), (window * distance, distance));
                if rows == tile && columns == tile && !self.accumulate {
                    transform(from.0, from.1, target.add(to(0)), (self.layout.row, BLOCK), after);
                    continue;
                }
                transform(from.0, from.1, copy.as_mut_ptr(), (tile * BLOCK, BLOCK), after);
                let [down, right] = [0, 1].map(|a| (at.inside[a].0 - at.start[a]) as usize);
                for row in 0..rows {
                    let part = &copy[((down + row) * tile + right) * BLOCK..][..columns * BLOCK];
                    let held = std::slice::from_raw_parts_mut(target.add(to(row)), columns * BLOCK);
                    match self.accumulate {
                        true => held.iter_mut().zip(part).for_each(|(a, b)| *a += b),
                        false => held.copy_from_slice(part),
                    }
                }
            }
        }
    }
}

/// The layer's weights.
const WEIGHTS: Operand = Operand::Parameter(0);

/// All steps at once, for some tiles in scratch.
struct Fused(Convolve);

impl Fused {
    fn stage(&self) -> Stage {
        let c = &self.0;
        let read_bytes = c.times() as f64 * c.source_bytes() + (4 * c.outer * c.weights.panel()) as f64;
        c.finishing(c.source, c.floats().iter().sum(), read_bytes)
    }
}

impl Kernel for Fused {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let c = &self.0;
        let (from, to) = scratch.split_at_mut(c.floats()[0]);
        let data = operands.floats(c.source);
        let [p, q] = c.distances();
        let (part, blocks) = c.tile(tile);
        let weights = &operands.floats(c.made())[blocks.start * c.weights.panel()..];
        for tiles in parts(part.clone(), c.block[0]) {
            // SAFETY: all planes of these tiles are in scratch.
            unsafe { c.windows.transform(data, 0..c.inner, tiles.clone(), from.as_mut_ptr(), (p, c.block[0] * BLOCK)) };
            c.products(0, blocks.clone(), tiles.len(), from, weights, to);
            for (i, o) in blocks.clone().enumerate() {
                c.output(o, tiles.clone(), &to[i * c.block[1] * BLOCK..], q, operands);
            }
        }
        if let Some(sums) = &c.sums {
            sums.of(&part).for_each(|strip| blocks.clone().for_each(|o| c.sum(sums, strip, o, operands)));
        }
    }
}

/// The stage before it: weights to planes. A tile is one target block.
struct Weights(Convolve);

impl Weights {
    fn stage(&self) -> Stage {
        let c = &self.0;
        c.making(WEIGHTS, 4 * c.outer * c.weights.panel(), c.outer, c.stored_weight_bytes())
    }
}

impl Kernel for Weights {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let weights = &self.0.weights;
        // SAFETY: a tile writes the panel of its own target block.
        let to = unsafe { operands.floats_mut(self.0.made(), tile * weights.panel()..(tile + 1) * weights.panel()) };
        weights.bring(operands.floats(WEIGHTS), tile, 0..self.0.inner, to);
    }
}

/// The first of two stages: windows to planes.
struct ToPlanes(Convolve);

impl ToPlanes {
    fn blocks(&self) -> usize {
        blocks_at_once(self.0.inner, self.0.len() * self.0.counts[0])
    }
    fn stage(&self) -> Stage {
        let c = &self.0;
        let tiles = if c.len() == 0 { 0 } else { c.inner.div_ceil(self.blocks()) };
        c.making(c.source, 4 * c.floats()[0], tiles, c.source_bytes())
    }
}

impl Kernel for ToPlanes {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let c = &self.0;
        let data = operands.floats(c.source);
        let to = operands.slot(c.made()).data as *mut f32;
        let blocks = tile * self.blocks()..((tile + 1) * self.blocks()).min(c.inner);
        // SAFETY: the lines of these blocks are inside the planes and this tile's alone.
        unsafe {
            let to = to.add(blocks.start * c.block[0] * BLOCK);
            c.windows.transform(data, blocks, 0..c.len(), to, (c.distances()[0], c.block[0] * BLOCK));
        }
    }
}

/// The second stage: all else. A worker brings the weights of some target blocks to planes itself, a few source blocks at a time: they are many, and
/// from memory they would take longer than to be made.
struct Panels(Convolve);

impl Panels {
    /// Floats of a tile's weights in planes.
    fn weights(&self) -> usize {
        self.0.outer_at_once * self.0.weights.panel()
    }
    fn stage(&self) -> Stage {
        let c = &self.0;
        let [source, target] = c.floats();
        let read_bytes = c.parts.len() as f64 * c.stored_weight_bytes() + (c.times() * 4 * source) as f64;
        c.finishing(WEIGHTS, self.weights() + target, read_bytes)
    }
}

impl Kernel for Panels {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let c = &self.0;
        let (weights, to) = scratch.split_at_mut(self.weights());
        let (part, blocks) = c.tile(tile);
        let from = &operands.floats(c.made())[part.start * BLOCK..];
        let panel = c.weights.panel();
        for first in (0..c.inner).step_by(c.held) {
            for (o, panel) in blocks.clone().zip(weights.chunks_exact_mut(panel)) {
                c.weights.bring(operands.floats(WEIGHTS), o, first..(first + c.held).min(c.inner), panel);
            }
            c.products(first, blocks.clone(), part.len(), from, weights, to);
        }
        for (i, o) in blocks.enumerate() {
            c.finish(o, part.clone(), &to[i * c.block[1] * BLOCK..], c.distances()[1], operands);
        }
    }
}

/// How weights become planes: `[plane][source block][source 16][target 16]` of each target block, with a line between planes.
struct WeightPlanes {
    isa: &'static Isa,
    size: Size,
    pairs: Pairs,
    direction: Direction,
    /// Source blocks side by side.
    held: usize,
}

impl WeightPlanes {
    fn new(spec: &Convolution, held: usize) -> WeightPlanes {
        WeightPlanes { isa: isa(), size: spec.size, pairs: spec.pairs.clone(), direction: spec.direction, held }
    }

    /// Distance between planes.
    fn distance(&self) -> usize {
        plane(self.held * BLOCK)
    }

    /// Floats of one target block.
    fn panel(&self) -> usize {
        self.size.planes() * self.distance()
    }

    /// Brings the weights between a target block and some source blocks to planes.
    fn bring(&self, weights: &[f32], outer: usize, inner: Range<usize>, to: &mut [f32]) {
        let transform = self.size.transforms(self.isa).weight;
        let mut transposed = [0f32; 25 * PAIR];
        let (taps_along, per_pair) = (self.size.taps(), self.size.weights());
        let transposed = &mut transposed[..per_pair];
        for (i, inner) in inner.enumerate() {
            let pair = match self.direction {
                Direction::Forward => self.pairs.number(outer, inner),
                Direction::Backward | Direction::Adjoint => self.pairs.number(inner, outer),
            };
            let mut taps = &weights[pair * per_pair..][..per_pair];
            if self.direction != Direction::Forward {
                let count = taps_along * taps_along;
                for (tap, to) in transposed.chunks_exact_mut(PAIR).enumerate() {
                    let tap = if self.direction == Direction::Backward { count - 1 - tap } else { tap };
                    self.isa.transpose(&taps[tap * PAIR..][..PAIR], to);
                }
                taps = &*transposed;
            }
            let distance = self.distance();
            for line in (0..PAIR).step_by(BLOCK) {
                let to = &mut to[i * PAIR + line..];
                debug_assert!((self.size.planes() - 1) * distance + BLOCK <= to.len(), "bug: weights outside");
                // SAFETY: all taps of this line are read, one line in each plane is written, inside as asserted.
                unsafe {
                    let to_distances = (self.size.window() * distance, distance);
                    transform(
                        taps[line..].as_ptr(),
                        (taps_along * PAIR, PAIR),
                        to.as_mut_ptr(),
                        to_distances,
                        &After::NOTHING,
                    );
                }
            }
        }
    }
}
