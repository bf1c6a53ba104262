//! Every network of the zoo becomes a program that holds together, on one rank and on several.

use convoy_kernels::{Mode, Pass, Update};
use convoy_net::layers::{Activation, BatchNorm, Convolution};
use convoy_net::{Kind, LayerId, Network, zoo};
use convoy_program::{Action, BufferId, Home, Op, Options, Subject, What, lower};
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

/// Convolutions sum what they compute for the batch norm after them, and apply the ReLU that alone reads them, on ranks that have
/// all of space and of their sums; elsewhere norm and ReLU do that themselves.
#[test]
fn what_follows_a_convolution_is_done_with_it() {
    let mut network = Network::new("block", &[16, 8, 8]);
    network.push("a", Kind::Convolution(Convolution::new(32, &[1, 1])));
    network.push("norm", Kind::BatchNorm(BatchNorm::default()));
    network.push("b", Kind::Convolution(Convolution::new(32, &[1, 1])));
    network.push("relu", Kind::Activation(Activation::Relu));
    network.push("c", Kind::Convolution(Convolution::new(10, &[8, 8])));
    let shapes = network.shapes(8).unwrap();
    for (ranks, text, sums, relu) in
        [(1, "data", false, false), (2, "data", false, false), (2, "spatial", true, false), (2, "channel", true, true)]
    {
        let strategy = Strategy::parse(text, ranks, &network, &shapes).unwrap();
        let program = lower(&network, &strategy, Rank(0), &options(8, Mode::Train)).unwrap();
        let has = |name: &str, wanted: Pass| {
            program.ops.iter().any(|op| match &op.action {
                Action::Compute { subject: Subject::Layer(l), stage, .. } => {
                    network.layers[l.0].name == name && stage.pass == wanted
                }
                _ => false,
            })
        };
        assert_eq!(has("norm", Pass::Statistics), sums, "{text} on {ranks}");
        assert_eq!(has("relu", Pass::Forward), relu, "{text} on {ranks}");
        assert!(has("norm", Pass::Forward) && has("relu", Pass::InputGradient(0)), "{text} on {ranks}");
    }
}

/// A step keeps from the way there what the way back reads: images and outputs for weight gradients, a ReLU's output for its mask
/// too, a batch norm's input and its few numbers a channel. What a convolution had before its ReLU is nowhere, nor what was normalised
/// before its own, and Winograd's planes are gone.
#[test]
fn nothing_is_kept_that_the_way_back_does_not_read() {
    let convolution = |filters: usize| Kind::Convolution(Convolution::new(filters, &[3, 3]).padding(1));
    let mut network = Network::new("chain", &[16, 8, 8]);
    network.push("a", convolution(32));
    network.push("relu", Kind::Activation(Activation::Relu));
    network.push("b", convolution(32));
    network.push("norm", Kind::BatchNorm(BatchNorm::default()));
    network.push("its relu", Kind::Activation(Activation::Relu));
    network.push("c", convolution(32));
    network.push("d", Kind::Convolution(Convolution::new(10, &[8, 8])));
    let network = network.fused();
    let layer = |name: &str| LayerId(network.layers.iter().position(|layer| layer.name == name).expect("a layer"));
    let shapes = network.shapes(8).unwrap();
    for ranks in [1, 2] {
        let strategy = Strategy::parse("data", ranks, &network, &shapes).unwrap();
        let program = lower(&network, &strategy, Rank(0), &options(8, Mode::Train)).unwrap();
        let is_loss = |op: &Op| matches!(op.action, Action::Compute { subject: Subject::Loss, .. });
        let [first, last] = [program.ops.iter().position(is_loss), program.ops.iter().rposition(is_loss)];
        let [there, back] = [&program.ops[..first.unwrap()], &program.ops[last.unwrap() + 1..]];
        let touch = |ops: &[Op], id: BufferId| ops.iter().flat_map(|op| &op.accesses).any(|a| a.buffer == id);
        let kept =
            program.buffers.iter().enumerate().filter(|(b, buffer)| {
                buffer.home == Home::Step && touch(there, BufferId(*b)) && touch(back, BufferId(*b))
            });
        let kept: Vec<What> = kept.map(|(_, buffer)| buffer.what).collect();
        let tensors = ["input", "relu", "b", "norm", "c"].map(|name| What::Tensor(layer(name), 0));
        let numbers = What::Internal(Subject::Layer(layer("norm")), 0);
        assert_eq!(kept, [&tensors[..], &[numbers]].concat(), "{ranks} ranks");
        let small = program.buffers.iter().find(|buffer| buffer.what == numbers).unwrap().bytes;
        assert!(small <= 32 * 8 * size_of::<f64>(), "{small} bytes for 32 channels");
        assert!(program.buffers.iter().all(|buffer| buffer.what != What::Tensor(layer("a"), 0)), "{ranks} ranks");
    }
}
