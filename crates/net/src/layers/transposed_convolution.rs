//! Transposed convolution in one, two or three dimensions: the adjoint of a convolution, as a layer of its own.

use super::{Init, Operation, Parameter, Windows, is_one, is_yes, one, only, yes};
use crate::{Axis, AxisMap, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// Filters that each input element is spread through (PyTorch's `ConvTranspose`). Stride and padding are those of the
/// convolution it is the adjoint of: padding takes away from the output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransposedConvolution {
    pub filters: usize,
    #[serde(flatten)]
    pub windows: Windows,
    /// Points added after each axis of the output, below stride or dilation: which of the sizes that a strided
    /// convolution maps to one size is meant. An empty list means none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_padding: Vec<usize>,
    /// Channels and filters are cut into this many groups that do not see each other.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub groups: usize,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub bias: bool,
}

impl TransposedConvolution {
    /// With bias, stride 1, no padding.
    pub fn new(filters: usize, kernel: &[usize]) -> TransposedConvolution {
        let windows = Windows::new(kernel);
        TransposedConvolution { filters, windows, output_padding: vec![], groups: 1, bias: true }
    }
    /// The same stride along every axis.
    pub fn stride(mut self, stride: usize) -> TransposedConvolution {
        self.windows = self.windows.strided(stride);
        self
    }

    /// Points added after depth, height or width (0, 1, 2).
    pub fn output_padding_along(&self, space: usize) -> usize {
        let entry = space.checked_sub(3 - self.windows.kernel.len());
        entry.and_then(|i| self.output_padding.get(i).copied()).unwrap_or(0)
    }

    /// The axis map of channels.
    pub fn channel_map(&self, input: Shape) -> AxisMap {
        match self.groups {
            1 => AxisMap::All,
            groups => AxisMap::Group { inputs: input.channels() / groups, outputs: self.filters / groups },
        }
    }

    /// The output's size along depth, height or width.
    fn output(&self, input: usize, space: usize) -> Result<usize, Misfit> {
        let (kernel, stride, dilation, [before, after]) = self.windows.along(space);
        let more = self.output_padding_along(space);
        if more > 0 && more >= stride.max(dilation) {
            let possible = format!("below the larger of stride and dilation, {}", stride.max(dilation));
            return Err(Misfit::Range { what: "output_padding", found: more.to_string(), possible });
        }
        // No overflow: `Windows::check` bounded every factor.
        let spread = (input - 1) * stride + dilation * (kernel - 1) + 1 + more;
        match spread.checked_sub(before + after) {
            Some(size) if size > 0 => Ok(size),
            _ => {
                let possible = format!("before and after {} together below {spread}", Axis::SPACE[space].name());
                Err(Misfit::Range { what: "padding", found: format!("{before} + {after}"), possible })
            }
        }
    }
}

impl Operation for TransposedConvolution {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        if self.filters == 0 || self.groups == 0 {
            let what = if self.filters == 0 { "a number of filters" } else { "a number of groups" };
            return Err(Misfit::Zero { what });
        }
        for (what, number) in [("input channels", input.channels()), ("filters", self.filters)] {
            if !number.is_multiple_of(self.groups) {
                return Err(Misfit::Groups { groups: self.groups, what, number });
            }
        }
        self.windows.check()?;
        let (wanted, found) = (self.windows.kernel.len(), self.output_padding.len());
        if found != 0 && found != wanted {
            return Err(Misfit::Dimensions { what: "output_padding", wanted, found });
        }
        let [d, h, w] = input.space();
        let [d, h, w] = [self.output(d, 0)?, self.output(h, 1)?, self.output(w, 2)?];
        Ok(Shape([input.samples(), self.filters, d, h, w]))
    }

    fn maps(&self, inputs: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        let [d, h, w] = [0, 1, 2].map(|i| match (self.windows.along(i), self.output_padding_along(i)) {
            ((1, 1, _, [0, 0]), 0) => AxisMap::Same,
            ((kernel, stride, dilation, [before, _]), _) => AxisMap::Spread { kernel, stride, dilation, before },
        });
        [AxisMap::Same, self.channel_map(inputs[0]), d, h, w]
    }

    fn sums_channels(&self) -> bool {
        self.groups == 1
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<Parameter> {
        let mut shape = vec![inputs[0].channels(), self.filters / self.groups];
        shape.extend(&self.windows.kernel);
        // PyTorch's default. What it calls the inputs of a weight are here the outputs it reaches.
        let fan_in = (self.filters / self.groups) as f64 * self.windows.taps() as f64;
        let init = Init::Uniform((1.0 / fan_in.sqrt()) as f32);
        let mut list = vec![Parameter { channels_first: true, ..Parameter::trained("weight", shape, init) }];
        if self.bias {
            list.push(Parameter::trained("bias", vec![self.filters], init));
        }
        list
    }

    fn flops(&self, inputs: &[Shape], _: Shape) -> u64 {
        let per_input = (self.filters / self.groups) as u64 * 2;
        (inputs[0].len() as u64).saturating_mul(per_input.saturating_mul(self.windows.taps() as u64))
    }
}
