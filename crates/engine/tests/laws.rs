//! Laws of a step: the same bits for any number of workers, any legal schedule, any number of data-parallel ranks; the same
//! numbers for ranks that share samples; nothing used after it is gone; nothing allocated; no reference code.

use convoy_engine::{Batch, Engine, Order, Settings};
use convoy_kernels::{Mode, Moment, Update, fast};
use convoy_net::layers::*;
use convoy_net::{Axis, Edge, Kind, LayerId, Loss, Network, Region, Sampling};
use convoy_program::{Action, Number, Options, Program, What, lower};
use convoy_split::{Rank, Strategy};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Counts allocations of the whole process.
struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A number that looks random, from where it stands.
fn number(seed: u64, at: &[usize]) -> f32 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    for &i in at {
        x = (x ^ i as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 29;
    }
    (x % 4096) as f32 / 2048.0 - 1.0
}

const UPDATE: Update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-3 };

/// Everything about one way to run a network.
#[derive(Clone, Copy)]
struct Way {
    ranks: usize,
    strategy: &'static str,
    threads: usize,
    settings: Settings,
}

/// Strategies under which ranks share samples.
const SHARING: [(usize, &str); 13] = [
    (2, "spatial"),
    (3, "spatial"),
    (2, "spatial:1x2"),
    (4, "data:2,spatial:2"),
    (4, "spatial:2x2"),
    (2, "filter"),
    (3, "model"),
    (4, "data:2,filter:2"),
    (2, "channel"),
    (3, "channel"),
    (4, "filter:2,channel:2"),
    (4, "data:2,channel:2"),
    (4, "filter:2,spatial:2"),
];

const ONE: Way = Way {
    ranks: 1,
    strategy: "data",
    threads: 1,
    settings: Settings { order: Order::LongestPath, poison: false, profile: false },
};

/// Losses of the steps, and all parameters and states by name, put together from the ranks' shares.
#[derive(Debug, PartialEq)]
struct Result {
    /// Whether ranks that have the same have it with the same bits.
    agree: bool,
    losses: Vec<f64>,
    kept: BTreeMap<String, Vec<f32>>,
}

fn images(program: &Program, step: usize) -> Vec<f32> {
    dense(&program.images, |at| number(step as u64 + 1, &at))
}

fn targets(network: &Network, program: &Program, step: usize) -> Vec<f32> {
    let mut region = program.owned;
    if network.loss.takes_labels() {
        let classes = network.shapes(1).unwrap().last().unwrap().channels();
        region = region.with(Axis::Channel, 0, !region.is_empty() as isize);
        return dense(&region, |at| ((number(step as u64 + 77, &at) + 1.0) * 2048.0) as usize as f32 % classes as f32);
    }
    dense(&region, |at| number(step as u64 + 77, &at))
}

