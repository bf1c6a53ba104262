//! Mixtures: outputs that are weighted sums of inputs, the weight a product of one along each axis of space. Average
//! pooling of all kinds and upsampling are mixtures, and so are their gradients, with the lists turned round.
//!
//! Always true
//! - Sums run over depth, height, width in order, each row by itself and then rows together.

use super::lines::{Line, Row, Rows, Source, Span, Target, View, output_gradient, points, wanted};
use super::wide::{Plain, Wide};
use super::window::Lists;
use crate::{BLOCK, Geometry, Kernel, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region};

/// Along one axis of space, what an output is made of.
pub struct Part {
    /// Inputs in order, with weights.
    pub inputs: Vec<(isize, f64)>,
    /// By what the sum is divided.
    pub divisor: f64,
}

impl Part {
    /// The mean of some inputs.
    pub fn mean((start, end): Span) -> Part {
        Part { inputs: (start..end).map(|i| (i, 1.0)).collect(), divisor: points((start, end)).max(1) as f64 }
    }
}

/// A layer whose outputs are mixtures of inputs.
pub trait Mixture {
    /// What output `o` is made of along an axis of space (0, 1, 2), on which there are `input` inputs and `output` outputs.
    fn part(&self, space: usize, o: isize, input: usize, output: usize) -> Part;
}

/// The stages of the forward pass.
pub fn forward(layer: &impl Mixture, g: &Geometry) -> Vec<Stage> {
    vec![Mix::forward(layer, g).stage(Pass::Forward)]
}

/// The stages of the backward pass.
pub fn backward(layer: &impl Mixture, g: &Geometry) -> Vec<Stage> {
    match g.input_gradients[0] {
        Some(_) => vec![Mix::backward(layer, g).stage(Pass::InputGradient(0))],
        None => vec![],
    }
}

/// The kernel of one of these stages.
pub fn prepare(layer: &impl Mixture, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
    match pass {
        Pass::Forward => Box::new(Wide(Mix::forward(layer, g))),
        Pass::InputGradient(0) => Box::new(Wide(Mix::backward(layer, g))),
        _ => unreachable!("bug: a mixture has no {pass:?}"),
    }
}

/// Target points as weighted sums of source points.
struct Mix {
    from: Operand,
    source: Source,
    target: Target,
    rows: Rows,
    axes: [Along; 3],
    /// Whether any sum is divided. Not where sums are added to what is there.
    divides: bool,
}

/// One axis of a mixture: for each target point, the source points and weights.
struct Along {
    lists: Lists<(isize, f32)>,
    divisors: Vec<f32>,
    /// From the first to past the last source point of all, and the most that one target point spans.
    seen: Span,
    most: usize,
}

impl Along {
    fn new(parts: Vec<Part>) -> Along {
        let spans = parts.iter().filter_map(|p| Some((p.inputs.first()?.0, p.inputs.last()?.0 + 1)));
        let spans: Vec<Span> = spans.collect();
        Along {
            seen: spans.iter().copied().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0, 0)),
            most: spans.iter().map(|&s| points(s)).max().unwrap_or(0),
            divisors: parts.iter().map(|p| p.divisor as f32).collect(),
            lists: Lists::new(parts.into_iter().map(|p| p.inputs.into_iter().map(|(i, weight)| (i, weight as f32)))),
        }
    }

    /// From the first to past the last source point of a target point.
    fn span(&self, point: usize) -> Span {
        match *self.lists.of(point) {
            [(first, _), .., (last, _)] => (first, last + 1),
            [(only, _)] => (only, only + 1),
            [] => (0, 0),
        }
    }
}

impl Mix {
    fn forward(layer: &impl Mixture, g: &Geometry) -> Mix {
        let axes = [0, 1, 2].map(|i| Along::new(parts(layer, g, i).collect()));
        Mix::new(
            Operand::Input(0),
            Source::new(&g.inputs[0].layout, channels(&g.region)),
            Target::output(g),
            &g.region,
            axes,
        )
    }

