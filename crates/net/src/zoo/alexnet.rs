//! AlexNet: five convolutions in one column and three fully connected layers.

use super::sequence::Sequence;
use crate::{Kind, Network, layers::*};

/// The single-column form with adaptive pooling before the classifier, so that any large enough image fits.
pub fn alexnet(net: &mut Network, classes: usize) {
    let conv = |filters, kernel: usize, padding| Convolution::new(filters, &[kernel, kernel]).padding(padding);
    let pool = || MaxPool::new(&[3, 3]).stride(2);
    Sequence::new(net, "features")
        .convolution(conv(64, 11, 2).stride(4))
        .relu()
        .max_pool(pool())
        .convolution(conv(192, 5, 2))
        .relu()
        .max_pool(pool())
        .convolution(conv(384, 3, 1))
        .relu()
        .convolution(conv(256, 3, 1))
        .relu()
        .convolution(conv(256, 3, 1))
        .relu()
        .max_pool(pool());
    net.push("pool", Kind::AdaptiveAveragePool(AdaptiveAveragePool::new(&[6, 6])));
    Sequence::new(net, "head")
        .dropout(0.5)
        .fully_connected(4096)
        .relu()
        .dropout(0.5)
        .fully_connected(4096)
        .relu()
        .fully_connected(classes);
}
