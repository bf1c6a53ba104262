//! Windowed layers against their reference twins, over random shapes; and what may not change a bit.

use super::GRADIENT;
use crate::fast::isa::{self, Set};
use crate::fast::strips::Strips;
use crate::twin::{Numbers, Outcome, Problem, check, halves};
use crate::{BLOCK, Geometry, Layout, Mode, Operand, Pass, Winograd};
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

/// Problems are small, and so are tiles: else there would be no order of them, and nothing for a second thread.
fn have_several_tiles(problems: &[Problem]) {
    for pass in [Pass::Forward, Pass::InputGradient(0), Pass::WeightGradient(0)] {
        let tiles = |problem: &Problem| problem.stages().iter().find(|s| s.pass == pass).map_or(0, |s| s.tiles);
        let several = problems.iter().filter(|problem| tiles(problem) > 2).count();
        assert!(2 * several > problems.len(), "{pass:?}: {several} of {} have more than two tiles", problems.len());
    }
    let subtrees = Operand::Internal(GRADIENT);
    let apart = problems.iter().filter(|problem| problem.stages().iter().any(|s| s.reads.contains(&subtrees))).count();
    assert!(4 * apart > problems.len(), "{apart} of {} sum subtrees of leaves apart", problems.len());
}

#[test]
fn tile_orders_and_instruction_sets_agree_to_the_bit() {
    let problems: Vec<Problem> = problems(40).iter().map(rounding).collect();
    have_several_tiles(&problems);
    for problem in problems {
        let values = problem.values();
        let first = problem.fast(&values);
        let other = Problem { seed: problem.seed + 1, ..problem.clone() };
        assert_eq!(bits(&first), bits(&other.fast(&values)), "another order of tiles\n{problem:#?}");
        for set in [Set::Avx2, Set::Together, Set::Portable] {
            let found = isa::at_most(set, || problem.fast(&values));
            assert_eq!(bits(&first), bits(&found), "{set:?}\n{problem:#?}");
        }
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

/// Sums of strips of an output and of their squares, by definition: `[sample][strip][block][column]`.
fn sums(Outcome { output, .. }: &Outcome, strips: &Strips) -> Vec<f64> {
    let mut all = vec![];
    let at = |n: usize, c: usize, h: usize, w: usize| output[[n, c, 0, h, w]];
    let [samples, channels, _, height, width] = output.shape.0;
    for n in 0..samples {
        for first in (0..height).step_by(strips.rows_of_strip) {
            for block in 0..strips.blocks {
                let rows = first..(first + strips.rows_of_strip).min(height);
                let points = rows.flat_map(|h| (0..width).map(move |w| (h, w)));
                let sum = |square: bool, lane: usize| {
                    let lane = Some(block * BLOCK + lane).filter(|c| *c < channels);
                    let values = points.clone().map(|(h, w)| lane.map_or(0.0, |c| at(n, c, h, w)));
                    values.fold(0.0, |sum, v| sum + if square { v * v } else { v })
                };
                all.extend(
                    [false, true]
                        .into_iter()
                        .flat_map(|square| (0..BLOCK).map(move |lane| (square, lane)))
                        .map(|(s, l)| sum(s, l)),
                );
            }
        }
    }
    all
}

/// What forward sums for a batch norm has the bits of the definition, and the output those it has without; on both instruction
/// sets and for half of the samples too.
#[test]
fn outputs_are_summed_as_they_are_made() {
    let convolution = |filters: usize, kernel: usize| Convolution::new(filters, &[kernel, kernel]).padding(kernel / 2);
    let cases = [
        (convolution(20, 1), Shape([3, 5, 1, 40, 30])),
        (convolution(33, 1), Shape([9, 17, 1, 7, 7])),
        (convolution(16, 1), Shape([2, 450, 1, 28, 14])),
        (convolution(32, 1).no_bias(), Shape([2, 3, 1, 61, 56])),
        (convolution(24, 3).stride(2), Shape([2, 3, 1, 75, 64])),
        (convolution(40, 3).groups(40), Shape([3, 40, 1, 45, 37])),
        (convolution(20, 3).groups(20).stride(2), Shape([2, 20, 1, 9, 11])),
        (convolution(16, 3).groups(2), Shape([3, 8, 1, 36, 40])),
        (convolution(8, 1), Shape([2, 16, 1, 3, 384])),
        // Many channels: shorter strips, but rows stay whole.
        (convolution(16, 1), Shape([2, 700, 1, 14, 14])),
        (convolution(16, 1), Shape([2, 700, 1, 2, 300])),
    ];
    cases.into_iter().for_each(|(layer, input)| check_sums(layer, input, Winograd::Off));
    // By stages and by blocks of tiles: strips of some rows of tiles, and of whole samples with parts of tiles.
    for winograd in [Winograd::Two, Winograd::Four] {
        check_sums(convolution(20, 3), Shape([3, 16, 1, 43, 50]), winograd);
        check_sums(convolution(16, 3).no_bias(), Shape([40, 17, 1, 14, 15]), winograd);
    }
}

fn check_sums(layer: Convolution, input: Shape, winograd: Winograd) {
    for extra in [0, 1] {
        let problem = Problem { extra, winograd, ..Problem::new(Kind::Convolution(layer.clone()), &[input]) };
        let (values, plain) = (problem.values(), problem.geometry());
        let whole = Region::whole(problem.output());
        for region in [whole, whole.with(Axis::Sample, 1, whole.end[0])] {
            let g = Geometry { summed: true, region, ..plain.clone() };
            let expected = problem.fast_with(&values, &Geometry { region, ..plain.clone() });
            let strips = Strips::new(g.output.shape, &region, 1);
            for set in [Set::Avx512, Set::Avx2, Set::Together, Set::Portable] {
                let found = isa::at_most(set, || problem.fast_with(&values, &g));
                assert_eq!(found.output.data, expected.output.data, "{problem:#?}");
                assert_eq!(found.sums.expect("sums"), sums(&expected, &strips), "{problem:#?}");
            }
        }
    }
}

/// Strips that ranks share, sums over depth and what several phases write are left to the batch norm.
#[test]
fn what_cannot_be_summed_is_not() {
    let layer = Convolution::new(20, &[1, 1]);
    let problem = Problem::new(Kind::Convolution(layer), &[Shape([2, 5, 1, 40, 30])]);
    let plain = problem.geometry();
    let part = plain.region.with(Axis::Height, 0, 20);
    for g in [Geometry { summed: true, region: part, ..plain.clone() }, plain] {
        assert!(problem.fast_with(&problem.values(), &g).sums.is_none());
    }
}
