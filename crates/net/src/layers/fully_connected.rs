//! Fully connected: every output from every element of its sample, whatever the sample's shape.

use super::{Init, Operation, Parameter, is_yes, only, yes};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// A matrix product with each flattened sample (channel, depth, height, width in that order, as PyTorch flattens).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullyConnected {
    pub outputs: usize,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub bias: bool,
}

impl FullyConnected {
    /// With bias.
    pub fn new(outputs: usize) -> FullyConnected {
        FullyConnected { outputs, bias: true }
    }
}

impl Operation for FullyConnected {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        if self.outputs == 0 {
            return Err(Misfit::Zero { what: "a number of outputs" });
        }
        Ok(Shape([input.samples(), self.outputs, 1, 1, 1]))
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same, AxisMap::All, AxisMap::All, AxisMap::All, AxisMap::All]
    }

    fn sums_channels(&self) -> bool {
        true
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<Parameter> {
        let inputs = inputs[0].per_sample();
        // PyTorch's default for linear layers: uniform within 1/sqrt(inputs), bias alike.
        let init = Init::Uniform(1.0 / (inputs as f32).sqrt());
        let mut list = vec![Parameter::trained("weight", vec![self.outputs, inputs], init)];
        if self.bias {
            list.push(Parameter::trained("bias", vec![self.outputs], init));
        }
        list
    }

    fn flops(&self, inputs: &[Shape], output: Shape) -> u64 {
        (2 * output.len() as u64).saturating_mul(inputs[0].per_sample() as u64)
    }
}
