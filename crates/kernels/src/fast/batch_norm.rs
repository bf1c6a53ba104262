//! Batch norm: sums over the batch, or over what some ranks norm together, become a few numbers a channel, with which every
//! element is scaled and shifted, another input added and an activation applied, all in one pass.
//!
//! The gradients of weight and bias are made from the same sums: over the global batch they are complete on every rank.
//!
//! Twin: `reference/batch_norm.rs`.

use super::norm::{COLUMNS, Keeps, Norm, Over, Slope, records, records_mut};
use super::{Fast, Packing};
use crate::{BLOCK, Geometry, Kernel, Make, Mode, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, layers::BatchNorm};

const WEIGHT: usize = 0;
const BIAS: usize = 1;
const RUNNING_MEAN: usize = 2;
const RUNNING_VAR: usize = 3;

const NORMS: Operand = Operand::Internal(0);
const SLOPES: Operand = Operand::Internal(1);
const PASSED: Operand = Operand::Internal(2);

fn keeps(layer: &BatchNorm) -> Keeps {
    Keeps {
        over: Over::Batch,
        sums: Operand::Partial(0),
        norms: NORMS,
        gradient_sums: Operand::Partial(1),
        slopes: SLOPES,
        passed: PASSED,
        activation: layer.activation,
    }
}

impl Fast for BatchNorm {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let (keeps, parameter) = (keeps(self), Operand::Parameter);
        let bytes = keeps.records(g) * size_of::<Norm>();
        let mut coefficients = Stage {
            pass: Pass::Coefficients,
            reads: vec![parameter(WEIGHT), parameter(BIAS), parameter(RUNNING_MEAN), parameter(RUNNING_VAR)],
            writes: vec![NORMS],
            makes: vec![Make::Internal { number: 0, bytes }],
            tiles: 1,
            scratch: 0,
            work: Work { flops: (20 * keeps.records(g) * BLOCK) as f64, bytes: bytes as f64 },
        };
        if g.mode == Mode::Evaluate {
            return vec![coefficients, keeps.forward(g)];
        }
        coefficients.reads.push(Operand::Sum(0));
        coefficients.writes.extend([parameter(RUNNING_MEAN), parameter(RUNNING_VAR)]);
        vec![keeps.statistics(g), coefficients, keeps.forward(g)]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        let keeps = keeps(self);
        let bytes = keeps.records(g) * size_of::<Slope>();
        let gradient = Operand::ParameterGradient;
        let coefficients = Stage {
            pass: Pass::GradientCoefficients,
            reads: vec![Operand::Sum(1), NORMS],
            writes: vec![gradient(WEIGHT), gradient(BIAS), SLOPES],
            makes: vec![Make::Internal { number: 1, bytes }],
            tiles: 1,
            scratch: 0,
            work: Work { flops: (20 * keeps.records(g) * BLOCK) as f64, bytes: bytes as f64 },
        };
        let mut stages = vec![keeps.gradient_statistics(g), coefficients];
        if g.input_gradients.iter().any(Option::is_some) {
            stages.push(keeps.input_gradient(g));
        }
        stages
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        let count = g.normed as f64;
        let keeps = keeps(self);
        let blocks = keeps.records(g);
        match pass {
            Pass::Coefficients => Box::new(Coefficients { layer: *self, blocks, count, mode: g.mode }),
            Pass::GradientCoefficients => Box::new(GradientCoefficients { blocks, count }),
            _ => keeps.prepare(pass, g),
        }
    }

    fn packing(&self, _: usize, g: &Geometry) -> Packing {
        Packing::of_channels(g.region.size(Axis::Channel))
    }
}

/// From sums (or, in evaluation, the running statistics) to what forward needs.
struct Coefficients {
    layer: BatchNorm,
    blocks: usize,
    /// Elements of a channel that are normed together.
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
        let [weight, bias] = [WEIGHT, BIAS].map(|p| operands.floats(Operand::Parameter(p)));
        // SAFETY: one tile does all channels.
        let norms = unsafe { records_mut::<Norm>(operands, NORMS, 0, self.blocks) };
        for c in 0..self.blocks * BLOCK {
            let (mean, variance) = self.statistics(c, operands);
            let inverse = 1.0 / (variance + self.layer.epsilon as f64).sqrt();
            norms[c / BLOCK].set(c % BLOCK, mean, inverse, weight[c], bias[c]);
        }
    }
}

/// From sums to the gradients of weight and bias, and to what the gradient of the input needs.
struct GradientCoefficients {
    blocks: usize,
    /// Elements of a channel that are normed together.
    count: f64,
}

