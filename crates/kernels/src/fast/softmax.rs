//! Softmax over the channels of each point, as a layer and for the losses that begin with it.
//!
//! Always true
//! - A point's sums run over channels in an order that depends on their number alone.
//!
//! Twin: `reference/softmax.rs`.

use super::Fast;
use super::lines::{Blocks, Line, Row, Rows, Source, Target, each, output_gradient, points, put, wanted};
use super::wide::{Plain, Wide};
use crate::{BLOCK, Geometry, Kernel, Operand, Operands, Pass, Stage, Work, math};
use convoy_net::{Axis, Region, layers::Softmax};

/// The greatest channel of a point. NaN is passed over: it comes back with the sum.
#[inline(always)]
pub fn greatest(x: &Blocks, point: usize, channels: usize) -> f32 {
    let mut most = [f32::NEG_INFINITY; BLOCK];
    for block in 0..channels.div_ceil(BLOCK) {
        let (line, used) = (x.line(block, point), channels - block * BLOCK);
        for l in 0..BLOCK {
            let value = if l < used { line[l] } else { f32::NEG_INFINITY };
            most[l] = if value > most[l] { value } else { most[l] };
        }
    }
    let pick = |a: f32, b: f32| if b > a { b } else { a };
    for half in [8, 4, 2, 1] {
        (0..half).for_each(|l| most[l] = pick(most[l], most[l + half]));
    }
    most[0]
}

/// The sum of e^(x − most) over the channels of a point.
#[inline(always)]
pub fn sum_of_exp(x: &Blocks, point: usize, channels: usize, most: f32) -> f64 {
    let mut sums = [0f32; BLOCK];
    for block in 0..channels.div_ceil(BLOCK) {
        let (line, used) = (x.line(block, point), channels - block * BLOCK);
        for l in 0..BLOCK {
            let e = math::exp(line[l] - most);
            sums[l] += if l < used { e } else { 0.0 };
        }
    }
    // In double precision: a sum just above 1 keeps what its logarithm will be.
    lanes(&sums)
}

/// The sum of a line's lanes, by halves.
#[inline(always)]
pub fn lanes(line: &Line) -> f64 {
    let mut sums = [0f64; 8];
    (0..8).for_each(|l| sums[l] = line[l] as f64 + line[l + 8] as f64);
    for half in [4, 2, 1] {
        (0..half).for_each(|l| sums[l] += sums[l + half]);
    }
    sums[0]
}

/// Greatest channels and one over the sums, for every point of a row: e^(x − most)·inverse are the shares.
#[inline(always)]
pub fn row_of_shares(x: &Blocks, channels: usize, most: &mut [f32], inverse: &mut [f32]) {
    for (point, (most, inverse)) in most.iter_mut().zip(inverse).enumerate() {
        *most = greatest(x, point, channels);
        *inverse = (1.0 / sum_of_exp(x, point, channels, *most)) as f32;
    }
}

impl Fast for Softmax {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let shares = Shares::new(g);
        vec![Stage {
            pass: Pass::Forward,
            reads: vec![Operand::Input(0)],
            writes: vec![Operand::Output],
            makes: vec![],
            tiles: shares.rows.tiles,
            scratch: shares.scratch(),
            work: Work { flops: 30.0 * g.region.len() as f64, bytes: 8.0 * g.region.len() as f64 },
        }]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        if g.input_gradients[0].is_none() {
            return vec![];
        }
        let gradient = Gradient::new(g);
        vec![Stage {
            pass: Pass::InputGradient(0),
            reads: vec![Operand::Input(0), Operand::OutputGradient],
            writes: vec![Operand::InputGradient(0)],
            makes: vec![],
            tiles: gradient.rows.tiles,
            scratch: gradient.scratch(),
            work: Work { flops: 60.0 * g.region.len() as f64, bytes: 12.0 * g.region.len() as f64 },
        }]
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Wide(Shares::new(g))),
            Pass::InputGradient(0) => Box::new(Wide(Gradient::new(g))),
            _ => unreachable!("bug: softmax has no {pass:?}"),
        }
    }
}

