//! Activations: one pass over memory forward, one backward.
//!
//! Backward reads the output where the slope follows from it, so that the input need not be kept.
//!
//! Twin: `reference/activation.rs`.

use super::Fast;
use super::function::{Function, Identity, With, with};
use super::lines::{Line, Rows, Source, Store, Target, each, output_gradient, points, wanted, write};
use super::wide::{Plain, Wide};
use crate::{Geometry, Kernel, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, layers::Activation};

impl Fast for Activation {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let values = Values::new(Identity, g);
        let width = points(values.rows.columns());
        vec![Stage {
            pass: Pass::Forward,
            reads: vec![Operand::Input(0)],
            writes: vec![Operand::Output],
            makes: vec![],
            tiles: values.rows.tiles,
            scratch: values.x.scratch(width) + values.y.scratch(width),
            work: Work { flops: g.region.len() as f64, bytes: 8.0 * g.region.len() as f64 },
        }]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        if g.input_gradients[0].is_none() {
            return vec![];
        }
        let slopes = Slopes::new(Identity, kept(self), g);
        let (width, len) = (points(slopes.rows.columns()), slopes.rows.region.len());
        vec![Stage {
            pass: Pass::InputGradient(0),
            reads: vec![kept(self), Operand::OutputGradient],
            writes: vec![Operand::InputGradient(0)],
            makes: vec![],
            tiles: slopes.rows.tiles,
            scratch: slopes.scratch(width),
            work: Work { flops: 2.0 * len as f64, bytes: 12.0 * len as f64 },
        }]
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        with(Some(*self), Prepare { pass, g })
    }
}

/// What backward reads besides the output's gradient.
fn kept(activation: &Activation) -> Operand {
    struct Kept;
    impl With for Kept {
        type Result = Operand;
        fn with(self, f: impl Function) -> Operand {
            f.kept()
        }
    }
    with(Some(*activation), Kept)
}

struct Prepare<'a> {
    pass: Pass,
    g: &'a Geometry,
}

impl With for Prepare<'_> {
    type Result = Box<dyn Kernel>;
    fn with(self, f: impl Function) -> Box<dyn Kernel> {
        match self.pass {
            Pass::Forward => Box::new(Wide(Values::new(f, self.g))),
            Pass::InputGradient(0) => Box::new(Wide(Slopes::new(f, f.kept(), self.g))),
            pass => unreachable!("bug: activations have no {pass:?}"),
        }
    }
}

/// Forward.
struct Values<F> {
    f: F,
    x: Source,
    y: Target,
    rows: Rows,
}

impl<F: Function> Values<F> {
    fn new(f: F, g: &Geometry) -> Values<F> {
        let x = Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel));
        Values { f, x, y: Target::output(g).streamed(), rows: Rows::new(&g.region, 2) }
    }
}

impl<F: Function> Plain for Values<F> {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let x = operands.floats(Operand::Input(0));
        let columns = self.rows.columns();
        let (seen, filled) = scratch.split_at_mut(self.x.scratch(points(columns)));
        for row in self.rows.of(tile) {
            let view = self.x.view(x, row.n, row.block, row.space(columns), seen);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let y = self.y.open(operands, row, columns, filled);
                values(self.f, view.row(row.d, row.h, columns), y, self.y.store());
                self.y.close(operands, row, columns, filled);
            }
        }
    }
}

/// One row of the output.
#[inline(always)]
fn values<F: Function>(f: F, x: &[Line], y: &mut [Line], store: Store) {
    for (y, x) in y.iter_mut().zip(x) {
        write(y, &each(|l| f.value(x[l])), store);
    }
}

/// The gradient of the input.
struct Slopes<F> {
    f: F,
    from: Operand,
    kept: Source,
    dy: Source,
    dx: Target,
    rows: Rows,
}

impl<F: Function> Slopes<F> {
    fn new(f: F, from: Operand, g: &Geometry) -> Slopes<F> {
        let region = &wanted(g, 0).1;
        let channels = region.range(Axis::Channel);
        let kept = if from == Operand::Output { &g.output.layout } else { &g.inputs[0].layout };
        Slopes {
            f,
            from,
            kept: Source::new(kept, channels),
            dy: Source::new(output_gradient(g), channels),
            dx: Target::input_gradient(g, 0).streamed(),
            rows: Rows::new(region, 3),
        }
    }

    fn scratch(&self, width: usize) -> usize {
        self.kept.scratch(width) + self.dy.scratch(width) + self.dx.scratch(width)
    }
}

impl<F: Function> Plain for Slopes<F> {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let (kept, dy) = (operands.floats(self.from), operands.floats(Operand::OutputGradient));
        let columns = self.rows.columns();
        let width = points(columns);
        let (seen, rest) = scratch.split_at_mut(self.kept.scratch(width));
        let (seen_dy, filled) = rest.split_at_mut(self.dy.scratch(width));
        for row in self.rows.of(tile) {
            let space = row.space(columns);
            let kept = self.kept.view(kept, row.n, row.block, space, seen).row(row.d, row.h, columns);
            let dy = self.dy.view(dy, row.n, row.block, space, seen_dy).row(row.d, row.h, columns);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let dx = self.dx.open(operands, row, columns, filled);
                slopes(self.f, kept, dy, dx, self.dx.store());
                self.dx.close(operands, row, columns, filled);
            }
        }
    }
}

