//! Losses. Forward makes sums over strips of points; backward, when those are folded over the global batch, the gradient of
//! the mean, divided once.
//!
//! Always true
//! - Sums are in double precision, and their bits depend on neither tiles nor the split of samples.
//! - Channels are not cut: every point has all of its own here.
//! - A label that names no class reads nothing, counts for nothing but [`Measured::bad`], and has no gradient.
//!
//! Twin: `reference/loss.rs`.

use super::Fast;
use super::lines::{Blocks, Line, Row, Rows, Source, Span, Target, each, points, put, wanted};
use super::softmax::{greatest, lanes, row_of_shares, rows_of_points, shares, sum_of_exp};
use super::strips::Strips;
use super::wide::{Plain, Wide};
use crate::{BLOCK, Geometry, Kernel, Make, Operand, Operands, Pass, Stage, Work, math};
use convoy_net::{Axis, Loss, Region};

/// Columns of the sums. Dice has two more for each class: overlaps, then sizes.
const LOSS: usize = 0;
const COUNT: usize = 1;
const TOP1: usize = 2;
const TOP5: usize = 3;
const BAD: usize = 4;
const CLASSES: usize = 5;

/// How many times the time of reading it a line takes, about: it sizes the tiles.
const COST: usize = 4;

/// What a loss says of a batch, or of several: counts add up, losses weighed by their counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// The mean; NaN where nothing counts, as in PyTorch.
    pub loss: f64,
    /// What the mean is over: labels that are not ignored, or elements.
    pub count: f64,
    /// Of these, how many the output has right: the label's channel is the greatest (of equal ones the first), or, of
    /// binary cross-entropy, output and target are on the same side. Zero for the mean squared error.
    pub top1: f64,
    /// How many labels are among the five greatest channels.
    pub top5: f64,
    /// Labels that name no class: more than none is an error of the data.
    pub bad: f64,
}

/// What a loss says, from its sums over the global batch.
pub fn measure(loss: &Loss, sums: &[f64]) -> Measured {
    let mean = match loss {
        Loss::Dice => {
            let classes = (sums.len() - CLASSES) / 2;
            let (overlaps, sizes) = sums[CLASSES..].split_at(classes);
            let each = overlaps.iter().zip(sizes).map(|(overlap, size)| 1.0 - (2.0 * overlap + 1.0) / (size + 1.0));
            each.sum::<f64>() / classes as f64
        }
        _ => sums[LOSS] / sums[COUNT],
    };
    Measured { loss: mean, count: sums[COUNT], top1: sums[TOP1], top5: sums[TOP5], bad: sums[BAD] }
}

/// Columns of a loss's sums.
fn columns_of(loss: &Loss, channels: usize) -> usize {
    match loss {
        Loss::Dice => CLASSES + 2 * channels,
        _ => CLASSES,
    }
}

impl Fast for Loss {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let sums = Sums::new(self, g);
        vec![Stage {
            pass: Pass::Forward,
            reads: vec![Operand::Input(0), Operand::Target],
            writes: vec![Operand::Partial(0)],
            makes: vec![Make::Partial {
                number: 0,
                strips: sums.strips.count,
                columns: columns_of(self, sums.channels),
            }],
            tiles: sums.strips.tiles,
            scratch: sums.scratch(),
            work: Work { flops: 40.0 * g.region.len() as f64, bytes: 4.0 * g.region.len() as f64 },
        }]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        if g.input_gradients[0].is_none() {
            return vec![];
        }
        let gradient = Gradient::new(self, g);
        vec![Stage {
            pass: Pass::InputGradient(0),
            reads: vec![Operand::Input(0), Operand::Target, Operand::Sum(0)],
            writes: vec![Operand::InputGradient(0)],
            makes: vec![],
            tiles: gradient.rows.tiles,
            scratch: gradient.scratch(),
            work: Work { flops: 60.0 * g.region.len() as f64, bytes: 8.0 * g.region.len() as f64 },
        }]
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Wide(Sums::new(self, g))),
            Pass::InputGradient(0) => Box::new(Wide(Gradient::new(self, g))),
            _ => unreachable!("bug: a loss has no {pass:?}"),
        }
    }
}

/// What targets say, found by row.
#[derive(Clone, Debug)]
struct Targets {
    /// The part of the output whose targets are here.
    region: Region,
}

