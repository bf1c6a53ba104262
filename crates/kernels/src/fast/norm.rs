//! Normalisation: what batch norm and group norm share.
//!
//! Sums of strips become, in the layer's own stages, a few numbers for each channel (of the batch, or of each sample), with
//! which every element is scaled and shifted; the same once more backward. A second input may be added to what is
//! normalised, and an activation applied to the sum, in the same pass; backward works its slope out anew from the inputs.
//!
//! Always true
//! - Sums are taken in double precision, strip by strip; their bits depend on neither tiles nor the split of samples.
//! - Elements are seen from a centre next to the mean: x − centre is exact or nearly so however far the mean is from zero,
//!   and what the centre lacks of the mean is in the other coefficients.

use super::function::{Function, Identity, With, with};
use super::isa::isa;
use super::lines::{Line, Row, Rows, Source, Span, Store, Target, each, output_gradient, points, wanted, write};
use super::norm_rows::{Bits, ByVectors, Spread};
use super::strips::Strips;
use super::wide::{Plain, Wide};
use crate::{BLOCK, Geometry, Kernel, Make, Mode, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region, layers::Activation};
use std::ops::Range;

/// Doubles of a block in sums: two for each channel, the first ones together.
pub const COLUMNS: usize = 2 * BLOCK;

/// What forward needs of a block of channels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Norm {
    /// The mean in single precision.
    pub centre: Line,
    /// What the centre lacks of the mean.
    pub rest: Line,
    /// One over the deviation.
    pub inverse: Line,
    /// y = (x − centre)·scale + shift
    pub scale: Line,
    pub shift: Line,
}

impl Norm {
    /// Of nothing but filler.
    pub const ZERO: Norm = Norm {
        centre: [0.0; BLOCK],
        rest: [0.0; BLOCK],
        inverse: [0.0; BLOCK],
        scale: [0.0; BLOCK],
        shift: [0.0; BLOCK],
    };

    /// Of one channel.
    pub fn set(&mut self, lane: usize, mean: f64, inverse: f64, weight: f32, bias: f32) {
        let (centre, weight) = (mean as f32, weight as f64);
        let rest = mean - centre as f64;
        self.centre[lane] = centre;
        self.rest[lane] = rest as f32;
        self.inverse[lane] = inverse as f32;
        self.scale[lane] = (weight * inverse) as f32;
        self.shift[lane] = (bias as f64 - rest * weight * inverse) as f32;
    }
}

/// What the gradient of the input needs of a block of channels: dx = dy·scale + (x − centre)·along + shift.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slope {
    pub scale: Line,
    pub along: Line,
    pub shift: Line,
}

impl Slope {
    /// Of nothing but filler.
    pub const ZERO: Slope = Slope { scale: [0.0; BLOCK], along: [0.0; BLOCK], shift: [0.0; BLOCK] };

    /// Of one channel whose gradient loses `mean` and `along` times the normalised elements, as the statistics move with
    /// the elements: dx = dy·scale − (mean + along·(x − centre − rest)·inverse)·inverse.
    pub fn set(&mut self, lane: usize, norm: &Norm, mean: f64, along: f64) {
        let [rest, inverse] = [norm.rest[lane], norm.inverse[lane]].map(|v| v as f64);
        self.scale[lane] = norm.scale[lane];
        self.along[lane] = (-along * inverse * inverse) as f32;
        self.shift[lane] = (rest * along * inverse * inverse - mean * inverse) as f32;
    }
}

/// Records that an earlier stage wrote.
pub fn records<'a, T: Copy>(operands: &Operands<'a>, operand: Operand) -> &'a [T] {
    let floats = operands.floats(operand);
    // SAFETY: `T` is made of floats alone, and the slice holds as many of it as fit.
    unsafe { std::slice::from_raw_parts(floats.as_ptr() as *const T, size_of_val(floats) / size_of::<T>()) }
}

