//! Batch norm. Sums over the global batch become a few numbers a channel, with which every element is scaled and shifted.
//!
//! Always true
//! - Sums are taken in double precision, strip by strip; their bits depend on neither tiles nor the split of samples.
//! - Elements are seen from a centre next to the channel's mean: x − centre is exact or nearly so however far the mean is
//!   from zero, and what the centre lacks of the mean is in the other coefficients.
//!
//! Twin: `reference/batch_norm.rs`.

use super::lines::{Line, Rows, Source, Target, output_gradient, points, put, wanted};
use super::strips::Strips;
use super::wide::{Plain, Wide};
use super::{Fast, Packing};
use crate::{BLOCK, Geometry, Kernel, Make, Mode, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, layers::BatchNorm};

const WEIGHT: usize = 0;
const BIAS: usize = 1;
const RUNNING_MEAN: usize = 2;
const RUNNING_VAR: usize = 3;

/// Doubles of a block in partial sums and sums: two for each channel, the first ones together.
const COLUMNS: usize = 2 * BLOCK;

/// What forward needs of a block of channels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Norm {
    /// The mean in single precision.
    centre: Line,
    /// What the centre lacks of the mean.
    rest: Line,
    /// One over the deviation.
    inverse: Line,
    /// y = (x − centre)·scale + shift
    scale: Line,
    shift: Line,
}

/// What the gradient of the input needs of a block of channels: dx = dy·scale + (x − centre)·along + shift.
#[repr(C)]
#[derive(Clone, Copy)]
struct Slope {
    scale: Line,
    along: Line,
    shift: Line,
}

