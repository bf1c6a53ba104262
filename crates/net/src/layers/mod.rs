//! Layers: one file each, and the list of them.
//!
//! A layer is a plain struct that implements [`Operation`]. Adding one: its file here, its twins of the same name in
//! `kernels/src/reference/` and `kernels/src/fast/`, and an entry in [`Kind`], in the table of fields in files
//! (`fields.rs`) and in `kernels`' table.

use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};
use std::ops::Range;

mod activation;
mod adaptive_average_pool;
mod add;
mod average_pool;
mod batch_norm;
mod concat;
mod convolution;
mod dropout;
mod flatten;
mod fully_connected;
mod global_average_pool;
mod group_norm;
mod input;
mod local_response_norm;
mod max_pool;
mod multiply;
mod pad_channels;
mod softmax;
mod transposed_convolution;
mod upsample;

pub use activation::Activation;
pub use adaptive_average_pool::AdaptiveAveragePool;
pub use add::Add;
pub use average_pool::AveragePool;
pub use batch_norm::BatchNorm;
pub use concat::Concat;
pub use convolution::{Convolution, Windows};
pub use dropout::Dropout;
pub use flatten::Flatten;
pub use fully_connected::FullyConnected;
pub use global_average_pool::GlobalAveragePool;
pub use group_norm::GroupNorm;
pub use input::Input;
pub use local_response_norm::LocalResponseNorm;
pub use max_pool::MaxPool;
pub use multiply::Multiply;
pub use pad_channels::PadChannels;
pub use softmax::Softmax;
pub use transposed_convolution::TransposedConvolution;
pub use upsample::Upsample;

/// What a layer computes.
///
/// ```
/// use convoy_net::{Kind, Shape, layers::Concat};
/// let kind = Kind::Concat(Concat);
/// assert_eq!(kind.name(), "concat");
/// let misfit = kind.operation().infer(&[Shape([1, 8, 1, 4, 4])]).unwrap_err();
/// assert_eq!(misfit.to_string(), "takes two or more inputs, was given 1");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    Activation(Activation),
    AdaptiveAveragePool(AdaptiveAveragePool),
    Add(Add),
    AveragePool(AveragePool),
    BatchNorm(BatchNorm),
    Concat(Concat),
    Convolution(Convolution),
    Dropout(Dropout),
    Flatten(Flatten),
    FullyConnected(FullyConnected),
    GlobalAveragePool(GlobalAveragePool),
    GroupNorm(GroupNorm),
    Input(Input),
    LocalResponseNorm(LocalResponseNorm),
    MaxPool(MaxPool),
    Multiply(Multiply),
    PadChannels(PadChannels),
    Softmax(Softmax),
    TransposedConvolution(TransposedConvolution),
    Upsample(Upsample),
}

impl Kind {
    /// What it declares of itself.
    pub fn operation(&self) -> &dyn Operation {
        match self {
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
            Kind::Input(layer) => layer,
            Kind::LocalResponseNorm(layer) => layer,
            Kind::MaxPool(layer) => layer,
            Kind::Multiply(layer) => layer,
            Kind::PadChannels(layer) => layer,
            Kind::Softmax(layer) => layer,
            Kind::TransposedConvolution(layer) => layer,
            Kind::Upsample(layer) => layer,
        }
    }

    /// What it is called in files.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Activation(_) => "activation",
            Kind::AdaptiveAveragePool(_) => "adaptive-average-pool",
            Kind::Add(_) => "add",
            Kind::AveragePool(_) => "average-pool",
            Kind::BatchNorm(_) => "batch-norm",
            Kind::Concat(_) => "concat",
            Kind::Convolution(_) => "convolution",
            Kind::Dropout(_) => "dropout",
            Kind::Flatten(_) => "flatten",
            Kind::FullyConnected(_) => "fully-connected",
            Kind::GlobalAveragePool(_) => "global-average-pool",
            Kind::GroupNorm(_) => "group-norm",
            Kind::Input(_) => "input",
            Kind::LocalResponseNorm(_) => "local-response-norm",
            Kind::MaxPool(_) => "max-pool",
            Kind::Multiply(_) => "multiply",
            Kind::PadChannels(_) => "pad-channels",
            Kind::Softmax(_) => "softmax",
            Kind::TransposedConvolution(_) => "transposed-convolution",
            Kind::Upsample(_) => "upsample",
        }
    }
}

/// What a layer declares of itself; everything else is derived.
pub trait Operation {
    /// The output's shape, or why the inputs do not fit.
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit>;

    /// How the output's axes read those of input number `input`.
    fn maps(&self, inputs: &[Shape], output: Shape, input: usize) -> [AxisMap; 5];

    /// Whether every output is a sum over input channels, so that ranks which have some of them each compute parts of the sum.
    fn sums_channels(&self) -> bool {
        false
    }

