//! Carrying: a tensor's lines passed on as they are, their channels maybe shifted. What joins do with gradients.

use super::lines::{Rows, Source, Target, output_gradient, points, put, wanted};
use super::wide::{Plain, Wide};
use crate::{Geometry, Kernel, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region};

/// One tensor's lines written to, or added to, another's.
pub struct Carry {
    from: Operand,
    source: Source,
    target: Target,
    rows: Rows,
}

impl Carry {
    /// An input to the output, its channels shifted up by `by`; channels that the input has not become zero.
    pub fn forward(g: &Geometry, by: isize) -> Carry {
        let (first, end) = g.region.range(Axis::Channel);
        let source = Source::new(&g.inputs[0].layout, (first - by, end - by));
        Carry { from: Operand::Input(0), source, target: Target::output(g), rows: Rows::new(&g.region, 2) }
    }

    /// The output's gradient to that of an input whose channels were shifted up by `by`.
    pub fn backward(g: &Geometry, input: usize, by: isize) -> Carry {
        let region: &Region = &wanted(g, input).1;
        let (first, end) = region.range(Axis::Channel);
        Carry {
            from: Operand::OutputGradient,
            source: Source::new(output_gradient(g), (first + by, end + by)),
            target: Target::input_gradient(g, input),
            rows: Rows::new(region, 2),
        }
    }

    /// The stage that does it.
    pub fn stage(&self, pass: Pass) -> Stage {
        let width = points(self.rows.columns());
        Stage {
            pass,
            reads: vec![self.from],
            writes: vec![self.target.operand],
            makes: vec![],
            tiles: self.rows.tiles,
            scratch: self.source.scratch(width) + self.target.scratch(width),
            work: Work { flops: 0.0, bytes: 8.0 * self.rows.region.len() as f64 },
        }
    }

    /// The kernel of that stage.
    pub fn kernel(self) -> Box<dyn Kernel> {
        Box::new(Wide(self))
    }
}

impl Plain for Carry {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (data, columns) = (operands.floats(self.from), self.rows.columns());
        let (seen, filled) = scratch.split_at_mut(self.source.scratch(points(columns)));
        for row in self.rows.of(tile) {
            let lines = self.source.view(data, row.n, row.block, row.space(columns), seen);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let into = self.target.open(operands, row, columns, filled);
                into.iter_mut().zip(lines.row(row.d, row.h, columns)).for_each(|(a, b)| put(a, b, self.target.add));
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}
