//! Max pooling: the largest element under a window. Padding never wins.

use super::{Operation, Windows, only};
use crate::{AxisMap, Edge, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// The largest element under a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaxPool {
    #[serde(flatten)]
    pub windows: Windows,
    /// Also keep a last window that starts inside but ends outside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ceil: bool,
}

impl MaxPool {
    /// Windows of this kernel that stand side by side.
    pub fn new(kernel: &[usize]) -> MaxPool {
        MaxPool { windows: Windows { stride: kernel.to_vec(), ..Windows::new(kernel) }, ceil: false }
    }
    /// The same stride along every axis.
    pub fn stride(mut self, stride: usize) -> MaxPool {
        self.windows = self.windows.strided(stride);
        self
    }
    /// The same padding on every side.
    pub fn padding(mut self, padding: usize) -> MaxPool {
        self.windows = self.windows.padded(padding);
        self
    }
}

impl Operation for MaxPool {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        let [d, h, w] = self.windows.outputs(input, self.ceil)?;
        for i in 0..3 {
            let (kernel, _, _, [before, after]) = self.windows.along(i);
            if before.max(after) > kernel / 2 {
                let possible = format!("at most half the kernel, {}", kernel / 2);
                return Err(Misfit::Range { what: "padding", found: before.max(after).to_string(), possible });
            }
        }
        Ok(Shape([input.samples(), input.channels(), d, h, w]))
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        let [d, h, w] = self.windows.maps(Edge::Zero);
        [AxisMap::Same, AxisMap::Same, d, h, w]
    }
}