impl Targets {
    /// Labels of a row.
    #[inline(always)]
    fn labels<'a>(&self, targets: &'a [f32], row: Row, columns: Span) -> &'a [f32] {
        self.dense(targets, row, 0, 1, columns)
    }

    /// Values of a row of one channel.
    #[inline(always)]
    fn values<'a>(&self, targets: &'a [f32], row: Row, channel: usize, columns: Span) -> &'a [f32] {
        self.dense(targets, row, channel, self.region.size(Axis::Channel), columns)
    }

    #[inline(always)]
    fn dense<'a>(&self, targets: &'a [f32], row: Row, c: usize, channels: usize, columns: Span) -> &'a [f32] {
        let [_, _, depths, heights, width] = self.region.shape().0;
        let [n, _, d, h, w] = self.region.start;
        let sample = (row.n - n) as usize * channels + c;
        let at = ((sample * depths + (row.d - d) as usize) * heights + (row.h - h) as usize) * width;
        &targets[at + (columns.0 - w) as usize..][..points(columns)]
    }

    /// Values of a row of one block as lines; lanes past the last channel are zero.
    #[inline(always)]
    fn lines<'a>(&self, targets: &[f32], row: Row, columns: Span, scratch: &'a mut [f32]) -> &'a [Line] {
        let scratch = &mut scratch[..points(columns) * BLOCK];
        let lines = scratch.as_chunks_mut::<BLOCK>().0;
        let channels = self.region.size(Axis::Channel);
        for l in 0..BLOCK {
            let channel = row.block * BLOCK + l;
            if channel < channels {
                let values = self.values(targets, row, channel, columns);
                lines.iter_mut().zip(values).for_each(|(line, &value)| line[l] = value);
            } else {
                lines.iter_mut().for_each(|line| line[l] = 0.0);
            }
        }
        lines
    }
}

/// What a label asks for.
enum Label {
    Ignored,
    Bad,
    Class(usize),
}

#[inline(always)]
fn read(label: f32, classes: usize, ignore: Option<u32>) -> Label {
    if ignore.is_some_and(|ignore| label == ignore as f32) {
        Label::Ignored
    } else if label >= 0.0 && label < classes as f32 && label.trunc() == label {
        Label::Class(label as usize)
    } else {
        Label::Bad
    }
}

/// How many channels come before `class`, if sorted with the greatest first and of equal ones the first first. NaN comes
/// before everything.
#[inline(always)]
fn before(x: &Blocks, point: usize, channels: usize, class: usize) -> usize {
    let own = x.line(class / BLOCK, point)[class % BLOCK];
    if own.is_nan() {
        return usize::MAX;
    }
    let mut counts = [0u32; BLOCK];
    for block in 0..channels.div_ceil(BLOCK) {
        let line = x.line(block, point);
        for l in 0..BLOCK {
            let channel = block * BLOCK + l;
            let above = line[l].is_nan() | (line[l] > own) | (line[l] == own) & (channel < class);
            counts[l] += (above & (channel < channels)) as u32;
        }
    }
    counts.iter().sum::<u32>() as usize
}

/// Forward: sums over strips.
struct Sums {
    loss: Loss,
    x: Source,
    targets: Targets,
    channels: usize,
    strips: Strips,
}

impl Sums {
    fn new(loss: &Loss, g: &Geometry) -> Sums {
        let channels = g.region.size(Axis::Channel);
        let one = channels.min(1) as isize;
        Sums {
            loss: *loss,
            x: Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel)),
            targets: Targets { region: g.region },
            channels,
            strips: Strips::new(g.output.shape, &g.region.with(Axis::Channel, 0, one), COST * channels.div_ceil(BLOCK)),
        }
    }

    fn scratch(&self) -> usize {
        let width = points(self.strips.columns());
        let lines = if self.loss.takes_labels() { 0 } else { width * BLOCK };
        self.x.scratch(width * self.channels.div_ceil(BLOCK)) + lines
    }
}

