//! Dense passes: forward, and the phases of an input gradient, as sweeps over strips of points.
//!
//! A strip is some rows of an image or some whole images; its rows of the product are its points, columns are the 16
//! channels of one target block, and k runs over (source block, window row, tap, channel). Weights of a group of steps stay
//! in the first-level cache while the strip passes.
//!
//! Always true
//! - A target element is one chain in the order (source block, tap, channel), whatever the strips, groups and tiles.

use super::isa::{Isa, isa};
use super::phases::Phase;
use super::sweep::{Start, Step, Sweep};
use super::tiles;
use super::weights::Pairs;
use crate::{BLOCK, Kernel, Layout, Operand, Operands, Work};
use std::ops::Range;

/// Points of a strip.
const STRIP: usize = 192;
/// Bytes of weights that stay in the first-level cache while a strip passes.
const GROUP_BYTES: usize = 16 << 10;
/// A strip of input above this leaves the second-level cache: then groups are outside and target blocks inside.
const SOURCE_BYTES: usize = 320 << 10;
/// Work of a unit at most, in floating-point operations.
const UNIT_FLOPS: f64 = 50e6;

/// Where the weights of a phase lie.
#[derive(Clone, Debug)]
pub struct Place {
    /// First float of the phase's weights.
    pub base: usize,
    /// Taps stored per pair of blocks.
    pub taps: usize,
    /// Number of a tap (depth, height, width) among those stored.
    pub number: fn(&Phase, [usize; 3], [usize; 3]) -> usize,
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
    source_layout: Layout,
    target_layout: Layout,
    samples: Range<isize>,
    pairs: Pairs,
    phases: Vec<Tables>,
    /// Units (phase, strip, range of target blocks) per tile.
    units_per_tile: usize,
    pub tiles: usize,
    pub work: Work,
}

