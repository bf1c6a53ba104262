//! Parameters divided over ranks: the bits of parameters that are everywhere, in less memory.

mod harness;

use convoy_engine::{Order, Settings};
use convoy_program::{Division, Halos, Home, NormOver, ParameterHome, Program, SumOrder, What, lower};
use convoy_split::{Rank, Strategy};
use harness::*;

const SHARDED: Division = Division {
    norm: NormOver::Global,
    home: ParameterHome::Sharded,
    sums: SumOrder::Tree,
    halos: Halos::Overlapped,
    leaf_samples: None,
};

#[test]
fn sharded_parameters_have_the_bits_of_those_that_are_everywhere() {
    let net = residual(true);
    for (batch, ranks, text) in [
        (8, 2, "data"),
        (8, 4, "data"),
        (3, 8, "data"),
        (4, 3, "spatial"),
        (8, 4, "data:2,filter:2"),
        (8, 4, "data:2,channel:2"),
        (4, 8, "data:2,spatial:2x2"),
    ] {
        let strategy = Strategy::parse(text, ranks, &net, &net.shapes(batch).unwrap()).unwrap();
        let everywhere = run(&net, &strategy, plain(batch), 3);
        let settings = Settings { order: Order::Random(batch as u64), poison: true, ..Settings::default() };
        let sharded = run(&net, &strategy, Way { division: SHARDED, settings, ..plain(batch) }, 3);
        assert_eq!(sharded, everywhere, "batch {batch} under {text} on {ranks}");
    }
}

/// Every float of a parameter is with one rank, and so is what the optimizer remembers of it.
#[test]
fn ranks_keep_a_share() {
    let net = residual(false);
    for ranks in [2, 4, 7] {
        let strategy = Strategy::parse("data", ranks, &net, &net.shapes(8).unwrap()).unwrap();
        let program = |r, division| lower(&net, &strategy, Rank(r), &options(8, division)).unwrap();
        let kept = |p: &Program, is: fn(&What) -> bool| -> usize {
            p.buffers.iter().filter(|b| b.home == Home::Kept && is(&b.what)).map(|b| b.bytes).sum()
        };
        let whole = program(0, Division::default());
        let divided = |w: &What| matches!(w, What::Shard(..) | What::ShardState(..));
        let shares: Vec<usize> = (0..ranks).map(|r| kept(&program(r, SHARDED), divided)).collect();
        // Norms stay: their gradients are whole on every rank. So do running statistics.
        let everywhere = |w: &What| matches!(w, What::Parameter(..) | What::State(..));
        let stays = kept(&program(0, SHARDED), everywhere);
        assert_eq!(shares.iter().sum::<usize>(), kept(&whole, everywhere) - stays, "{ranks} ranks");
        let (most, least) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
        // One line of 64 bytes more or less in each bucket, of the weights and of one state.
        assert!(most - least <= 2 * 64 * 4 && *least > 0, "{shares:?}");
        // Pulled twice where both passes need them, pushed once: no more than half as much again as summing everywhere.
        let sent = |d: Division| (0..ranks).map(|r| program(r, d).sent_bytes()).sum::<usize>();
        assert!(2 * sent(SHARDED) <= 3 * sent(Division::default()));
    }
}
