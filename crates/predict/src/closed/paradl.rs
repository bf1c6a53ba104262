//! ParaDL: time and memory of an epoch under one strategy for all layers (PAPERS.md 6.3).
//!
//! Sizes are elements of one sample, for weights in all. No overlap, buffers of their own for every layer.

/// What one layer holds and takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layer {
    pub input: f64,
    pub weights: f64,
    pub output: f64,
    /// Of one sample.
    pub forward_seconds: f64,
    pub backward_seconds: f64,
    /// Of one step.
    pub update_seconds: f64,
    /// Elements a rank gets of its neighbours, of the input and of the output's gradient.
    pub halo_input: f64,
    pub halo_gradient: f64,
    /// Whether the strategy splits this layer; one that is not split is computed by everyone.
    pub split: bool,
}

/// What is trained, on what.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    pub layers: Vec<Layer>,
    /// Samples of the data.
    pub samples: f64,
    pub batch: f64,
    pub element_bytes: f64,
    /// Inside a group of ranks: latency, seconds a byte.
    pub inner: (f64, f64),
    /// Between groups.
    pub outer: (f64, f64),
    /// Flows that share a link between groups.
    pub contention: f64,
}

/// A prediction of a closed form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Closed {
    pub compute_seconds: f64,
    pub communication_seconds: f64,
    /// On each rank.
    pub memory_bytes: f64,
}

impl Closed {
    pub fn total_seconds(&self) -> f64 {
        self.compute_seconds + self.communication_seconds
    }
}

impl Epoch {
    fn sum(&self, of: impl Fn(&Layer) -> f64) -> f64 {
        self.layers.iter().map(of).sum()
    }

    fn steps(&self) -> f64 {
        (self.samples / self.batch).ceil()
    }

    fn sample_seconds(layer: &Layer) -> f64 {
        layer.forward_seconds + layer.backward_seconds
    }

    fn weights(&self) -> f64 {
        self.sum(|l| l.weights)
    }

    /// Values and gradients of everything, activations and weights each divided by something.
    fn memory(&self, samples: f64, weights: impl Fn(&Layer) -> f64) -> f64 {
        2.0 * self.element_bytes * self.sum(|l| samples * (l.input + l.output) + weights(l))
    }

    /// A ring's sum of so many elements over `p`, in one step.
    fn all_reduce(&self, p: f64, elements: f64, (alpha, beta): (f64, f64)) -> f64 {
        2.0 * (p - 1.0) * (alpha + elements / p * self.element_bytes * beta)
    }

    pub fn serial(&self) -> Closed {
        Closed {
            compute_seconds: self.samples * self.sum(Self::sample_seconds)
                + self.steps() * self.sum(|l| l.update_seconds),
            communication_seconds: 0.0,
            memory_bytes: self.memory(self.batch, |l| l.weights),
        }
    }

    /// Samples over `p` ranks.
    pub fn data(&self, p: f64) -> Closed {
        Closed {
            compute_seconds: self.samples / p * self.sum(Self::sample_seconds)
                + self.steps() * self.sum(|l| l.update_seconds),
            communication_seconds: self.steps() * self.all_reduce(p, self.weights(), self.inner),
            memory_bytes: self.memory(self.batch / p, |l| l.weights),
        }
    }

    /// Seconds of one step's halos for so many samples.
    fn halos(&self, samples: f64) -> f64 {
        let (alpha, beta) = self.inner;
        let bytes = |l: &Layer| samples * (l.halo_input + l.halo_gradient) * self.element_bytes;
        let split = |l: &Layer| if l.halo_input + l.halo_gradient > 0.0 { 2.0 * alpha + bytes(l) * beta } else { 0.0 };
        2.0 * self.sum(split)
    }

    /// Space over `p` ranks.
    pub fn spatial(&self, p: f64) -> Closed {
        let data = self.data(p);
        Closed { communication_seconds: data.communication_seconds + self.steps() * self.halos(self.batch), ..data }
    }

