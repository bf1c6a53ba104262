//! Max pooling by its definition. Of equal elements the first wins, and alone gets the gradient.

use super::windows::{inside, under};
use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, layers::MaxPool};

/// The input that wins at an output; none where the whole window is padding.
fn winner(layer: &MaxPool, x: &Array, [n, c, d, h, w]: [usize; 5]) -> Option<[usize; 5]> {
    let mut best = None;
    for point in under(&layer.windows, [d, h, w]) {
        if let Some([d, h, w]) = inside(point, x.shape.space()) {
            let from = [n, c, d, h, w];
            // What is not a number wins, so that it is seen.
            if best.is_none_or(|b| x[from] > x[b] || x[from].is_nan()) {
                best = Some(from);
            }
        }
    }
    best
}

impl Reference for MaxPool {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        for at in y.indices() {
            y[at] = winner(self, x, at).map_or(f64::NEG_INFINITY, |from| x[from]);
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let x = &call.inputs[0];
        let mut dx = Array::zeros(x.shape);
        for at in dy.indices() {
            if let Some(from) = winner(self, x, at) {
                dx[from] += dy[at];
            }
        }
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::MaxPool, layers::Windows};

    #[test]
    fn gradients_are_differences() {
        let windows = [
            Windows { stride: vec![2, 2], ..Windows::new(&[2, 2]) },
            Windows { stride: vec![2, 1], padding: vec![[1, 1], [0, 1]], ..Windows::new(&[3, 2]) },
            Windows { stride: vec![3], dilation: vec![2], padding: vec![[1, 0]], ..Windows::new(&[3]) },
            Windows { stride: vec![1, 2, 3], ..Windows::new(&[2, 3, 2]) },
        ];
        for windows in windows {
            for ceil in [false, true] {
                let layer = MaxPool { windows: windows.clone(), ceil };
                check(&Problem::new(Kind::MaxPool(layer), &[Shape([2, 2, 3, 6, 7])]));
            }
        }
    }
}
