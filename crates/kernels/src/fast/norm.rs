//! Normalisation: what batch norm and group norm share.
//!
//! Sums of strips become, in the layer's own stages, a few numbers for each channel (of the batch, or of each sample), with
//! which every element is scaled and shifted; the same once more backward.
//!
//! Always true
//! - Sums are taken in double precision, strip by strip; their bits depend on neither tiles nor the split of samples.
//! - Elements are seen from a centre next to the mean: x − centre is exact or nearly so however far the mean is from zero,
//!   and what the centre lacks of the mean is in the other coefficients.

use super::lines::{Line, Rows, Source, Target, output_gradient, points, put, wanted};
use super::strips::Strips;
use super::wide::{Plain, Wide};
use crate::{BLOCK, Geometry, Kernel, Make, Operand, Operands, Pass, Stage, Work};
use convoy_net::Axis;

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
        let forward = Forward::new(g, self);
        let width = points(forward.rows.columns());
        Stage {
            pass: Pass::Forward,
            reads: vec![Operand::Input(0), self.norms],
            writes: vec![Operand::Output],
            makes: vec![],
            tiles: forward.rows.tiles,
            scratch: forward.source.scratch(width) + forward.target.scratch(width),
            work: Work { flops: 3.0 * g.region.len() as f64, bytes: 8.0 * g.region.len() as f64 },
        }
    }

    /// The stage that sums gradients.
    pub fn gradient_statistics(&self, g: &Geometry) -> Stage {
        let sums = GradientStatistics::new(g, self);
        let width = g.region.size(Axis::Width);
        Stage {
            pass: Pass::GradientStatistics,
            reads: vec![Operand::Input(0), Operand::OutputGradient, self.norms],
            writes: vec![self.gradient_sums],
            makes: vec![make_sums(self.gradient_sums, &sums.strips, g)],
            tiles: sums.strips.tiles,
            scratch: sums.x.scratch(width) + sums.dy.scratch(width),
            work: Work { flops: 4.0 * g.region.len() as f64, bytes: 8.0 * g.region.len() as f64 },
        }
    }

    /// The stage that makes the gradient of the input.
    pub fn input_gradient(&self, g: &Geometry) -> Stage {
        let gradient = InputGradient::new(g, self);
        let (width, len) = (points(gradient.rows.columns()), gradient.rows.region.len() as f64);
        Stage {
            pass: Pass::InputGradient(0),
            reads: vec![Operand::Input(0), Operand::OutputGradient, self.norms, self.slopes],
            writes: vec![Operand::InputGradient(0)],
            makes: vec![],
            tiles: gradient.rows.tiles,
            scratch: gradient.x.scratch(width) + gradient.dy.scratch(width) + gradient.target.scratch(width),
            work: Work { flops: 5.0 * len, bytes: 12.0 * len },
        }
    }

    /// The kernel of one of these stages.
    pub fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Statistics => Box::new(Wide(Statistics::new(g, self))),
            Pass::Forward => Box::new(Wide(Forward::new(g, self))),
            Pass::GradientStatistics => Box::new(Wide(GradientStatistics::new(g, self))),
            Pass::InputGradient(0) => Box::new(Wide(InputGradient::new(g, self))),
            _ => unreachable!("bug: a norm has no {pass:?}"),
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

/// Sums of elements and of their squares.
struct Statistics {
    source: Source,
    strips: Strips,
    sums: Operand,
}

impl Statistics {
    fn new(g: &Geometry, keeps: &Keeps) -> Statistics {
        let source = Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel));
        Statistics { source, strips: Strips::new(g.output.shape, &g.region, 1), sums: keeps.sums }
    }
}

impl Plain for Statistics {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let x = operands.floats(Operand::Input(0));
        let columns = self.strips.columns();
        for strip in self.strips.of(tile) {
            let (mut sums, mut squares) = ([0f64; BLOCK], [0f64; BLOCK]);
            for (d, h) in self.strips.rows(strip) {
                let space = [(d, d + 1), (h, h + 1), columns];
                let view = self.source.view(x, strip.n, strip.block, space, scratch);
                moments(view.row(d, h, columns), &mut sums, &mut squares);
            }
            // SAFETY: these columns of this strip are this tile's alone.
            let into = unsafe { operands.doubles_mut(self.sums, self.strips.place(strip, COLUMNS)) };
            into[..BLOCK].copy_from_slice(&sums);
            into[BLOCK..].copy_from_slice(&squares);
        }
    }
}

/// Adds a row to the sums of its elements and of their squares.
#[inline(always)]
fn moments(x: &[Line], sums: &mut [f64; BLOCK], squares: &mut [f64; BLOCK]) {
    let (mut s, mut q) = (*sums, *squares);
    for line in x {
        for l in 0..BLOCK {
            let v = line[l] as f64;
            s[l] += v;
            q[l] += v * v;
        }
    }
    (*sums, *squares) = (s, q);
}

/// Normalises.
struct Forward {
    source: Source,
    target: Target,
    rows: Rows,
    norms: Operand,
    find: Find,
}

impl Forward {
    fn new(g: &Geometry, keeps: &Keeps) -> Forward {
        Forward {
            source: Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel)),
            target: Target::output(g),
            rows: Rows::new(&g.region, 2),
            norms: keeps.norms,
            find: Find::new(g, keeps.over),
        }
    }
}

