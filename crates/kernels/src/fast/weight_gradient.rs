//! Weight gradients as sweeps: rows of the product are (source block, tap, channel) in the order of the weights, columns the
//! 16 filters of one block, and k runs over points.
//!
//! A tile owns parts of the gradient and walks all points: leaf after leaf, combined by the tree of `fold.rs` in buffers of the
//! part's size, so that nothing of the size of the weights is written twice. Where parts are few, several tiles share one,
//! each with a subtree of the leaves.
//!
//! Always true
//! - An element of a leaf's sum is one chain over the leaf's points in order, whatever the tiles.

use super::fold;
use super::isa::{Isa, STREAM_BYTES, fence, isa, prefetch};
use super::leaves::{Leaves, Subtrees};
use super::phases::Phase;
use super::sweep::{Leaf, Start, Step, Sweep};
use super::tiles;
use super::weights::Pairs;
use super::windowed::Direct;
use crate::{BLOCK, Kernel, Layout, Operand, Operands, Work, leaf_range};
use std::ops::Range;

/// Points of a pass: they pay for loading and storing sums, and their input lines still fit the first-level cache.
const POINTS: usize = 112;
/// The same of sweeps over several blocks, whose lines come from the second-level cache in time: their sums weigh more.
const POINTS_OF_SEVERAL: usize = 448;
/// Target blocks and rows of a part. Blocks share the input's lines, rows those of the gradient.
const PART: (usize, usize) = (16, 288);
/// Points of all leaves, or of one leaf, below which leaves are folded within a register tile: adding leaves weighs then more
/// than sharing lines, and those of all leaves stay in the first-level cache.
const FEW_POINTS: usize = 256;
const FEW_POINTS_OF_LEAF: usize = 16;
/// Bytes of the input for the rows of a part then.
const FOLDED_BYTES: usize = 16 << 10;

/// What a weight gradient is summed from.
pub struct Spec<'s> {
    pub input: &'s Layout,
    pub gradient: &'s Layout,
    /// Samples to sum over, in global numbers.
    pub samples: Range<isize>,
    pub batch: usize,
    pub leaves: usize,
    /// Outer are the gradient's blocks, inner the input's.
    pub pairs: &'s Pairs,
    pub phases: &'s [Phase],
    pub kernel: [usize; 3],
    /// Where subtrees of leaves are summed apart.
    pub sums: Operand,
}

/// One phase, worked out.
struct Tables {
    /// Per row: offset in the input from a point's first source, and in the gradient from its block's first weight.
    a_off: Vec<u32>,
    c_off: Vec<u32>,
    /// Rows of so many inner blocks.
    rows: Vec<usize>,
    /// Rows of points, all leaves in order.
    runs: Vec<Step>,
    /// Per leaf: its runs.
    leaves: Vec<Range<usize>>,
    /// Runs of a pass.
    pass: usize,
    /// Rows whose input lines stay in the first-level cache.
    chunk: usize,
    ak: usize,
    bk: usize,
}

/// A part of the gradient: what one tile computes.
struct Part {
    phase: usize,
    blocks: Range<usize>,
    rows: Range<usize>,
}

/// A weight gradient as a kernel.
pub struct WeightGradient {
    isa: &'static Isa,
    pairs: Pairs,
    taps: usize,
    plane: usize,
    input_plane: usize,
    subtrees: Subtrees,
    to: Operand,
    phases: Vec<Tables>,
    /// Whether leaves are folded within a register tile, and in which order: per phase and subtree.
    folded: bool,
    /// Whether the sums are more than the last-level cache holds.
    large: bool,
    orders: Vec<Vec<Vec<Leaf>>>,
    parts: Vec<Part>,
    parts_per_tile: usize,
    /// Offsets of the lines of a part.
    dense: Vec<u32>,
    /// Floats of the largest part.
    part_len: usize,
    work: Work,
}

