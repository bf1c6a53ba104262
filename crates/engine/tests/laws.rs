//! Laws of a step: the same bits for any number of workers, any legal schedule, any number of data-parallel ranks; the same
//! numbers for ranks that share samples; nothing used after it is gone.

mod harness;

use convoy_engine::{Order, Settings};
use convoy_kernels::{Operand, Pass, Update, Winograd};
use convoy_net::layers::*;
use convoy_net::{Edge, Kind, Loss, Network, Sampling};
use convoy_program::{Action, Division, Halos, Number, Options, Purpose, SumOrder, lower};
use convoy_split::{Rank, Strategy};
use harness::breaks::*;
use harness::*;

/// Strategies under which ranks share samples.
const SHARING: [(usize, &str); 15] = [
    // Unequal shares: rounding differs from one rank's.
    (2, "data:3+1"),
    (6, "data:1+3+2,spatial:2"),
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

/// Those that cut depth, for what has one.
const DEPTH: [(usize, &str); 4] =
    [(2, "spatial:2x1x1"), (4, "spatial:2x2x1"), (8, "spatial:2x2x2"), (4, "filter:2,spatial:2x1x1")];

/// Strategies under which ranks share samples of a network.
fn sharing(net: &Network) -> impl Iterator<Item = (usize, &'static str)> {
    let depth: &[_] = if net.shapes(1).unwrap()[0].space()[0] > 1 { &DEPTH } else { &[] };
    SHARING.iter().chain(depth).copied()
}

/// Every message that a rank sends is received by the one it is for, with as many bytes.
fn messages_match(network: &Network, batch: usize, ranks: usize, strategy: &str) {
    let shapes = network.shapes(batch).unwrap();
    let strategy = Strategy::parse(strategy, ranks, network, &shapes).unwrap();
    let (mut sent, mut received) = (vec![], vec![]);
    for rank in 0..ranks {
        for op in lower(network, &strategy, Rank(rank), &options(batch, Default::default())).unwrap().ops {
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
            for (ranks, strategy) in [(2, "data"), (4, "data"), (8, "data")].into_iter().chain(sharing(&net)) {
                messages_match(&net, batch, ranks, strategy);
            }
        }
    }
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

/// Fewer channels from layer to layer: gradients of outputs are what is shorter to send.
fn narrowing() -> Network {
    let mut net = Network::new("narrowing", &[3, 18, 13]);
    net.push("wide", Kind::Convolution(Convolution::new(64, &[3, 3]).padding(1)));
    net.push("relu", Kind::Activation(Activation::Tanh));
    net.push("down", Kind::Convolution(Convolution::new(32, &[5, 3]).padding(1).stride(2)));
    net.push("norm", Kind::BatchNorm(BatchNorm::default()));
    let up = TransposedConvolution {
        filters: 16,
        windows: Windows { kernel: vec![3, 3], stride: vec![2, 2], padding: vec![[1, 1], [1, 1]], dilation: vec![] },
        output_padding: vec![],
        groups: 1,
        bias: true,
    };
    net.push("up", Kind::TransposedConvolution(up));
    net.push("act", Kind::Activation(Activation::Silu));
    net.push("last", Kind::Convolution(Convolution::new(3, &[3, 3]).padding(1)));
    net.loss = Loss::MeanSquaredError;
    net
}

/// In three dimensions: down, up again in two ways, and side by side.
fn volume() -> Network {
    let mut net = Network::new("volume", &[2, 6, 8, 6]);
    let a = net.push("in", Kind::Convolution(Convolution::new(16, &[3, 3, 3]).padding(1)));
    net.push("norm", Kind::BatchNorm(BatchNorm { activation: Some(Activation::Tanh), ..Default::default() }));
    net.push("pool", Kind::MaxPool(MaxPool::new(&[2, 2, 2])));
    let middle = net.push("middle", Kind::Convolution(Convolution::new(18, &[3, 3, 3]).padding(1)));
    let up = TransposedConvolution {
        filters: 5,
        windows: Windows {
            kernel: vec![4, 2, 2],
            stride: vec![2; 3],
            padding: vec![[1, 1], [0, 0], [0, 0]],
            dilation: vec![],
        },
        output_padding: vec![],
        groups: 1,
        bias: true,
    };
    let up = net.join("up", Kind::TransposedConvolution(up), &[middle]);
    let larger = Upsample { scale: vec![2, 2, 2], sampling: Sampling::Linear };
    let larger = net.join("larger", Kind::Upsample(larger), &[middle]);
    net.join("concat", Kind::Concat(Concat), &[a, up, larger]);
    net.push("last", Kind::Convolution(Convolution::new(3, &[1, 1, 1])));
    net
}

/// A window of its own for every channel; norms within a sample and over neighbouring channels; shares of channels.
fn normed() -> Network {
    let mut net = Network::new("normed", &[3, 9, 8]);
    net.push("in", Kind::Convolution(Convolution::new(20, &[3, 3]).padding(1)));
    let mut depthwise = Convolution::new(20, &[3, 3]).padding(1);
    depthwise.groups = 20;
    net.push("depthwise", Kind::Convolution(depthwise));
    net.push("groups", Kind::GroupNorm(GroupNorm::new(5)));
    net.push("act", Kind::Activation(Activation::Silu));
    net.push("neighbours", Kind::LocalResponseNorm(LocalResponseNorm::new(5)));
    net.push("mix", Kind::Convolution(Convolution::new(18, &[1, 1])));
    net.push("shares", Kind::Softmax(Softmax));
    net.push("mean", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(5)));
    net
}

/// In one dimension.
fn line() -> Network {
    let mut net = Network::new("line", &[3, 41]);
    net.push("in", Kind::Convolution(Convolution::new(18, &[5]).padding(2).stride(2)));
    net.push("norm", Kind::BatchNorm(BatchNorm { activation: Some(Activation::Tanh), ..Default::default() }));
    net.push("pool", Kind::MaxPool(MaxPool::new(&[2])));
    net.push("again", Kind::Convolution(Convolution::new(16, &[3]).padding(1)));
    net.push("mean", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(5)));
    net
}

