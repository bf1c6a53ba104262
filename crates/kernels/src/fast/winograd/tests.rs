//! Winograd's convolutions against the reference, and what may not change a bit.

use super::{FORCED, Size};
use crate::fast::isa::{self, Set};
use crate::fast::twin;
use crate::fast::windowed::{FORWARD, GRADIENT};
use crate::twin::{Numbers, Outcome, Problem, check, halves};
use crate::{Layout, Mode, Pass, Winograd};
use convoy_net::layers::{Activation, Convolution, Windows};
use convoy_net::{Axis, Edge, Kind, Region, Shape};

/// A random layer and input, with so many taps along an axis. `even`: the output's sizes are multiples of 8, so that halves are whole tiles.
fn problem(seed: u64, taps: usize, even: bool) -> Option<Problem> {
    let mut numbers = Numbers::new(seed);
    let padding: Vec<[usize; 2]> = (0..2).map(|_| [numbers.below(4), numbers.below(3)]).collect();
    let mut size = |axis: usize| match even {
        true => 8 * (1 + numbers.below(2)) + taps - 1 - padding[axis].iter().sum::<usize>(),
        false => 1 + numbers.below(14),
    };
    let (h, w) = (size(0), size(1));
    let (channels, filters) = (16 + numbers.below(25), 16 + numbers.below(25));
    let shape = Shape([1 + numbers.below(9), channels, 1 + numbers.below(2), h, w]);
    let edge = if numbers.below(3) == 0 { Edge::Periodic } else { Edge::Zero };
    let windows = Windows { padding, ..Windows::new(&[taps, taps]) };
    let layer = Convolution { windows, edge, bias: numbers.below(2) == 0, ..Convolution::new(filters, &[taps, taps]) };
    let kind = Kind::Convolution(layer);
    let output = kind.operation().infer(&[shape]).ok()?;
    if kind.operation().flops(&[shape], output) > 10_000_000 {
        return None;
    }
    let (extra, accumulate) = (numbers.below(3), numbers.below(3) == 0);
    Some(Problem { seed, extra, accumulate, ..Problem::new(kind, &[shape]) })
}

/// F(2x2, 3x3) on small whole numbers is exact: its constants are powers of two.
fn two(problem: Problem) -> Problem {
    Problem { winograd: Winograd::Two, exact: true, ..problem }
}

/// F(4x4, 3x3) and F(2x2, 5x5) round. An output is a sum of `terms` products; transforms add the rounding of about a hundred more.
fn four(problem: Problem) -> Problem {
    let output = problem.output();
    let taps = problem.kind.operation().parameters(&problem.inputs)[0].shape[2..].iter().product::<usize>();
    let channels = problem.inputs[0].channels().max(output.channels());
    let terms = (taps * channels).max(output.samples() * output.points());
    let tolerance = (terms + 100) as f64 * f32::EPSILON as f64;
    Problem { winograd: Winograd::Four, exact: false, tolerance, accumulate: false, ..problem }
}

/// With windows of three by three.
fn problems(count: u64, even: bool) -> impl Iterator<Item = Problem> {
    (0..count).filter_map(move |seed| problem(seed, 3, even))
}

/// Of both kinds of windows.
fn all_problems(count: u64, even: bool) -> impl Iterator<Item = Problem> {
    problems(count, even).chain((0..count).filter_map(move |seed| problem(seed, 5, even)))
}

/// Both ways to go through the stages.
fn both_ways<T>(mut f: impl FnMut() -> T) -> [T; 2] {
    let results = [true, false].map(|staged| {
        FORCED.set(Some(staged));
        f()
    });
    FORCED.set(None);
    results
}

#[test]
fn layers_agree_with_their_references() {
    for problem in problems(24, false).map(two).chain(all_problems(24, false).map(four)) {
        both_ways(|| check(&problem));
    }
}

/// In evaluation, what is beyond bounds is cut off as it is written.
#[test]
fn clamps_agree_with_their_references() {
    for mut problem in all_problems(12, false).map(four) {
        let Kind::Convolution(layer) = &mut problem.kind else { panic!("{problem:?}") };
        layer.activation = Some(Activation::Clip { low: -1.0, high: 2.0 });
        both_ways(|| check(&Problem { mode: Mode::Evaluate, ..problem.clone() }));
    }
}

