//! Flattening: each element to its place among the channels. Twin: `reference/flatten.rs`.

use super::Fast;
use super::lines::{Line, Rows, Target, output_gradient, points, wanted};
use crate::{BLOCK, Geometry, Kernel, Layout, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region, Shape, layers::Flatten};

impl Fast for Flatten {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let forward = Forward::new(g);
        vec![stage(Pass::Forward, Operand::Input(0), &forward.target, &forward.rows)]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        if g.input_gradients[0].is_none() {
            return vec![];
        }
        let gradient = InputGradient::new(g);
        vec![stage(Pass::InputGradient(0), Operand::OutputGradient, &gradient.target, &gradient.rows)]
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Forward::new(g)),
            Pass::InputGradient(0) => Box::new(InputGradient::new(g)),
            _ => unreachable!("bug: flattening has no {pass:?}"),
        }
    }
}

fn stage(pass: Pass, from: Operand, target: &Target, rows: &Rows) -> Stage {
    Stage {
        pass,
        reads: vec![from],
        writes: vec![target.operand],
        makes: vec![],
        tiles: rows.tiles,
        scratch: target.scratch(points(rows.columns())),
        work: Work { flops: 0.0, bytes: 8.0 * rows.region.len() as f64 },
    }
}

/// All elements to channels.
struct Forward {
    /// For each channel of the region, its element's place within a sample of the input.
    places: Vec<usize>,
    input: Layout,
    target: Target,
    rows: Rows,
}

impl Forward {
    fn new(g: &Geometry) -> Forward {
        let input = &g.inputs[0].layout;
        let [_, _, depths, rows, columns] = g.inputs[0].shape.0.map(|size| size as isize);
        let place = |o: isize| {
            let (c, d) = (o / (columns * rows * depths), o / (columns * rows) % depths);
            input.index(input.stored.start[0], c, d, o / columns % rows, o % columns)
        };
        let (first, end) = g.region.range(Axis::Channel);
        Forward {
            places: if g.region.is_empty() { vec![] } else { (first..end).map(place).collect() },
            input: input.clone(),
            target: Target::output(g),
            rows: Rows::new(&g.region, 2),
        }
    }
}

impl Kernel for Forward {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (x, columns) = (operands.floats(Operand::Input(0)), self.rows.columns());
        for row in self.rows.of(tile) {
            let x = &x[(row.n - self.input.stored.start[0]) as usize * self.input.sample..];
            let places = self.places[row.block * BLOCK..].iter().take(BLOCK);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let line: &mut Line = &mut self.target.open(operands, row, columns, scratch)[0];
                line.iter_mut().zip(places).for_each(|(y, &place)| *y = x[place]);
                self.target.close(operands, row, columns, scratch);
            }
        }
    }
}

/// All channels back to their elements.
struct InputGradient {
    input: Shape,
    /// What was computed here of the output.
    outputs: Region,
    dy: Layout,
    target: Target,
    rows: Rows,
}

impl InputGradient {
    fn new(g: &Geometry) -> InputGradient {
        InputGradient {
            input: g.inputs[0].shape,
            outputs: g.region,
            dy: output_gradient(g).clone(),
            target: Target::input_gradient(g, 0),
            rows: Rows::new(&wanted(g, 0).1, 2),
        }
    }
}

impl Kernel for InputGradient {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (dy, columns) = (operands.floats(Operand::OutputGradient), self.rows.columns());
        let [_, _, depths, heights, widths] = self.input.0.map(|size| size as isize);
        let (first, end) = self.outputs.range(Axis::Channel);
        for row in self.rows.of(tile) {
            let channel = self.rows.region.start[1] + (row.block * BLOCK) as isize;
            let last = self.rows.region.end[1].min(channel + BLOCK as isize);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let lines = self.target.open(operands, row, columns, scratch);
                for (l, c) in (channel..last).enumerate() {
                    let before = ((c * depths + row.d) * heights + row.h) * widths;
                    for (w, line) in (columns.0..).zip(lines.iter_mut()) {
                        let o = before + w;
                        let here = if first <= o && o < end { dy[self.dy.index(row.n, o, 0, 0, 0)] } else { 0.0 };
                        line[l] = if self.target.add { line[l] + here } else { here };
                    }
                }
                self.target.close(operands, row, columns, scratch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Numbers, Problem, check, halves};
    use convoy_net::Kind;

    #[test]
    fn agrees_with_its_reference() {
        for seed in 0..40 {
            let mut numbers = Numbers::new(seed);
            let shape = Shape([3, 40, 3, 4, 5].map(|most| 1 + numbers.below(most)));
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            let problem = Problem::new(Kind::Flatten(Flatten), &[shape]);
            let problem = Problem { seed, exact: true, image, accumulate, ..problem };
            check(&problem);
            halves(&problem);
        }
    }
}
