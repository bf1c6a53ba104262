//! Compares the order in which ready tiles are taken: longest remaining path against first in, first out.
//!
//!     cargo run --release -p convoy-engine --example orders -- MODEL BATCH THREADS ROUNDS
//!
//! Both engines run in turn; every round prints one line `model,batch,threads,order,seconds` (least of three steps).

use convoy_engine::{Batch, Engine, Order, Settings};
use convoy_kernels::{Mode, Moment, Update};
use convoy_net::zoo;
use convoy_program::{Options, lower};
use convoy_split::{Rank, Strategy};
use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, threads, rounds] = &words[..] else {
        convoy_comm::tell("usage: orders MODEL BATCH THREADS ROUNDS");
        std::process::exit(2);
    };
    let number = |word: &String| word.parse::<usize>().expect("a number");
    let (batch, threads, rounds) = (number(batch), number(threads), number(rounds));
    let network = zoo::model(model, Default::default()).expect("a model of the zoo").fused();
    let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
    let options = Options {
        batch,
        mode: Mode::Train,
        leaves: 8,
        winograd: Default::default(),
        update,
        division: Default::default(),
    };
    let program = lower(&network, &Strategy::single(&network), Rank(0), &options).expect("networks of the zoo fit");
    let images = vec![0.5; program.images.len()];
    let targets = vec![0.0; program.targets];
    let mut engines = [Order::LongestPath, Order::FirstIn].map(|order| {
        let settings = Settings { order, ..Settings::default() };
        let communicator = convoy_comm::threads(1).pop().expect("one rank");
        (order, Engine::new(&network, vec![program.clone()], threads, communicator, settings))
    });
    println!("model,batch,threads,order,seconds");
    for round in 0..rounds + 1 {
        for (order, engine) in &mut engines {
            let mut least = f64::MAX;
            for _ in 0..3 {
                let start = Instant::now();
                engine.step(0, Batch { images: &images, targets: &targets }, Moment::default()).expect("a step");
                least = least.min(start.elapsed().as_secs_f64());
            }
            if round > 0 {
                println!("{model},{batch},{threads},{order:?},{least:.6}");
            }
        }
    }
}
