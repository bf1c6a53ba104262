//! Gathering: where gradients of outputs travel instead of gradients of inputs (PAPERS.md 1.3, scheme a).
//!
//! A rank that read a halo computes the halo's gradient too, from the gradient of its own outputs, and sends it back to be added:
//! the adjoint of the exchange, right for every layer. Where an input's gradient follows from the output's and from parameters
//! alone, ranks may send each other the output's gradient instead, each computing all of what it owns of the input's. Which one
//! is taken for a tensor depends on the bytes that travel and on nothing else.
//!
//! Always true
//! - All consumers that read a halo of a tensor do the same: it has one way back.
//! - A rank that gathers owns all its gradient: nothing of it is added elsewhere.

use crate::access::outside;
use crate::holding::Holding;
use crate::lower::Builder;
use crate::parts::Parts;
use crate::pieces::without;
use crate::program::What;
use convoy_kernels::{Layout, fast};
use convoy_net::{AXES, Axis, LayerId, Network, Region, Shape};
use convoy_split::{Exchange, reached, read};

/// Whatever the algorithm of a pass, results that are cut at multiples of this are computed from what their windows read alone.
const GRAIN: isize = 4;

/// What all ranks know of a network that is cut.
pub(crate) struct Cut<'a> {
    pub network: &'a Network,
    pub shapes: &'a [Shape],
    pub parts: &'a [Parts],
}

impl Cut<'_> {
    /// Whether consumers of a tensor's owner's holding gather.
    pub fn gathers(&self, tensor: LayerId, holding: &Holding) -> bool {
        let ranks = self.parts[tensor.0].owned.len();
        let mut bytes = 0;
        for &(c, i) in holding.consumers.iter().filter(|consumer| self.reads_halo(tensor, **consumer)) {
            match self.output_gradients(tensor, c, i) {
                Some(exchange) => bytes += sent_bytes(&exchange),
                None => return false,
            }
        }
        let back = holding.exchange.transfers.iter().any(|t| t.source != t.target);
        ranks > 1 && back && holding.periodic == [false; AXES] && bytes < sent_bytes(&holding.exchange)
    }

    /// Whether some rank reads more of a tensor than it owns.
    pub fn reads_halo(&self, tensor: LayerId, (c, i): (LayerId, usize)) -> bool {
        let (owned, inside) = (&self.parts[tensor.0].owned, Region::whole(self.shapes[tensor.0]));
        let more = |q: usize| {
            let read = self.parts[c.0].read(self.network, self.shapes, c, i, q).intersect(&inside);
            !read.is_empty() && !owned[q].contains(&read)
        };
        (0..owned.len()).any(more)
    }

    /// What of a layer's output gradient must travel, so that every rank has what the gradient of its part of the input needs;
    /// nothing where that is not enough, or not possible.
    pub fn output_gradients(&self, tensor: LayerId, c: LayerId, i: usize) -> Option<Exchange> {
        let (layer, shape) = (&self.network.layers[c.0], self.shapes[c.0]);
        let (owned, computed) = (&self.parts[tensor.0].owned, &self.parts[c.0].computed);
        if layer.inputs.len() > 1 || self.parts[c.0].are_partial() || !fast::twin(&layer.kind).is_linear() {
            return None;
        }
        let inputs = self.network.input_shapes(c, self.shapes);
        let need = |own: &Region| reached(&layer.kind, &inputs, shape, i, own).intersect(&Region::whole(shape));
        let needed: Vec<Region> = owned.iter().map(need).collect();
        // Margins are a matter of space.
        let within = |q: usize, axis: Axis| {
            let ((start, end), (first, last)) = (needed[q].range(axis), computed[q].range(axis));
            first <= start && end <= last
        };
        let can = |q: usize| {
            let all = within(q, Axis::Sample) && within(q, Axis::Channel);
            owned[q].is_empty() || !computed[q].is_empty() && (needed[q].is_empty() || all)
        };
        (0..owned.len()).all(can).then(|| Exchange::between(computed, &needed, shape, [false; AXES]).without_stays())
    }
}

/// Bytes of an exchange's messages.
fn sent_bytes(exchange: &Exchange) -> usize {
    let travels = exchange.transfers.iter().filter(|t| t.source != t.target);
    travels.map(|t| Layout::dense(t.region).len * 4).sum()
}

