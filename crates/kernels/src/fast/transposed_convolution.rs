//! Transposed convolution, fast: forward spreads through the windows. What it shares with others is in `windowed.rs`.

use super::convolution::windows;
use super::windowed::{Way, Windowed};
use super::{Fast, Packing};
use crate::{Geometry, Kernel, Pass, Stage};
use convoy_net::Edge;
use convoy_net::layers::TransposedConvolution;

fn windowed(layer: &TransposedConvolution, g: &Geometry) -> Windowed {
    Windowed {
        windows: windows(&layer.windows),
        groups: layer.groups,
        channels: g.inputs[0].shape.channels(),
        filters: layer.filters,
        bias: layer.bias,
        way: Way::Spread,
        edge: Edge::Zero,
        clamp: None,
    }
}

impl Fast for TransposedConvolution {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        windowed(self, g).forward(g)
    }
    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        windowed(self, g).backward(g)
    }
    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        windowed(self, g).prepare(pass, g)
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