/// What a dense pass reads and writes.
pub struct Spec<'s> {
    pub source: (Operand, &'s Layout),
    pub target: (Operand, &'s Layout),
    pub weights: Operand,
    pub bias: Option<Operand>,
    pub accumulate: bool,
    /// Samples to compute, in global numbers.
    pub samples: Range<isize>,
    /// Outer are target blocks, inner are source blocks.
    pub pairs: &'s Pairs,
    pub phases: &'s [(Phase, Place)],
    pub kernel: [usize; 3],
}

/// One phase, worked out.
struct Tables {
    phase: Phase,
    base: usize,
    taps: usize,
    strips: Strips,
    a_off: Vec<u32>,
    c_off: Vec<u32>,
    /// Steps of the target block that meets the most source blocks; others take the first of them.
    steps: Vec<Step>,
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
    count: usize,
}

impl Strips {
    fn new(sizes: [usize; 4]) -> Strips {
        let inner = |axis: usize| sizes[axis + 1..].iter().product::<usize>();
        let axis = (0..4).find(|&a| inner(a) <= 2 * STRIP).expect("nothing is inside the last axis");
        let most = (STRIP + inner(axis) / 2) / inner(axis).max(1);
        let pieces = sizes[axis].div_ceil(most.max(1)).max(1);
        let piece = sizes[axis].div_ceil(pieces);
        let count = sizes[..axis].iter().product::<usize>() * sizes[axis].div_ceil(piece.max(1));
        Strips { sizes, axis, piece, count }
    }

    /// Points of a whole strip.
    fn points(&self) -> usize {
        self.piece * self.sizes[self.axis + 1..].iter().product::<usize>()
    }

    /// The first point of a strip and the number of its points.
    fn strip(&self, number: usize) -> ([usize; 4], usize) {
        let pieces = self.sizes[self.axis].div_ceil(self.piece);
        let mut at = [0; 4];
        at[self.axis] = number % pieces * self.piece;
        let mut rest = number / pieces;
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

impl Tables {
    fn new(spec: &Spec, phase: &Phase, place: &Place) -> Tables {
        let (source, target) = (spec.source.1, spec.target.1);
        let [d, h, w] = &phase.0;
        let strips = Strips::new([spec.samples.len(), d.count, h.count, w.count]);
        let inner = spec.pairs.lines();
        // Taps of a window row lie side by side in the source and in the weights: one step takes them all.
        let number = |d, h, w| (place.number)(phase, [d, h, w], spec.kernel);
        let run = !spec.pairs.depthwise
            && w.taps.windows(2).all(|t| t[1].at == t[0].at + 1)
            && (phase.taps() == 0 || (1..w.taps.len()).all(|i| number(0, 0, i) == number(0, 0, i - 1) + 1));
        let most = spec.pairs.meets.iter().map(|m| m.len()).max().unwrap_or(0);
        let mut steps = vec![];
        let mut before = vec![];
        for block in 0..most {
            before.push(steps.len());
            let real = spec.pairs.real_lines(block);
            // Filler channels are passed over, tap by tap.
            let (runs, taps) = if run && real == inner { (1, w.taps.len()) } else { (w.taps.len(), 1) };
            for (i, depth) in d.taps.iter().enumerate() {
                for (j, row) in h.taps.iter().enumerate() {
                    for (k, column) in w.taps.iter().enumerate().take(runs) {
                        let at = block * source.plane
                            + depth.at * source.depth
                            + row.at * source.row
                            + column.at * source.block;
                        let b = (block * place.taps + number(i, j, k)) * spec.pairs.line();
                        steps.push(Step { a: at as isize, b: b as isize, len: taps * real });
                    }
                }
            }
        }
        before.push(steps.len());
        let longest = steps.iter().map(|s| s.len).max().unwrap_or(1);
        let groups = steps.len().div_ceil((GROUP_BYTES / (longest * BLOCK * 4)).max(1)).max(1);
        let flops = 2.0 * (strips.points() * steps.iter().map(|s| s.len).sum::<usize>() * BLOCK) as f64;
        let outer = spec.pairs.outer.blocks();
        let most = ((UNIT_FLOPS / flops.max(1.0)) as usize).clamp(1, outer);
        // Few strips: then more units of fewer blocks.
        let wanted = tiles::enough(tiles::of_flops(flops * (strips.count * outer) as f64));
        let parts = outer.div_ceil(most).max(wanted.div_ceil(strips.count.max(1)).min(outer));
        let blocks = outer.div_ceil(parts);
        Tables {
            a_off: strips.offsets(distances(source, [d.from_step, h.from_step, w.from_step])),
            c_off: strips.offsets(distances(target, [d.step, h.step, w.step])),
            phase: phase.clone(),
            base: place.base,
            taps: place.taps,
            before,
            group: steps.len().div_ceil(groups).max(1),
            steps,
            blocks,
            units: strips.count * spec.pairs.outer.blocks().div_ceil(blocks),
            strips,
        }
    }
}

impl Dense {
    pub fn new(spec: &Spec) -> Dense {
        let (source, target) = (spec.source.1, spec.target.1);
        let phases: Vec<Tables> = spec.phases.iter().map(|(phase, place)| Tables::new(spec, phase, place)).collect();
        let units: usize = phases.iter().map(|p| p.units).sum();
        let points = |p: &Tables| (spec.samples.len() * p.phase.points()) as f64;
        let multiplies = |p: &Tables| points(p) * (p.phase.taps() * spec.pairs.count * spec.pairs.line()) as f64;
        let flops = 2.0 * phases.iter().map(multiplies).sum::<f64>();
        let written = phases.iter().map(points).sum::<f64>() * (spec.pairs.outer.blocks() * BLOCK) as f64;
        let weights =
            phases.iter().map(|p| (p.phase.taps() * spec.pairs.count * spec.pairs.line()) as f64).sum::<f64>();
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
            source_layout: source.clone(),
            target_layout: target.clone(),
            samples: spec.samples.clone(),
            pairs: spec.pairs.clone(),
            phases,
            units_per_tile,
            tiles: units.div_ceil(units_per_tile),
            work: Work { flops, bytes: 4.0 * (read + written + weights) },
        }
    }

    /// One strip of one phase, some target blocks.
    fn unit(&self, p: &Tables, unit: usize, operands: &Operands) {
        let strip = unit % p.strips.count;
        let first = unit / p.strips.count * p.blocks;
        let blocks = first..(first + p.blocks).min(self.pairs.outer.blocks());
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
                let line = bias.map_or([0.0; BLOCK], |bias| bias[block * BLOCK..][..BLOCK].try_into().expect("16"));
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
        let one = |block: usize, group: usize| {
            let meets = &self.pairs.meets[block];
            let steps = &p.steps[..p.before[meets.len()]];
            let Some(steps) = steps.chunks(p.group).nth(group) else { return };
            let start = match (group, &bias) {
                (0, Some(bias)) => Start::Line(bias[block * BLOCK..][..BLOCK].as_ptr()),
                (0, None) if !self.accumulate => Start::Zero,
                _ => Start::Held,
            };
            let a = source + meets.start * self.source_layout.plane;
            let b = p.base + self.pairs.before[block] * p.taps * self.pairs.line();
            let sweep = Sweep {
                a: from[a..].as_ptr(),
                a_off,
                b: weights[b..].as_ptr(),
                steps,
                ak: 1,
                bk: BLOCK,
                lanes: self.pairs.depthwise,
                c: c.wrapping_add(target(block)),
                c_off,
                start,
            };
            sweep.assert_inside(from.len() - a, weights.len() - b, to.bytes / 4 - target(block));
            // SAFETY: tables were made from the layouts of these operands, as asserted above; the strip's lines of this
            // block belong to this unit alone.
            unsafe { self.isa.sweep(&sweep) }
        };
        let groups = p.steps.len().div_ceil(p.group);
        if points * self.pairs.inner.channels * 4 > SOURCE_BYTES {
            (0..groups).for_each(|g| blocks.clone().for_each(|b| one(b, g)));
        } else {
            blocks.for_each(|b| (0..groups).for_each(|g| one(b, g)));
        }
    }
}

impl Kernel for Dense {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let units = tile * self.units_per_tile..(tile + 1) * self.units_per_tile;
        let mut before = 0;
        for p in &self.phases {
            for unit in units.start.max(before)..units.end.min(before + p.units) {
                self.unit(p, unit - before, operands);
            }
            before += p.units;
        }
    }
}
