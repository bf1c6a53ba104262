//! Channel padding: channels of zeros around those of the input.

use super::{Operation, only};
use crate::{AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// Channels of zeros before and after the input's, as in shortcuts without parameters (He et al., option A).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PadChannels {
    #[serde(default)]
    pub before: usize,
    #[serde(default)]
    pub after: usize,
}

impl Operation for PadChannels {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        for (what, number) in [("before", self.before), ("after", self.after)] {
            if number > Shape::MAX_SIZE {
                let possible = format!("at most {}", Shape::MAX_SIZE);
                return Err(Misfit::Range { what, found: number.to_string(), possible });
            }
        }
        let [d, h, w] = input.space();
        Ok(Shape([input.samples(), self.before + input.channels() + self.after, d, h, w]))
    }

    fn maps(&self, _: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        let channels = AxisMap::Shift { by: self.before as isize };
        [AxisMap::Same, channels, AxisMap::Same, AxisMap::Same, AxisMap::Same]
    }
}
