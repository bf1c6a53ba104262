//! Functions of one number, as types: kernels that apply one in their loops are compiled for each.
//!
//! Twin: `reference/activation.rs`.

use crate::{Operand, math};
use convoy_net::layers::Activation;

/// A function of one number. All methods are `#[inline(always)]`: they run inside wide loops.
pub trait Function: Copy + Send + Sync + 'static {
    /// What the slope is computed from.
    fn kept(self) -> Operand {
        Operand::Input(0)
    }
    fn value(self, x: f32) -> f32;
    /// The slope, from the input or the output as `kept` says.
    fn slope(self, kept: f32) -> f32;
    /// The slope from the input.
    #[inline(always)]
    fn slope_at(self, x: f32) -> f32 {
        self.slope(if self.kept() == Operand::Output { self.value(x) } else { x })
    }
}

/// No function at all.
#[derive(Clone, Copy)]
pub struct Identity;

impl Function for Identity {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn slope(self, _: f32) -> f32 {
        1.0
    }
}

#[derive(Clone, Copy)]
pub struct Relu;

impl Function for Relu {
    fn kept(self) -> Operand {
        Operand::Output
    }
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        // This way round, NaN stays NaN.
        if x < 0.0 { 0.0 } else { x }
    }
    #[inline(always)]
    fn slope(self, y: f32) -> f32 {
        if y > 0.0 { 1.0 } else { 0.0 }
    }
}

#[derive(Clone, Copy)]
pub struct LeakyRelu {
    pub slope: f32,
}

impl Function for LeakyRelu {
    fn kept(self) -> Operand {
        // A negative slope hides the input's sign.
        if self.slope >= 0.0 { Operand::Output } else { Operand::Input(0) }
    }
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        if x > 0.0 { x } else { self.slope * x }
    }
    #[inline(always)]
    fn slope(self, kept: f32) -> f32 {
        if kept > 0.0 { 1.0 } else { self.slope }
    }
}

#[derive(Clone, Copy)]
pub struct Clip {
    pub low: f32,
    pub high: f32,
}

impl Function for Clip {
    fn kept(self) -> Operand {
        Operand::Output
    }
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        let x = if x < self.low { self.low } else { x };
        if x > self.high { self.high } else { x }
    }
    #[inline(always)]
    fn slope(self, y: f32) -> f32 {
        if y > self.low && y < self.high { 1.0 } else { 0.0 }
    }
}

#[derive(Clone, Copy)]
pub struct Sigmoid;

impl Function for Sigmoid {
    fn kept(self) -> Operand {
        Operand::Output
    }
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        math::sigmoid(x)
    }
    #[inline(always)]
    fn slope(self, y: f32) -> f32 {
        y * (1.0 - y)
    }
}

#[derive(Clone, Copy)]
pub struct Tanh;

impl Function for Tanh {
    fn kept(self) -> Operand {
        Operand::Output
    }
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        math::tanh(x)
    }
    #[inline(always)]
    fn slope(self, y: f32) -> f32 {
        (1.0 - y) * (1.0 + y)
    }
}

#[derive(Clone, Copy)]
pub struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * math::sigmoid(x)
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let s = math::sigmoid(x);
        s * (1.0 + x * (1.0 - s))
    }
}

#[derive(Clone, Copy)]
pub struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * math::normal(x)
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        math::normal(x) + x * math::density(x)
    }
}

#[derive(Clone, Copy)]
pub struct HardSwish;

impl Function for HardSwish {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * HardSigmoid.value(x)
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let middle = x / 3.0 + 0.5;
        let left = if x > -3.0 { middle } else { 0.0 };
        if x < 3.0 { left } else { 1.0 }
    }
}

#[derive(Clone, Copy)]
pub struct HardSigmoid;

impl Function for HardSigmoid {
    fn kept(self) -> Operand {
        Operand::Output
    }
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        Clip { low: 0.0, high: 6.0 }.value(x + 3.0) / 6.0
    }
    #[inline(always)]
    fn slope(self, y: f32) -> f32 {
        if y > 0.0 && y < 1.0 { 1.0 / 6.0 } else { 0.0 }
    }
}

/// Work to be done with a function whose type is known.
pub trait With {
    type Result;
    fn with(self, f: impl Function) -> Self::Result;
}

/// Does work with an activation's function, or with none.
pub fn with<W: With>(activation: Option<Activation>, work: W) -> W::Result {
    match activation {
        None => work.with(Identity),
        Some(Activation::Relu) => work.with(Relu),
        Some(Activation::LeakyRelu { slope }) => work.with(LeakyRelu { slope }),
        Some(Activation::Clip { low, high }) => work.with(Clip { low, high }),
        Some(Activation::Sigmoid) => work.with(Sigmoid),
        Some(Activation::Tanh) => work.with(Tanh),
        Some(Activation::Silu) => work.with(Silu),
        Some(Activation::Gelu) => work.with(Gelu),
        Some(Activation::HardSwish) => work.with(HardSwish),
        Some(Activation::HardSigmoid) => work.with(HardSigmoid),
    }
}
