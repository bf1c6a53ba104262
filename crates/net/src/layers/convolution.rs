//! Convolution in one, two or three dimensions: stride, padding on each side, dilation, groups, zero or periodic edges.

use super::{Activation, Init, Operation, Parameter, is_one, is_yes, one, only, yes};
use crate::{Axis, AxisMap, Edge, Misfit, Shape};
use serde::{Deserialize, Serialize};

/// Windows along one to three axes of space. Lists have one entry an axis, the last is the width; an empty list means
/// the default (stride 1, padding 0, dilation 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    pub kernel: Vec<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stride: Vec<usize>,
    /// Before and after each axis. In files one number says both.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "sides")]
    pub padding: Vec<[usize; 2]>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dilation: Vec<usize>,
}

impl Windows {
    /// Windows of this kernel with stride 1 and no padding.
    pub fn new(kernel: &[usize]) -> Windows {
        Windows { kernel: kernel.to_vec(), ..Windows::default() }
    }
    /// The same stride along every axis.
    pub fn strided(self, stride: usize) -> Windows {
        Windows { stride: self.for_each_axis(stride, 1), ..self }
    }
    /// The same padding on every side.
    pub fn padded(self, padding: usize) -> Windows {
        Windows { padding: self.for_each_axis([padding, padding], [0, 0]), ..self }
    }
    /// The same dilation along every axis.
    pub fn dilated(self, dilation: usize) -> Windows {
        Windows { dilation: self.for_each_axis(dilation, 1), ..self }
    }
    /// One entry an axis; none for the default.
    fn for_each_axis<T: Clone + PartialEq>(&self, entry: T, default: T) -> Vec<T> {
        if entry == default { vec![] } else { vec![entry; self.kernel.len()] }
    }

    /// Along depth, height and width (0, 1, 2): kernel, stride, dilation, padding before and after. Axes that the kernel
    /// does not name have a window of one.
    pub fn along(&self, space: usize) -> (usize, usize, usize, [usize; 2]) {
        match space.checked_sub(3 - self.kernel.len()) {
            None => (1, 1, 1, [0, 0]),
            Some(i) => (
                self.kernel[i],
                self.stride.get(i).copied().unwrap_or(1),
                self.dilation.get(i).copied().unwrap_or(1),
                self.padding.get(i).copied().unwrap_or([0, 0]),
            ),
        }
    }

    /// Points under one window.
    pub fn taps(&self) -> usize {
        self.kernel.iter().fold(1, |product, &size| product.saturating_mul(size))
    }

    /// The maps of depth, height and width.
    pub fn maps(&self, edge: Edge) -> [AxisMap; 3] {
        [0, 1, 2].map(|i| match self.along(i) {
            (1, 1, _, [0, 0]) => AxisMap::Same,
            (kernel, stride, dilation, [before, after]) => {
                AxisMap::Window { kernel, stride, dilation, before, after, edge }
            }
        })
    }

    /// Lists of the right length, without zeros and without numbers so large that sums and products of two overflow.
    pub fn check(&self) -> Result<(), Misfit> {
        let wanted = self.kernel.len();
        if !(1..=3).contains(&wanted) {
            let possible = "one to three numbers".to_string();
            return Err(Misfit::Range { what: "kernel", found: format!("{:?}", self.kernel), possible });
        }
        for (what, found) in
            [("stride", self.stride.len()), ("padding", self.padding.len()), ("dilation", self.dilation.len())]
        {
            if found != 0 && found != wanted {
                return Err(Misfit::Dimensions { what, wanted, found });
            }
        }
        for (what, list) in [("a kernel", &self.kernel), ("a stride", &self.stride), ("a dilation", &self.dilation)] {
            if list.contains(&0) {
                return Err(Misfit::Zero { what });
            }
        }
        let padding = self.padding.as_flattened();
        for (what, list) in [
            ("kernel", self.kernel.as_slice()),
            ("stride", &self.stride),
            ("padding", padding),
            ("dilation", &self.dilation),
        ] {
            if let Some(number) = list.iter().find(|&&number| number > Shape::MAX_SIZE) {
                let possible = format!("at most {}", Shape::MAX_SIZE);
                return Err(Misfit::Range { what, found: number.to_string(), possible });
            }
        }
        Ok(())
    }

    /// Output sizes along depth, height and width; `ceil` also counts a last window that starts inside but ends outside.
    pub fn outputs(&self, input: Shape, ceil: bool) -> Result<[usize; 3], Misfit> {
        self.check()?;
        let mut sizes = [0; 3];
        for (i, size) in sizes.iter_mut().enumerate() {
            let (kernel, stride, dilation, [before, after]) = self.along(i);
            let (window, input) = (dilation * (kernel - 1) + 1, input.space()[i]);
            let padded = input + before + after;
            let room = padded.checked_sub(window);
            let room = room.ok_or(Misfit::Window { axis: Axis::SPACE[i].name(), window, padded })?;
            *size = room / stride + 1;
            // PyTorch's rule: the extra window must start inside the input or its padding before.
            if ceil && room % stride != 0 && *size * stride < input + before {
                *size += 1;
            }
        }
        Ok(sizes)
    }
}

