//! Multiplication by its definition.

use super::{Array, Call, Gradients, Reference};
use convoy_net::layers::Multiply;

/// Where the second factor of an element lies: an axis of one point is used for all.
fn factor(b: &Array, at: [usize; 5]) -> [usize; 5] {
    std::array::from_fn(|axis| if b.shape.0[axis] == 1 { 0 } else { at[axis] })
}

impl Reference for Multiply {
    fn forward(&self, call: &Call) -> Array {
        let (a, b) = (&call.inputs[0], &call.inputs[1]);
        let mut y = Array::zeros(a.shape);
        for at in y.indices() {
            y[at] = a[at] * b[factor(b, at)];
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let (a, b) = (&call.inputs[0], &call.inputs[1]);
        let (mut da, mut db) = (Array::zeros(a.shape), Array::zeros(b.shape));
        for at in dy.indices() {
            da[at] = b[factor(b, at)] * dy[at];
            db[factor(b, at)] += a[at] * dy[at];
        }
        Gradients { inputs: vec![da, db], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::Multiply};

    #[test]
    fn gradients_are_differences() {
        let a = Shape([2, 3, 2, 2, 3]);
        for b in [a, Shape([2, 3, 1, 1, 1])] {
            check(&Problem::new(Kind::Multiply(Multiply), &[a, b]));
        }
    }
}