#[test]
fn halves_of_whole_tiles_have_the_bits_of_the_whole() {
    for problem in problems(12, true).map(two).chain(all_problems(12, true).map(four)) {
        both_ways(|| halves(&problem));
    }
}

fn bits(outcome: &Outcome) -> Vec<u32> {
    let gradients = outcome.gradients.iter();
    let gradients = gradients.flat_map(|g| g.inputs.iter().map(|i| &i.data).chain(&g.parameters));
    gradients.chain([&outcome.output.data]).flatten().map(|&v| (v as f32 + 0.0).to_bits()).collect()
}

/// Problems are small, and so are tiles: else there would be no order of them, and nothing for a second thread. Where a tile is a
/// block of channels there are at least two.
#[test]
fn problems_have_several_tiles() {
    let wide = (0..24).filter_map(|seed| problem(seed, 5, false));
    let kinds: [Vec<Problem>; 3] =
        [problems(24, false).map(two).collect(), problems(24, false).map(four).collect(), wide.map(four).collect()];
    for problems in kinds {
        let most_have = |pass: Pass, least: usize| {
            let tiles = |p: &Problem| p.stages().iter().find(|s| s.pass == pass).map_or(0, |s| s.tiles);
            let several = problems.iter().filter(|p| tiles(p) >= least).count();
            assert!(2 * several > problems.len(), "{pass:?}: {several} of {} have {least} tiles", problems.len());
        };
        let [windows, products] = [1, 2].map(|i| Pass::Transform(FORWARD[i]));
        let (forward, input) = (Pass::Forward, Pass::InputGradient(0));
        FORCED.set(Some(true));
        [windows, forward, input].into_iter().for_each(|pass| most_have(pass, 2));
        most_have(products, 3);
        FORCED.set(Some(false));
        [forward, input, Pass::Transform(GRADIENT), Pass::WeightGradient(0)].into_iter().for_each(|p| most_have(p, 3));
        FORCED.set(None);
    }
}

#[test]
fn stages_tile_orders_and_instruction_sets_agree_to_the_bit() {
    for problem in all_problems(16, false) {
        for problem in [four(problem.clone()), Problem { exact: false, ..two(problem) }] {
            let values = problem.values();
            let other = Problem { seed: problem.seed + 1, ..problem.clone() };
            let [staged, fused] = both_ways(|| bits(&problem.fast(&values)));
            assert_eq!(staged, fused, "staged and fused\n{problem:#?}");
            both_ways(|| assert_eq!(staged, bits(&other.fast(&values)), "another order of tiles\n{problem:#?}"));
            for set in [Set::Avx2, Set::Together, Set::Portable] {
                let found = isa::at_most(set, || bits(&problem.fast(&values)));
                assert_eq!(staged, found, "{set:?}\n{problem:#?}");
            }
        }
    }
}

