//! Convolution by its definition: seven loops.

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
    let size = |i: usize| x.shape.space()[i] as isize;
    let windows: Vec<_> = (0..3).map(|i| layer.windows.along(i)).collect();
    let (channels, filters) = (x.shape.channels() / layer.groups, layer.filters / layer.groups);
    let kernel = [windows[0].0, windows[1].0, windows[2].0];
    for at in y.indices() {
        let group = at[1] / filters;
        for c in 0..channels {
            for k in 0..kernel[0] * kernel[1] * kernel[2] {
                let tap = [k / (kernel[1] * kernel[2]), k / kernel[2] % kernel[1], k % kernel[2]];
                let mut from = [at[0], group * channels + c, 0, 0, 0];
                let mut inside = true;
                for i in 0..3 {
                    let (_, stride, dilation, [before, _]) = windows[i];
                    let mut place = (at[2 + i] * stride + tap[i] * dilation) as isize - before as isize;
                    if layer.edge == Edge::Periodic {
                        place = place.rem_euclid(size(i));
                    }
                    inside &= place >= 0 && place < size(i);
                    from[2 + i] = place.max(0) as usize;
                }
                if inside {
                    each(Tap { y: at, x: from, w: (at[1] * channels + c) * kernel.iter().product::<usize>() + k });
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
                let i = y.index(at);
                y.data[i] = call.parameters[1][at[1]];
            }
        }
        let shape = y.clone();
        taps(self, x, &shape, |t| {
            let i = y.index(t.y);
            y.data[i] += w[t.w] * x.data[x.index(t.x)];
        });
        y
    }

    fn backward(&self, call: &Call, dy: &Array) -> Gradients {
        let (x, w) = (&call.inputs[0], &call.parameters[0]);
        let (mut dx, mut dw) = (Array::zeros(x.shape), vec![0.0; w.len()]);
        taps(self, x, dy, |t| {
            let g = dy.data[dy.index(t.y)];
            let i = x.index(t.x);
            dx.data[i] += w[t.w] * g;
            dw[t.w] += x.data[i] * g;
        });
        let mut parameters = vec![dw];
        if self.bias {
            let mut db = vec![0.0; self.filters];
            dy.indices().for_each(|at| db[at[1]] += dy.data[dy.index(at)]);
            parameters.push(db);
        }
        Gradients { inputs: vec![dx], parameters }
    }
}