/// Padding in files: `[1, 1]`, or `[[0, 1], 1]` where the two sides differ.
mod sides {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Side {
        Both(usize),
        Each([usize; 2]),
    }

    pub fn serialize<S: Serializer>(padding: &[[usize; 2]], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(padding.iter().map(|&[before, after]| match before == after {
            true => Side::Both(before),
            false => Side::Each([before, after]),
        }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<[usize; 2]>, D::Error> {
        let sides = Vec::<Side>::deserialize(deserializer)?;
        let pair = |side| match side {
            Side::Both(size) => [size, size],
            Side::Each(pair) => pair,
        };
        Ok(sides.into_iter().map(pair).collect())
    }
}

/// Filters slid over space.
///
/// ```
/// use convoy_net::{Operation, Shape, layers::Convolution};
/// let conv = Convolution::new(64, &[7, 7]).stride(2).padding(3).no_bias();
/// assert_eq!(conv.infer(&[Shape([8, 3, 1, 224, 224])]), Ok(Shape([8, 64, 1, 112, 112])));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Convolution {
    pub filters: usize,
    #[serde(flatten)]
    pub windows: Windows,
    /// Channels and filters are cut into this many groups that do not see each other.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub groups: usize,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub bias: bool,
    #[serde(default, skip_serializing_if = "is_zero_edge")]
    pub edge: Edge,
    /// Applied to what is computed, in evaluation alone (`Network::folded`): a clamp.
    #[serde(skip)]
    pub activation: Option<Activation>,
}

fn is_zero_edge(e: &Edge) -> bool {
    *e == Edge::Zero
}

impl Convolution {
    /// With bias, stride 1, no padding.
    pub fn new(filters: usize, kernel: &[usize]) -> Convolution {
        Convolution {
            filters,
            windows: Windows::new(kernel),
            groups: 1,
            bias: true,
            edge: Edge::Zero,
            activation: None,
        }
    }
    /// The same stride along every axis.
    pub fn stride(mut self, stride: usize) -> Convolution {
        self.windows = self.windows.strided(stride);
        self
    }
    /// The same padding on every side.
    pub fn padding(mut self, padding: usize) -> Convolution {
        self.windows = self.windows.padded(padding);
        self
    }
    /// The same dilation along every axis.
    pub fn dilation(mut self, dilation: usize) -> Convolution {
        self.windows = self.windows.dilated(dilation);
        self
    }
    /// This many groups.
    pub fn groups(mut self, groups: usize) -> Convolution {
        self.groups = groups;
        self
    }
    /// Without bias.
    pub fn no_bias(mut self) -> Convolution {
        self.bias = false;
        self
    }
    /// The axis map of channels.
    pub fn channel_map(&self, input: Shape) -> AxisMap {
        match self.groups {
            1 => AxisMap::All,
            groups => AxisMap::Group { inputs: input.channels() / groups, outputs: self.filters / groups },
        }
    }
}

impl Operation for Convolution {
    fn infer(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = only(inputs)?;
        if self.filters == 0 || self.groups == 0 {
            return Err(Misfit::Zero {
                what: if self.filters == 0 { "a number of filters" } else { "a number of groups" },
            });
        }
        for (what, number) in [("input channels", input.channels()), ("filters", self.filters)] {
            if !number.is_multiple_of(self.groups) {
                return Err(Misfit::Groups { groups: self.groups, what, number });
            }
        }
        let [d, h, w] = self.windows.outputs(input, false)?;
        if self.edge == Edge::Periodic {
            for i in 0..3 {
                let (_, _, _, [before, after]) = self.windows.along(i);
                if before.max(after) > input.space()[i] {
                    let possible = format!("at most {} on a periodic {}", input.space()[i], Axis::SPACE[i].name());
                    return Err(Misfit::Range { what: "padding", found: before.max(after).to_string(), possible });
                }
            }
        }
        Ok(Shape([input.samples(), self.filters, d, h, w]))
    }

    fn maps(&self, inputs: &[Shape], _: Shape, _: usize) -> [AxisMap; 5] {
        let [d, h, w] = self.windows.maps(self.edge);
        [AxisMap::Same, self.channel_map(inputs[0]), d, h, w]
    }

    fn sums_channels(&self) -> bool {
        // What was cut off cannot be added up any more.
        self.groups == 1 && self.activation.is_none()
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<Parameter> {
        let channels = inputs[0].channels() / self.groups;
        let mut shape = vec![self.filters, channels];
        shape.extend(&self.windows.kernel);
        // As the PyTorch networks we compare with: He et al., by the outputs a weight reaches (PyTorch counts those of
        // all groups); biases start at zero.
        let fan_out = self.filters as f64 * self.windows.taps() as f64;
        let mut list = vec![Parameter::trained("weight", shape, Init::Normal((2.0 / fan_out).sqrt() as f32))];
        if self.bias {
            list.push(Parameter::trained("bias", vec![self.filters], Init::Constant(0.0)));
        }
        list
    }

    fn flops(&self, inputs: &[Shape], output: Shape) -> u64 {
        let per_output = (inputs[0].channels() / self.groups) as u64 * 2;
        (output.len() as u64).saturating_mul(per_output.saturating_mul(self.windows.taps() as u64))
    }
}
