//! A kernel that panics on one rank: the step of every rank ends with an error that names that rank's layer.

mod harness;

use convoy_comm::Error::Ended;
use convoy_engine::{Batch, Error};
use convoy_kernels::Moment;
use convoy_net::LayerId;
use convoy_program::{Action, Program, Subject};
use convoy_split::Strategy;
use harness::*;

/// Takes away what the first op of one layer reads and writes.
fn break_conv2(program: &mut Program) {
    let conv2 = residual(false).layers.iter().position(|layer| layer.name == "conv2").map(LayerId);
    let of_conv2 = program.ops.iter_mut().find_map(|op| match &mut op.action {
        Action::Compute { subject: Subject::Layer(l), operands, .. } if Some(*l) == conv2 => Some(operands),
        _ => None,
    });
    of_conv2.expect("an op of the layer").clear();
}

#[test]
fn all_ranks_end_with_the_layer_that_panicked() {
    let net = residual(false);
    for (text, threads) in [("data", 1), ("spatial", 2)] {
        let strategy = Strategy::parse(text, 3, &net, &net.shapes(6).unwrap()).unwrap();
        let (net, strategy) = (&net, &strategy);
        let errors: Vec<Error> = std::thread::scope(|scope| {
            let step = |rank: convoy_comm::Communicator| {
                scope.spawn(move || {
                    let change: Break = if rank.rank() == 1 { break_conv2 } else { |_| {} };
                    let mut engine = engine(net, strategy, Way { threads, ..plain(6) }, rank, change);
                    let (images, targets) = (images(engine.program(0), 0, 0), targets(net, engine.program(0), 0, 0));
                    engine.step(0, Batch { images: &images, targets: &targets }, Moment::default()).unwrap_err()
                })
            };
            let ranks: Vec<_> = convoy_comm::threads(3).into_iter().map(step).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic gets out")).collect()
        });
        let Error::Panic { op, text: said } = &errors[1] else { panic!("{text}: {:?}", errors[1]) };
        assert!(op.starts_with("conv2 ") && said.starts_with("bug: "), "{text}: {op}: {said}");
        for rank in [0, 2] {
            let Error::Communication(Ended { rank: first, cause, .. }) = &errors[rank] else {
                panic!("{text}: rank {rank} says {:?}", errors[rank])
            };
            assert_eq!((*first, cause.as_str()), (1, &*format!("bug: a panic in {op}: {said}")), "{text}");
        }
    }
}