/// Records to be written, from number `first` on.
///
/// # Safety
/// Nobody else touches them meanwhile.
#[allow(clippy::mut_from_ref)]
pub unsafe fn records_mut<'a, T: Copy>(
    operands: &Operands<'a>,
    operand: Operand,
    first: usize,
    count: usize,
) -> &'a mut [T] {
    let floats = size_of::<T>() / 4;
    // SAFETY: as the caller promises.
    let floats = unsafe { operands.floats_mut(operand, first * floats..(first + count) * floats) };
    // SAFETY: `T` is made of floats alone, and the slice holds `count` of it.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr() as *mut T, count) }
}

/// Whose elements are normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// A channel of the whole batch: one record a block.
    Batch,
    /// Something within a sample: one record a sample and block.
    Sample,
}

/// Where a layer that normalises keeps its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Keeps {
    pub over: Over,
    /// Sums of elements and of their squares, by sample, strip and block: partial sums, or internal.
    pub sums: Operand,
    pub norms: Operand,
    /// Sums of the output's gradient, and of it times the elements as seen from the centre.
    pub gradient_sums: Operand,
    pub slopes: Operand,
    /// What of a sum with another input a clamp let pass.
    pub passed: Operand,
    /// What is applied last.
    pub activation: Option<Activation>,
}

impl Keeps {
    /// Records of all blocks, and samples where each has its own.
    pub fn records(&self, g: &Geometry) -> usize {
        let blocks = g.region.size(Axis::Channel).div_ceil(BLOCK);
        if self.over == Over::Batch { blocks } else { blocks * g.region.size(Axis::Sample) }
    }

    /// The stage that sums elements and their squares.
    pub fn statistics(&self, g: &Geometry) -> Stage {
        let sums = Statistics::new(g, self);
        Stage {
            pass: Pass::Statistics,
            reads: vec![Operand::Input(0)],
            writes: vec![self.sums],
            makes: vec![make_sums(self.sums, &sums.strips, g)],
            tiles: sums.strips.tiles,
            scratch: sums.source.scratch(g.region.size(Axis::Width)),
            work: Work { flops: 3.0 * g.region.len() as f64, bytes: 4.0 * g.region.len() as f64 },
        }
    }

    /// The stage that normalises.
    pub fn forward(&self, g: &Geometry) -> Stage {
        let forward = Forward::new(Identity, g, self);
        let width = points(forward.rows.columns());
        let (inputs, passed) = (g.inputs.len(), self.notes(g));
        Stage {
            pass: Pass::Forward,
            reads: (0..inputs).map(Operand::Input).chain([self.norms]).collect(),
            writes: [Operand::Output].into_iter().chain(passed.map(|passed| passed.operand)).collect(),
            makes: passed.map(|passed| passed.make()).into_iter().collect(),
            tiles: forward.rows.tiles,
            scratch: forward.inputs.scratch(width) + forward.target.scratch(width),
            work: Work {
                flops: ((2 + inputs) * g.region.len()) as f64,
                bytes: (4 * (1 + inputs) * g.region.len()) as f64,
            },
        }
    }

    /// The stage that sums gradients.
    pub fn gradient_statistics(&self, g: &Geometry) -> Stage {
        let sums = GradientStatistics::new(Identity, g, self);
        let width = g.region.size(Axis::Width);
        let inputs = self.inputs_of_slope(g);
        Stage {
            pass: Pass::GradientStatistics,
            reads: self.reads_of_slope(g).into_iter().chain([self.norms]).collect(),
            writes: vec![self.gradient_sums],
            makes: vec![make_sums(self.gradient_sums, &sums.strips, g)],
            tiles: sums.strips.tiles,
            scratch: sums.inputs.scratch(width) + sums.dy.scratch(width),
            work: Work { flops: 4.0 * g.region.len() as f64, bytes: (4 * (1 + inputs) * g.region.len()) as f64 },
        }
    }

