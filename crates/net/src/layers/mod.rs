//! Layers: one file each, and the list of them.
//!
//! A layer is a plain struct that implements [`Operation`]. Adding one: its file here, its twins of the same name in
//! `kernels/src/reference/` and `kernels/src/fast/`, and an entry in [`Kind`] and in `kernels`' table.

use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

mod activation;
mod convolution;
mod fully_connected;
mod input;
mod max_pool;

pub use activation::Activation;
pub use convolution::{Convolution, Windows};
pub use fully_connected::FullyConnected;
pub use input::Input;
pub use max_pool::MaxPool;

/// What a layer computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    Activation(Activation),
    Convolution(Convolution),
    FullyConnected(FullyConnected),
    Input(Input),
    MaxPool(MaxPool),
}

impl Kind {
    /// What it declares of itself.
    pub fn operation(&self) -> &dyn Operation {
        match self {
            Kind::Activation(layer) => layer,
            Kind::Convolution(layer) => layer,
            Kind::FullyConnected(layer) => layer,
            Kind::Input(layer) => layer,
            Kind::MaxPool(layer) => layer,
        }
    }
}

/// What a layer declares of itself; everything else is derived.
pub trait Operation {
    /// The output's shape, or why the inputs do not fit.
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit>;

    /// How the output's axes read those of input number `input`.
    fn maps(&self, inputs: &[Shape], output: Shape, input: usize) -> [AxisMap; 5];

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
}

impl Parameter {
    /// A parameter that the optimizer changes.
    pub fn trained(name: &'static str, shape: Vec<usize>, init: Init) -> Parameter {
        Parameter { name, shape, init, role: Role::Trained }
    }
    /// Elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
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