    /// Layers over stages of the given lengths, the batch in so many segments.
    pub fn pipeline(&self, stages: &[usize], segments: f64) -> Closed {
        let p = stages.len() as f64;
        let mut groups: Vec<&[Layer]> = vec![];
        let mut rest = &self.layers[..];
        for &stage in stages {
            let (group, after) = rest.split_at(stage.min(rest.len()));
            groups.push(group);
            rest = after;
        }
        let most =
            |of: &dyn Fn(&Layer) -> f64| groups.iter().map(|g| g.iter().map(of).sum::<f64>()).fold(0.0, f64::max);
        let (alpha, beta) = self.inner;
        let boundary = |g: &&[Layer]| {
            let output = g.last().map_or(0.0, |l| l.output);
            alpha + self.batch / segments * output * self.element_bytes * beta
        };
        let message = groups[..groups.len().saturating_sub(1)].iter().map(boundary).fold(0.0, f64::max);
        let memory = |l: &Layer| self.batch * (l.input + l.output) + l.weights;
        Closed {
            compute_seconds: self.samples * (p + segments - 1.0) / segments
                * (most(&|l| l.forward_seconds) + most(&|l| l.backward_seconds))
                + self.steps() * most(&|l| l.update_seconds),
            communication_seconds: 2.0 * self.steps() * (p + segments - 2.0) * message,
            memory_bytes: 2.0 * self.element_bytes * most(&memory),
        }
    }

    /// One step's gathers of outputs and sums of inputs' gradients in groups of `p` ranks, for so many samples.
    fn layer_collectives(&self, p: f64, samples: f64) -> f64 {
        let (alpha, beta) = self.inner;
        let before_last = &self.layers[..self.layers.len().saturating_sub(1)];
        let one = |l: &Layer| alpha + samples * l.output / p * self.element_bytes * beta;
        3.0 * (p - 1.0) * before_last.iter().filter(|l| l.split).map(one).sum::<f64>()
    }

    /// Filters over `p` ranks; channels cost the same.
    pub fn filter(&self, p: f64) -> Closed {
        self.data_filter(1.0, p)
    }

    /// Samples over `groups`, filters over `p` ranks of each.
    pub fn data_filter(&self, groups: f64, p: f64) -> Closed {
        let share = |l: &Layer| if l.split { p } else { 1.0 };
        let samples = self.batch / groups;
        let compute = self.samples / groups * self.sum(|l| Self::sample_seconds(l) / share(l));
        let update = self.steps() * self.sum(|l| l.update_seconds / share(l));
        // Where every layer is split, groups exchange their share of the weights; the published code sends all of them.
        let sent = self.sum(|l| l.weights / share(l));
        let outer = (self.outer.0, self.outer.1 * self.contention);
        Closed {
            compute_seconds: compute + update,
            communication_seconds: self.steps()
                * (self.layer_collectives(p, samples) + self.all_reduce(groups, sent, outer)),
            memory_bytes: self.memory(samples, |l| l.weights / share(l)),
        }
    }

