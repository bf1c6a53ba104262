//! Dense passes: forward, and the phases of an input gradient, as sweeps over strips of points.
//!
//! A strip is some rows of an image or some whole images; its rows of the product are its points, columns are the 16
//! channels of one target block, and k runs over (source block, window row, tap, channel). Weights of a group of steps stay
//! in the first-level cache while the strip passes.
//!
//! Where a batch norm reads the target, its sums are made strip by strip, before the strip leaves the caches: a unit then has
//! all rows of one of the sums' own strips, in order.
//!
//! Always true
//! - A target element is one chain in the order (source block, tap, channel), whatever the strips, groups and tiles.

use super::isa::{Isa, MOST_BLOCKS, STREAM_BYTES, fence, isa, prefetch};
use super::norm::COLUMNS;
use super::norm_rows::Spread;
use super::phases::{Phase, Tap};
use super::strips::{self, Strip};
use super::sweep::{Start, Step, Sweep};
use super::tiles;
use super::weights::Pairs;
use super::windowed::Direct;
use crate::{BLOCK, Kernel, Layout, Operand, Operands, Work};
use std::ops::Range;

/// Floats of the weights between two blocks at one tap.
const PAIR: usize = BLOCK * BLOCK;
/// Points of a strip, and of one whose source would be more than the second-level cache holds.
const STRIP: usize = 192;
const STRIP_OF_MANY_CHANNELS: usize = 96;
/// The axis of rows among samples, depths, rows, columns.
const ROWS: usize = 2;
/// Bytes of weights that stay in the first-level cache while a strip passes: of one target block, and of several at once.
const GROUP_BYTES: usize = 16 << 10;
const WIDE_GROUP_BYTES: usize = 32 << 10;
/// The second-level cache.
const SECOND_LEVEL_BYTES: usize = 512 << 10;
/// A strip of input above this leaves it while target blocks pass: then groups are outside and target blocks inside.
const SOURCE_BYTES: usize = 320 << 10;
/// Work of a unit at most, in floating-point operations: every unit of a strip brings the strip's input into the caches again.
const UNIT_FLOPS: f64 = 120e6;

/// How weights are stored.
#[derive(Clone, Debug)]
pub enum Stored {
    /// By target blocks.
    ByTarget,
    /// By source blocks, as these pairs: with the sides swapped. Each group is turned around just before it is used.
    BySource(Pairs),
}

/// A dense pass as a kernel.
pub struct Dense {
    isa: &'static Isa,
    source: Operand,
    target: Operand,
    weights: Operand,
    bias: Option<Operand>,
    /// Add to what the target holds.
    accumulate: bool,
    /// Least and greatest result.
    clamp: Option<[f32; 2]>,
    /// Targets are more than the last-level cache holds.
    large: bool,
    /// Of the targets, made with them.
    sums: Option<strips::Strips>,
    source_layout: Layout,
    target_layout: Layout,
    samples: Range<isize>,
    pairs: Pairs,
    stored: Stored,
    /// Taps of the window.
    taps: usize,
    phases: Vec<Tables>,
    /// Units (phase, strip, range of target blocks) per tile.
    units_per_tile: usize,
    tiles: usize,
    work: Work,
}