/// Images of so many tiles that Winograd's algorithm makes weights' gradients, too.
fn tiled() -> Network {
    let mut net = Network::new("tiled", &[3, 16, 16]);
    net.push("in", Kind::Convolution(Convolution::new(18, &[3, 3]).padding(1)));
    net.push("act", Kind::Activation(Activation::Tanh));
    net.push("again", Kind::Convolution(Convolution::new(20, &[3, 3]).padding(1)));
    net.push("norm", Kind::BatchNorm(BatchNorm::default()));
    net.push("wide", Kind::Convolution(Convolution::new(16, &[5, 5]).padding(2)));
    net.push("mean", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(5)));
    net
}

fn strategy(text: &str, ranks: usize, net: &Network, batch: usize) -> Strategy {
    Strategy::parse(text, ranks, net, &net.shapes(batch).unwrap()).unwrap()
}

/// On one rank with one worker.
fn run_one(net: &Network, batch: usize, count: usize) -> Outcome {
    run(net, &Strategy::single(net), plain(batch), count)
}

fn networks() -> [(Network, usize); 8] {
    [
        (residual(true), 8),
        (hourglass(), 4),
        (odd(), 8),
        (forked(), 4),
        (narrowing(), 4),
        (volume(), 4),
        (normed(), 4),
        (line(), 4),
    ]
}

#[test]
fn fused_layers_give_the_same_bits() {
    // Dropout draws by a layer's place, which fusing changes.
    let net = residual(false);
    let fused = net.fused();
    assert_eq!(fused.layers.len() + 3, net.layers.len());
    assert_eq!(run_one(&net, 8, 3), run_one(&fused, 8, 3));
}

#[test]
fn any_number_of_workers_gives_the_same_bits() {
    let ways = networks().map(|(net, batch)| (net, plain(batch)));
    let winograd = [Winograd::Two, Winograd::Four, Winograd::Off].map(|w| (tiled(), Way { winograd: w, ..plain(8) }));
    for (net, way) in ways.into_iter().chain(winograd) {
        let one = run(&net, &Strategy::single(&net), way, 3);
        assert!(one.losses.iter().all(|l| l.is_finite()), "{}: {:?}", net.name, one.losses);
        for threads in [2, 3] {
            let found = run(&net, &Strategy::single(&net), Way { threads, ..way }, 3);
            assert_eq!(found, one, "{} with {threads} workers, {:?}", net.name, way.winograd);
        }
    }
    // It is Winograd's algorithm that makes the weights' gradients: larger tiles have fewer products.
    let flops = |winograd| {
        let options = Options { winograd, ..options(8, Division::default()) };
        let net = tiled();
        let program = lower(&net, &Strategy::single(&net), Rank(0), &options).unwrap();
        let of_weights = program.ops.iter().filter_map(|op| match &op.action {
            Action::Compute { stage, .. } => {
                let reads = [Operand::Input(0), Operand::OutputGradient].iter().all(|o| stage.reads.contains(o));
                reads.then_some(stage.work.flops)
            }
            _ => None,
        });
        of_weights.sum::<f64>()
    };
    assert!(flops(Winograd::Four) < flops(Winograd::Two) && flops(Winograd::Two) < flops(Winograd::Off));
}

