//! Every window under every strategy: a convolution between two others has the output, the input's gradient and the weights' gradients
//! of one rank, bit for bit.
//!
//! Always true
//! - Outputs of any numbers have the bits of one rank where samples, space or filters are cut (see `keeps_bits`): a sum is made by one
//!   rank, in one order.
//! - Gradients are sums over ranks, in orders of their own. Inputs, weights and the loss's gradient are therefore small whole numbers:
//!   sums below 2^24 are exact, and have the same bits in every order.

mod harness;

use convoy_comm::Communicator;
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::{BLOCK, Mode, Moment, Update, Winograd};
use convoy_net::layers::*;
use convoy_net::{Kind, Loss, Network, Region, Sampling, Shape};
use convoy_program::{Number, Options, lower};
use convoy_split::{Rank, Strategy};
use harness::breaks::*;
use harness::*;
use std::collections::BTreeMap;

/// Filters of the last convolution.
const LAST: usize = 3;

/// A convolution, between one that shows its input's gradient and one that gives it a gradient of its own.
#[derive(Clone, Debug)]
struct Problem {
    /// Channels and sizes.
    input: Vec<usize>,
    batch: usize,
    /// Filters of the first convolution and of the one in question.
    filters: [usize; 2],
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    groups: usize,
}

impl Problem {
    fn network(&self) -> Network {
        let axes = self.input.len() - 1;
        let mut net = Network::new("layers", &self.input);
        let probe = Convolution::new(self.filters[0], &vec![3; axes]).padding(1);
        net.push("probe", Kind::Convolution(probe));
        let mut middle = Convolution::new(self.filters[1], &vec![self.kernel; axes]);
        middle = middle.stride(self.stride).padding(self.padding).dilation(self.dilation);
        middle.groups = self.groups;
        net.push("middle", Kind::Convolution(middle));
        net.push("last", Kind::Convolution(Convolution::new(LAST, &vec![1; axes])));
        net.loss = Loss::MeanSquaredError;
        net
    }
}

/// What is compared: an output of any numbers, and of whole ones the output, the loss and all gradients by name.
#[derive(Debug, PartialEq)]
struct Found {
    output: Vec<u32>,
    whole: Whole,
}

#[derive(Debug, PartialEq)]
struct Whole {
    output: Vec<u32>,
    loss: u64,
    gradients: BTreeMap<String, Vec<u32>>,
}

/// A whole number from -`most` to `most`.
fn whole(seed: u64, at: &[usize], most: i32) -> f32 {
    let values = 2 * most + 1;
    ((number(seed, at) + 1.0) * 2048.0) as i32 as f32 % values as f32 - most as f32
}

/// Zero has one sign: what nothing is added to has that of its factors.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

/// The program of a step without learning is the first, that of an evaluation the second.
fn engine_of(
    net: &Network,
    strategy: &Strategy,
    (batch, winograd): (usize, Winograd),
    rank: Communicator,
    change: Break,
) -> Engine {
    // The momentum of the first step is the gradient.
    let update = Update::Sgd { momentum: 0.5, nesterov: false, weight_decay: 0.0 };
    let program = |mode| {
        let options = Options { mode, winograd, update, ..harness::options(batch, Default::default()) };
        let mut program = lower(net, strategy, Rank(rank.rank()), &options).unwrap();
        change(&mut program);
        program
    };
    Engine::new(net, vec![program(Mode::Train), program(Mode::Evaluate)], 1, rank, Settings::default())
}

/// What a rank owns of the output, evaluated.
fn evaluate(engine: &mut Engine, value: impl Fn([usize; 5]) -> f32) -> (Region, Vec<f32>) {
    let program = engine.program(1);
    let (images, targets) = (dense(&program.images, 0, value), vec![0.0; program.targets]);
    let mut output = vec![0.0; program.owned.len()];
    let owned = program.owned;
    engine.step(1, Batch { images: &images, targets: &targets }, Moment::default()).unwrap();
    engine.output(1, &mut output);
    (owned, output)
}

/// The whole of a tensor of which ranks own regions.
fn join(shape: Shape, parts: impl Iterator<Item = (Region, Vec<f32>)>) -> Vec<f32> {
    let mut all = vec![None; shape.len()];
    for (region, values) in parts {
        let places = dense(&region, 0, |at| at.iter().zip(shape.0).fold(0, |i, (&a, size)| i * size + a) as f32);
        for (place, value) in places.into_iter().zip(values) {
            assert_eq!(all[place as usize].replace(value), None, "two ranks own an element");
        }
    }
    all.into_iter().map(|value| value.expect("nobody owns an element")).collect()
}

