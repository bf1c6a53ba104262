//! Max pooling by its definition. Of equal elements the first wins, and alone gets the gradient.

use super::windows::{inside, under};
use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, layers::MaxPool};

/// The input that wins at an output; none where the whole window is padding.
fn winner(layer: &MaxPool, x: &Array, [n, c, d, h, w]: [usize; 5]) -> Option<[usize; 5]> {
    let mut best = None;
    for point in under(&layer.windows, [d, h, w]) {
        if let Some([d, h, w]) = inside(point, x.shape.space()) {
            let from = [n, c, d, h, w];
            // What is not a number wins, so that it is seen.
            if best.is_none_or(|b| x[from] > x[b] || x[from].is_nan()) {
                best = Some(from);
            }
        }
    }
    best
}

impl Reference for MaxPool {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        for at in y.indices() {
            y[at] = winner(self, x, at).map_or(f64::NEG_INFINITY, |from| x[from]);
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let x = &call.inputs[0];
        let mut dx = Array::zeros(x.shape);
        for at in dy.indices() {
            if let Some(from) = winner(self, x, at) {
                dx[from] += dy[at];
            }
        }
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}
