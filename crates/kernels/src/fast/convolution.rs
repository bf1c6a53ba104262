//! Convolution, fast. What it shares with other windowed layers is in `windowed.rs`.

use super::phases::Window;
use super::windowed::{Way, Windowed};
use super::{Fast, Packing};
use crate::{Geometry, Kernel, Pass, Stage};
use convoy_net::layers::{Convolution, Windows};

/// The windows along depth, height and width.
pub fn windows(windows: &Windows) -> [Window; 3] {
    [0, 1, 2].map(|i| {
        let (kernel, stride, dilation, [before, _]) = windows.along(i);
        Window { kernel, stride, dilation, before }
    })
}

fn windowed(layer: &Convolution, g: &Geometry) -> Windowed {
    Windowed {
        windows: windows(&layer.windows),
        groups: layer.groups,
        channels: g.inputs[0].shape.channels(),
        filters: layer.filters,
        bias: layer.bias,
        way: Way::Gather,
        edge: layer.edge,
        clamp: layer.activation.as_ref().map(|function| function.clamp().expect("bug: only clamps are folded")),
    }
}

impl Fast for Convolution {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        windowed(self, g).forward(g)
    }
    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        windowed(self, g).backward(g)
    }
    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        windowed(self, g).prepare(pass, g)
    }
    fn grain(&self, g: &Geometry) -> usize {
        windowed(self, g).grain(g)
    }
    fn is_linear(&self) -> bool {
        true
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
