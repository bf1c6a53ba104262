//! Average pooling by its definition.

use super::windows::{inside, under};
use super::{Array, Call, Gradients, Reference};
use convoy_net::{Operation, layers::AveragePool};

/// The inputs under an output's window and the number they are divided by.
fn window(layer: &AveragePool, x: &Array, [n, c, d, h, w]: [usize; 5]) -> (Vec<[usize; 5]>, f64) {
    let size = x.shape.space();
    let points: Vec<[isize; 3]> = under(&layer.windows, [d, h, w]).collect();
    let read = points.iter().filter_map(|&point| inside(point, size)).map(|[d, h, w]| [n, c, d, h, w]);
    let read: Vec<[usize; 5]> = read.collect();
    // A last window of ceil mode may end beyond the padding: what is there counts neither way.
    let padded = |point: &&[isize; 3]| {
        (0..3).all(|i| {
            let (_, _, _, [_, after]) = layer.windows.along(i);
            point[i] < (size[i] + after) as isize
        })
    };
    let count = if layer.count_padding { points.iter().filter(padded).count() } else { read.len() };
    (read, count as f64)
}

impl Reference for AveragePool {
    fn forward(&self, call: &Call) -> Array {
        let x = &call.inputs[0];
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        for at in y.indices() {
            let (read, count) = window(self, x, at);
            y[at] = read.iter().map(|&from| x[from]).sum::<f64>() / count;
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let x = &call.inputs[0];
        let mut dx = Array::zeros(x.shape);
        for at in dy.indices() {
            let (read, count) = window(self, x, at);
            read.iter().for_each(|&from| dx[from] += dy[at] / count);
        }
        Gradients { inputs: vec![dx], parameters: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::AveragePool, layers::Windows};

    #[test]
    fn gradients_are_differences() {
        let windows = [
            Windows { stride: vec![2, 2], ..Windows::new(&[2, 2]) },
            Windows { stride: vec![2, 1], padding: vec![[1, 1], [0, 1]], ..Windows::new(&[3, 2]) },
            Windows { stride: vec![2, 2, 2], padding: vec![[1, 1], [1, 0], [0, 1]], ..Windows::new(&[2, 3, 2]) },
        ];
        for windows in windows {
            for (ceil, count_padding) in [(false, false), (false, true), (true, false), (true, true)] {
                let layer = AveragePool { windows: windows.clone(), ceil, count_padding };
                check(&Problem::new(Kind::AveragePool(layer), &[Shape([2, 2, 3, 6, 4])]));
            }
        }
    }
}
