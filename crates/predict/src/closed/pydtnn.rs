//! PyDTNN's model: every layer a roofline, every sum over processes a formula; data against model parallelism (PAPERS.md 3).
//!
//! Three slips of the published code are not repeated: rearranging memory costs its bytes, col2im belongs to the input's
//! gradient, and a fully connected layer's weight gradient is always counted.

use crate::collective::{AllGather, AllReduce, Link};

/// A computer as this model sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Platform {
    /// Operations a second.
    pub flops: f64,
    /// Bytes a second.
    pub memory_bandwidth: f64,
    /// Bits a second.
    pub link_bits: f64,
    pub latency_seconds: f64,
}

/// A layer with weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layer {
    Convolution { channels: f64, filters: f64, kernel: f64, height: f64, width: f64 },
    FullyConnected { inputs: f64, outputs: f64 },
}

const ELEMENT_BYTES: f64 = 4.0;

impl Platform {
    /// Seconds of operations and elements moved, whichever takes longer.
    fn roofline(&self, flops: f64, elements: f64) -> f64 {
        (flops / self.flops).max(elements * ELEMENT_BYTES / self.memory_bandwidth)
    }

    /// A matrix product.
    pub fn product(&self, m: f64, n: f64, k: f64) -> f64 {
        self.roofline(2.0 * m * n * k, m * n + m * k + n * k)
    }

    /// Rearranging an input's windows into a matrix.
    pub fn im2col(&self, m: f64, n: f64) -> f64 {
        self.roofline(0.0, m * n)
    }

    /// Adding the same back.
    pub fn col2im(&self, m: f64, n: f64) -> f64 {
        self.roofline(m * n, m * n)
    }

    fn link(&self) -> Link {
        Link {
            latency_seconds: self.latency_seconds,
            byte_seconds: 8.0 / self.link_bits,
            add_seconds: 1.0 / self.flops,
        }
    }

    /// Seconds of a layer's forward pass, weight gradient and input gradient for so many samples, with a share `1 / parts` of
    /// its outputs.
    pub fn layer(&self, layer: Layer, samples: f64, parts: f64) -> [f64; 3] {
        match layer {
            Layer::Convolution { channels, filters, kernel, height, width } => {
                let (rows, columns, filters) = (channels * kernel * kernel, samples * height * width, filters / parts);
                [
                    self.im2col(rows, columns) + self.product(filters, columns, rows),
                    self.product(filters, rows, columns),
                    self.product(rows, columns, filters) + self.col2im(rows, columns),
                ]
            }
            Layer::FullyConnected { inputs, outputs } => {
                let outputs = outputs / parts;
                [
                    self.product(samples, outputs, inputs),
                    self.product(inputs, outputs, samples),
                    self.product(samples, inputs, outputs),
                ]
            }
        }
    }

    /// Seconds of all layers' passes; the first one needs no gradient of its input.
    fn compute(&self, layers: &[Layer], samples: f64, parts: f64) -> f64 {
        let each = layers.iter().enumerate().map(|(i, &layer)| {
            let [forward, weights, inputs] = self.layer(layer, samples, parts);
            forward + weights + if i == 0 { 0.0 } else { inputs }
        });
        each.sum()
    }

    /// A step with samples over `p` processes, a sum after every layer: seconds of computing and of the network.
    pub fn data_step(&self, layers: &[Layer], batch: f64, p: usize) -> (f64, f64) {
        let sum = |l: &Layer| AllReduce::Rabenseifner.seconds(p, l.parameters(), ELEMENT_BYTES, self.link());
        (self.compute(layers, batch / p as f64, 1.0), layers.iter().map(sum).sum())
    }

    /// A step with outputs over `p` processes, which all see the whole batch: a gather after every layer forward, a sum of the
    /// input's gradient backward.
    pub fn model_step(&self, layers: &[Layer], batch: f64, p: usize) -> (f64, f64) {
        let each = layers.iter().enumerate().map(|(i, layer)| {
            let (input, output) = layer.activations();
            let gather = AllGather::Ring.seconds(p, batch * output, ELEMENT_BYTES, self.link());
            let sum = AllReduce::Rabenseifner.seconds(p, batch * input, ELEMENT_BYTES, self.link());
            gather + if i == 0 { 0.0 } else { sum }
        });
        (self.compute(layers, batch, p as f64), each.sum())
    }
}

