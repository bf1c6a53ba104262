//! Windowed layers against their reference twins, over random shapes; and what may not change a bit.

use crate::fast::isa;
use crate::twin::{Numbers, Outcome, Problem, check, halves};
use crate::{Layout, Mode};
use convoy_net::layers::{Activation, Convolution, FullyConnected, TransposedConvolution, Windows};
use convoy_net::{Axis, Edge, Kind, Region, Shape};

/// Random windows over one, two or three axes.
fn windows(numbers: &mut Numbers, axes: usize) -> Windows {
    let mut list = |most: usize| (0..axes).map(|_| 1 + numbers.below(most)).collect::<Vec<_>>();
    let (kernel, stride, dilation) = (list([7, 5, 3][axes - 1]), list(4), list(2));
    let (before, after) = (list(4), list(4));
    let padding = before.iter().zip(&after).zip(&kernel).map(|((b, a), k)| [(b - 1).min(*k), (a - 1).min(*k)]);
    Windows { padding: padding.collect(), kernel, stride, dilation }
}

/// A random layer and input.
fn problem(seed: u64) -> Option<Problem> {
    let mut numbers = Numbers::new(seed);
    let axes = 1 + numbers.below(3);
    let mut space = [1; 3];
    (3 - axes..3).for_each(|i| space[i] = 1 + numbers.below([40, 11, 6][axes - 1]));
    let windows = windows(&mut numbers, axes);
    let groups = [1, 1, 1, 2, 3, 8][numbers.below(6)];
    let mut per_group = || 1 + numbers.below([40, 20][usize::from(groups > 1)]);
    let (mut channels, mut filters) = (groups * per_group(), groups * per_group());
    let mut groups = groups;
    if numbers.below(6) == 0 {
        (channels, groups) = (filters, filters);
    }
    if numbers.below(12) == 0 {
        (groups, filters) = (channels, 2 * channels);
    }
    let bias = numbers.below(2) == 0;
    let kind = match numbers.below(8) {
        0 => Kind::FullyConnected(FullyConnected { outputs: filters, bias }),
        1 | 2 => {
            let output_padding = windows.stride.iter().map(|s| numbers.below(*s)).collect();
            Kind::TransposedConvolution(TransposedConvolution { filters, windows, output_padding, groups, bias })
        }
        _ => {
            let edge = if numbers.below(4) == 0 { Edge::Periodic } else { Edge::Zero };
            Kind::Convolution(Convolution { filters, windows, groups, bias, edge, activation: None })
        }
    };
    let inputs = [Shape([1 + numbers.below(10), channels, space[0], space[1], space[2]])];
    let output = kind.operation().infer(&inputs).ok()?;
    // The reference is slow.
    if kind.operation().flops(&inputs, output) > 3_000_000 {
        return None;
    }
    let (image, extra, accumulate) = (numbers.below(4) == 0, numbers.below(3), numbers.below(3) == 0);
    Some(Problem { seed, exact: true, image, extra, accumulate, ..Problem::new(kind, &inputs) })
}

/// The same on numbers that round. Every result is a sum of at most `terms` products.
fn rounding(problem: &Problem) -> Problem {
    let output = problem.output();
    let per_output = problem.inputs[0].per_sample().min(problem.kind.operation().parameters(&problem.inputs)[0].len());
    let terms =
        per_output.max(output.samples() * output.points()).max(problem.inputs[0].len() / problem.inputs[0].channels());
    Problem { exact: false, accumulate: false, tolerance: terms as f64 * f32::EPSILON as f64, ..problem.clone() }
}

/// The same for evaluation, with a clamp where there can be one.
fn clamped(mut problem: Problem) -> Problem {
    if let Kind::Convolution(layer) = &mut problem.kind {
        let clip = Activation::Clip { low: -2.0, high: 3.0 };
        layer.activation = Some(if problem.seed.is_multiple_of(2) { Activation::Relu } else { clip });
    }
    Problem { mode: Mode::Evaluate, ..problem }
}

fn problems(count: u64) -> Vec<Problem> {
    let problems: Vec<Problem> = (0..count).filter_map(problem).collect();
    assert!(problems.len() > count as usize / 3, "only {} of {count} fit", problems.len());
    problems
}

