//! Reference kernels: naive, readable, complete, in double precision. They judge the fast ones and never run in a training
//! step.
//!
//! One file a layer, which implements [`Reference`] for the layer's struct of `convoy_net`: loops over the definition, forward
//! and backward side by side. Finite differences judge the gradients, fixtures made with PyTorch the conventions.

use crate::Mode;
use convoy_net::{Kind, Shape};
use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU64, Ordering};

mod adaptive_average_pool;
mod add;
mod average_pool;
mod batch_norm;
mod concat;
mod convolution;
#[cfg(test)]
pub mod finite;
mod flatten;
mod fully_connected;
mod global_average_pool;
mod group_norm;
mod local_response_norm;
mod max_pool;
mod multiply;
mod pad_channels;
mod transposed_convolution;
mod upsample;
mod windows;

/// A dense tensor in the order sample, channel, depth, height, width.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Shape,
    pub data: Vec<f64>,
}

impl Array {
    /// All zeros.
    pub fn zeros(shape: Shape) -> Array {
        Array { shape, data: vec![0.0; shape.len()] }
    }

    /// The place of an element in `data`.
    pub fn index(&self, [n, c, d, h, w]: [usize; 5]) -> usize {
        let s = &self.shape.0;
        (((n * s[1] + c) * s[2] + d) * s[3] + h) * s[4] + w
    }

    /// An element; zero outside.
    pub fn get(&self, at: [isize; 5]) -> f64 {
        let inside = at.iter().zip(self.shape.0).all(|(&i, size)| i >= 0 && (i as usize) < size);
        if inside { self.data[self.index(at.map(|i| i as usize))] } else { 0.0 }
    }

    /// Every index in order.
    pub fn indices(&self) -> impl Iterator<Item = [usize; 5]> + use<> {
        indices(self.shape)
    }
}

/// Every index of a shape in order.
pub fn indices(shape: Shape) -> impl Iterator<Item = [usize; 5]> + use<> {
    let [_, c, d, h, w] = shape.0;
    (0..shape.len()).map(move |i| [i / (w * h * d * c), i / (w * h * d) % c, i / (w * h) % d, i / w % h, i % w])
}

impl Index<[usize; 5]> for Array {
    type Output = f64;

    fn index(&self, at: [usize; 5]) -> &f64 {
        &self.data[self.index(at)]
    }
}

impl IndexMut<[usize; 5]> for Array {
    fn index_mut(&mut self, at: [usize; 5]) -> &mut f64 {
        let i = self.index(at);
        &mut self.data[i]
    }
}

/// What a layer is given.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub inputs: &'a [Array],
    /// In PyTorch's order and layout.
    pub parameters: &'a [Vec<f64>],
    pub mode: Mode,
    /// What keys random numbers: seed, layer, step.
    pub seed: u64,
    pub layer: usize,
    pub step: u64,
}

/// Gradients of everything a layer was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    pub inputs: Vec<Array>,
    /// One per parameter; empty for those that are not trained.
    pub parameters: Vec<Vec<f64>>,
}

/// A layer by its definition.
pub trait Reference {
    /// The output.
    fn forward(&self, call: &Call) -> Array;

    /// Gradients of a scalar whose gradient with respect to the output is `dy`.
    fn backward(&self, call: &Call, dy: &Array) -> Gradients;

    /// The parameters after a training step without an optimizer: running statistics move, others stay.
    fn running(&self, call: &Call) -> Vec<Vec<f64>> {
        call.parameters.to_vec()
    }
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// How often this process has asked for a reference twin. Training steps leave it as it is: a test of the engine counts
/// before and after some, in a process of its own.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// The reference twin of a layer. Asking is counted: [`calls`].
pub fn twin(kind: &Kind) -> &dyn Reference {
    CALLS.fetch_add(1, Ordering::Relaxed);
    match kind {
        Kind::AdaptiveAveragePool(layer) => layer,
        Kind::Add(layer) => layer,
        Kind::AveragePool(layer) => layer,
        Kind::BatchNorm(layer) => layer,
        Kind::Concat(layer) => layer,
        Kind::Convolution(layer) => layer,
        Kind::Flatten(layer) => layer,
        Kind::FullyConnected(layer) => layer,
        Kind::GlobalAveragePool(layer) => layer,
        Kind::GroupNorm(layer) => layer,
        Kind::LocalResponseNorm(layer) => layer,
        Kind::MaxPool(layer) => layer,
        Kind::Multiply(layer) => layer,
        Kind::PadChannels(layer) => layer,
        Kind::TransposedConvolution(layer) => layer,
        Kind::Upsample(layer) => layer,
        _ => unreachable!("bug: {kind:?} computes nothing"),
    }
}
