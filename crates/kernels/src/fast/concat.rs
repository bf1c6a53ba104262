//! Concatenation: each input copied to its channels of the output, whatever their blocks. Twin: `reference/concat.rs`.

use super::Fast;
use super::carry::Carry;
use super::lines::Rows;
use super::region;
use crate::{Geometry, Kernel, Layout, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region, layers::Concat};

/// Channels before those of an input.
fn before(g: &Geometry, input: usize) -> isize {
    g.inputs[..input].iter().map(|x| x.shape.channels() as isize).sum()
}

impl Fast for Concat {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        vec![Stage {
            pass: Pass::Forward,
            reads: (0..g.inputs.len()).map(Operand::Input).collect(),
            writes: vec![Operand::Output],
            makes: vec![],
            tiles: Forward::new(g).rows.tiles,
            scratch: 0,
            work: Work { flops: 0.0, bytes: 8.0 * g.region.len() as f64 },
        }]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        let wanted = (0..g.inputs.len()).filter(|&i| g.input_gradients[i].is_some());
        wanted.map(|i| Carry::backward(g, i, before(g, i)).stage(Pass::InputGradient(i))).collect()
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Forward::new(g)),
            Pass::InputGradient(i) => Carry::backward(g, i, before(g, i)).kernel(),
            _ => unreachable!("bug: concatenation has no {pass:?}"),
        }
    }
}

/// All inputs into the output.
struct Forward {
    /// How each is stored, and where its first channel goes.
    inputs: Vec<(Layout, isize)>,
    /// The channels of each that the output's region holds.
    parts: Vec<Region>,
    output: Layout,
    /// Rows with all their channels together: inputs' blocks need not be the output's.
    rows: Rows,
}

impl Forward {
    fn new(g: &Geometry) -> Forward {
        let inputs: Vec<_> = g.inputs.iter().enumerate().map(|(i, x)| (x.layout.clone(), before(g, i))).collect();
        let part = |(x, (_, by)): (&crate::Tensor, &(Layout, isize))| {
            let channels = Region::whole(x.shape).range(Axis::Channel);
            let all = g.region.with(Axis::Channel, channels.0 + by, channels.1 + by);
            all.intersect(&g.region).shifted([0, -by, 0, 0, 0])
        };
        let parts = g.inputs.iter().zip(&inputs).map(part).collect();
        let rows = Rows::of_all_channels(&g.region, 2);
        Forward { inputs, parts, output: g.output.layout.clone(), rows }
    }
}

impl Kernel for Forward {
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let output = (operands.slot(Operand::Output), &self.output);
        for row in self.rows.of(tile) {
            for (i, ((layout, by), part)) in self.inputs.iter().zip(&self.parts).enumerate() {
                let [n, d, h] = [row.n, row.d, row.h].map(|at| (at, at + 1));
                let part = part.with(Axis::Sample, n.0, n.1).with(Axis::Depth, d.0, d.1).with(Axis::Height, h.0, h.1);
                let input = (operands.slot(Operand::Input(i)), layout);
                // SAFETY: `Rows` gives each row, here of all channels, to one tile.
                unsafe { region::copy(input, output, &part, [0, *by, 0, 0, 0], false) };
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
        for seed in 0..40 {
            let mut numbers = Numbers::new(seed);
            let shape = Shape([3, 1, 3, 5, 8].map(|most| 1 + numbers.below(most)));
            let inputs = (0..2 + numbers.below(3)).map(|_| {
                let mut shape = shape;
                shape.0[1] = [16, 32, 1 + numbers.below(40)][numbers.below(3)];
                shape
            });
            let inputs: Vec<Shape> = inputs.collect();
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            let problem = Problem::new(Kind::Concat(Concat), &inputs);
            let problem = Problem { seed, exact: true, image, accumulate, ..problem };
            check(&problem);
            halves(&problem);
        }
    }
}