#[test]
fn layers_agree_with_their_references() {
    for problem in problems(180) {
        check(&problem);
        check(&rounding(&problem));
    }
}

#[test]
fn clamps_agree_with_their_references() {
    for problem in problems(60).into_iter().map(clamped) {
        check(&problem);
        check(&rounding(&problem));
    }
}

#[test]
fn halves_of_the_output_have_the_bits_of_the_whole() {
    problems(60).iter().for_each(halves);
}

fn bits(outcome: &Outcome) -> Vec<u32> {
    let gradients = outcome.gradients.iter();
    let gradients = gradients.flat_map(|g| g.inputs.iter().map(|i| &i.data).chain(&g.parameters));
    // Adding zero makes the two zeros one: their sign is nobody's.
    gradients.chain([&outcome.output.data]).flatten().map(|&v| (v as f32 + 0.0).to_bits()).collect()
}

#[test]
fn tile_orders_and_instruction_sets_agree_to_the_bit() {
    for problem in problems(40).iter().map(rounding) {
        let values = problem.values();
        let first = problem.fast(&values);
        let other = Problem { seed: problem.seed + 1, ..problem.clone() };
        assert_eq!(bits(&first), bits(&other.fast(&values)), "another order of tiles\n{problem:#?}");
        let portable = isa::portably(|| problem.fast(&values));
        assert_eq!(bits(&first), bits(&portable), "the portable kernels\n{problem:#?}");
    }
}

/// Parts of an input's gradient, each computed apart.
#[test]
fn parts_of_an_input_gradient_have_the_bits_of_the_whole() {
    for problem in problems(40).iter().map(rounding) {
        let values = problem.values();
        let whole = problem.fast(&values).gradients.expect("training").inputs.remove(0);
        for axis in [Axis::Sample, Axis::Depth, Axis::Height, Axis::Width] {
            let size = problem.inputs[0].along(axis) as isize;
            let geometry = problem.geometry();
            let (_, computed) = geometry.input_gradients[0].clone().expect("wanted");
            // What lies beyond periodic ends is added to the other end: not the same sums.
            if size < 2 || computed != Region::whole(problem.inputs[0]) {
                continue;
            }
            let mut sum = vec![0.0; whole.data.len()];
            for (start, end) in [(0, size / 3), (size / 3, size)] {
                let part = computed.with(axis, start, end);
                let mut geometry = geometry.clone();
                geometry.input_gradients[0] = Some((Layout::blocked(part), part));
                let part = problem.fast_with(&values, &geometry).gradients.expect("training").inputs.remove(0);
                sum.iter_mut().zip(&part.data).for_each(|(a, b)| *a += b);
            }
            assert_eq!(sum, whole.data, "{axis:?}\n{problem:#?}");
        }
    }
}

/// Ranks that hold whole subtrees of the batch get the bits of one rank.
#[test]
fn weight_gradients_of_subtrees_add_up_to_the_bit() {
    for mut problem in problems(60).iter().map(rounding) {
        let batch = 8 + problem.seed as usize % 3;
        problem.inputs[0] = problem.inputs[0].with_samples(batch);
        let values = problem.values();
        let whole = problem.fast(&values).gradients.expect("training").parameters;
        let output = Region::whole(problem.output());
        let half = crate::leaf_range(batch, 8, 4).start as isize;
        let parts = [(0, half), (half, batch as isize)].map(|(start, end)| {
            let geometry = problem.part(output.with(Axis::Sample, start, end));
            problem.fast_with(&values, &geometry).gradients.expect("training").parameters
        });
        for (p, whole) in whole.iter().enumerate() {
            let sums = parts[0][p].iter().zip(&parts[1][p]).map(|(a, b)| (*a as f32 + *b as f32) as f64);
            assert_eq!(sums.collect::<Vec<f64>>(), *whole, "parameter {p}\n{problem:#?}");
        }
    }
}

#[test]
fn evaluation_needs_no_gradients() {
    for problem in problems(20) {
        check(&Problem { mode: Mode::Evaluate, ..problem });
    }
}
