//! Updates, in place: one pass over parameter, gradient and states.
//!
//! Always true
//! - Filler, where parameter, gradient and states are zero, stays zero.
//! - Nothing but square roots and divisions is slower than memory, and no sum decides about a parameter but the norms of
//!   LARS, which are double precision and summed in a fixed order.
//!
//! Twin: `reference/update.rs`.

use super::wide::{Plain, Wide};
use crate::{Kernel, Make, Operand, Operands, Pass, Stage, Update, Work};
use std::ops::Range;

/// Floats of a tile, and of a strip of the norms' sums.
const TILE: usize = 16 * 1024;

impl Update {
    /// The stages of a step over a parameter of `len` floats (this rank's share, in kernel order with filler). Sums are over
    /// one sample, of which `Partial(0)` has strips.
    pub fn stages(&self, len: usize) -> Vec<Stage> {
        let tiles = len.div_ceil(TILE);
        let (weight, gradient) = (Operand::Parameter(0), Operand::ParameterGradient(0));
        let states = || (0..self.states()).map(Operand::State);
        let flops = match self {
            Update::Sgd { .. } => 6.0,
            Update::Adam { .. } => 16.0,
            Update::RmsProp { .. } => 12.0,
            Update::Lars { .. } => 7.0,
        };
        let mut update = Stage {
            pass: Pass::Update,
            reads: [weight, gradient].into_iter().chain(states()).collect(),
            writes: [weight].into_iter().chain(states()).collect(),
            makes: vec![],
            tiles,
            scratch: 0,
            work: Work { flops: flops * len as f64, bytes: (4 * len * (3 + 2 * self.states())) as f64 },
        };
        if !matches!(self, Update::Lars { .. }) {
            return vec![update];
        }
        update.reads.push(Operand::Sum(0));
        let norms = Stage {
            pass: Pass::GradientStatistics,
            reads: vec![weight, gradient],
            writes: vec![Operand::Partial(0)],
            makes: vec![Make::Partial { number: 0, strips: tiles, columns: 2 }],
            tiles,
            scratch: 0,
            work: Work { flops: 4.0 * len as f64, bytes: 8.0 * len as f64 },
        };
        vec![norms, update]
    }

    /// The kernel of one of these stages.
    pub fn prepare(&self, pass: Pass, len: usize) -> Box<dyn Kernel> {
        match pass {
            Pass::Update => Box::new(Wide(Step { update: *self, len })),
            Pass::GradientStatistics => Box::new(Wide(Norms { len })),
            _ => unreachable!("bug: an update has no {pass:?}"),
        }
    }
}

/// The floats of a tile.
fn range(tile: usize, len: usize) -> Range<usize> {
    tile * TILE..((tile + 1) * TILE).min(len)
}

/// Sums of squares of parameter and gradient, by strips.
struct Norms {
    len: usize,
}

impl Plain for Norms {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let range = range(tile, self.len);
        // SAFETY: each tile has its own strip.
        let sums = unsafe { operands.doubles_mut(Operand::Partial(0), 2 * tile..2 * tile + 2) };
        sums[0] = squares(&operands.floats(Operand::Parameter(0))[range.clone()]);
        sums[1] = squares(&operands.floats(Operand::ParameterGradient(0))[range]);
    }
}

/// The sum of squares: 16 sums side by side, then those in order.
#[inline(always)]
fn squares(values: &[f32]) -> f64 {
    let mut sums = [0f64; 16];
    let (lines, rest) = values.as_chunks::<16>();
    for line in lines {
        for l in 0..16 {
            sums[l] += line[l] as f64 * line[l] as f64;
        }
    }
    for (sum, &v) in sums.iter_mut().zip(rest) {
        *sum += v as f64 * v as f64;
    }
    sums.iter().sum()
}

/// One step of one parameter.
struct Step {
    update: Update,
    len: usize,
}

