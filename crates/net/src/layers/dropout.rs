//! Dropout: in training, some elements become zero.

use super::{Operation, only};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// In training each element is zero with this probability, else divided by one minus it; evaluation changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    pub probability: f32,
}

impl Operation for Dropout {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        if !(0.0..1.0).contains(&self.probability) {
            let possible = "from 0 to below 1".to_string();
            return Err(Misfit::Range { what: "probability", found: self.probability.to_string(), possible });
        }
        only(inputs)
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same; 5]
    }
}
