//! Fast kernels: what runs in a training step.
//!
//! One file a layer, which implements [`Fast`] for the layer's struct of `convoy_net`. Twins: the files of the same names in
//! `reference/`.

mod activation;
mod adaptive_average_pool;
mod add;
mod average_pool;
mod batch_norm;
mod carry;
mod concat;
mod convolution;
mod dense;
mod depthwise;
mod dropout;
mod flatten;
pub mod fold;
mod fully_connected;
mod function;
mod global_average_pool;
mod group_norm;
pub(crate) mod isa;
mod lane_rows;
mod leaves;
mod lines;
mod local_response_norm;
mod loss;
mod max_pool;
mod mix;
mod multiply;
pub(crate) mod norm;
mod norm_rows;
mod pad_channels;
mod phases;
pub mod region;
mod simd;
mod softmax;
pub(crate) mod strips;
mod sweep;
mod tiles;
mod transforms;
mod transposed_convolution;
mod update;
mod upsample;
mod weight_gradient;
mod weights;
mod wide;
mod window;
mod windowed;
mod winograd;

pub use loss::{Measured, measure};

use crate::{BLOCK, Geometry, Kernel, Pass, Stage};
use convoy_net::Kind;

/// What a layer's fast twin offers.
pub trait Fast {
    /// The stages of the forward pass, in order.
    fn forward(&self, geometry: &Geometry) -> Vec<Stage>;

    /// The stages of the backward pass, in order: weight gradients, then input gradients.
    fn backward(&self, geometry: &Geometry) -> Vec<Stage>;

    /// The kernel of one of these stages.
    fn prepare(&self, pass: Pass, geometry: &Geometry) -> Box<dyn Kernel>;

    /// Outputs that are cut along height and width at multiples of this are computed alone with the bits they have together,
    /// and from what their windows read alone.
    fn grain(&self, _geometry: &Geometry) -> usize {
        1
    }

    /// Whether an input's gradient follows from the output's gradient and from parameters alone.
    fn is_linear(&self) -> bool {
        false
    }

    /// Which of several ways a pass is computed.
    fn algorithm(&self, _pass: Pass, _geometry: &Geometry) -> Option<&'static str> {
        None
    }

    /// Where each element of a parameter lies in kernel order: `place(index in PyTorch's order)`, and the length with
    /// filler. A parameter without channels in blocks keeps its order and needs no filler.
    fn packing(&self, parameter: usize, geometry: &Geometry) -> Packing {
        unreachable!("bug: parameter {parameter} of a layer without parameters ({geometry:?})")
    }

    /// The length of a parameter in kernel order, without working out where each element lies.
    fn packed(&self, parameter: usize, geometry: &Geometry) -> usize {
        self.packing(parameter, geometry).len
    }
}

/// How a parameter lies in kernel order.
pub struct Packing {
    /// Floats in kernel order, filler (always zero) included.
    pub len: usize,
    /// For each element of this rank's share in PyTorch's order, its place in kernel order.
    pub places: Vec<u32>,
}

impl Packing {
    /// One number for each of this rank's channels, in blocks.
    pub fn of_channels(channels: usize) -> Packing {
        Packing { len: channels.next_multiple_of(BLOCK), places: (0..channels as u32).collect() }
    }
}

/// The fast twin of a layer.
pub fn twin(kind: &Kind) -> &dyn Fast {
    match kind {
        Kind::Activation(layer) => layer,
        Kind::AdaptiveAveragePool(layer) => layer,
        Kind::Add(layer) => layer,
        Kind::AveragePool(layer) => layer,
        Kind::BatchNorm(layer) => layer,
        Kind::Concat(layer) => layer,
        Kind::Dropout(layer) => layer,
        Kind::Flatten(layer) => layer,
        Kind::GlobalAveragePool(layer) => layer,
        Kind::GroupNorm(layer) => layer,
        Kind::LocalResponseNorm(layer) => layer,
        Kind::MaxPool(layer) => layer,
        Kind::Multiply(layer) => layer,
        Kind::PadChannels(layer) => layer,
        Kind::Upsample(layer) => layer,
        Kind::Convolution(layer) => layer,
        Kind::FullyConnected(layer) => layer,
        Kind::TransposedConvolution(layer) => layer,
        Kind::Softmax(layer) => layer,
        Kind::Input(_) => unreachable!("bug: {kind:?} computes nothing"),
    }
}
