//! Random networks under random strategies, a grid of its own for every layer: the result of one rank.
//!
//! `CONVOY_CASES=200 cargo test --release -p convoy-engine --test strategies` tries more.

mod harness;

use convoy_engine::{Order, Settings};
use convoy_net::layers::*;
use convoy_net::{Axis, Edge, Kind, LayerId, Loss, Network, Sampling};
use convoy_split::{Grid, Placement, Rank, Strategy, check};
use harness::*;

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// A layer that fits anywhere, more or less.
fn layer(numbers: &mut Numbers, filters: usize, axes: usize) -> Kind {
    let mut windows = Windows {
        kernel: vec![1 + numbers.below(4), 1 + numbers.below(3)],
        stride: vec![1 + numbers.below(2), 1 + numbers.below(2)],
        padding: vec![[numbers.below(3), numbers.below(3)], [numbers.below(2), numbers.below(2)]],
        dilation: vec![1 + numbers.below(2), 1],
    };
    let mut scale = vec![2, 1];
    if axes == 3 {
        windows.kernel.insert(0, 1 + numbers.below(3));
        windows.stride.insert(0, 1 + numbers.below(2));
        windows.padding.insert(0, [numbers.below(2), numbers.below(2)]);
        windows.dilation.insert(0, 1 + numbers.below(2));
        scale.insert(0, 1 + numbers.below(2));
    }
    match numbers.below(13) {
        0..=3 => {
            let (edge, groups) = (numbers.one(&[Edge::Zero, Edge::Zero, Edge::Periodic]), numbers.one(&[1, 1, 1, 2]));
            Kind::Convolution(Convolution {
                filters,
                windows,
                groups,
                bias: numbers.below(2) == 0,
                edge,
                activation: None,
            })
        }
        4 => {
            let layer = TransposedConvolution { filters, windows, output_padding: vec![], groups: 1, bias: true };
            Kind::TransposedConvolution(layer)
        }
        5 => {
            windows.padding.clear();
            windows.dilation.clear();
            Kind::MaxPool(MaxPool { windows, ceil: numbers.below(2) == 0 })
        }
        6 => {
            windows.padding.clear();
            windows.dilation.clear();
            Kind::AveragePool(AveragePool { windows, ceil: false, count_padding: true })
        }
        7 | 8 => {
            let activation = numbers.one(&[None, Some(Activation::Tanh)]);
            Kind::BatchNorm(BatchNorm { activation, ..BatchNorm::default() })
        }
        9 => Kind::Activation(numbers.one(&[Activation::Tanh, Activation::Silu, Activation::Sigmoid])),
        10 => Kind::Upsample(Upsample { scale, sampling: numbers.one(&[Sampling::Nearest, Sampling::Linear]) }),
        11 => Kind::Dropout(Dropout { probability: 0.3 }),
        _ => Kind::GroupNorm(GroupNorm { groups: 2, epsilon: 1e-2 }),
    }
}

/// A network of some layers in a row, with branches that are joined again.
fn network(numbers: &mut Numbers) -> Network {
    let mut input = vec![numbers.one(&[2, 3, 18]), 6 + numbers.below(7), 5 + numbers.below(5)];
    if numbers.below(3) == 0 {
        input.insert(1, 2 + numbers.below(4));
    }
    let axes = input.len() - 1;
    let mut net = Network::new("random", &input);
    let mut wanted = 4 + numbers.below(5);
    while wanted > 0 {
        let last = LayerId(net.layers.len() - 1);
        let before = net.clone();
        let name = format!("layer{}", net.layers.len());
        let filters = 2 * (2 + numbers.below(11));
        match numbers.below(6) {
            // Two branches of one tensor, side by side or added.
            0 => {
                let conv = Convolution::new(filters, &vec![3; axes]).padding(1);
                let a = net.join(format!("{name}a"), Kind::Convolution(conv.clone()), &[last]);
                let b = net.join(format!("{name}b"), Kind::Convolution(conv), &[last]);
                let join = numbers.one(&[Kind::Add(Add), Kind::Concat(Concat), Kind::Multiply(Multiply)]);
                net.join(format!("{name}j"), join, &[a, b]);
            }
            _ => drop(net.push(name, layer(numbers, filters, axes))),
        }
        match net.shapes(2) {
            Ok(shapes) if shapes.last().unwrap().points() <= 400 => wanted -= 1,
            _ => net = before,
        }
    }
    if numbers.below(2) == 0 {
        net.push("mean", Kind::GlobalAveragePool(GlobalAveragePool));
        net.push("fc", Kind::FullyConnected(FullyConnected::new(6)));
        net.push("act", Kind::Activation(Activation::Tanh));
        net.push("out", Kind::FullyConnected(FullyConnected::new(3)));
    } else {
        net.push("out", Kind::Convolution(Convolution::new(3, &vec![1; axes])));
        net.loss = Loss::MeanSquaredError;
    }
    net.verify().unwrap();
    net
}

