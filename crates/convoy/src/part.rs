//! Parts of a step as people tell them apart, and how each is computed: what `bench` prints and plans say.
//!
//! The algorithm of a pass follows from a layer's shape over all ranks and samples: any strategy has that of one rank.

use convoy_kernels::{Pass, fast};
use convoy_net::{Error, LayerId, Network};
use convoy_program::{Action, Division, Options, Subject, lower_ops};
use convoy_split::{Rank, Strategy};
use std::collections::BTreeMap;

/// What is done for a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Forward,
    InputGradient,
    WeightGradient,
    Update,
    /// Moving and clearing memory, sums over samples.
    Other,
}

impl Part {
    pub fn name(self) -> &'static str {
        ["forward", "input gradient", "weight gradient", "update", "other"][self as usize]
    }

    /// The part that a pass of a layer is of; what only prepares is of the part that follows.
    pub fn of(pass: Pass) -> Option<Part> {
        match pass {
            Pass::Transform(_) => None,
            Pass::InputGradient(_) | Pass::GradientStatistics | Pass::GradientCoefficients => Some(Part::InputGradient),
            Pass::WeightGradient(_) => Some(Part::WeightGradient),
            Pass::Update => Some(Part::Update),
            Pass::Forward | Pass::Statistics | Pass::Coefficients => Some(Part::Forward),
        }
    }
}

/// How an op computes a pass of a layer, where there are several ways.
pub fn algorithm(network: &Network, action: &Action) -> Option<(LayerId, Pass, &'static str)> {
    let Action::Compute { subject: Subject::Layer(layer), geometry, stage, .. } = action else { return None };
    let algorithm = fast::twin(&network.layers[layer.0].kind).algorithm(stage.pass, geometry)?;
    Some((*layer, stage.pass, algorithm))
}

/// By layer: how each part of it is computed, where there are several ways.
pub fn algorithms(network: &Network, options: &Options) -> Result<Vec<BTreeMap<Part, &'static str>>, Error> {
    // The passes are those of any batch with such leaves, and of a large one on one rank they would take many seconds to lay out.
    let division = Division { leaf_samples: Some(options.leaf_samples()), ..options.division };
    let program = lower_ops(network, &Strategy::single(network), Rank(0), &Options { batch: 1, division, ..*options })?;
    let mut algorithms = vec![BTreeMap::new(); network.layers.len()];
    for op in &program.ops {
        if let Some((layer, pass, algorithm)) = algorithm(network, &op.action) {
            algorithms[layer.0].insert(Part::of(pass).expect("bug: an algorithm of no part"), algorithm);
        }
    }
    Ok(algorithms)
}
