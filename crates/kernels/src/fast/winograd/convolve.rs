//! Convolutions in the transform domain: forward, and the input gradient on transposed, flipped weights; or on transposed ones, ending with
//! `adjoint.rs`.
//!
//! Where a batch norm reads the target, its sums are made strip by strip while the strip is near: a worker's tiles are then those of whole
//! strips.

use super::adjoint::{self, Overlaps};
use super::{FEWEST_TILES, Grid, PAIR, Size, Windows, at_once, blocks_at_once, even, forced, lines, parts, plane};
use crate::fast::isa::{Isa, isa};
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
/// Work that a tile of products should have.
const TILE_FLOPS: f64 = 30e6;
/// Planes of source and target that a staged pass may keep. With 96 MiB instead of 64, alexnet's layers on 13 x 13 points and unet's with
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
    /// Numbers of the passes, and of the operands they make: weights in planes; if staged, source and target in planes.
    pub numbers: [usize; 3],
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

    /// Whether each step is a stage of its own: always where tiles are too few for workers to have blocks of them; else where
    /// weights are many and planes are not too large.
    fn staged(&self) -> bool {
        let tiles = Grid::new(self.tiled, self.size).len();
        let (weights, of_tile) = self.bytes();
        self.direction != Direction::Adjoint
            && forced().unwrap_or(tiles < 512 || weights > NEAR_WEIGHTS && tiles * of_tile <= STAGED_BYTES)
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
        let [weights, from, to] = self.numbers.map(Operand::Internal);
        let make = |i: usize, bytes: usize| Make::Internal { number: self.numbers[i], bytes };
        let transform = |i: usize| Pass::Transform(self.numbers[i]);
        let w = Weights::new(self);
        let mut stages = vec![Stage {
            pass: transform(0),
            reads: vec![Operand::Parameter(0)],
            writes: vec![weights],
            makes: vec![make(0, w.bytes())],
            tiles: w.tiles,
            scratch: 0,
            work: w.work(),
        }];
        let (reads, tiles, scratch, work) = if self.staged() {
            let (first, second) = (ToPlanes(Convolve::new(self)), Products(Convolve::new(self)));
            stages.push(Stage {
                pass: transform(1),
                reads: vec![self.source.0],
                writes: vec![from],
                makes: vec![make(1, first.bytes())],
                tiles: first.tiles(),
                scratch: 0,
                work: first.work(),
            });
            stages.push(Stage {
                pass: transform(2),
                reads: vec![weights, from],
                writes: vec![to],
                makes: vec![make(2, second.bytes())],
                tiles: second.tiles(),
                scratch: 0,
                work: second.work(),
            });
            let third = FromPlanes(Convolve::new(self));
            (vec![to], third.tiles(), 0, third.work())
        } else {
            let fused = Fused(Convolve::new(self));
            (vec![self.source.0, weights], fused.tiles(), fused.scratch(), fused.work())
        };
        let held = self.accumulate.then_some(self.target.0);
        let sums = Sums::new(self).map(|_| Operand::OutputSums);
        stages.push(Stage {
            pass: self.last,
            reads: reads.into_iter().chain(self.bias).chain(held).collect(),
            writes: [self.target.0].into_iter().chain(sums).collect(),
            makes: vec![],
            tiles,
            scratch,
            work,
        });
        stages
    }

    /// The kernel of one of the stages, if it is one.
    pub fn prepare(&self, pass: Pass) -> Option<Box<dyn Kernel>> {
        match pass {
            Pass::Transform(number) => match self.numbers.iter().position(|n| *n == number)? {
                0 => Some(Box::new(Weights::new(self))),
                1 => Some(Box::new(ToPlanes(Convolve::new(self)))),
                _ => Some(Box::new(Products(Convolve::new(self)))),
            },
            _ if pass != self.last => None,
            _ if self.staged() => Some(Box::new(FromPlanes(Convolve::new(self)))),
            _ => Some(Box::new(Fused(Convolve::new(self)))),
        }
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
    weights: Operand,
    /// Of source and target: what they are in if staged, and how many.
    planes: [Operand; 2],
    counts: [usize; 2],
    bias: Option<Operand>,
    accumulate: bool,
    clamp: Option<[f32; 2]>,
    windows: Windows,
    region: Region,
    layout: Layout,
    /// How the adjoint's results are added.
    overlaps: Option<Overlaps>,
    inner: usize,
    outer: usize,
    /// The targets' channels.
    side: Side,
    sums: Option<Sums>,
    /// Tiles of a worker's part, which are whole strips where sums are made and whole planes of a sample for the adjoint; and how many
    /// target blocks.
    parts: Vec<Range<usize>>,
    outer_at_once: usize,
    /// How many are taken at once, and the offsets of their lines.
    block: usize,
    offsets: Vec<u32>,
    /// By plane of the target: from the first of the source's and of the weights'.
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
        let (sums, most) = (Sums::new(spec), if spec.staged() { grid.len() } else { spec.at_once() });
        let overlaps = (spec.direction == Direction::Adjoint).then(|| Overlaps::new(spec));
        let (parts, outer_at_once) = match (&sums, &overlaps) {
            (_, Some(_)) => adjoint::cut(&grid, spec.size, most, (inner, outer)),
            (Some(sums), None) if !spec.staged() => (sums.cut(most), outer),
            _ => (parts(0..grid.len(), most).collect(), outer),
        };
        let block = parts.iter().map(|part| even(part.len(), most)).max().unwrap_or(0);
        let isa = isa();
        let transforms = spec.size.transforms(isa);
        let tile = spec.size.tile();
        let (transform, size, planes, stride, before) = match spec.direction {
            Direction::Adjoint => (transforms.gradient, tile, spec.size.sum_window(), 1, [0, 0]),
            _ => (transforms.input, spec.size.window(), spec.size.window(), spec.size.stride(), spec.before),
        };
        let counts = spec.planes();
        let mut steps = vec![vec![]; counts[1]];
        for q in 0..spec.size.planes() {
            let (from, to) = match spec.direction {
                Direction::Adjoint => (spec.size.sum_plane(q), q),
                _ => (q, spec.size.sum_plane(q)),
            };
            // Filler channels are passed over.
            steps[to].extend((0..inner).map(|i| Step {
                a: (from * plane(inner * block) + i * block * BLOCK) as isize,
                b: (q * plane(inner * BLOCK) + i * PAIR) as isize,
                len: BLOCK.min(channels - i * BLOCK),
            }));
        }
        Convolve {
            isa,
            size: spec.size,
            source: spec.source.0,
            target: spec.target.0,
            weights: Operand::Internal(spec.numbers[0]),
            planes: [1, 2].map(|i| Operand::Internal(spec.numbers[i])),
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
            inner,
            outer,
            side,
            sums,
            parts,
            outer_at_once,
            block,
            offsets: lines(block),
            steps,
        }
    }

    fn tiles(&self) -> usize {
        self.windows.grid.len()
    }

    /// Distances between planes of source and target.
    fn distances(&self) -> [usize; 2] {
        [self.inner, self.outer].map(|blocks| plane(blocks * self.block))
    }

    /// Floats of all planes of source and target.
    fn floats(&self) -> [usize; 2] {
        let distances = self.distances();
        [0, 1].map(|side| self.counts[side] * distances[side])
    }

    fn flops(&self) -> f64 {
        2.0 * (self.tiles() * self.size.planes() * self.inner * self.outer * PAIR) as f64
    }

    fn weight_bytes(&self) -> f64 {
        (4 * self.size.planes() * self.inner * self.outer * PAIR) as f64
    }

    fn source_bytes(&self) -> f64 {
        (4 * self.windows.grid.region.len() / self.windows.grid.region.size(Axis::Channel).max(1) * self.inner * BLOCK)
            as f64
    }

    fn target_bytes(&self) -> f64 {
        (4 * self.region.len()) as f64
    }

    /// Products of one plane of the target for some of its blocks: `from` are all planes of the source, `to` that plane's lines.
    ///
    /// # Safety
    /// The lines of these blocks and `count` tiles at `to` may be written, by nobody else.
    unsafe fn products(
        &self,
        q: usize,
        blocks: Range<usize>,
        count: usize,
        from: &[f32],
        weights: &[f32],
        to: *mut f32,
    ) {
        let rows = &self.offsets[..count];
        let per_group = if self.isa.blocks == 1 { GROUP } else { WIDE_GROUP };
        let some = |o: Range<usize>, group: usize| {
            let distance = plane(self.inner * BLOCK);
            let apart = self.size.planes() * distance;
            let panels = &weights[o.start * apart..o.end * apart];
            let steps = &self.steps[q][group * per_group..((group + 1) * per_group).min(self.steps[q].len())];
            let sweep = Sweep {
                a: from.as_ptr(),
                a_off: rows,
                b: panels.as_ptr(),
                steps,
                ak: 1,
                bk: BLOCK,
                // SAFETY: the caller's promise.
                c: unsafe { to.add(o.start * self.block * BLOCK) },
                c_off: rows,
                blocks: o.len(),
                b_block: apart,
                c_block: self.block * BLOCK,
                start: if group == 0 { Start::Zero } else { Start::Held },
                clamp: None,
                narrow: o.len() == 1 && self.side.narrow(o.start),
                stream: false,
            };
            sweep.assert_inside(from.len(), panels.len(), o.len() * self.block * BLOCK);
            // SAFETY: inside, as asserted.
            unsafe { self.isa.sweep(&sweep) }
        };
        let groups = self.steps[q].len().div_ceil(per_group);
        if count * self.steps[q].len() * BLOCK > SOURCE_FLOATS {
            (0..groups).for_each(|g| parts(blocks.clone(), self.isa.blocks).for_each(|o| some(o, g)));
        } else {
            parts(blocks, self.isa.blocks).for_each(|o| (0..groups).for_each(|g| some(o.clone(), g)));
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

/// All steps at once, for some tiles in scratch.
struct Fused(Convolve);

impl Fused {
    fn tiles(&self) -> usize {
        self.0.parts.len() * self.times()
    }
    /// How often a part's source is brought to planes: for some target blocks each time.
    fn times(&self) -> usize {
        self.0.outer.div_ceil(self.0.outer_at_once)
    }
    fn scratch(&self) -> usize {
        self.0.floats().iter().sum()
    }
    fn work(&self) -> Work {
        let c = &self.0;
        let source_bytes = self.times() as f64 * c.source_bytes();
        Work { flops: c.flops(), bytes: source_bytes + c.target_bytes() + c.weight_bytes() }
    }
}

impl Kernel for Fused {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let c = &self.0;
        let (from, to) = scratch.split_at_mut(c.floats()[0]);
        let data = operands.floats(c.source);
        let weights = operands.floats(c.weights);
        let [p, q] = c.distances();
        let (first, part) = (tile / c.parts.len() * c.outer_at_once, &c.parts[tile % c.parts.len()]);
        let blocks = first..(first + c.outer_at_once).min(c.outer);
        for tiles in parts(part.clone(), c.block) {
            // SAFETY: all planes of these tiles are in scratch.
            unsafe { c.windows.transform(data, 0..c.inner, tiles.clone(), from.as_mut_ptr(), (p, c.block * BLOCK)) };
            for plane in 0..c.counts[1] {
                let to = to[plane * q..(plane + 1) * q].as_mut_ptr();
                // SAFETY: scratch is ours.
                unsafe { c.products(plane, blocks.clone(), tiles.len(), from, weights, to) };
            }
            blocks.clone().for_each(|o| c.output(o, tiles.clone(), &to[o * c.block * BLOCK..], q, operands));
        }
        if let Some(sums) = &c.sums {
            sums.of(part).for_each(|strip| blocks.clone().for_each(|o| c.sum(sums, strip, o, operands)));
        }
    }
}

/// The first stage: windows to planes.
struct ToPlanes(Convolve);

impl ToPlanes {
    fn blocks(&self) -> usize {
        blocks_at_once(self.0.inner, self.0.tiles() * self.0.counts[0])
    }
    fn tiles(&self) -> usize {
        if self.0.tiles() == 0 { 0 } else { self.0.inner.div_ceil(self.blocks()) }
    }
    /// Of the planes.
    fn bytes(&self) -> usize {
        4 * self.0.floats()[0]
    }
    fn work(&self) -> Work {
        Work { flops: 0.0, bytes: self.0.source_bytes() + self.bytes() as f64 }
    }
}

impl Kernel for ToPlanes {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let c = &self.0;
        let data = operands.floats(c.source);
        let to = operands.slot(c.planes[0]).data as *mut f32;
        let blocks = tile * self.blocks()..((tile + 1) * self.blocks()).min(c.inner);
        // SAFETY: the lines of these blocks are inside the planes and this tile's alone.
        unsafe {
            let to = to.add(blocks.start * c.block * BLOCK);
            c.windows.transform(data, blocks, 0..c.tiles(), to, (c.distances()[0], c.block * BLOCK));
        }
    }
}

