//! Weight gradients in the transform domain.
//!
//! A leaf is summed in the planes and then transformed back; leaves are folded as weights, by the tree of `fold.rs`. (Folding in
//! the planes and transforming once would be less work, but ranks that hold subtrees could not get the bits of one rank:
//! what they send each other are weights.)

use super::{Grid, PAIR, Size, Windows, at_once, blocks_at_once, even, lines, plane, staged};
use crate::fast::fold;
use crate::fast::isa::{Isa, isa};
use crate::fast::leaves::Leaves;
use crate::fast::sweep::{Start, Step, Sweep};
use crate::fast::weights::Pairs;
use crate::{BLOCK, Kernel, Layout, Make, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region};
use std::ops::Range;
use std::ptr::null;

/// Tiles of one run of a product.
const RUN: usize = 128;
/// Floats of the weights between two blocks.
const TAPS: usize = 9 * PAIR;

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
    /// Numbers of the passes, and of the operands they make: if staged, input and gradient in planes; else the
    /// sums of leaves.
    pub numbers: [usize; 3],
}

impl Gradient<'_> {
    fn staged(&self) -> bool {
        staged(self.region, self.size)
    }

    /// The stages, in order.
    pub fn stages(&self) -> Vec<Stage> {
        let [input, gradient, sums] = self.numbers.map(Operand::Internal);
        let make = |i: usize, bytes: usize| vec![Make::Internal { number: self.numbers[i], bytes }];
        let transform = |i: usize| Pass::Transform(self.numbers[i]);
        let mut stages = vec![];
        if self.staged() {
            let planes =
                [(0, Of::Input, Operand::Input(0), input), (1, Of::Gradient, Operand::OutputGradient, gradient)];
            for (i, of, from, to) in planes {
                let stage = ToPlanes(Shared::new(self), of);
                stages.push(Stage {
                    pass: transform(i),
                    reads: vec![from],
                    writes: vec![to],
                    makes: make(i, stage.bytes()),
                    tiles: stage.tiles(),
                    scratch: 0,
                    work: stage.work(),
                });
            }
            let last = Owned::new(self);
            stages.push(Stage {
                pass: Pass::WeightGradient(0),
                reads: vec![input, gradient],
                writes: vec![Operand::ParameterGradient(0)],
                makes: vec![],
                tiles: last.tiles(),
                scratch: last.scratch(),
                work: last.work(),
            });
        } else {
            let stage = ByLeaf::new(self);
            stages.push(Stage {
                pass: transform(2),
                reads: vec![Operand::Input(0), Operand::OutputGradient],
                writes: vec![sums],
                makes: make(2, stage.bytes()),
                tiles: stage.tiles(),
                scratch: stage.scratch(),
                work: stage.work(),
            });
            let last = self.fold();
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

    /// The last stage of a fused weight gradient.
    fn fold(&self) -> Leaves {
        let shared = Shared::new(self);
        let len = shared.inner * shared.outer * TAPS;
        Leaves::new(Operand::Internal(self.numbers[2]), len, shared.leaves.iter().map(|l| l.is_empty()))
    }

    /// The kernel of one of the stages, if it is one.
    pub fn prepare(&self, pass: Pass) -> Option<Box<dyn Kernel>> {
        match pass {
            Pass::Transform(number) => match self.numbers.iter().position(|n| *n == number)? {
                0 => Some(Box::new(ToPlanes(Shared::new(self), Of::Input))),
                1 => Some(Box::new(ToPlanes(Shared::new(self), Of::Gradient))),
                _ => Some(Box::new(ByLeaf::new(self))),
            },
            Pass::WeightGradient(0) if self.staged() => Some(Box::new(Owned::new(self))),
            Pass::WeightGradient(0) => Some(Box::new(self.fold())),
            _ => None,
        }
    }
}

/// A weight gradient in the transform domain: what its steps share.
struct Shared {
    isa: &'static Isa,
    size: Size,
    input: Windows,
    gradient: Windows,
    leaves: Vec<Range<usize>>,
    planes: [Operand; 2],
    sums: Operand,
    inner: usize,
    outer: usize,
    /// Tiles taken at once, and the offsets of their channels.
    block: usize,
    rows: Vec<u32>,
    lines: Vec<u32>,
}

impl Shared {
    fn new(spec: &Gradient) -> Shared {
        let grid = Grid::new(spec.region, spec.size);
        let (inner, outer) = (spec.pairs.inner.blocks(), spec.pairs.outer.blocks());
        let leaves: Vec<_> = (0..spec.leaves).map(|l| grid.leaf(spec.batch, spec.leaves, l)).collect();
        let longest = leaves.iter().map(|l| l.len()).max().unwrap_or(0);
        let block = if spec.staged() { grid.len() } else { even(longest, at_once(spec.size, inner + outer)) };
        let isa = isa();
        let windows = |layout: &Layout, transform, size: usize, before, longer| Windows {
            grid: grid.clone(),
            layout: layout.clone(),
            transform,
            size,
            window: spec.size.window(),
            before,
            longer,
        };
        let transforms = spec.size.transforms(isa);
        Shared {
            isa,
            size: spec.size,
            input: windows(spec.input, transforms.input, spec.size.window(), spec.before, 2),
            gradient: windows(spec.gradient, transforms.gradient, spec.size.tile(), [0, 0], 0),
            leaves,
            planes: [0, 1].map(|i| Operand::Internal(spec.numbers[i])),
            sums: Operand::Internal(spec.numbers[2]),
            inner,
            outer,
            block,
            rows: (0..inner * BLOCK).map(|c| (c / BLOCK * block * BLOCK + c % BLOCK) as u32).collect(),
            lines: lines(inner * BLOCK),
        }
    }

    fn tiles(&self) -> usize {
        self.input.grid.len()
    }

    fn planes(&self, blocks: usize) -> usize {
        self.size.planes() * plane(blocks * self.block)
    }

    fn flops(&self) -> f64 {
        2.0 * (self.tiles() * self.size.planes() * self.inner * self.outer * PAIR) as f64
    }

    /// Adds products over `tiles` of one plane (lines `from` of some inner blocks, `by` of one outer block) to `sums`,
    /// `[channel][16]`, or starts there.
    fn products(
        &self,
        blocks: usize,
        tiles: Range<usize>,
        from: &[f32],
        by: &[f32],
        sums: &mut [f32],
        mut start: Start,
    ) {
        for first in tiles.clone().step_by(RUN) {
            let at = (first * BLOCK) as isize;
            let step = [Step { a: at, b: at, len: (tiles.end - first).min(RUN) }];
            let sweep = Sweep {
                a: from.as_ptr(),
                a_off: &self.rows[..blocks * BLOCK],
                b: by.as_ptr(),
                steps: &step,
                ak: BLOCK,
                bk: BLOCK,
                lanes: false,
                c: sums.as_mut_ptr(),
                c_off: &self.lines[..blocks * BLOCK],
                start,
            };
            sweep.assert_inside(from.len(), by.len(), sums.len());
            // SAFETY: inside, as asserted; the sums are ours.
            unsafe { self.isa.sweep(&sweep) };
            start = Start::Held;
        }
    }

    /// Sums in planes, `[plane][inner block][16][16]`, back to weights, `[inner block][tap][16][16]`.
    fn back(&self, blocks: usize, planes: &[f32], distance: usize, to: &mut [f32]) {
        let transform = self.size.transforms(self.isa).weight_gradient;
        assert!(
            (self.size.planes() - 1) * distance + blocks * PAIR <= planes.len() && to.len() >= blocks * TAPS,
            "bug"
        );
        for block in 0..blocks {
            for line in (0..PAIR).step_by(BLOCK) {
                let from = (planes[block * PAIR + line..].as_ptr(), (self.size.window() * distance, distance));
                let to = to[block * TAPS + line..].as_mut_ptr();
                // SAFETY: a line of every plane is read, one of nine taps is written; both inside, as asserted.
                unsafe { transform(from.0, from.1, to, (3 * PAIR, PAIR), null()) };
            }
        }
    }
}

/// Which planes a stage makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Input,
    Gradient,
}