impl Plain for Step {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, _: &mut [f32]) {
        let range = range(tile, self.len);
        let g = &operands.floats(Operand::ParameterGradient(0))[range.clone()];
        // SAFETY: tiles have disjoint ranges.
        let own = |operand| unsafe { operands.floats_mut(operand, range.clone()) };
        let w = own(Operand::Parameter(0));
        let state = |number| own(Operand::State(number));
        let rate = operands.moment.learning_rate;
        match self.update {
            Update::Sgd { momentum: 0.0, weight_decay, .. } => sgd(w, g, weight_decay, rate),
            Update::Sgd { momentum, nesterov: false, weight_decay } => {
                sgd_momentum(w, g, state(0), [1.0, weight_decay, momentum, rate])
            }
            Update::Sgd { momentum, nesterov: true, weight_decay } => {
                sgd_nesterov(w, g, state(0), [weight_decay, momentum, rate])
            }
            Update::Adam { beta1, beta2, epsilon, weight_decay, decoupled } => {
                let t = operands.moment.step + 1;
                let rate = rate as f64;
                let (correct1, correct2) = (1.0 - power(beta1 as f64, t), 1.0 - power(beta2 as f64, t));
                let (shrink, added) = match decoupled {
                    true => (1.0 - rate * weight_decay as f64, 0.0),
                    false => (1.0, weight_decay),
                };
                let root = (1.0 / correct2.sqrt()) as f32;
                let step = (rate / correct1) as f32;
                adam(w, g, (state(0), state(1)), [beta1, beta2, epsilon, shrink as f32, added, root, step]);
            }
            Update::RmsProp { alpha, epsilon, momentum: 0.0, weight_decay } => {
                rms_prop(w, g, state(0), [alpha, epsilon, weight_decay, rate])
            }
            Update::RmsProp { alpha, epsilon, momentum, weight_decay } => {
                rms_prop_momentum(w, g, (state(0), state(1)), [alpha, epsilon, momentum, weight_decay, rate])
            }
            Update::Lars { momentum, weight_decay, trust } => {
                let sums = operands.doubles(Operand::Sum(0));
                let (of_w, of_g) = (sums[0].sqrt(), sums[1].sqrt());
                let local = match of_w > 0.0 && of_g > 0.0 {
                    true => (trust as f64 * of_w / (of_g + weight_decay as f64 * of_w)) as f32,
                    false => 1.0,
                };
                sgd_momentum(w, g, state(0), [local, weight_decay, momentum, rate])
            }
        }
    }
}

/// `base^exponent` by squaring: the same on every machine.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut square, mut product) = (base, 1.0);
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    product
}

/// `over / under`; nothing over nothing is nothing, so that filler stays zero without an epsilon too.
#[inline(always)]
fn share(over: f32, under: f32) -> f32 {
    if under == 0.0 { 0.0 } else { over / under }
}

#[inline(always)]
fn sgd(w: &mut [f32], g: &[f32], decay: f32, rate: f32) {
    for (w, g) in w.iter_mut().zip(g) {
        *w -= rate * (g + decay * *w);
    }
}

#[inline(always)]
fn sgd_momentum(w: &mut [f32], g: &[f32], v: &mut [f32], [local, decay, momentum, rate]: [f32; 4]) {
    for ((w, g), v) in w.iter_mut().zip(g).zip(v) {
        *v = momentum * *v + local * (g + decay * *w);
        *w -= rate * *v;
    }
}

#[inline(always)]
fn sgd_nesterov(w: &mut [f32], g: &[f32], v: &mut [f32], [decay, momentum, rate]: [f32; 3]) {
    for ((w, g), v) in w.iter_mut().zip(g).zip(v) {
        let g = g + decay * *w;
        *v = momentum * *v + g;
        *w -= rate * (g + momentum * *v);
    }
}

#[inline(always)]
fn adam(w: &mut [f32], g: &[f32], (m, v): (&mut [f32], &mut [f32]), constants: [f32; 7]) {
    let [beta1, beta2, epsilon, shrink, added, root, step] = constants;
    for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
        let g = g + added * *w;
        *m = beta1 * *m + (1.0 - beta1) * g;
        *v = beta2 * *v + (1.0 - beta2) * (g * g);
        *w = shrink * *w - step * share(*m, v.sqrt() * root + epsilon);
    }
}

#[inline(always)]
fn rms_prop(w: &mut [f32], g: &[f32], s: &mut [f32], [alpha, epsilon, decay, rate]: [f32; 4]) {
    for ((w, g), s) in w.iter_mut().zip(g).zip(s) {
        let g = g + decay * *w;
        *s = alpha * *s + (1.0 - alpha) * (g * g);
        *w -= rate * share(g, s.sqrt() + epsilon);
    }
}

