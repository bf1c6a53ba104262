//! Windowed layers: what convolution, fully connected and transposed convolution share. Their outputs are sums of inputs
//! times weights, over channels and over the taps of a window; each pass is a handful of dense passes or a weight gradient.
//!
//! A convolution's forward gathers through its windows and its input gradient spreads; a transposed convolution's forward
//! spreads and its input gradient gathers; a fully connected layer has one window as large as its input.

use super::dense::{self, Dense, Stored};
use super::depthwise::{self, Depthwise, DepthwiseGradient};
use super::leaves::Leaves;
use super::phases::{Along, Phase, Window, combine};
use super::strips::Strips;
use super::weight_gradient::{self, BiasGradient, WeightGradient};
use super::weights::{Pairs, Side, bias_packing};
use super::winograd::{self, Direction, Size, Square};
use super::{Fast, Packing};
use crate::{BLOCK, Geometry, Kernel, Layout, Make, Mode, Operand, Pass, Stage, Work};
use convoy_net::{Axis, Edge, Region, Shape};

/// Numbers of what Winograd's passes make on their way, and of sums of subtrees of leaves: pass `Transform(n)` writes `Internal(n)`.
pub(super) const FORWARD: [usize; 2] = [1, 2];
const BACKWARD: [usize; 2] = [3, 4];
pub(super) const GRADIENT: usize = 5;

/// A pass without Winograd's algorithm, as a kernel and what its stage says of it.
pub trait Direct: Kernel {
    fn tiles(&self) -> usize;
    fn scratch(&self) -> usize;
    fn work(&self) -> Work;
    /// Whether it makes the sums of its targets that a batch norm wants.
    fn makes_sums(&self) -> bool {
        false
    }
    /// The stage that follows where subtrees of leaves are summed apart, and the bytes of their sums.
    fn fold(&self) -> Option<(Leaves, usize)> {
        None
    }
}

/// Which way a layer's forward goes through its windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Gather,
    Spread,
}

/// A windowed layer, reduced to numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Windowed {
    /// Along depth, height, width; of the convolution that a transposed one is the adjoint of.
    pub windows: [Window; 3],
    /// Of the whole layer.
    pub groups: usize,
    pub channels: usize,
    pub filters: usize,
    pub bias: bool,
    pub way: Way,
    /// What windows read beyond the input's edges; it is in the input's margins.
    pub edge: Edge,
    /// Least and greatest output, in evaluation.
    pub clamp: Option<[f32; 2]>,
}

impl Windowed {
    fn kernel(&self) -> [usize; 3] {
        self.windows.map(|w| w.kernel)
    }

    fn taps(&self) -> usize {
        self.kernel().iter().product()
    }

    /// Along each axis of space, the phases through the windows, one way or the other, that compute `region`; some perhaps without targets.
    fn along(&self, way: Way, region: &Region) -> [Vec<Along>; 3] {
        let spans = Axis::SPACE.map(|a| region.range(a));
        [0, 1, 2].map(|i| match way {
            Way::Gather => vec![self.windows[i].gather(spans[i])],
            Way::Spread => self.windows[i].spread(spans[i]),
        })
    }

    /// The same as dense passes.
    fn phases(&self, way: Way, region: &Region) -> Vec<Phase> {
        combine(self.along(way, region))
    }

    /// The same where they have targets, without taps that read zeros beyond the edges of a source of this shape.
    fn dense_phases(&self, way: Way, region: &Region, source: Shape) -> Vec<Phase> {
        let mut phases = self.phases(way, region);
        phases.retain(|phase| phase.points() > 0);
        match self.edge {
            Edge::Zero => {
                phases.into_iter().flat_map(|p| p.inside(source.space(), region.size(Axis::Sample))).collect()
            }
            Edge::Periodic => phases,
        }
    }

