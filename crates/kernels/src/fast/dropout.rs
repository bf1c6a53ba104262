//! Dropout. Which elements are dropped follows from seed, layer, step, sample and the element's place in its sample: it is
//! computed again backward, and is the same however the tensor is cut.
//!
//! Twin: `reference/dropout.rs`.

use super::Fast;
use super::lines::{Line, Row, Rows, Source, Target, each, output_gradient, points, put, wanted};
use super::wide::{Plain, Wide};
use crate::philox::{Key, Purpose, uniform};
use crate::{BLOCK, Geometry, Kernel, Mode, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, Region, Shape, layers::Dropout};

impl Fast for Dropout {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        vec![Drop::forward(self, g).stage(Pass::Forward)]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        if g.input_gradients[0].is_none() {
            return vec![];
        }
        vec![Drop::backward(self, g).stage(Pass::InputGradient(0))]
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Wide(Drop::forward(self, g))),
            Pass::InputGradient(0) => Box::new(Wide(Drop::backward(self, g))),
            _ => unreachable!("bug: dropout has no {pass:?}"),
        }
    }
}

/// Either pass: from one tensor to another, through the same mask.
struct Drop {
    probability: f32,
    layer: usize,
    mode: Mode,
    /// Of the whole tensor.
    shape: Shape,
    from: (Operand, Source),
    into: Target,
    region: Region,
    rows: Rows,
}

impl Drop {
    fn forward(layer: &Dropout, g: &Geometry) -> Drop {
        let source = Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel));
        Drop::new(layer, g, (Operand::Input(0), source), Target::output(g), g.region)
    }

    fn backward(layer: &Dropout, g: &Geometry) -> Drop {
        let region = wanted(g, 0).1;
        let source = Source::new(output_gradient(g), region.range(Axis::Channel));
        Drop::new(layer, g, (Operand::OutputGradient, source), Target::input_gradient(g, 0), region)
    }

    fn new(layer: &Dropout, g: &Geometry, from: (Operand, Source), into: Target, region: Region) -> Drop {
        Drop {
            probability: layer.probability,
            layer: g.layer,
            mode: g.mode,
            shape: g.output.shape,
            from,
            into,
            region,
            // Random numbers cost more than memory: tiles are as for twice the lines.
            rows: Rows::new(&region, 4),
        }
    }

    fn stage(&self, pass: Pass) -> Stage {
        let width = points(self.rows.columns());
        Stage {
            pass,
            reads: vec![self.from.0],
            writes: vec![self.into.operand],
            makes: vec![],
            tiles: self.rows.tiles,
            scratch: self.from.1.scratch(width) + self.into.scratch(width) + width * (BLOCK + 1),
            work: Work { flops: self.region.len() as f64, bytes: 8.0 * self.region.len() as f64 },
        }
    }

    /// What each element of a row is multiplied with. `channel` has room for one channel of it.
    #[inline(always)]
    fn factors(&self, row: Row, operands: &Operands, factors: &mut [Line], channel: &mut [f32]) {
        if self.mode == Mode::Evaluate {
            return factors.iter_mut().for_each(|line| line.fill(1.0));
        }
        let moment = operands.moment;
        let (layer, sample) = (self.layer as u32, row.n as u32);
        let key = Key { seed: moment.seed, purpose: Purpose::Dropout, layer, step: moment.step, sample };
        let [_, _, depths, heights, width] = self.shape.0;
        let first = self.region.start[1] as usize + row.block * BLOCK;
        if self.shape.points() == 1 {
            // Without space the channels follow each other.
            return self.run(&key, first as u64, &mut factors[0]);
        }
        for l in 0..BLOCK {
            let at = ((first + l) * depths + row.d as usize) * heights + row.h as usize;
            self.run(&key, (at * width + self.region.start[4] as usize) as u64, channel);
            factors.iter_mut().zip(channel.iter()).for_each(|(line, &factor)| line[l] = factor);
        }
    }

    /// Factors of elements that follow each other, from `first` on.
    #[inline(always)]
    fn run(&self, key: &Key, first: u64, factors: &mut [f32]) {
        let kept = (1.0 / (1.0 - self.probability as f64)) as f32;
        let mut done = 0;
        while done < factors.len() {
            let (at, skip) = ((first + done as u64) / RUN * RUN, (first + done as u64) % RUN);
            let words = key.many::<{ RUN as usize / 4 }>(at / 4);
            let mut run = [0.0; RUN as usize];
            for (i, factor) in run.iter_mut().enumerate() {
                let dropped = uniform(words[i % 4][i / 4]) < self.probability;
                *factor = if dropped { 0.0 } else { kept };
            }
            let run = &run[skip as usize..];
            let count = run.len().min(factors.len() - done);
            factors[done..done + count].copy_from_slice(&run[..count]);
            done += count;
        }
    }
}