    /// The stage that makes the gradients of the inputs.
    pub fn input_gradient(&self, g: &Geometry) -> Stage {
        let gradient = InputGradient::new(Identity, g, self);
        let (width, len) = (points(gradient.rows.columns()), gradient.rows.region.len());
        let (inputs, targets) = (self.inputs_of_slope(g), gradient.targets.iter().flatten().count());
        let targets_scratch: usize = gradient.targets.iter().flatten().map(|t| t.scratch(width)).sum();
        let written = gradient.targets.iter().flatten().map(|target| target.operand);
        Stage {
            pass: Pass::InputGradient(0),
            reads: self.reads_of_slope(g).into_iter().chain([self.norms, self.slopes]).collect(),
            writes: written.collect(),
            makes: vec![],
            tiles: gradient.rows.tiles,
            scratch: gradient.inputs.scratch(width) + gradient.dy.scratch(width) + targets_scratch,
            work: Work { flops: 5.0 * len as f64, bytes: (4 * (1 + inputs + targets) * len) as f64 },
        }
    }

    /// Where forward notes what passed: in training, where the slope of a clamp depends on another input.
    fn notes(&self, g: &Geometry) -> Option<Passed> {
        let clamps = self.activation.is_some_and(|activation| activation.clamp().is_some());
        (g.mode == Mode::Train && g.inputs.len() > 1 && clamps).then(|| Passed::new(self.passed, g))
    }

    /// How many inputs backward reads: what was added matters to the slope of an activation alone, unless what passed is noted.
    fn inputs_of_slope(&self, g: &Geometry) -> usize {
        if self.activation.is_some() && self.notes(g).is_none() { g.inputs.len() } else { 1 }
    }

    fn reads_of_slope(&self, g: &Geometry) -> Vec<Operand> {
        let passed = self.notes(g).map(|passed| passed.operand);
        let inputs = (0..self.inputs_of_slope(g)).map(Operand::Input);
        inputs.chain(passed).chain([Operand::OutputGradient]).collect()
    }

    /// The kernel of one of these stages.
    pub fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        if pass == Pass::Statistics {
            return Box::new(Wide(Statistics::new(g, self)));
        }
        with(self.activation, Prepare { keeps: self, pass, g })
    }
}

struct Prepare<'a> {
    keeps: &'a Keeps,
    pass: Pass,
    g: &'a Geometry,
}

impl With for Prepare<'_> {
    type Result = Box<dyn Kernel>;
    fn with(self, f: impl Function) -> Box<dyn Kernel> {
        match self.pass {
            Pass::Forward => Box::new(Wide(Forward::new(f, self.g, self.keeps))),
            Pass::GradientStatistics => Box::new(Wide(GradientStatistics::new(f, self.g, self.keeps))),
            Pass::InputGradient(0) => Box::new(Wide(InputGradient::new(f, self.g, self.keeps))),
            pass => unreachable!("bug: a norm has no {pass:?}"),
        }
    }
}

fn make_sums(operand: Operand, strips: &Strips, g: &Geometry) -> Make {
    let (strips, columns) = (strips.count, strips.blocks * COLUMNS);
    match operand {
        Operand::Partial(number) => Make::Partial { number, strips, columns },
        Operand::Internal(number) => {
            Make::Internal { number, bytes: g.region.size(Axis::Sample) * strips * columns * size_of::<f64>() }
        }
        _ => unreachable!("bug: sums in {operand:?}"),
    }
}

/// Which record a block of a sample has.
#[derive(Clone, Copy)]
struct Find {
    over: Over,
    first: isize,
    blocks: usize,
}

impl Find {
    fn new(g: &Geometry, over: Over) -> Find {
        Find { over, first: g.region.start[0], blocks: g.region.size(Axis::Channel).div_ceil(BLOCK) }
    }

    #[inline(always)]
    fn record(&self, n: isize, block: usize) -> usize {
        match self.over {
            Over::Batch => block,
            Over::Sample => (n - self.first) as usize * self.blocks + block,
        }
    }
}

/// What a clamp let pass of a sum with another input, so that backward need not read that: bits of lines, `[n][d][h][block][w]`.
#[derive(Clone, Copy)]
struct Passed {
    operand: Operand,
    region: Region,
}

