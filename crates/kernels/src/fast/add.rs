//! Addition: inputs are summed in their order; each one's gradient is the output's. Twin: `reference/add.rs`.

use super::Fast;
use super::carry::Carry;
use super::lines::{Line, Rows, Source, Target, points, put};
use super::wide::{Plain, Wide};
use crate::{Geometry, Kernel, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, layers::Add};

impl Fast for Add {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let sum = Forward::new(g);
        let width = points(sum.rows.columns());
        let inputs = g.inputs.len();
        vec![Stage {
            pass: Pass::Forward,
            reads: (0..inputs).map(Operand::Input).collect(),
            writes: vec![Operand::Output],
            makes: vec![],
            tiles: sum.rows.tiles,
            scratch: sum.seen() + sum.target.scratch(width),
            work: Work {
                flops: ((inputs - 1) * g.region.len()) as f64,
                bytes: (4 * (inputs + 1) * g.region.len()) as f64,
            },
        }]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        let wanted = (0..g.inputs.len()).filter(|&i| g.input_gradients[i].is_some());
        wanted.map(|i| Carry::backward(g, i, 0).stage(Pass::InputGradient(i))).collect()
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Wide(Forward::new(g))),
            Pass::InputGradient(i) => Carry::backward(g, i, 0).kernel(),
            _ => unreachable!("bug: addition has no {pass:?}"),
        }
    }
}

/// The sum of all inputs.
struct Forward {
    sources: Vec<Source>,
    target: Target,
    rows: Rows,
}

impl Forward {
    fn new(g: &Geometry) -> Forward {
        let channels = g.region.range(Axis::Channel);
        Forward {
            sources: g.inputs.iter().map(|x| Source::new(&x.layout, channels)).collect(),
            target: Target::output(g),
            rows: Rows::new(&g.region, g.inputs.len() + 1),
        }
    }

    /// Floats of scratch for a row of any input.
    fn seen(&self) -> usize {
        self.sources.iter().map(|s| s.scratch(points(self.rows.columns()))).max().unwrap_or(0)
    }
}

impl Plain for Forward {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let columns = self.rows.columns();
        let (seen, filled) = scratch.split_at_mut(self.seen());
        for row in self.rows.of(tile) {
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let y = self.target.open(operands, row, columns, filled);
                for (i, source) in self.sources.iter().enumerate() {
                    let x = operands.floats(Operand::Input(i));
                    let x = source.view(x, row.n, row.block, row.space(columns), seen).row(row.d, row.h, columns);
                    add_row(x, y, i > 0);
                }
                self.target.close(operands, row, columns, filled);
            }
        }
    }
}

/// One input's row of the sum: the first is written, others are added. The row stays in cache meanwhile.
#[inline(always)]
fn add_row(x: &[Line], y: &mut [Line], add: bool) {
    y.iter_mut().zip(x).for_each(|(y, x)| put(y, x, add));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Numbers, Problem, check, halves};
    use convoy_net::{Kind, Shape};

    #[test]
    fn agrees_with_its_reference() {
        for seed in 0..30 {
            let mut numbers = Numbers::new(seed);
            let shape = Shape([3, 40, 3, 5, 12].map(|most| 1 + numbers.below(most)));
            let inputs = vec![shape; 2 + numbers.below(3)];
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            let problem = Problem { seed, exact: true, image, accumulate, ..Problem::new(Kind::Add(Add), &inputs) };
            check(&problem);
            halves(&problem);
        }
    }
}
