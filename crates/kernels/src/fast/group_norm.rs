//! Group norm: sums over each sample's groups become a few numbers a channel and sample, with which every element is scaled
//! and shifted.
//!
//! The sums do not fold over the batch, so they stay with the layer: a rank must hold all of space and whole groups of its
//! samples. A spatial split will need a sum over a team for each sample. The gradients of weight and bias are made from
//! sums over the global batch, so they are complete on every rank.
//!
//! Twin: `reference/group_norm.rs`.

use super::norm::{COLUMNS, Keeps, Norm, Over, Slope, records, records_mut};
use super::strips::Strips;
use super::{Fast, Packing};
use crate::{BLOCK, Geometry, Kernel, Make, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, layers::GroupNorm};

const WEIGHT: usize = 0;
const BIAS: usize = 1;

const KEEPS: Keeps = Keeps {
    over: Over::Sample,
    sums: Operand::Internal(0),
    norms: Operand::Internal(1),
    gradient_sums: Operand::Internal(2),
    slopes: Operand::Internal(3),
    passed: Operand::Internal(4),
    activation: None,
};

impl Fast for GroupNorm {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let groups = Groups::new(self, g);
        let bytes = KEEPS.records(g) * size_of::<Norm>();
        let coefficients = Stage {
            pass: Pass::Coefficients,
            reads: vec![KEEPS.sums, Operand::Parameter(WEIGHT), Operand::Parameter(BIAS)],
            writes: vec![KEEPS.norms],
            makes: vec![Make::Internal { number: 1, bytes }],
            ..groups.stage()
        };
        vec![KEEPS.statistics(g), coefficients, KEEPS.forward(g)]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        let groups = Groups::new(self, g);
        let bytes = KEEPS.records(g) * size_of::<Slope>();
        let coefficients = Stage {
            pass: Pass::GradientCoefficients,
            reads: vec![KEEPS.gradient_sums, KEEPS.norms],
            writes: vec![KEEPS.slopes, Operand::Partial(0)],
            makes: vec![
                Make::Internal { number: 3, bytes },
                Make::Partial { number: 0, strips: 1, columns: groups.blocks * COLUMNS },
            ],
            ..groups.stage()
        };
        let weight_gradient = Stage {
            pass: Pass::WeightGradient(0),
            reads: vec![Operand::Sum(0)],
            writes: vec![Operand::ParameterGradient(WEIGHT), Operand::ParameterGradient(BIAS)],
            makes: vec![],
            tiles: 1,
            scratch: 0,
            work: Work { flops: 0.0, bytes: (groups.blocks * COLUMNS * 12) as f64 },
        };
        let mut stages = vec![KEEPS.gradient_statistics(g), coefficients, weight_gradient];
        if g.input_gradients[0].is_some() {
            stages.push(KEEPS.input_gradient(g));
        }
        stages
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        let groups = Groups::new(self, g);
        match pass {
            Pass::Coefficients => Box::new(Coefficients { groups, epsilon: self.epsilon as f64 }),
            Pass::GradientCoefficients => Box::new(GradientCoefficients { groups }),
            Pass::WeightGradient(0) => Box::new(WeightGradient { blocks: groups.blocks }),
            _ => KEEPS.prepare(pass, g),
        }
    }

    fn packing(&self, _: usize, g: &Geometry) -> Packing {
        Packing::of_channels(g.region.size(Axis::Channel))
    }
}

/// The groups of a rank's samples.
struct Groups {
    samples: usize,
    strips: usize,
    blocks: usize,
    /// All channels here, and those of a group.
    channels: usize,
    group: usize,
    /// Elements of a group of a sample.
    count: f64,
}