impl Passed {
    fn new(operand: Operand, g: &Geometry) -> Passed {
        Passed { operand, region: g.region }
    }

    fn blocks(&self) -> usize {
        self.region.size(Axis::Channel).div_ceil(BLOCK)
    }

    fn make(&self) -> Make {
        let Operand::Internal(number) = self.operand else { unreachable!("bug: bits in {:?}", self.operand) };
        let points = self.region.len() / self.region.size(Axis::Channel).max(1);
        Make::Internal { number, bytes: points * self.blocks() * size_of::<Bits>() }
    }

    /// The bits of a row.
    fn row(&self, operands: &Operands, row: Row) -> *mut [Bits] {
        let [_, _, depths, heights, width] = self.region.shape().0;
        let [n, _, d, h, _] = self.region.start;
        let [n, d, h] = [row.n - n, row.d - d, row.h - h].map(|i| i as usize);
        let first = (((n * depths + d) * heights + h) * self.blocks() + row.block) * width;
        let slot = operands.slot(self.operand);
        assert!((first + width) * size_of::<Bits>() <= slot.bytes, "bug: no bits for {row:?}");
        std::ptr::slice_from_raw_parts_mut((slot.data as *mut Bits).wrapping_add(first), width)
    }
}

/// Sums of elements and of their squares.
struct Statistics {
    source: Source,
    strips: Strips,
    sums: Operand,
    /// Of the lines of a row, one after the other.
    offsets: Vec<u32>,
}

impl Statistics {
    fn new(g: &Geometry, keeps: &Keeps) -> Statistics {
        let source = Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel));
        let offsets = (0..g.region.size(Axis::Width)).map(|point| (point * BLOCK) as u32).collect();
        Statistics { source, strips: Strips::new(g.output.shape, &g.region, 1), sums: keeps.sums, offsets }
    }
}

impl Plain for Statistics {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let x = operands.floats(Operand::Input(0));
        let columns = self.strips.columns();
        for (strip, blocks) in self.strips.backwards(tile) {
            // SAFETY: these columns of this strip are this tile's alone.
            let all = unsafe { sums_of(operands, self.sums, self.strips.places(strip, blocks, COLUMNS)) };
            for (d, h) in self.strips.rows(strip) {
                for (block, sums) in (strip.block..).zip(all.iter_mut()) {
                    let space = [(d, d + 1), (h, h + 1), columns];
                    let view = self.source.view(x, strip.n, block, space, scratch);
                    let row = view.row(d, h, columns);
                    let lines = Spread { from: row.as_ptr() as *const f32, offsets: &self.offsets[..row.len()] };
                    // SAFETY: the table is this processor's; these are the row's lines.
                    unsafe { (isa().norm.moments)(&lines, None, sums) };
                }
            }
        }
    }
}

/// Sums of blocks, from zero.
///
/// # Safety
/// Nobody else touches them meanwhile.
#[allow(clippy::mut_from_ref)]
pub(super) unsafe fn sums_of<'a>(
    operands: &Operands<'a>,
    sums: Operand,
    places: Range<usize>,
) -> &'a mut [[[f64; BLOCK]; 2]] {
    // SAFETY: the caller's promise.
    let sums = unsafe { operands.doubles_mut(sums, places) };
    sums.fill(0.0);
    sums.as_chunks_mut().0.as_chunks_mut().0
}

/// What is normalised, and what is added to it.
struct Inputs {
    x: Source,
    added: Option<Source>,
}

impl Inputs {
    /// The first `count` inputs.
    fn new(g: &Geometry, count: usize) -> Inputs {
        let source = |i: usize| Source::new(&g.inputs[i].layout, g.region.range(Axis::Channel));
        Inputs { x: source(0), added: (count > 1).then(|| source(1)) }
    }

    /// Floats of scratch for rows of so many points.
    fn scratch(&self, points: usize) -> usize {
        self.x.scratch(points) + self.added.as_ref().map_or(0, |a| a.scratch(points))
    }

