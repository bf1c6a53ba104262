//! Places: how a rank stores tensors and their gradients, and where each layer works in them.

use crate::holding::Holding;
use crate::lower::Builder;
use crate::program::What;
use convoy_kernels::{BLOCK, Geometry, Layout, Mode, Tensor};
use convoy_net::{Axis, LayerId, Region, Shape};
use convoy_split::reached;
use std::sync::Arc;

impl Builder<'_> {
    /// Lays out tensors and says where each layer works.
    pub fn place(&mut self) {
        let layers = (0..self.network.layers.len()).map(LayerId);
        layers.clone().for_each(|l| self.make_holdings(l));
        for l in layers.clone() {
            if let Some(relu) = self.rectified[l.0] {
                self.found.insert(What::Tensor(l, 0), self.found[&What::Tensor(relu, 0)]);
            }
        }
        for l in layers {
            if !self.network.layers[l.0].inputs.is_empty() {
                self.geometries[l.0] = Some(Arc::new(self.geometry(l)));
            }
        }
        if self.options.mode == Mode::Train || self.is_sharded() {
            self.buckets = self.plan_buckets();
        }
        if self.options.mode == Mode::Train {
            self.lay_out_buckets();
        }
        if self.is_sharded() {
            self.lay_out_shards();
        }
    }

    /// Lays out every form in which this rank has a tensor, and its gradient.
    fn make_holdings(&mut self, l: LayerId) {
        let own = self.own(l);
        for k in 0..self.holdings[l.0].len() {
            let needed = self.holdings[l.0][k].needed[self.rank.0];
            let channels = needed.range(Axis::Channel);
            let stored = or_no_samples(needed, channels, self.shapes[l.0]);
            if self.rectified[l.0].is_none() {
                self.tensor_buffer(What::Tensor(l, k), &self.layout_of(l, stored));
            }
            if self.wants_gradient[l.0] {
                let mut stored = own_or_nothing(k, own);
                stored = stored.hull(&self.held_gradient(l, k));
                if k == 0 && !self.parts[l.0].are_partial() {
                    stored = stored.hull(&self.gradient_margin(l));
                }
                let stored = or_no_samples(stored, channels, self.shapes[l.0]);
                self.tensor_buffer(What::Gradient(l, k), &Layout::blocked(stored));
            }
        }
        if self.parts[l.0].are_partial() {
            let (computed, shape) = (self.computed(l), self.shapes[l.0]);
            let channels = computed.range(Axis::Channel);
            self.tensor_buffer(What::PartialTensor(l), &Layout::blocked(or_no_samples(computed, channels, shape)));
            if self.wants_gradient[l.0] {
                let stored = or_no_samples(computed.hull(&self.gradient_margin(l)), channels, shape);
                self.tensor_buffer(What::PartialGradient(l), &Layout::blocked(stored));
            }
        }
    }

    /// How a region of a layer's output is stored: images of few channels are narrow.
    pub fn layout_of(&self, l: LayerId, stored: Region) -> Layout {
        let narrow = self.network.layers[l.0].inputs.is_empty() && self.shapes[l.0].channels() < BLOCK;
        if narrow { Layout::image(stored) } else { Layout::blocked(stored) }
    }

    /// How far around what this rank owns the gradients of a layer's inputs look at its output's gradient.
    fn gradient_margin(&self, l: LayerId) -> Region {
        let inputs = self.network.input_shapes(l, self.shapes);
        let layer = &self.network.layers[l.0];
        let mut margin = Region::EMPTY;
        let computed = self.computed(l);
        if computed.is_empty() {
            return margin;
        }
        for (i, input) in layer.inputs.iter().enumerate() {
            if self.wants_gradient[input.0] {
                let wanted = self.gradient_region(l, i);
                let mut reached = reached(&layer.kind, &inputs, self.shapes[l.0], i, &wanted);
                // Samples and channels have no margins.
                for axis in [Axis::Sample, Axis::Channel] {
                    let (start, end) = computed.range(axis);
                    reached = reached.with(axis, start, end);
                }
                margin = margin.hull(&reached);
            }
        }
        margin
    }

    /// The part of an input's gradient that a layer computes on this rank: of what it read. What lies beyond a zero edge has
    /// none.
    pub fn gradient_region(&self, l: LayerId, i: usize) -> Region {
        let input = self.network.layers[l.0].inputs[i];
        let read = self.parts[l.0].read(self.network, self.shapes, l, i, self.rank.0);
        let held = self.held_gradient(input, self.holding_of(input, l, i).0);
        let region = if self.gathers(l, i) { held } else { read.intersect(&held) };
        or_no_samples(region, read.range(Axis::Channel), self.shapes[input.0])
    }

    /// The part of a holding's gradient that consumers compute on this rank.
    pub fn held_gradient(&self, tensor: LayerId, k: usize) -> Region {
        match k == 0 && self.gathered[tensor.0] {
            true => self.own(tensor),
            false => self.holdings[tensor.0][k].gradient_region(self.rank.0, self.shapes[tensor.0]),
        }
    }

    /// The form in which a consumer reads a tensor.
    pub fn holding_of(&self, tensor: LayerId, consumer: LayerId, position: usize) -> (usize, &Holding) {
        let all = self.holdings[tensor.0].iter().enumerate();
        let mut found = all.filter(|(_, h)| h.consumers.contains(&(consumer, position)));
        found.next().expect("bug: a consumer without a holding")
    }

    pub fn layout(&self, what: What) -> &Layout {
        let buffer = &self.buffers[self.found[&what].0];
        buffer.layout.as_ref().expect("bug: tensors have layouts")
    }

    fn geometry(&self, l: LayerId) -> Geometry {
        let layer = &self.network.layers[l.0];
        let computed = self.computed(l);
        // Where nothing is computed, the channels that would be read and written still say which parameters belong to this rank.
        let output = |what: What| match computed.is_empty() {
            false => self.layout(what).clone(),
            true => self.layout_of(l, computed),
        };
        let (written, gradient) = self.written(l);
        let mut inputs = vec![];
        let mut input_gradients = vec![];
        for (i, input) in layer.inputs.iter().enumerate() {
            let (k, _) = self.holding_of(*input, l, i);
            let shape = self.shapes[input.0];
            let layout = match computed.is_empty() {
                false => self.layout(What::Tensor(*input, k)).clone(),
                true => self.layout_of(*input, self.parts[l.0].read(self.network, self.shapes, l, i, self.rank.0)),
            };
            inputs.push(Tensor { shape, layout });
            let gradient = self.wants_gradient[input.0].then(|| {
                let region = self.gradient_region(l, i);
                match computed.is_empty() {
                    false => (self.layout(What::Gradient(*input, k)).clone(), region),
                    true => (Layout::blocked(region), region),
                }
            });
            input_gradients.push(gradient);
        }
        Geometry {
            layer: l.0,
            mode: self.options.mode,
            leaves: self.options.leaves,
            leaf_samples: self.options.leaf_samples(),
            winograd: self.options.winograd,
            accumulate: vec![false; inputs.len()],
            inputs,
            output: Tensor { shape: self.shapes[l.0], layout: output(written) },
            region: computed,
            normed: self.normed(l),
            summed: self.norms[l.0].is_some(),
            rectified: self.rectified[l.0].is_some(),
            output_gradient: self.wants_gradient[l.0].then(|| output(gradient)),
            input_gradients,
        }
    }
}

/// A region, or where a rank has nothing of a tensor, no samples of some channels: they still say how parameters lie.
fn or_no_samples(region: Region, (start, end): (isize, isize), shape: Shape) -> Region {
    if !region.is_empty() {
        return region;
    }
    Region::whole(shape).with(Axis::Sample, 0, 0).with(Axis::Channel, start, end)
}

/// Only the owner's holding stores what is owned.
fn own_or_nothing(holding: usize, own: Region) -> Region {
    if holding == 0 { own } else { Region::EMPTY }
}