impl Groups {
    fn new(layer: &GroupNorm, g: &Geometry) -> Groups {
        let (shape, group) = (g.output.shape, g.output.shape.channels() / layer.groups);
        let whole = |axis: Axis| g.region.range(axis) == (0, shape.along(axis) as isize);
        let (first, end) = g.region.range(Axis::Channel);
        assert!(
            g.region.is_empty()
                || Axis::SPACE.into_iter().all(whole) && [first, end].iter().all(|c| c % group as isize == 0),
            "bug: group norm over {} of {shape}, which cuts space or a group of {group} channels",
            g.region
        );
        let strips = Strips::new(shape, &g.region, 1);
        Groups {
            samples: g.region.size(Axis::Sample),
            strips: strips.count,
            blocks: strips.blocks,
            channels: g.region.size(Axis::Channel),
            group,
            count: (group * shape.points()) as f64,
        }
    }

    /// A stage that does a sample at a time with all sums; what it reads and writes is for the caller to say.
    fn stage(&self) -> Stage {
        let sums = self.samples * self.strips * self.blocks * COLUMNS;
        Stage {
            pass: Pass::Coefficients,
            reads: vec![],
            writes: vec![],
            makes: vec![],
            tiles: if self.blocks == 0 { 0 } else { self.samples },
            scratch: 0,
            work: Work { flops: sums as f64, bytes: (8 * sums) as f64 },
        }
    }

    /// The two sums of a channel of a sample, over its strips.
    fn sums(&self, sums: &[f64], sample: usize, c: usize) -> (f64, f64) {
        let (mut first, mut second) = (0.0, 0.0);
        for strip in 0..self.strips {
            let at = ((sample * self.strips + strip) * self.blocks + c / BLOCK) * COLUMNS + c % BLOCK;
            first += sums[at];
            second += sums[at + BLOCK];
        }
        (first, second)
    }
}

/// From sums to what forward needs, a tile a sample.
struct Coefficients {
    groups: Groups,
    epsilon: f64,
}

impl Kernel for Coefficients {
    fn run(&self, sample: usize, operands: &Operands, _: &mut [f32]) {
        let groups = &self.groups;
        let sums = operands.doubles(KEEPS.sums);
        let [weight, bias] = [WEIGHT, BIAS].map(|p| operands.floats(Operand::Parameter(p)));
        // SAFETY: a sample's records are its tile's.
        let norms = unsafe { records_mut::<Norm>(operands, KEEPS.norms, sample * groups.blocks, groups.blocks) };
        norms.iter_mut().for_each(|norm| *norm = Norm::ZERO);
        for first in (0..groups.channels).step_by(groups.group) {
            let (mut sum, mut squares) = (0.0, 0.0);
            for c in first..first + groups.group {
                let (a, b) = groups.sums(sums, sample, c);
                sum += a;
                squares += b;
            }
            let mean = sum / groups.count;
            // Rounding may leave a constant group a variance below zero.
            let variance = (squares / groups.count - mean * mean).max(0.0);
            let inverse = 1.0 / (variance + self.epsilon).sqrt();
            for c in first..first + groups.group {
                norms[c / BLOCK].set(c % BLOCK, mean, inverse, weight[c], bias[c]);
            }
        }
    }
}

/// From sums to what the gradient of the input needs, and to each sample's part of the gradients of weight and bias.
struct GradientCoefficients {
    groups: Groups,
}

