//! Every network of the zoo becomes a program that holds together, on one rank and on several.

use convoy_kernels::{Mode, Update};
use convoy_net::zoo;
use convoy_program::{Options, lower};
use convoy_split::{Rank, Strategy};

fn options(batch: usize, mode: Mode) -> Options {
    let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
    Options { batch, mode, leaves: 8, winograd: Default::default(), update, division: Default::default() }
}

#[test]
fn every_network_becomes_a_program() {
    for model in zoo::names() {
        let network = zoo::model(model.name, Default::default()).unwrap();
        let single = Strategy::single(&network);
        let train = lower(&network, &single, Rank(0), &options(2, Mode::Train)).unwrap();
        assert_eq!(train.verify(), Ok(()), "{}", model.name);
        let test = lower(&network, &single, Rank(0), &options(2, Mode::Evaluate)).unwrap();
        assert_eq!(test.verify(), Ok(()), "{}", model.name);
        assert!(
            test.memory.step_bytes < train.memory.step_bytes,
            "{}: evaluation keeps nothing for backward",
            model.name
        );
        assert_eq!(train.sent_bytes(), 0);
    }
}

#[test]
fn a_deep_network_splits_by_samples_and_by_rows() {
    let network = zoo::model("resnet18-cifar", Default::default()).unwrap();
    let shapes = network.shapes(16).unwrap();
    let one = lower(&network, &Strategy::single(&network), Rank(0), &options(16, Mode::Train)).unwrap();
    for (ranks, text) in [(2, "data"), (2, "spatial"), (4, "data:2,spatial:2")] {
        let strategy = Strategy::parse(text, ranks, &network, &shapes).unwrap();
        for rank in 0..ranks {
            let program = lower(&network, &strategy, Rank(rank), &options(16, Mode::Train)).unwrap();
            assert_eq!(program.verify(), Ok(()), "{text}, rank {rank}");
            assert!(
                program.sent_bytes() > 0 && program.memory.step_bytes < one.memory.step_bytes,
                "{text}, rank {rank}"
            );
        }
    }
}