    /// A row of each.
    #[inline(always)]
    fn rows<'a>(&self, operands: &Operands<'a>, row: Row, columns: Span, scratch: &'a mut [f32]) -> RowsOf<'a> {
        let (seen_x, seen) = scratch.split_at_mut(self.x.scratch(points(columns)));
        let lines = |source: &Source, i: usize, seen: &'a mut [f32]| {
            let all = operands.floats(Operand::Input(i));
            source.view(all, row.n, row.block, row.space(columns), seen).row(row.d, row.h, columns)
        };
        RowsOf { x: lines(&self.x, 0, seen_x), added: self.added.as_ref().map(|added| lines(added, 1, seen)) }
    }
}

/// A row of what is normalised, and of what is added to it.
#[derive(Clone, Copy)]
struct RowsOf<'a> {
    x: &'a [Line],
    added: Option<&'a [Line]>,
}

/// What the activation sees: a point normalised, and what was added to it.
#[inline(always)]
fn normalised(x: &Line, added: Option<&Line>, norm: &Norm) -> Line {
    let z = each(|l| (x[l] - norm.centre[l]) * norm.scale[l] + norm.shift[l]);
    match added {
        Some(added) => each(|l| z[l] + added[l]),
        None => z,
    }
}

/// The output's gradient of a point before the activation.
#[inline(always)]
fn before<F: Function>(f: F, x: &Line, added: Option<&Line>, norm: &Norm, dy: &Line) -> Line {
    let z = normalised(x, added, norm);
    each(|l| f.slope_at(z[l]) * dy[l])
}

/// Normalises.
struct Forward<F> {
    f: F,
    by_vectors: Option<ByVectors>,
    passed: Option<Passed>,
    inputs: Inputs,
    target: Target,
    rows: Rows,
    norms: Operand,
    find: Find,
}

impl<F> Forward<F> {
    fn new(f: F, g: &Geometry, keeps: &Keeps) -> Forward<F> {
        Forward {
            f,
            by_vectors: ByVectors::new(keeps.activation),
            passed: keeps.notes(g),
            inputs: Inputs::new(g, g.inputs.len()),
            target: Target::output(g).streamed(),
            rows: Rows::new(&g.region, 1 + g.inputs.len()),
            norms: keeps.norms,
            find: Find::new(g, keeps.over),
        }
    }
}

impl<F: Function> Plain for Forward<F> {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let norms = records::<Norm>(operands, self.norms);
        let (columns, store) = (self.rows.columns(), self.target.store());
        let (seen, filled) = scratch.split_at_mut(self.inputs.scratch(points(columns)));
        for row in self.rows.of(tile) {
            let norm = &norms[self.find.record(row.n, row.block)];
            let inputs = self.inputs.rows(operands, row, columns, seen);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let y = self.target.open(operands, row, columns, filled);
                match (self.by_vectors, inputs.added) {
                    (Some(by_vectors), _) => {
                        let passed = self.passed.map(|passed| &mut *passed.row(operands, row));
                        by_vectors.forward(&by_vectors.row(inputs.x, norm), inputs.added, passed, y, store)
                    }
                    (None, Some(added)) => {
                        normalise(self.f, inputs.x.iter().zip(added.iter().map(Some)), norm, y, store)
                    }
                    (None, None) => normalise(self.f, inputs.x.iter().map(|x| (x, None)), norm, y, store),
                }
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}

/// One row of the output.
#[inline(always)]
pub(super) fn normalise<'a, F: Function>(
    f: F,
    points: impl Iterator<Item = (&'a Line, Option<&'a Line>)>,
    norm: &Norm,
    y: &mut [Line],
    store: Store,
) {
    let norm = *norm;
    for (y, (x, added)) in y.iter_mut().zip(points) {
        let z = normalised(x, added, &norm);
        write(y, &each(|l| f.value(z[l])), store);
    }
}

