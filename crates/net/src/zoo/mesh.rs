//! The mesh-tangling networks of Dryden et al. (2019): a large field of 18 quantities in, where its mesh will tangle out.
//!
//! Blocks of convolutions, each followed by ReLU and then batch norm. Every channel of the output's coarse grid is one place of
//! the fine one: together they are a mask as large as the input.

use crate::{Kind, Loss, Network, layers::*};

/// For fields of 1024 x 1024.
pub fn mesh1k(net: &mut Network, _: usize) {
    let blocks = [&[128, 256, 256, 256, 256], &[384; 5], &[512; 5], &[384; 5], &[384; 5], &[128; 5]];
    build(net, &blocks.map(|widths| &widths[..]), 5, 1024);
}

/// For fields of 2048 x 2048.
pub fn mesh2k(net: &mut Network, _: usize) {
    let blocks = [&[128; 3], &[256; 3], &[256; 3], &[384; 3], &[384; 3], &[128; 3]];
    build(net, &blocks.map(|widths| &widths[..]), 6, 4096);
}

/// The first `halving` blocks begin with a stride of 2.
fn build(net: &mut Network, blocks: &[&[usize]], halving: usize, places: usize) {
    for (b, widths) in blocks.iter().enumerate() {
        for (i, &width) in widths.iter().enumerate() {
            let (kernel, padding) = if b + i == 0 { (5, 2) } else { (3, 1) };
            let stride = if i == 0 && b < halving { 2 } else { 1 };
            let conv = Convolution::new(width, &[kernel, kernel]).padding(padding).stride(stride).no_bias();
            let name = |part: &str| format!("block{}.{part}{}", b + 1, i + 1);
            net.push(name("conv"), Kind::Convolution(conv));
            net.push(name("relu"), Kind::Activation(Activation::Relu));
            net.push(name("bn"), Kind::BatchNorm(BatchNorm::default()));
        }
    }
    net.push("head", Kind::Convolution(Convolution::new(places, &[1, 1]).no_bias()));
    net.push("mask", Kind::Activation(Activation::Sigmoid));
    net.loss = Loss::MeanSquaredError;
}

#[cfg(test)]
mod tests {
    use crate::{LayerId, zoo};

    /// PAPERS.md 1.10: convolutions, their weights, outputs of a sample, operations forward.
    #[test]
    fn sizes_are_the_published_ones() {
        let expected =
            [("mesh1k", 31, 34_398_464, 481_296_384, 2.3655e12), ("mesh2k", 19, 12_378_368, 682_491_904, 1.8955e12)];
        for (name, count, weights, outputs, flops) in expected {
            let net = zoo::model(name, Default::default()).unwrap();
            let shapes = net.shapes(1).unwrap();
            let convolutions: Vec<usize> =
                (0..net.layers.len()).filter(|&l| net.layers[l].kind.name() == "convolution").collect();
            assert_eq!(convolutions.len(), count, "{name}");
            let parameters = |&l: &usize| net.parameters(LayerId(l), &shapes).iter().map(|p| p.len()).sum::<usize>();
            assert_eq!(convolutions.iter().map(parameters).sum::<usize>(), weights, "{name}");
            assert_eq!(convolutions.iter().map(|&l| shapes[l].len()).sum::<usize>(), outputs, "{name}");
            let forward: u64 = net.summary(1).unwrap().iter().map(|l| l.flops).sum();
            assert!((forward as f64 / flops - 1.0).abs() < 1e-4, "{name}: {forward}");
        }
    }
}
