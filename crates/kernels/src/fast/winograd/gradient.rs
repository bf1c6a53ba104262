//! Weight gradients in the transform domain.
//!
//! One way only: planes that are made on the way cost no more than planes that are stages of their own, even for short leaves.
//!
//! A leaf is summed in the planes and then transformed back; leaves are folded as weights, by the tree of `fold.rs`. (Folding in
//! the planes and transforming once would be less work, but ranks that hold subtrees could not get the bits of one rank:
//! what they send each other are weights.)

use super::{Grid, PAIR, Size, Windows, at_once, even, lines, parts, plane};
use crate::fast::fold;
use crate::fast::isa::{Isa, isa};
use crate::fast::leaves::{Leaves, Subtrees};
use crate::fast::sweep::{Start, Step, Sweep};
use crate::fast::tiles;
use crate::fast::transforms::After;
use crate::fast::weights::Pairs;
use crate::{BLOCK, Kernel, Layout, Make, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region};
use std::ops::Range;

/// Tiles of one run of a product.
const RUN: usize = 128;
/// Outer and inner blocks of a part. Inputs are brought to planes again for every part of a row, gradients for every part of a
/// column; sums in planes should not be too large.
const OUTER: usize = 8;
const INNER: usize = if cfg!(test) { 3 } else { 8 };
/// Inner blocks at a time where sweeps take one outer block, for products weigh more there, and where all tiles of a leaf are taken
/// at once, so that sums are near when they are transformed back.
const FEWER_INNER: usize = if cfg!(test) { 2 } else { 4 };

/// A weight gradient, described.
pub struct Gradient<'s> {
    pub size: Size,
    pub input: &'s Layout,
    pub gradient: &'s Layout,
    /// The part of the output to sum over.
    pub region: &'s Region,
    /// How far before its outputs a window begins along height and width.
    pub before: [isize; 2],
    pub batch: usize,
    pub leaves: usize,
    pub pairs: &'s Pairs,
    /// Number of the pass, and of the operand, where subtrees of leaves are summed apart.
    pub number: usize,
}

impl Gradient<'_> {
    /// The stages, in order.
    pub fn stages(&self) -> Vec<Stage> {
        let sums = Operand::Internal(self.number);
        let main = Parts::new(self);
        let whole = main.subtrees.is_whole();
        let mut stages = vec![Stage {
            pass: if whole { Pass::WeightGradient(0) } else { Pass::Transform(self.number) },
            reads: vec![Operand::Input(0), Operand::OutputGradient],
            writes: vec![main.to],
            makes: if whole { vec![] } else { vec![Make::Internal { number: self.number, bytes: main.bytes() }] },
            tiles: main.tiles(),
            scratch: main.scratch,
            work: main.work(),
        }];
        if !whole {
            let last = main.fold();
            stages.push(Stage {
                pass: Pass::WeightGradient(0),
                reads: vec![sums],
                writes: vec![Operand::ParameterGradient(0)],
                makes: vec![],
                tiles: last.tiles(),
                scratch: last.scratch(),
                work: last.work(),
            });
        }
        stages
    }

    /// The kernel of one of the stages, if it is one.
    pub fn prepare(&self, pass: Pass) -> Option<Box<dyn Kernel>> {
        match pass {
            Pass::Transform(number) if number == self.number => Some(Box::new(Parts::new(self))),
            Pass::WeightGradient(0) => {
                let main = Parts::new(self);
                if main.subtrees.is_whole() { Some(Box::new(main)) } else { Some(Box::new(main.fold())) }
            }
            _ => None,
        }
    }
}