    /// This rank's share of the weights: filters outside, channels inside.
    fn pairs(&self, g: &Geometry) -> Pairs {
        let (channels, filters) = (g.inputs[0].layout.stored.size(Axis::Channel), g.region.size(Axis::Channel));
        // Shares of a grouped layer are whole groups.
        let groups = if self.groups == 1 { 1 } else { channels * self.groups / self.channels };
        assert!(
            self.groups == 1
                || (channels * self.groups == self.channels * groups && filters * self.groups == self.filters * groups),
            "bug: {channels} channels and {filters} filters are no whole groups"
        );
        let inner = Side { channels, block: g.inputs[0].layout.block };
        Pairs::new(Side { channels: filters, block: BLOCK }, inner, groups)
    }

    /// Where channels are divided among ranks, the one with the first adds the bias.
    fn adds_bias(&self, g: &Geometry) -> bool {
        self.bias && (self.groups > 1 || g.inputs[0].layout.stored.start[Axis::Channel as usize] <= 0)
    }

    /// The square window that Winograd's algorithm would do.
    fn square(&self) -> Option<Square> {
        let [depth, height, width] = &self.windows;
        let plane = |w: &Window| (w.kernel, w.stride, w.dilation) == (height.kernel, height.stride, 1);
        let suits = self.way == Way::Gather
            && (depth.kernel, depth.stride, depth.before) == (1, 1, 0)
            && plane(height)
            && plane(width)
            && self.groups == 1
            && self.channels.min(self.filters) >= BLOCK;
        suits.then_some(Square { taps: height.kernel, stride: height.stride })
    }

    /// Which size does forward, if any.
    fn winograd(&self, g: &Geometry) -> Option<Size> {
        Size::choose(g.winograd, self.square()?, g.output.shape)
    }

    /// The same for the input gradient, and how.
    fn winograd_for_input(&self, g: &Geometry) -> Option<(Size, Direction)> {
        Size::choose_for_input(g.winograd, self.square()?, g.inputs[0].shape, g.output.shape)
    }

    /// The same for the weight gradient.
    fn winograd_for_weights(&self, g: &Geometry) -> Option<Size> {
        Size::choose_for_weights(g.winograd, self.square()?, g.output.shape, g.leaf_samples)
    }

    fn before(&self) -> [isize; 2] {
        [1, 2].map(|i| self.windows[i].before as isize)
    }

    /// The outputs whose square windows touch a part of the input.
    fn reached(&self, part: &Region, output: Shape) -> Region {
        [Axis::Height, Axis::Width].into_iter().zip(&self.windows[1..]).fold(*part, |reached, (axis, window)| {
            let ((start, end), before, stride) = (part.range(axis), window.before as isize, window.stride as isize);
            // From the first whose last tap is there to the last whose first one is.
            let first = (start + before + stride - window.kernel as isize).div_euclid(stride);
            let last = (end - 1 + before).div_euclid(stride);
            reached.with(axis, first.max(0), (last + 1).min(output.along(axis) as isize))
        })
    }

    /// Least and greatest output.
    fn clamp(&self, g: &Geometry) -> Option<[f32; 2]> {
        if g.rectified { Some([0.0, f32::INFINITY]) } else { self.clamp }
    }

    /// Calls `f` with forward as Winograd does it, if it does.
    fn winograd_forward<T>(&self, g: &Geometry, f: impl FnOnce(&winograd::Convolution) -> T) -> Option<T> {
        let size = self.winograd(g)?;
        Some(f(&winograd::Convolution {
            size,
            direction: Direction::Forward,
            source: (Operand::Input(0), &g.inputs[0].layout),
            target: (Operand::Output, &g.output.layout),
            region: &g.region,
            tiled: &g.region,
            before: self.before(),
            bias: self.adds_bias(g).then_some(Operand::Parameter(1)),
            accumulate: false,
            clamp: self.clamp(g),
            sums: self.wanted_sums(g),
            pairs: &self.pairs(g),
            numbers: FORWARD,
            last: Pass::Forward,
        }))
    }