impl Fast for BatchNorm {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let blocks = g.region.size(Axis::Channel).div_ceil(BLOCK);
        let parameter = Operand::Parameter;
        let mut coefficients = Stage {
            pass: Pass::Coefficients,
            reads: vec![parameter(WEIGHT), parameter(BIAS), parameter(RUNNING_MEAN), parameter(RUNNING_VAR)],
            writes: vec![Operand::Internal(0)],
            makes: vec![Make::Internal { number: 0, bytes: blocks * size_of::<Norm>() }],
            tiles: 1,
            scratch: 0,
            work: Work { flops: (20 * blocks * BLOCK) as f64, bytes: (blocks * size_of::<Norm>()) as f64 },
        };
        let normalise = Forward::new(g);
        let forward = Stage {
            pass: Pass::Forward,
            reads: vec![Operand::Input(0), Operand::Internal(0)],
            writes: vec![Operand::Output],
            makes: vec![],
            tiles: normalise.rows.tiles,
            scratch: normalise.source.scratch(points(normalise.rows.columns()))
                + normalise.target.scratch(points(normalise.rows.columns())),
            work: Work { flops: 3.0 * g.region.len() as f64, bytes: 8.0 * g.region.len() as f64 },
        };
        if g.mode == Mode::Evaluate {
            return vec![coefficients, forward];
        }
        coefficients.reads.push(Operand::Sum(0));
        coefficients.writes.extend([parameter(RUNNING_MEAN), parameter(RUNNING_VAR)]);
        let sums = Statistics::new(g);
        let statistics = Stage {
            pass: Pass::Statistics,
            reads: vec![Operand::Input(0)],
            writes: vec![Operand::Partial(0)],
            makes: vec![Make::Partial { number: 0, strips: sums.strips.count, columns: blocks * COLUMNS }],
            tiles: sums.strips.tiles,
            scratch: sums.source.scratch(g.region.size(Axis::Width)),
            work: Work { flops: 3.0 * g.region.len() as f64, bytes: 4.0 * g.region.len() as f64 },
        };
        vec![statistics, coefficients, forward]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        let blocks = g.region.size(Axis::Channel).div_ceil(BLOCK);
        let sums = GradientStatistics::new(g);
        let width = g.region.size(Axis::Width);
        let mut stages = vec![
            Stage {
                pass: Pass::GradientStatistics,
                reads: vec![Operand::Input(0), Operand::OutputGradient, Operand::Internal(0)],
                writes: vec![Operand::Partial(1)],
                makes: vec![Make::Partial { number: 1, strips: sums.strips.count, columns: blocks * COLUMNS }],
                tiles: sums.strips.tiles,
                scratch: sums.x.scratch(width) + sums.dy.scratch(width),
                work: Work { flops: 4.0 * g.region.len() as f64, bytes: 8.0 * g.region.len() as f64 },
            },
            Stage {
                pass: Pass::GradientCoefficients,
                reads: vec![Operand::Sum(1), Operand::Internal(0)],
                writes: vec![
                    Operand::ParameterGradient(WEIGHT),
                    Operand::ParameterGradient(BIAS),
                    Operand::Internal(1),
                ],
                makes: vec![Make::Internal { number: 1, bytes: blocks * size_of::<Slope>() }],
                tiles: 1,
                scratch: 0,
                work: Work { flops: (20 * blocks * BLOCK) as f64, bytes: (blocks * size_of::<Slope>()) as f64 },
            },
        ];
        if g.input_gradients[0].is_some() {
            let gradient = InputGradient::new(g);
            let width = points(gradient.rows.columns());
            stages.push(Stage {
                pass: Pass::InputGradient(0),
                reads: vec![Operand::Input(0), Operand::OutputGradient, Operand::Internal(0), Operand::Internal(1)],
                writes: vec![Operand::InputGradient(0)],
                makes: vec![],
                tiles: gradient.rows.tiles,
                scratch: gradient.x.scratch(width) + gradient.dy.scratch(width) + gradient.target.scratch(width),
                work: Work {
                    flops: 5.0 * gradient.rows.region.len() as f64,
                    bytes: 12.0 * gradient.rows.region.len() as f64,
                },
            });
        }
        stages
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        let count = (g.output.shape.len() / g.output.shape.channels()) as f64;
        let blocks = g.region.size(Axis::Channel).div_ceil(BLOCK);
        match pass {
            Pass::Statistics => Box::new(Wide(Statistics::new(g))),
            Pass::Coefficients => Box::new(Coefficients { layer: *self, blocks, count, mode: g.mode }),
            Pass::Forward => Box::new(Wide(Forward::new(g))),
            Pass::GradientStatistics => Box::new(Wide(GradientStatistics::new(g))),
            Pass::GradientCoefficients => Box::new(GradientCoefficients { blocks, count }),
            Pass::InputGradient(0) => Box::new(Wide(InputGradient::new(g))),
            _ => unreachable!("bug: batch norm has no {pass:?}"),
        }
    }

    fn packing(&self, _: usize, g: &Geometry) -> Packing {
        Packing::of_channels(g.region.size(Axis::Channel))
    }
}

/// Sums of elements and of their squares.
struct Statistics {
    source: Source,
    strips: Strips,
}

impl Statistics {
    fn new(g: &Geometry) -> Statistics {
        let source = Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel));
        Statistics { source, strips: Strips::new(g.output.shape, &g.region, 1) }
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
            let partial = unsafe { operands.doubles_mut(Operand::Partial(0), self.strips.place(strip, COLUMNS)) };
            partial[..BLOCK].copy_from_slice(&sums);
            partial[BLOCK..].copy_from_slice(&squares);
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

/// From sums (or, in evaluation, the running statistics) to what forward needs.
struct Coefficients {
    layer: BatchNorm,
    blocks: usize,
    /// Elements of a channel of the global batch.
    count: f64,
    mode: Mode,
}

