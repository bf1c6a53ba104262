//! Global average pooling by its definition.

use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, layers::GlobalAveragePool};

impl Reference for GlobalAveragePool {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        for [n, c, d, h, w] in x.indices() {
            y[[n, c, 0, 0, 0]] += x[[n, c, d, h, w]] / x.shape.points() as f64;
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let x = &call.inputs[0];
        let mut dx = Array::zeros(x.shape);
        for [n, c, d, h, w] in x.indices() {
            dx[[n, c, d, h, w]] = dy[[n, c, 0, 0, 0]] / x.shape.points() as f64;
        }
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::GlobalAveragePool};

    #[test]
    fn gradients_are_differences() {
        for shape in [[2, 3, 1, 4, 3], [1, 2, 2, 3, 2], [2, 2, 1, 1, 1]] {
            check(&Problem::new(Kind::GlobalAveragePool(GlobalAveragePool), &[Shape(shape)]));
        }
    }
}