/// The first two stages of a staged weight gradient: windows of the input, tiles of the output's gradient, to planes.
struct ToPlanes(Shared, Of);

impl ToPlanes {
    fn count(&self) -> usize {
        if self.1 == Of::Input { self.0.inner } else { self.0.outer }
    }
    fn blocks(&self) -> usize {
        blocks_at_once(self.count(), self.0.tiles() * self.0.size.planes())
    }
    fn tiles(&self) -> usize {
        if self.0.tiles() == 0 { 0 } else { self.count().div_ceil(self.blocks()) }
    }
    fn bytes(&self) -> usize {
        4 * self.0.planes(self.count())
    }
    fn work(&self) -> Work {
        Work { flops: 0.0, bytes: 1.5 * self.bytes() as f64 }
    }
}

impl Kernel for ToPlanes {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let g = &self.0;
        let (windows, from, to) = match self.1 {
            Of::Input => (&g.input, Operand::Input(0), g.planes[0]),
            Of::Gradient => (&g.gradient, Operand::OutputGradient, g.planes[1]),
        };
        let data = operands.floats(from);
        let to = operands.slot(to).data as *mut f32;
        for block in tile * self.blocks()..((tile + 1) * self.blocks()).min(self.count()) {
            // SAFETY: the lines of this block are inside the planes and this tile's alone.
            unsafe {
                let to = to.add(block * g.block * BLOCK);
                windows.transform(data, block, 0..g.tiles(), to, plane(self.count() * g.block));
            }
        }
    }
}

