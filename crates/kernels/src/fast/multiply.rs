//! Multiplication, element by element or with one factor for all of space. The gradient of such a factor is a sum over
//! space, in double precision and in the order of memory. Twin: `reference/multiply.rs`.

use super::Fast;
use super::lines::{Line, Row, Rows, Source, Span, Target, View, output_gradient, points, put, wanted};
use super::wide::{Plain, Wide};
use crate::{BLOCK, Geometry, Kernel, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region, layers::Multiply};

/// Whether the second input has one point for all of space.
fn broadcast(g: &Geometry) -> bool {
    g.inputs[0].shape.space() != g.inputs[1].shape.space()
}

impl Fast for Multiply {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        vec![Product::forward(g).stage(Pass::Forward)]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        let wanted = (0..2).filter(|&i| g.input_gradients[i].is_some());
        let stage = |i| match i == 1 && broadcast(g) {
            true => FactorGradient::new(g).stage(),
            false => Product::backward(g, i).stage(Pass::InputGradient(i)),
        };
        wanted.map(stage).collect()
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Wide(Product::forward(g))),
            Pass::InputGradient(1) if broadcast(g) => Box::new(Wide(FactorGradient::new(g))),
            Pass::InputGradient(i @ 0..=1) => Box::new(Wide(Product::backward(g, i))),
            _ => unreachable!("bug: multiplication has no {pass:?}"),
        }
    }
}

/// A tensor times another: the output, or the gradient of an input.
struct Product {
    first: (Operand, Source),
    second: (Operand, Source),
    /// Whether the second has one point for all of space.
    broadcast: bool,
    target: Target,
    rows: Rows,
}

impl Product {
    fn forward(g: &Geometry) -> Product {
        let input = |i: usize| (Operand::Input(i), Source::new(&g.inputs[i].layout, g.region.range(Axis::Channel)));
        let rows = Rows::new(&g.region, 3);
        Product { first: input(0), second: input(1), broadcast: broadcast(g), target: Target::output(g), rows }
    }

    fn backward(g: &Geometry, input: usize) -> Product {
        let region: &Region = &wanted(g, input).1;
        let channels = region.range(Axis::Channel);
        let other = 1 - input;
        Product {
            first: (Operand::OutputGradient, Source::new(output_gradient(g), channels)),
            second: (Operand::Input(other), Source::new(&g.inputs[other].layout, channels)),
            broadcast: broadcast(g),
            target: Target::input_gradient(g, input),
            rows: Rows::new(region, 3),
        }
    }

    /// The columns of the second factor that a row looks at.
    fn columns(&self) -> Span {
        if self.broadcast { (0, 1) } else { self.rows.columns() }
    }

    fn stage(&self, pass: Pass) -> Stage {
        let (len, width) = (self.rows.region.len() as f64, points(self.rows.columns()));
        Stage {
            pass,
            reads: vec![self.first.0, self.second.0],
            writes: vec![self.target.operand],
            makes: vec![],
            tiles: self.rows.tiles,
            scratch: self.first.1.scratch(width)
                + self.second.1.scratch(points(self.columns()))
                + self.target.scratch(width),
            work: Work { flops: len, bytes: if self.broadcast { 8.0 * len } else { 12.0 * len } },
        }
    }
}

impl Plain for Product {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (a, b) = (operands.floats(self.first.0), operands.floats(self.second.0));
        let columns = self.rows.columns();
        let (seen_a, rest) = scratch.split_at_mut(self.first.1.scratch(points(columns)));
        let (seen_b, filled) = rest.split_at_mut(self.second.1.scratch(points(self.columns())));
        for row in self.rows.of(tile) {
            let a = self.first.1.view(a, row.n, row.block, row.space(columns), seen_a).row(row.d, row.h, columns);
            let [d, h] = if self.broadcast { [0, 0] } else { [row.d, row.h] };
            let space = [(d, d + 1), (h, h + 1), self.columns()];
            let b = self.second.1.view(b, row.n, row.block, space, seen_b).row(d, h, self.columns());
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let y = self.target.open(operands, row, columns, filled);
                if self.broadcast {
                    scale_row(a, &b[0], y, self.target.add);
                } else {
                    multiply_row(a, b, y, self.target.add);
                }
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}

/// One row times one row.
#[inline(always)]
fn multiply_row(a: &[Line], b: &[Line], y: &mut [Line], add: bool) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        put(y, &std::array::from_fn(|l| a[l] * b[l]), add);
    }
}

