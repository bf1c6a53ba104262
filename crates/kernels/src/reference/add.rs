//! Addition by its definition.

use super::{Array, Call, Gradients, Reference};
use convoy_net::layers::Add;

impl Reference for Add {
    fn forward(&self, call: &Call) -> Array {
        let mut y = Array::zeros(call.inputs[0].shape);
        for x in call.inputs {
            for at in y.indices() {
                y[at] += x[at];
            }
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        Gradients { inputs: vec![dy.clone(); call.inputs.len()], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::Add};

    #[test]
    fn gradients_are_differences() {
        for inputs in [2, 4] {
            check(&Problem::new(Kind::Add(Add), &vec![Shape([2, 3, 1, 2, 2]); inputs]));
        }
    }
}
