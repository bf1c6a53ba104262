//! Average pooling: the mean of the elements under a window.

use super::{Operation, Windows, is_yes, only, yes};
use crate::{AxisMap, Edge, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// The mean of the elements under a window. Windows have no dilation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AveragePool {
    #[serde(flatten)]
    pub windows: Windows,
    /// Also keep a last window that starts inside but ends outside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ceil: bool,
    /// Whether padding counts as elements of value zero (PyTorch's `count_include_pad`). What a last window has beyond
    /// the padding never counts.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub count_padding: bool,
}

impl AveragePool {
    /// Windows of this kernel that stand side by side.
    pub fn new(kernel: &[usize]) -> AveragePool {
        let windows = Windows { stride: kernel.to_vec(), ..Windows::new(kernel) };
        AveragePool { windows, ceil: false, count_padding: true }
    }
}

impl Operation for AveragePool {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        let [d, h, w] = self.windows.outputs(input, self.ceil)?;
        for i in 0..3 {
            let (kernel, _, dilation, [before, after]) = self.windows.along(i);
            if dilation != 1 {
                let possible = "1, as average pooling has none".to_string();
                return Err(Misfit::Range { what: "dilation", found: dilation.to_string(), possible });
            }
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
