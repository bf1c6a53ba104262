//! Local response norm by its definition: y = x / (k + alpha/size · Σ x²)^beta over neighbouring channels.

use super::{Array, Call, Gradients, Reference};
use convoy_net::layers::LocalResponseNorm;
use std::ops::Range;

/// The channels whose squares damp channel `c`.
fn neighbours(layer: &LocalResponseNorm, x: &Array, c: usize) -> Range<usize> {
    let (before, after) = layer.neighbours();
    c.saturating_sub(before)..(c + after + 1).min(x.shape.channels())
}

/// What stands under the power at an element.
fn base(layer: &LocalResponseNorm, x: &Array, [n, c, d, h, w]: [usize; 5]) -> f64 {
    let squares: f64 = neighbours(layer, x, c).map(|c| x[[n, c, d, h, w]] * x[[n, c, d, h, w]]).sum();
    layer.k as f64 + layer.alpha as f64 / layer.size as f64 * squares
}

impl Reference for LocalResponseNorm {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        let mut y = Array::zeros(x.shape);
        for at in y.indices() {
            y[at] = x[at] * base(self, x, at).powf(-self.beta as f64);
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let x = &call.inputs[0];
        let (alpha, beta) = (self.alpha as f64 / self.size as f64, self.beta as f64);
        let mut dx = Array::zeros(x.shape);
        for at in dy.indices() {
            let [n, c, d, h, w] = at;
            let base = base(self, x, at);
            dx[at] += dy[at] * base.powf(-beta);
            for c in neighbours(self, x, c) {
                let from = [n, c, d, h, w];
                dx[from] -= dy[at] * x[at] * beta * base.powf(-beta - 1.0) * 2.0 * alpha * x[from];
            }
        }
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::LocalResponseNorm};

    #[test]
    fn gradients_are_differences() {
        for (channels, size) in [(7, 5), (4, 2), (3, 6), (2, 1), (1, 3)] {
            let layer = LocalResponseNorm { size, alpha: 0.5, beta: 0.75, k: 1.5 };
            check(&Problem::new(Kind::LocalResponseNorm(layer), &[Shape([2, channels, 1, 2, 3])]));
        }
    }
}
