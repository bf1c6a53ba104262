//! ResNets: blocks of convolutions around which the input is added to the output.

use super::sequence::Sequence;
use crate::{Kind, LayerId, Network, layers::*};

pub fn resnet18(net: &mut Network, classes: usize) {
    resnet(net, Stem::Large, Block::Basic, &[2, 2, 2, 2], &WIDTHS, classes);
}
pub fn resnet34(net: &mut Network, classes: usize) {
    resnet(net, Stem::Large, Block::Basic, &[3, 4, 6, 3], &WIDTHS, classes);
}
pub fn resnet50(net: &mut Network, classes: usize) {
    resnet(net, Stem::Large, Block::Bottleneck, &[3, 4, 6, 3], &WIDTHS, classes);
}
pub fn resnet101(net: &mut Network, classes: usize) {
    resnet(net, Stem::Large, Block::Bottleneck, &[3, 4, 23, 3], &WIDTHS, classes);
}
pub fn resnet152(net: &mut Network, classes: usize) {
    resnet(net, Stem::Large, Block::Bottleneck, &[3, 8, 36, 3], &WIDTHS, classes);
}
/// For small images: the stem keeps their size.
pub fn resnet18_cifar(net: &mut Network, classes: usize) {
    resnet(net, Stem::Small, Block::Basic, &[2, 2, 2, 2], &WIDTHS, classes);
}
/// He et al., section 4.2, with n = 3.
pub fn resnet20(net: &mut Network, classes: usize) {
    resnet(net, Stem::Small, Block::BasicPadded, &[3, 3, 3], &[16, 32, 64], classes);
}

const WIDTHS: [usize; 4] = [64, 128, 256, 512];

enum Stem {
    /// 7x7 with stride 2, then pooling.
    Large,
    /// 3x3.
    Small,
}

#[derive(Clone, Copy)]
enum Block {
    /// Two 3x3 convolutions; a shortcut that changes the shape is a 1x1 convolution.
    Basic,
    /// Two 3x3 convolutions; a shortcut that changes the shape skips points and pads with channels of zeros (option A).
    BasicPadded,
    /// 1x1, 3x3 with the stride, 1x1 with four times the width.
    Bottleneck,
}

fn resnet(net: &mut Network, stem: Stem, block: Block, depths: &[usize], widths: &[usize], classes: usize) {
    let mut sequence = Sequence::new(net, "stem");
    match stem {
        Stem::Large => {
            sequence.normed(widths[0], 7, 2).relu().max_pool(MaxPool::new(&[3, 3]).stride(2).padding(1));
        }
        Stem::Small => {
            sequence.normed(widths[0], 3, 1).relu();
        }
    }
    let (mut channels, mut number) = (widths[0], 0);
    for (stage, (&depth, &width)) in depths.iter().zip(widths).enumerate() {
        for i in 0..depth {
            let stride = if stage > 0 && i == 0 { 2 } else { 1 };
            channels = residual(net, block, &format!("blocks.{number}"), channels, width, stride);
            number += 1;
        }
    }
    net.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(classes)));
}

/// One block; returns its number of output channels.
fn residual(net: &mut Network, block: Block, path: &str, channels: usize, width: usize, stride: usize) -> usize {
    let input = net.output();
    let mut body = Sequence::new(net, format!("{path}.body"));
    let output = match block {
        Block::Basic | Block::BasicPadded => {
            body.normed(width, 3, stride).relu().normed(width, 3, 1);
            width
        }
        Block::Bottleneck => {
            body.normed(width, 1, 1).relu().normed(width, 3, stride).relu().normed(4 * width, 1, 1);
            4 * width
        }
    };
    let body = body.end();
    let shortcut = match block {
        _ if stride == 1 && channels == output => input,
        Block::BasicPadded => padded_shortcut(net, path, input, output - channels),
        _ => Sequence::from(net, format!("{path}.shortcut"), input).normed(output, 1, stride).end(),
    };
    net.join(format!("{path}.add"), Kind::Add(Add), &[body, shortcut]);
    net.push(format!("{path}.relu"), Kind::Activation(Activation::Relu));
    output
}

/// Every second point along height and width, and half of the new channels on either side.
fn padded_shortcut(net: &mut Network, path: &str, input: LayerId, extra: usize) -> LayerId {
    // A pooling window of one point with stride 2 is what takes every second point.
    net.join(format!("{path}.shortcut.skip"), Kind::MaxPool(MaxPool::new(&[1, 1]).stride(2)), &[input]);
    let pad = PadChannels { before: extra / 2, after: extra - extra / 2 };
    net.push(format!("{path}.shortcut.pad"), Kind::PadChannels(pad))
}