fn dense(region: &Region, value: impl Fn([usize; 5]) -> f32) -> Vec<f32> {
    let s = region.shape().0;
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

/// Gives an engine weights that depend on nothing but their place in the network.
fn start(engine: &mut Engine, network: &Network) {
    let shapes = network.shapes(1).unwrap();
    for (l, layer) in network.layers.iter().enumerate() {
        for (p, parameter) in network.parameters(LayerId(l), &shapes).iter().enumerate() {
            let program = engine.program(0);
            let packing = fast::twin(&layer.kind).packing(p, program.geometries[l].as_ref().unwrap());
            let places: Vec<usize> = parameter.runs(&program.share(LayerId(l), parameter)).flatten().collect();
            let name = layer.name.bytes().fold(0, |hash, byte| hash * 31 % 1_000_003 + byte as usize);
            let fan = (parameter.len() / parameter.shape[0]).max(1) as f32;
            let memory = engine.kept_mut(What::Parameter(LayerId(l), p)).unwrap();
            for (&at, i) in packing.places.iter().zip(places) {
                memory[at as usize] = match parameter.init {
                    convoy_net::Init::Constant(c) => c,
                    _ => number(9, &[name, p, i]) * 1.5 / fan.sqrt(),
                };
            }
        }
    }
}

/// How to break a program on purpose.
type Break = fn(&mut Program);

fn engine(network: &Network, batch: usize, way: Way, communicator: convoy_comm::Communicator, change: Break) -> Engine {
    let shapes = network.shapes(batch).unwrap();
    let strategy = Strategy::parse(way.strategy, way.ranks, network, &shapes).unwrap();
    let options = Options { batch, mode: Mode::Train, leaves: 8, winograd: Default::default(), update: UPDATE };
    let mut program = lower(network, &strategy, Rank(communicator.rank()), &options).unwrap();
    assert_eq!(program.verify(), Ok(()));
    change(&mut program);
    let planned = program.kept_bytes() + program.memory.step_bytes + program.scratch() * 4 * way.threads;
    let mut engine = Engine::new(network, vec![program], way.threads, communicator, way.settings);
    assert_eq!(engine.bytes(), planned, "what is allocated is what was planned");
    start(&mut engine, network);
    engine
}

fn steps(network: &Network, engine: &mut Engine, count: usize) -> Vec<f64> {
    (0..count)
        .map(|step| {
            let (images, targets) = (images(engine.program(0), step), targets(network, engine.program(0), step));
            let moment = Moment { seed: 5, step: step as u64, learning_rate: 0.01 };
            let sent = engine.communicator().sent_bytes();
            let sums = engine.step(0, Batch { images: &images, targets: &targets }, moment).unwrap();
            let loss = fast::measure(&network.loss, sums).loss;
            let program = engine.program(0).sent_bytes() as u64;
            assert_eq!(engine.communicator().sent_bytes() - sent, program, "bytes sent are those of the program");
            loss
        })
        .collect()
}

/// A rank's shares of parameters and states: by name the size of the whole, and values by their places in it.
type Shares = Vec<(String, usize, Vec<(usize, f32)>)>;

fn kept(network: &Network, engine: &Engine) -> Shares {
    let program = engine.program(0);
    let shapes = network.shapes(1).unwrap();
    let buffers = program.buffers.iter().filter(|b| b.home == convoy_program::Home::Kept);
    let share = |what: What| {
        let (l, p, name) = match what {
            What::Parameter(l, p) => (l, p, format!("parameter {p}")),
            What::State(l, p, k) => (l, p, format!("state {k} of parameter {p}")),
            other => panic!("{other:?} is kept"),
        };
        let layer = &network.layers[l.0];
        let parameter = &network.parameters(l, &shapes)[p];
        let packing = fast::twin(&layer.kind).packing(p, program.geometries[l.0].as_ref().unwrap());
        let memory = engine.kept(what).unwrap();
        let places: Vec<usize> = parameter.runs(&program.share(l, parameter)).flatten().collect();
        assert_eq!(places.len(), packing.places.len(), "{} {name}", layer.name);
        let values = places.into_iter().zip(packing.places.iter().map(|&at| memory[at as usize])).collect();
        (format!("{} {name}", layer.name), parameter.len(), values)
    };
    buffers.map(|b| share(b.what)).collect()
}

/// The whole of what ranks have shares of, and whether they agree where they have the same. Everything is somewhere.
fn together(ranks: Vec<Shares>) -> (BTreeMap<String, Vec<f32>>, bool) {
    let mut whole: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    let mut agree = true;
    for (name, len, values) in ranks.into_iter().flatten() {
        let all = whole.entry(name).or_insert_with(|| vec![f32::NAN; len]);
        for (at, value) in values {
            agree &= all[at].is_nan() || all[at].to_bits() == value.to_bits();
            all[at] = value;
        }
    }
    assert!(whole.values().flatten().all(|v| !v.is_nan()), "nobody has it");
    (whole, agree)
}

fn run(network: &Network, batch: usize, way: Way, count: usize) -> Result {
    let result = run_changed(network, batch, way, count, |_| {});
    assert!(result.agree, "ranks disagree on loss or weights");
    result
}

fn run_changed(network: &Network, batch: usize, way: Way, count: usize, change: Break) -> Result {
    let mut communicators = convoy_comm::threads(way.ranks);
    let others = communicators.split_off(1);
    std::thread::scope(|scope| {
        let others: Vec<_> = others
            .into_iter()
            .map(|c| {
                scope.spawn(move || {
                    let mut engine = engine(network, batch, way, c, change);
                    let losses = steps(network, &mut engine, count);
                    (losses, kept(network, &engine))
                })
            })
            .collect();
        let mut engine = engine(network, batch, way, communicators.pop().unwrap(), change);
        let losses = steps(network, &mut engine, count);
        let mut shares = vec![kept(network, &engine)];
        let mut same_losses = true;
        for other in others {
            let (other_losses, other_kept) = other.join().unwrap();
            same_losses &= losses == other_losses;
            shares.push(other_kept);
        }
        let (kept, agree) = together(shares);
        Result { losses, kept, agree: agree && same_losses }
    })
}

/// Every message that a rank sends is received by the one it is for, with as many bytes.
fn messages_match(network: &Network, batch: usize, ranks: usize, strategy: &str) {
    let shapes = network.shapes(batch).unwrap();
    let strategy = Strategy::parse(strategy, ranks, network, &shapes).unwrap();
    let options = Options { batch, mode: Mode::Train, leaves: 8, winograd: Default::default(), update: UPDATE };
    let (mut sent, mut received) = (vec![], vec![]);
    for rank in 0..ranks {
        for op in lower(network, &strategy, Rank(rank), &options).unwrap().ops {
            match op.action {
                Action::Send { from, to, tag } => sent.push((rank, to.0, tag, from.bytes.len())),
                Action::Receive { into, from, tag } => received.push((from.0, rank, tag, into.bytes.len())),
                _ => {}
            }
        }
    }
    sent.sort();
    received.sort();
    assert_eq!(sent, received, "{} batch {batch} under {} on {ranks}", network.name, strategy.name);
    let pairs: Vec<_> = sent.iter().map(|m| (m.0, m.1, m.2)).collect();
    assert!(pairs.windows(2).all(|w| w[0] != w[1]), "{}: a tag is used twice in a step", network.name);
}

#[test]
fn every_message_has_a_sender_and_a_receiver() {
    for (net, _) in networks() {
        for batch in [1, 3, 8] {
            for (ranks, strategy) in [(2, "data"), (4, "data"), (8, "data")].into_iter().chain(SHARING) {
                messages_match(&net, batch, ranks, strategy);
            }
        }
    }
}

/// A residual network with batch norm, dropout if wanted, pooling, and a classifier.
fn residual(dropout: bool) -> Network {
    let mut net = Network::new("residual", &[3, 12, 10]);
    net.push("stem", Kind::Convolution(Convolution::new(20, &[3, 3]).padding(1).no_bias()));
    net.push("bn1", Kind::BatchNorm(BatchNorm::default()));
    let a = net.push("relu1", Kind::Activation(Activation::Relu));
    net.push("conv2", Kind::Convolution(Convolution::new(20, &[3, 3]).padding(1)));
    let b = net.push("bn2", Kind::BatchNorm(BatchNorm::default()));
    net.join("add", Kind::Add(Add), &[a, b]);
    net.push("relu2", Kind::Activation(Activation::Relu));
    let mut pool = MaxPool::new(&[3, 3]);
    pool.windows.stride = vec![2, 2];
    pool.windows.padding = vec![[1, 1], [1, 1]];
    net.push("pool", Kind::MaxPool(pool));
    net.push("down", Kind::Convolution(Convolution::new(17, &[3, 3]).padding(1).stride(2)));
    if dropout {
        net.push("drop", Kind::Dropout(Dropout { probability: 0.3 }));
    }
    net.push("mean", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(7)));
    net
}