impl Plain for Forward {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, norms) = (operands.floats(Operand::Input(0)), records::<Norm>(operands, self.norms));
        let columns = self.rows.columns();
        let (seen, filled) = scratch.split_at_mut(self.source.scratch(points(columns)));
        for row in self.rows.of(tile) {
            let view = self.source.view(x, row.n, row.block, row.space(columns), seen);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let y = self.target.open(operands, row, columns, filled);
                normalise(view.row(row.d, row.h, columns), &norms[self.find.record(row.n, row.block)], y);
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}

/// One row of the output.
#[inline(always)]
fn normalise(x: &[Line], norm: &Norm, y: &mut [Line]) {
    let Norm { centre, scale, shift, .. } = *norm;
    for (y, x) in y.iter_mut().zip(x) {
        for l in 0..BLOCK {
            y[l] = (x[l] - centre[l]) * scale[l] + shift[l];
        }
    }
}

/// Sums of the output's gradient, and of it times the elements as seen from the centre.
struct GradientStatistics {
    x: Source,
    dy: Source,
    strips: Strips,
    norms: Operand,
    sums: Operand,
    find: Find,
}

impl GradientStatistics {
    fn new(g: &Geometry, keeps: &Keeps) -> GradientStatistics {
        let channels = g.region.range(Axis::Channel);
        GradientStatistics {
            x: Source::new(&g.inputs[0].layout, channels),
            dy: Source::new(output_gradient(g), channels),
            strips: Strips::new(g.output.shape, &g.region, 2),
            norms: keeps.norms,
            sums: keeps.gradient_sums,
            find: Find::new(g, keeps.over),
        }
    }
}

impl Plain for GradientStatistics {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let norms = records::<Norm>(operands, self.norms);
        let columns = self.strips.columns();
        let (seen_x, seen_dy) = scratch.split_at_mut(self.x.scratch(points(columns)));
        for strip in self.strips.of(tile) {
            let norm = &norms[self.find.record(strip.n, strip.block)];
            let (mut sums, mut along) = ([0f64; BLOCK], [0f64; BLOCK]);
            for (d, h) in self.strips.rows(strip) {
                let space = [(d, d + 1), (h, h + 1), columns];
                let x = self.x.view(x, strip.n, strip.block, space, seen_x).row(d, h, columns);
                let dy = self.dy.view(dy, strip.n, strip.block, space, seen_dy).row(d, h, columns);
                gradient_moments(x, &norm.centre, dy, &mut sums, &mut along);
            }
            // SAFETY: these columns of this strip are this tile's alone.
            let into = unsafe { operands.doubles_mut(self.sums, self.strips.place(strip, COLUMNS)) };
            into[..BLOCK].copy_from_slice(&sums);
            into[BLOCK..].copy_from_slice(&along);
        }
    }
}

/// Adds a row to the sums of dy and of dy·(x − centre).
#[inline(always)]
fn gradient_moments(x: &[Line], centre: &Line, dy: &[Line], sums: &mut [f64; BLOCK], along: &mut [f64; BLOCK]) {
    let (mut s, mut a, centre) = (*sums, *along, *centre);
    for (x, dy) in x.iter().zip(dy) {
        for l in 0..BLOCK {
            let v = dy[l] as f64;
            s[l] += v;
            a[l] += v * (x[l] - centre[l]) as f64;
        }
    }
    (*sums, *along) = (s, a);
}

/// The gradient of the input.
struct InputGradient {
    x: Source,
    dy: Source,
    target: Target,
    rows: Rows,
    norms: Operand,
    slopes: Operand,
    find: Find,
}

impl InputGradient {
    fn new(g: &Geometry, keeps: &Keeps) -> InputGradient {
        let channels = g.region.range(Axis::Channel);
        InputGradient {
            x: Source::new(&g.inputs[0].layout, channels),
            dy: Source::new(output_gradient(g), channels),
            target: Target::input_gradient(g, 0),
            rows: Rows::new(&wanted(g, 0).1, 3),
            norms: keeps.norms,
            slopes: keeps.slopes,
            find: Find::new(g, keeps.over),
        }
    }
}

impl Plain for InputGradient {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let (norms, slopes) = (records::<Norm>(operands, self.norms), records::<Slope>(operands, self.slopes));
        let columns = self.rows.columns();
        let (seen_x, rest) = scratch.split_at_mut(self.x.scratch(points(columns)));
        let (seen_dy, filled) = rest.split_at_mut(self.dy.scratch(points(columns)));
        for row in self.rows.of(tile) {
            let record = self.find.record(row.n, row.block);
            let x = self.x.view(x, row.n, row.block, row.space(columns), seen_x).row(row.d, row.h, columns);
            let dy = self.dy.view(dy, row.n, row.block, row.space(columns), seen_dy).row(row.d, row.h, columns);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let dx = self.target.open(operands, row, columns, filled);
                input_gradient(x, &norms[record].centre, dy, &slopes[record], dx, self.target.add);
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}

/// One row of the gradient of the input.
#[inline(always)]
fn input_gradient(x: &[Line], centre: &Line, dy: &[Line], slope: &Slope, dx: &mut [Line], add: bool) {
    let (Slope { scale, along, shift }, centre) = (*slope, *centre);
    for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
        let line = std::array::from_fn(|l| dy[l] * scale[l] + ((x[l] - centre[l]) * along[l] + shift[l]));
        put(dx, &line, add);
    }
}