#[inline(always)]
fn rms_prop_momentum(w: &mut [f32], g: &[f32], (s, v): (&mut [f32], &mut [f32]), constants: [f32; 5]) {
    let [alpha, epsilon, momentum, decay, rate] = constants;
    for (((w, g), s), v) in w.iter_mut().zip(g).zip(s).zip(v) {
        let g = g + decay * *w;
        *s = alpha * *s + (1.0 - alpha) * (g * g);
        *v = momentum * *v + share(g, s.sqrt() + epsilon);
        *w -= rate * *v;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::update::update;
    use crate::twin::{Memory, Numbers, Problem, run_at};
    use crate::{Geometry, Moment};
    use convoy_net::{Kind, Shape, layers::Activation};
    use std::collections::HashMap;

    const ALL: [Update; 11] = [
        Update::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        Update::Sgd { momentum: 0.0, nesterov: true, weight_decay: 0.01 },
        Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 5e-4 },
        Update::Sgd { momentum: 0.9, nesterov: true, weight_decay: 5e-4 },
        Update::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, decoupled: false },
        Update::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.01, decoupled: false },
        Update::Adam { beta1: 0.8, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.05, decoupled: true },
        Update::RmsProp { alpha: 0.99, epsilon: 1e-8, momentum: 0.0, weight_decay: 0.0 },
        Update::RmsProp { alpha: 0.9, epsilon: 1e-6, momentum: 0.9, weight_decay: 0.01 },
        Update::Lars { momentum: 0.9, weight_decay: 5e-4, trust: 0.001 },
        Update::Lars { momentum: 0.0, weight_decay: 0.0, trust: 0.02 },
    ];

    /// A parameter, its gradients of some steps, and what is remembered, in memory as an engine has it.
    struct Parameter {
        update: Update,
        memory: HashMap<Operand, Memory>,
        len: usize,
    }

    impl Parameter {
        fn new(update: Update, w: &[f64]) -> Parameter {
            let mut memory = HashMap::new();
            let mut put = |operand, values: &mut dyn Iterator<Item = f32>| {
                let mut m = Memory::poisoned(w.len());
                m.slice_mut().iter_mut().zip(values).for_each(|(m, v)| *m = v);
                memory.insert(operand, m);
            };
            put(Operand::Parameter(0), &mut w.iter().map(|&v| v as f32));
            put(Operand::ParameterGradient(0), &mut std::iter::repeat(0.0));
            (0..update.states()).for_each(|k| put(Operand::State(k), &mut std::iter::repeat(0.0)));
            Parameter { update, memory, len: w.len() }
        }

        fn step(&mut self, moment: Moment, g: &[f64]) {
            let gradient = self.memory.get_mut(&Operand::ParameterGradient(0)).expect("there").slice_mut();
            gradient.iter_mut().zip(g).for_each(|(m, &v)| *m = v as f32);
            let (update, len) = (self.update, self.len);
            run_at(&mut self.memory, &update.stages(len), &one_sample(), moment, &|pass| update.prepare(pass, len));
        }

        fn values(&self) -> Vec<f64> {
            self.memory[&Operand::Parameter(0)].slice().iter().map(|&v| v as f64).collect()
        }
    }

    /// Sums of an update are over one sample.
    fn one_sample() -> Geometry {
        Problem::new(Kind::Activation(Activation::Relu), &[Shape([1, 1, 1, 1, 1])]).geometry()
    }

    fn numbers(seed: u64, len: usize) -> Vec<f64> {
        let mut numbers = Numbers::new(seed);
        (0..len).map(|_| numbers.value(false)).collect()
    }

    #[test]
    fn several_steps_agree_with_the_reference() {
        for (i, of) in ALL.into_iter().enumerate() {
            for len in [1, 37, TILE, 2 * TILE + 21] {
                let mut w = numbers(i as u64, len);
                // Weights that never get a gradient, and those that are zero.
                w[len / 2] = 0.0;
                let mut fast = Parameter::new(of, &w);
                let mut states = vec![vec![0.0; len]; of.states()];
                for step in 0..5 {
                    let moment = Moment { seed: 1, step, learning_rate: 0.1 / (1 + step) as f32 };
                    let mut g = numbers(100 + step, len);
                    g[len / 2] = 0.0;
                    fast.step(moment, &g);
                    update(&of, moment, &mut w, &g, &mut states);
                }
                let fast = fast.values();
                for k in 0..len {
                    // Five steps of some ten roundings of numbers of up to 2 each.
                    let difference = (fast[k] - w[k]).abs();
                    assert!(difference < 6e-6, "{of:?}, element {k} of {len}: {} for {}", fast[k], w[k]);
                }
                assert_eq!(fast[len / 2], 0.0, "{of:?}: filler moved");
            }
        }
    }

    /// By hand: two steps from w = 1 with gradients 0.5 and −0.25, rate 0.1.
    #[test]
    fn first_steps_by_hand() {
        let after = |of: Update| {
            let mut p = Parameter::new(of, &[1.0]);
            let step = |p: &mut Parameter, step, g| {
                p.step(Moment { seed: 1, step, learning_rate: 0.1 }, &[g]);
                p.values()[0]
            };
            [step(&mut p, 0, 0.5), step(&mut p, 1, -0.25)]
        };
        let near = |found: [f64; 2], wanted: [f64; 2]| {
            assert!(found.iter().zip(wanted).all(|(f, w)| (f - w).abs() < 3e-7), "{found:?}, not {wanted:?}");
        };
        near(after(Update::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }), [0.95, 0.975]);
        // v = 0.5, then 0.9·0.5 − 0.25 = 0.2.
        near(after(Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }), [0.95, 0.93]);
        // 0.5 + 0.9·0.5 = 0.95, then −0.25 + 0.9·0.2 = −0.07.
        near(after(Update::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 }), [0.905, 0.912]);
        // The first step of Adam is the rate, whatever the gradient. Then m = 0.9·0.05 − 0.1·0.25 = 0.02, over 0.19;
        // v = 0.999·2.5e-4 + 0.001·0.0625 = 3.1225e-4, over 0.001999.
        let adam = |weight_decay, decoupled| {
            after(Update::Adam { beta1: 0.9, beta2: 0.999, epsilon: 0.0, weight_decay, decoupled })
        };
        let second = 0.1 * (0.02 / 0.19) / (3.1225e-4f64 / 0.001999).sqrt();
        near(adam(0.0, false), [0.9, 0.9 - second]);
        near(adam(0.5, true), [0.85, 0.85 * 0.95 - second]);
        // s = 0.1·0.25 = 0.025, then 0.9·0.025 + 0.1·0.0625 = 0.02875.
        let first = 1.0 - 0.05 / 0.025f64.sqrt();
        let rms = Update::RmsProp { alpha: 0.9, epsilon: 0.0, momentum: 0.0, weight_decay: 0.0 };
        near(after(rms), [first, first + 0.025 / 0.02875f64.sqrt()]);
        // l = 0.01·1 / 0.5: v = 0.01, whatever the gradient's size; then l = 0.01·0.999 / 0.25.
        let lars = Update::Lars { momentum: 0.0, weight_decay: 0.0, trust: 0.01 };
        near(after(lars), [0.999, 0.999 + 0.1 * 0.00999]);
    }

    /// Norms are those of the whole parameter, not of a tile.
    #[test]
    fn lars_sees_the_whole_parameter() {
        let len = 3 * TILE;
        let mut p = Parameter::new(Update::Lars { momentum: 0.0, weight_decay: 0.0, trust: 0.5 }, &vec![1.0; len]);
        let g: Vec<f64> = (0..len).map(|i| if i < TILE { 3.0 } else { 0.0 }).collect();
        p.step(Moment { seed: 1, step: 0, learning_rate: 1.0 }, &g);
        // |w| = √(3·TILE), |g| = √(9·TILE): l = 0.5/√3.
        let wanted = 1.0 - 1.5 / 3f64.sqrt();
        let w = p.values();
        assert!((w[0] - wanted).abs() < 3e-7 && w[len - 1] == 1.0, "{} {}", w[0], w[len - 1]);
    }

    /// Without a gradient or a weight LARS is SGD: biases start at zero and must be able to leave it.
    #[test]
    fn lars_leaves_zero() {
        let mut p = Parameter::new(Update::Lars { momentum: 0.9, weight_decay: 1e-4, trust: 0.001 }, &[0.0]);
        p.step(Moment { seed: 1, step: 0, learning_rate: 0.5 }, &[0.25]);
        assert_eq!(p.values(), [-0.125]);
    }
}