impl Kernel for GradientCoefficients {
    fn run(&self, _: usize, operands: &Operands, _: &mut [f32]) {
        let (sums, norms) = (operands.doubles(Operand::Sum(1)), records::<Norm>(operands, NORMS));
        // SAFETY: one tile does all channels.
        let (slopes, dweight, dbias) = unsafe {
            let gradient = |p: usize| operands.floats_mut(Operand::ParameterGradient(p), 0..self.blocks * BLOCK);
            (records_mut::<Slope>(operands, SLOPES, 0, self.blocks), gradient(WEIGHT), gradient(BIAS))
        };
        for c in 0..self.blocks * BLOCK {
            let (b, l) = (c / BLOCK, c % BLOCK);
            let norm = &norms[b];
            let (rest, inverse, scale) = (norm.rest[l] as f64, norm.inverse[l] as f64, norm.scale[l] as f64);
            let sum = sums[b * COLUMNS + l];
            // With the elements normalised: seen from the mean, in deviations.
            let along = (sums[b * COLUMNS + BLOCK + l] - rest * sum) * inverse;
            dweight[c] = along as f32;
            dbias[c] = sum as f32;
            // What every element loses, before it is divided by the deviation: scale = weight·inverse.
            let weight = scale / inverse;
            slopes[b].set(l, norm, weight * sum / self.count, weight * along / self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::isa::{self, Set};
    use crate::fast::strips::Strips;
    use crate::twin::{Numbers, Problem, check, compare};
    use convoy_net::{Kind, Region, Shape, layers::Activation};

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
        // No kinks: where rounding decides on which side of one an element is, gradients differ.
        let smooth = [Activation::Sigmoid, Activation::Tanh, Activation::Silu, Activation::Gelu];
        let activation = (size(2) == 1).then(|| smooth[size(4) - 1]);
        let layer = BatchNorm { epsilon: 1e-3, momentum: 0.3, activation };
        let inputs = vec![shape; size(2)];
        // Some 30 roundings of numbers that may be deviations / epsilon times as large as the result.
        let tolerance = 2e-5;
        Problem { seed, image, extra, accumulate, mode, tolerance, ..Problem::new(Kind::BatchNorm(layer), &inputs) }
    }

    #[test]
    fn agrees_with_its_reference() {
        (0..240).map(problem).for_each(|p| check(&p));
    }

    /// Between its stages a batch norm keeps some numbers a channel, however many samples and points there are: backward
    /// starts from the input again. A bit for each element only where a clamp's slope depends on another input, which need not be kept then.
    #[test]
    fn keeps_a_bit_of_an_element_at_most() {
        for activation in [None, Some(Activation::Relu), Some(Activation::Gelu)] {
            for inputs in [1, 2] {
                let noted = activation == Some(Activation::Relu) && inputs == 2;
                let kept = |[samples, height, width]: [usize; 3]| -> usize {
                    let shape = Shape([samples, 40, 1, height, width]);
                    let layer = BatchNorm { activation, ..BatchNorm::default() };
                    let problem = Problem::new(Kind::BatchNorm(layer), &vec![shape; inputs]);
                    let stages = problem.stages();
                    let backward = stages.iter().skip_while(|stage| stage.pass != Pass::GradientStatistics);
                    let added = backward.flat_map(|stage| &stage.reads).any(|read| *read == Operand::Input(1));
                    assert_eq!(added, activation.is_some() && inputs == 2 && !noted);
                    let makes = stages.into_iter().flat_map(|stage| stage.makes);
                    let bytes = makes.map(|make| match make {
                        Make::Internal { bytes, .. } => bytes,
                        Make::Partial { .. } => 0,
                    });
                    bytes.sum()
                };
                let blocks = 40usize.div_ceil(BLOCK);
                for space in [[1, 1, 1], [8, 30, 50]] {
                    let records = blocks * (size_of::<Norm>() + size_of::<Slope>());
                    let bits = space.into_iter().product::<usize>() * blocks * BLOCK;
                    assert_eq!(
                        kept(space),
                        records + if noted { bits / 8 } else { 0 },
                        "{activation:?}, {inputs} inputs, {space:?}"
                    );
                }
            }
        }
    }

    /// What is added is far from a clamp's ends, however sums are rounded: what passes is the same.
    #[test]
    fn clamps_let_the_same_pass() {
        for (seed, shape) in
            [Shape([3, 40, 1, 45, 37]), Shape([5, 20, 1, 4, 4]), Shape([2, 17, 3, 5, 6])].into_iter().enumerate()
        {
            for activation in [Activation::Relu, Activation::Clip { low: -30.0, high: 30.0 }] {
                let layer = BatchNorm { activation: Some(activation), ..BatchNorm::default() };
                let problem =
                    Problem { seed: seed as u64, extra: 1, ..Problem::new(Kind::BatchNorm(layer), &[shape; 2]) };
                let mut values = problem.values();
                values.inputs[1].data.iter_mut().for_each(|v| *v = if *v > 0.2 { 60.0 } else { 15.0 * v.signum() });
                let reference = problem.reference(&values);
                let expected = reference.gradients.unwrap();
                for set in [Set::Avx512, Set::Avx2, Set::Portable] {
                    let fast = isa::at_most(set, || problem.fast(&values));
                    compare(&problem, "output", &fast.output.data, &reference.output.data);
                    let found = fast.gradients.unwrap();
                    for (found, expected) in found.inputs.iter().zip(&expected.inputs) {
                        compare(&problem, "input gradient", &found.data, &expected.data);
                    }
                    compare(&problem, "weight gradient", &found.parameters[0], &expected.parameters[0]);
                }
                let zeros = expected.inputs[1].data.iter().filter(|v| **v == 0.0).count();
                assert!(zeros > 0 && zeros < expected.inputs[1].data.len(), "{activation:?} lets all or nothing pass");
            }
        }
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
        assert_eq!(whole.count, (2 * 40usize).div_ceil(1024 / 70 / 4 * 4));
        let lower = Region::whole(shape).with(Axis::Height, 20, 40).with(Axis::Sample, 1, 3);
        let part = Strips::new(shape, &lower, 1);
        let rows = |strips: &Strips| {
            let all = (0..strips.tiles).flat_map(|t| strips.of(t)).filter(|(s, _)| s.n == 2 && s.block == 0);
            all.flat_map(|(s, _)| strips.rows(s).map(move |row| (row, s.strip))).collect::<Vec<_>>()
        };
        let expected: Vec<_> = rows(&whole).into_iter().filter(|((_, h), _)| *h >= 20).collect();
        let first = expected[0].1;
        assert_eq!(rows(&part), expected.into_iter().map(|(row, s)| (row, s - first)).collect::<Vec<_>>());
        assert_eq!(rows(&part).len(), 2 * 20);
    }
}
