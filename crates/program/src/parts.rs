//! Parts: what every rank owns, computes and reads of every layer under a strategy.
//!
//! Every rank works this out for all ranks alike, so that senders and receivers agree without a word.

use convoy_net::{Axis, LayerId, Network, Region, Shape};
use convoy_split::{Placement, Strategy, read};

/// What every rank has of one layer.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The region of the output that a rank owns: disjoint, and together the whole.
    pub owned: Vec<Region>,
    /// The region that it computes. Larger than what it owns where ranks with some of the input's channels each compute parts
    /// of the same sums.
    pub computed: Vec<Region>,
    /// Where that is so, the input's channels that it sums over.
    pub channels: Option<Vec<(isize, isize)>>,
}

impl Parts {
    /// Of all layers.
    pub fn all(network: &Network, shapes: &[Shape], strategy: &Strategy) -> Vec<Parts> {
        let layers = strategy.placements.iter().enumerate();
        layers.map(|(l, placement)| Parts::new(network, shapes, LayerId(l), placement, strategy.ranks)).collect()
    }

    fn new(network: &Network, shapes: &[Shape], l: LayerId, placement: &Placement, ranks: usize) -> Parts {
        let owned = placement.owned(shapes[l.0], ranks);
        if placement.grid.channel == 1 || !network.layers[l.0].kind.operation().sums_channels() {
            return Parts { computed: owned.clone(), owned, channels: None };
        }
        let input = network.input_shapes(l, shapes)[0];
        let channels = Some(placement.channels(input.channels(), ranks));
        Parts { computed: placement.computed(shapes[l.0], ranks), owned, channels }
    }

    /// Whether what ranks compute must be added up to become what they own.
    pub fn are_partial(&self) -> bool {
        self.channels.is_some()
    }

    /// The region of input `i` of layer `l` that a rank reads, padding included.
    pub fn read(&self, network: &Network, shapes: &[Shape], l: LayerId, i: usize, rank: usize) -> Region {
        self.read_for(&self.computed[rank], network, shapes, l, i, rank)
    }

    /// The same for a piece of what it computes.
    pub fn read_for(
        &self,
        computed: &Region,
        network: &Network,
        shapes: &[Shape],
        l: LayerId,
        i: usize,
        rank: usize,
    ) -> Region {
        let inputs = network.input_shapes(l, shapes);
        let kind = &network.layers[l.0].kind;
        let mut region = read(kind, &inputs, shapes[l.0], i, computed);
        let (mut start, mut end) = region.range(Axis::Channel);
        if computed.is_empty() {
            // No samples of the channels that would be read: they still say which parameters belong to this rank.
            region = Region::whole(inputs[i]).with(Axis::Sample, 0, 0);
            let map = kind.operation().maps(&inputs, shapes[l.0], i)[Axis::Channel as usize];
            (start, end) = map.reads(computed.range(Axis::Channel), inputs[i].channels());
        }
        if let Some(channels) = &self.channels {
            (start, end) = channels[rank];
        }
        // Margins are a matter of space: what a layer reads beyond the first or last channel is not stored.
        region.with(Axis::Channel, start.max(0), end.min(inputs[i].channels() as isize))
    }

    /// The ranks that have the same share of the layer's parameters as `rank`, in order.
    pub fn team(&self, rank: usize) -> Vec<usize> {
        let share = |q: usize| (self.computed[q].range(Axis::Channel), self.channels.as_ref().map(|c| c[q]));
        (0..self.owned.len()).filter(|&q| share(q) == share(rank)).collect()
    }
}
