//! Adaptive average pooling: means over windows that are sized so that the output is.

use super::{Operation, only, sizes};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// Means over windows chosen so that the output has the given sizes; they may overlap and differ by one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveAveragePool {
    /// Sizes of the output along one to three axes of space, the last is the width; other axes stay as they are.
    pub output: Vec<usize>,
}

impl AdaptiveAveragePool {
    /// An output of these sizes.
    pub fn new(output: &[usize]) -> AdaptiveAveragePool {
        AdaptiveAveragePool { output: output.to_vec() }
    }
}

impl Operation for AdaptiveAveragePool {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        let asked = sizes("output", "an output size", &self.output)?;
        let [d, h, w] = std::array::from_fn(|i| asked[i].unwrap_or(input.space()[i]));
        Ok(Shape([input.samples(), input.channels(), d, h, w]))
    }

    fn maps(&self, inputs: &[Shape], output: Shape, _: usize) -> [AxisMap; 5] {
        let (from, to) = (inputs[0].space(), output.space());
        let [d, h, w] = std::array::from_fn(|i| match (from[i], to[i]) {
            (input, output) if input == output => AxisMap::Same,
            (input, output) => AxisMap::Adaptive { input, output },
        });
        [AxisMap::Same, AxisMap::Same, d, h, w]
    }
}
