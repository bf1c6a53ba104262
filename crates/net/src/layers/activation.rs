//! Activations: every element by itself.

use super::{Operation, only};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "function", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Activation {
    /// max(0, x)
    Relu,
    /// x above 0, else slope·x
    LeakyRelu { slope: f32 },
    /// x cut off at both ends; ReLU6 is 0 to 6.
    Clip { low: f32, high: f32 },
    /// 1 / (1 + e^−x)
    Sigmoid,
    /// tanh x
    Tanh,
    /// x·sigmoid(x)
    Silu,
    /// x·Φ(x) with the normal distribution's Φ, exactly (not the tanh form)
    Gelu,
    /// x·clip(x + 3, 0, 6) / 6
    HardSwish,
    /// clip(x + 3, 0, 6) / 6
    HardSigmoid,
}

impl Activation {
    /// Least and greatest value, if it only cuts off and leaves zero as it is.
    pub fn clamp(&self) -> Option<[f32; 2]> {
        match *self {
            Activation::Relu => Some([0.0, f32::INFINITY]),
            Activation::Clip { low, high } if low <= 0.0 && high >= 0.0 => Some([low, high]),
            _ => None,
        }
    }

    /// Whether its numbers are possible.
    pub(crate) fn check(&self) -> Result<(), Misfit> {
        match *self {
            // Not a number is neither.
            Activation::Clip { low, high } if low.is_nan() || high.is_nan() || low > high => {
                let possible = format!("at most high = {high}");
                Err(Misfit::Range { what: "low", found: low.to_string(), possible })
            }
            Activation::LeakyRelu { slope } if !slope.is_finite() => {
                let possible = "a finite number".to_string();
                Err(Misfit::Range { what: "slope", found: slope.to_string(), possible })
            }
            _ => Ok(()),
        }
    }
}

impl Operation for Activation {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        self.check()?;
        only(inputs)
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same; 5]
    }
}
