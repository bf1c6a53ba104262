//! Local response norm. Forward keeps what stands under the power; lines are put side by side so that a sum over
//! neighbouring channels is a sum of shifted lines. Twin: `reference/local_response_norm.rs`.

use super::Fast;
use super::lines::{Line, Row, Rows, Source, Span, Target, output_gradient, points, put, wanted};
use super::wide::{Plain, Wide};
use crate::math::{exp, log};
use crate::{BLOCK, Geometry, Kernel, Layout, Make, Mode, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region, layers::LocalResponseNorm};

impl Fast for LocalResponseNorm {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let forward = Forward::new(self, g);
        let len = g.region.len() as f64;
        let mut stage = Stage {
            pass: Pass::Forward,
            reads: vec![Operand::Input(0)],
            writes: vec![Operand::Output],
            makes: vec![],
            tiles: forward.rows.tiles,
            scratch: forward.x.scratch() + forward.target.scratch(points(forward.rows.columns())),
            work: Work { flops: (50 + 2 * self.size) as f64 * len, bytes: 8.0 * len },
        };
        if g.mode == Mode::Train {
            let bytes = Layout::dense(g.region).len * 4;
            stage.writes.push(Operand::Internal(0));
            stage.makes.push(Make::Internal { number: 0, bytes });
            stage.work.bytes += bytes as f64;
        }
        vec![stage]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        if g.input_gradients[0].is_none() {
            return vec![];
        }
        let gradient = InputGradient::new(self, g);
        let len = gradient.rows.region.len() as f64;
        vec![Stage {
            pass: Pass::InputGradient(0),
            reads: vec![Operand::Input(0), Operand::OutputGradient, Operand::Internal(0)],
            writes: vec![Operand::InputGradient(0)],
            makes: vec![],
            tiles: gradient.rows.tiles,
            scratch: gradient.sides.iter().map(|(_, s)| s.scratch()).sum::<usize>()
                + gradient.target.scratch(points(gradient.rows.columns())),
            work: Work { flops: (50 + 2 * self.size) as f64 * len, bytes: 16.0 * len },
        }]
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Wide(Forward::new(self, g))),
            Pass::InputGradient(0) => Box::new(Wide(InputGradient::new(self, g))),
            _ => unreachable!("bug: local response norm has no {pass:?}"),
        }
    }
}

/// A tensor's lines side by side: for a block, all channels from `size - 1` neighbours on.
struct Sides {
    source: Source,
    /// Blocks of the source.
    blocks: usize,
    /// Blocks side by side.
    beside: usize,
    columns: Span,
}

impl Sides {
    /// For blocks of a region, with so many channels before and after each channel.
    fn new(layout: &Layout, region: &Region, (before, after): (usize, usize)) -> Sides {
        let (first, end) = region.range(Axis::Channel);
        let channels = (first - before as isize, end + after as isize);
        Sides {
            source: Source::new(layout, channels),
            blocks: points(channels).div_ceil(BLOCK),
            beside: (BLOCK + before + after).div_ceil(BLOCK),
            columns: region.range(Axis::Width),
        }
    }

    /// Floats of a point's lines side by side.
    fn reach(&self) -> usize {
        self.beside * BLOCK
    }

    /// Floats of scratch: a row of lines, and a row of lines side by side.
    fn scratch(&self) -> usize {
        points(self.columns) * (self.reach() + BLOCK)
    }

    /// Puts the lines of a row side by side: `[point][lane]`. Channels that are not stored are zero.
    #[inline(always)]
    fn fill<'a>(&self, data: &[f32], row: Row, scratch: &'a mut [f32]) -> &'a mut [f32] {
        let (lines, sides) = scratch.split_at_mut(points(self.columns) * BLOCK);
        for j in 0..self.beside {
            let places = sides.chunks_exact_mut(self.reach()).map(|point| &mut point[j * BLOCK..][..BLOCK]);
            if row.block + j < self.blocks {
                let view = self.source.view(data, row.n, row.block + j, row.space(self.columns), lines);
                let lines = view.row(row.d, row.h, self.columns);
                places.zip(lines).for_each(|(place, line)| place.copy_from_slice(line));
            } else {
                places.for_each(|place| place.fill(0.0));
            }
        }
        sides
    }
}

/// The sum over `size` channels from each lane on.
#[inline(always)]
fn sums(lanes: &[f32], size: usize) -> Line {
    let mut sum = [0f32; BLOCK];
    for first in 0..size {
        let shifted = &lanes[first..first + BLOCK];
        (0..BLOCK).for_each(|l| sum[l] += shifted[l]);
    }
    sum
}

/// base^−beta
#[inline(always)]
fn power(base: f32, beta: f32) -> f32 {
    exp(-beta * log(base))
}

/// The forward pass.
struct Forward {
    layer: LocalResponseNorm,
    x: Sides,
    target: Target,
    rows: Rows,
    keep: bool,
}

impl Forward {
    fn new(layer: &LocalResponseNorm, g: &Geometry) -> Forward {
        Forward {
            layer: *layer,
            x: Sides::new(&g.inputs[0].layout, &g.region, layer.neighbours()),
            target: Target::output(g),
            rows: Rows::new(&g.region, 8),
            keep: g.mode == Mode::Train,
        }
    }

