//! Softmax by its definition.

use super::{Array, Call, Gradients, Reference};
use convoy_net::layers::Softmax;

/// e^x over the sum of e^x of all channels of the same point. The greatest is subtracted first: the same shares, and finite.
pub(super) fn shares(x: &Array) -> Array {
    let mut y = Array::zeros(x.shape);
    for at in y.indices() {
        let [n, _, d, h, w] = at;
        let channels = || (0..x.shape.channels()).map(|c| x[[n, c, d, h, w]]);
        let most = channels().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = channels().map(|v| (v - most).exp()).sum();
        y[at] = (x[at] - most).exp() / sum;
    }
    y
}

/// The gradient of what shares are taken of, from the shares and their gradient.
pub(super) fn through(y: &Array, dy: &Array) -> Array {
    let mut dx = Array::zeros(y.shape);
    for at in dx.indices() {
        let [n, _, d, h, w] = at;
        let mean: f64 = (0..y.shape.channels()).map(|c| y[[n, c, d, h, w]] * dy[[n, c, d, h, w]]).sum();
        dx[at] = y[at] * (dy[at] - mean);
    }
    dx
}

impl Reference for Softmax {
    fn forward(&self, call: &Call) -> Array {
        shares(&call.inputs[0])
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        Gradients { inputs: vec![through(&shares(&call.inputs[0]), dy)], parameters: vec![] }
    }
}