    /// The same with the input gradient: a convolution of the output's gradient, or forward's adjoint.
    fn winograd_backward<T>(&self, g: &Geometry, f: impl FnOnce(&winograd::Convolution) -> T) -> Option<T> {
        let (size, direction) = self.winograd_for_input(g)?;
        let (layout, region) = g.input_gradients[0].as_ref()?;
        let (tiled, before) = match direction {
            Direction::Adjoint => (self.reached(region, g.output.shape), self.before()),
            _ => (*region, [1, 2].map(|i| self.windows[i].kernel as isize - 1 - self.windows[i].before as isize)),
        };
        Some(f(&winograd::Convolution {
            size,
            direction,
            source: (Operand::OutputGradient, gradient(g)),
            target: (Operand::InputGradient(0), layout),
            region,
            tiled: &tiled,
            before,
            bias: None,
            accumulate: g.accumulate[0],
            clamp: None,
            sums: None,
            pairs: &self.pairs(g),
            numbers: BACKWARD,
            last: Pass::InputGradient(0),
        }))
    }

    /// The same with the weight gradient.
    fn winograd_gradient<T>(&self, g: &Geometry, f: impl FnOnce(&winograd::Gradient) -> T) -> Option<T> {
        let size = self.winograd_for_weights(g)?;
        Some(f(&winograd::Gradient {
            size,
            input: &g.inputs[0].layout,
            gradient: gradient(g),
            region: &g.region,
            before: self.before(),
            batch: g.output.shape.samples(),
            leaves: g.leaves,
            pairs: &self.pairs(g),
            number: GRADIENT,
        }))
    }

    fn forward_pass(&self, g: &Geometry) -> Box<dyn Direct> {
        let pairs = self.pairs(g);
        assert_eq!(
            g.output.layout.stored.range(Axis::Channel),
            g.region.range(Axis::Channel),
            "bug: some filters only"
        );
        if pairs.depthwise {
            return Box::new(Depthwise::new(&depthwise::Spec {
                source: (Operand::Input(0), &g.inputs[0].layout),
                target: (Operand::Output, &g.output.layout),
                region: &g.region,
                bias: self.adds_bias(g).then_some(Operand::Parameter(1)),
                accumulate: false,
                clamp: self.clamp(g),
                sums: self.wanted_sums(g).is_some(),
                along: &self.along(self.way, &g.region),
                kernel: self.kernel(),
            }));
        }
        let phases = self.dense_phases(self.way, &g.region, g.inputs[0].shape);
        Box::new(Dense::new(&dense::Spec {
            source: (Operand::Input(0), &g.inputs[0].layout),
            target: (Operand::Output, &g.output.layout),
            weights: Operand::Parameter(0),
            bias: self.adds_bias(g).then_some(Operand::Parameter(1)),
            accumulate: false,
            clamp: self.clamp(g),
            sums: self.wanted_sums(g),
            samples: g.region.start[0]..g.region.end[0],
            pairs: &pairs,
            stored: Stored::ByTarget,
            phases: &phases,
            kernel: self.kernel(),
        }))
    }

    /// The strips whose sums are wanted with the output; strips that ranks share are left to the batch norm.
    fn wanted_sums(&self, g: &Geometry) -> Option<Strips> {
        let whole = g.region.shape().space() == g.output.shape.space();
        (g.summed && whole).then(|| Strips::new(g.output.shape, &g.region, 1))
    }

    fn input_gradient(&self, g: &Geometry) -> Box<dyn Direct> {
        let (layout, region) = wanted(g);
        assert_eq!(layout.stored.range(Axis::Channel), region.range(Axis::Channel), "bug: some channels only");
        let pairs = self.pairs(g);
        let back = match self.way {
            Way::Gather => Way::Spread,
            Way::Spread => Way::Gather,
        };
        if pairs.depthwise {
            return Box::new(Depthwise::new(&depthwise::Spec {
                source: (Operand::OutputGradient, gradient(g)),
                target: (Operand::InputGradient(0), layout),
                region,
                bias: None,
                accumulate: g.accumulate[0],
                clamp: None,
                sums: false,
                along: &self.along(back, region),
                kernel: self.kernel(),
            }));
        }
        Box::new(Dense::new(&dense::Spec {
            source: (Operand::OutputGradient, gradient(g)),
            target: (Operand::InputGradient(0), layout),
            weights: Operand::Parameter(0),
            bias: None,
            accumulate: g.accumulate[0],
            clamp: None,
            sums: None,
            samples: region.start[0]..region.end[0],
            pairs: &pairs.adjoint(),
            stored: Stored::BySource(pairs),
            phases: &self.dense_phases(back, region, g.output.shape),
            kernel: self.kernel(),
        }))
    }