    fn backward(layer: &impl Mixture, g: &Geometry) -> Mix {
        let region = &wanted(g, 0).1;
        let axes = [0, 1, 2].map(|i| {
            let (here, outputs) = (region.range(Axis::SPACE[i]), g.region.range(Axis::SPACE[i]));
            let mut turned: Vec<Part> = (here.0..here.1).map(|_| Part { inputs: vec![], divisor: 1.0 }).collect();
            for (o, part) in (outputs.0..outputs.1).zip(parts(layer, g, i)) {
                for (input, weight) in part.inputs.into_iter().filter(|(i, _)| here.0 <= *i && *i < here.1) {
                    turned[(input - here.0) as usize].inputs.push((o, weight / part.divisor));
                }
            }
            Along::new(turned)
        });
        let source = Source::new(output_gradient(g), channels(region));
        Mix::new(Operand::OutputGradient, source, Target::input_gradient(g, 0), region, axes)
    }

    fn new(from: Operand, source: Source, target: Target, region: &Region, axes: [Along; 3]) -> Mix {
        let read: usize = axes.iter().map(|a| points(a.seen)).product();
        let lines = 1 + read.div_ceil(region.shape().points().max(1));
        let divides = axes.iter().any(|a| a.divisors.iter().any(|&d| d != 1.0));
        debug_assert!(!(divides && target.add), "bug: a sum divided after it was added");
        Mix { from, source, target, rows: Rows::new(region, lines), axes, divides }
    }

    fn stage(&self, pass: Pass) -> Stage {
        let lanes = self.rows.count() / self.rows.heights().max(1) * BLOCK;
        let read: usize = self.axes.iter().map(|a| points(a.seen)).product();
        let taps: usize = (0..3).map(|i| self.axes[i].lists.len()).product();
        Stage {
            pass,
            reads: vec![self.from],
            writes: vec![self.target.operand],
            makes: vec![],
            tiles: self.rows.tiles,
            scratch: self.source.scratch(self.seen()) + self.target.scratch(points(self.rows.columns())),
            work: Work {
                flops: 2.0 * (lanes * taps) as f64,
                bytes: 4.0 * (lanes * read + self.rows.region.len()) as f64,
            },
        }
    }

    /// Most source points that a row of the target looks at.
    fn seen(&self) -> usize {
        self.axes[0].most * self.axes[1].most * points(self.axes[2].seen)
    }

    /// One row of the target from one row of the source after the other.
    #[inline(always)]
    fn row(&self, row: Row, view: View, lines: &mut [Line]) {
        let [along_d, along_h, along_w] = &self.axes;
        let d = (row.d - self.rows.region.start[2]) as usize;
        let h = (row.h - self.rows.region.start[3]) as usize;
        if !self.target.add {
            lines.fill([0.0; BLOCK]);
        }
        for &(d, weight_d) in along_d.lists.of(d) {
            for &(h, weight_h) in along_h.lists.of(h) {
                let source = view.row(d, h, along_w.seen);
                for (w, line) in lines.iter_mut().enumerate() {
                    let mut across = [0f32; BLOCK];
                    for &(w, weight) in along_w.lists.of(w) {
                        add_weighted(&source[(w - along_w.seen.0) as usize], weight, &mut across);
                    }
                    add_weighted(&across, weight_d * weight_h, line);
                }
            }
        }
        if self.divides {
            let divisor = along_d.divisors[d] * along_h.divisors[h];
            for (line, across) in lines.iter_mut().zip(&along_w.divisors) {
                line.iter_mut().for_each(|v| *v /= divisor * across);
            }
        }
    }
}

#[inline(always)]
fn add_weighted(line: &Line, weight: f32, sum: &mut Line) {
    for l in 0..BLOCK {
        sum[l] += line[l] * weight;
    }
}

fn channels(region: &Region) -> Span {
    region.range(Axis::Channel)
}

/// What the outputs of the region are made of along an axis of space.
fn parts(layer: &impl Mixture, g: &Geometry, space: usize) -> impl Iterator<Item = Part> {
    let (outputs, input) = (g.region.range(Axis::SPACE[space]), g.inputs[0].shape.space()[space]);
    let output = g.output.shape.space()[space];
    (outputs.0..outputs.1).map(move |o| layer.part(space, o, input, output))
}

impl Plain for Mix {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (data, columns) = (operands.floats(self.from), self.rows.columns());
        let (seen, filled) = scratch.split_at_mut(self.source.scratch(self.seen()));
        for row in self.rows.of(tile) {
            let d = self.axes[0].span((row.d - self.rows.region.start[2]) as usize);
            let h = self.axes[1].span((row.h - self.rows.region.start[3]) as usize);
            let view = self.source.view(data, row.n, row.block, [d, h, self.axes[2].seen], seen);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                self.row(row, view, self.target.open(operands, row, columns, filled));
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}