/// The main stage: sums of subtrees of leaves. A tile owns the weights between some blocks; leaf after leaf it brings input and
/// gradient to planes, multiplies there, transforms back, and folds. Few weights have few parts: then several tiles share a
/// part, each with a subtree of its own, and another stage folds those.
struct Parts {
    isa: &'static Isa,
    size: Size,
    input: Windows,
    gradient: Windows,
    /// Tiles of each leaf.
    leaves: Vec<Range<usize>>,
    /// Blocks in all.
    outers: usize,
    inners: usize,
    pairs: Pairs,
    /// Outer and inner blocks of a tile, and how many of the inner ones are summed at a time.
    outer: usize,
    part: usize,
    inner: usize,
    /// Tiles taken at once, and the offsets of their channels.
    block: usize,
    rows: Vec<u32>,
    lines: Vec<u32>,
    scratch: usize,
    subtrees: Subtrees,
    to: Operand,
}

/// Operations of the products of so many pairs of blocks.
fn flops(grid: &Grid, size: Size, pairs: usize) -> f64 {
    2.0 * (grid.len() * size.planes() * pairs * PAIR) as f64
}

impl Parts {
    fn new(spec: &Gradient) -> Parts {
        let isa = isa();
        let grid = Grid::new(spec.region, spec.size);
        let transforms = spec.size.transforms(isa);
        let tile = spec.size.tile();
        let windows = |layout: &Layout, transform, [size, planes, stride]: [usize; 3], before| Windows {
            grid: grid.clone(),
            layout: layout.clone(),
            transform,
            size,
            planes,
            stride: stride as isize,
            before,
        };
        let (window, sums) = (spec.size.window(), spec.size.sum_window());
        let (inners, outers) = (spec.pairs.inner.blocks(), spec.pairs.outer.blocks());
        let (part, outer) = (inners.min(INNER), outers.min(OUTER));
        let leaves: Vec<_> = (0..spec.leaves).map(|l| grid.leaf(spec.batch, spec.leaves, l)).collect();
        let longest = leaves.iter().map(|l| l.len()).max().unwrap_or(0);
        let of_tile = |inner: usize| spec.size.planes() * inner + spec.size.sum_planes() * outer;
        let block = |inner: usize| even(longest, at_once(spec.size, of_tile(inner)));
        let inner = if isa.blocks > 1 && longest > block(part) { part } else { part.min(FEWER_INNER) };

        let flops = flops(&grid, spec.size, inners * outers);
        let parts = outers.div_ceil(outer) * inners.div_ceil(part);
        let empty: Vec<bool> = leaves.iter().map(|l| l.is_empty()).collect();
        let subtrees = Subtrees::new(&empty, parts, tiles::enough(tiles::of_flops(flops)));
        // Room for either number of inner blocks at a time, so that a program needs the same memory everywhere.
        let floats = |inner: usize| {
            let inputs_and_sums = plane(inner * block(inner)) + outer * plane(inner * BLOCK);
            spec.size.planes() * inputs_and_sums + spec.size.sum_planes() * plane(outer * block(inner))
        };
        let levels = fold::levels(subtrees.longest()) * outer * part * spec.size.weights();
        let scratch = floats(part).max(floats(part.min(FEWER_INNER))) + levels;
        let block = block(inner);
        Parts {
            isa,
            size: spec.size,
            input: windows(spec.input, transforms.input, [window, window, spec.size.stride()], spec.before),
            gradient: windows(spec.gradient, transforms.gradient, [tile, sums, 1], [0, 0]),
            leaves,
            outers,
            inners,
            pairs: spec.pairs.clone(),
            outer,
            part,
            inner,
            scratch,
            block,
            rows: (0..inner * BLOCK).map(|c| (c / BLOCK * block * BLOCK + c % BLOCK) as u32).collect(),
            lines: lines(inner * BLOCK),
            to: if subtrees.is_whole() { Operand::ParameterGradient(0) } else { Operand::Internal(spec.number) },
            subtrees,
        }
    }

    /// The last stage, where subtrees are folded.
    fn fold(&self) -> Leaves {
        self.subtrees.fold(self.to, self.len())
    }

    /// Floats of the gradient.
    fn len(&self) -> usize {
        self.inners * self.outers * self.size.weights()
    }

    /// Of all subtrees.
    fn bytes(&self) -> usize {
        4 * self.subtrees.ranges.len() * self.len()
    }