impl Builder<'_> {
    fn cut(&self) -> Cut<'_> {
        Cut { network: self.network, shapes: self.shapes, parts: &self.parts }
    }

    /// Whether a layer gathers the gradient of its output to compute that of an input.
    pub fn gathers(&self, l: LayerId, i: usize) -> bool {
        let input = self.network.layers[l.0].inputs[i];
        self.gathered[input.0] && self.holding_of(input, l, i).0 == 0 && self.cut().reads_halo(input, (l, i))
    }

    /// Brings this rank the gradients of others' outputs that its part of the input's gradient needs.
    pub fn gather_halo(&mut self, l: LayerId) {
        if self.gathers(l, 0) {
            let input = self.network.layers[l.0].inputs[0];
            let exchange = self.cut().output_gradients(input, l, 0).expect("bug: a layer that cannot gather");
            let what = What::Gradient(l, 0);
            self.exchange(&exchange, what, what, false, (l.0 as u64) << 16 | 1 << 10);
        }
    }

    /// The interior of an input's gradient, which needs nothing from others, if there is one; and what lies around it.
    pub fn gathered_pieces(&self, l: LayerId, region: &Region) -> (Vec<Region>, Vec<Region>) {
        let layer = &self.network.layers[l.0];
        let exchange = self.cut().output_gradients(layer.inputs[0], l, 0).expect("bug: a layer that cannot gather");
        let inputs = self.network.input_shapes(l, self.shapes);
        let arrives = exchange.transfers.iter().filter(|t| t.target == self.rank);
        let late = arrives.map(|t| read(&layer.kind, &inputs, self.shapes[l.0], 0, &t.region));
        let interior = late.fold(*region, |interior, late| without(&interior, &late, GRAIN));
        match interior.is_empty() || interior == *region {
            true => (vec![], vec![*region]),
            false => (vec![interior], outside(region, &interior)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Action, Options, Program, Purpose, Subject, What, lower};
    use convoy_kernels::{Layout, Mode, Pass, Update};
    use convoy_net::{Kind, LayerId, Network, Region, Shape, layers::*};
    use convoy_split::{Rank, Strategy};

    fn programs(net: &Network, strategy: &str, ranks: usize) -> Vec<Program> {
        let batch = 2;
        let strategy = Strategy::parse(strategy, ranks, net, &net.shapes(batch).unwrap()).unwrap();
        let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let (winograd, division) = Default::default();
        let options = Options { batch, mode: Mode::Train, leaves: 8, winograd, update, division };
        (0..ranks).map(|r| lower(net, &strategy, Rank(r), &options).unwrap()).collect()
    }

    /// Two convolutions of 3 x 3: the first makes `wide` channels of 16, the second `narrow` of these.
    fn net(wide: usize, narrow: usize) -> Network {
        let mut net = Network::new("two", &[16, 32, 24]);
        net.push("first", Kind::Convolution(Convolution::new(wide, &[3, 3]).padding(1)));
        net.push("second", Kind::Convolution(Convolution::new(narrow, &[3, 3]).padding(1)));
        net
    }

    /// A row of halo of `wide` channels goes forward; back goes a row of whichever has fewer channels.
    #[test]
    fn what_is_shorter_travels() {
        let row = |channels: usize| Layout::dense(Region::whole(Shape([2, channels, 1, 1, 24]))).len * 4;
        for (wide, narrow, back) in [(64, 16, 16), (16, 64, 16), (32, 32, 32)] {
            let programs = programs(&net(wide, narrow), "spatial", 2);
            for program in &programs {
                assert_eq!(program.sent(Purpose::Halo), (row(wide) + row(back), 2), "{wide} {narrow}");
                let added = |op: &&crate::Op| matches!(op.action, Action::Copy { add: true, .. });
                assert_eq!(program.ops.iter().filter(added).count(), usize::from(narrow >= wide), "{wide} {narrow}");
            }
        }
    }

    /// Of a gradient that needs others' outputs, some part does not wait for them, nor do weights' gradients.
    #[test]
    fn what_needs_nothing_from_others_does_not_wait() {
        let cut = |text, ranks| programs(&net(64, 16), text, ranks);
        for program in [cut("spatial", 2), cut("spatial:1x2", 2), cut("spatial:2x2", 4)].concat() {
            let ancestors = program.ancestors();
            let what = |b: crate::BufferId| program.buffers[b.0].what;
            let is_arrival = |o: &usize| match &program.ops[*o].action {
                Action::Copy { source, target, .. } => {
                    (what(*source), what(*target)) == (What::Message, What::Gradient(LayerId(2), 0))
                }
                _ => false,
            };
            let arrivals: Vec<usize> = (0..program.ops.len()).filter(is_arrival).collect();
            assert!(!arrivals.is_empty());
            let of = |wanted: Pass| {
                let is = move |op: &crate::Op| match &op.action {
                    Action::Compute { subject, stage, .. } => {
                        *subject == Subject::Layer(LayerId(2)) && stage.pass == wanted
                    }
                    _ => false,
                };
                let ops = (0..program.ops.len()).filter(|&o| is(&program.ops[o]));
                ops.map(|o| arrivals.iter().any(|&a| ancestors[o].get(a))).collect::<Vec<bool>>()
            };
            let gradient = of(Pass::InputGradient(0));
            assert!(gradient.contains(&true) && gradient.contains(&false), "{gradient:?}");
            let weights = of(Pass::WeightGradient(0));
            assert!(!weights.is_empty() && weights.iter().all(|waits| !waits));
        }
    }
}
