//! Flattening by its definition: the same numbers in the same order under another shape.

use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, layers::Flatten};

impl Reference for Flatten {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        Array { shape: self.infer(&[x.shape]).expect("bug: shapes were checked"), data: x.data.clone() }
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let dx = Array { shape: call.inputs[0].shape, data: dy.data.clone() };
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::Flatten};

    #[test]
    fn gradients_are_differences() {
        check(&Problem::new(Kind::Flatten(Flatten), &[Shape([2, 3, 2, 2, 3])]));
    }
}