/// Down and up again, with a skip: one label per pixel.
fn hourglass() -> Network {
    let mut net = Network::new("hourglass", &[2, 16, 8]);
    let a = net.push("in", Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1)));
    net.push("act", Kind::Activation(Activation::Silu));
    net.push("pool", Kind::MaxPool(MaxPool::new(&[2, 2])));
    net.push("mid", Kind::Convolution(Convolution::new(18, &[5, 5]).padding(2)));
    net.push("norm", Kind::BatchNorm(BatchNorm::default()));
    let up = net.push("up", Kind::Upsample(Upsample { scale: vec![2, 2], sampling: Sampling::Linear }));
    net.join("concat", Kind::Concat(Concat), &[a, up]);
    net.push("out", Kind::Convolution(Convolution::new(3, &[1, 1])));
    net
}

/// Edges that wrap, dilation, groups, even kernels, values as targets.
fn odd() -> Network {
    let mut net = Network::new("odd", &[4, 9, 8]);
    let mut wrap = Convolution::new(16, &[3, 3]).padding(1);
    wrap.edge = Edge::Periodic;
    net.push("wrap", Kind::Convolution(wrap.clone()));
    net.push("tanh", Kind::Activation(Activation::Tanh));
    wrap.windows.dilation = vec![2, 1];
    wrap.windows.padding = vec![[2, 2], [1, 1]];
    wrap.groups = 2;
    net.push("groups", Kind::Convolution(wrap));
    net.push("even", Kind::Convolution(Convolution::new(5, &[2, 4]).padding(1)));
    let mut average = AveragePool::new(&[3, 3]);
    average.windows.stride = vec![1, 1];
    net.push("average", Kind::AveragePool(average));
    net.loss = Loss::MeanSquaredError;
    net
}