impl Layer {
    fn parameters(&self) -> f64 {
        match *self {
            Layer::Convolution { channels, filters, kernel, .. } => filters * (channels * kernel * kernel + 1.0),
            Layer::FullyConnected { inputs, outputs } => outputs * (inputs + 1.0),
        }
    }

    /// Elements of a sample's input and output; convolutions keep height and width.
    fn activations(&self) -> (f64, f64) {
        match *self {
            Layer::Convolution { channels, filters, height, width, .. } => {
                (channels * height * width, filters * height * width)
            }
            Layer::FullyConnected { inputs, outputs } => (inputs, outputs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64) {
        // Six digits are given.
        assert!((found / wanted - 1.0).abs() < 6e-6, "{found} {wanted}");
    }

    fn platform(link_bits: f64) -> Platform {
        Platform { flops: 4e12, memory_bandwidth: 50e9, link_bits, latency_seconds: 0.5e-6 }
    }

    #[test]
    fn golden_layers() {
        let p = platform(1e9);
        let (rows, columns) = (64.0 * 9.0, 32.0 * 112.0 * 112.0);
        for (m, n, k) in [(128.0, columns, rows), (128.0, rows, columns), (rows, columns, 128.0)] {
            near(p.product(m, n, k), 0.0226132);
        }
        near(p.im2col(rows, columns), 0.0184969);
        near(p.col2im(rows, columns), 0.0184969);
        let dense = Layer::FullyConnected { inputs: 25088.0, outputs: 4096.0 };
        p.layer(dense, 32.0, 1.0).into_iter().for_each(|seconds| near(seconds, 0.00829555));
    }

    fn vgg16() -> Vec<Layer> {
        let mut layers = vec![];
        let mut channels = 3.0;
        for (size, filters, count) in [(224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3)] {
            for _ in 0..count {
                let (size, filters) = (size as f64, filters as f64);
                layers.push(Layer::Convolution { channels, filters, kernel: 3.0, height: size, width: size });
                channels = filters;
            }
        }
        for (inputs, outputs) in [(25088.0, 4096.0), (4096.0, 4096.0), (4096.0, 1000.0)] {
            layers.push(Layer::FullyConnected { inputs, outputs });
        }
        layers
    }

    #[test]
    fn golden_sweep_of_data_and_model_parallelism() {
        let net = vgg16();
        near(platform(1e9).data_step(&net, 256.0, 1).0, 11.1409);
        near(platform(1e9).model_step(&net, 256.0, 1).0, 11.1409);
        for (bits, p, data, model) in [
            (1e9, 8, (1.41674, 7.74810), (8.41673, 225.692)),
            (1e10, 8, (1.41674, 0.774881), (8.41673, 22.5697)),
            (1e10, 64, (0.203109, 0.871783), (8.32890, 25.3914)),
            (1e11, 64, (0.203109, 0.0872953), (8.32890, 2.54018)),
        ] {
            let found = (platform(bits).data_step(&net, 256.0, p), platform(bits).model_step(&net, 256.0, p));
            near(found.0.0, data.0);
            near(found.0.1, data.1);
            near(found.1.0, model.0);
            near(found.1.1, model.1);
        }
        let total = |(compute, network): (f64, f64)| compute + network;
        let slow = platform(1e10);
        near(total(slow.model_step(&net, 1.0, 8)), 0.125274);
        near(total(slow.model_step(&net, 8.0, 8)), 0.972436);
        near(total(slow.data_step(&net, 8.0, 8)), 0.848299);
        // Model parallelism is faster up to six samples, where data parallelism cannot use all processes.
        let fastest = |batch: f64| total(slow.model_step(&net, batch, 8)) < total(slow.data_step(&net, 8.0, 8));
        assert!(fastest(6.0) && !fastest(7.0));
    }
}
