//! Convolution by its definition: seven loops.

use super::windows::{inside, under};
use super::{Array, Call, Gradients, Reference};
use convoy_net::{Edge, Operation, layers::Convolution};

/// One multiply of a convolution: output, input and weight that meet, and where.
struct Tap {
    y: [usize; 5],
    x: [usize; 5],
    w: usize,
}

/// Every tap that does not read zero padding.
fn taps(layer: &Convolution, x: &Array, y: &Array, mut each: impl FnMut(Tap)) {
    let size = x.shape.space();
    let (channels, filters) = (x.shape.channels() / layer.groups, layer.filters / layer.groups);
    let kernel: usize = layer.windows.kernel.iter().product();
    for at in y.indices() {
        let [n, filter, d, h, w] = at;
        for c in 0..channels {
            for (k, mut point) in under(&layer.windows, [d, h, w]).enumerate() {
                if layer.edge == Edge::Periodic {
                    point = std::array::from_fn(|i| point[i].rem_euclid(size[i] as isize));
                }
                if let Some([d, h, w]) = inside(point, size) {
                    let from = [n, filter / filters * channels + c, d, h, w];
                    each(Tap { y: at, x: from, w: (filter * channels + c) * kernel + k });
                }
            }
        }
    }
}

impl Reference for Convolution {
    fn forward(&self, call: &Call) -> Array {
        let (x, w) = (&call.inputs[0], &call.parameters[0]);
        let mut y = Array::zeros(self.infer(&[x.shape]).expect("bug: shapes were checked"));
        if self.bias {
            for at in y.indices() {
                y[at] = call.parameters[1][at[1]];
            }
        }
        let shape = y.clone();
        taps(self, x, &shape, |t| y[t.y] += w[t.w] * x[t.x]);
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let (x, w) = (&call.inputs[0], &call.parameters[0]);
        let (mut dx, mut dw) = (Array::zeros(x.shape), vec![0.0; w.len()]);
        taps(self, x, dy, |t| {
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
