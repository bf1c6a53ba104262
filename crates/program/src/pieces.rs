//! Pieces: what a rank computes of a layer, cut into an interior that needs nothing from other ranks, and what lies around it.
//!
//! The interior is computed while halos travel; dependencies follow from what the pieces read.

use crate::access::outside;
use crate::lower::Builder;
use convoy_kernels::Geometry;
use convoy_kernels::fast;
use convoy_net::{Axis, LayerId, Region};
use convoy_split::reached;

impl Builder<'_> {
    /// The interior first, then the boundary; one piece where nothing arrives from others, or everything does.
    pub fn pieces(&self, l: LayerId, geometry: &Geometry) -> Vec<Region> {
        let layer = &self.network.layers[l.0];
        let inputs = self.network.input_shapes(l, self.shapes);
        let grain = fast::twin(&layer.kind).grain(geometry) as isize;
        let mut interior = geometry.region;
        for (i, input) in layer.inputs.iter().enumerate() {
            let (_, holding) = self.holding_of(*input, l, i);
            let arrives = holding.exchange.transfers.iter().filter(|t| t.target == self.rank && t.source != self.rank);
            for t in arrives {
                let late = reached(&layer.kind, &inputs, self.shapes[l.0], i, &t.region.shifted(t.shift));
                interior = without(&interior, &late, grain);
            }
        }
        if interior.is_empty() || interior == geometry.region {
            return vec![geometry.region];
        }
        [vec![interior], outside(&geometry.region, &interior)].concat()
    }

    /// A layer's input gradient in boxes, those that are computed before its weights' gradients and those after: what others wait
    /// for first, or else what waits for others last. Nothing where it is not cut.
    pub fn gradient_pieces(&self, l: LayerId, geometry: &Geometry) -> (Vec<Region>, Vec<Region>) {
        let (&[input], [Some((_, region))]) = (&self.network.layers[l.0].inputs[..], &geometry.input_gradients[..])
        else {
            return (vec![], vec![]);
        };
        if self.gathers(l, 0) {
            return self.gathered_pieces(l, region);
        }
        let (_, holding) = self.holding_of(input, l, 0);
        let leaves = holding.exchange.transfers.iter().filter(|t| t.target == self.rank && t.source != self.rank);
        let stays = leaves.fold(*region, |stays, t| without(&stays, &t.region.shifted(t.shift), 1));
        match stays.is_empty() || stays == *region {
            true => (vec![], vec![]),
            false => (outside(region, &stays), vec![stays]),
        }
    }
}