/// Parts of an input's gradient, cut between tiles.
#[test]
fn parts_of_an_input_gradient_have_the_bits_of_the_whole() {
    for problem in all_problems(16, false).map(four) {
        let values = problem.values();
        let whole = problem.fast(&values).gradients.expect("training").inputs.remove(0);
        let geometry = problem.geometry();
        let (_, computed) = geometry.input_gradients[0].clone().expect("wanted");
        for axis in [Axis::Sample, Axis::Height, Axis::Width] {
            let size = problem.inputs[0].along(axis) as isize;
            // What lies beyond periodic ends is added to the other end: not the same sums.
            if size < 5 || computed != Region::whole(problem.inputs[0]) {
                continue;
            }
            let mut sum = vec![0.0; whole.data.len()];
            for (start, end) in [(0, 4), (4, size)] {
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
    for mut problem in all_problems(10, false).map(four) {
        let batch = 8 + problem.seed as usize % 3;
        problem.inputs[0] = problem.inputs[0].with_samples(batch);
        let values = problem.values();
        let output = Region::whole(problem.output());
        let half = crate::leaf_range(batch, 8, 4).start as isize;
        both_ways(|| {
            let whole = problem.fast(&values).gradients.expect("training").parameters;
            let parts = [(0, half), (half, batch as isize)].map(|(start, end)| {
                let geometry = problem.part(output.with(Axis::Sample, start, end));
                problem.fast_with(&values, &geometry).gradients.expect("training").parameters
            });
            for (p, whole) in whole.iter().enumerate() {
                let sums = parts[0][p].iter().zip(&parts[1][p]).map(|(a, b)| (*a as f32 + *b as f32) as f64);
                assert_eq!(sums.collect::<Vec<f64>>(), *whole, "parameter {p}\n{problem:#?}");
            }
        });
    }
}

/// The passes whose rounding is stated.
const PASSES: [Pass; 3] = [Pass::Forward, Pass::InputGradient(0), Pass::WeightGradient(0)];

/// Root mean squares of what is wrong in the passes' results.
fn errors(found: &Outcome, reference: &Outcome) -> [f64; 3] {
    let results = |outcome: &Outcome| {
        let gradients = outcome.gradients.as_ref().expect("training");
        [outcome.output.data.clone(), gradients.inputs[0].data.clone(), gradients.parameters[0].clone()]
    };
    let (found, wanted) = (results(found), results(reference));
    std::array::from_fn(|i| {
        let squares = found[i].iter().zip(&wanted[i]).map(|(a, b)| (a - b) * (a - b));
        (squares.sum::<f64>() / wanted[i].len() as f64).sqrt()
    })
}

/// Errors against double precision, as multiples of the direct convolution's: what [`Winograd`] states.
#[test]
fn rounding_errors_are_as_stated() {
    let shapes = [(Shape([2, 32, 1, 16, 16]), 32), (Shape([8, 16, 1, 8, 12]), 64), (Shape([1, 64, 1, 24, 20]), 16)];
    for (shape, filters) in shapes {
        for (taps, settings) in [
            (3, &[(Winograd::Two, "winograd 2x2", [1.2; 3]), (Winograd::Four, "winograd 4x4", [5.0; 3])][..]),
            (5, &[(Winograd::Four, "winograd 2x2 of 5x5", [4.0, 4.0, 7.5])][..]),
        ] {
            let layer = Convolution::new(filters, &[taps, taps]).padding(taps / 2).no_bias();
            let problem = Problem::new(Kind::Convolution(layer), &[shape]);
            let values = problem.values();
            let reference = problem.reference(&values);
            let direct = errors(&problem.fast(&values), &reference);
            for &(winograd, algorithm, most) in settings {
                let problem = Problem { winograd, ..problem.clone() };
                let geometry = problem.geometry();
                let found = errors(&problem.fast(&values), &reference);
                for (i, pass) in PASSES.into_iter().enumerate() {
                    assert_eq!(twin(&problem.kind).algorithm(pass, &geometry), Some(algorithm));
                    let times = found[i] / direct[i];
                    assert!(times <= most[i], "{algorithm}, {pass:?}: {times} times the error of direct, {shape}");
                }
            }
        }
    }
}

#[test]
fn the_size_follows_from_the_output() {
    let shape = |h, w| Shape([1, 16, 1, h, w]);
    let size = |setting, h, w| Size::choose(setting, 3, shape(h, w), shape(h, w));
    assert_eq!(size(Winograd::Four, 56, 56), Some(Size::Four));
    assert_eq!(size(Winograd::Four, 7, 7), Some(Size::Four));
    assert_eq!(size(Winograd::Four, 5, 5), Some(Size::Two), "as many products, and it rounds less");
    assert_eq!(size(Winograd::Four, 2, 2), Some(Size::Two));
    assert_eq!(size(Winograd::Four, 1, 1), None);
    assert_eq!(size(Winograd::Two, 56, 56), Some(Size::Two));
    assert_eq!(size(Winograd::Off, 56, 56), None);
    let wide = |setting| Size::choose(setting, 5, shape(8, 8), shape(8, 8));
    assert_eq!([Winograd::Four, Winograd::Two, Winograd::Off].map(wide), [Some(Size::Wide), None, None]);
    assert_eq!(Size::choose(Winograd::Four, 4, shape(8, 8), shape(8, 8)), None);
    let back = |size: usize| Size::choose(Winograd::Four, 5, shape(size + 4, size + 4), shape(size, size));
    assert_eq!([8, 24].map(back), [None, Some(Size::Wide)], "without padding the input is larger than the output");
}
