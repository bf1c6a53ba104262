//! Local response normalisation: each element damped by the squares of its neighbours in channel.

use super::{Operation, only, positive};
use crate::{AxisMap, Edge, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// x / (k + alpha/size · Σ x²)^beta, the sum over `size` neighbouring channels: `size / 2` before, itself, the others
/// after; channels that do not exist add nothing (PyTorch's).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalResponseNorm {
    pub size: usize,
    #[serde(default = "alpha")]
    pub alpha: f32,
    #[serde(default = "beta")]
    pub beta: f32,
    #[serde(default = "k")]
    pub k: f32,
}

fn alpha() -> f32 {
    1e-4
}
fn beta() -> f32 {
    0.75
}
fn k() -> f32 {
    1.0
}

impl LocalResponseNorm {
    /// PyTorch's defaults: alpha 1e-4, beta 0.75, k 1.
    pub fn new(size: usize) -> LocalResponseNorm {
        LocalResponseNorm { size, alpha: alpha(), beta: beta(), k: k() }
    }
    /// Neighbours before and after a channel.
    pub fn neighbours(&self) -> (usize, usize) {
        (self.size / 2, (self.size - 1) / 2)
    }
}

impl Operation for LocalResponseNorm {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        if self.size == 0 {
            return Err(Misfit::Zero { what: "a size" });
        }
        if self.size > Shape::MAX_SIZE {
            let possible = format!("at most {}", Shape::MAX_SIZE);
            return Err(Misfit::Range { what: "size", found: self.size.to_string(), possible });
        }
        // With k above 0 and alpha not below, the base of the power is never 0.
        positive("k", self.k)?;
        for (what, value) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !(value >= 0.0 && value.is_finite()) {
                let possible = "a finite number, not below 0".to_string();
                return Err(Misfit::Range { what, found: value.to_string(), possible });
            }
        }
        only(inputs)
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        let (before, after) = self.neighbours();
        let (kernel, edge) = (self.size, Edge::Zero);
        let channels = AxisMap::Window { kernel, stride: 1, dilation: 1, before, after, edge };
        [AxisMap::Same, channels, AxisMap::Same, AxisMap::Same, AxisMap::Same]
    }
}
