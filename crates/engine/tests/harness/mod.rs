//! Runs networks under strategies and compares what comes out.
#![allow(dead_code)]

pub mod breaks;

use convoy_comm::{Communicator, Kind};
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::{Mode, Moment, Update, Winograd, fast};
use convoy_net::layers::*;
use convoy_net::{Axis, Kind as Layer, LayerId, Network, Parameter, Region};
use convoy_program::{Action, BufferId, Division, Options, Program, Purpose, Subject, What, layer_of, lower};
use convoy_split::{Rank, Strategy};
use std::collections::{BTreeMap, HashMap};

/// A number that looks random, from where it stands.
pub fn number(seed: u64, at: &[usize]) -> f32 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    for &i in at {
        x = (x ^ i as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 29;
    }
    (x % 4096) as f32 / 2048.0 - 1.0
}

const UPDATE: Update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-3 };

/// How a network is run.
#[derive(Clone, Copy)]
pub struct Way {
    pub batch: usize,
    /// The batch of every fifth step, if it is another one: the last of an epoch of five.
    pub last: Option<usize>,
    pub winograd: Winograd,
    pub threads: usize,
    pub settings: Settings,
    pub division: Division,
    pub update: Update,
    /// The first sample of the batch: others are those of a part of a larger one.
    pub first: usize,
    /// By which part of themselves first weights are off at most.
    pub off: f32,
}

/// One worker in each rank.
pub fn plain(batch: usize) -> Way {
    Way {
        batch,
        last: None,
        winograd: Winograd::default(),
        threads: 1,
        settings: Settings::default(),
        division: Division::default(),
        update: UPDATE,
        first: 0,
        off: 0.0,
    }
}

/// What programs are made for.
pub fn options(batch: usize, division: Division) -> Options {
    Options { batch, mode: Mode::Train, leaves: 8, winograd: Default::default(), update: UPDATE, division }
}

/// Losses of the steps, and all parameters and states by name, put together from the ranks' shares.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// Whether ranks that have the same have it with the same bits.
    pub agree: bool,
    pub losses: Vec<f64>,
    pub kept: BTreeMap<String, Vec<f32>>,
}

/// A step's images.
pub fn images(program: &Program, step: usize, first: usize) -> Vec<f32> {
    dense(&program.images, first, |at| number(step as u64 + 1, &at))
}

/// A step's targets.
pub fn targets(network: &Network, program: &Program, step: usize, first: usize) -> Vec<f32> {
    let mut region = program.owned;
    if network.loss.takes_labels() {
        let classes = network.shapes(1).unwrap().last().unwrap().channels();
        region = region.with(Axis::Channel, 0, !region.is_empty() as isize);
        return dense(&region, first, |at| {
            ((number(step as u64 + 77, &at) + 1.0) * 2048.0) as usize as f32 % classes as f32
        });
    }
    dense(&region, first, |at| number(step as u64 + 77, &at))
}

pub fn dense(region: &Region, first: usize, value: impl Fn([usize; 5]) -> f32) -> Vec<f32> {
    let s = region.shape().0;
    let region = region.shifted([first as isize, 0, 0, 0, 0]);
    let at = |i: usize| {
        [
            i / (s[1] * s[2] * s[3] * s[4]),
            i / (s[2] * s[3] * s[4]) % s[1],
            i / (s[3] * s[4]) % s[2],
            i / s[4] % s[3],
            i % s[4],
        ]
    };
    (0..region.len()).map(|i| value(std::array::from_fn(|a| (at(i)[a] as isize + region.start[a]) as usize))).collect()
}

/// A start that depends on nothing but a parameter's place in the network: its layer's name as a number, its own, an element's.
pub fn start(parameter: &Parameter, at: [usize; 3]) -> f32 {
    let fan = (parameter.len() / parameter.shape[0]).max(1) as f32;
    match parameter.init {
        convoy_net::Init::Constant(c) => c,
        _ => number(9, &at) * 1.5 / fan.sqrt(),
    }
}