    fn tiles(&self) -> usize {
        self.subtrees.ranges.len() * self.outers.div_ceil(self.outer) * self.inners.div_ceil(self.part)
    }

    /// Distances between planes of the input and of the gradient of the tiles taken at once, and of the sums of one outer block.
    fn distances(&self) -> [usize; 3] {
        [self.inner * self.block, self.outer * self.block, self.inner * BLOCK].map(plane)
    }

    /// Floats of the sums in planes of one outer block.
    fn sums(&self) -> usize {
        self.size.planes() * self.distances()[2]
    }

    fn work(&self) -> Work {
        let grid = &self.input.grid;
        let flops = flops(grid, self.size, self.inners * self.outers);
        let points = grid.region.len() / grid.region.size(Axis::Channel).max(1);
        let read = 4 * points * (self.inners + self.outers) * BLOCK;
        Work { flops, bytes: (read + self.bytes()) as f64 }
    }

    /// Channels of some inner blocks, without filler.
    fn channels(&self, inner: &Range<usize>) -> usize {
        self.pairs.inner.channels.min(inner.end * BLOCK) - inner.start * BLOCK
    }

    /// Adds products over `tiles` of one plane (lines `from` of some channels, `by` of some outer blocks) to `sums`, `[channel][16]`
    /// of each block, or starts there.
    fn products(
        &self,
        channels: usize,
        (blocks, narrow): (usize, bool),
        tiles: Range<usize>,
        (from, by): (&[f32], &[f32]),
        sums: &mut [f32],
        mut start: Start,
    ) {
        for first in tiles.clone().step_by(RUN) {
            let at = (first * BLOCK) as isize;
            let step = [Step { a: at, b: at, len: (tiles.end - first).min(RUN) }];
            let sweep = Sweep {
                a: from.as_ptr(),
                a_off: &self.rows[..channels],
                b: by.as_ptr(),
                steps: &step,
                ak: BLOCK,
                bk: BLOCK,
                c: sums.as_mut_ptr(),
                c_off: &self.lines[..channels],
                blocks,
                b_block: self.block * BLOCK,
                c_block: self.sums(),
                start,
                clamp: None,
                narrow,
                stream: false,
            };
            sweep.assert_inside(from.len(), by.len(), sums.len());
            // SAFETY: inside, as asserted; the sums are ours.
            unsafe { self.isa.sweep(&sweep) };
            start = Start::Held;
        }
    }

    /// Sums in planes, `[plane][channel][16]`, back to weights, `[inner block][tap][16][16]`; those of filler are zero.
    fn back(&self, channels: usize, planes: &[f32], distance: usize, to: &mut [f32]) {
        let transform = self.size.transforms(self.isa).weight_gradient;
        assert!(
            (self.size.planes() - 1) * distance + channels * BLOCK <= planes.len()
                && to.len() == channels.div_ceil(BLOCK) * self.size.weights(),
            "bug: sums of other sizes"
        );
        for channel in 0..channels {
            let from = (planes[channel * BLOCK..].as_ptr(), (self.size.window() * distance, distance));
            let to = to[channel / BLOCK * self.size.weights() + channel % BLOCK * BLOCK..].as_mut_ptr();
            // SAFETY: a line of every plane is read, one of each tap is written; both inside, as asserted.
            unsafe { transform(from.0, from.1, to, (self.size.taps() * PAIR, PAIR), &After::NOTHING) };
        }
        if !channels.is_multiple_of(BLOCK) {
            let last = to.len() - self.size.weights();
            to[last..].chunks_exact_mut(PAIR).for_each(|tap| tap[channels % BLOCK * BLOCK..].fill(0.0));
        }
    }