/// The second stage: products in each plane.
struct Products(Convolve);

impl Products {
    /// Target blocks of a tile, all in one plane.
    fn blocks(&self) -> usize {
        let flops = self.0.flops() / (self.0.counts[1] * self.0.outer) as f64;
        even(self.0.outer, ((TILE_FLOPS / flops.max(1.0)) as usize).clamp(1, self.0.outer))
    }
    fn tiles(&self) -> usize {
        if self.0.tiles() == 0 { 0 } else { self.0.counts[1] * self.0.outer.div_ceil(self.blocks()) }
    }
    /// Of the planes of the target.
    fn bytes(&self) -> usize {
        4 * self.0.floats()[1]
    }
    fn work(&self) -> Work {
        let c = &self.0;
        Work { flops: c.flops(), bytes: c.weight_bytes() + (4 * c.floats()[0] + self.bytes()) as f64 }
    }
}

impl Kernel for Products {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let c = &self.0;
        let (q, part) = (tile % c.counts[1], tile / c.counts[1]);
        let blocks = part * self.blocks()..((part + 1) * self.blocks()).min(c.outer);
        let from = operands.floats(c.planes[0]);
        let to = operands.slot(c.planes[1]).data as *mut f32;
        // SAFETY: the plane's lines of these blocks are this tile's alone.
        unsafe {
            let to = to.add(q * c.distances()[1]);
            c.products(q, blocks, c.tiles(), from, operands.floats(c.weights), to);
        }
    }
}