impl Coefficients {
    /// Mean and biased variance of a channel; in training the running ones move.
    fn statistics(&self, c: usize, operands: &Operands) -> (f64, f64) {
        if self.mode == Mode::Evaluate {
            let read = |number: usize| operands.floats(Operand::Parameter(number))[c] as f64;
            return (read(RUNNING_MEAN), read(RUNNING_VAR));
        }
        let sums = operands.doubles(Operand::Sum(0));
        let at = c / BLOCK * COLUMNS + c % BLOCK;
        let mean = sums[at] / self.count;
        // Rounding may leave a constant channel a variance below zero.
        let variance = (sums[at + BLOCK] / self.count - mean * mean).max(0.0);
        // A single value has no unbiased variance: the biased one stands in.
        let unbiased = variance * self.count / (self.count - 1.0).max(1.0);
        let momentum = self.layer.momentum as f64;
        for (number, newest) in [(RUNNING_MEAN, mean), (RUNNING_VAR, unbiased)] {
            // SAFETY: one tile does all channels.
            let running = unsafe { &mut operands.floats_mut(Operand::Parameter(number), c..c + 1)[0] };
            *running = ((1.0 - momentum) * *running as f64 + momentum * newest) as f32;
        }
        (mean, variance)
    }
}

impl Kernel for Coefficients {
    fn run(&self, _: usize, operands: &Operands, _: &mut [f32]) {
        let (weight, bias) = (operands.floats(Operand::Parameter(WEIGHT)), operands.floats(Operand::Parameter(BIAS)));
        // SAFETY: one tile does all channels.
        let norms = unsafe { records_mut::<Norm>(operands, 0, self.blocks) };
        for c in 0..self.blocks * BLOCK {
            let (mean, variance) = self.statistics(c, operands);
            let inverse = 1.0 / (variance + self.layer.epsilon as f64).sqrt();
            let centre = mean as f32;
            let rest = mean - centre as f64;
            let (norm, l) = (&mut norms[c / BLOCK], c % BLOCK);
            norm.centre[l] = centre;
            norm.rest[l] = rest as f32;
            norm.inverse[l] = inverse as f32;
            norm.scale[l] = (weight[c] as f64 * inverse) as f32;
            norm.shift[l] = (bias[c] as f64 - rest * weight[c] as f64 * inverse) as f32;
        }
    }
}

/// Records that one stage wrote, one a block.
fn records<'a, T: Copy>(operands: &Operands<'a>, number: usize) -> &'a [T] {
    let floats = operands.floats(Operand::Internal(number));
    // SAFETY: `T` is made of floats alone, and the slice holds as many of it as fit.
    unsafe { std::slice::from_raw_parts(floats.as_ptr() as *const T, size_of_val(floats) / size_of::<T>()) }
}

/// Records to be written, one a block.
///
/// # Safety
/// Nobody else touches them meanwhile.
#[allow(clippy::mut_from_ref)]
unsafe fn records_mut<'a, T: Copy>(operands: &Operands<'a>, number: usize, count: usize) -> &'a mut [T] {
    let floats = count * size_of::<T>() / 4;
    // SAFETY: as the caller promises.
    let floats = unsafe { operands.floats_mut(Operand::Internal(number), 0..floats) };
    // SAFETY: `T` is made of floats alone, and the slice holds `count` of it.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr() as *mut T, count) }
}

/// Normalises.
struct Forward {
    source: Source,
    target: Target,
    rows: Rows,
}

impl Forward {
    fn new(g: &Geometry) -> Forward {
        Forward {
            source: Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel)),
            target: Target::output(g),
            rows: Rows::new(&g.region, 2),
        }
    }
}

impl Plain for Forward {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, norms) = (operands.floats(Operand::Input(0)), records::<Norm>(operands, 0));
        let columns = self.rows.columns();
        let (seen, filled) = scratch.split_at_mut(self.source.scratch(points(columns)));
        for row in self.rows.of(tile) {
            let view = self.source.view(x, row.n, row.block, row.space(columns), seen);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let y = self.target.open(operands, row, columns, filled);
                normalise(view.row(row.d, row.h, columns), &norms[row.block], y);
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
}