/// The last stage of a staged weight gradient. A tile owns the weights between some blocks; leaf after leaf it multiplies in
/// all planes, transforms back, and folds.
struct Owned {
    shared: Shared,
    /// Outer and inner blocks of a tile.
    outer: usize,
    inner: usize,
}

impl Owned {
    fn new(spec: &Gradient) -> Owned {
        let shared = Shared::new(spec);
        let (mut outer, mut inner) = (4.min(shared.outer), 4.min(shared.inner));
        let tiles = |outer, inner| shared.outer.div_ceil(outer) * shared.inner.div_ceil(inner);
        while tiles(outer, inner) < 8 && outer.max(inner) > 1 {
            if outer >= inner { outer = outer.div_ceil(2) } else { inner = inner.div_ceil(2) }
        }
        Owned { outer, inner, shared }
    }
    fn tiles(&self) -> usize {
        self.shared.outer.div_ceil(self.outer) * self.shared.inner.div_ceil(self.inner)
    }
    /// Floats of the planes' sums of one outer block.
    fn planes(&self) -> usize {
        self.shared.size.planes() * plane(self.inner * BLOCK)
    }
    fn scratch(&self) -> usize {
        self.planes() + fold::levels(self.shared.leaves.len()) * self.outer * self.inner * TAPS
    }
    fn work(&self) -> Work {
        let s = &self.shared;
        let bytes = 4 * (s.planes(s.inner) + s.planes(s.outer) + s.inner * s.outer * TAPS);
        Work { flops: s.flops(), bytes: bytes as f64 }
    }
}

impl Kernel for Owned {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let s = &self.shared;
        let columns = s.inner.div_ceil(self.inner);
        let part = |number: usize, size: usize, all: usize| number * size..((number + 1) * size).min(all);
        let (outer, inner) = (part(tile / columns, self.outer, s.outer), part(tile % columns, self.inner, s.inner));
        let from = operands.floats(s.planes[0]);
        let by = operands.floats(s.planes[1]);
        let (planes, rest) = scratch.split_at_mut(self.planes());
        let len = outer.len() * inner.len() * TAPS;
        let mut levels: [&mut [f32]; 24] = Default::default();
        for (level, buffer) in levels.iter_mut().zip(rest.chunks_exact_mut(self.outer * self.inner * TAPS)) {
            *level = &mut buffer[..len];
        }
        let any = fold::tree(
            0..s.leaves.len(),
            &mut levels,
            &|l| s.leaves[l].is_empty(),
            &mut |l, into: &mut &mut [f32]| {
                for (o, to) in outer.clone().zip(into.chunks_exact_mut(inner.len() * TAPS)) {
                    let distance = plane(inner.len() * BLOCK);
                    for (q, sums) in planes.chunks_exact_mut(distance).take(s.size.planes()).enumerate() {
                        let from = &from[q * plane(s.inner * s.block) + inner.start * s.block * BLOCK..];
                        let by = &by[q * plane(s.outer * s.block) + o * s.block * BLOCK..];
                        s.products(inner.len(), s.leaves[l].clone(), from, by, sums, Start::Zero);
                    }
                    s.back(inner.len(), planes, distance, to);
                }
            },
            &|into, from| s.isa.add(into, from),
        );
        for (o, sums) in outer.zip(levels[0].chunks_exact_mut(inner.len() * TAPS)) {
            if !any {
                sums.fill(0.0);
            }
            let at = (o * s.inner + inner.start) * TAPS;
            // SAFETY: the weights between these blocks are the tile's alone.
            let to = unsafe { operands.floats_mut(Operand::ParameterGradient(0), at..at + inner.len() * TAPS) };
            to.copy_from_slice(sums);
        }
    }
}