/// Gives an engine weights.
pub fn give(engine: &mut Engine, network: &Network, value: impl Fn(&Parameter, [usize; 3]) -> f32) {
    let shapes = network.shapes(1).unwrap();
    for (l, layer) in network.layers.iter().enumerate() {
        for (p, parameter) in network.parameters(LayerId(l), &shapes).iter().enumerate() {
            let program = engine.program(0);
            let packing = program.packing(network, LayerId(l), p);
            let places: Vec<usize> = parameter.runs(&program.share(LayerId(l), parameter)).flatten().collect();
            let name = layer.name.bytes().fold(0, |hash, byte| hash * 31 % 1_000_003 + byte as usize);
            let at = program.kept_at(LayerId(l), p);
            let memory = engine.kept_mut(at.parameter).unwrap();
            for (&place, i) in packing.places.iter().zip(places) {
                let Some(here) = at.index(place, memory.len()) else { continue };
                memory[here] = value(parameter, [name, p, i]);
            }
        }
    }
}

/// How to break a program on purpose.
pub type Break = fn(&mut Program);

/// A rank's engine with its programs and first weights.
pub fn engine(network: &Network, strategy: &Strategy, way: Way, rank: Communicator, change: Break) -> Engine {
    let program = |batch: usize| {
        let options = Options { update: way.update, winograd: way.winograd, ..options(batch, way.division) };
        let mut program = lower(network, strategy, Rank(rank.rank()), &options).unwrap();
        assert_eq!(program.verify(), Ok(()));
        change(&mut program);
        program
    };
    let programs: Vec<Program> = [way.batch].into_iter().chain(way.last).map(program).collect();
    let most = |of: fn(&Program) -> usize| programs.iter().map(of).max().unwrap();
    // What stays from step to step is the same in all of them.
    let planned = programs[0].kept_bytes() + most(|p| p.memory.step_bytes) + most(|p| p.scratch()) * 4 * way.threads;
    let mut engine = Engine::new(network, programs, way.threads, rank, way.settings);
    assert_eq!(engine.bytes(), planned, "what is allocated is what was planned");
    give(&mut engine, network, |parameter, at| start(parameter, at) * (1.0 + way.off * number(11, &at)));
    engine
}

/// The losses of some steps.
pub fn steps(network: &Network, engine: &mut Engine, way: Way, count: usize) -> Vec<f64> {
    (0..count)
        .map(|step| {
            let program = usize::from(way.last.is_some() && step % 5 == 4);
            let images = images(engine.program(program), step, way.first);
            let targets = targets(network, engine.program(program), step, way.first);
            let moment = Moment { seed: 5, step: step as u64, learning_rate: 0.05 };
            let kinds = [
                (Kind::Reduction, Purpose::Reduction),
                (Kind::Halo, Purpose::Halo),
                (Kind::Redistribution, Purpose::Redistribution),
            ];
            let sent = |engine: &Engine| kinds.map(|(kind, _)| engine.communicator().sent(kind));
            let before = sent(engine);
            engine.record(program, 1);
            let sums = engine.step(program, Batch { images: &images, targets: &targets }, moment).unwrap();
            let loss = fast::measure(&network.loss, sums).loss;
            for ((now, before), (kind, purpose)) in sent(engine).into_iter().zip(before).zip(kinds) {
                let (bytes, messages) = engine.program(program).sent(purpose);
                let found = (now.bytes - before.bytes, now.messages - before.messages);
                assert_eq!(found, (bytes as u64, messages as u64), "what is sent is what the program says, {kind:?}");
            }
            let recording = engine.take_recording().unwrap();
            assert_eq!(recording.lost, 0);
            let talked = recording.lanes.last().unwrap().iter().map(|span| span.op as usize);
            let program = engine.program(program);
            assert_eq!(sent_by_layer(program, talked), said_by_layer(network, program), "bytes by layer");
            loss
        })
        .collect()
}

/// By purpose and layer: bytes and messages.
type ByLayer = BTreeMap<(Purpose, LayerId), (usize, usize)>;

