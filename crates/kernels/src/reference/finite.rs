//! Finite differences: what judges the gradients of the reference twins.
//!
//! Every input and every trained parameter of a [`Problem`] is moved a little both ways; what the output does, weighed with
//! the output's gradient, must be what `backward` says. Values of a problem lie `2^-15` apart and [`STEP`] is less than half
//! of that, so that a maximum or a kink changes sides only where two values are equal (or one is zero): then take another
//! seed.

use super::{Array, twin};
use crate::twin::{Problem, Values};

/// How far values are moved each way.
const STEP: f64 = 1e-5;

/// Largest difference, relative to the largest element of the gradient: `STEP²` times a third derivative of some hundreds,
/// and rounding (`2^-52 / STEP`) of sums of some thousand terms.
const LIMIT: f64 = 1e-6;

/// The gradient of `scalar` at a point, by central differences.
pub fn gradient(at: &[f64], mut scalar: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    let mut moved = at.to_vec();
    let slope = |i: usize| {
        moved[i] = at[i] + STEP;
        let above = scalar(&moved);
        moved[i] = at[i] - STEP;
        let below = scalar(&moved);
        moved[i] = at[i];
        (above - below) / (2.0 * STEP)
    };
    (0..at.len()).map(slope).collect()
}

/// A gradient is what differences say.
pub fn agree(what: &str, gradient: &[f64], differences: &[f64]) {
    assert_eq!(gradient.len(), differences.len(), "{what}: sizes differ");
    let scale = differences.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (a, b)) in gradient.iter().zip(differences).enumerate() {
        assert!((a - b).abs() <= LIMIT * scale, "{what}, element {i}: backward says {a}, differences say {b}");
    }
}

/// The reference twin's gradients of a problem are what differences say.
pub fn check(problem: &Problem) {
    let values = problem.values();
    let gradients = problem.reference(&values).gradients.expect("problems for differences are in training mode");
    let scalar = |inputs: Vec<Array>, parameters: Vec<Vec<f64>>| {
        let moved = Values { inputs, parameters, dy: values.dy.clone() };
        let y = twin(&problem.kind).forward(&problem.call(&moved));
        y.data.iter().zip(&values.dy.data).map(|(y, dy)| y * dy).sum()
    };
    for (i, input) in values.inputs.iter().enumerate() {
        let differences = gradient(&input.data, |data| {
            let mut inputs = values.inputs.clone();
            inputs[i].data.copy_from_slice(data);
            scalar(inputs, values.parameters.clone())
        });
        agree(&format!("gradient of input {i} of {problem:?}"), &gradients.inputs[i].data, &differences);
    }
    // Those that are not trained have no gradient.
    for (p, found) in gradients.parameters.iter().enumerate().filter(|(_, found)| !found.is_empty()) {
        let differences = gradient(&values.parameters[p], |data| {
            let mut parameters = values.parameters.clone();
            parameters[p].copy_from_slice(data);
            scalar(values.inputs.clone(), parameters)
        });
        agree(&format!("gradient of parameter {p} of {problem:?}"), found, &differences);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoy_net::{Kind, Shape, layers::Convolution};

    #[test]
    fn a_convolution_and_a_polynomial() {
        let layer = Convolution::new(2, &[3, 2]).padding(1);
        check(&Problem::new(Kind::Convolution(layer), &[Shape([2, 3, 1, 4, 3])]));
        agree("x²y", &[12.0, 4.0], &gradient(&[2.0, 3.0], |v| v[0] * v[0] * v[1]));
    }

    #[test]
    #[should_panic(expected = "backward says 4.1")]
    fn a_wrong_gradient_is_found() {
        agree("x²", &[4.1], &gradient(&[2.0], |v| v[0] * v[0]));
    }
}