impl Kernel for GradientCoefficients {
    fn run(&self, sample: usize, operands: &Operands, _: &mut [f32]) {
        let groups = &self.groups;
        let (sums, norms) = (operands.doubles(KEEPS.gradient_sums), records::<Norm>(operands, KEEPS.norms));
        let norms = &norms[sample * groups.blocks..][..groups.blocks];
        let columns = groups.blocks * COLUMNS;
        // SAFETY: a sample's records and sums are its tile's.
        let (slopes, partial) = unsafe {
            (
                records_mut::<Slope>(operands, KEEPS.slopes, sample * groups.blocks, groups.blocks),
                operands.doubles_mut(Operand::Partial(0), sample * columns..(sample + 1) * columns),
            )
        };
        slopes.iter_mut().for_each(|slope| *slope = Slope::ZERO);
        partial.fill(0.0);
        for first in (0..groups.channels).step_by(groups.group) {
            let (mut mean, mut along) = (0.0, 0.0);
            for c in first..first + groups.group {
                let (norm, l) = (&norms[c / BLOCK], c % BLOCK);
                let (rest, inverse, scale) = (norm.rest[l] as f64, norm.inverse[l] as f64, norm.scale[l] as f64);
                let (sum, seen) = groups.sums(sums, sample, c);
                // With the elements normalised: seen from the mean, in deviations.
                let normalised = (seen - rest * sum) * inverse;
                partial[c / BLOCK * COLUMNS + l] = normalised;
                partial[c / BLOCK * COLUMNS + BLOCK + l] = sum;
                // scale = weight·inverse
                mean += scale / inverse * sum / groups.count;
                along += scale / inverse * normalised / groups.count;
            }
            for c in first..first + groups.group {
                slopes[c / BLOCK].set(c % BLOCK, &norms[c / BLOCK], mean, along);
            }
        }
    }
}

/// The gradients of weight and bias from their sums over the batch.
struct WeightGradient {
    blocks: usize,
}

impl Kernel for WeightGradient {
    fn run(&self, _: usize, operands: &Operands, _: &mut [f32]) {
        let sums = operands.doubles(Operand::Sum(0));
        for (number, first) in [(WEIGHT, 0), (BIAS, BLOCK)] {
            // SAFETY: there is one tile.
            let gradient = unsafe { operands.floats_mut(Operand::ParameterGradient(number), 0..self.blocks * BLOCK) };
            for (c, value) in gradient.iter_mut().enumerate() {
                *value = sums[c / BLOCK * COLUMNS + first + c % BLOCK] as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Numbers, Problem, check, compare, halves_along};
    use convoy_net::{Kind, Shape};

    #[test]
    fn agrees_with_its_reference() {
        for seed in 0..60 {
            let mut numbers = Numbers::new(seed);
            let mut size = |most: usize| 1 + numbers.below(most);
            let (groups, group) = (size(6), size(9));
            let shape = match size(3) {
                1 => Shape([size(4), groups * group, 1, 1, 2 + size(60)]),
                2 => Shape([size(4), groups * group, 1, size(9), 1 + size(9)]),
                _ => Shape([size(3), groups * group, size(4), size(4), 1 + size(4)]),
            };
            let (image, extra, accumulate) = (size(3) == 1, size(3) - 1, size(3) == 1);
            let layer = GroupNorm { groups, epsilon: 1e-3 };
            // Some 30 roundings of numbers that may be deviations / epsilon times as large as the result.
            let tolerance = 2e-5;
            let problem = Problem::new(Kind::GroupNorm(layer), &[shape]);
            let problem = Problem { seed, image, extra, accumulate, tolerance, ..problem };
            check(&problem);
            halves_along(&problem, &[Axis::Sample]);
        }
    }

    /// Elements around 1000 with a deviation of about 1: nothing is lost.
    #[test]
    fn stays_exact_far_from_zero() {
        let problem = Problem::new(Kind::GroupNorm(GroupNorm::new(4)), &[Shape([2, 20, 1, 13, 11])]);
        let mut values = problem.values();
        values.inputs[0].data.iter_mut().for_each(|x| *x = (*x + 1000.0) as f32 as f64);
        let (fast, reference) = (problem.fast(&values), problem.reference(&values));
        compare(&problem, "output", &fast.output.data, &reference.output.data);
        let (fast, reference) = (fast.gradients.unwrap(), reference.gradients.unwrap());
        compare(&problem, "input gradient", &fast.inputs[0].data, &reference.inputs[0].data);
        compare(&problem, "weight gradient", &fast.parameters[0], &reference.parameters[0]);
    }
}