/// The third stage: planes to targets.
struct FromPlanes(Convolve);

impl FromPlanes {
    fn blocks(&self) -> usize {
        blocks_at_once(self.0.outer, self.0.tiles() * self.0.counts[1])
    }
    fn tiles(&self) -> usize {
        if self.0.tiles() == 0 { 0 } else { self.0.outer.div_ceil(self.blocks()) }
    }
    fn work(&self) -> Work {
        Work { flops: 0.0, bytes: 4.0 * self.0.floats()[1] as f64 + self.0.target_bytes() }
    }
}

impl Kernel for FromPlanes {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let c = &self.0;
        let from = operands.floats(c.planes[1]);
        for o in tile * self.blocks()..((tile + 1) * self.blocks()).min(c.outer) {
            c.finish(o, 0..c.tiles(), &from[o * c.block * BLOCK..], c.distances()[1], operands);
        }
    }
}

/// Weights to planes: `[outer block][plane][inner block][inner 16][outer 16]`, with a line between planes. A tile is one outer block.
struct Weights {
    isa: &'static Isa,
    size: Size,
    pairs: Pairs,
    direction: Direction,
    to: Operand,
    inner: usize,
    tiles: usize,
}

impl Weights {
    fn new(spec: &Convolution) -> Weights {
        let (inner, tiles) = spec.blocks();
        let to = Operand::Internal(spec.numbers[0]);
        Weights { isa: isa(), size: spec.size, pairs: spec.pairs.clone(), direction: spec.direction, to, inner, tiles }
    }
    /// Floats of one outer block.
    fn panel(&self) -> usize {
        self.size.planes() * plane(self.inner * BLOCK)
    }
    fn bytes(&self) -> usize {
        4 * self.tiles * self.panel()
    }
    fn work(&self) -> Work {
        let read = 4 * self.inner * self.tiles * self.size.weights();
        Work { flops: 0.0, bytes: (read + self.bytes()) as f64 }
    }
}

impl Kernel for Weights {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let weights = operands.floats(Operand::Parameter(0));
        // SAFETY: a tile writes the panel of its own outer block.
        let to = unsafe { operands.floats_mut(self.to, tile * self.panel()..(tile + 1) * self.panel()) };
        let transform = self.size.transforms(self.isa).weight;
        let mut transposed = [0f32; 25 * PAIR];
        let (taps_along, per_pair) = (self.size.taps(), self.size.weights());
        let transposed = &mut transposed[..per_pair];
        for inner in 0..self.inner {
            let pair = match self.direction {
                Direction::Forward => self.pairs.number(tile, inner),
                Direction::Backward | Direction::Adjoint => self.pairs.number(inner, tile),
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
            let distance = plane(self.inner * BLOCK);
            for line in (0..PAIR).step_by(BLOCK) {
                let to = &mut to[inner * PAIR + line..];
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
