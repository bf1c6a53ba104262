//! Concatenation by its definition.

use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, Shape, layers::Concat};

/// For each input, the channel of the output where it begins.
fn starts(inputs: &[Array]) -> Vec<usize> {
    (0..inputs.len()).map(|i| inputs[..i].iter().map(|x| x.shape.channels()).sum()).collect()
}

impl Reference for Concat {
    fn forward(&self, call: &Call) -> Array {
        let shapes: Vec<Shape> = call.inputs.iter().map(|x| x.shape).collect();
        let mut y = Array::zeros(self.infer(&shapes).expect("bug: shapes were checked"));
        for (x, start) in call.inputs.iter().zip(starts(call.inputs)) {
            for [n, c, d, h, w] in x.indices() {
                y[[n, start + c, d, h, w]] = x[[n, c, d, h, w]];
            }
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let mut inputs = vec![];
        for (x, start) in call.inputs.iter().zip(starts(call.inputs)) {
            let mut dx = Array::zeros(x.shape);
            for [n, c, d, h, w] in x.indices() {
                dx[[n, c, d, h, w]] = dy[[n, start + c, d, h, w]];
            }
            inputs.push(dx);
        }
        Gradients { inputs, parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::Concat};

    #[test]
    fn gradients_are_differences() {
        for channels in [vec![2, 3], vec![1, 4, 2]] {
            let inputs: Vec<Shape> = channels.iter().map(|&c| Shape([2, c, 2, 1, 3])).collect();
            check(&Problem::new(Kind::Concat(Concat), &inputs));
        }
    }
}
