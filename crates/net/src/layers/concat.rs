//! Concatenation: the channels of several tensors after each other.

use super::{Operation, several};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// The channels of its inputs after each other, in the order in which they are given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Concat;

impl Operation for Concat {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let (first, others) = several(inputs)?;
        for &other in others {
            if (other.samples(), other.space()) != (first.samples(), first.space()) {
                return Err(Misfit::Disagree { first, other, along: "samples and space" });
            }
        }
        let [d, h, w] = first.space();
        Ok(Shape([first.samples(), channels(inputs), d, h, w]))
    }

    fn maps(&self, inputs: &[Shape], _: Shape, input: usize) -> [AxisMap; 5] {
        let by = channels(&inputs[..input]) as isize;
        [AxisMap::Same, AxisMap::Shift { by }, AxisMap::Same, AxisMap::Same, AxisMap::Same]
    }
}

fn channels(inputs: &[Shape]) -> usize {
    inputs.iter().map(Shape::channels).sum()
}
