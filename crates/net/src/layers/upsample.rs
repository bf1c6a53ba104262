//! Upsampling: more points by repetition or interpolation.

use super::{Operation, only, sizes};
use crate::{AxisMap, Misfit, Sampling, Shape};
use serde::{Deserialize, Serialize};

/// So many times the points along each axis of space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upsample {
    /// Whole factors along one to three axes of space, the last is the width; other axes stay as they are.
    pub scale: Vec<usize>,
    /// How the new points come from the old.
    pub sampling: Sampling,
}

impl Operation for Upsample {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        let scale = sizes("scale", "a scale", &self.scale)?;
        // No overflow: a size and a scale are at most `Shape::MAX_SIZE`.
        let [d, h, w] = std::array::from_fn(|i| input.space()[i] * scale[i].unwrap_or(1));
        Ok(Shape([input.samples(), input.channels(), d, h, w]))
    }

    fn maps(&self, inputs: &[Shape], output: Shape, _: usize) -> [AxisMap; 5] {
        let (from, to) = (inputs[0].space(), output.space());
        let [d, h, w] = std::array::from_fn(|i| match (from[i], to[i]) {
            (input, output) if input == output => AxisMap::Same,
            (input, output) => AxisMap::Resample { input, output, sampling: self.sampling },
        });
        [AxisMap::Same, AxisMap::Same, d, h, w]
    }
}
