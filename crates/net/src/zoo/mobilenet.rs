//! MobileNet v2: inverted residuals, whose middle is wide and depthwise.

use super::sequence::Sequence;
use crate::{Kind, Network, layers::*};

/// Expansion, output channels, repetitions, stride of the first.
const STAGES: [(usize, usize, usize, usize); 7] =
    [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];

/// Width 1.
pub fn mobilenet_v2(net: &mut Network, classes: usize) {
    Sequence::new(net, "features").normed(32, 3, 2).relu6();
    let (mut channels, mut number) = (32, 3);
    for (expansion, filters, repeat, first_stride) in STAGES {
        for i in 0..repeat {
            let stride = if i == 0 { first_stride } else { 1 };
            inverted_residual(net, &format!("features.{number}"), channels, filters, stride, expansion);
            (channels, number) = (filters, number + 1);
        }
    }
    Sequence::numbered(net, "features", number).normed(1280, 1, 1).relu6();
    net.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
    Sequence::new(net, "head").dropout(0.2).fully_connected(classes);
}

fn inverted_residual(net: &mut Network, path: &str, channels: usize, filters: usize, stride: usize, expansion: usize) {
    let (input, middle) = (net.output(), channels * expansion);
    let mut body = Sequence::new(net, format!("{path}.body"));
    if expansion != 1 {
        body.normed(middle, 1, 1).relu6();
    }
    let depthwise = Convolution::new(middle, &[3, 3]).stride(stride).padding(1).groups(middle).no_bias();
    body.convolution(depthwise).batch_norm().relu6().normed(filters, 1, 1);
    let body = body.end();
    if stride == 1 && channels == filters {
        net.join(format!("{path}.add"), Kind::Add(Add), &[input, body]);
    }
}