#[test]
fn any_legal_schedule_gives_the_same_bits() {
    for (net, batch) in networks() {
        let (one, single) = (run_one(&net, batch, 2), Strategy::single(&net));
        for seed in 0..12 {
            let settings = Settings { order: Order::Random(seed), poison: true, ..Settings::default() };
            let way = Way { threads: 1 + seed as usize % 3, settings, ..plain(batch) };
            assert_eq!(run(&net, &single, way, 2), one, "{} in random order {seed}", net.name);
        }
        let settings = Settings { order: Order::FirstIn, ..Settings::default() };
        assert_eq!(run(&net, &single, Way { threads: 2, settings, ..plain(batch) }, 2), one);
    }
}

#[test]
fn data_parallel_ranks_give_the_bits_of_one() {
    for (net, _) in networks() {
        for batch in [8, 11, 3] {
            let one = run_one(&net, batch, 3);
            for ranks in [2, 4, 8] {
                assert_eq!(
                    run(&net, &strategy("data", ranks, &net, batch), plain(batch), 3),
                    one,
                    "{} batch {batch} on {ranks} ranks",
                    net.name
                );
            }
        }
    }
}

/// Batch norm and dropout, the last batch of an epoch shorter than others, batches smaller than the ranks; any number of workers.
#[test]
fn ten_steps_on_data_parallel_ranks_give_the_bits_of_one() {
    let net = residual(true);
    for (batch, last) in [(8, 3), (11, 8), (3, 1)] {
        let way = Way { last: Some(last), ..plain(batch) };
        let one = run(&net, &Strategy::single(&net), way, 10);
        for ranks in [1, 2, 4, 8] {
            for threads in [1, 2, 3] {
                let found = run(&net, &strategy("data", ranks, &net, batch), Way { threads, ..way }, 10);
                assert_eq!(found, one, "batches of {batch} and {last} on {ranks} ranks with {threads} workers");
            }
        }
    }
}

#[test]
fn ranks_that_share_samples_give_the_result_of_one() {
    for (net, batch) in networks() {
        let one = run_one(&net, batch, 3);
        for (ranks, text) in sharing(&net) {
            let found = run(&net, &strategy(text, ranks, &net, batch), plain(batch), 3);
            assert_eq!(difference(&found, &one), None, "{} under {text} on {ranks}", net.name);
        }
    }
}

/// Winograd's convolutions of few tiles go another way than those of many: a rank's rows that wait for halos and all others do, each
/// way needing something else beforehand. Either piece may be the first.
#[test]
fn pieces_of_a_layer_may_be_computed_in_two_ways() {
    let (mut net, batch) = (Network::new("pieces", &[3, 208, 96]), 1);
    for name in ["in", "middle", "last"] {
        net.push(name, Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1)));
        net.push(format!("{name} act"), Kind::Activation(Activation::Tanh));
    }
    net.push("mean", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(5)));
    let one = run_one(&net, batch, 2);
    for (ranks, text) in [(2, "spatial"), (2, "spatial:1x2"), (3, "spatial")] {
        let strategy = strategy(text, ranks, &net, batch);
        let options = options(batch, Default::default());
        let stages = |rank| {
            lower(&net, &strategy, Rank(rank), &options).unwrap().ops.into_iter().filter_map(|op| match op.action {
                Action::Compute { stage, .. } => Some(stage),
                _ => None,
            })
        };
        // One way reads weights at the end, the other at the beginning.
        let ways = |pass: Pass| {
            let last = stages(0)
                .filter(|stage| stage.pass == pass && stage.reads.iter().any(|o| matches!(o, Operand::Internal(_))));
            last.map(|stage| stage.reads.contains(&Operand::Parameter(0)))
                .collect::<std::collections::BTreeSet<_>>()
                .len()
        };
        if ranks == 2 {
            assert_eq!([Pass::Forward, Pass::InputGradient(0)].map(ways), [2, 2], "{text}: pieces go the same way");
        }
        let found = run(&net, &strategy, plain(batch), 2);
        assert_eq!(difference(&found, &one), None, "{text} on {ranks}");
    }
}