impl GradientStatistics {
    fn new(g: &Geometry) -> GradientStatistics {
        let channels = g.region.range(Axis::Channel);
        GradientStatistics {
            x: Source::new(&g.inputs[0].layout, channels),
            dy: Source::new(output_gradient(g), channels),
            strips: Strips::new(g.output.shape, &g.region, 2),
        }
    }
}

impl Plain for GradientStatistics {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let norms = records::<Norm>(operands, 0);
        let columns = self.strips.columns();
        let (seen_x, seen_dy) = scratch.split_at_mut(self.x.scratch(points(columns)));
        for strip in self.strips.of(tile) {
            let (mut sums, mut along) = ([0f64; BLOCK], [0f64; BLOCK]);
            for (d, h) in self.strips.rows(strip) {
                let space = [(d, d + 1), (h, h + 1), columns];
                let x = self.x.view(x, strip.n, strip.block, space, seen_x).row(d, h, columns);
                let dy = self.dy.view(dy, strip.n, strip.block, space, seen_dy).row(d, h, columns);
                gradient_moments(x, &norms[strip.block].centre, dy, &mut sums, &mut along);
            }
            // SAFETY: these columns of this strip are this tile's alone.
            let partial = unsafe { operands.doubles_mut(Operand::Partial(1), self.strips.place(strip, COLUMNS)) };
            partial[..BLOCK].copy_from_slice(&sums);
            partial[BLOCK..].copy_from_slice(&along);
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

/// From sums to the gradients of weight and bias, and to what the gradient of the input needs.
struct GradientCoefficients {
    blocks: usize,
    /// Elements of a channel of the global batch.
    count: f64,
}

impl Kernel for GradientCoefficients {
    fn run(&self, _: usize, operands: &Operands, _: &mut [f32]) {
        let (sums, norms) = (operands.doubles(Operand::Sum(1)), &records::<Norm>(operands, 0)[..self.blocks]);
        // SAFETY: one tile does all channels.
        let (slopes, dweight, dbias) = unsafe {
            let gradient = |p: usize| operands.floats_mut(Operand::ParameterGradient(p), 0..self.blocks * BLOCK);
            (records_mut::<Slope>(operands, 1, self.blocks), gradient(WEIGHT), gradient(BIAS))
        };
        for (b, (norm, slope)) in norms.iter().zip(slopes).enumerate() {
            for l in 0..BLOCK {
                let [rest, inverse, scale] = [norm.rest[l], norm.inverse[l], norm.scale[l]].map(|v| v as f64);
                let sum = sums[b * COLUMNS + l];
                // With the elements normalised: seen from the mean, in deviations.
                let along = (sums[b * COLUMNS + BLOCK + l] - rest * sum) * inverse;
                dweight[b * BLOCK + l] = along as f32;
                dbias[b * BLOCK + l] = sum as f32;
                // The gradient loses its mean and its part along the normalised elements, as the statistics move with them.
                let along = scale * inverse * along / self.count;
                slope.scale[l] = scale as f32;
                slope.along[l] = -along as f32;
                slope.shift[l] = (rest * along - scale * sum / self.count) as f32;
            }
        }
    }
}

/// The gradient of the input.
struct InputGradient {
    x: Source,
    dy: Source,
    target: Target,
    rows: Rows,
}

impl InputGradient {
    fn new(g: &Geometry) -> InputGradient {
        let channels = g.region.range(Axis::Channel);
        InputGradient {
            x: Source::new(&g.inputs[0].layout, channels),
            dy: Source::new(output_gradient(g), channels),
            target: Target::input_gradient(g, 0),
            rows: Rows::new(&wanted(g, 0).1, 3),
        }
    }
}

impl Plain for InputGradient {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let (norms, slopes) = (records::<Norm>(operands, 0), records::<Slope>(operands, 1));
        let columns = self.rows.columns();
        let (seen_x, rest) = scratch.split_at_mut(self.x.scratch(points(columns)));
        let (seen_dy, filled) = rest.split_at_mut(self.dy.scratch(points(columns)));
        for row in self.rows.of(tile) {
            let x = self.x.view(x, row.n, row.block, row.space(columns), seen_x).row(row.d, row.h, columns);
            let dy = self.dy.view(dy, row.n, row.block, row.space(columns), seen_dy).row(row.d, row.h, columns);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let dx = self.target.open(operands, row, columns, filled);
                input_gradient(x, &norms[row.block].centre, dy, &slopes[row.block], dx, self.target.add);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Numbers, Problem, check, compare};
    use convoy_net::{Kind, Region, Shape};

    fn problem(seed: u64) -> Problem {
        let mut numbers = Numbers::new(seed);
        let mut size = |most: usize| 1 + numbers.below(most);
        let shape = match size(4) {
            1 => Shape([size(9), size(40), 1, 1, 1]),
            2 => Shape([size(5), size(40), 1, 1, size(60)]),
            3 => Shape([size(5), size(40), 1, size(9), size(9)]),
            _ => Shape([size(3), size(20), size(5), size(5), size(5)]),
        };
        let (image, extra, accumulate) = (size(3) == 1, size(3) - 1, size(3) == 1);
        let mode = if size(4) == 1 { Mode::Evaluate } else { Mode::Train };
        let layer = BatchNorm { epsilon: 1e-3, momentum: 0.3 };
        // Some 30 roundings of numbers that may be deviations / epsilon times as large as the result.
        let tolerance = 2e-5;
        Problem { seed, image, extra, accumulate, mode, tolerance, ..Problem::new(Kind::BatchNorm(layer), &[shape]) }
    }

    #[test]
    fn agrees_with_its_reference() {
        (0..120).map(problem).for_each(|p| check(&p));
    }

    /// Elements around 1000 with a deviation of about 1: nothing is lost.
    #[test]
    fn stays_exact_far_from_zero() {
        let shape = Shape([4, 20, 1, 13, 11]);
        let problem = Problem::new(Kind::BatchNorm(BatchNorm::default()), &[shape]);
        let mut values = problem.values();
        values.inputs[0].data.iter_mut().for_each(|x| *x = (*x + 1000.0) as f32 as f64);
        let (fast, reference) = (problem.fast(&values), problem.reference(&values));
        compare(&problem, "output", &fast.output.data, &reference.output.data);
        let (fast, reference) = (fast.gradients.unwrap(), reference.gradients.unwrap());
        compare(&problem, "input gradient", &fast.inputs[0].data, &reference.inputs[0].data);
        compare(&problem, "weight gradient", &fast.parameters[0], &reference.parameters[0]);
    }

    /// Sums of a strip have the same bits wherever its samples are, and a part of space sums only what it holds.
    #[test]
    fn strips_lie_on_the_whole_tensor() {
        let shape = Shape([3, 5, 2, 40, 70]);
        let whole = Strips::new(shape, &Region::whole(shape), 1);
        assert_eq!(whole.count, (2 * 40usize).div_ceil(1024 / 70));
        let lower = Region::whole(shape).with(Axis::Height, 20, 40).with(Axis::Sample, 1, 3);
        let part = Strips::new(shape, &lower, 1);
        let rows = |strips: &Strips| {
            let all = (0..strips.tiles).flat_map(|t| strips.of(t)).filter(|s| s.n == 2 && s.block == 0);
            all.flat_map(|s| strips.rows(s).map(move |row| (row, s.strip))).collect::<Vec<_>>()
        };
        let expected: Vec<_> = rows(&whole).into_iter().filter(|((_, h), _)| *h >= 20).collect();
        let first = expected[0].1;
        assert_eq!(rows(&part), expected.into_iter().map(|(row, s)| (row, s - first)).collect::<Vec<_>>());
        assert_eq!(rows(&part).len(), 2 * 20);
    }
}
