//! The input: where samples enter the network.

use super::Operation;
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// Channels, then one to three sizes; the last is the width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    pub shape: Vec<usize>,
}

impl Operation for Input {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        if !inputs.is_empty() {
            return Err(Misfit::Inputs { wanted: "no input", found: inputs.len() });
        }
        let possible = "channels and one to three sizes, all above 0".to_string();
        let misfit = || Misfit::Range { what: "shape", found: format!("{:?}", self.shape), possible };
        match *self.shape.as_slice() {
            _ if self.shape.contains(&0) => Err(misfit()),
            [c, w] => Ok(Shape([1, c, 1, 1, w])),
            [c, h, w] => Ok(Shape([1, c, 1, h, w])),
            [c, d, h, w] => Ok(Shape([1, c, d, h, w])),
            _ => Err(misfit()),
        }
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same; 5]
    }
}