    fn weight_gradient(&self, g: &Geometry) -> Box<dyn Direct> {
        let pairs = self.pairs(g);
        if pairs.depthwise {
            return Box::new(DepthwiseGradient::new(&depthwise::GradientSpec {
                input: &g.inputs[0].layout,
                gradient: gradient(g),
                region: &g.region,
                batch: g.output.shape.samples(),
                leaves: g.leaves,
                along: &self.along(self.way, &g.region),
                kernel: self.kernel(),
                sums: Operand::Internal(GRADIENT),
            }));
        }
        // Also those without targets: their taps have a gradient too, zero.
        let mut phases = self.phases(self.way, &g.region);
        phases.retain(|phase| phase.taps() > 0);
        Box::new(WeightGradient::new(&weight_gradient::Spec {
            input: &g.inputs[0].layout,
            gradient: gradient(g),
            samples: g.region.start[0]..g.region.end[0],
            batch: g.output.shape.samples(),
            leaves: g.leaves,
            pairs: &pairs,
            phases: &phases,
            kernel: self.kernel(),
            sums: Operand::Internal(GRADIENT),
        }))
    }

    fn bias_gradient(&self, g: &Geometry) -> BiasGradient {
        BiasGradient::new(gradient(g), &g.region, (g.output.shape.samples(), g.leaves))
    }
}

/// How the output's gradient is stored.
fn gradient(g: &Geometry) -> &Layout {
    g.output_gradient.as_ref().expect("bug: backward without a gradient of the output")
}

/// How the input's gradient is stored, and which part is wanted.
fn wanted(g: &Geometry) -> &(Layout, Region) {
    g.input_gradients[0].as_ref().expect("bug: an input gradient that nobody wants")
}

impl Windowed {
    fn direct_forward(&self, g: &Geometry) -> Vec<Stage> {
        let pass = self.forward_pass(g);
        let bias = self.adds_bias(g).then_some(Operand::Parameter(1));
        let sums = pass.makes_sums().then_some(Operand::OutputSums);
        vec![Stage {
            pass: Pass::Forward,
            reads: [Operand::Input(0), Operand::Parameter(0)].into_iter().chain(bias).collect(),
            writes: [Operand::Output].into_iter().chain(sums).collect(),
            makes: vec![],
            tiles: pass.tiles(),
            scratch: pass.scratch(),
            work: pass.work(),
        }]
    }

    fn direct_weight_gradient(&self, g: &Geometry) -> Vec<Stage> {
        let main = self.weight_gradient(g);
        let mut stages = vec![Stage {
            pass: Pass::WeightGradient(0),
            reads: vec![Operand::Input(0), Operand::OutputGradient],
            writes: vec![Operand::ParameterGradient(0)],
            makes: vec![],
            tiles: main.tiles(),
            scratch: main.scratch(),
            work: main.work(),
        }];
        if let Some((fold, bytes)) = main.fold() {
            stages[0].pass = Pass::Transform(GRADIENT);
            stages[0].writes = vec![Operand::Internal(GRADIENT)];
            stages[0].makes = vec![Make::Internal { number: GRADIENT, bytes }];
            stages.push(Stage {
                pass: Pass::WeightGradient(0),
                reads: vec![Operand::Internal(GRADIENT)],
                writes: vec![Operand::ParameterGradient(0)],
                makes: vec![],
                tiles: fold.tiles(),
                scratch: fold.scratch(),
                work: fold.work(),
            });
        }
        stages
    }

    fn direct_input_gradient(&self, g: &Geometry) -> Vec<Stage> {
        let pass = self.input_gradient(g);
        let held = g.accumulate[0].then_some(Operand::InputGradient(0));
        vec![Stage {
            pass: Pass::InputGradient(0),
            reads: [Operand::OutputGradient, Operand::Parameter(0)].into_iter().chain(held).collect(),
            writes: vec![Operand::InputGradient(0)],
            makes: vec![],
            tiles: pass.tiles(),
            scratch: pass.scratch(),
            work: pass.work(),
        }]
    }