/// A region's points, all channels of each at once.
pub fn rows_of_points(region: &Region, lines: usize) -> Rows {
    let blocks = region.size(Axis::Channel).div_ceil(BLOCK);
    Rows::new(&region.with(Axis::Channel, 0, region.size(Axis::Channel).min(1) as isize), lines * blocks)
}

/// Forward.
struct Shares {
    /// All channels, which the sums run over, and those that are computed here.
    all: Source,
    own: Source,
    channels: usize,
    blocks: usize,
    y: Target,
    rows: Rows,
}

impl Shares {
    fn new(g: &Geometry) -> Shares {
        let (channels, layout) = (g.inputs[0].shape.channels(), &g.inputs[0].layout);
        Shares {
            all: Source::new(layout, (0, channels as isize)),
            own: Source::new(layout, g.region.range(Axis::Channel)),
            channels,
            blocks: g.region.size(Axis::Channel).div_ceil(BLOCK),
            y: Target::output(g),
            rows: rows_of_points(&g.region, 2),
        }
    }

    fn scratch(&self) -> usize {
        let width = points(self.rows.columns());
        let all = self.all.scratch(width * self.channels.div_ceil(BLOCK));
        all + self.own.scratch(width) + self.y.scratch(width) + 2 * width
    }
}

impl Plain for Shares {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let x = operands.floats(Operand::Input(0));
        let columns = self.rows.columns();
        let width = points(columns);
        let (all, rest) = scratch.split_at_mut(self.all.scratch(width * self.channels.div_ceil(BLOCK)));
        let (own, rest) = rest.split_at_mut(self.own.scratch(width));
        let (filled, rest) = rest.split_at_mut(self.y.scratch(width));
        let (most, inverse) = rest[..2 * width].split_at_mut(width);
        for row in self.rows.of(tile) {
            row_of_shares(&self.all.blocks(x, row, columns, all), self.channels, most, inverse);
            for block in 0..self.blocks {
                let row = Row { block, ..row };
                let x = self.own.view(x, row.n, block, row.space(columns), own).row(row.d, row.h, columns);
                // SAFETY: `Rows` gives each point to one tile.
                unsafe {
                    let y = self.y.open(operands, row, columns, filled);
                    for (point, (y, x)) in y.iter_mut().zip(x).enumerate() {
                        *y = shares(x, most[point], inverse[point]);
                    }
                    self.y.close(operands, row, columns, filled);
                }
            }
        }
    }
}

/// A line's shares.
#[inline(always)]
pub fn shares(x: &Line, most: f32, inverse: f32) -> Line {
    each(|l| math::exp(x[l] - most) * inverse)
}

/// The gradient of the input: each share times (its gradient − the mean gradient, weighed by the shares).
struct Gradient {
    all: [Source; 2],
    own: [Source; 2],
    channels: usize,
    blocks: usize,
    dx: Target,
    rows: Rows,
}

impl Gradient {
    fn new(g: &Geometry) -> Gradient {
        let region = &wanted(g, 0).1;
        let channels = g.inputs[0].shape.channels();
        let layouts = [&g.inputs[0].layout, output_gradient(g)];
        Gradient {
            all: layouts.map(|layout| Source::new(layout, (0, channels as isize))),
            own: layouts.map(|layout| Source::new(layout, region.range(Axis::Channel))),
            channels,
            blocks: region.size(Axis::Channel).div_ceil(BLOCK),
            dx: Target::input_gradient(g, 0),
            rows: rows_of_points(region, 3),
        }
    }

    fn scratch(&self) -> usize {
        let width = points(self.rows.columns());
        let all: usize = self.all.iter().map(|s| s.scratch(width * self.channels.div_ceil(BLOCK))).sum();
        let own: usize = self.own.iter().map(|s| s.scratch(width)).sum();
        all + own + self.dx.scratch(width) + 3 * width
    }
}

