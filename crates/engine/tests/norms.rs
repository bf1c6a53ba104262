//! Batch norm over fewer elements than the global batch's: what ranks, or teams of ranks, would compute alone.

mod harness;

use convoy_net::layers::*;
use convoy_net::{Kind, Network};
use convoy_program::{Division, NormOver};
use convoy_split::Strategy;
use harness::*;

/// One step of a batch whose parts are normed each for itself.
fn together(net: &Network, batch: usize, ranks: usize, text: &str, norm: NormOver) -> Outcome {
    let strategy = Strategy::parse(text, ranks, net, &net.shapes(batch).unwrap()).unwrap();
    run(net, &strategy, Way { division: Division { norm, ..Division::default() }, ..plain(batch) }, 1)
}

/// One step of each part, a first sample and how many, alone, put together: losses and whatever comes from gradients are means, for the loss is one;
/// running statistics are the first part's.
fn alone(net: &Network, parts: &[(usize, usize)]) -> Outcome {
    let of = |&(first, batch): &(usize, usize)| run(net, &Strategy::single(net), Way { first, ..plain(batch) }, 1);
    let outcomes: Vec<Outcome> = parts.iter().map(of).collect();
    let total: usize = parts.iter().map(|part| part.1).sum();
    let shares: Vec<f64> = parts.iter().map(|part| part.1 as f64 / total as f64).collect();
    let mut all = Outcome { agree: true, losses: outcomes[0].losses.clone(), kept: outcomes[0].kept.clone() };
    all.losses[0] = outcomes.iter().zip(&shares).map(|(o, share)| o.losses[0] * share).sum();
    let is_running = |name: &str| ["parameter 2", "parameter 3"].iter().any(|end| name.ends_with(end));
    for (name, values) in all.kept.iter_mut().filter(|(name, _)| !is_running(name)) {
        for (i, value) in values.iter_mut().enumerate() {
            *value = outcomes.iter().zip(&shares).map(|(o, s)| o.kept[name][i] as f64 * s).sum::<f64>() as f32;
        }
    }
    all
}

#[test]
fn local_norms_are_those_of_ranks_alone() {
    for net in [residual(false), residual(false).fused()] {
        for (batch, ranks, parts) in [(8, 2, vec![(0, 4), (4, 4)]), (7, 3, vec![(0, 2), (2, 2), (4, 3)])] {
            let found = together(&net, batch, ranks, "data", NormOver::Local);
            assert_eq!(difference(&found, &alone(&net, &parts)), None, "batch {batch} on {ranks}");
            // And they are something else than norms over all.
            let all = together(&net, batch, ranks, "data", NormOver::Global);
            assert!(difference(&found, &all).is_some());
        }
    }
}

#[test]
fn norms_of_teams_are_those_of_teams_alone() {
    let net = residual(false);
    for (ranks, text) in [(4, "data:2,spatial:2"), (6, "data:2,spatial:3"), (8, "data:2,spatial:2x2")] {
        let found = together(&net, 8, ranks, text, NormOver::Team);
        assert_eq!(difference(&found, &alone(&net, &[(0, 4), (4, 4)])), None, "{text}");
    }
    // All in one team: the global batch.
    let found = together(&net, 8, 3, "spatial", NormOver::Team);
    assert_eq!(difference(&found, &alone(&net, &[(0, 8)])), None);
}

/// A norm of a single point, which some ranks have not.
#[test]
fn one_element_or_none_is_enough() {
    let mut net = Network::new("points", &[3, 5, 4]);
    net.push("conv", Kind::Convolution(Convolution::new(18, &[3, 3]).padding(1)));
    net.push("mean", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("norm", Kind::BatchNorm(BatchNorm { activation: Some(Activation::Tanh), ..Default::default() }));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(5)));
    for norm in [NormOver::Local, NormOver::Team] {
        // The first rank has none of the three samples.
        let found = together(&net, 3, 4, "data", norm);
        assert_eq!(difference(&found, &alone(&net, &[(0, 1), (1, 1), (2, 1)])), None);
    }
    let global = together(&net, 3, 4, "data", NormOver::Global);
    assert_eq!(difference(&global, &alone(&net, &[(0, 3)])), None);
}