impl Tables {
    fn new(spec: &Spec, phase: &Phase) -> Tables {
        let (x, dy, pairs) = (spec.input, spec.gradient, spec.pairs);
        let [d, h, w] = &phase.0;
        let taps: usize = spec.kernel.iter().product();
        let most = pairs.meets.iter().map(|m| m.len()).max().unwrap_or(0);
        let (mut a_off, mut c_off, mut rows) = (vec![], vec![], vec![0]);
        for block in 0..most {
            for d in &d.taps {
                for h in &h.taps {
                    for w in &w.taps {
                        let at = block * x.plane + d.at * x.depth + h.at * x.row + w.at * x.block;
                        let number = (d.number * spec.kernel[1] + h.number) * spec.kernel[2] + w.number;
                        let line = (block * taps + number) * pairs.lines();
                        let real = 0..pairs.real_lines(block);
                        a_off.extend(real.clone().map(|c| (at + c) as u32));
                        c_off.extend(real.map(|c| ((line + c) * BLOCK) as u32));
                    }
                }
            }
            rows.push(a_off.len());
        }
        let per_block = phase.taps() * pairs.lines();
        let chunk = match per_block {
            0 => 1,
            1..=48 => 48 / per_block * per_block,
            49..=192 => per_block,
            _ => 96,
        };
        let clip = |l: usize| {
            let leaf = leaf_range(spec.batch, spec.leaves, l);
            spec.samples.start.max(leaf.start as isize)..spec.samples.end.min(leaf.end as isize)
        };
        let source = |n: isize, i: usize, j: usize, k: usize| {
            let at = [(d, i), (h, j), (w, k)].map(|(along, i)| along.from + (i * along.from_step) as isize);
            x.offset(n, 0, at[0], at[1], at[2]) as isize
        };
        let target = |n: isize, i: usize, j: usize, k: usize| {
            let at = [(d, i), (h, j), (w, k)].map(|(along, i)| along.start + (i * along.step) as isize);
            dy.offset(n, 0, at[0], at[1], at[2]) as isize
        };
        // A sample of one point gives runs of one: then a run goes over the leaf's samples.
        let single = phase.points() == 1;
        let mut runs = vec![];
        let mut leaves = vec![];
        for l in 0..spec.leaves {
            let begin = runs.len();
            if single {
                let samples = clip(l);
                for n in samples.clone().step_by(POINTS) {
                    let len = (samples.end - n).min(POINTS as isize) as usize;
                    runs.push(Step { a: source(n, 0, 0, 0), b: target(n, 0, 0, 0), len });
                }
            } else {
                for n in clip(l) {
                    for i in 0..d.count {
                        for j in 0..h.count {
                            for k in (0..w.count).step_by(POINTS) {
                                let len = (w.count - k).min(POINTS);
                                runs.push(Step { a: source(n, i, j, k), b: target(n, i, j, k), len });
                            }
                        }
                    }
                }
            }
            leaves.push(begin..runs.len());
        }
        // Lines of an image have many points each, and those of the gradient stay in the first-level cache for all of its rows.
        let points = if isa().blocks > 1 && x.block == BLOCK { POINTS_OF_SEVERAL } else { POINTS };
        let length = if single { runs.iter().map(|r| r.len).max().unwrap_or(1) } else { w.count };
        Tables {
            a_off,
            c_off,
            rows,
            runs,
            leaves,
            pass: (points / length.max(1)).max(1),
            chunk,
            ak: if single { x.sample } else { w.from_step * x.block },
            bk: if single { dy.sample } else { w.step * dy.block },
        }
    }
}

impl Tables {
    /// Leaves in the order in which they are folded.
    fn order(&self, leaves: &Range<usize>) -> Vec<Leaf> {
        let order = fold::order(leaves.clone(), &|l| self.leaves[l].is_empty());
        order.into_iter().map(|(leaf, adds)| Leaf { steps: self.leaves[leaf].clone(), adds }).collect()
    }
}

