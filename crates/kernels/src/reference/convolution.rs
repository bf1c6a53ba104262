//! Convolution by its definition: seven loops.

use super::windows::{inside, under};
use super::{Array, Call, Gradients, Reference, activation, indices};
use convoy_net::{Edge, Operation, Shape, layers::Convolution};

/// One multiply of a convolution: output, input and weight that meet, and where.
struct Tap {
    y: [usize; 5],
    x: [usize; 5],
    w: usize,
}

/// Every tap that does not read zero padding.
fn taps(layer: &Convolution, x: Shape, y: Shape, mut each: impl FnMut(Tap)) {
    let size = x.space();
    let (channels, filters) = (x.channels() / layer.groups, layer.filters / layer.groups);
    let kernel: usize = layer.windows.kernel.iter().product();
    for at in indices(y) {
        let [n, filter, d, h, w] = at;
        let wrapped = |point: [isize; 3]| match layer.edge {
            Edge::Zero => point,
            Edge::Periodic => std::array::from_fn(|i| point[i].rem_euclid(size[i] as isize)),
        };
        let points = under(&layer.windows, [d, h, w]).map(|point| inside(wrapped(point), size));
        let points: Vec<_> = points.enumerate().collect();
        for c in 0..channels {
            for &(k, point) in &points {
                if let Some([d, h, w]) = point {
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
        taps(self, x.shape, y.shape, |t| y[t.y] += w[t.w] * x[t.x]);
        if let Some(function) = &self.activation {
            y.data.iter_mut().for_each(|y| *y = activation::at(function, *y).0);
        }
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        assert!(self.activation.is_none(), "bug: folded layers are for evaluation");
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
    use convoy_net::{Edge, Kind, Shape, layers::Convolution, layers::Windows};

    #[test]
    fn gradients_are_differences() {
        let plain = Convolution::new(4, &[3, 2]);
        let uneven = Windows { stride: vec![2, 1], padding: vec![[1, 2], [0, 1]], ..Windows::new(&[3, 2]) };
        let dilated = Windows { stride: vec![2], dilation: vec![2], padding: vec![[2, 1]], ..Windows::new(&[3]) };
        let layers = [
            plain.clone(),
            Convolution { windows: uneven, groups: 2, ..plain.clone() },
            Convolution { windows: dilated, groups: 4, bias: false, ..plain.clone() },
            Convolution { windows: Windows::new(&[2, 3, 1]), ..plain.clone() }.padding(1),
            Convolution { edge: Edge::Periodic, ..plain.clone() }.padding(2),
            Convolution { edge: Edge::Periodic, ..plain }.padding(3).stride(2).dilation(2),
        ];
        for layer in layers {
            check(&Problem::new(Kind::Convolution(layer), &[Shape([2, 4, 2, 4, 3])]));
        }
    }
}
