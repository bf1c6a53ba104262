//! Work done ahead: what a layer does for the layer that reads it, while what it computed is still near.
//!
//! - Sums that a batch norm takes are made by the layer's own stage where it can (`Operand::OutputSums`); the norm has no stage of
//!   statistics then.
//! - A ReLU that alone reads a convolution is applied by it. What would be before exists nowhere; the ReLU's output has its place, and
//!   forward of the ReLU nothing to do. Its gradient is a pass as ever: it needs the output alone.
//!
//! Always true
//! - Results are the same but for the sign of zeros.

use crate::lower::{Builder, Options};
use crate::parts::Parts;
use crate::program::{Subject, What};
use convoy_kernels::{Mode, Pass, Stage, fast};
use convoy_net::layers::Activation;
use convoy_net::{Axis, Kind, LayerId, Network};
use convoy_split::Rank;

/// The number of the partial sums that a batch norm's statistics are.
pub const STATISTICS: usize = 0;

/// By layer: the batch norm that takes sums of its output, if a rank computes the same part of both and keeps it where it is.
pub fn norms(network: &Network, parts: &[Parts], rank: Rank, options: &Options) -> Vec<Option<LayerId>> {
    let mut norms = vec![None; network.layers.len()];
    for (l, layer) in network.layers.iter().enumerate().filter(|_| options.mode == Mode::Train) {
        if let (Kind::BatchNorm(_), Some(input)) = (&layer.kind, layer.inputs.first()) {
            let computed = |l: usize| parts[l].computed[rank.0];
            let is_here = !parts[input.0].are_partial() && parts[input.0].owned[rank.0] == computed(input.0);
            if is_here && computed(input.0) == computed(l) && !computed(l).is_empty() {
                norms[input.0].get_or_insert(LayerId(l));
            }
        }
    }
    norms
}

/// By layer: the ReLU that alone reads it, each rank its own part, if the layer can apply it to what it computes.
pub fn rectified(network: &Network, parts: &[Parts]) -> Vec<Option<LayerId>> {
    let consumers = network.consumers();
    let relu = |l: usize| match consumers[l][..] {
        [next] if network.layers[next.0].kind == Kind::Activation(Activation::Relu) => Some(next),
        _ => None,
    };
    let stays = |l: usize, next: &LayerId| {
        let (own, next) = (&parts[l], &parts[next.0]);
        !own.are_partial() && own.owned == own.computed && own.computed == next.computed && next.computed == next.owned
    };
    let can = |l: usize| matches!(network.layers[l].kind, Kind::Convolution(_) | Kind::FullyConnected(_));
    (0..network.layers.len()).map(|l| relu(l).filter(|next| can(l) && stays(l, next))).collect()
}

impl Builder<'_> {
    /// Makes room for the sums of a layer's output, which the batch norm that wants them would make otherwise.
    pub fn make_output_sums(&mut self, subject: Subject) {
        let Subject::Layer(l) = subject else { return };
        let norm = self.norms[l.0].expect("bug: sums that nobody wants");
        let geometry = self.geometries[norm.0].clone().expect("bug: no geometry");
        let stages = fast::twin(&self.network.layers[norm.0].kind).forward(&geometry);
        let statistics = stages.iter().find(|stage| stage.pass == Pass::Statistics).expect("bug: a norm without sums");
        self.make(Subject::Layer(norm), statistics, geometry.region.size(Axis::Sample));
    }

    /// Whether what a stage would sum was summed by the layer before.
    pub fn has_sums(&self, subject: Subject, stage: &Stage) -> bool {
        stage.pass == Pass::Statistics && self.found.contains_key(&What::Partial(subject, STATISTICS))
    }
}