/// LARS looks at a whole parameter, wherever its parts lie.
#[test]
fn norms_of_parameters_are_those_of_all_shares() {
    let update = Update::Lars { momentum: 0.9, weight_decay: 1e-3, trust: 1.0 };
    let (net, batch) = (residual(false), 4);
    let way = Way { update, ..plain(batch) };
    let one = run(&net, &Strategy::single(&net), way, 3);
    for (ranks, text) in
        [(2, "filter"), (3, "filter"), (2, "channel"), (4, "data:2,filter:2"), (4, "filter:2,channel:2")]
    {
        let found = run(&net, &strategy(text, ranks, &net, batch), way, 3);
        assert_eq!(difference(&found, &one), None, "{text} on {ranks}");
    }
}

/// As many bytes as by the tree, and all ranks with the same bits; but another order.
#[test]
fn sums_around_a_ring_are_sums() {
    let division = Division { sums: SumOrder::Ring, ..Division::default() };
    for (net, batch) in [(residual(true), 8), (narrowing(), 3)] {
        let one = run_one(&net, batch, 3);
        for (ranks, text) in [(2, "data"), (3, "data"), (4, "data"), (8, "data"), (4, "data:2,spatial:2")] {
            let strategy = strategy(text, ranks, &net, batch);
            let settings = Settings { order: Order::Random(ranks as u64), poison: true, ..Settings::default() };
            let found = run(&net, &strategy, Way { division, settings, ..plain(batch) }, 3);
            assert_eq!(difference(&found, &one), None, "{} under {text} on {ranks}", net.name);
            let sent = |division| {
                let program = |r| lower(&net, &strategy, Rank(r), &options(batch, division)).unwrap();
                (0..ranks).map(|r| program(r).sent(Purpose::Reduction).0).sum::<usize>()
            };
            // Ranks without samples pass on what others add.
            assert!(sent(division) == sent(Division::default()) || batch < ranks);
        }
    }
}

#[test]
fn the_laws_bite() {
    let (net, batch) = (residual(true), 8);
    let one = run_one(&net, batch, 3);
    let spatial = strategy("spatial", 2, &net, batch);
    let breaks: [(&str, Break); 3] = [
        ("a halo shifted by a row", shift_halos),
        ("a dropped reduction of gradients", |p| drop_sums(p, Number::Single)),
        ("batch norm without its sums over ranks", |p| drop_sums(p, Number::Double)),
    ];
    for (what, change) in breaks {
        let broken = run_changed(&net, &spatial, plain(batch), 3, change);
        assert!(difference(&broken, &one).is_some(), "nobody noticed {what}");
    }
    let swapped = run_changed(&net, &strategy("spatial", 3, &net, batch), plain(batch), 3, swap_neighbours);
    assert!(difference(&swapped, &one).is_some(), "nobody noticed two swapped neighbours");
    let swapped = run_changed(&net, &strategy("data", 4, &net, batch), plain(batch), 3, swap_ranks);
    assert_ne!(swapped, one, "nobody noticed two swapped ranks");
}

/// Ranks that wait for halos before they compute get the same but for rounding: gradients are cut elsewhere.
#[test]
fn waiting_for_halos_changes_no_result() {
    let net = residual(false);
    for (ranks, text) in [(2, "spatial"), (4, "spatial:2x2"), (4, "data:2,spatial:2x1")] {
        let strategy = Strategy::parse(text, ranks, &net, &net.shapes(4).unwrap()).unwrap();
        let waited = Division { halos: Halos::Waited, ..Division::default() };
        let ops = |division| lower(&net, &strategy, Rank(0), &options(4, division)).unwrap().ops.len();
        assert!(ops(waited) < ops(Division::default()), "nothing was cut under {text}");
        let waited = run(&net, &strategy, Way { division: waited, ..plain(4) }, 3);
        assert_eq!(difference(&waited, &run(&net, &strategy, plain(4), 3)), None, "{text}");
    }
}
