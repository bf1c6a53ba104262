//! Addition: the sum of two or more tensors of one shape.

use super::{Operation, several};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// The sum of its inputs, element by element, in the order in which they are given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Add;

impl Operation for Add {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let (first, others) = several(inputs)?;
        match others.iter().find(|&&other| other != first) {
            Some(&other) => Err(Misfit::Disagree { first, other, along: "shape" }),
            None => Ok(first),
        }
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        [AxisMap::Same; 5]
    }
}
