//! Dropout by its definition: one keyed random number an element, counted channel, depth, height, width within its sample.

use super::{Array, Call, Gradients, Reference};
use crate::Mode;
use crate::philox::{Key, Purpose};
use convoy_net::layers::Dropout;

/// What each element is multiplied with.
fn factors(layer: &Dropout, call: &Call) -> Vec<f64> {
    let shape = call.inputs[0].shape;
    let factor = |i: usize| {
        let (sample, element) = (i / shape.per_sample(), i % shape.per_sample());
        let (layer_number, sample) = (call.layer as u32, sample as u32);
        let key = Key { seed: call.seed, purpose: Purpose::Dropout, layer: layer_number, step: call.step, sample };
        let dropped = key.uniform(element as u64) < layer.probability;
        if dropped { 0.0 } else { 1.0 / (1.0 - layer.probability as f64) }
    };
    match call.mode {
        Mode::Train => (0..shape.len()).map(factor).collect(),
        Mode::Evaluate => vec![1.0; shape.len()],
    }
}

fn times(a: &Array, factors: &[f64]) -> Array {
    Array { shape: a.shape, data: a.data.iter().zip(factors).map(|(a, f)| a * f).collect() }
}

impl Reference for Dropout {
    fn forward(&self, call: &Call) -> Array {
        times(&call.inputs[0], &factors(self, call))
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        Gradients { inputs: vec![times(dy, &factors(self, call))], parameters: vec![] }
    }
}
