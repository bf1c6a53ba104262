//! Flattening: all elements of a sample become channels.

use super::{Operation, only};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// All elements of a sample as channels with one point each: channel, depth, height, width in that order, as PyTorch
/// flattens. A fully connected layer does so by itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flatten;

impl Operation for Flatten {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        Ok(Shape([input.samples(), input.per_sample(), 1, 1, 1]))
    }

    fn maps(&self, inputs: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        match inputs[0].points() {
            1 => [AxisMap::Same; 5],
            points => {
                let channels = AxisMap::Group { inputs: 1, outputs: points };
                [AxisMap::Same, channels, AxisMap::All, AxisMap::All, AxisMap::All]
            }
        }
    }
}