/// The largest part of a region that keeps clear of another, cut along one axis at a multiple of the grain.
pub(crate) fn without(all: &Region, late: &Region, grain: isize) -> Region {
    if all.intersect(late).is_empty() {
        return *all;
    }
    let along = |(axis, grain): (Axis, isize)| {
        let ((start, end), (first, last)) = (all.range(axis), late.range(axis));
        let after = (last + grain - 1).div_euclid(grain) * grain;
        let before = first.div_euclid(grain) * grain;
        [all.with(axis, after.clamp(start, end), end), all.with(axis, start, before.clamp(start, end))]
    };
    let axes = [(Axis::Sample, 1), (Axis::Depth, 1), (Axis::Height, grain), (Axis::Width, grain)];
    axes.into_iter().flat_map(along).max_by_key(|part| part.len()).unwrap_or(Region::EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Options, Program, Subject, What, lower};
    use convoy_kernels::{Mode, Pass, Update, Winograd};
    use convoy_net::{Kind, Network, Shape, layers::*, zoo};
    use convoy_split::{Rank, Strategy};

    #[test]
    fn parts_keep_clear_and_are_cut_at_the_grain() {
        let all = Region::whole(Shape([2, 8, 1, 20, 30]));
        let rows = |from, to| all.with(Axis::Height, from, to);
        assert_eq!(without(&all, &rows(0, 3), 1), rows(3, 20));
        assert_eq!(without(&all, &rows(0, 3), 4), rows(4, 20));
        assert_eq!(without(&all, &rows(18, 25), 4), rows(0, 16));
        assert_eq!(without(&all, &rows(30, 40), 4), all);
        assert!(without(&all, &all, 1).is_empty());
        let corner = rows(0, 3).with(Axis::Width, 28, 30);
        assert_eq!(without(&all, &corner, 1), all.with(Axis::Width, 0, 28));
    }

    fn programs(net: &Network, strategy: &str, ranks: usize, winograd: Winograd) -> Vec<Program> {
        let batch = 2;
        let strategy = Strategy::parse(strategy, ranks, net, &net.shapes(batch).unwrap()).unwrap();
        let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let options = Options { batch, mode: Mode::Train, leaves: 8, winograd, update, division: Default::default() };
        (0..ranks).map(|r| lower(net, &strategy, Rank(r), &options).unwrap()).collect()
    }

    /// Of every convolution that reads a halo, some part waits for no message with it; the rest does.
    #[test]
    fn every_convolution_with_a_halo_has_an_interior() {
        let mut deep = Network::new("deep", &[3, 24, 32]);
        for (i, kernel) in [3, 5, 3].into_iter().enumerate() {
            deep.push(
                format!("conv{i}"),
                Kind::Convolution(Convolution::new(16, &[kernel, kernel]).padding(kernel / 2)),
            );
            deep.push(format!("relu{i}"), Kind::Activation(Activation::Relu));
        }
        let resnet = zoo::model("resnet20", Default::default()).unwrap().fused();
        // Tiles of Winograd's algorithm are 4 x 4: blocks of resnet20's last layers have no whole one inside, but those of larger images.
        let input = Some(vec![3, 96, 96]);
        let large = zoo::model("resnet20", zoo::ModelOptions { input, ..Default::default() }).unwrap().fused();
        for (net, strategy, ranks, winograd) in [
            (&deep, "spatial", 2, Winograd::Off),
            (&deep, "spatial:2x2", 4, Winograd::Off),
            (&deep, "spatial", 2, Winograd::Four),
            (&deep, "spatial:2x2", 4, Winograd::Four),
            (&deep, "spatial:1x2", 2, Winograd::Four),
            (&deep, "spatial:2x2", 4, Winograd::Two),
            (&large, "spatial", 2, Winograd::Four),
            (&large, "spatial:2x2", 4, Winograd::Four),
            (&resnet, "spatial", 2, Winograd::Off),
            (&resnet, "spatial:2x2", 4, Winograd::Off),
        ] {
            let mut with_halo = 0;
            for program in programs(net, strategy, ranks, winograd) {
                let ancestors = program.ancestors();
                for (l, layer) in net.layers.iter().enumerate() {
                    let input = layer.inputs.first().map(|i| What::Tensor(*i, 0));
                    let arrivals: Vec<usize> = (0..program.ops.len())
                        .filter(|&o| match &program.ops[o].action {
                            Action::Copy { source, target, .. } => {
                                program.buffers[source.0].what == What::Message
                                    && Some(program.buffers[target.0].what) == input
                            }
                            _ => false,
                        })
                        .collect();
                    if arrivals.is_empty() || !matches!(layer.kind, Kind::Convolution(_)) {
                        continue;
                    }
                    with_halo += 1;
                    let forward = (0..program.ops.len()).filter(|&o| match &program.ops[o].action {
                        Action::Compute { subject: Subject::Layer(s), stage, .. } => {
                            s.0 == l && stage.pass == Pass::Forward
                        }
                        _ => false,
                    });
                    let waits = |o: usize| arrivals.iter().any(|&a| ancestors[o].get(a));
                    let (late, early): (Vec<usize>, Vec<usize>) = forward.partition(|&o| waits(o));
                    assert!(
                        !early.is_empty() && !late.is_empty(),
                        "{} {} of {} under {strategy}: {late:?} wait, {early:?} do not",
                        net.name,
                        layer.name,
                        program.rank
                    );
                }
            }
            // And of every gradient that goes back to others, some part is computed after it has left, or may be.
            for program in programs(net, strategy, ranks, winograd) {
                let ancestors = program.ancestors();
                let what = |b: crate::BufferId| program.buffers[b.0].what;
                for (o, op) in program.ops.iter().enumerate() {
                    let Action::Copy { source, target, .. } = &op.action else { continue };
                    let (What::Gradient(tensor, 0), What::Message) = (what(*source), what(*target)) else { continue };
                    let fills = |op: &crate::Op| match &op.action {
                        Action::Compute { stage, operands, .. } => {
                            matches!(stage.pass, Pass::InputGradient(_))
                                && operands.iter().any(|(_, b)| what(*b) == What::Gradient(tensor, 0))
                                && op.accesses.iter().any(|a| a.writes && a.buffer == *source)
                        }
                        _ => false,
                    };
                    let later = (0..program.ops.len()).any(|i| fills(&program.ops[i]) && !ancestors[o].get(i));
                    assert!(later, "{} under {strategy}: op {o} of {} waits for all", net.name, program.rank);
                }
            }
            assert!(with_halo >= 2 * ranks, "{} under {strategy}: {with_halo} halos", net.name);
        }
    }
}
