//! Batch normalisation: each channel to mean 0 and deviation 1 over batch and space, then scaled and shifted; with it, if
//! wanted, the addition and the activation that often follow.

use super::{Activation, Init, Operation, Parameter, Role, positive};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// Normalises each channel over the global batch and space, then scales and shifts it.
///
/// PyTorch's conventions: the variance that divides is the biased one, the running variance is fed the unbiased one;
/// running ← (1 − momentum)·running + momentum·batch. Evaluation uses the running statistics.
///
/// A second input is added to what is normalised, and the activation is applied last: one pass over memory where three
/// layers need three ([`Network::fused`](crate::Network::fused)).
///
/// Every axis reads [`AxisMap::Same`]: statistics travel as sums, not as regions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNorm {
    /// Added to the variance.
    #[serde(default = "epsilon", skip_serializing_if = "is_epsilon")]
    pub epsilon: f32,
    /// Share of the newest batch in the running statistics.
    #[serde(default = "momentum", skip_serializing_if = "is_momentum")]
    pub momentum: f32,
    /// What follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
}

fn epsilon() -> f32 {
    1e-5
}
fn is_epsilon(value: &f32) -> bool {
    *value == epsilon()
}
fn momentum() -> f32 {
    0.1
}
fn is_momentum(value: &f32) -> bool {
    *value == momentum()
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm { epsilon: epsilon(), momentum: momentum(), activation: None }
    }
}

impl Operation for BatchNorm {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        positive("epsilon", self.epsilon)?;
        if !(0.0..=1.0).contains(&self.momentum) {
            let possible = "from 0 to 1".to_string();
            return Err(Misfit::Range { what: "momentum", found: self.momentum.to_string(), possible });
        }
        if let Some(activation) = &self.activation {
            activation.check()?;
        }
        match *inputs {
            [input] => Ok(input),
            [input, added] if added == input => Ok(input),
            [first, other] => Err(Misfit::Disagree { first, other, along: "shape" }),
            _ => Err(Misfit::Inputs { wanted: "one input, or two to add the second", found: inputs.len() }),
        }
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same; 5]
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<Parameter> {
        let shape = vec![inputs[0].channels()];
        let running = |name, start| Parameter {
            role: Role::Running,
            ..Parameter::trained(name, shape.clone(), Init::Constant(start))
        };
        vec![
            Parameter::trained("weight", shape.clone(), Init::Constant(1.0)),
            Parameter::trained("bias", shape.clone(), Init::Constant(0.0)),
            running("running_mean", 0.0),
            running("running_var", 1.0),
        ]
    }
}