/// One row of the input's gradient.
#[inline(always)]
fn slopes<F: Function>(f: F, kept: &[Line], dy: &[Line], dx: &mut [Line], store: Store) {
    for ((dx, kept), dy) in dx.iter_mut().zip(kept).zip(dy) {
        write(dx, &each(|l| f.slope(kept[l]) * dy[l]), store);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;
    use crate::fast::function::{Clip, HardSwish, Relu};
    use crate::reference::finite;
    use crate::twin::{Numbers, Problem, check, halves};
    use convoy_net::{Kind, Shape};

    const ALL: [Activation; 10] = [
        Activation::Relu,
        Activation::LeakyRelu { slope: 0.125 },
        Activation::LeakyRelu { slope: -0.5 },
        Activation::Clip { low: -0.5, high: 0.75 },
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Silu,
        Activation::Gelu,
        Activation::HardSwish,
        Activation::HardSigmoid,
    ];

    fn problem(activation: Activation, seed: u64) -> Problem {
        let mut numbers = Numbers::new(seed);
        let shape = Shape([
            1 + numbers.below(3),
            1 + numbers.below(36),
            1 + numbers.below(2),
            1 + numbers.below(5),
            1 + numbers.below(9),
        ]);
        // Whole numbers from −3 to 3 meet every kink; most functions of them are not whole.
        let exact = numbers.below(2) == 0;
        let whole = matches!(activation, Activation::Relu | Activation::LeakyRelu { .. } | Activation::Clip { .. });
        let mode = if numbers.below(4) == 0 { Mode::Evaluate } else { Mode::Train };
        let (image, accumulate, extra) = (numbers.below(3) == 0, numbers.below(3) == 0, numbers.below(3));
        let problem = Problem::new(Kind::Activation(activation), &[shape]);
        // A few roundings of each function and of the sum with what was there before.
        Problem { seed, exact: exact && whole, mode, image, accumulate, extra, tolerance: 2e-6, ..problem }
    }

    #[test]
    fn agree_with_their_references() {
        for (i, activation) in ALL.into_iter().enumerate() {
            for seed in 0..12 {
                let problem = problem(activation, 100 * i as u64 + seed);
                check(&problem);
                if seed % 3 == 0 {
                    halves(&problem);
                }
            }
        }
    }

    #[test]
    fn references_are_differentiated_rightly() {
        for activation in ALL {
            finite::check(&Problem::new(Kind::Activation(activation), &[Shape([1, 3, 1, 4, 5])]));
        }
    }

    /// Values of −1 to 1 do not reach the ends of these functions: every function and slope from −20 to 20.
    #[test]
    fn ends_are_reached() {
        use crate::reference::{Array, Call, twin};
        for activation in ALL {
            let kind = Kind::Activation(activation);
            let shape = Shape([1, 16, 1, 1, 501]);
            let xs: Vec<f64> = (0..shape.len()).map(|i| ((i as f64 * 0.005) - 20.0) as f32 as f64).collect();
            let inputs = [Array { shape, data: xs }];
            let ones = Array { shape, data: vec![1.0; shape.len()] };
            let call = Call { inputs: &inputs, parameters: &[], mode: Mode::Train, seed: 1, layer: 7, step: 3 };
            let (y, dx) = (twin(&kind).forward(&call), twin(&kind).backward(&call, &ones).inputs.remove(0));
            let problem = Problem::new(kind.clone(), &[shape]);
            let values = crate::twin::Values { inputs: inputs.to_vec(), parameters: vec![], dy: ones };
            let fast = problem.fast(&values);
            let slopes = &fast.gradients.expect("training").inputs[0];
            for (i, x) in inputs[0].data.iter().enumerate() {
                let (y, dx) = (y.data[i], dx.data[i]);
                let (fast_y, fast_dx) = (fast.output.data[i], slopes.data[i]);
                // Some ulps of the function (below 1e-37 they are larger); of slopes, which are sums of terms of about 1, some of 1.
                assert!((fast_y - y).abs() <= 1e-6 * y.abs() + 1e-43, "{activation:?}({x}) = {fast_y}, not {y}");
                assert!((fast_dx - dx).abs() <= 1e-6 * dx.abs() + 2e-7, "{activation:?}'({x}) = {fast_dx}, not {dx}");
            }
        }
    }

    #[test]
    fn only_curved_functions_keep_their_input() {
        let keeps = |a: &Activation| kept(a) == Operand::Input(0);
        let found: Vec<Activation> = ALL.into_iter().filter(keeps).collect();
        let curved = [Activation::Silu, Activation::Gelu, Activation::HardSwish];
        assert_eq!(found, [&[Activation::LeakyRelu { slope: -0.5 }][..], &curved[..]].concat());
    }

    #[test]
    fn not_a_number_is_not_hidden() {
        for f in [Relu.value(f32::NAN), Clip { low: 0.0, high: 6.0 }.value(f32::NAN), HardSwish.value(f32::NAN)] {
            assert!(f.is_nan());
        }
    }
}