/// Sums of the output's gradient, and of it times the elements as seen from the centre.
struct GradientStatistics<F> {
    f: F,
    by_vectors: Option<ByVectors>,
    passed: Option<Passed>,
    inputs: Inputs,
    dy: Source,
    strips: Strips,
    norms: Operand,
    sums: Operand,
    find: Find,
}

impl<F> GradientStatistics<F> {
    fn new(f: F, g: &Geometry, keeps: &Keeps) -> GradientStatistics<F> {
        let inputs = keeps.inputs_of_slope(g);
        GradientStatistics {
            f,
            by_vectors: ByVectors::new(keeps.activation),
            passed: keeps.notes(g),
            inputs: Inputs::new(g, inputs),
            dy: Source::new(output_gradient(g), g.region.range(Axis::Channel)),
            strips: Strips::new(g.output.shape, &g.region, 1 + inputs),
            norms: keeps.norms,
            sums: keeps.gradient_sums,
            find: Find::new(g, keeps.over),
        }
    }
}

impl<F: Function> Plain for GradientStatistics<F> {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let dy = operands.floats(Operand::OutputGradient);
        let norms = records::<Norm>(operands, self.norms);
        let columns = self.strips.columns();
        let (seen, seen_dy) = scratch.split_at_mut(self.inputs.scratch(points(columns)));
        for (strip, blocks) in self.strips.backwards(tile) {
            // SAFETY: these columns of this strip are this tile's alone.
            let all = unsafe { sums_of(operands, self.sums, self.strips.places(strip, blocks, COLUMNS)) };
            for (d, h) in self.strips.rows(strip) {
                for (block, sums) in (strip.block..).zip(all.iter_mut()) {
                    let norm = &norms[self.find.record(strip.n, block)];
                    let row = Row { n: strip.n, d, h, block, number: 0 };
                    let inputs = self.inputs.rows(operands, row, columns, seen);
                    let dy = self.dy.view(dy, row.n, row.block, row.space(columns), seen_dy).row(d, h, columns);
                    match (self.by_vectors, inputs.added) {
                        (Some(by_vectors), _) => {
                            // SAFETY: forward wrote these bits, and nobody does now.
                            let passed = self.passed.map(|passed| unsafe { &*passed.row(operands, row) });
                            by_vectors.gradient_sums(&by_vectors.row(inputs.x, norm), passed, dy, sums)
                        }
                        (None, Some(added)) => {
                            gradient_moments(self.f, inputs.x.iter().zip(added.iter().map(Some)), norm, dy, sums)
                        }
                        (None, None) => gradient_moments(self.f, inputs.x.iter().map(|x| (x, None)), norm, dy, sums),
                    }
                }
            }
        }
    }
}

/// Adds a row to the sums of dy and of dy·(x − centre).
#[inline(always)]
pub(super) fn gradient_moments<'a, F: Function>(
    f: F,
    points: impl Iterator<Item = (&'a Line, Option<&'a Line>)>,
    norm: &Norm,
    dy: &[Line],
    sums: &mut [[f64; BLOCK]; 2],
) {
    let ([mut s, mut a], norm) = (*sums, *norm);
    for (dy, (x, added)) in dy.iter().zip(points) {
        let g = before(f, x, added, &norm, dy);
        for l in 0..BLOCK {
            let v = g[l] as f64;
            s[l] += v;
            a[l] += v * (x[l] - norm.centre[l]) as f64;
        }
    }
    *sums = [s, a];
}

/// The gradients of the inputs.
struct InputGradient<F> {
    f: F,
    by_vectors: Option<ByVectors>,
    passed: Option<Passed>,
    inputs: Inputs,
    dy: Source,
    /// Of what is normalised and of what is added, where wanted.
    targets: [Option<Target>; 2],
    rows: Rows,
    norms: Operand,
    slopes: Operand,
    find: Find,
}

