//! VGG: stages of 3x3 convolutions and three fully connected layers, without batch norm.

use super::sequence::Sequence;
use crate::{Kind, Network, layers::*};

pub fn vgg11(net: &mut Network, classes: usize) {
    vgg(net, [1, 1, 2, 2, 2], classes);
}
pub fn vgg16(net: &mut Network, classes: usize) {
    vgg(net, [2, 2, 3, 3, 3], classes);
}
pub fn vgg19(net: &mut Network, classes: usize) {
    vgg(net, [2, 2, 4, 4, 4], classes);
}

/// So many convolutions in each of the five stages.
fn vgg(net: &mut Network, convolutions: [usize; 5], classes: usize) {
    let mut features = Sequence::new(net, "features");
    for (repeat, width) in convolutions.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..repeat {
            features.convolution(Convolution::new(width, &[3, 3]).padding(1)).relu();
        }
        features.max_pool(MaxPool::new(&[2, 2]));
    }
    net.push("pool", Kind::AdaptiveAveragePool(AdaptiveAveragePool::new(&[7, 7])));
    Sequence::new(net, "head")
        .fully_connected(4096)
        .relu()
        .dropout(0.5)
        .fully_connected(4096)
        .relu()
        .dropout(0.5)
        .fully_connected(classes);
}