    /// The sum over a leaf between `outer` and some of the inner blocks `all`, `[outer block][inner block of all][tap][16][16]`.
    fn leaf(
        &self,
        leaf: usize,
        (outer, inner, all): (&Range<usize>, &Range<usize>, &Range<usize>),
        operands: &Operands,
        (planes, sums): (&mut [f32], &mut [f32]),
        into: &mut [f32],
    ) {
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let [p, r, t] = self.distances();
        let (from, by) = planes.split_at_mut(self.size.planes() * p);
        let tiles = self.leaves[leaf].clone();
        let channels = self.channels(inner);
        for first in tiles.clone().step_by(self.block) {
            let some = first..(first + self.block).min(tiles.end);
            // SAFETY: all planes of these tiles are in scratch.
            unsafe {
                let distance = self.block * BLOCK;
                self.input.transform(x, inner.clone(), some.clone(), from.as_mut_ptr(), (p, distance));
                self.gradient.transform(dy, outer.clone(), some.clone(), by.as_mut_ptr(), (r, distance));
            }
            let start = if first == tiles.start { Start::Zero } else { Start::Held };
            let last = some.end == tiles.end;
            let once = last && start == Start::Zero;
            // The last sums are transformed back while they are in the cache: then few blocks at a time.
            let at_once = if last { self.isa.blocks.max(2) } else { outer.len() };
            for group in parts(0..outer.len(), at_once) {
                // Sums that are needed once may lie where others were.
                let place = |i: usize| if once { i - group.start } else { i };
                for q in 0..self.size.planes() {
                    for run in parts(group.clone(), self.isa.blocks) {
                        let by = &by[self.size.sum_plane(q) * r + run.start * self.block * BLOCK..];
                        let sums =
                            &mut sums[place(run.start) * self.sums() + q * t..][..(run.len() - 1) * self.sums() + t];
                        let narrow = run.len() == 1 && self.pairs.outer.narrow(outer.start + run.start);
                        let lines = (&from[q * p..(q + 1) * p], by);
                        self.products(channels, (run.len(), narrow), 0..some.len(), lines, sums, start);
                    }
                }
                for i in group.clone().filter(|_| last) {
                    let at = (i * all.len() + inner.start - all.start) * self.size.weights();
                    let into = &mut into[at..][..inner.len() * self.size.weights()];
                    self.back(channels, &sums[place(i) * self.sums()..][..self.sums()], t, into);
                }
            }
        }
    }
}

impl Kernel for Parts {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (subtree, tile) = (tile % self.subtrees.ranges.len(), tile / self.subtrees.ranges.len());
        let columns = self.inners.div_ceil(self.part);
        let part = |number: usize, size: usize, all: usize| number * size..((number + 1) * size).min(all);
        let outer = part(tile / columns, self.outer, self.outers);
        let inner = part(tile % columns, self.part, self.inners);
        let [p, r, _] = self.distances();
        let (planes, rest) = scratch.split_at_mut(self.size.planes() * p + self.size.sum_planes() * r);
        let (sums, rest) = rest.split_at_mut(self.outer * self.sums());
        let len = outer.len() * inner.len() * self.size.weights();
        let mut levels: [&mut [f32]; 24] = Default::default();
        for (level, buffer) in
            levels.iter_mut().zip(rest.chunks_exact_mut(self.outer * self.part * self.size.weights()))
        {
            *level = &mut buffer[..len];
        }
        let any = fold::tree(
            self.subtrees.ranges[subtree].clone(),
            &mut levels,
            &|l| self.leaves[l].is_empty(),
            &mut |l, into: &mut &mut [f32]| {
                for some in parts(inner.clone(), self.inner) {
                    self.leaf(l, (&outer, &some, &inner), operands, (planes, sums), into);
                }
            },
            &|into, from| fold::add(self.isa, into, from),
        );
        for (o, sums) in outer.zip(levels[0].chunks_exact_mut(inner.len() * self.size.weights())) {
            if !any {
                sums.fill(0.0);
            }
            let at = subtree * self.len() + (o * self.inners + inner.start) * self.size.weights();
            // SAFETY: the weights between these blocks are, in this subtree, the tile's alone.
            unsafe { operands.floats_mut(self.to, at..at + inner.len() * self.size.weights()) }.copy_from_slice(sums);
        }
    }
}