impl<F> InputGradient<F> {
    fn new(f: F, g: &Geometry, keeps: &Keeps) -> InputGradient<F> {
        let wants = |i: usize| g.input_gradients.get(i).is_some_and(|wanted| wanted.is_some());
        for i in (0..2).filter(|&i| wants(i) && !g.region.is_empty()) {
            assert_eq!(wanted(g, i).1, g.region, "bug: a norm's gradients are those of the points it computes");
        }
        let targets = [0, 1].map(|i| wants(i).then(|| Target::input_gradient(g, i).streamed()));
        let inputs = keeps.inputs_of_slope(g);
        InputGradient {
            f,
            by_vectors: ByVectors::new(keeps.activation),
            passed: keeps.notes(g),
            inputs: Inputs::new(g, inputs),
            dy: Source::new(output_gradient(g), g.region.range(Axis::Channel)),
            rows: Rows::new(&g.region, 1 + inputs + targets.iter().flatten().count()),
            targets,
            norms: keeps.norms,
            slopes: keeps.slopes,
            find: Find::new(g, keeps.over),
        }
    }
}

impl<F: Function> Plain for InputGradient<F> {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let dy = operands.floats(Operand::OutputGradient);
        let (norms, slopes) = (records::<Norm>(operands, self.norms), records::<Slope>(operands, self.slopes));
        let columns = self.rows.columns();
        let width = points(columns);
        let (seen, rest) = scratch.split_at_mut(self.inputs.scratch(width));
        let (seen_dy, rest) = rest.split_at_mut(self.dy.scratch(width));
        let (filled, filled_added) = rest.split_at_mut(self.targets[0].as_ref().map_or(0, |t| t.scratch(width)));
        for row in self.rows.of(tile) {
            let record = self.find.record(row.n, row.block);
            let (norm, slope) = (&norms[record], &slopes[record]);
            let inputs = self.inputs.rows(operands, row, columns, seen);
            let dy = self.dy.view(dy, row.n, row.block, row.space(columns), seen_dy).row(row.d, row.h, columns);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                for (i, target) in self.targets.iter().enumerate() {
                    let Some(target) = target else { continue };
                    let filled = if i == 0 { &mut *filled } else { &mut *filled_added };
                    let dx = target.open(operands, row, columns, filled);
                    let slope = (i == 0).then_some(slope);
                    match (self.by_vectors, inputs.added) {
                        (Some(by_vectors), _) => {
                            let passed = self.passed.map(|passed| &*passed.row(operands, row));
                            let row = by_vectors.row(inputs.x, norm);
                            by_vectors.input_gradient(&row, passed, dy, slope, dx, target.store())
                        }
                        (None, Some(added)) => {
                            let points = inputs.x.iter().zip(added.iter().map(Some));
                            input_gradient(self.f, points, norm, dy, slope, dx, target.store())
                        }
                        (None, None) => {
                            let points = inputs.x.iter().map(|x| (x, None));
                            input_gradient(self.f, points, norm, dy, slope, dx, target.store())
                        }
                    }
                    target.close(operands, row, columns, filled);
                }
            }
        }
    }
}

/// One row of the gradient of what is normalised; without a slope, of what is added to it. The rows read stay in cache from
/// one to the other.
#[inline(always)]
pub(super) fn input_gradient<'a, F: Function>(
    f: F,
    points: impl Iterator<Item = (&'a Line, Option<&'a Line>)>,
    norm: &Norm,
    dy: &[Line],
    slope: Option<&Slope>,
    dx: &mut [Line],
    store: Store,
) {
    let norm = *norm;
    let all = dx.iter_mut().zip(dy).zip(points);
    match slope.copied() {
        Some(Slope { scale, along, shift }) => {
            for ((dx, dy), (x, added)) in all {
                let g = before(f, x, added, &norm, dy);
                write(dx, &each(|l| g[l] * scale[l] + ((x[l] - norm.centre[l]) * along[l] + shift[l])), store);
            }
        }
        None => all.for_each(|((dx, dy), (x, added))| write(dx, &before(f, x, added, &norm, dy), store)),
    }
}