/// A tensor read with and without a halo, by layers whose gradients of it are not zero where the output's are.
fn forked() -> Network {
    let mut net = Network::new("forked", &[3, 11, 8]);
    let a = net.push("in", Kind::Convolution(Convolution::new(18, &[3, 3]).padding(1)));
    let norm = net.join("norm", Kind::BatchNorm(BatchNorm::default()), &[a]);
    let relu = net.join("relu", Kind::Activation(Activation::Relu), &[a]);
    net.join("conv", Kind::Convolution(Convolution::new(18, &[5, 3]).padding(1)), &[a]);
    let padded = net.push("again", Kind::Convolution(Convolution::new(18, &[1, 3]).padding(1)));
    net.join("sum", Kind::Add(Add), &[norm, relu, padded]);
    net.push("norm2", Kind::BatchNorm(BatchNorm { activation: Some(Activation::Tanh), ..Default::default() }));
    net.push("mean", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(5)));
    net
}

fn networks() -> [(Network, usize); 4] {
    [(residual(true), 8), (hourglass(), 4), (odd(), 8), (forked(), 4)]
}

#[test]
fn fused_layers_give_the_same_bits() {
    // Dropout draws by a layer's place, which fusing changes.
    let net = residual(false);
    let fused = net.fused();
    assert_eq!(fused.layers.len() + 3, net.layers.len());
    assert_eq!(run(&net, 8, ONE, 3), run(&fused, 8, ONE, 3));
}

/// Largest difference relative to the largest element.
fn difference(a: &Result, b: &Result) -> Option<String> {
    for (x, y) in a.losses.iter().zip(&b.losses) {
        if (x - y).abs() > 1e-4 * y.abs() {
            return Some(format!("losses {:?} and {:?}", a.losses, b.losses));
        }
    }
    for (key, x) in &a.kept {
        let y = &b.kept[key];
        let scale = y.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
        let worst = x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        if worst > 2e-3 * scale {
            return Some(format!("{key:?} differs by {worst} of {scale}"));
        }
    }
    None
}

#[test]
fn any_number_of_workers_gives_the_same_bits() {
    for (net, batch) in networks() {
        let one = run(&net, batch, ONE, 3);
        assert!(one.losses.iter().all(|l| l.is_finite()), "{}: {:?}", net.name, one.losses);
        for threads in [2, 3] {
            assert_eq!(run(&net, batch, Way { threads, ..ONE }, 3), one, "{} with {threads} workers", net.name);
        }
    }
}

#[test]
fn any_legal_schedule_gives_the_same_bits() {
    for (net, batch) in networks() {
        let one = run(&net, batch, ONE, 2);
        for seed in 0..12 {
            let settings = Settings { order: Order::Random(seed), poison: true, profile: false };
            let way = Way { threads: 1 + seed as usize % 3, settings, ..ONE };
            assert_eq!(run(&net, batch, way, 2), one, "{} in random order {seed}", net.name);
        }
        let settings = Settings { order: Order::FirstIn, ..ONE.settings };
        assert_eq!(run(&net, batch, Way { threads: 2, settings, ..ONE }, 2), one);
    }
}

#[test]
fn data_parallel_ranks_give_the_bits_of_one() {
    for (net, _) in networks() {
        for batch in [8, 11, 3] {
            let one = run(&net, batch, ONE, 3);
            for ranks in [2, 4, 8] {
                assert_eq!(
                    run(&net, batch, Way { ranks, ..ONE }, 3),
                    one,
                    "{} batch {batch} on {ranks} ranks",
                    net.name
                );
            }
        }
    }
}

