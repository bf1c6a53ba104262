//! Softmax: the channels of each point as shares of one.

use super::{Operation, only};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// e^x over the sum of e^x of all channels of the same point. For outputs; cross-entropy has its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax;

impl Operation for Softmax {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        only(inputs)
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same, AxisMap::All, AxisMap::Same, AxisMap::Same, AxisMap::Same]
    }
}
