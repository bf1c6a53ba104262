//! Transposed convolution by its definition: each input element is spread over the outputs under its window.

use super::windows::{inside, under};
use super::{Array, Call, Gradients, Reference, indices};
use convoy_net::{Operation, Shape, layers::TransposedConvolution};

/// One multiply: output, input and weight that meet.
struct Tap {
    y: [usize; 5],
    x: [usize; 5],
    w: usize,
}

/// Every tap whose output was not taken away by padding.
fn taps(layer: &TransposedConvolution, x: Shape, y: Shape, mut each: impl FnMut(Tap)) {
    let (channels, filters) = (x.channels() / layer.groups, layer.filters / layer.groups);
    let kernel: usize = layer.windows.kernel.iter().product();
    for from in indices(x) {
        let [n, c, d, h, w] = from;
        for f in 0..filters {
            for (k, point) in under(&layer.windows, [d, h, w]).enumerate() {
                if let Some([d, h, w]) = inside(point, y.space()) {
                    let at = [n, c / channels * filters + f, d, h, w];
                    each(Tap { y: at, x: from, w: (c * filters + f) * kernel + k });
                }
            }
        }
    }
}

impl Reference for TransposedConvolution {
    fn forward(&self, call: &Call) -> Array {
        let (x, w) = (&call.inputs[0], &call.parameters[0]);
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        if self.bias {
            for at in y.indices() {
                y[at] = call.parameters[1][at[1]];
            }
        }
        taps(self, x.shape, y.shape, |t| y[t.y] += w[t.w] * x[t.x]);
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let (x, w) = (&call.inputs[0], &call.parameters[0]);
        let (mut dx, mut dw) = (Array::zeros(x.shape), vec![0.0; w.len()]);
        taps(self, x.shape, dy.shape, |t| {
            dx[t.x] += w[t.w] * dy[t.y];
            dw[t.w] += x[t.x] * dy[t.y];
        });
        let mut parameters = vec![dw];
        if self.bias {
            let mut db = vec![0.0; self.filters];
            dy.indices().for_each(|at| db[at[1]] += dy[at]);
            parameters.push(db);
        }
        Gradients { inputs: vec![dx], parameters }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::finite::check;
    use crate::twin::Problem;
    use convoy_net::{Kind, Shape, layers::TransposedConvolution, layers::Windows};

    #[test]
    fn gradients_are_differences() {
        let plain = TransposedConvolution::new(4, &[3, 2]);
        let strided = Windows { stride: vec![2, 3], padding: vec![[1, 1], [0, 1]], ..Windows::new(&[3, 2]) };
        let dilated = Windows { stride: vec![2], dilation: vec![3], padding: vec![[2, 0]], ..Windows::new(&[2]) };
        let layers = [
            TransposedConvolution { bias: false, ..plain.clone() },
            TransposedConvolution { windows: strided, output_padding: vec![1, 2], groups: 2, ..plain.clone() },
            TransposedConvolution { windows: dilated, output_padding: vec![1], groups: 4, ..plain.clone() },
            TransposedConvolution { windows: Windows::new(&[2, 1, 2]), groups: 1, ..plain },
        ];
        for layer in layers {
            check(&Problem::new(Kind::TransposedConvolution(layer), &[Shape([2, 4, 2, 3, 2])]));
        }
    }
}
