//! Group normalisation: each group of channels of each sample to mean 0 and deviation 1, then scaled and shifted.

use super::{Init, Operation, Parameter, only, positive};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// Normalises each group of channels of each sample over space, then scales and shifts each channel. The variance is
/// the biased one.
///
/// Every axis reads [`AxisMap::Same`], although an element depends on its whole group: the statistics are sums over
/// (sample, group), which the kernel makes as partial sums and which travel as such, not as regions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupNorm {
    /// Groups of consecutive channels.
    pub groups: usize,
    /// Added to the variance.
    #[serde(default = "epsilon", skip_serializing_if = "is_epsilon")]
    pub epsilon: f32,
}

fn epsilon() -> f32 {
    1e-5
}
fn is_epsilon(value: &f32) -> bool {
    *value == epsilon()
}

impl GroupNorm {
    /// So many groups.
    pub fn new(groups: usize) -> GroupNorm {
        GroupNorm { groups, epsilon: epsilon() }
    }
}

impl Operation for GroupNorm {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        positive("epsilon", self.epsilon)?;
        if self.groups == 0 {
            return Err(Misfit::Zero { what: "a number of groups" });
        }
        if !input.channels().is_multiple_of(self.groups) {
            let number = input.channels();
            return Err(Misfit::Groups { groups: self.groups, what: "input channels", number });
        }
        Ok(input)
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same; 5]
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<Parameter> {
        let shape = vec![inputs[0].channels()];
        vec![
            Parameter::trained("weight", shape.clone(), Init::Constant(1.0)),
            Parameter::trained("bias", shape, Init::Constant(0.0)),
        ]
    }
}
