//! Upsampling by its definition: each output is a mixture of one or two inputs along each axis.

use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, Sampling, Shape, layers::Upsample};

/// Along one axis, the inputs that output `i` mixes and their shares.
fn mixture(i: usize, input: usize, output: usize, sampling: Sampling) -> [(usize, f64); 2] {
    let ratio = input as f64 / output as f64;
    let place = match sampling {
        Sampling::Nearest => return [(i * input / output, 1.0), (i * input / output, 0.0)],
        Sampling::Linear => ((i as f64 + 0.5) * ratio - 0.5).max(0.0),
        Sampling::LinearCorners if output == 1 => 0.0,
        Sampling::LinearCorners => i as f64 * (input - 1) as f64 / (output - 1) as f64,
    };
    let low = (place.floor() as usize).min(input - 1);
    let share = place - low as f64;
    [(low, 1.0 - share), ((low + 1).min(input - 1), share)]
}

/// The inputs that an output mixes, and their shares.
fn mixtures(layer: &Upsample, x: Shape, y: Shape, at: [usize; 5]) -> Vec<([usize; 5], f64)> {
    let along = |axis: usize| mixture(at[axis], x.0[axis], y.0[axis], layer.sampling);
    let mut all = vec![];
    for (d, a) in along(2) {
        for (h, b) in along(3) {
            for (w, c) in along(4) {
                all.push(([at[0], at[1], d, h, w], a * b * c));
            }
        }
    }
    all
}

impl Reference for Upsample {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        for at in y.indices() {
            y[at] = mixtures(self, x.shape, y.shape, at).iter().map(|&(from, share)| share * x[from]).sum();
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let x = &call.inputs[0];
        let mut dx = Array::zeros(x.shape);
        for at in dy.indices() {
            for (from, share) in mixtures(self, x.shape, dy.shape, at) {
                dx[from] += share * dy[at];
            }
        }
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Sampling, Shape, layers::Upsample};

    #[test]
    fn gradients_are_differences() {
        for sampling in [Sampling::Nearest, Sampling::Linear, Sampling::LinearCorners] {
            for scale in [vec![2, 2], vec![3, 1], vec![3], vec![2, 1, 3]] {
                for space in [[2, 3, 2], [1, 1, 1], [1, 4, 1]] {
                    let layer = Upsample { scale: scale.clone(), sampling };
                    check(&Problem::new(Kind::Upsample(layer), &[Shape([2, 2, space[0], space[1], space[2]])]));
                }
            }
        }
    }
}