/// How large the loss's gradient is where it is not zero. Its factor is rounded: of some multiples of the mean's count, the product is a
/// whole number all the same.
fn unit(count: usize) -> f32 {
    let scale = 2.0 * (1.0 / count as f64) as f32;
    (1..64).map(|unit| unit as f32).find(|unit| count as f32 / 2.0 * unit * scale == *unit).expect("a whole gradient")
}

/// Everything, put together from the ranks. `known` is the output of whole numbers, if it is known; targets are then so far from it that
/// the loss's gradient is minus one, zero or one unit.
fn run(
    problem: &Problem,
    net: &Network,
    strategy: &Strategy,
    known: Option<&[f32]>,
    change: Break,
) -> (Found, Vec<f32>) {
    let shape = *net.shapes(problem.batch).unwrap().last().unwrap();
    let far = shape.len() as f32 / 2.0 * unit(shape.len());
    let ranks = on_ranks(strategy.ranks, |rank| {
        let mut engine = engine_of(net, strategy, (problem.batch, Winograd::Off), rank, change);
        give(&mut engine, net, |_, at| number(9, &at));
        let any = evaluate(&mut engine, |at| number(1, &at));
        give(&mut engine, net, |_, at| whole(9, &at, 1));
        let exact = evaluate(&mut engine, |at| whole(1, &at, 2));
        let program = engine.program(0);
        let images = dense(&program.images, 0, |at| whole(1, &at, 2));
        let own: &[f32] = &exact.1;
        let places = dense(&program.owned, 0, |at| at.iter().zip(shape.0).fold(0, |i, (&a, s)| i * s + a) as f32);
        let away = dense(&program.owned, 0, |at| whole(2, &at, 1) * far);
        // One rank's output, not this rank's own: what is wrong in it is seen in the gradient, too.
        let output = |i: usize| known.map_or(own[i], |known| known[places[i] as usize]);
        let targets: Vec<f32> = away.iter().enumerate().map(|(i, away)| output(i) - away).collect();
        let still = Moment { learning_rate: 0.0, ..Moment::default() };
        let sums = engine.step(0, Batch { images: &images, targets: &targets }, still).unwrap();
        let loss = convoy_kernels::fast::measure(&net.loss, sums).loss;
        (any, exact, loss, kept(net, &engine))
    });
    let output = join(shape, ranks.iter().map(|rank| rank.0.clone()));
    let exact = join(shape, ranks.iter().map(|rank| rank.1.clone()));
    let loss = ranks[0].2;
    assert!(ranks.iter().all(|rank| rank.2 == loss), "ranks disagree on the loss");
    let (kept, agree) = together(ranks.into_iter().map(|rank| rank.3).collect());
    assert!(agree, "ranks disagree on gradients");
    let gradients = kept.into_iter().filter(|(name, _)| name.contains("state"));
    let gradients: BTreeMap<String, Vec<u32>> = gradients.map(|(name, values)| (name, bits(&values))).collect();
    let whole = Whole { output: bits(&exact), loss: loss.to_bits(), gradients };
    (Found { output: bits(&output), whole }, exact)
}

/// One rank's result; its sums are exact.
fn run_one(problem: &Problem, net: &Network) -> (Found, Vec<f32>) {
    let shapes = net.shapes(problem.batch).unwrap();
    // The longest sums of the largest terms: an element of the first convolution's weights' gradient, over all points; each term is an
    // input and a gradient, which is a sum over the middle's windows and filters of what the last one's filters bring back.
    let points = shapes[1].points() * problem.batch;
    let taps = problem.kernel.pow(problem.input.len() as u32 - 1);
    let back = taps * problem.filters[1] / problem.groups * LAST * unit(shapes[3].len()) as usize;
    assert!(points * 2 * back < 1 << 24, "{problem:?}: sums may be rounded");
    // The largest output: three layers of windows over the largest input.
    let forward = 2 * 3usize.pow(problem.input.len() as u32 - 1) * problem.input[0] + 1;
    let forward = (forward * taps * problem.filters[0] / problem.groups + 1) * problem.filters[1] + 1;
    assert!(
        forward + shapes[3].len() * unit(shapes[3].len()) as usize / 2 < 1 << 23,
        "{problem:?}: outputs may be rounded"
    );
    let found = run(problem, net, &Strategy::single(net), None, |_| {});
    for (name, gradient) in &found.0.whole.gradients {
        let values = || gradient.iter().map(|bits| f32::from_bits(*bits));
        assert!(values().all(|g| g.fract() == 0.0) && values().any(|g| g != 0.0), "{name} of {problem:?}");
    }
    found
}