    /// Samples over `groups`, space over `p` ranks of each; after layer `cut` (counted from 1) layers are not split.
    pub fn data_spatial(&self, groups: f64, p: f64, cut: usize) -> Closed {
        let samples = self.batch / groups;
        let (alpha, beta) = self.inner;
        let gathered = self.layers[cut - 1].output;
        let gather = 2.0 * (p - 1.0) * (alpha + samples * gathered * self.element_bytes * beta / p);
        let outer = (self.outer.0, self.outer.1 * self.contention);
        let sums = self.all_reduce(p, self.weights(), self.inner) + self.all_reduce(groups, self.weights(), outer);
        Closed { communication_seconds: self.steps() * (self.halos(samples) + gather + sums), ..self.data(groups * p) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64, digits: i32) {
        assert!((found - wanted).abs() <= 0.51 * 10f64.powi(-digits), "{found} {wanted}");
    }

    /// Golden set A.
    fn tiny() -> Epoch {
        let layer = |input, weights, output, f, b, u, halo_input, halo_gradient| Layer {
            input,
            weights,
            output,
            forward_seconds: f * 1e-6,
            backward_seconds: b * 1e-6,
            update_seconds: u * 1e-6,
            halo_input,
            halo_gradient,
            split: true,
        };
        Epoch {
            layers: vec![
                layer(3072.0, 432.0, 16384.0, 10.0, 20.0, 1.0, 96.0, 512.0),
                layer(16384.0, 4608.0, 32768.0, 40.0, 80.0, 5.0, 512.0, 1024.0),
                layer(32768.0, 18432.0, 16384.0, 20.0, 40.0, 20.0, 1024.0, 1024.0),
                layer(16384.0, 163840.0, 10.0, 5.0, 10.0, 100.0, 0.0, 0.0),
            ],
            samples: 6400.0,
            batch: 64.0,
            element_bytes: 4.0,
            inner: (1e-5, 1e-10),
            outer: (1e-5, 1e-10),
            contention: 1.0,
        }
    }

    fn check(found: Closed, compute: f64, communication: f64, total: f64, memory: f64) {
        near(found.compute_seconds, compute, 6);
        near(found.communication_seconds, communication, 6);
        near(found.total_seconds(), total, 6);
        assert_eq!(found.memory_bytes, memory);
    }

    #[test]
    fn golden_set_a() {
        let net = tiny();
        check(net.serial(), 1.452600, 0.0, 1.452600, 70_185_344.0);
        check(net.data(4.0), 0.372600, 0.017239, 0.389839, 18_670_208.0);
        check(net.spatial(4.0), 0.372600, 0.050702, 0.423302, 18_670_208.0);
        check(net.pipeline(&[1; 4], 4.0), 1.354000, 0.263658, 1.617658, 25_313_280.0);
        check(net.filter(4.0), 0.363150, 0.404487, 0.767637, 69_061_472.0);
        check(net.data_filter(2.0, 2.0), 0.366300, 0.140575, 0.506875, 35_092_672.0);
        check(net.data_spatial(2.0, 2.0, 3), 0.372600, 0.064688, 0.437288, 18_670_208.0);
    }

    /// Golden set B, VGG-16 as the authors' calculator has it: the convolutions as one layer of 13, and the rest.
    fn vgg(batch: f64, inner: (f64, f64)) -> Epoch {
        let convolution = Layer {
            weights: 14_710_464.0 / 13.0,
            output: 13_939_200.0 / 13.0,
            forward_seconds: 0.00795194694995 / 13.0,
            split: true,
            ..Layer::default()
        };
        let rest = Layer {
            input: 15_705_164.0,
            output: 15_552_936.0 - 13_939_200.0,
            weights: 169_801_408.0 - 14_710_464.0,
            forward_seconds: 0.00029364205005,
            ..Layer::default()
        };
        let mut layers = vec![convolution; 13];
        layers.push(rest);
        Epoch {
            layers,
            samples: 1_280_000.0,
            batch,
            element_bytes: 4.0,
            inner,
            outer: (40.31e-6, 8e-11),
            contention: 8.0,
        }
    }

    const NODE: (f64, f64) = (9e-6, 1.0 / 50e9);
    const LEAF: (f64, f64) = (40.31e-6, 1.0 / 12.5e9);

    #[test]
    fn golden_set_b_of_data() {
        let serial = vgg(32.0, NODE).serial();
        near(serial.compute_seconds, 10554.35392, 5);
        near(serial.memory_bytes, 9_360_484_864.0, 3);
        for (p, link, compute, communication) in [
            (2.0, NODE, 5277.17696, 272.0422528),
            (4.0, NODE, 2638.58848, 204.3016896),
            (64.0, LEAF, 164.91178, 70.0337169),
        ] {
            let found = vgg(32.0 * p, link).data(p);
            near(found.compute_seconds, compute, 4);
            near(found.communication_seconds, communication, 6);
            near(found.memory_bytes, 9_360_484_864.0, 3);
        }
    }

    #[test]
    fn golden_set_b_of_filters() {
        for (p, link, memory, compute, communication) in [
            (2.0, NODE, 8_651_858_304.0, 5465.10787204, 2155.10112),
            (8.0, LEAF, 8_159_003_352.0, 1648.17333606, 15427.61304),
            (64.0, LEAF, 8_021_488_699.38, 534.90076307, 20822.52312),
        ] {
            let net = vgg(32.0, link);
            let found = net.filter(p);
            near(found.compute_seconds, compute, 5);
            near(found.communication_seconds, communication, 4);
            // The calculator divides weights that are already divided once more.
            let weights = found.memory_bytes - net.memory(32.0, |_| 0.0);
            near(found.memory_bytes - weights * (1.0 - 1.0 / p), memory, 1);
        }
        for (p, compute, communication) in [(8.0, 1460.24242403, 10322.3003296), (64.0, 182.530303003, 2243.997126)] {
            let groups = p / 4.0;
            let net = vgg(32.0 * groups, NODE);
            let found = net.data_filter(groups, 4.0);
            near(found.compute_seconds, compute, 5);
            near(found.memory_bytes, 9_272_222_080.0, 3);
            // The calculator sends all weights between groups, not a rank's share of them.
            let outer = (net.outer.0, net.outer.1 * net.contention);
            let shares = 14_710_464.0 / 4.0 + (169_801_408.0 - 14_710_464.0);
            let more = net.all_reduce(groups, net.weights(), outer) - net.all_reduce(groups, shares, outer);
            near(found.communication_seconds + net.steps() * more, communication, 4);
        }
    }
}
