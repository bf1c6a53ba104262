//! Channel padding by its definition.

use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, layers::PadChannels};

impl Reference for PadChannels {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        for [n, c, d, h, w] in x.indices() {
            y[[n, self.before + c, d, h, w]] = x[[n, c, d, h, w]];
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let mut dx = Array::zeros(call.inputs[0].shape);
        for [n, c, d, h, w] in dx.indices() {
            dx[[n, c, d, h, w]] = dy[[n, self.before + c, d, h, w]];
        }
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::PadChannels};

    #[test]
    fn gradients_are_differences() {
        for (before, after) in [(2, 3), (0, 1), (1, 0)] {
            check(&Problem::new(Kind::PadChannels(PadChannels { before, after }), &[Shape([2, 3, 1, 2, 2])]));
        }
    }
}