    /// One row of the output and of what stands under the power; the latter may be empty.
    #[inline(always)]
    fn row(&self, x: &mut [f32], y: &mut [Line], kept: &mut [Line]) {
        let LocalResponseNorm { size, alpha, beta, k } = self.layer;
        let before = self.layer.neighbours().0;
        let alpha = alpha / size as f32;
        for (i, (lanes, y)) in x.chunks_exact_mut(self.x.reach()).zip(y).enumerate() {
            let mut own = [0f32; BLOCK];
            own.copy_from_slice(&lanes[before..before + BLOCK]);
            lanes.iter_mut().for_each(|v| *v *= *v);
            let base = sums(lanes, size).map(|sum| k + alpha * sum);
            *y = std::array::from_fn(|l| own[l] * power(base[l], beta));
            if let Some(kept) = kept.get_mut(i) {
                *kept = base;
            }
        }
    }
}

impl Plain for Forward {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, columns) = (operands.floats(Operand::Input(0)), self.rows.columns());
        let (sides, filled) = scratch.split_at_mut(self.x.scratch());
        let floats = points(columns) * BLOCK;
        for row in self.rows.of(tile) {
            let x = self.x.fill(x, row, sides);
            // SAFETY: `Rows` gives each row to one tile, of the output and of what is kept.
            unsafe {
                let y = self.target.open(operands, row, columns, filled);
                if self.keep {
                    let range = row.number * floats..(row.number + 1) * floats;
                    let kept = operands.floats_mut(Operand::Internal(0), range);
                    self.row(x, y, kept.as_chunks_mut().0);
                } else {
                    self.row(x, y, &mut []);
                }
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}

/// The gradient of the input.
struct InputGradient {
    layer: LocalResponseNorm,
    /// The input, the output's gradient and what forward kept, at every channel whose sum a channel is in.
    sides: [(Operand, Sides); 3],
    target: Target,
    rows: Rows,
}

impl InputGradient {
    fn new(layer: &LocalResponseNorm, g: &Geometry) -> InputGradient {
        let region: &Region = &wanted(g, 0).1;
        let (before, after) = layer.neighbours();
        let sides = |layout: &Layout| Sides::new(layout, region, (after, before));
        InputGradient {
            layer: *layer,
            sides: [
                (Operand::Input(0), sides(&g.inputs[0].layout)),
                (Operand::OutputGradient, sides(output_gradient(g))),
                (Operand::Internal(0), sides(&Layout::dense(g.region))),
            ],
            target: Target::input_gradient(g, 0),
            rows: Rows::new(region, 12),
        }
    }

    /// One row of the gradient.
    #[inline(always)]
    fn row(&self, x: &[f32], dy: &mut [f32], base: &mut [f32], dx: &mut [Line]) {
        let LocalResponseNorm { size, alpha, beta, .. } = self.layer;
        let first = self.layer.neighbours().1;
        let factor = 2.0 * alpha / size as f32 * beta;
        for ((x, dy), base) in x.iter().zip(dy.iter_mut()).zip(base.iter_mut()) {
            // Nothing was computed where nothing was kept, and no gradient comes from there.
            let under = if *base == 0.0 { 1.0 } else { *base };
            *dy *= power(under, beta);
            *base = *dy * *x / under;
        }
        let reach = self.sides[0].1.reach();
        let points = x.chunks_exact(reach).zip(dy.chunks_exact(reach)).zip(base.chunks_exact(reach));
        for (((x, dy), along), dx) in points.zip(dx) {
            let (x, dy, along) = (&x[first..first + BLOCK], &dy[first..first + BLOCK], sums(along, size));
            put(dx, &std::array::from_fn(|l| dy[l] - factor * x[l] * along[l]), self.target.add);
        }
    }
}

impl Plain for InputGradient {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let columns = self.rows.columns();
        let [x, dy, base] = [0, 1, 2].map(|i| operands.floats(self.sides[i].0));
        let [sides_x, sides_dy, sides_base] = [0, 1, 2].map(|i| &self.sides[i].1);
        let (scratch_x, rest) = scratch.split_at_mut(sides_x.scratch());
        let (scratch_dy, rest) = rest.split_at_mut(sides_dy.scratch());
        let (scratch_base, filled) = rest.split_at_mut(sides_base.scratch());
        for row in self.rows.of(tile) {
            let x = sides_x.fill(x, row, scratch_x);
            let dy = sides_dy.fill(dy, row, scratch_dy);
            let base = sides_base.fill(base, row, scratch_base);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                self.row(x, dy, base, self.target.open(operands, row, columns, filled));
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Numbers, Problem, check, halves};
    use convoy_net::{Kind, Shape};

    #[test]
    fn agrees_with_its_reference() {
        for seed in 0..60 {
            let mut numbers = Numbers::new(seed);
            let shape = Shape([3, 50, 3, 4, 9].map(|most| 1 + numbers.below(most)));
            // Also sizes beyond a block, and beyond all channels.
            let size = [1 + numbers.below(7), 5, 16 + numbers.below(30)][numbers.below(3)];
            let layer = LocalResponseNorm { size, alpha: 0.5, beta: 0.75, k: 1.5 };
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            let problem = Problem::new(Kind::LocalResponseNorm(layer), &[shape]);
            let problem = Problem { seed, image, accumulate, ..problem };
            check(&problem);
            halves(&problem);
        }
    }

    #[test]
    fn evaluation_keeps_nothing() {
        let problem = Problem::new(Kind::LocalResponseNorm(LocalResponseNorm::new(5)), &[Shape([2, 20, 1, 3, 4])]);
        let problem = Problem { mode: Mode::Evaluate, ..problem };
        check(&problem);
        assert_eq!(LocalResponseNorm::new(5).forward(&problem.geometry())[0].makes, []);
    }
}
