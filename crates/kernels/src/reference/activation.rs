//! Activations by their definitions.

use super::{Array, Call, Gradients, Reference};
use convoy_net::layers::Activation;

/// The normal distribution's weight below x, within some 1e-15: series near 0, continued fraction beyond.
fn normal(x: f64) -> f64 {
    if x.abs() < 3.5 {
        let (mut term, mut sum) = (x, x);
        for k in 1..120 {
            term *= -0.5 * x * x / k as f64;
            sum += term / (2 * k + 1) as f64;
        }
        return 0.5 + sum / (2.0 * std::f64::consts::PI).sqrt();
    }
    let fraction = (1..200).rev().fold(0.0, |f, k| k as f64 / (x.abs() + f));
    let tail = density(x) / (x.abs() + fraction);
    if x < 0.0 { tail } else { 1.0 - tail }
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The function and its slope; where it has a kink, that of the flat side, or of the left one.
pub(super) fn at(function: &Activation, x: f64) -> (f64, f64) {
    let inside = |yes: bool, slope: f64| if yes { slope } else { 0.0 };
    match *function {
        Activation::Relu => (x.max(0.0), inside(x > 0.0, 1.0)),
        Activation::LeakyRelu { .. } if x > 0.0 => (x, 1.0),
        Activation::LeakyRelu { slope } => (x * slope as f64, slope as f64),
        Activation::Clip { low, high } => {
            let (low, high) = (low as f64, high as f64);
            (x.clamp(low, high), inside(x > low && x < high, 1.0))
        }
        Activation::Sigmoid => (sigmoid(x), sigmoid(x) * sigmoid(-x)),
        Activation::Tanh => (x.tanh(), 1.0 - x.tanh() * x.tanh()),
        Activation::Silu => (x * sigmoid(x), sigmoid(x) + x * sigmoid(x) * sigmoid(-x)),
        Activation::Gelu => (x * normal(x), normal(x) + x * density(x)),
        Activation::HardSwish if x.abs() >= 3.0 => (x.max(0.0), inside(x > 0.0, 1.0)),
        Activation::HardSwish => (x * (x + 3.0) / 6.0, x / 3.0 + 0.5),
        Activation::HardSigmoid => ((x + 3.0).clamp(0.0, 6.0) / 6.0, inside(x.abs() < 3.0, 1.0 / 6.0)),
    }
}

impl Reference for Activation {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        Array { shape: x.shape, data: x.data.iter().map(|&x| at(self, x).0).collect() }
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let slopes = call.inputs[0].data.iter().map(|&x| at(self, x).1);
        let dx = Array { shape: dy.shape, data: slopes.zip(&dy.data).map(|(slope, dy)| slope * dy).collect() };
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}