/// Every window of these, one after the other.
fn windows(mut each: impl FnMut(Problem)) {
    let shapes: [(&[usize], usize, [usize; 2]); 3] =
        [(&[3, 9, 7], 4, [8, 8]), (&[2, 11, 8], 3, [18, 20]), (&[2, 5, 5, 6], 2, [4, 6])];
    for (input, batch, filters) in shapes {
        for kernel in [1, 2, 3, 5] {
            for stride in [1, 2, 3] {
                for padding in [0, 1, 2] {
                    for dilation in [1, 2] {
                        for groups in [1, 2] {
                            let input = input.to_vec();
                            each(Problem { input, batch, filters, kernel, stride, padding, dilation, groups });
                        }
                    }
                }
            }
        }
    }
}

/// Whether outputs of any numbers have the bits of one rank. Where input channels are cut, sums are. A rank that has some of the groups
/// lays its channels out from the first of them, and sums go block by block: the order is another where a group lies across blocks.
fn keeps_bits(problem: &Problem, text: &str) -> bool {
    let group = problem.filters[0] / problem.groups;
    let across = problem.groups > 1 && !BLOCK.is_multiple_of(group) && !group.is_multiple_of(BLOCK);
    !(text.contains("channel") || across && text.contains("filter"))
}

/// Strategies with their numbers of ranks.
const STRATEGIES: [(usize, &str); 37] = [
    (2, "data"),
    (3, "data"),
    (4, "data"),
    (6, "data"),
    (8, "data"),
    (2, "spatial"),
    (3, "spatial"),
    (4, "spatial"),
    (6, "spatial"),
    (8, "spatial"),
    (2, "spatial:1x2"),
    (3, "spatial:1x3"),
    (4, "spatial:1x4"),
    (4, "spatial:2x2"),
    (6, "spatial:3x2"),
    (8, "spatial:4x2"),
    (2, "spatial:2x1x1"),
    (3, "spatial:3x1x1"),
    (4, "spatial:2x2x1"),
    (6, "spatial:2x1x3"),
    (8, "spatial:2x2x2"),
    (2, "filter"),
    (3, "filter"),
    (4, "filter"),
    (6, "filter"),
    (8, "filter"),
    (2, "channel"),
    (3, "channel"),
    (4, "channel"),
    (6, "channel"),
    (8, "channel"),
    (4, "data:2,filter:2"),
    (6, "data:3,filter:2"),
    (4, "data:2,spatial:2"),
    (6, "data:2,spatial:3"),
    (8, "data:2,spatial:2x2"),
    (8, "data:2,filter:2,channel:2"),
];

#[test]
fn every_window_under_every_strategy_has_the_bits_of_one_rank() {
    // All windows, each under three strategies that a counter draws: all of them would take minutes. Those that cannot cut the middle layer
    // as they say (fewer points than ranks, groups that would be cut, no depth) are passed over.
    const EACH: usize = 3;
    let mut turn = 0;
    let mut ran = [0; STRATEGIES.len()];
    windows(|problem| {
        let net = problem.network();
        let Ok(shapes) = net.shapes(problem.batch) else { return };
        let (one, exact) = run_one(&problem, &net);
        let mut left = EACH;
        while left > 0 {
            turn += 1;
            let at = ((number(3, &[turn]) + 1.0) * 2048.0) as usize % STRATEGIES.len();
            let (ranks, text) = STRATEGIES[at];
            let strategy = Strategy::parse(text, ranks, &net, &shapes);
            let Some(strategy) = strategy.ok().filter(|s| s.placements[2].grid.to_string() == s.name) else { continue };
            check(&problem, &net, (text, &strategy), (&one, &exact));
            (ran[at], left) = (ran[at] + 1, left - 1);
        }
    });
    assert!(ran.iter().sum::<usize>() >= 1000 && ran.iter().all(|ran| *ran >= 4), "{ran:?}");
}

fn check(problem: &Problem, net: &Network, (text, strategy): (&str, &Strategy), (one, exact): (&Found, &[f32])) {
    let (found, _) = run(problem, net, strategy, Some(exact), |_| {});
    let wrong = || format!("{problem:?} under {text} on {}", strategy.ranks);
    assert!(found.whole == one.whole, "{}: {}", wrong(), apart(&found, one));
    assert!(found.output == one.output || !keeps_bits(problem, text), "{}: other outputs", wrong());
}

/// Which results are not the same.
fn apart(found: &Found, one: &Found) -> String {
    let mut names: Vec<&str> = vec![];
    names.extend((found.whole.output != one.whole.output).then_some("output"));
    names.extend((found.whole.loss != one.whole.loss).then_some("loss"));
    let gradients = one.whole.gradients.iter().filter(|(name, values)| found.whole.gradients[*name] != **values);
    names.extend(gradients.map(|(name, _)| name.as_str()));
    names.join(", ")
}