impl Plain for Sums {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, targets) = (operands.floats(Operand::Input(0)), operands.floats(Operand::Target));
        let columns = self.strips.columns();
        let blocks = self.channels.div_ceil(BLOCK);
        let (seen, lines) = scratch.split_at_mut(self.x.scratch(points(columns) * blocks));
        for (strip, _) in self.strips.of(tile) {
            let place = self.strips.place(strip, columns_of(&self.loss, self.channels));
            // SAFETY: a strip is one tile's.
            let sums = unsafe { operands.doubles_mut(Operand::Partial(0), place) };
            sums.fill(0.0);
            for (d, h) in self.strips.rows(strip) {
                let row = Row { n: strip.n, d, h, block: 0, number: 0 };
                let x = self.x.blocks(x, row, columns, seen);
                match self.loss {
                    Loss::CrossEntropy { label_smoothing, ignore } => {
                        let labels = self.targets.labels(targets, row, columns);
                        cross_entropy(&x, labels, self.channels, label_smoothing, ignore, sums);
                    }
                    Loss::Dice => dice(&x, self.targets.labels(targets, row, columns), self.channels, sums),
                    Loss::BinaryCrossEntropy | Loss::MeanSquaredError => {
                        for block in 0..blocks {
                            let targets = self.targets.lines(targets, Row { block, ..row }, columns, lines);
                            let used = self.channels - block * BLOCK;
                            match self.loss {
                                Loss::MeanSquaredError => add_up((&x, block), targets, used, sums, squared, |_, _| 0.0),
                                _ => add_up((&x, block), targets, used, sums, binary, same_side),
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Counts a label that names a class.
#[inline(always)]
fn count(x: &Blocks, point: usize, channels: usize, class: usize, sums: &mut [f64]) {
    let before = before(x, point, channels, class);
    sums[COUNT] += 1.0;
    sums[TOP1] += (before < 1) as u32 as f64;
    sums[TOP5] += (before < 5) as u32 as f64;
}

/// Adds a row of points.
#[inline(always)]
fn cross_entropy(x: &Blocks, labels: &[f32], channels: usize, smoothing: f32, ignore: Option<u32>, sums: &mut [f64]) {
    for (point, &label) in labels.iter().enumerate() {
        let class = match read(label, channels, ignore) {
            Label::Ignored => continue,
            Label::Bad => {
                sums[BAD] += 1.0;
                continue;
            }
            Label::Class(class) => class,
        };
        count(x, point, channels, class, sums);
        let most = greatest(x, point, channels);
        // The logarithm of a share is x − most − log of the sum: finite even where the share is not.
        let log = math::log64(sum_of_exp(x, point, channels, most));
        let own = log - (x.line(class / BLOCK, point)[class % BLOCK] as f64 - most as f64);
        sums[LOSS] += own;
        if smoothing != 0.0 {
            let all = log - differences(x, point, channels, most) / channels as f64;
            sums[LOSS] += smoothing as f64 * (all - own);
        }
    }
}

/// The sum of x − most over the channels of a point.
#[inline(always)]
fn differences(x: &Blocks, point: usize, channels: usize, most: f32) -> f64 {
    let mut sums = [0f64; BLOCK];
    for block in 0..channels.div_ceil(BLOCK) {
        let (line, used) = (x.line(block, point), channels - block * BLOCK);
        for l in 0..BLOCK {
            sums[l] += if l < used { line[l] as f64 - most as f64 } else { 0.0 };
        }
    }
    sums.iter().sum()
}

/// Adds a row of points.
#[inline(always)]
fn dice(x: &Blocks, labels: &[f32], channels: usize, sums: &mut [f64]) {
    for (point, &label) in labels.iter().enumerate() {
        let Label::Class(class) = read(label, channels, None) else {
            sums[BAD] += 1.0;
            continue;
        };
        count(x, point, channels, class, sums);
        let most = greatest(x, point, channels);
        let inverse = (1.0 / sum_of_exp(x, point, channels, most)) as f32;
        let (overlaps, sizes) = sums[CLASSES..].split_at_mut(channels);
        for (block, sizes) in sizes.chunks_mut(BLOCK).enumerate() {
            let share = shares(x.line(block, point), most, inverse);
            sizes.iter_mut().zip(share).for_each(|(size, share)| *size += share as f64);
        }
        let share = shares(x.line(class / BLOCK, point), most, inverse)[class % BLOCK];
        overlaps[class] += share as f64;
        sizes[class] += 1.0;
    }
}

/// Adds a row of one block of elements, of which `loss` says the loss and `right` whether it counts as right (1) or not (0).
#[inline(always)]
fn add_up(
    (x, block): (&Blocks, usize),
    targets: &[Line],
    used: usize,
    sums: &mut [f64],
    loss: impl Fn(f32, f32) -> f32,
    right: impl Fn(f32, f32) -> f32,
) {
    let (mut losses, mut rights) = ([0f64; BLOCK], [0f64; BLOCK]);
    for (point, target) in targets.iter().enumerate() {
        let x = x.line(block, point);
        let (loss, right) = (each(|l| loss(x[l], target[l])), each(|l| right(x[l], target[l])));
        (0..BLOCK).for_each(|l| losses[l] += loss[l] as f64);
        (0..BLOCK).for_each(|l| rights[l] += right[l] as f64);
    }
    let used = used.min(BLOCK);
    sums[LOSS] += losses[..used].iter().sum::<f64>();
    sums[TOP1] += rights[..used].iter().sum::<f64>();
    sums[COUNT] += (used * targets.len()) as f64;
}

#[inline(always)]
fn squared(x: f32, target: f32) -> f32 {
    (x - target) * (x - target)
}

/// −log of the share that a sigmoid gives the target, without overflow: the logarithm is the same for x and −x.
#[inline(always)]
fn binary(x: f32, target: f32) -> f32 {
    let above = if x > 0.0 { x } else { 0.0 };
    (above - x * target) + math::log1p_unit(math::exp(-x.abs()))
}

/// Whether output and target are on the same side.
#[inline(always)]
fn same_side(x: f32, target: f32) -> f32 {
    let (x, target) = (if x > 0.0 { 1.0 } else { 0.0 }, if target > 0.5 { 1.0 } else { 0.0 });
    if x == target { 1.0 } else { 0.0 }
}

/// Backward.
struct Gradient {
    loss: Loss,
    x: Source,
    targets: Targets,
    dx: Target,
    channels: usize,
    rows: Rows,
}

impl Gradient {
    fn new(loss: &Loss, g: &Geometry) -> Gradient {
        let region = &wanted(g, 0).1;
        assert!(g.region.contains(region), "bug: no targets for {region}, only for {}", g.region);
        Gradient {
            loss: *loss,
            x: Source::new(&g.inputs[0].layout, region.range(Axis::Channel)),
            targets: Targets { region: g.region },
            dx: Target::input_gradient(g, 0),
            channels: region.size(Axis::Channel),
            rows: rows_of_points(region, 2 * COST),
        }
    }

    fn blocks(&self) -> usize {
        self.channels.div_ceil(BLOCK)
    }

    fn scratch(&self) -> usize {
        let width = points(self.rows.columns());
        let own = match self.loss {
            Loss::CrossEntropy { .. } => 2 * width,
            Loss::Dice => 3 * width + 2 * self.blocks() * BLOCK,
            Loss::BinaryCrossEntropy | Loss::MeanSquaredError => width * BLOCK,
        };
        self.x.scratch(width * self.blocks()) + self.dx.scratch(width) + own
    }
}

impl Plain for Gradient {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, targets) = (operands.floats(Operand::Input(0)), operands.floats(Operand::Target));
        let sums = operands.doubles(Operand::Sum(0));
        let columns = self.rows.columns();
        let width = points(columns);
        let (seen, rest) = scratch.split_at_mut(self.x.scratch(width * self.blocks()));
        let (filled, rest) = rest.split_at_mut(self.dx.scratch(width));
        // Nothing counts: nothing has a gradient.
        let scale = if sums[COUNT] > 0.0 { (1.0 / sums[COUNT]) as f32 } else { 0.0 };
        match self.loss {
            Loss::CrossEntropy { label_smoothing, ignore } => {
                let (most, rest) = rest.split_at_mut(width);
                let inverse = &mut rest[..width];
                let spread = label_smoothing / self.channels as f32;
                for row in self.rows.of(tile) {
                    let x = self.x.blocks(x, row, columns, seen);
                    let labels = self.targets.labels(targets, row, columns);
                    row_of_shares(&x, self.channels, most, inverse);
                    self.write(operands, row, filled, |block, point| {
                        let Label::Class(class) = read(labels[point], self.channels, ignore) else {
                            return [0.0; BLOCK];
                        };
                        let share = shares(x.line(block, point), most[point], inverse[point]);
                        let mut line = each(|l| (share[l] - spread) * scale);
                        if class / BLOCK == block {
                            line[class % BLOCK] -= (1.0 - label_smoothing) * scale;
                        }
                        line
                    });
                }
            }
            Loss::Dice => {
                let (coefficients, rest) = rest.split_at_mut(2 * self.blocks() * BLOCK);
                let (own, all) = coefficients.as_chunks_mut::<BLOCK>().0.split_at_mut(self.blocks());
                dice_coefficients(&sums[CLASSES..], own, all);
                let (most, rest) = rest.split_at_mut(width);
                let (inverse, rest) = rest.split_at_mut(width);
                let mean = &mut rest[..width];
                for row in self.rows.of(tile) {
                    let x = self.x.blocks(x, row, columns, seen);
                    let labels = self.targets.labels(targets, row, columns);
                    row_of_shares(&x, self.channels, most, inverse);
                    // The gradient of a point's shares: that of the sums, and of the overlap for its label.
                    for (point, mean) in mean.iter_mut().enumerate() {
                        let Label::Class(class) = read(labels[point], self.channels, None) else { continue };
                        let mut sums = [0f32; BLOCK];
                        for (block, all) in all.iter().enumerate() {
                            let share = shares(x.line(block, point), most[point], inverse[point]);
                            let used = self.channels - block * BLOCK;
                            // Filler, which is 0, may be far above all channels.
                            let line = each(|l| if l < used { share[l] * all[l] } else { 0.0 });
                            put(&mut sums, &line, true);
                            if class / BLOCK == block {
                                sums[class % BLOCK] -= share[class % BLOCK] * own[block][class % BLOCK];
                            }
                        }
                        *mean = lanes(&sums) as f32;
                    }
                    self.write(operands, row, filled, |block, point| {
                        let Label::Class(class) = read(labels[point], self.channels, None) else {
                            return [0.0; BLOCK];
                        };
                        let share = shares(x.line(block, point), most[point], inverse[point]);
                        let mut line = each(|l| share[l] * (all[block][l] - mean[point]));
                        if class / BLOCK == block {
                            line[class % BLOCK] -= share[class % BLOCK] * own[block][class % BLOCK];
                        }
                        line
                    });
                }
            }
            Loss::BinaryCrossEntropy => {
                let slope = |x: f32, target: f32| (math::sigmoid(x) - target) * scale;
                self.elements(tile, operands, (seen, filled, rest), slope);
            }
            Loss::MeanSquaredError => {
                let slope = |x: f32, target: f32| (x - target) * (2.0 * scale);
                self.elements(tile, operands, (seen, filled, rest), slope);
            }
        }
    }
}

impl Gradient {
    /// Writes a row, all blocks of it: `line(block, point)`.
    #[inline(always)]
    fn write(&self, operands: &Operands, row: Row, filled: &mut [f32], line: impl Fn(usize, usize) -> Line) {
        let columns = self.rows.columns();
        for block in 0..self.blocks() {
            let row = Row { block, ..row };
            // SAFETY: `Rows` gives each point to one tile.
            unsafe {
                let dx = self.dx.open(operands, row, columns, filled);
                dx.iter_mut().enumerate().for_each(|(point, dx)| put(dx, &line(block, point), self.dx.add));
                self.dx.close(operands, row, columns, filled);
            }
        }
    }

    /// A tile of a loss that sees every element by itself. Scratch for what is read, written and aimed at.
    #[inline(always)]
    fn elements(
        &self,
        tile: usize,
        operands: &Operands,
        (seen, filled, lines): (&mut [f32], &mut [f32], &mut [f32]),
        slope: impl Fn(f32, f32) -> f32,
    ) {
        let (x, targets) = (operands.floats(Operand::Input(0)), operands.floats(Operand::Target));
        let columns = self.rows.columns();
        for row in self.rows.of(tile) {
            let x = self.x.blocks(x, row, columns, seen);
            for block in 0..self.blocks() {
                let row = Row { block, ..row };
                let targets = self.targets.lines(targets, row, columns, lines);
                // SAFETY: `Rows` gives each point to one tile.
                unsafe {
                    let dx = self.dx.open(operands, row, columns, filled);
                    for (point, (dx, target)) in dx.iter_mut().zip(targets).enumerate() {
                        let x = x.line(block, point);
                        put(dx, &each(|l| slope(x[l], target[l])), self.dx.add);
                    }
                    self.dx.close(operands, row, columns, filled);
                }
            }
        }
    }
}

/// From overlaps and sizes: the gradients of each class's shares where it is the label (to be subtracted) and everywhere.
fn dice_coefficients(sums: &[f64], own: &mut [Line], all: &mut [Line]) {
    let classes = sums.len() / 2;
    let (overlaps, sizes) = sums.split_at(classes);
    own.iter_mut().chain(all.iter_mut()).for_each(|line| line.fill(0.0));
    for c in 0..classes {
        let size = sizes[c] + 1.0;
        own[c / BLOCK][c % BLOCK] = (2.0 / size / classes as f64) as f32;
        all[c / BLOCK][c % BLOCK] = ((2.0 * overlaps[c] + 1.0) / (size * size) / classes as f64) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{Array, finite, loss::judge};
    use crate::twin::{self, Memory, Numbers, run_all};
    use convoy_net::{AXES, Kind, Shape, layers::Activation};
    use std::collections::HashMap;

    /// A loss to judge: an output and its target.
    #[derive(Clone, Debug)]
    struct Problem {
        loss: Loss,
        x: Array,
        target: Vec<f64>,
        image: bool,
        accumulate: bool,
    }

    /// What came out: the sums, and the gradient where it was asked for.
    struct Rank {
        memory: HashMap<Operand, Memory>,
        geometry: Geometry,
    }

    impl Problem {
        fn new(loss: Loss, shape: Shape, seed: u64) -> Problem {
            let mut numbers = Numbers::new(seed);
            let x = Array { shape, data: (0..shape.len()).map(|_| 4.0 * numbers.value(false)).collect() };
            let target = match loss {
                Loss::CrossEntropy { ignore, .. } => {
                    let labels = (0..shape.len() / shape.channels()).map(|_| match ignore {
                        Some(ignore) if numbers.below(4) == 0 => ignore as f64,
                        _ => numbers.below(shape.channels()) as f64,
                    });
                    labels.collect()
                }
                Loss::Dice => {
                    (0..shape.len() / shape.channels()).map(|_| numbers.below(shape.channels()) as f64).collect()
                }
                Loss::BinaryCrossEntropy => (0..shape.len()).map(|_| numbers.below(2) as f64).collect(),
                Loss::MeanSquaredError => (0..shape.len()).map(|_| numbers.value(false)).collect(),
            };
            Problem { loss, x, target, image: numbers.below(3) == 0, accumulate: numbers.below(3) == 0 }
        }

        /// A rank that owns `region` and has done the forward pass.
        fn forward(&self, region: Region) -> Rank {
            let pointwise = Kind::Activation(Activation::Relu);
            let mut problem = twin::Problem::new(pointwise, &[self.x.shape]);
            (problem.image, problem.accumulate) = (self.image, self.accumulate);
            let geometry = problem.part(region);
            let mut memory = HashMap::new();
            memory.insert(Operand::Input(0), twin::store(&self.x, &geometry.inputs[0].layout, [false; AXES]));
            let labels = self.loss.takes_labels();
            let of = if labels { region.with(Axis::Channel, 0, 1) } else { region };
            let mut shape = self.x.shape;
            shape.0[1] = if labels { 1 } else { shape.0[1] };
            let target = Array { shape, data: self.target.clone() };
            let mut dense = Memory::poisoned(of.len());
            for (at, value) in Array::zeros(of.shape()).indices().zip(dense.slice_mut()) {
                *value = target[std::array::from_fn(|a| at[a] + of.start[a] as usize)] as f32;
            }
            memory.insert(Operand::Target, dense);
            run_all(&mut memory, &self.loss.forward(&geometry), &geometry, 5, &|pass| {
                self.loss.prepare(pass, &geometry)
            });
            Rank { memory, geometry }
        }

        /// The gradient of a rank's part, given the sums of all.
        fn backward(&self, rank: &mut Rank, sums: &[f64]) -> Array {
            let Rank { memory, geometry } = rank;
            let slot = memory.get_mut(&Operand::Sum(0)).expect("forward made it").slot();
            // SAFETY: the memory holds these doubles, aligned to 64 bytes.
            unsafe { std::slice::from_raw_parts_mut(slot.data as *mut f64, slot.bytes / 8) }.copy_from_slice(sums);
            let (layout, region) = geometry.input_gradients[0].clone().expect("training");
            let before = if self.accumulate { 0.5 } else { f32::NAN };
            memory.insert(Operand::InputGradient(0), twin::held(&layout, &region, before));
            run_all(memory, &self.loss.backward(geometry), geometry, 6, &|pass| self.loss.prepare(pass, geometry));
            let gradient = &memory[&Operand::InputGradient(0)];
            let mut found = twin::fetch(gradient, &layout, &region);
            twin::outside_untouched(gradient, &layout, &region, before, "gradient of a loss");
            if self.accumulate {
                found.data.iter_mut().for_each(|v| *v -= 0.5);
            }
            found
        }

        /// Fast and reference agree.
        fn check(&self) {
            let mut rank = self.forward(Region::whole(self.x.shape));
            let sums = rank.sums();
            let gradient = self.backward(&mut rank, &sums);
            let (wanted, wanted_gradient) = judge(&self.loss, &self.x, &self.target);
            self.agree(&measure(&self.loss, &sums), &wanted);
            self.near(&gradient.data, &wanted_gradient.data);
        }

        fn agree(&self, found: &Measured, wanted: &Measured) {
            // Each term is a few roundings of numbers up to 10, the sum is exact beside it.
            let near = (found.loss - wanted.loss).abs() <= 3e-6 * wanted.loss.abs().max(0.1);
            assert!(near || found.loss.is_nan() && wanted.loss.is_nan(), "{found:?}, not {wanted:?}: {self:#?}");
            let counts = |m: &Measured| [m.count, m.top1, m.top5, m.bad];
            assert_eq!(counts(found), counts(wanted), "{self:#?}");
        }

        fn near(&self, found: &[f64], wanted: &[f64]) {
            assert_eq!(found.len(), wanted.len());
            let scale = wanted.iter().fold(0f64, |m, v| m.max(v.abs()));
            // Shares are an exponential and a sum, and are subtracted from 1, whose rounding counts; where gradients are added
            // to 0.5, its rounding.
            let limit = 4e-6 * scale + 1.2e-7 / wanted.len() as f64 * self.x.shape.channels() as f64;
            let limit = limit + if self.accumulate { 6e-8 } else { 0.0 };
            for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
                assert!((a - b).abs() <= limit, "element {i}: {a}, not {b}: {self:#?}");
            }
        }
    }

    impl Rank {
        fn sums(&mut self) -> Vec<f64> {
            let slot = self.memory.get_mut(&Operand::Sum(0)).expect("forward made it").slot();
            // SAFETY: the memory holds these doubles, aligned to 64 bytes.
            unsafe { std::slice::from_raw_parts(slot.data as *const f64, slot.bytes / 8) }.to_vec()
        }
    }

    const ALL: [Loss; 7] = [
        Loss::CrossEntropy { label_smoothing: 0.0, ignore: None },
        Loss::CrossEntropy { label_smoothing: 0.1, ignore: None },
        Loss::CrossEntropy { label_smoothing: 0.0, ignore: Some(255) },
        Loss::CrossEntropy { label_smoothing: 0.2, ignore: Some(0) },
        Loss::BinaryCrossEntropy,
        Loss::MeanSquaredError,
        Loss::Dice,
    ];

    fn shape(seed: u64) -> Shape {
        let mut numbers = Numbers::new(seed);
        let channels = [1, 2, 10, 16, 21, 70][numbers.below(6)];
        match numbers.below(3) {
            0 => Shape([1 + numbers.below(6), channels, 1, 1, 1]),
            _ => Shape([
                1 + numbers.below(3),
                channels,
                1 + numbers.below(2),
                1 + numbers.below(6),
                1 + numbers.below(9),
            ]),
        }
    }

    #[test]
    fn agree_with_their_references() {
        for (i, loss) in ALL.into_iter().enumerate() {
            for seed in 0..15 {
                let seed = 50 * i as u64 + seed;
                Problem::new(loss, shape(seed), seed).check();
            }
        }
    }

    #[test]
    fn references_are_differentiated_rightly() {
        for (i, loss) in ALL.into_iter().enumerate() {
            for shape in [Shape([3, 5, 1, 1, 1]), Shape([2, 3, 1, 2, 3]), Shape([1, 6, 2, 1, 2])] {
                let problem = Problem::new(loss, shape, i as u64);
                let (measured, gradient) = judge(&loss, &problem.x, &problem.target);
                // Times the count: the mean's slopes are small, and so would be their errors.
                let total: Vec<f64> = gradient.data.iter().map(|g| g * measured.count).collect();
                let differences = finite::gradient(&problem.x.data, |data| {
                    let x = Array { shape, data: data.to_vec() };
                    judge(&loss, &x, &problem.target).0.loss * measured.count
                });
                finite::agree(&format!("{problem:?}"), &total, &differences);
            }
        }
    }

    /// Parts of a batch, added up as ranks do: cut by samples the same bits, by space the same within rounding.
    #[test]
    fn parts_add_up_to_the_whole() {
        for (i, loss) in ALL.into_iter().enumerate() {
            let shape = Shape([8, 3, 1, 6, 40]);
            let problem = Problem { image: false, ..Problem::new(loss, shape, 7 + i as u64) };
            let whole = Region::whole(shape);
            let mut one = problem.forward(whole);
            let sums = one.sums();
            let gradient = problem.backward(&mut one, &sums);
            for (axis, middle) in [(Axis::Sample, 4), (Axis::Height, 3), (Axis::Width, 13)] {
                let halves = [(0, middle), (middle, shape.along(axis) as isize)];
                let mut ranks = halves.map(|(start, end)| problem.forward(whole.with(axis, start, end)));
                let parts = ranks.each_mut().map(Rank::sums);
                let total: Vec<f64> = parts[0].iter().zip(&parts[1]).map(|(a, b)| a + b).collect();
                if axis == Axis::Sample {
                    assert_eq!(total, sums, "{loss:?}");
                }
                problem.agree(&measure(&loss, &total), &measure(&loss, &sums));
                for rank in &mut ranks {
                    let region = rank.geometry.region;
                    let found = problem.backward(rank, &sums);
                    for at in found.indices() {
                        let there = std::array::from_fn(|a| at[a] + region.start[a] as usize);
                        assert_eq!(found[at].to_bits(), gradient[there].to_bits(), "{loss:?} at {there:?}");
                    }
                }
            }
        }
    }

    /// One output by hand.
    fn by_hand(loss: Loss, channels: usize, x: &[f64], target: &[f64]) -> Measured {
        let shape = Shape([1, channels, 1, 1, x.len() / channels]);
        let x = Array { shape, data: x.to_vec() };
        let problem = Problem { loss, x, target: target.to_vec(), image: false, accumulate: false };
        problem.check();
        measure(&loss, &problem.forward(Region::whole(shape)).sums())
    }

    #[test]
    fn values_by_hand() {
        let near = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() < 1e-6 * wanted.max(1e-3), "{found}, not {wanted}")
        };
        let plain = Loss::default();
        let logs = [1f64, 2.0, 5.0].map(|v| v.ln() as f32 as f64);
        near(by_hand(plain, 3, &logs, &[2.0]).loss, -(5f64 / 8.0).ln());
        let smooth = Loss::CrossEntropy { label_smoothing: 0.3, ignore: None };
        let all = -(0.125f64.ln() + 0.25f64.ln() + 0.625f64.ln()) / 3.0;
        near(by_hand(smooth, 3, &logs, &[2.0]).loss, -0.7 * 0.625f64.ln() + 0.3 * all);
        // Logits so far apart that shares are 0 and 1: the loss is still their difference.
        near(by_hand(plain, 2, &[300.0, -300.0], &[1.0]).loss, 600.0);
        near(by_hand(plain, 2, &[20.0, 0.0], &[0.0]).loss, (-20f64).exp().ln_1p());
        let binary = |x: f64, t: f64| by_hand(Loss::BinaryCrossEntropy, 1, &[x], &[t]).loss;
        near(binary(0.0, 1.0), 2f64.ln());
        near(binary(100.0, 0.0), 100.0);
        near(binary(-100.0, 0.0), 0.0);
        near(binary(-3.0, 0.25), 3.0 * 0.25 + (-3f64).exp().ln_1p());
        near(by_hand(Loss::MeanSquaredError, 1, &[1.0, 2.0], &[0.0, 4.0]).loss, 2.5);
        // Two points, shares of a half each: overlaps ½, sizes 1 + 1.
        near(by_hand(Loss::Dice, 2, &[0.0; 4], &[0.0, 1.0]).loss, 1.0 - 2.0 / 3.0);
    }

    #[test]
    fn the_first_of_equal_channels_is_greatest() {
        let of = |label: f64| {
            let m = by_hand(Loss::default(), 7, &[1.0, 1.0, 0.0, 1.0, 0.0, 0.0, -1.0], &[label]);
            (m.top1, m.top5)
        };
        let found = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(of);
        assert_eq!(found.map(|f| f.0), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(found.map(|f| f.1), [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(of(9.0), (0.0, 0.0));
    }

    /// Labels that name no class are counted and otherwise as if they were not there.
    #[test]
    fn bad_labels_are_counted() {
        for loss in [Loss::default(), Loss::Dice, Loss::CrossEntropy { label_smoothing: 0.1, ignore: Some(2) }] {
            let x: Vec<f64> = (0..12).map(|i| (i * 7 % 5) as f64 / 4.0).collect();
            for bad in [-1.0, 3.0, 1e9, 0.5, f64::NAN, f64::INFINITY, -255.0] {
                let with = by_hand(loss, 3, &x, &[1.0, bad, 0.0, 1.0]);
                assert_eq!((with.count, with.bad), (3.0, 1.0), "{loss:?}, {bad}");
                assert!(with.loss.is_finite());
            }
        }
    }

    #[test]
    fn nothing_to_count() {
        let loss = Loss::CrossEntropy { label_smoothing: 0.0, ignore: Some(1) };
        let measured = by_hand(loss, 2, &[1.0, 2.0, 3.0, 4.0], &[1.0, 1.0]);
        assert!(measured.loss.is_nan() && measured.count == 0.0);
    }

    /// A network that has gone wrong must not look right.
    #[test]
    fn not_a_number_is_seen() {
        for loss in ALL {
            let shape = Shape([1, 4, 1, 1, 3]);
            let mut problem = Problem { image: false, accumulate: false, ..Problem::new(loss, shape, 3) };
            problem.target.iter_mut().for_each(|t| *t = 1.0);
            problem.x.data.iter_mut().for_each(|x| *x = f64::NAN);
            let mut rank = problem.forward(Region::whole(shape));
            let sums = rank.sums();
            let measured = measure(&loss, &sums);
            assert!(measured.loss.is_nan(), "{loss:?}");
            assert!(problem.backward(&mut rank, &sums).data.iter().all(|g| g.is_nan()), "{loss:?}");
            if loss.takes_labels() {
                assert_eq!((measured.top1, measured.top5), (0.0, 0.0));
            }
        }
    }
}