fn add_up(sends: impl Iterator<Item = (Purpose, LayerId, usize)>) -> ByLayer {
    let mut all = ByLayer::new();
    for (purpose, layer, len) in sends {
        let (bytes, messages) = all.entry((purpose, layer)).or_default();
        (*bytes, *messages) = (*bytes + len, *messages + 1);
    }
    all
}

/// What left in messages, by their tags. The step itself is recorded too, as no op.
fn sent_by_layer(program: &Program, talked: impl Iterator<Item = usize>) -> ByLayer {
    add_up(talked.filter_map(|op| match &program.ops.get(op)?.action {
        Action::Send { from, tag, .. } => Some((Purpose::of(*tag), layer_of(*tag), from.bytes.len())),
        _ => None,
    }))
}

/// What a program has to send of each layer's tensors, sums and parameters, by the buffers that it comes from.
fn said_by_layer(network: &Network, program: &Program) -> ByLayer {
    let what = |buffer: BufferId| program.buffers[buffer.0].what;
    let packed = program.ops.iter().filter_map(|op| match &op.action {
        Action::Copy { source, target, .. } if what(*target) == What::Message => Some((*target, *source)),
        _ => None,
    });
    let packed: HashMap<BufferId, BufferId> = packed.collect();
    add_up(program.ops.iter().filter_map(|op| {
        let Action::Send { from, tag, .. } = &op.action else { return None };
        let layer = match what(packed.get(&from.buffer).copied().unwrap_or(from.buffer)) {
            What::Tensor(l, _) | What::Gradient(l, _) | What::PartialTensor(l) | What::PartialGradient(l) => l,
            What::Bucket(l, _) | What::Shard(l, _) | What::Parameter(l, _) | What::ParameterGradient(l, _) => l,
            What::Sum(Subject::Layer(l) | Subject::Update(l, _), _) => l,
            What::Sum(Subject::Loss, _) => network.output(),
            other => panic!("nobody should send {other:?}"),
        };
        Some((Purpose::of(*tag), layer, from.bytes.len()))
    }))
}

/// A rank's shares of parameters and states: by name the size of the whole, and values by their places in it.
pub type Shares = Vec<(String, usize, Vec<(usize, f32)>)>;

pub fn kept(network: &Network, engine: &Engine) -> Shares {
    let program = engine.program(0);
    let shapes = network.shapes(1).unwrap();
    let mut shares = vec![];
    for (l, layer) in network.layers.iter().enumerate() {
        for (p, parameter) in network.parameters(LayerId(l), &shapes).iter().enumerate() {
            let (at, packing) = (program.kept_at(LayerId(l), p), program.packing(network, LayerId(l), p));
            let places: Vec<usize> = parameter.runs(&program.share(LayerId(l), parameter)).flatten().collect();
            assert_eq!(places.len(), packing.places.len(), "{} parameter {p}", layer.name);
            let mut add = |name: String, what: What| {
                let Some(memory) = engine.kept(what) else { return };
                let value = |(i, place): (usize, &u32)| at.index(*place, memory.len()).map(|at| (i, memory[at]));
                let values = places.iter().copied().zip(&packing.places).filter_map(value).collect();
                shares.push((format!("{} {name}", layer.name), parameter.len(), values));
            };
            add(format!("parameter {p}"), at.parameter);
            (0..UPDATE.states()).for_each(|k| add(format!("state {k} of parameter {p}"), at.state(k)));
        }
    }
    shares
}

/// The whole of what ranks have shares of, and whether they agree where they have the same. Everything is somewhere.
pub fn together(ranks: Vec<Shares>) -> (BTreeMap<String, Vec<f32>>, bool) {
    let mut whole: BTreeMap<String, Vec<Option<f32>>> = BTreeMap::new();
    let mut agree = true;
    for (name, len, values) in ranks.into_iter().flatten() {
        let all = whole.entry(name).or_insert_with(|| vec![None; len]);
        for (at, value) in values {
            agree &= all[at].is_none_or(|other| other.to_bits() == value.to_bits());
            all[at] = Some(value);
        }
    }
    let complete = |all: Vec<Option<f32>>| all.into_iter().map(|v| v.expect("nobody has it")).collect();
    let whole = whole.into_iter().map(|(name, all)| (name, complete(all))).collect();
    (whole, agree)
}