    fn bias_stage(&self, g: &Geometry) -> Stage {
        let pass = self.bias_gradient(g);
        Stage {
            pass: Pass::WeightGradient(1),
            reads: vec![Operand::OutputGradient],
            writes: vec![Operand::ParameterGradient(1)],
            makes: vec![],
            tiles: pass.tiles,
            scratch: 0,
            work: pass.work,
        }
    }
}

impl Fast for Windowed {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        self.winograd_forward(g, |c| c.stages()).unwrap_or_else(|| self.direct_forward(g))
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        assert!(g.mode == Mode::Train && self.clamp.is_none(), "bug: folded layers are for evaluation");
        let mut stages = self.winograd_gradient(g, |c| c.stages()).unwrap_or_else(|| self.direct_weight_gradient(g));
        if self.bias {
            stages.push(self.bias_stage(g));
        }
        if g.input_gradients[0].is_some() {
            let direct = || self.direct_input_gradient(g);
            stages.extend(self.winograd_backward(g, |c| c.stages()).unwrap_or_else(direct));
        }
        stages
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        let part = match pass {
            Pass::Forward => self.winograd_forward(g, |c| c.prepare(pass)),
            Pass::WeightGradient(0) => self.winograd_gradient(g, |c| c.prepare(pass)),
            Pass::InputGradient(0) => self.winograd_backward(g, |c| c.prepare(pass)),
            Pass::Transform(n) if FORWARD.contains(&n) => self.winograd_forward(g, |c| c.prepare(pass)),
            Pass::Transform(GRADIENT) => self.winograd_gradient(g, |c| c.prepare(pass)),
            Pass::Transform(n) if BACKWARD.contains(&n) => self.winograd_backward(g, |c| c.prepare(pass)),
            _ => None,
        };
        if let Some(kernel) = part.flatten() {
            return kernel;
        }
        match pass {
            Pass::Forward => self.forward_pass(g),
            Pass::Transform(GRADIENT) => self.weight_gradient(g),
            Pass::WeightGradient(0) => {
                let main = self.weight_gradient(g);
                match main.fold() {
                    Some((fold, _)) => Box::new(fold),
                    None => main,
                }
            }
            Pass::WeightGradient(1) => Box::new(self.bias_gradient(g)),
            Pass::InputGradient(0) => self.input_gradient(g),
            _ => unreachable!("bug: a windowed layer has no pass {pass:?}"),
        }
    }

    fn grain(&self, g: &Geometry) -> usize {
        self.winograd(g).map_or(1, Size::tile)
    }

    fn algorithm(&self, pass: Pass, g: &Geometry) -> Option<&'static str> {
        let winograd = match pass {
            Pass::Forward => self.winograd(g),
            Pass::WeightGradient(0) => self.winograd_for_weights(g),
            Pass::InputGradient(_) => self.winograd_for_input(g).map(|(size, _)| size),
            _ => return None,
        };
        Some(match winograd {
            Some(Size::Four) => "winograd 4x4",
            Some(Size::Two) => "winograd 2x2",
            Some(Size::Wide) => "winograd 2x2 of 5x5",
            Some(Size::Stepped) => "winograd 4x4 of stride 2",
            None if self.pairs(g).depthwise => "depthwise",
            None => "direct",
        })
    }

    fn packing(&self, parameter: usize, g: &Geometry) -> Packing {
        let pairs = self.pairs(g);
        match (parameter, self.way) {
            (0, Way::Gather) => pairs.packing(self.taps()),
            (0, Way::Spread) => pairs.packing_by_inner(self.taps()),
            _ => bias_packing(pairs.outer),
        }
    }

    fn packed(&self, parameter: usize, g: &Geometry) -> usize {
        let pairs = self.pairs(g);
        if parameter == 0 { pairs.floats(self.taps()) } else { bias_packing(pairs.outer).len }
    }
}

#[cfg(test)]
mod tests;
