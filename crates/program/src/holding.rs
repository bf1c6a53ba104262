//! Holdings: the forms in which a rank has a tensor.
//!
//! The owner's holding stores the region a rank owns, with margins for the padding and the halos that near consumers need. A
//! consumer that needs other samples or channels, or another kind of edge, gets a holding of its own, gathered for it. Both are
//! filled by an [`Exchange`], and gradients come back through its adjoint.

use crate::parts::Parts;
use convoy_net::{AXES, Axis, Edge, LayerId, Network, Region, Shape};
use convoy_split::Exchange;

/// One form in which ranks have a tensor.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The layers that read it, with the input's position.
    pub consumers: Vec<(LayerId, usize)>,
    /// Per rank, the region that is read, padding included; for the owner's holding also what is owned.
    pub needed: Vec<Region>,
    /// Along which axes what lies beyond the end is the other end.
    pub periodic: [bool; AXES],
    /// What must travel to fill it.
    pub exchange: Exchange,
}

impl Holding {
    /// Per rank: the part of `needed` whose gradient consumers compute. What lies beyond a zero edge has none.
    pub fn gradient_region(&self, rank: usize, shape: Shape) -> Region {
        let mut region = self.needed[rank];
        for a in 0..AXES {
            if !self.periodic[a] {
                region.start[a] = region.start[a].max(0);
                region.end[a] = region.end[a].min(shape.0[a] as isize);
            }
        }
        if region.is_empty() { Region::EMPTY } else { region }
    }
}

/// All holdings of a tensor; the first is the owner's.
pub fn holdings(network: &Network, shapes: &[Shape], parts: &[Parts], tensor: LayerId) -> Vec<Holding> {
    let (own, shape) = (&parts[tensor.0].owned, shapes[tensor.0]);
    let ranks = own.len();
    // A network's input is loaded from data, by everyone as needed: it is always near, and owning it means nothing.
    let is_input = network.layers[tensor.0].inputs.is_empty();
    let needed = if is_input { vec![Region::EMPTY; ranks] } else { own.clone() };
    let mut all = vec![Holding { consumers: vec![], needed, periodic: [false; AXES], exchange: Exchange::default() }];
    let mut periodic_so_far = None;
    let channels = |q: usize| {
        let reads = consumers_of(network, tensor).map(|(c, i)| parts[c.0].read(network, shapes, c, i, q));
        reads.fold(Region::EMPTY, |all, read| all.hull(&read)).range(Axis::Channel)
    };
    let channels: Vec<_> = if is_input { (0..ranks).map(channels).collect() } else { vec![] };
    for (c, position) in consumers_of(network, tensor) {
        let inputs = network.input_shapes(c, shapes);
        let maps = network.layers[c.0].kind.operation().maps(&inputs, shapes[c.0], position);
        let periodic = maps.map(|m| m.edge() == Edge::Periodic);
        let reads = (0..ranks).map(|q| parts[c.0].read(network, shapes, c, position, q));
        let reads: Vec<Region> = reads.collect();
        let near = |q: usize| match is_input {
            true => reads[q].is_empty() || reads[q].range(Axis::Channel) == channels[q],
            false => is_near(&own[q], &reads[q]),
        };
        let near = (0..ranks).all(near);
        let same_edges = *periodic_so_far.get_or_insert(periodic) == periodic;
        let consumer = (c, position);
        if near && same_edges {
            let holding = &mut all[0];
            holding.consumers.push(consumer);
            holding.periodic = periodic;
            holding.needed.iter_mut().zip(&reads).for_each(|(n, r)| *n = n.hull(r));
        } else if let Some(same) = all[1..].iter_mut().find(|h| h.needed == reads && h.periodic == periodic) {
            same.consumers.push(consumer);
        } else {
            let exchange = match is_input {
                true => Exchange::within(&reads, shape),
                false => Exchange::between(own, &reads, shape, periodic),
            };
            all[0].needed.iter_mut().zip(&reads).filter(|_| is_input).for_each(|(n, r)| *n = n.hull(r));
            all.push(Holding { consumers: vec![consumer], needed: reads, periodic, exchange });
        }
    }
    all[0].exchange = Exchange::between(own, &all[0].needed, shape, all[0].periodic).without_stays();
    if is_input {
        // Halos are loaded too; only what wraps around comes from whoever has it, and who has it keeps it.
        all[0].exchange.transfers.retain(|t| t.shift != [0; AXES]);
        let sends = |q: usize, exchange: &Exchange| exchange.transfers.iter().any(|t| t.source.0 == q);
        for q in (0..ranks).filter(|&q| sends(q, &all[0].exchange)).collect::<Vec<_>>() {
            all[0].needed[q] = all[0].needed[q].hull(&own[q]);
        }
    }
    all
}

/// The layers that read a tensor, with the input's position.
fn consumers_of(network: &Network, tensor: LayerId) -> impl Iterator<Item = (LayerId, usize)> + use<'_> {
    let inputs = |c: usize| network.layers[c].inputs.iter().enumerate().map(move |(i, input)| (c, i, *input));
    let all = (0..network.layers.len()).flat_map(inputs);
    all.filter(move |(_, _, input)| *input == tensor).map(|(c, i, _)| (LayerId(c), i))
}

/// Whether a region can be read from the owned one with margins in space: same samples, same channels.
fn is_near(own: &Region, read: &Region) -> bool {
    let same = |axis: Axis| own.range(axis) == read.range(axis);
    // Windows may lie in padding or between what is spread, and read nothing, but of some channels.
    read.size(Axis::Sample) == 0 || (same(Axis::Sample) && same(Axis::Channel))
}