#[test]
fn ranks_that_share_samples_give_the_result_of_one() {
    for (net, batch) in networks() {
        let one = run(&net, batch, ONE, 3);
        for (ranks, strategy) in SHARING {
            let way = Way { ranks, strategy, ..ONE };
            let found = difference(&run(&net, batch, way, 3), &one);
            assert_eq!(found, None, "{} under {strategy} on {ranks}", net.name);
        }
    }
}

#[test]
fn a_step_allocates_nothing_and_runs_no_reference_code() {
    let net = residual(true);
    let mut engine = engine(&net, 8, Way { threads: 2, ..ONE }, convoy_comm::threads(1).pop().unwrap(), |_| {});
    let (images, targets) = (images(engine.program(0), 0), targets(&net, engine.program(0), 0));
    let batch = Batch { images: &images, targets: &targets };
    engine.step(0, batch, Moment::default()).unwrap();
    let calls = convoy_kernels::reference::calls();
    // Other tests of this process allocate too: one quiet stretch of steps is proof enough.
    let quiet = (0..200).any(|_| {
        let before = ALLOCATIONS.load(SeqCst);
        for step in 0..3 {
            engine.step(0, batch, Moment { seed: 1, step, learning_rate: 0.01 }).unwrap();
        }
        ALLOCATIONS.load(SeqCst) == before
    });
    assert!(quiet, "steps allocate");
    assert_eq!(convoy_kernels::reference::calls(), calls, "reference code ran in a step");
}

/// Rows that travel as a halo are taken one row too far inside.
fn shift_halos(program: &mut Program) {
    let stored = |b: convoy_program::BufferId| program.buffers[b.0].layout.as_ref().unwrap().stored;
    let mut moved = vec![];
    for (i, op) in program.ops.iter().enumerate() {
        if let Action::Copy { source, target, region, add: false, .. } = &op.action
            && program.buffers[target.0].what == What::Message
        {
            let fits = |by: &isize| stored(*source).contains(&region.shifted([0, 0, 0, *by, 0]));
            if let Some(by) = [-1, 1].into_iter().find(fits) {
                moved.push((i, region.shifted([0, 0, 0, by, 0]), [0, 0, 0, -by, 0]));
            }
        }
    }
    assert!(!moved.is_empty());
    for (i, new_region, new_shift) in moved {
        if let Action::Copy { region, shift, .. } = &mut program.ops[i].action {
            (*region, *shift) = (new_region, new_shift);
        }
    }
}

/// Sums over ranks of one kind of number keep only this rank's part.
fn drop_sums(program: &mut Program, kind: Number) {
    let me = program.rank.0;
    for op in &mut program.ops {
        if let Action::Combine { parts, number, .. } = &mut op.action
            && *number == kind
        {
            let own = parts[me].clone();
            parts.iter_mut().for_each(|p| *p = None);
            parts[me] = own;
        }
    }
}

/// Two ranks stand in each other's place in every sum.
fn swap_ranks(program: &mut Program) {
    for op in &mut program.ops {
        if let Action::Combine { parts, .. } = &mut op.action {
            parts.swap(0, 3);
        }
    }
}

#[test]
fn the_laws_bite() {
    let (net, batch) = (residual(true), 8);
    let one = run(&net, batch, ONE, 3);
    let spatial = Way { ranks: 2, strategy: "spatial", ..ONE };
    let breaks: [(&str, Break); 3] = [
        ("a halo shifted by a row", shift_halos),
        ("a dropped reduction of gradients", |p| drop_sums(p, Number::Single)),
        ("batch norm without its sums over ranks", |p| drop_sums(p, Number::Double)),
    ];
    for (what, change) in breaks {
        let broken = run_changed(&net, batch, spatial, 3, change);
        assert!(difference(&broken, &one).is_some(), "nobody noticed {what}");
    }
    let swapped = run_changed(&net, batch, Way { ranks: 4, ..ONE }, 3, swap_ranks);
    assert_ne!(swapped, one, "nobody noticed two swapped ranks");
}
