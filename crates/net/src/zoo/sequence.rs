//! Sequences: layers that PyTorch numbers within a module.

use crate::{Kind, LayerId, Network, layers::*};

/// Adds layers called `<path>.0`, `<path>.1` and so on, each reading the one before.
pub struct Sequence<'a> {
    net: &'a mut Network,
    path: String,
    /// The next layer's number.
    next: usize,
    /// What the next layer reads.
    last: LayerId,
}

impl<'a> Sequence<'a> {
    /// A sequence that goes on from the network's last layer.
    pub fn new(net: &'a mut Network, path: impl Into<String>) -> Sequence<'a> {
        let last = net.output();
        Sequence::from(net, path, last)
    }
    /// A sequence that goes on from the network's last layer and whose first layer has this number.
    pub fn numbered(net: &'a mut Network, path: impl Into<String>, next: usize) -> Sequence<'a> {
        Sequence { next, ..Sequence::new(net, path) }
    }
    /// A sequence that goes on from a given layer.
    pub fn from(net: &'a mut Network, path: impl Into<String>, last: LayerId) -> Sequence<'a> {
        Sequence { net, path: path.into(), next: 0, last }
    }

    pub fn push(&mut self, kind: Kind) -> &mut Sequence<'a> {
        self.last = self.net.join(format!("{}.{}", self.path, self.next), kind, &[self.last]);
        self.next += 1;
        self
    }
    pub fn convolution(&mut self, layer: Convolution) -> &mut Sequence<'a> {
        self.push(Kind::Convolution(layer))
    }
    pub fn batch_norm(&mut self) -> &mut Sequence<'a> {
        self.push(Kind::BatchNorm(BatchNorm::default()))
    }
    pub fn relu(&mut self) -> &mut Sequence<'a> {
        self.push(Kind::Activation(Activation::Relu))
    }
    pub fn relu6(&mut self) -> &mut Sequence<'a> {
        self.push(Kind::Activation(Activation::Clip { low: 0.0, high: 6.0 }))
    }
    pub fn max_pool(&mut self, layer: MaxPool) -> &mut Sequence<'a> {
        self.push(Kind::MaxPool(layer))
    }
    pub fn fully_connected(&mut self, outputs: usize) -> &mut Sequence<'a> {
        self.push(Kind::FullyConnected(FullyConnected::new(outputs)))
    }
    pub fn dropout(&mut self, probability: f32) -> &mut Sequence<'a> {
        self.push(Kind::Dropout(Dropout { probability }))
    }

    /// A square convolution that keeps the size (divided by the stride), without bias, and its batch norm.
    pub fn normed(&mut self, filters: usize, kernel: usize, stride: usize) -> &mut Sequence<'a> {
        let layer = Convolution::new(filters, &[kernel, kernel]).stride(stride).padding(kernel / 2).no_bias();
        self.convolution(layer).batch_norm()
    }

    /// The sequence's last layer.
    pub fn end(&self) -> LayerId {
        self.last
    }
}
