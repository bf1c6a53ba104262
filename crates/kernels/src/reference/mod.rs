//! Reference kernels: naive, readable, complete, in double precision. They judge the fast ones and never run in a training
//! step.
//!
//! One file a layer, which implements [`Reference`] for the layer's struct of `convoy_net`: loops over the definition, forward
//! and backward side by side. Finite differences judge the gradients, fixtures made with PyTorch the conventions.

use crate::Mode;
use convoy_net::{Kind, Shape};
use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU64, Ordering};

mod activation;
mod adaptive_average_pool;
mod add;
mod average_pool;
mod batch_norm;
mod concat;
mod convolution;
mod dropout;
#[cfg(test)]
pub mod finite;
mod flatten;
mod fully_connected;
mod global_average_pool;
mod group_norm;
mod local_response_norm;
pub mod loss;
mod max_pool;
mod multiply;
mod pad_channels;
mod softmax;
mod transposed_convolution;
pub mod update;
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

/// How often this process has asked for a reference twin, of a layer, a loss or an update. Training steps leave it as it
/// is: a test of the engine counts before and after some, in a process of its own.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Counts one use of reference code.
fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// The reference twin of a layer. Asking is counted: [`calls`].
pub fn twin(kind: &Kind) -> &dyn Reference {
    count();
    match kind {
        Kind::Activation(layer) => layer,
        Kind::AdaptiveAveragePool(layer) => layer,
        Kind::Add(layer) => layer,
        Kind::AveragePool(layer) => layer,
        Kind::BatchNorm(layer) => layer,
        Kind::Concat(layer) => layer,
        Kind::Convolution(layer) => layer,
        Kind::Dropout(layer) => layer,
        Kind::Flatten(layer) => layer,
        Kind::FullyConnected(layer) => layer,
        Kind::GlobalAveragePool(layer) => layer,
        Kind::GroupNorm(layer) => layer,
        Kind::LocalResponseNorm(layer) => layer,
        Kind::MaxPool(layer) => layer,
        Kind::Multiply(layer) => layer,
        Kind::PadChannels(layer) => layer,
        Kind::Softmax(layer) => layer,
        Kind::TransposedConvolution(layer) => layer,
        Kind::Upsample(layer) => layer,
        Kind::Input(_) => unreachable!("bug: {kind:?} computes nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Numbers, Problem};
    use convoy_net::layers::*;
    use convoy_net::{Edge, Sampling};

    /// Windows along one to three axes; some fit no small input.
    fn windows(numbers: &mut Numbers) -> Windows {
        let axes = 1 + numbers.below(3);
        let mut list = |least: usize, most: usize| -> Vec<usize> {
            (0..axes).map(|_| least + numbers.below(most - least + 1)).collect()
        };
        let (kernel, stride, dilation) = (list(1, 3), list(1, 3), list(1, 2));
        let padding = list(0, 2).into_iter().zip(list(0, 2)).map(|(before, after)| [before, after]).collect();
        Windows { kernel, stride, padding, dilation }
    }

    /// A small layer of any kind and shapes for it, where they fit.
    fn problem(seed: u64) -> Option<Problem> {
        let numbers = &mut Numbers::new(seed);
        let axes = 1 + numbers.below(3);
        let mut shape = Shape([1 + numbers.below(2), 1 + numbers.below(4), 1, 1, 1]);
        (5 - axes..5).for_each(|a| shape.0[a] = 1 + numbers.below(4));
        let channels = |c: usize| Shape([shape.0[0], c, shape.0[2], shape.0[3], shape.0[4]]);
        let (one, two, yes) = (1 + numbers.below(3), 1 + numbers.below(3), numbers.below(2) == 1);
        let alone = |kind: Kind| (kind, vec![shape]);
        let (kind, inputs) = match numbers.below(15) {
            0 => {
                let edge = [Edge::Zero, Edge::Periodic][numbers.below(2)];
                let (filters, windows) = (one * two, windows(numbers));
                alone(Kind::Convolution(Convolution {
                    filters,
                    windows,
                    groups: one,
                    bias: yes,
                    edge,
                    activation: None,
                }))
            }
            1 => {
                let (filters, windows, output_padding) = (one * two, windows(numbers), vec![]);
                let layer = TransposedConvolution { filters, windows, output_padding, groups: one, bias: yes };
                alone(Kind::TransposedConvolution(layer))
            }
            2 => alone(Kind::MaxPool(MaxPool { windows: windows(numbers), ceil: yes })),
            3 => {
                let windows = Windows { dilation: vec![], ..windows(numbers) };
                alone(Kind::AveragePool(AveragePool { windows, ceil: yes, count_padding: one == 1 }))
            }
            4 => alone(Kind::FullyConnected(FullyConnected { outputs: one, bias: yes })),
            5 => alone(Kind::BatchNorm(BatchNorm { epsilon: 0.1, ..BatchNorm::default() })),
            6 => alone(Kind::GroupNorm(GroupNorm { groups: one, epsilon: 0.1 })),
            7 => alone(Kind::LocalResponseNorm(LocalResponseNorm { size: one + two, alpha: 0.5, beta: 0.75, k: 1.0 })),
            8 => (Kind::Add(Add), vec![shape; 1 + one]),
            9 => (
                Kind::Multiply(Multiply),
                vec![shape, if yes { shape } else { Shape([shape.0[0], shape.0[1], 1, 1, 1]) }],
            ),
            10 => (Kind::Concat(Concat), vec![shape, channels(one), channels(two)]),
            11 => alone(Kind::PadChannels(PadChannels { before: one - 1, after: two })),
            12 => alone(Kind::GlobalAveragePool(GlobalAveragePool)),
            13 => alone(Kind::AdaptiveAveragePool(AdaptiveAveragePool { output: vec![one, two] })),
            _ => {
                let sampling = [Sampling::Nearest, Sampling::Linear, Sampling::LinearCorners][numbers.below(3)];
                alone(Kind::Upsample(Upsample { scale: vec![one, two], sampling }))
            }
        };
        kind.operation().infer(&inputs).ok()?;
        Some(Problem { seed, ..Problem::new(kind, &inputs) })
    }

    #[test]
    fn random_layers_have_gradients_that_are_differences() {
        let problems: Vec<Problem> = (0..600).filter_map(problem).collect();
        assert!(problems.len() > 400, "{} of 600 fit", problems.len());
        problems.iter().for_each(finite::check);
    }
}