#[test]
fn broken_programs_are_noticed() {
    let (input, filters) = (vec![2, 11, 8], [18, 20]);
    let problem = Problem { input, batch: 3, filters, kernel: 3, stride: 1, padding: 1, dilation: 1, groups: 1 };
    let net = problem.network();
    let (one, exact) = run_one(&problem, &net);
    let strategy = Strategy::parse("spatial", 3, &net, &net.shapes(problem.batch).unwrap()).unwrap();
    let breaks: [(&str, Break); 3] = [
        ("a halo shifted by a row", shift_halos),
        ("neighbours in each other's place", swap_neighbours),
        ("a dropped reduction of gradients", |p| drop_sums(p, Number::Single)),
    ];
    for (what, change) in breaks {
        let (broken, _) = run(&problem, &net, &strategy, Some(&exact), change);
        assert!(broken.whole.gradients != one.whole.gradients, "nobody noticed {what}");
    }
}

/// The output of any numbers, evaluated.
fn output(net: &Network, strategy: &Strategy, batch: usize, winograd: Winograd) -> Vec<u32> {
    let ranks = on_ranks(strategy.ranks, |rank| {
        let mut engine = engine_of(net, strategy, (batch, winograd), rank, |_| {});
        give(&mut engine, net, start);
        evaluate(&mut engine, |at| number(1, &at))
    });
    bits(&join(*net.shapes(batch).unwrap().last().unwrap(), ranks.into_iter()))
}

/// Convolutions, pooling, and whatever looks at points one by one.
fn forward() -> Network {
    let mut net = Network::new("forward", &[3, 16, 12]);
    net.push("in", Kind::Convolution(Convolution::new(18, &[3, 3]).padding(1)));
    let a = net.push("relu", Kind::Activation(Activation::Relu));
    let windows = Windows::new(&[3, 3]).padded(1);
    net.push("average", Kind::AveragePool(AveragePool { windows, ..AveragePool::new(&[3, 3]) }));
    net.push("silu", Kind::Activation(Activation::Silu));
    let b = net.push("again", Kind::Convolution(Convolution::new(18, &[3, 3]).padding(1)));
    net.join("product", Kind::Multiply(Multiply), &[a, b]);
    let c = net.push("tanh", Kind::Activation(Activation::Tanh));
    let sum = net.join("sum", Kind::Add(Add), &[b, c]);
    net.join("both", Kind::Concat(Concat), &[a, sum]);
    net.push("pool", Kind::MaxPool(MaxPool::new(&[2, 2])));
    net.push("up", Kind::Upsample(Upsample { scale: vec![2, 2], sampling: Sampling::Linear }));
    net.push("wide", Kind::Convolution(Convolution::new(20, &[5, 5]).padding(2)));
    net.push("sigmoid", Kind::Activation(Activation::Sigmoid));
    net.push("out", Kind::Convolution(Convolution::new(LAST, &[3, 3]).padding(1)));
    net.loss = Loss::MeanSquaredError;
    net
}

/// A rank makes a sum alone and in one order, unless input channels are cut. Winograd's tiles of 4 x 4 points are made whole where cuts
/// are multiples of four, and elsewhere round otherwise.
#[test]
fn outputs_without_norms_have_the_bits_of_one_rank() {
    let (net, batch) = (forward(), 3);
    let shapes = net.shapes(batch).unwrap();
    let one = |winograd| output(&net, &Strategy::single(&net), batch, winograd);
    let (direct, by_tiles) = (one(Winograd::Off), one(Winograd::Four));
    let (mut whole_tiles, mut other_bits) = (0, 0);
    let possible = |text: &str| !text.contains("channel") && text.matches('x').count() < 2;
    for (ranks, text) in STRATEGIES.into_iter().filter(|s| possible(s.1)) {
        let strategy = Strategy::parse(text, ranks, &net, &shapes).unwrap();
        assert!(output(&net, &strategy, batch, Winograd::Off) == direct, "{text} on {ranks}");
        let [_, rows, columns] = strategy.placements[1].grid.space();
        let whole = |size: usize, parts: usize| size.is_multiple_of(4 * parts);
        let whole = whole(shapes[1].0[3], rows) && whole(shapes[1].0[4], columns);
        let same = output(&net, &strategy, batch, Winograd::Four) == by_tiles;
        assert!(same || !whole, "{text} on {ranks} by tiles");
        whole_tiles += usize::from(whole);
        other_bits += usize::from(!same);
    }
    assert!(whole_tiles >= 15 && other_bits > 0, "{whole_tiles} with whole tiles, {other_bits} with other bits");
}