/// Any grid that a layer can be cut by, over some of the ranks.
fn placement(numbers: &mut Numbers, net: &Network, batch: usize, ranks: usize, l: LayerId) -> Placement {
    let shapes = net.shapes(batch).unwrap();
    loop {
        let mut grid = Grid::default();
        let axes = [&mut grid.sample, &mut grid.filter, &mut grid.channel, &mut grid.height, &mut grid.width];
        for parts in axes {
            *parts = numbers.one(&[1, 1, 1, 2, 3, 4]);
        }
        if shapes[l.0].along(Axis::Depth) > 1 {
            grid.depth = numbers.one(&[1, 1, 2, 3]);
        }
        let fits = grid.parts() <= ranks && check(&grid, l, net, &shapes).is_ok();
        if fits && (grid.parts() == ranks || numbers.below(6) == 0) {
            let first = numbers.below(ranks - grid.parts() + 1);
            let ranks = (first..first + grid.parts()).map(Rank).collect();
            let shares =
                if numbers.below(3) == 0 { (0..grid.sample).map(|_| 1 + numbers.below(4)).collect() } else { vec![] };
            return Placement { ranks, grid, shares };
        }
    }
}

#[test]
fn any_network_under_any_strategy_is_that_of_one_rank() {
    let cases = std::env::var("CONVOY_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    // Of networks with a depth, how many layers are cut along it.
    let (mut ran, mut case, mut depth) = (0, 0, 0);
    while ran < cases {
        let mut numbers = Numbers(case * 7919 + 1);
        case += 1;
        let net = network(&mut numbers);
        let (batch, ranks) = (1 + numbers.below(6), numbers.one(&[2, 3, 4, 6, 8]));
        let layers = (0..net.layers.len()).map(LayerId);
        let placements: Vec<Placement> = layers.map(|l| placement(&mut numbers, &net, batch, ranks, l)).collect();
        let strategy = Strategy { ranks, placements, name: format!("random {case}") };
        let one = run(&net, &Strategy::single(&net), plain(batch), 3);
        // Some grow beyond all bounds, or have gradients that are zero but for rounding (a bias before a norm), which a norm of small
        // numbers makes large: one rank's own result is not what the tolerance takes it for if it moves by a tenth of that where
        // weights are off by a few roundings, as sums of some hundred terms are.
        let shaken = run(&net, &Strategy::single(&net), Way { off: 8.0 * f32::EPSILON, ..plain(batch) }, 3);
        if difference_beyond(0.1, &shaken, &one).is_some() {
            continue;
        }
        ran += 1;
        depth += strategy.placements.iter().filter(|p| p.grid.depth > 1).count();
        // In any legal order, with whatever is over gone.
        let settings = Settings { order: Order::Random(case), poison: true, ..Settings::default() };
        let found = run(&net, &strategy, Way { settings, ..plain(batch) }, 3);
        let grids: Vec<String> = strategy.placements.iter().map(|p| format!("{} {:?}", p.grid, p.ranks)).collect();
        assert_eq!(difference(&found, &one), None, "case {case}, batch {batch}: {}\n{grids:#?}", net.to_toml());
    }
    let found = format!("{depth} layers cut along depth in {ran} of {case} cases");
    println!("{found}");
    assert!(depth >= ran as usize / 2 && 10 * ran >= 9 * case, "{found}");
}
