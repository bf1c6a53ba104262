//! LeNet: two convolutions and two fully connected layers for digits.

use crate::{Kind, Network, layers::*};

/// The classic 20/50/500 form, without activations after the convolutions.
pub fn lenet(net: &mut Network, classes: usize) {
    net.push("c1", Kind::Convolution(Convolution::new(20, &[5, 5])));
    net.push("pool1", Kind::MaxPool(MaxPool::new(&[2, 2])));
    net.push("c2", Kind::Convolution(Convolution::new(50, &[5, 5])));
    net.push("pool2", Kind::MaxPool(MaxPool::new(&[2, 2])));
    net.push("f1", Kind::FullyConnected(FullyConnected::new(500)));
    net.push("relu", Kind::Activation(Activation::Relu));
    net.push("f2", Kind::FullyConnected(FullyConnected::new(classes)));
}
