//! U-Nets: down to few points with many channels, up again, and at each size the way down joined to the way up.

use super::sequence::Sequence;
use crate::{Kind, Network, layers::*};

/// In two dimensions; sizes are multiples of 16.
pub fn unet(net: &mut Network, classes: usize) {
    build(net, 2, &[64, 128, 256, 512, 1024], classes);
}
/// In three dimensions; sizes are multiples of 8.
pub fn unet3d(net: &mut Network, classes: usize) {
    build(net, 3, &[16, 32, 64, 128], classes);
}

fn build(net: &mut Network, dimensions: usize, widths: &[usize], classes: usize) {
    let two = vec![2; dimensions];
    let mut skips = Vec::new();
    for (i, &width) in widths.iter().enumerate() {
        if i > 0 {
            net.push(format!("pool.{i}"), Kind::MaxPool(MaxPool::new(&two)));
        }
        double(net, &format!("down.{i}"), dimensions, width);
        skips.push((width, net.output()));
    }
    skips.pop();
    for (i, &(width, skip)) in skips.iter().rev().enumerate() {
        let up = TransposedConvolution::new(width, &two).stride(2);
        let up = net.push(format!("up.{i}"), Kind::TransposedConvolution(up));
        net.join(format!("merge.{i}.concat"), Kind::Concat(Concat), &[skip, up]);
        double(net, &format!("merge.{i}"), dimensions, width);
    }
    net.push("out", Kind::Convolution(Convolution::new(classes, &vec![1; dimensions])));
}

/// Two convolutions that keep the size, each with batch norm and activation.
fn double(net: &mut Network, path: &str, dimensions: usize, width: usize) {
    let conv = || Convolution::new(width, &vec![3; dimensions]).padding(1).no_bias();
    let mut sequence = Sequence::new(net, path);
    sequence.convolution(conv()).batch_norm().relu().convolution(conv()).batch_norm().relu();
}