impl WeightGradient {
    pub fn new(spec: &Spec) -> WeightGradient {
        let pairs = spec.pairs;
        let mut phases: Vec<Tables> = spec.phases.iter().map(|phase| Tables::new(spec, phase)).collect();
        let points = |t: &Tables, runs: &Range<usize>| t.runs[runs.clone()].iter().map(|r| r.len).sum::<usize>();
        let few = |t: &Tables| {
            t.leaves.iter().all(|leaf| points(t, leaf) < FEW_POINTS_OF_LEAF)
                || points(t, &(0..t.runs.len())) <= FEW_POINTS
        };
        let folded = phases.iter().all(few);
        if folded {
            let lines = |t: &Tables| FOLDED_BYTES / (4 * BLOCK * points(t, &(0..t.runs.len())).max(1));
            phases.iter_mut().for_each(|t| t.chunk = lines(t).clamp(3, 18) * BLOCK);
        }
        let empty: Vec<bool> = (0..spec.leaves).map(|l| phases.iter().all(|p| p.leaves[l].is_empty())).collect();
        let taps: usize = spec.kernel.iter().product();
        let per_phase = |p: &Phase| 2.0 * (p.points() * spec.samples.len() * p.taps()) as f64;
        let flops = spec.phases.iter().map(per_phase).sum::<f64>() * (pairs.count * pairs.line()) as f64;
        let wanted = tiles::of_flops(flops);
        let (mut blocks, rows) = if folded { (PART.0, 1) } else { PART };
        let mut parts = cut(pairs, &phases, blocks, rows);
        let mut subtrees = Subtrees::new(&empty, parts.len(), tiles::enough(wanted));
        while parts.len() * subtrees.ranges.len() < tiles::enough(wanted) / 2 && blocks > 4 {
            blocks /= 2;
            parts = cut(pairs, &phases, blocks, rows);
            subtrees = Subtrees::new(&empty, parts.len(), tiles::enough(wanted));
        }
        let part_len = parts.iter().map(|p| p.blocks.len() * p.rows.len() * BLOCK).max().unwrap_or(0);
        let most_rows = parts.iter().map(|p| p.rows.len()).max().unwrap_or(0);
        let per_sample = |l: &Layout| (l.len / l.stored.size(convoy_net::Axis::Sample).max(1)) as f64;
        let read = (per_sample(spec.input) + per_sample(spec.gradient)) * spec.samples.len() as f64;
        let written = (pairs.count * taps * pairs.line()) as f64;
        let tiles = wanted.div_ceil(subtrees.ranges.len());
        WeightGradient {
            isa: isa(),
            taps,
            plane: spec.gradient.plane,
            input_plane: spec.input.plane,
            to: if subtrees.is_whole() { Operand::ParameterGradient(0) } else { spec.sums },
            folded,
            large: 4.0 * written > STREAM_BYTES as f64,
            orders: phases.iter().map(|p| subtrees.ranges.iter().map(|leaves| p.order(leaves)).collect()).collect(),
            subtrees,
            phases,
            parts_per_tile: parts.len().div_ceil(tiles).max(1),
            parts,
            dense: (0..most_rows).map(|r| (r * BLOCK) as u32).collect(),
            part_len,
            work: Work { flops, bytes: 4.0 * (read + written) },
            pairs: pairs.clone(),
        }
    }

    /// The sum over one leaf of one part, `[block][row][16]`.
    fn leaf(&self, part: &Part, leaf: usize, x: &[f32], dy: &[f32], out: &mut [f32]) {
        let p = &self.phases[part.phase];
        let distance = part.rows.len() * BLOCK;
        for (pass, steps) in p.runs[p.leaves[leaf].clone()].chunks(p.pass).enumerate() {
            for row in part.rows.clone().step_by(p.chunk) {
                let rows = row..(row + p.chunk).min(part.rows.end);
                for run in self.pairs.alike(part.blocks.clone(), self.isa.blocks) {
                    let block = run.start;
                    let at = (block - part.blocks.start) * distance + (row - part.rows.start) * BLOCK;
                    let a = &x[self.pairs.meets[block].start * self.input_plane..];
                    let b = &dy[block * self.plane..];
                    let c = &mut out[at..at + (run.len() - 1) * distance + rows.len() * BLOCK];
                    let sweep = Sweep {
                        a: a.as_ptr(),
                        a_off: &p.a_off[rows.clone()],
                        b: b.as_ptr(),
                        steps,
                        ak: p.ak,
                        bk: p.bk,
                        c: c.as_mut_ptr(),
                        c_off: &self.dense[..rows.len()],
                        blocks: run.len(),
                        b_block: self.plane,
                        c_block: distance,
                        start: if pass == 0 { Start::Zero } else { Start::Held },
                        clamp: None,
                        narrow: run.len() == 1 && self.pairs.outer.narrow(block),
                        stream: false,
                    };
                    sweep.assert_inside(a.len(), b.len(), c.len());
                    // SAFETY: tables were made from the layouts of these operands, as asserted above; `c` is ours.
                    unsafe { self.isa.sweep(&sweep) }
                }
            }
        }
    }
}

/// Parts of at most so many blocks, which meet the same inner blocks, and so many rows.
fn cut(pairs: &Pairs, phases: &[Tables], blocks: usize, rows: usize) -> Vec<Part> {
    let mut parts = vec![];
    for (phase, tables) in phases.iter().enumerate() {
        let rows = rows.div_ceil(tables.chunk) * tables.chunk;
        for blocks in pairs.alike(0..pairs.outer.blocks(), blocks) {
            let all = tables.rows[pairs.meets[blocks.start].len()];
            for row in (0..all).step_by(rows) {
                parts.push(Part { phase, blocks: blocks.clone(), rows: row..(row + rows).min(all) });
            }
        }
    }
    parts
}