/// The first stage of a fused weight gradient: sums of each leaf by itself, `[leaf that is not empty][weights]`. A tile is one
/// leaf and some outer blocks.
struct ByLeaf {
    shared: Shared,
    /// Leaves that are not empty.
    leaves: Vec<usize>,
    /// Outer blocks of a tile.
    blocks: usize,
}

impl ByLeaf {
    fn new(spec: &Gradient) -> ByLeaf {
        let shared = Shared::new(spec);
        let leaves: Vec<usize> = (0..spec.leaves).filter(|&l| !shared.leaves[l].is_empty()).collect();
        // Inputs are transformed again for each group of outer blocks.
        let groups = 8usize.div_ceil(leaves.len().max(1)).min(shared.outer.div_ceil(4));
        ByLeaf { blocks: shared.outer.div_ceil(groups), shared, leaves }
    }
    fn tiles(&self) -> usize {
        self.leaves.len() * self.shared.outer.div_ceil(self.blocks)
    }
    /// Floats of the planes' sums of one outer block.
    fn sums(&self) -> usize {
        self.shared.size.planes() * plane(self.shared.inner * BLOCK)
    }
    fn scratch(&self) -> usize {
        let s = &self.shared;
        s.planes(s.inner) + s.planes(self.blocks) + self.blocks * self.sums()
    }
    /// Floats of a leaf.
    fn len(&self) -> usize {
        self.shared.inner * self.shared.outer * TAPS
    }
    fn bytes(&self) -> usize {
        4 * self.leaves.len() * self.len()
    }
    fn work(&self) -> Work {
        let s = &self.shared;
        let points = s.input.grid.region.len() / s.input.grid.region.size(Axis::Channel).max(1);
        let read = 4 * points * (s.inner + s.outer) * BLOCK;
        Work { flops: s.flops(), bytes: (read + self.bytes()) as f64 }
    }
}

impl Kernel for ByLeaf {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let s = &self.shared;
        let (leaf, group) = (tile % self.leaves.len(), tile / self.leaves.len());
        let blocks = group * self.blocks..((group + 1) * self.blocks).min(s.outer);
        let tiles = s.leaves[self.leaves[leaf]].clone();
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let (from, rest) = scratch.split_at_mut(s.planes(s.inner));
        let (by, sums) = rest.split_at_mut(s.planes(self.blocks));
        let (p, r, t) = (plane(s.inner * s.block), plane(self.blocks * s.block), plane(s.inner * BLOCK));
        for first in tiles.clone().step_by(s.block) {
            let some = first..(first + s.block).min(tiles.end);
            // SAFETY: all planes of these tiles are in scratch.
            unsafe {
                for block in 0..s.inner {
                    s.input.transform(x, block, some.clone(), from[block * s.block * BLOCK..].as_mut_ptr(), p);
                }
                for (i, o) in blocks.clone().enumerate() {
                    s.gradient.transform(dy, o, some.clone(), by[i * s.block * BLOCK..].as_mut_ptr(), r);
                }
            }
            let start = if first == tiles.start { Start::Zero } else { Start::Held };
            for q in 0..s.size.planes() {
                for i in 0..blocks.len() {
                    let by = &by[q * r + i * s.block * BLOCK..];
                    let sums = &mut sums[i * self.sums() + q * t..][..t];
                    s.products(s.inner, 0..some.len(), &from[q * p..(q + 1) * p], by, sums, start);
                }
            }
        }
        for (o, sums) in blocks.zip(sums.chunks_exact(self.sums())) {
            let at = leaf * self.len() + o * s.inner * TAPS;
            // SAFETY: this leaf's weights of this block are the tile's alone.
            let to = unsafe { operands.floats_mut(s.sums, at..at + s.inner * TAPS) };
            s.back(s.inner, sums, t, to);
        }
    }
}