impl Plain for Gradient {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let columns = self.rows.columns();
        let width = points(columns);
        let all = width * self.channels.div_ceil(BLOCK);
        let (all_x, rest) = scratch.split_at_mut(self.all[0].scratch(all));
        let (all_dy, rest) = rest.split_at_mut(self.all[1].scratch(all));
        let (own_x, rest) = rest.split_at_mut(self.own[0].scratch(width));
        let (own_dy, rest) = rest.split_at_mut(self.own[1].scratch(width));
        let (filled, rest) = rest.split_at_mut(self.dx.scratch(width));
        let (most, rest) = rest.split_at_mut(width);
        let (inverse, rest) = rest.split_at_mut(width);
        let mean = &mut rest[..width];
        for row in self.rows.of(tile) {
            let all_x = self.all[0].blocks(x, row, columns, all_x);
            let all_dy = self.all[1].blocks(dy, row, columns, all_dy);
            row_of_shares(&all_x, self.channels, most, inverse);
            for (point, mean) in mean.iter_mut().enumerate() {
                *mean = self.mean(&all_x, &all_dy, point, most[point], inverse[point]);
            }
            for block in 0..self.blocks {
                let row = Row { block, ..row };
                let space = row.space(columns);
                let x = self.own[0].view(x, row.n, block, space, own_x).row(row.d, row.h, columns);
                let dy = self.own[1].view(dy, row.n, block, space, own_dy).row(row.d, row.h, columns);
                // SAFETY: `Rows` gives each point to one tile.
                unsafe {
                    let dx = self.dx.open(operands, row, columns, filled);
                    for (point, (dx, (x, dy))) in dx.iter_mut().zip(x.iter().zip(dy)).enumerate() {
                        let share = shares(x, most[point], inverse[point]);
                        put(dx, &each(|l| share[l] * (dy[l] - mean[point])), self.dx.add);
                    }
                    self.dx.close(operands, row, columns, filled);
                }
            }
        }
    }
}

impl Gradient {
    /// The mean of a point's output gradient, weighed by its shares.
    #[inline(always)]
    fn mean(&self, x: &Blocks, dy: &Blocks, point: usize, most: f32, inverse: f32) -> f32 {
        let mut sums = [0f32; BLOCK];
        for block in 0..self.channels.div_ceil(BLOCK) {
            let (share, dy) = (shares(x.line(block, point), most, inverse), dy.line(block, point));
            let used = self.channels - block * BLOCK;
            // Filler, which is 0, may be far above all channels.
            put(&mut sums, &each(|l| if l < used { share[l] * dy[l] } else { 0.0 }), true);
        }
        lanes(&sums) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite;
    use crate::twin::{Numbers, Problem, check, halves};
    use convoy_net::{Kind, Shape};

    #[test]
    fn agrees_with_its_reference() {
        for seed in 0..40 {
            let mut numbers = Numbers::new(seed);
            let space = [1 + numbers.below(2), 1 + numbers.below(4), 1 + numbers.below(6)];
            let shape = Shape([1 + numbers.below(3), 1 + numbers.below(70), space[0], space[1], space[2]]);
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(3) == 0);
            // Shares are exp and a sum of up to 70 of them, gradients sums of products with them.
            let problem =
                Problem { seed, image, accumulate, tolerance: 5e-6, ..Problem::new(Kind::Softmax(Softmax), &[shape]) };
            check(&problem);
            if seed % 4 == 0 {
                halves(&problem);
            }
        }
    }

    /// Far below zero, where filler would outweigh every channel.
    #[test]
    fn shares_depend_on_differences_alone() {
        let problem = Problem::new(Kind::Softmax(Softmax), &[Shape([1, 5, 1, 1, 3])]);
        let mut values = problem.values();
        let near = problem.fast(&values);
        // A power of two that leaves the values of a problem exact.
        values.inputs[0].data.iter_mut().for_each(|x| *x -= 256.0);
        let far = problem.fast(&values);
        assert_eq!(near.output, far.output);
        assert_eq!(near.gradients, far.gradients);
    }

    #[test]
    fn reference_is_differentiated_rightly() {
        finite::check(&Problem::new(Kind::Softmax(Softmax), &[Shape([2, 5, 1, 2, 3])]));
    }
}