impl WeightGradient {
    /// One part, over one subtree.
    fn part(&self, part: &Part, subtree: usize, operands: &Operands, scratch: &mut [f32]) {
        let p = &self.phases[part.phase];
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let len = part.blocks.len() * part.rows.len() * BLOCK;
        let mut levels: [&mut [f32]; 24] = Default::default();
        for (level, buffer) in levels.iter_mut().zip(scratch.chunks_exact_mut(self.part_len)) {
            *level = &mut buffer[..len];
        }
        let any = fold::tree(
            self.subtrees.ranges[subtree].clone(),
            &mut levels,
            &|l| p.leaves[l].is_empty(),
            &mut |l, into: &mut &mut [f32]| self.leaf(part, l, x, dy, into),
            &|into, from| fold::add(self.isa, into, from),
        );
        if !any {
            levels[0].fill(0.0);
        }
        for (block, sums) in part.blocks.clone().zip(levels[0].chunks_exact_mut(part.rows.len() * BLOCK)) {
            let base = self.base(block, subtree);
            for (row, sums) in part.rows.clone().zip(sums.chunks_exact_mut(BLOCK)) {
                let at = base + p.c_off[row] as usize;
                // SAFETY: the line belongs to this part and subtree alone.
                unsafe { operands.floats_mut(self.to, at..at + BLOCK) }.copy_from_slice(sums);
            }
            self.finish(part, block, base, operands);
        }
    }

    /// The same where leaves are folded within a register tile.
    fn folded_part(&self, part: &Part, subtree: usize, operands: &Operands) {
        let p = &self.phases[part.phase];
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let to = operands.slot(self.to);
        for run in self.pairs.alike(part.blocks.clone(), self.isa.blocks) {
            let block = run.start;
            let base = self.base(block, subtree);
            let a = &x[self.pairs.meets[block].start * self.input_plane..];
            let b = &dy[block * self.plane..];
            let c = (to.data as *mut f32).wrapping_add(base);
            let sweep = Sweep {
                a: a.as_ptr(),
                a_off: &p.a_off[part.rows.clone()],
                b: b.as_ptr(),
                steps: &p.runs,
                ak: p.ak,
                bk: p.bk,
                c,
                c_off: &p.c_off[part.rows.clone()],
                blocks: run.len(),
                b_block: self.plane,
                c_block: self.pairs.panel(block, self.taps),
                start: Start::Zero,
                clamp: None,
                narrow: false,
                stream: self.large && c.addr().is_multiple_of(4 * BLOCK),
            };
            sweep.assert_inside(a.len(), b.len(), to.bytes / 4 - base);
            // The next blocks' gradient: its lines are far apart, and the processor does not foresee them.
            for step in &p.runs {
                for next in run.end..(run.end + run.len()).min(part.blocks.end) {
                    let ahead = dy.as_ptr().wrapping_add(next * self.plane).wrapping_offset(step.b);
                    (0..step.len).for_each(|k| prefetch(ahead.wrapping_add(k * p.bk)));
                }
            }
            // SAFETY: tables were made from the layouts of these operands, as asserted above; the part's lines belong to this
            // part and subtree alone.
            unsafe { self.isa.sweep_folded(&sweep, &self.orders[part.phase][subtree]) }
            for block in run {
                self.finish(part, block, self.base(block, subtree), operands);
            }
        }
        fence();
    }

    /// Where a block's sums over a subtree begin.
    fn base(&self, block: usize, subtree: usize) -> usize {
        (subtree * self.pairs.count + self.pairs.before[block]) * self.taps * self.pairs.line()
    }

    /// Zeros where weights are filler.
    fn finish(&self, part: &Part, block: usize, base: usize, operands: &Operands) {
        if !self.pairs.mixed() && !self.pairs.has_filler() {
            return;
        }
        for row in part.rows.clone() {
            let at = self.phases[part.phase].c_off[row] as usize;
            let line = at / BLOCK;
            // SAFETY: the line, and the filler that follows it, belong to this part and subtree alone.
            let to = unsafe { operands.floats_mut(self.to, base + at..base + at + self.lines_from(line) * BLOCK) };
            self.mask(block, line, &mut to[..BLOCK]);
            to[BLOCK..].fill(0.0);
        }
    }

    /// Lines from a row's own to the next row's: more than one where filler follows.
    fn lines_from(&self, line: usize) -> usize {
        let lines = self.pairs.lines();
        let real = self.pairs.real_lines(line / (self.taps * lines));
        if line % lines + 1 == real { 1 + lines - real } else { 1 }
    }