/// One row times one line.
#[inline(always)]
fn scale_row(a: &[Line], b: &Line, y: &mut [Line], add: bool) {
    let b = *b;
    for (y, a) in y.iter_mut().zip(a) {
        put(y, &std::array::from_fn(|l| a[l] * b[l]), add);
    }
}

/// The gradient of a factor for all of space.
struct FactorGradient {
    x: Source,
    dy: Source,
    target: Target,
    /// One row, of one point, for each sample and block.
    rows: Rows,
    /// The points that were computed here.
    space: [Span; 3],
}

impl FactorGradient {
    fn new(g: &Geometry) -> FactorGradient {
        let region: &Region = &wanted(g, 1).1;
        let channels = region.range(Axis::Channel);
        FactorGradient {
            x: Source::new(&g.inputs[0].layout, channels),
            dy: Source::new(output_gradient(g), channels),
            target: Target::input_gradient(g, 1),
            rows: Rows::new(region, 2 * g.region.shape().points()),
            space: Axis::SPACE.map(|axis| g.region.range(axis)),
        }
    }

    fn stage(&self) -> Stage {
        let width = points(self.space[2]);
        let read = self.rows.region.len() * self.space.map(points).iter().product::<usize>();
        Stage {
            pass: Pass::InputGradient(1),
            reads: vec![Operand::Input(0), Operand::OutputGradient],
            writes: vec![Operand::InputGradient(1)],
            makes: vec![],
            tiles: self.rows.tiles,
            scratch: self.x.scratch(width) + self.dy.scratch(width) + self.target.scratch(1),
            work: Work { flops: 2.0 * read as f64, bytes: 8.0 * read as f64 },
        }
    }
}

impl Plain for FactorGradient {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, dy) = (operands.floats(Operand::Input(0)), operands.floats(Operand::OutputGradient));
        let (depths, heights, columns) = (self.space[0], self.space[1], self.space[2]);
        let (seen_x, rest) = scratch.split_at_mut(self.x.scratch(points(columns)));
        let (seen_dy, filled) = rest.split_at_mut(self.dy.scratch(points(columns)));
        for row in self.rows.of(tile) {
            let mut sum = [0f64; BLOCK];
            for d in depths.0..depths.1 {
                for h in heights.0..heights.1 {
                    let here = Row { d, h, ..row }.space(columns);
                    let x: View = self.x.view(x, row.n, row.block, here, seen_x);
                    let dy: View = self.dy.view(dy, row.n, row.block, here, seen_dy);
                    add_products(x.row(d, h, columns), dy.row(d, h, columns), &mut sum);
                }
            }
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let line = &mut self.target.open(operands, row, self.rows.columns(), filled)[0];
                put(line, &sum.map(|v| v as f32), self.target.add);
                self.target.close(operands, row, self.rows.columns(), filled);
            }
        }
    }
}

/// Adds the products of two rows to sums.
#[inline(always)]
fn add_products(x: &[Line], dy: &[Line], sum: &mut [f64; BLOCK]) {
    let mut s = *sum;
    for (x, dy) in x.iter().zip(dy) {
        for l in 0..BLOCK {
            s[l] += x[l] as f64 * dy[l] as f64;
        }
    }
    *sum = s;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Numbers, Problem, check, halves};
    use convoy_net::{Kind, Shape};

    #[test]
    fn agrees_with_its_reference() {
        for seed in 0..40 {
            let mut numbers = Numbers::new(seed);
            let first = Shape([3, 40, 3, 5, 8].map(|most| 1 + numbers.below(most)));
            let second = match numbers.below(3) {
                0 => first,
                _ => Shape([first.samples(), first.channels(), 1, 1, 1]),
            };
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            let problem = Problem::new(Kind::Multiply(Multiply), &[first, second]);
            let problem = Problem { seed, exact: true, image, accumulate, ..problem };
            check(&problem);
            halves(&problem);
        }
    }
}