/// What comes out of some steps.
pub fn run(network: &Network, strategy: &Strategy, way: Way, count: usize) -> Outcome {
    let outcome = run_changed(network, strategy, way, count, |_| {});
    assert!(outcome.agree, "ranks disagree on loss or weights");
    outcome
}

/// The same with a program that was changed.
pub fn run_changed(network: &Network, strategy: &Strategy, way: Way, count: usize, change: Break) -> Outcome {
    let ranks = on_ranks(strategy.ranks, |rank| {
        let mut engine = engine(network, strategy, way, rank, change);
        let losses = steps(network, &mut engine, way, count);
        (losses, kept(network, &engine))
    });
    let (losses, shares): (Vec<Vec<f64>>, Vec<Shares>) = ranks.into_iter().unzip();
    let (kept, agree) = together(shares);
    let same_losses = losses.iter().all(|other| *other == losses[0]);
    Outcome { losses: losses[0].clone(), kept, agree: agree && same_losses }
}

/// What each of some ranks returns, in order.
pub fn on_ranks<T: Send>(ranks: usize, each: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let mut communicators = convoy_comm::threads(ranks);
    let others = communicators.split_off(1);
    std::thread::scope(|scope| {
        let others: Vec<_> = others.into_iter().map(|rank| scope.spawn(|| each(rank))).collect();
        let first = each(communicators.pop().unwrap());
        [first].into_iter().chain(others.into_iter().map(|other| other.join().unwrap())).collect()
    })
}

/// Largest difference relative to the largest element.
pub fn difference(a: &Outcome, b: &Outcome) -> Option<String> {
    difference_beyond(1.0, a, b)
}

/// The same, if it is beyond so much of what is allowed.
pub fn difference_beyond(share: f64, a: &Outcome, b: &Outcome) -> Option<String> {
    for (x, y) in a.losses.iter().zip(&b.losses) {
        let near = (x - y).abs() <= share * 1e-4 * y.abs();
        if !near {
            return Some(format!("losses {:?} and {:?}", a.losses, b.losses));
        }
    }
    for (key, x) in &a.kept {
        let y = &b.kept[key];
        let scale = y.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
        let apart = |(x, y): (&f32, &f32)| if x.is_finite() { (x - y).abs() } else { f32::INFINITY };
        let worst = x.iter().zip(y).map(apart).fold(0.0, f32::max);
        if worst > share as f32 * 2e-3 * scale {
            return Some(format!("{key:?} differs by {worst} of {scale}"));
        }
    }
    None
}

/// A residual network with batch norm, dropout if wanted, pooling, and a classifier.
pub fn residual(dropout: bool) -> Network {
    let mut net = Network::new("residual", &[3, 12, 10]);
    net.push("stem", Layer::Convolution(Convolution::new(20, &[3, 3]).padding(1).no_bias()));
    net.push("bn1", Layer::BatchNorm(BatchNorm::default()));
    let a = net.push("relu1", Layer::Activation(Activation::Relu));
    net.push("conv2", Layer::Convolution(Convolution::new(20, &[3, 3]).padding(1)));
    let b = net.push("bn2", Layer::BatchNorm(BatchNorm::default()));
    net.join("add", Layer::Add(Add), &[a, b]);
    net.push("relu2", Layer::Activation(Activation::Relu));
    let mut pool = MaxPool::new(&[3, 3]);
    pool.windows.stride = vec![2, 2];
    pool.windows.padding = vec![[1, 1], [1, 1]];
    net.push("pool", Layer::MaxPool(pool));
    net.push("down", Layer::Convolution(Convolution::new(17, &[3, 3]).padding(1).stride(2)));
    if dropout {
        net.push("drop", Layer::Dropout(Dropout { probability: 0.3 }));
    }
    net.push("mean", Layer::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Layer::FullyConnected(FullyConnected::new(7)));
    net
}
