//! Winograd's convolutions against the reference, and what may not change a bit.

use super::{Direction, FORCED, Size, Square};
use crate::fast::isa::{self, Set};
use crate::fast::twin;
use crate::fast::windowed::{FORWARD, GRADIENT};
use crate::twin::{Numbers, Outcome, Problem, check, halves};
use crate::{Layout, Mode, Pass, Winograd};
use convoy_net::layers::{Activation, Convolution, Windows};
use convoy_net::{Axis, Edge, Kind, Region, Shape};

const THREE: Square = Square { taps: 3, stride: 1 };
const FIVE: Square = Square { taps: 5, stride: 1 };
const STEPPED: Square = Square { taps: 3, stride: 2 };

/// A random layer and input with such windows; one in three has no padding, and fewer tiles of the output than of the input. `even`: the
/// output's sizes are multiples of 8, so that halves are whole tiles.
fn problem(seed: u64, square: Square, even: bool) -> Option<Problem> {
    let Square { taps, stride } = square;
    let mut numbers = Numbers::new(seed);
    let padded = numbers.below(3) > 0;
    let most = if padded { [4, 3] } else { [1, 1] };
    let padding: Vec<[usize; 2]> = (0..2).map(|_| most.map(|most| numbers.below(most))).collect();
    let mut size = |axis: usize| match even {
        true => stride * (8 * (1 + numbers.below(2)) - 1) + taps - padding[axis].iter().sum::<usize>(),
        // With stride 2, what pays is near to whole tiles.
        false if stride == 2 => {
            let output = 4 * (1 + numbers.below(3)) - numbers.below(2) * numbers.below(2);
            let used = stride * (output - 1) + taps + numbers.below(2);
            used - padding[axis].iter().sum::<usize>()
        }
        false if padded => 1 + numbers.below(14),
        false => 4 * (1 + numbers.below(2)) - numbers.below(2) + taps - 1,
    };
    let (h, w) = (size(0), size(1));
    let (channels, filters) = (16 + numbers.below(25), 16 + numbers.below(25));
    let shape = Shape([1 + numbers.below(9), channels, 1 + numbers.below(2), h, w]);
    let edge = if numbers.below(3) == 0 { Edge::Periodic } else { Edge::Zero };
    let windows = Windows { padding, stride: vec![stride; 2], ..Windows::new(&[taps, taps]) };
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

/// The others round. An output is a sum of `terms` products; transforms add the rounding of about a hundred more.
fn four(problem: Problem) -> Problem {
    let output = problem.output();
    let taps = problem.kind.operation().parameters(&problem.inputs)[0].shape[2..].iter().product::<usize>();
    let channels = problem.inputs[0].channels().max(output.channels());
    let terms = (taps * channels).max(output.samples() * output.points());
    let tolerance = (terms + 100) as f64 * f32::EPSILON as f64;
    Problem { winograd: Winograd::Four, exact: false, tolerance, accumulate: false, ..problem }
}

fn problems(square: Square, count: u64, even: bool) -> impl Iterator<Item = Problem> {
    (0..count).filter_map(move |seed| problem(seed, square, even))
}

/// Of all kinds of windows.
fn all_problems(count: u64, even: bool) -> impl Iterator<Item = Problem> {
    [THREE, FIVE, STEPPED].into_iter().flat_map(move |square| problems(square, count, even))
}

/// The problem's window.
fn square(problem: &Problem) -> Square {
    let Kind::Convolution(layer) = &problem.kind else { panic!("{problem:?}") };
    let (taps, stride, ..) = layer.windows.along(2);
    Square { taps, stride }
}

/// The size of an input gradient that is forward's adjoint, if this one is.
fn adjoint(problem: &Problem) -> Option<Size> {
    let square = square(problem);
    let (size, direction) = Size::choose_for_input(problem.winograd, square, problem.inputs[0], problem.output())?;
    (direction == Direction::Adjoint).then_some(size)
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
    for problem in problems(THREE, 24, false).map(two).chain(all_problems(24, false).map(four)) {
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
    for problem in problems(THREE, 12, true).map(two).chain(all_problems(12, true).map(four)) {
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
    let small = problems(THREE, 24, false).map(two).collect::<Vec<_>>();
    let others = [THREE, FIVE, STEPPED].map(|square| problems(square, 24, false).map(four).collect());
    for problems in [small].into_iter().chain(others) {
        let most_have = |pass: Pass, least: usize| {
            let tiles = |p: &Problem| p.stages().iter().find(|s| s.pass == pass).map_or(0, |s| s.tiles);
            let several = problems.iter().filter(|p| tiles(p) >= least).count();
            assert!(2 * several > problems.len(), "{pass:?}: {several} of {} have {least} tiles", problems.len());
        };
        let windows = Pass::Transform(FORWARD[1]);
        let (forward, input) = (Pass::Forward, Pass::InputGradient(0));
        FORCED.set(Some(true));
        most_have(windows, 2);
        [forward, input].into_iter().for_each(|pass| most_have(pass, 3));
        FORCED.set(Some(false));
        [forward, input, Pass::Transform(GRADIENT), Pass::WeightGradient(0)].into_iter().for_each(|p| most_have(p, 3));
        FORCED.set(None);
    }
}

/// Of every size, some input gradients are forward's adjoint, with and without a gradient that is there already.
#[test]
fn problems_have_adjoints() {
    let problems: Vec<Problem> = problems(THREE, 16, false).map(two).chain(all_problems(16, false).map(four)).collect();
    for size in [Size::Four, Size::Two, Size::Wide, Size::Stepped] {
        let adjoints: Vec<&Problem> = problems.iter().filter(|p| adjoint(p) == Some(size)).collect();
        let tiles = |p: &Problem| p.stages().last().map_or(0, |stage| stage.tiles);
        let [staged, fused] = both_ways(|| adjoints.iter().filter(|p| tiles(p) >= 3).count());
        let added = adjoints.iter().filter(|p| p.accumulate).count();
        let enough = staged >= 2 && fused >= 3 && (added > 0 || size != Size::Two);
        assert!(enough, "{size:?}: {} {staged} {fused} {added}", adjoints.len());
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

/// Whether all tiles of forward's adjoint whose windows touch point `at` along an axis are read in full by `part`.
fn whole_tiles(problem: &Problem, size: Size, axis: Axis, part: (isize, isize), at: isize) -> bool {
    let Kind::Convolution(layer) = &problem.kind else { panic!("{problem:?}") };
    let (taps, stride, _, [before, _]) = layer.windows.along(axis as usize - Axis::Depth as usize);
    let [taps, stride, before, output] = [taps, stride, before, problem.output().along(axis)].map(|n| n as isize);
    let (tile, window) = (size.tile() as isize, size.window() as isize);
    let reads = |o: &isize| (o * stride - before..o * stride - before + taps).any(|i| (part.0..part.1).contains(&i));
    let reaching: Vec<isize> = (0..output).filter(reads).collect();
    let (first, end) = (reaching.first().copied().unwrap_or(0), reaching.last().map_or(0, |last| last + 1));
    let touches = |start: &isize| (start * stride - before..start * stride - before + window).contains(&at);
    (0..output).step_by(tile as usize).filter(touches).all(|s| first <= s && (s + tile).min(output) <= end)
}

/// Parts of an input's gradient, cut between tiles; of forward's adjoint, whose windows overlap, where they read whole tiles.
#[test]
fn parts_of_an_input_gradient_have_the_bits_of_the_whole() {
    let (mut same, mut others) = (0, 0);
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
            let along: Vec<isize> = whole.indices().map(|at| at[axis as usize] as isize).collect();
            let largest = whole.data.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
            for (start, end) in [(0, 4), (4, size)] {
                let part = computed.with(axis, start, end);
                let mut geometry = geometry.clone();
                geometry.input_gradients[0] = Some((Layout::blocked(part), part));
                let part = problem.fast_with(&values, &geometry).gradients.expect("training").inputs.remove(0);
                for ((&at, &found), &wanted) in along.iter().zip(&part.data).zip(&whole.data) {
                    if !(start..end).contains(&at) {
                        assert_eq!(found, 0.0, "{axis:?} {at} is outside of the part\n{problem:#?}");
                        continue;
                    }
                    match adjoint(&problem).filter(|_| axis != Axis::Sample) {
                        Some(size) if !whole_tiles(&problem, size, axis, (start, end), at) => {
                            others += usize::from(found != wanted);
                            let error = (found - wanted).abs() / largest;
                            assert!(error <= problem.tolerance, "{axis:?} {at}: {error}\n{problem:#?}");
                        }
                        adjoint => {
                            same += usize::from(adjoint.is_some());
                            assert_eq!(found, wanted, "{axis:?} {at}\n{problem:#?}");
                        }
                    }
                }
            }
        }
    }
    assert!(same > 0 && others > 0, "adjoints: {same} points of whole tiles, {others} with other bits");
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
    let mut adjoints = std::collections::BTreeSet::new();
    for (n, channels, h, w, filters) in
        [(2, 32, 16, 16, 32), (8, 16, 8, 12, 64), (1, 64, 24, 20, 16), (1, 64, 16, 20, 16)]
    {
        let two = |most| (Winograd::Two, "winograd 2x2", most);
        let four = |most| (Winograd::Four, "winograd 4x4", most);
        let wide = |most| (Winograd::Four, "winograd 2x2 of 5x5", most);
        // Without padding, of the same outputs, most input gradients are forward's adjoint.
        let stepped = |most| (Winograd::Four, "winograd 4x4 of stride 2", most);
        for (Square { taps, stride }, padding, settings) in [
            (THREE, 1, vec![two([1.2; 3]), four([5.0; 3])]),
            (FIVE, 2, vec![wide([4.0, 4.0, 7.5])]),
            (THREE, 0, vec![two([1.2; 3]), four([5.0; 3])]),
            (FIVE, 0, vec![wide([4.0, 4.0, 7.5])]),
            (STEPPED, 1, vec![stepped([4.0, 4.0, 2.0])]),
        ] {
            let layer = Convolution::new(filters, &[taps, taps]).padding(padding).stride(stride).no_bias();
            let size = |output: usize| stride * (output - 1) + taps - 2 * padding;
            let shape = Shape([n, channels, 1, size(h), size(w)]);
            let problem = Problem::new(Kind::Convolution(layer), &[shape]);
            let values = problem.values();
            let reference = problem.reference(&values);
            let direct = errors(&problem.fast(&values), &reference);
            for (winograd, algorithm, most) in settings {
                let problem = Problem { winograd, ..problem.clone() };
                if adjoint(&problem).is_some() {
                    assert!(padding == 0 || stride == 2);
                    adjoints.insert(algorithm);
                }
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
    assert_eq!(adjoints.len(), 4, "{adjoints:?}");
}

#[test]
fn the_size_follows_from_the_output() {
    let shape = |h, w| Shape([1, 16, 1, h, w]);
    let size = |setting, h, w| Size::choose(setting, THREE, shape(h, w));
    assert_eq!(size(Winograd::Four, 56, 56), Some(Size::Four));
    assert_eq!(size(Winograd::Four, 7, 7), Some(Size::Four));
    assert_eq!(size(Winograd::Four, 5, 5), Some(Size::Two), "as many products, and it rounds less");
    assert_eq!(size(Winograd::Four, 2, 2), Some(Size::Two));
    assert_eq!(size(Winograd::Four, 1, 1), None);
    assert_eq!(size(Winograd::Two, 56, 56), Some(Size::Two));
    assert_eq!(size(Winograd::Off, 56, 56), None);
    let wide = |setting| Size::choose(setting, FIVE, shape(8, 8));
    assert_eq!([Winograd::Four, Winograd::Two, Winograd::Off].map(wide), [Some(Size::Wide), None, None]);
    assert_eq!(Size::choose(Winograd::Four, Square { taps: 4, stride: 1 }, shape(8, 8)), None);
    let stepped = |setting, points| Size::choose(setting, STEPPED, shape(points, points));
    assert_eq!([28, 16, 8, 4].map(|points| stepped(Winograd::Four, points)), [Some(Size::Stepped); 4]);
    assert_eq!([14, 7].map(|points| stepped(Winograd::Four, points)), [None; 2], "tiles at the ends have too little");
    assert_eq!([Winograd::Two, Winograd::Off].map(|setting| stepped(setting, 16)), [None; 2]);
    assert_eq!(Size::choose(Winograd::Four, Square { taps: 5, stride: 2 }, shape(8, 8)), None);
    let over = Size::choose_for_input(Winograd::Four, STEPPED, shape(16, 16), shape(8, 8));
    assert_eq!(over, Some((Size::Stepped, Direction::Adjoint)));
    let back = |taps, input: usize, output: usize| {
        Size::choose_for_input(Winograd::Four, Square { taps, stride: 1 }, shape(input, input), shape(output, output))
    };
    assert_eq!(back(5, 12, 8), Some((Size::Wide, Direction::Adjoint)), "without padding the output has fewer tiles");
    assert_eq!(back(5, 8, 8), Some((Size::Wide, Direction::Backward)));
    assert_eq!(back(5, 8, 12), Some((Size::Wide, Direction::Backward)), "with more padding the input has");
    assert_eq!(back(3, 12, 10), Some((Size::Four, Direction::Backward)), "as many");
    assert_eq!(back(3, 10, 8), Some((Size::Four, Direction::Adjoint)));
    assert_eq!(back(3, 42, 40), Some((Size::Four, Direction::Adjoint)));
    assert_eq!(back(3, 58, 56), Some((Size::Four, Direction::Backward)), "not by a sixth");
    assert_eq!(back(3, 3, 1), None);
}
