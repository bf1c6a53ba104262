//! Batch norm by its definition: mean and variance of a channel in two passes over batch and space; then the second input, if
//! there is one, is added and the activation applied.

use super::{Array, Call, Gradients, Reference, activation};
use crate::Mode;
use convoy_net::layers::BatchNorm;

/// Mean and biased variance.
pub(super) fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    (mean, values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / count)
}

/// The values of one channel.
fn channel(x: &Array, c: usize) -> Vec<f64> {
    x.indices().filter(|at| at[1] == c).map(|at| x[at]).collect()
}

/// Per channel, the mean and variance that normalise it.
fn statistics(call: &Call) -> Vec<(f64, f64)> {
    let x = &call.inputs[0];
    let all = 0..x.shape.channels();
    match call.mode {
        Mode::Train => all.map(|c| moments(&channel(x, c))).collect(),
        Mode::Evaluate => all.map(|c| (call.parameters[2][c], call.parameters[3][c])).collect(),
    }
}

fn normalised(layer: &BatchNorm, x: f64, (mean, variance): (f64, f64)) -> f64 {
    (x - mean) / (variance + layer.epsilon as f64).sqrt()
}

/// What the activation sees.
fn sum(layer: &BatchNorm, call: &Call) -> Array {
    let (x, weight, bias) = (&call.inputs[0], &call.parameters[0], &call.parameters[1]);
    let statistics = statistics(call);
    let mut y = Array::zeros(x.shape);
    for at in y.indices() {
        let c = at[1];
        y[at] = weight[c] * normalised(layer, x[at], statistics[c]) + bias[c];
        y[at] += call.inputs.get(1).map_or(0.0, |added| added[at]);
    }
    y
}

impl Reference for BatchNorm {
    fn forward(&self, call: &Call) -> Array {
        let mut y = sum(self, call);
        if let Some(function) = &self.activation {
            y.data.iter_mut().for_each(|y| *y = activation::at(function, *y).0);
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let mut dy = dy.clone();
        if let Some(function) = &self.activation {
            let sum = sum(self, call);
            dy.data.iter_mut().zip(&sum.data).for_each(|(dy, &z)| *dy *= activation::at(function, z).1);
        }
        let (x, weight) = (&call.inputs[0], &call.parameters[0]);
        let statistics = statistics(call);
        let channels = x.shape.channels();
        let (mut dweight, mut dbias) = (vec![0.0; channels], vec![0.0; channels]);
        for at in x.indices() {
            let c = at[1];
            dweight[c] += dy[at] * normalised(self, x[at], statistics[c]);
            dbias[c] += dy[at];
        }
        let count = (x.shape.len() / channels) as f64;
        let mut dx = Array::zeros(x.shape);
        for at in x.indices() {
            let c = at[1];
            let through = match call.mode {
                // In training the statistics move with the input: the gradient loses its mean and its part along x.
                Mode::Train => {
                    let along = normalised(self, x[at], statistics[c]);
                    dy[at] - dbias[c] / count - along * dweight[c] / count
                }
                Mode::Evaluate => dy[at],
            };
            dx[at] = weight[c] * through / (statistics[c].1 + self.epsilon as f64).sqrt();
        }
        let inputs = if call.inputs.len() == 2 { vec![dx, dy] } else { vec![dx] };
        Gradients { inputs, parameters: vec![dweight, dbias, vec![], vec![]] }
    }

    fn running(&self, call: &Call) -> Vec<Vec<f64>> {
        let mut after = call.parameters.to_vec();
        if call.mode == Mode::Train {
            let momentum = self.momentum as f64;
            let count = (call.inputs[0].shape.len() / call.inputs[0].shape.channels()) as f64;
            for (c, (mean, variance)) in statistics(call).into_iter().enumerate() {
                // A single value has no unbiased variance; its biased one, zero, is taken.
                let unbiased = variance * count / (count - 1.0).max(1.0);
                after[2][c] = (1.0 - momentum) * after[2][c] + momentum * mean;
                after[3][c] = (1.0 - momentum) * after[3][c] + momentum * unbiased;
            }
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::Activation, layers::BatchNorm};

    #[test]
    fn gradients_are_differences() {
        for shape in [[3, 4, 1, 1, 1], [2, 3, 1, 3, 2], [1, 2, 2, 2, 3]] {
            for (activation, inputs) in [(None, 1), (Some(Activation::Tanh), 1), (None, 2), (Some(Activation::Silu), 2)]
            {
                let layer = BatchNorm { epsilon: 0.01, momentum: 0.1, activation };
                check(&Problem::new(Kind::BatchNorm(layer), &vec![Shape(shape); inputs]));
            }
        }
    }
}