    /// Zeros where a line's filters and its channel are of different groups.
    fn mask(&self, block: usize, line: usize, sums: &mut [f32]) {
        if self.pairs.mixed() {
            let size = self.pairs.inner.block;
            let inner = (self.pairs.meets[block].start + line / (self.taps * size)) * size + line % size;
            let inside = inner < self.pairs.inner.channels;
            let lanes = if inside { self.pairs.lanes(block, inner) } else { 0..0 };
            sums[..lanes.start].fill(0.0);
            sums[lanes.end..].fill(0.0);
        }
    }
}

impl Direct for WeightGradient {
    fn tiles(&self) -> usize {
        self.parts.len().div_ceil(self.parts_per_tile) * self.subtrees.ranges.len()
    }
    fn scratch(&self) -> usize {
        if self.folded { 0 } else { fold::levels(self.subtrees.longest()) * self.part_len }
    }
    fn work(&self) -> Work {
        self.work
    }
    fn fold(&self) -> Option<(Leaves, usize)> {
        let len = self.pairs.count * self.taps * self.pairs.line();
        (!self.subtrees.is_whole()).then(|| (self.subtrees.fold(self.to, len), 4 * len * self.subtrees.ranges.len()))
    }
}

impl Kernel for WeightGradient {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (subtree, tile) = (tile % self.subtrees.ranges.len(), tile / self.subtrees.ranges.len());
        let parts = tile * self.parts_per_tile..((tile + 1) * self.parts_per_tile).min(self.parts.len());
        self.parts[parts].iter().for_each(|part| match self.folded {
            true => self.folded_part(part, subtree, operands),
            false => self.part(part, subtree, operands, scratch),
        });
    }
}

/// The gradient of a bias: sums of lines over leaves and tree. A tile is some blocks of 16 channels.
pub struct BiasGradient {
    isa: &'static Isa,
    /// Rows of points of block 0 as (offset, floats), all leaves in order.
    rows: Vec<Range<usize>>,
    /// Per leaf: its rows.
    leaves: Vec<Range<usize>>,
    plane: usize,
    /// Blocks in all, and of a tile.
    all: usize,
    blocks: usize,
    pub tiles: usize,
    pub work: Work,
}

impl BiasGradient {
    /// Over `region` of a gradient stored so.
    pub fn new(gradient: &Layout, region: &convoy_net::Region, (batch, leaves): (usize, usize)) -> BiasGradient {
        let span = |a: usize| region.start[a]..region.end[a];
        let width = region.size(convoy_net::Axis::Width) * BLOCK;
        let mut rows = vec![];
        let leaves = (0..leaves).map(|l| {
            let begin = rows.len();
            let leaf = leaf_range(batch, leaves, l);
            for n in span(0).start.max(leaf.start as isize)..span(0).end.min(leaf.end as isize) {
                for d in span(2) {
                    for h in span(3) {
                        let at = gradient.offset(n, 0, d, h, region.start[4]);
                        rows.push(at..at + width);
                    }
                }
            }
            begin..rows.len()
        });
        let leaves = leaves.collect();
        let (all, floats) = (region.size(convoy_net::Axis::Channel).div_ceil(BLOCK), region.len() as f64);
        let work = Work { flops: floats, bytes: 4.0 * floats };
        let blocks = all.div_ceil(tiles::of_bytes(work.bytes)).max(1);
        BiasGradient { isa: isa(), rows, leaves, plane: gradient.plane, all, blocks, tiles: all.div_ceil(blocks), work }
    }
}

impl Kernel for BiasGradient {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let blocks = tile * self.blocks..((tile + 1) * self.blocks).min(self.all);
        blocks.for_each(|block| self.block(block, operands));
    }
}

impl BiasGradient {
    fn block(&self, block: usize, operands: &Operands) {
        let dy = &operands.floats(Operand::OutputGradient)[block * self.plane..];
        let mut levels = [[0f32; BLOCK]; 24];
        let any = fold::tree(
            0..self.leaves.len(),
            &mut levels,
            &|l| self.leaves[l].is_empty(),
            &mut |l, into: &mut [f32; BLOCK]| {
                *into = [0.0; BLOCK];
                self.rows[self.leaves[l].clone()].iter().for_each(|row| self.isa.sum(into, &dy[row.clone()]));
            },
            &|into, from| into.iter_mut().zip(from).for_each(|(a, b)| *a += b),
        );
        let sum = if any { levels[0] } else { [0.0; BLOCK] };
        let to = block * BLOCK..(block + 1) * BLOCK;
        // SAFETY: the block belongs to one tile alone.
        unsafe { operands.floats_mut(Operand::ParameterGradient(1), to) }.copy_from_slice(&sum);
    }
}
