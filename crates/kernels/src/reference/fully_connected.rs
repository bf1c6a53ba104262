//! Fully connected by its definition: every output from every element of its sample.

use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, layers::FullyConnected};

impl Reference for FullyConnected {
    fn forward(&self, call: &Call) -> Array {
        let (x, w) = (&call.inputs[0], &call.parameters[0]);
        let inputs = x.shape.per_sample();
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        for n in 0..x.shape.samples() {
            for o in 0..self.outputs {
                let mut sum = if self.bias { call.parameters[1][o] } else { 0.0 };
                for i in 0..inputs {
                    sum += w[o * inputs + i] * x.data[n * inputs + i];
                }
                y.data[n * self.outputs + o] = sum;
            }
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let (x, w) = (&call.inputs[0], &call.parameters[0]);
        let inputs = x.shape.per_sample();
        let (mut dx, mut dw, mut db) = (Array::zeros(x.shape), vec![0.0; w.len()], vec![0.0; self.outputs]);
        for n in 0..x.shape.samples() {
            for o in 0..self.outputs {
                let g = dy.data[n * self.outputs + o];
                for i in 0..inputs {
                    dx.data[n * inputs + i] += w[o * inputs + i] * g;
                    dw[o * inputs + i] += x.data[n * inputs + i] * g;
                }
                db[o] += g;
            }
        }
        Gradients { inputs: vec![dx], parameters: if self.bias { vec![dw, db] } else { vec![dw] } }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::FullyConnected};

    #[test]
    fn gradients_are_differences() {
        for (shape, outputs, bias) in
            [([3, 5, 1, 1, 1], 4, true), ([1, 2, 2, 3, 2], 1, false), ([2, 1, 1, 4, 3], 7, true)]
        {
            let layer = FullyConnected { outputs, bias };
            check(&Problem::new(Kind::FullyConnected(layer), &[Shape(shape)]));
        }
    }
}
