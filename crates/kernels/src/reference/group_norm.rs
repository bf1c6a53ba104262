//! Group norm by its definition: mean and variance of a group of channels of one sample, in two passes.

use super::batch_norm::moments;
use super::{Array, Call, Gradients, Reference};
use convoy_net::layers::GroupNorm;

/// The indices of one group of one sample.
fn group(layer: &GroupNorm, x: &Array, n: usize, g: usize) -> Vec<[usize; 5]> {
    let channels = x.shape.channels() / layer.groups;
    x.indices().filter(|at| at[0] == n && at[1] / channels == g).collect()
}

/// Every group: the indices of its elements, their normalised values, and what these were divided by.
fn groups(layer: &GroupNorm, x: &Array) -> Vec<(Vec<[usize; 5]>, Vec<f64>, f64)> {
    let all = (0..x.shape.samples()).flat_map(|n| (0..layer.groups).map(move |g| (n, g)));
    let each = all.map(|(n, g)| {
        let indices = group(layer, x, n, g);
        let values: Vec<f64> = indices.iter().map(|&at| x[at]).collect();
        let (mean, variance) = moments(&values);
        let deviation = (variance + layer.epsilon as f64).sqrt();
        (indices, values.iter().map(|v| (v - mean) / deviation).collect(), deviation)
    });
    each.collect()
}

impl Reference for GroupNorm {
    fn forward(&self, call: &Call) -> Array {
        let (x, weight, bias) = (&call.inputs[0], &call.parameters[0], &call.parameters[1]);
        let mut y = Array::zeros(x.shape);
        for (indices, normalised, _) in groups(self, x) {
            for (at, value) in indices.into_iter().zip(normalised) {
                y[at] = weight[at[1]] * value + bias[at[1]];
            }
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let (x, weight) = (&call.inputs[0], &call.parameters[0]);
        let (mut dweight, mut dbias) = (vec![0.0; weight.len()], vec![0.0; weight.len()]);
        let mut dx = Array::zeros(x.shape);
        for (indices, normalised, deviation) in groups(self, x) {
            let (mut mean, mut along) = (0.0, 0.0);
            for (&at, value) in indices.iter().zip(&normalised) {
                dweight[at[1]] += dy[at] * value;
                dbias[at[1]] += dy[at];
                mean += weight[at[1]] * dy[at] / indices.len() as f64;
                along += weight[at[1]] * dy[at] * value / indices.len() as f64;
            }
            for (&at, value) in indices.iter().zip(&normalised) {
                dx[at] = (weight[at[1]] * dy[at] - mean - along * value) / deviation;
            }
        }
        Gradients { inputs: vec![dx], parameters: vec![dweight, dbias] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::GroupNorm};

    #[test]
    fn gradients_are_differences() {
        for (shape, groups) in [([2, 4, 1, 3, 2], 2), ([1, 6, 2, 1, 3], 3), ([3, 5, 1, 1, 1], 1), ([2, 3, 1, 2, 3], 3)]
        {
            let layer = GroupNorm { groups, epsilon: 0.01 };
            check(&Problem::new(Kind::GroupNorm(layer), &[Shape(shape)]));
        }
    }
}
