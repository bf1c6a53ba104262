//! Global average pooling: the mean of each channel over all of space.

use super::{Operation, only};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// The mean of each channel over all of space; the output has one point a channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GlobalAveragePool;

impl Operation for GlobalAveragePool {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        Ok(Shape([input.samples(), input.channels(), 1, 1, 1]))
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same, AxisMap::Same, AxisMap::All, AxisMap::All, AxisMap::All]
    }
}