/// What a dense pass reads and writes.
pub struct Spec<'s> {
    pub source: (Operand, &'s Layout),
    pub target: (Operand, &'s Layout),
    pub weights: Operand,
    pub bias: Option<Operand>,
    pub accumulate: bool,
    pub clamp: Option<[f32; 2]>,
    /// Strips of all targets whose sums a batch norm wants: made if that can be.
    pub sums: Option<strips::Strips>,
    /// Samples to compute, in global numbers.
    pub samples: Range<isize>,
    /// Outer are target blocks, inner are source blocks.
    pub pairs: &'s Pairs,
    pub stored: Stored,
    pub phases: &'s [Phase],
    pub kernel: [usize; 3],
}

/// One phase, worked out.
struct Tables {
    phase: Phase,
    strips: Strips,
    a_off: Vec<u32>,
    c_off: Vec<u32>,
    /// Where its points are while sums are taken of them: side by side.
    lines: Vec<u32>,
    /// Steps of the target block that meets the most source blocks; others take the first of them.
    steps: Vec<Step>,
    /// If weights are turned around: their source blocks and taps, step after step, and how many are before each step.
    turned: Vec<(usize, usize)>,
    turned_before: Vec<usize>,
    /// Steps before each source block, and all.
    before: Vec<usize>,
    /// Steps of a group.
    group: usize,
    /// Target blocks of a unit.
    blocks: usize,
    /// Units of this phase.
    units: usize,
}

/// Points of all samples cut into pieces of equal form.
struct Strips {
    /// Samples, depths, rows, columns.
    sizes: [usize; 4],
    /// The axis that is cut; those before it are cut into single points, those after it are whole.
    axis: usize,
    piece: usize,
    /// Pieces that are one unit's, one after the other.
    together: usize,
}

impl Strips {
    /// Of points with so many channels to read. If sums are taken over so many rows at a time, these are one unit's; samples
    /// of few points have one sum anyway.
    fn new(sizes: [usize; 4], channels: usize, stored: &Stored, summed_rows: Option<usize>) -> Strips {
        let inner = |axis: usize| sizes[axis + 1..].iter().product::<usize>();
        // Rows stay whole, since sums are taken of whole ones.
        let many = 4 * STRIP * channels > SECOND_LEVEL_BYTES && inner(ROWS) <= 2 * STRIP_OF_MANY_CHANNELS;
        // Weights are turned around once a strip, which takes a twentieth of the time that 192 points do.
        let times = if matches!(stored, Stored::BySource(_)) { 2 } else { 1 };
        let strip = times * if many { STRIP_OF_MANY_CHANNELS } else { STRIP };
        let axis = (0..4).find(|&a| inner(a) <= 2 * strip).expect("nothing is inside the last axis");
        if let Some(rows) = summed_rows.filter(|_| axis == ROWS) {
            let rows = rows.min(sizes[ROWS]);
            let divides = (1..=rows).filter(|piece| rows.is_multiple_of(*piece));
            let piece = divides.min_by_key(|piece| (piece * inner(ROWS)).abs_diff(strip)).unwrap_or(1);
            return Strips { sizes, axis, piece, together: rows / piece };
        }
        let most = (strip + inner(axis) / 2) / inner(axis).max(1);
        let pieces = sizes[axis].div_ceil(most.max(1)).max(1);
        Strips { sizes, axis, piece: sizes[axis].div_ceil(pieces).max(1), together: 1 }
    }

    /// Pieces along the axis that is cut.
    fn along(&self) -> usize {
        self.sizes[self.axis].div_ceil(self.piece)
    }

    /// How many groups of pieces there are that are one unit's.
    fn count(&self) -> usize {
        self.sizes[..self.axis].iter().product::<usize>() * self.along().div_ceil(self.together)
    }

    /// The pieces of a group.
    fn group(&self, number: usize) -> Range<usize> {
        let (along, groups) = (self.along(), self.along().div_ceil(self.together));
        let (outside, first) = (number / groups * along, number % groups * self.together);
        outside + first..outside + (first + self.together).min(along)
    }

    /// Points of a whole strip.
    fn points(&self) -> usize {
        self.piece * self.sizes[self.axis + 1..].iter().product::<usize>()
    }

    /// The first point of a strip and the number of its points.
    fn strip(&self, number: usize) -> ([usize; 4], usize) {
        let mut at = [0; 4];
        at[self.axis] = number % self.along() * self.piece;
        let mut rest = number / self.along();
        for a in (0..self.axis).rev() {
            at[a] = rest % self.sizes[a];
            rest /= self.sizes[a];
        }
        let size = self.piece.min(self.sizes[self.axis] - at[self.axis]);
        (at, size * self.sizes[self.axis + 1..].iter().product::<usize>())
    }

    /// Offsets of a whole strip's points from its first, for these distances between points along the four axes.
    fn offsets(&self, distances: [usize; 4]) -> Vec<u32> {
        let size = |a: usize| {
            if a < self.axis {
                1
            } else if a == self.axis {
                self.piece
            } else {
                self.sizes[a]
            }
        };
        let mut offsets = vec![0usize];
        for (a, distance) in distances.into_iter().enumerate() {
            offsets = offsets.iter().flat_map(|&o| (0..size(a)).map(move |i| o + i * distance)).collect();
        }
        offsets.into_iter().map(|o| u32::try_from(o).expect("bug: a strip of more than 16 GiB")).collect()
    }
}

/// Distances in floats between points `steps` apart along sample, depth, height, width.
fn distances(layout: &Layout, steps: [usize; 3]) -> [usize; 4] {
    [layout.sample, layout.depth * steps[0], layout.row * steps[1], layout.block * steps[2]]
}

/// Steps of a group whose weights, for so many target blocks at once, stay in the first-level cache.
fn group(steps: &[Step], blocks: usize) -> usize {
    let longest = steps.iter().map(|s| s.len).max().unwrap_or(1);
    let bytes = if blocks == 1 { GROUP_BYTES } else { WIDE_GROUP_BYTES / blocks };
    let groups = steps.len().div_ceil((bytes / (longest * BLOCK * 4)).max(1)).max(1);
    steps.len().div_ceil(groups).max(1)
}

impl Tables {
    /// Of a phase with these strips, each of which is at least so many units.
    fn new(spec: &Spec, phase: &Phase, strips: Strips, least_parts: usize) -> Tables {
        let (source, target) = (spec.source.1, spec.target.1);
        let [d, h, w] = &phase.0;
        let inner = spec.pairs.lines();
        let turn = matches!(spec.stored, Stored::BySource(_));
        // Taps of a window row lie side by side in the source and in the weights: one step takes them all.
        let run = w.taps.windows(2).all(|t| t[1].at == t[0].at + 1)
            && (turn || w.taps.windows(2).all(|t| t[1].number == t[0].number + 1));
        let most = spec.pairs.meets.iter().map(|m| m.len()).max().unwrap_or(0);
        let all: usize = spec.kernel.iter().product();
        let (mut steps, mut before) = (vec![], vec![]);
        let (mut turned, mut turned_before) = (vec![], vec![0]);
        for block in 0..most {
            before.push(steps.len());
            let real = spec.pairs.real_lines(block);
            // Filler channels are passed over, tap by tap.
            let taps = if run && real == inner { w.taps.len().max(1) } else { 1 };
            for (depth, row) in d.taps.iter().flat_map(|d| h.taps.iter().map(move |h| (d, h))) {
                let number = |w: &Tap| (depth.number * spec.kernel[1] + row.number) * spec.kernel[2] + w.number;
                for columns in w.taps.chunks(taps) {
                    let at = depth.at * source.depth + row.at * source.row + columns[0].at * source.block;
                    let b = (block * all + number(&columns[0])) * spec.pairs.line();
                    let a = block * source.plane + at;
                    steps.push(Step { a: a as isize, b: b as isize, len: columns.len() * real });
                    turned.extend(columns.iter().filter(|_| turn).map(|w| (block, number(w))));
                    turned_before.push(turned.len());
                }
            }
        }
        before.push(steps.len());
        let outer = spec.pairs.outer.blocks();
        let group = group(&steps, isa().blocks.min(outer));
        for (i, step) in steps.iter_mut().enumerate().filter(|_| turn) {
            step.b = ((turned_before[i] - turned_before[i / group * group]) * PAIR) as isize;
        }
        let flops =
            2.0 * (strips.together * strips.points() * steps.iter().map(|s| s.len).sum::<usize>() * BLOCK) as f64;
        let most = ((UNIT_FLOPS / flops.max(1.0)) as usize).clamp(1, outer);
        let blocks = outer.div_ceil(outer.div_ceil(most).max(least_parts.min(outer)));
        Tables {
            a_off: strips.offsets(distances(source, [d.from_step, h.from_step, w.from_step])),
            c_off: strips.offsets(distances(target, [d.step, h.step, w.step])),
            lines: (0..strips.points()).map(|i| (i * BLOCK) as u32).collect(),
            phase: phase.clone(),
            before,
            group,
            steps,
            turned,
            turned_before,
            blocks,
            units: strips.count() * spec.pairs.outer.blocks().div_ceil(blocks),
            strips,
        }
    }

    /// Floats of the largest group of weights that are turned around, for so many target blocks at once.
    fn turned_floats(&self, blocks: usize) -> usize {
        let group = group(&self.steps, blocks);
        let floats = |i: usize| self.turned(i..(i + group).min(self.steps.len())).len() * PAIR;
        (0..self.steps.len()).step_by(group).map(floats).max().unwrap_or(0) * blocks
    }

    /// What is turned around for some steps.
    fn turned(&self, steps: Range<usize>) -> &[(usize, usize)] {
        &self.turned[self.turned_before[steps.start]..self.turned_before[steps.end]]
    }
}

impl Dense {
    pub fn new(spec: &Spec) -> Dense {
        let (source, target) = (spec.source.1, spec.target.1);
        let sums = spec.sums.clone().filter(|_| can_sum(spec));
        let rows = sums.as_ref().map(|sums| sums.rows_of_strip);
        let points = |p: &Phase| (spec.samples.len() * p.points()) as f64;
        let multiplies = |p: &Phase| points(p) * (p.taps() * spec.pairs.count * spec.pairs.line()) as f64;
        let flops = 2.0 * spec.phases.iter().map(multiplies).sum::<f64>();
        let written = spec.phases.iter().map(points).sum::<f64>() * (spec.pairs.outer.blocks() * BLOCK) as f64;
        let strips = spec.phases.iter().map(|Phase([d, h, w])| {
            let sizes = [spec.samples.len(), d.count, h.count, w.count];
            Strips::new(sizes, spec.pairs.inner.channels, &spec.stored, rows)
        });
        let strips: Vec<Strips> = strips.collect();
        // Few strips: then more units of fewer blocks.
        let count: usize = strips.iter().map(Strips::count).sum();
        let parts = tiles::enough(tiles::of_flops(flops)).div_ceil(count.max(1));
        let phases = spec.phases.iter().zip(strips).map(|(phase, strips)| Tables::new(spec, phase, strips, parts));
        let phases: Vec<Tables> = phases.collect();
        let units: usize = phases.iter().map(|p| p.units).sum();
        let weights = (spec.kernel.iter().product::<usize>() * spec.pairs.count * spec.pairs.line()) as f64;
        let read = (source.len / source.stored.size(convoy_net::Axis::Sample).max(1) * spec.samples.len()) as f64;
        let tiles = tiles::of_flops(flops).min(units.max(1));
        let units_per_tile = units.div_ceil(tiles).max(1);
        Dense {
            isa: isa(),
            source: spec.source.0,
            target: spec.target.0,
            weights: spec.weights,
            bias: spec.bias,
            accumulate: spec.accumulate,
            clamp: spec.clamp,
            large: written > (STREAM_BYTES / 4) as f64,
            sums,
            source_layout: source.clone(),
            target_layout: target.clone(),
            samples: spec.samples.clone(),
            pairs: spec.pairs.clone(),
            stored: spec.stored.clone(),
            taps: spec.kernel.iter().product(),
            phases,
            units_per_tile,
            tiles: units.div_ceil(units_per_tile),
            work: Work { flops, bytes: 4.0 * (read + written + weights) },
        }
    }

    /// Weights of a group of steps with their sides swapped.
    fn turn(&self, turned: &[(usize, usize)], block: usize, stored: &Pairs, weights: &[f32], to: &mut [f32]) {
        let first = self.pairs.meets[block].start;
        let place =
            |(inner, tap): (usize, usize)| (stored.number(first + inner, block) * self.taps + tap) * stored.line();
        for (i, to) in (0..turned.len()).zip(to.chunks_exact_mut(PAIR)) {
            // They are far apart, and the processor does not foresee them.
            if let Some(ahead) = turned.get(i + 2) {
                let ahead = weights[place(*ahead)..].as_ptr();
                (0..stored.lines()).for_each(|line| prefetch(ahead.wrapping_add(line * BLOCK)));
            }
            self.isa.transpose(&weights[place(turned[i])..][..stored.line()], to);
        }
    }

    /// Some strips of one phase, some target blocks.
    fn unit(&self, p: &Tables, unit: usize, operands: &Operands, scratch: &mut [f32]) {
        let groups = p.strips.count();
        let first = unit / groups * p.blocks;
        let blocks = first..(first + p.blocks).min(self.pairs.outer.blocks());
        for strip in p.strips.group(unit % groups) {
            self.strip(p, strip, blocks.clone(), operands, scratch);
        }
    }

    /// One strip of one phase, some target blocks.
    fn strip(&self, p: &Tables, strip: usize, blocks: Range<usize>, operands: &Operands, scratch: &mut [f32]) {
        let (at, points) = p.strips.strip(strip);
        let n = self.samples.start + at[0] as isize;
        let [d, h, w] = &p.phase.0;
        let place = |i: usize, j: usize| j as isize * [d, h, w][i].step as isize + [d, h, w][i].start;
        let target = |block| self.target_layout.offset(n, block, place(0, at[1]), place(1, at[2]), place(2, at[3]));
        let (a_off, c_off) = (&p.a_off[..points], &p.c_off[..points]);
        let to = operands.slot(self.target);
        let c = to.data as *mut f32;
        let bias = self.bias.map(|b| operands.floats(b));
        if p.steps.is_empty() {
            for block in blocks.filter(|_| !self.accumulate) {
                let mut line = [0.0; BLOCK];
                if let Some(bias) = bias {
                    line.copy_from_slice(&bias[block * BLOCK..][..BLOCK]);
                }
                if let Some([low, high]) = self.clamp {
                    line = line.map(|value| value.clamp(low, high));
                }
                for o in c_off {
                    // SAFETY: a point of the target; its line belongs to this unit alone.
                    unsafe { (c.add(target(block) + *o as usize) as *mut [f32; BLOCK]).write(line) };
                }
            }
            return;
        }
        let from = operands.floats(self.source);
        let weights = operands.floats(self.weights);
        let source = |i: usize, j: usize| [d, h, w][i].from + j as isize * [d, h, w][i].from_step as isize;
        let source = self.source_layout.offset(n, 0, source(0, at[1]), source(1, at[2]), source(2, at[3]));
        let groups = p.steps.len().div_ceil(p.group);
        let groups_outside = points * self.pairs.inner.channels * 4 > SOURCE_BYTES;
        // Lines that are summed are side by side in scratch until they are complete, some blocks at a time.
        let stream = self.large && !self.accumulate && (groups == 1 || self.sums.is_some() && !groups_outside);
        let lines = scratch.as_mut_ptr();
        let mut some = |run: Range<usize>, group: usize| {
            let block = run.start;
            let meets = &self.pairs.meets[block];
            let all = &p.steps[..p.before[meets.len()]];
            let Some(steps) = all.chunks(p.group).nth(group) else { return };
            let (weights, b_block) = match &self.stored {
                Stored::ByTarget => {
                    let first = self.pairs.before[block] * self.taps * self.pairs.line();
                    (&weights[first..], self.pairs.panel(block, self.taps))
                }
                Stored::BySource(stored) => {
                    let first = group * p.group;
                    let turned = p.turned(first..first + steps.len());
                    let floats = turned.len() * PAIR;
                    for (block, to) in run.clone().zip(scratch.chunks_exact_mut(floats)) {
                        self.turn(turned, block, stored, weights, to);
                    }
                    (&*scratch, floats)
                }
            };
            let narrow = run.len() == 1 && self.pairs.outer.narrow(block);
            let own = c.wrapping_add(target(block));
            let stream = stream && !narrow && own.addr().is_multiple_of(4 * BLOCK);
            let complete = (group + 1) * p.group >= all.len();
            let start = match (group, &bias) {
                (0, Some(bias)) => Start::Line(bias[block * BLOCK..][..run.len() * BLOCK].as_ptr()),
                (0, None) if !self.accumulate => Start::Zero,
                _ => Start::Held,
            };
            let a = source + meets.start * self.source_layout.plane;
            let sweep = Sweep {
                a: from[a..].as_ptr(),
                a_off,
                b: weights.as_ptr(),
                steps,
                ak: 1,
                bk: BLOCK,
                c: own,
                c_off,
                blocks: run.len(),
                b_block,
                c_block: self.target_layout.plane,
                start,
                clamp: self.clamp.filter(|_| complete),
                narrow,
                stream,
            };
            sweep.assert_inside(from.len() - a, weights.len(), to.bytes / 4 - target(block));
            let Some(sums) = &self.sums else {
                // SAFETY: tables were made from the layouts of these operands, as asserted above; the strip's lines of these
                // blocks belong to this unit alone.
                return unsafe { self.isa.sweep(&sweep) };
            };
            let sweep = match stream {
                true => Sweep { c: lines, c_off: &p.lines[..points], c_block: points * BLOCK, stream: false, ..sweep },
                false => sweep,
            };
            // SAFETY: as above; scratch has as many lines.
            unsafe { self.isa.sweep(&sweep) };
            for (i, block) in run.enumerate().filter(|_| complete) {
                let lines =
                    Spread { from: sweep.c.wrapping_add(i * sweep.c_block) as *const f32, offsets: sweep.c_off };
                let onward = stream.then_some(Spread { from: c.wrapping_add(target(block)), offsets: c_off });
                self.add_to_sums(sums, at, block, lines, onward, operands);
            }
        };
        let runs = || self.pairs.alike(blocks.clone(), self.isa.blocks);
        if groups_outside {
            (0..groups).for_each(|g| runs().for_each(|run| some(run, g)));
        } else {
            runs().for_each(|run| (0..groups).for_each(|g| some(run.clone(), g)));
        }
    }

    /// Adds a strip's lines of a block to the sums that a batch norm takes of them, and moves them on.
    fn add_to_sums(
        &self,
        sums: &strips::Strips,
        at: [usize; 4],
        block: usize,
        lines: Spread<*const f32>,
        onward: Option<Spread<*mut f32>>,
        operands: &Operands,
    ) {
        // Rows of one sample, or samples whole.
        let [_, _, height, width] = self.phases[0].strips.sizes;
        let points = lines.offsets.len().min(height * width);
        for (i, offsets) in lines.offsets.chunks(points).enumerate() {
            let sample = at[0] + i;
            let strip = Strip { n: 0, sample, strip: at[ROWS] / sums.rows_of_strip, block };
            // SAFETY: these columns of this strip are this unit's alone.
            let into = unsafe { operands.doubles_mut(Operand::OutputSums, sums.place(strip, COLUMNS)) };
            if at[ROWS].is_multiple_of(sums.rows_of_strip) {
                into.fill(0.0);
            }
            let (halves, _) = into.as_chunks_mut::<BLOCK>();
            let halves: &mut [[f64; BLOCK]; 2] = halves.try_into().expect("bug: other columns");
            let onward = onward.map(|to| Spread { offsets: &to.offsets[i * points..], ..to });
            // SAFETY: lines are inside, as asserted before they were written; where they go on to, they begin at multiples of
            // 64 bytes and are this unit's alone.
            unsafe { (self.isa.norm.moments)(&Spread { offsets, ..lines }, onward.as_ref(), halves) };
        }
    }
}

/// Whether units can have whole strips of sums: all targets are those of one phase, in planes of not too long rows.
fn can_sum(spec: &Spec) -> bool {
    let [phase] = spec.phases else { return false };
    let [d, _, w] = &phase.0;
    phase.taps() > 0 && d.count == 1 && w.count <= 2 * STRIP && !spec.accumulate
}

impl Direct for Dense {
    fn tiles(&self) -> usize {
        self.tiles
    }
    fn scratch(&self) -> usize {
        let most = MOST_BLOCKS.min(self.pairs.outer.blocks());
        let lines = |p: &Tables| if self.sums.is_some() { p.lines.len() * BLOCK * most } else { 0 };
        let floats = |p: &Tables| (1..=most).map(|blocks| p.turned_floats(blocks)).max().unwrap_or(0).max(lines(p));
        self.phases.iter().map(floats).max().unwrap_or(0)
    }
    fn work(&self) -> Work {
        self.work
    }
    fn makes_sums(&self) -> bool {
        self.sums.is_some()
    }
}

impl Kernel for Dense {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let units = tile * self.units_per_tile..(tile + 1) * self.units_per_tile;
        let mut before = 0;
        for p in &self.phases {
            for unit in units.start.max(before)..units.end.min(before + p.units) {
                self.unit(p, unit - before, operands, scratch);
            }
            before += p.units;
        }
        fence();
    }
}