/// Elements whose random numbers are made at once.
const RUN: u64 = 32;

impl Plain for Drop {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let from = operands.floats(self.from.0);
        let columns = self.rows.columns();
        let width = points(columns);
        let (seen, rest) = scratch.split_at_mut(self.from.1.scratch(width));
        let (filled, rest) = rest.split_at_mut(self.into.scratch(width));
        let (factors, rest) = rest.split_at_mut(width * BLOCK);
        let (factors, channel) = (factors.as_chunks_mut().0, &mut rest[..width]);
        for row in self.rows.of(tile) {
            let from = self.from.1.view(from, row.n, row.block, row.space(columns), seen).row(row.d, row.h, columns);
            self.factors(row, operands, factors, channel);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let into = self.into.open(operands, row, columns, filled);
                for (into, (from, factor)) in into.iter_mut().zip(from.iter().zip(factors.iter())) {
                    put(into, &each(|l| from[l] * factor[l]), self.into.add);
                }
                self.into.close(operands, row, columns, filled);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite;
    use crate::twin::{Numbers, Problem, check, halves};
    use convoy_net::Kind;

    fn problem(seed: u64) -> Problem {
        let mut numbers = Numbers::new(seed);
        let space = match numbers.below(3) {
            0 => [1; 3],
            _ => [1 + numbers.below(2), 1 + numbers.below(4), 1 + numbers.below(9)],
        };
        let shape = Shape([1 + numbers.below(3), 1 + numbers.below(40), space[0], space[1], space[2]]);
        // A half leaves whole numbers whole: equal to the bit, or one element was dropped on one side alone.
        let probability = [0.5, 0.5, 0.0, 0.3][numbers.below(4)];
        let mode = if numbers.below(4) == 0 { Mode::Evaluate } else { Mode::Train };
        let (image, accumulate) = (numbers.below(3) == 0, numbers.below(3) == 0);
        let problem = Problem::new(Kind::Dropout(Dropout { probability }), &[shape]);
        Problem { seed, mode, image, accumulate, exact: probability != 0.3, tolerance: 1e-6, ..problem }
    }

    #[test]
    fn agrees_with_its_reference() {
        for seed in 0..50 {
            check(&problem(seed));
            if seed % 4 == 0 {
                halves(&problem(seed));
            }
        }
    }

    #[test]
    fn reference_is_differentiated_rightly() {
        let kind = Kind::Dropout(Dropout { probability: 0.25 });
        finite::check(&Problem::new(kind, &[Shape([2, 3, 1, 3, 3])]));
    }

    #[test]
    fn drops_about_as_many_as_it_should() {
        let probability = 0.3;
        let shape = Shape([4, 64, 1, 8, 8]);
        let problem = Problem::new(Kind::Dropout(Dropout { probability }), &[shape]);
        let mut values = problem.values();
        values.inputs[0].data.fill(1.0);
        let dropped = problem.fast(&values).output.data.iter().filter(|&&y| y == 0.0).count() as f64;
        let (n, p) = (shape.len() as f64, probability as f64);
        // Four deviations.
        assert!((dropped - n * p).abs() < 4.0 * (n * p * (1.0 - p)).sqrt(), "{dropped} of {n}");
    }
}
