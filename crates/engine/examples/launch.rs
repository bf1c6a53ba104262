//! What it costs to launch a tile: steps of networks whose layers have next to nothing to compute.
//!
//!     cargo run --release -p convoy-engine --example launch -- LAYERS ROUNDS
//!
//! A chain of activations of eight numbers, where each waits for the one before, and a fan of them, where none waits. Prints
//! one line `network,workers,tiles,nanoseconds` for each and for 1 and 2 workers: tiles of a step, and the least time of a step
//! divided by them.

use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::{Mode, Moment, Update};
use convoy_net::layers::{Activation, Add};
use convoy_net::{Kind, LayerId, Network};
use convoy_program::{Options, lower};
use convoy_split::{Rank, Strategy};
use std::time::Instant;

/// Activations one after the other.
fn chain(layers: usize) -> Network {
    let mut network = Network::new("chain", &[8, 1, 1]);
    for i in 0..layers {
        network.push(format!("layer{i}"), Kind::Activation(Activation::Relu));
    }
    network
}

/// Activations that all read the input, added up by twos.
fn fan(layers: usize) -> Network {
    let mut network = Network::new("fan", &[8, 1, 1]);
    let relu = Kind::Activation(Activation::Relu);
    let mut row: Vec<LayerId> = vec![];
    for i in 0..layers {
        row.push(network.join(format!("layer{i}"), relu.clone(), &[LayerId(0)]));
    }
    while row.len() > 1 {
        let pairs = row.chunks(2).map(|pair| match pair {
            [one] => *one,
            pair => network.join(format!("sum{}", network.layers.len()), Kind::Add(Add), pair),
        });
        row = pairs.collect();
    }
    network
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Result<Vec<usize>, _> = words.iter().map(|word| word.parse()).collect();
    let Ok(&[layers @ (2..), rounds @ (1..)]) = numbers.as_deref() else {
        convoy_comm::tell("usage: launch LAYERS ROUNDS, at least 2 and 1");
        std::process::exit(2);
    };
    println!("network,workers,tiles,nanoseconds");
    for network in [chain(layers), fan(layers)] {
        let update = Update::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let options = Options {
            batch: 1,
            mode: Mode::Evaluate,
            leaves: 1,
            winograd: Default::default(),
            update,
            division: Default::default(),
        };
        let program = lower(&network, &Strategy::single(&network), Rank(0), &options).expect("a network that fits");
        let tiles: usize = program.ops.iter().map(|op| op.tiles).sum();
        let (images, targets) = (vec![0.5; program.images.len()], vec![0.0; program.targets]);
        for workers in [1, 2] {
            let communicator = convoy_comm::threads(1).pop().expect("one rank");
            let mut engine = Engine::new(&network, vec![program.clone()], workers, communicator, Settings::default());
            let mut least = f64::MAX;
            for _ in 0..rounds {
                let start = Instant::now();
                engine.step(0, Batch { images: &images, targets: &targets }, Moment::default()).expect("a step");
                least = least.min(start.elapsed().as_secs_f64());
            }
            println!("{},{workers},{tiles},{:.0}", network.name, least / tiles as f64 * 1e9);
        }
    }
}
