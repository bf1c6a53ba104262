//! Multiplication: two tensors element by element, the second maybe with one point a channel.

use super::Operation;
use crate::{Axis, AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// The product of its two inputs. The second has the first's shape, or one point a channel that is used for all of
/// space, as in squeeze-and-excitation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Multiply;

impl Operation for Multiply {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let &[first, other] = inputs else {
            return Err(Misfit::Inputs { wanted: "two inputs", found: inputs.len() });
        };
        if (first.samples(), first.channels()) != (other.samples(), other.channels()) {
            return Err(Misfit::Disagree { first, other, along: "samples and channels" });
        }
        if other.space() != first.space() && other.space() != [1, 1, 1] {
            let along = "space (or a second one of 1x1)";
            return Err(Misfit::Disagree { first, other, along });
        }
        Ok(first)
    }

    fn maps(&self, inputs: &[Shape], output: Shape, input: usize) -> [AxisMap; 5] {
        Axis::ALL.map(|axis| match inputs[input].along(axis) == output.along(axis) {
            true => AxisMap::Same,
            false => AxisMap::All,
        })
    }
}