    /// What it learns or keeps, in PyTorch's order.
    fn parameters(&self, _inputs: &[Shape]) -> Vec<Parameter> {
        vec![]
    }

    /// Floating-point operations of the forward pass in convolutions and matrix products; a multiply-add counts two.
    fn flops(&self, _inputs: &[Shape], _output: Shape) -> u64 {
        0
    }
}

/// What a parameter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Changed by the optimizer.
    Trained,
    /// Kept by the layer itself, such as a running mean.
    Running,
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f32),
    /// Normal with mean 0 and this deviation.
    Normal(f32),
    /// Uniform between minus and plus this.
    Uniform(f32),
}

/// A tensor that a layer learns or keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name within the layer, as in PyTorch: `weight`, `bias`, `running_mean`.
    pub name: &'static str,
    /// Its shape in files, as in PyTorch.
    pub shape: Vec<usize>,
    /// How it starts.
    pub init: Init,
    /// Who changes it.
    pub role: Role,
    /// Whether its first axis is the input's channels and its second the output's, not the other way round.
    pub channels_first: bool,
}

impl Parameter {
    /// A parameter that the optimizer changes.
    pub fn trained(name: &'static str, shape: Vec<usize>, init: Init) -> Parameter {
        Parameter { name, shape, init, role: Role::Trained, channels_first: false }
    }

    /// The part of it, as a range along each axis, that belongs to some channels of an output of so many and to some
    /// channels of an input of so many. Axes that hold only a group's channels, and those behind the second, are whole.
    pub fn share(&self, output: (Range<usize>, usize), input: (Range<usize>, usize)) -> Vec<Range<usize>> {
        let sides = if self.channels_first { [input, output] } else { [output, input] };
        let share = |(axis, &size): (usize, &usize)| match sides.get(axis) {
            Some((range, all)) if size.is_multiple_of(*all) => range.start * (size / all)..range.end * (size / all),
            _ => 0..size,
        };
        self.shape.iter().enumerate().map(share).collect()
    }

    /// The elements of a share, in order, as runs in the order of the whole. A share is whole along all axes but the first
    /// two.
    pub fn runs(&self, share: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> + use<> {
        let one = 0..1;
        let (rows, columns) = (share.first().unwrap_or(&one).clone(), share.get(1).unwrap_or(&one).clone());
        let inner: usize = self.shape.iter().skip(2).product();
        let row = self.shape.get(1).unwrap_or(&1) * inner;
        let columns = columns.start * inner..columns.end * inner;
        rows.map(move |r| r * row + columns.start..r * row + columns.end)
    }

    /// Elements, at most `usize::MAX`.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |product, &size| product.saturating_mul(size))
    }
    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The one input of a layer that takes one.
pub(crate) fn only(inputs: &[Shape]) -> Result<Shape, Misfit> {
    match inputs {
        [input] => Ok(*input),
        _ => Err(Misfit::Inputs { wanted: "one input", found: inputs.len() }),
    }
}

/// The first input and the others of a layer that takes two or more.
pub(crate) fn several(inputs: &[Shape]) -> Result<(Shape, &[Shape]), Misfit> {
    match inputs {
        [first, others @ ..] if !others.is_empty() => Ok((*first, others)),
        _ => Err(Misfit::Inputs { wanted: "two or more inputs", found: inputs.len() }),
    }
}

/// A number for depth, height and width from a list of one to three, the last for the width; `None` where the list has
/// none. `what` is the list, `one` an entry of it.
pub(crate) fn sizes(what: &'static str, one: &'static str, list: &[usize]) -> Result<[Option<usize>; 3], Misfit> {
    let misfit = |possible: String| Misfit::Range { what, found: format!("{list:?}"), possible };
    if !(1..=3).contains(&list.len()) {
        return Err(misfit("one to three numbers".into()));
    }
    if list.contains(&0) {
        return Err(Misfit::Zero { what: one });
    }
    if list.iter().any(|&number| number > Shape::MAX_SIZE) {
        return Err(misfit(format!("at most {} each", Shape::MAX_SIZE)));
    }
    let absent = 3 - list.len();
    Ok(std::array::from_fn(|i| i.checked_sub(absent).map(|i| list[i])))
}

/// A number that must be finite and above 0.
pub(crate) fn positive(what: &'static str, value: f32) -> Result<(), Misfit> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    let possible = "a finite number above 0".to_string();
    Err(Misfit::Range { what, found: value.to_string(), possible })
}

// What fields are when a file does not say, and whether they are so that a file need not say.
pub(crate) fn one() -> usize {
    1
}
pub(crate) fn is_one(number: &usize) -> bool {
    *number == 1
}
pub(crate) fn yes() -> bool {
    true
}
pub(crate) fn is_yes(value: &bool) -> bool {
    *value
}
