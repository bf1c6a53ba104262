//! Fully connected, fast: a convolution whose one window is the whole input.

use super::phases::Window;
use super::windowed::{Way, Windowed};
use super::{Fast, Packing};
use crate::{Geometry, Kernel, Pass, Stage};
use convoy_net::Edge;
use convoy_net::layers::FullyConnected;

fn windowed(layer: &FullyConnected, g: &Geometry) -> Windowed {
    let input = g.inputs[0].shape;
    Windowed {
        // Strides as large as the window: each element of the input has one tap, and so has its gradient.
        windows: input.space().map(|size| Window { kernel: size, stride: size, dilation: 1, before: 0 }),
        groups: 1,
        channels: input.channels(),
        filters: layer.outputs,
        bias: layer.bias,
        way: Way::Gather,
        edge: Edge::Zero,
        clamp: None,
    }
}

impl Fast for FullyConnected {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        windowed(self, g).forward(g)
    }
    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        windowed(self, g).backward(g)
    }
    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        windowed(self, g).prepare(pass, g)
    }
    fn algorithm(&self, pass: Pass, g: &Geometry) -> Option<&'static str> {
        windowed(self, g).algorithm(pass, g)
    }
    fn packing(&self, parameter: usize, g: &Geometry) -> Packing {
        windowed(self, g).packing(parameter, g)
    }

    fn packed(&self, parameter: usize, g: &Geometry) -> usize {
        windowed(self, g).packed(parameter, g)
    }
}
