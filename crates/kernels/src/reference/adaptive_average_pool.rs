//! Adaptive average pooling by its definition.

use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, Shape, layers::AdaptiveAveragePool};

/// The inputs whose mean an output is: along each axis from ⌊i·input/output⌋ to ⌈(i+1)·input/output⌉.
fn window(x: Shape, y: Shape, at: [usize; 5]) -> Vec<[usize; 5]> {
    let along = |i: usize| at[i] * x.0[i] / y.0[i]..((at[i] + 1) * x.0[i]).div_ceil(y.0[i]);
    let mut read = vec![];
    for d in along(2) {
        for h in along(3) {
            for w in along(4) {
                read.push([at[0], at[1], d, h, w]);
            }
        }
    }
    read
}

impl Reference for AdaptiveAveragePool {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        for at in y.indices() {
            let read = window(x.shape, y.shape, at);
            y[at] = read.iter().map(|&from| x[from]).sum::<f64>() / read.len() as f64;
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let x = &call.inputs[0];
        let mut dx = Array::zeros(x.shape);
        for at in dy.indices() {
            let read = window(x.shape, dy.shape, at);
            read.iter().for_each(|&from| dx[from] += dy[at] / read.len() as f64);
        }
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::AdaptiveAveragePool};

    #[test]
    fn gradients_are_differences() {
        for output in [vec![1, 1], vec![3, 2], vec![7, 7], vec![2], vec![2, 3, 4]] {
            let layer = AdaptiveAveragePool::new(&output);
            check(&Problem::new(Kind::AdaptiveAveragePool(layer), &[Shape([2, 2, 3, 5, 4])]));
        }
    }
}
