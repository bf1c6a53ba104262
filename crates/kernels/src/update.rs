//! Updates: what an optimizer does with a parameter and its gradient in one step.
//!
//! Fast: `fast/update.rs`, reference: `reference/update.rs`. Schedules and which parameter gets which update are not known here.

/// An optimizer's arithmetic, with its constants. The learning rate and the number of steps done come with each step.
///
/// `w` is the parameter, `g` its gradient, `r` the learning rate, `t` the number of this step, counted from 1. Formulas are
/// PyTorch's; LARS, which PyTorch has not, is You and others (2017) with the learning rate outside the momentum, as in the
/// common additions to PyTorch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Update {
    /// `g += weight_decay·w; v = momentum·v + g; w -= r·v`, with Nesterov `w -= r·(g + momentum·v)`.
    Sgd { momentum: f32, nesterov: bool, weight_decay: f32 },
    /// `m = beta1·m + (1 − beta1)·g; v = beta2·v + (1 − beta2)·g²`, both divided by `1 − beta^t`, then
    /// `w -= r·m / (√v + epsilon)`. Before that weight decay goes into the gradient (Adam) or, decoupled, shrinks the
    /// parameter by `1 − r·weight_decay` (AdamW).
    Adam { beta1: f32, beta2: f32, epsilon: f32, weight_decay: f32, decoupled: bool },
    /// `g += weight_decay·w; s = alpha·s + (1 − alpha)·g²; v = momentum·v + g / (√s + epsilon); w -= r·v`.
    RmsProp { alpha: f32, epsilon: f32, momentum: f32, weight_decay: f32 },
    /// `l = trust·|w| / (|g| + weight_decay·|w|)`, 1 where a norm is zero; `v = momentum·v + l·(g + weight_decay·w)`;
    /// `w -= r·v`. Norms are over the whole parameter, wherever its parts lie.
    Lars { momentum: f32, weight_decay: f32, trust: f32 },
}

impl Update {
    /// How many buffers of the parameter's length it remembers from step to step. They start as zeros.
    pub fn states(&self) -> usize {
        match *self {
            Update::Sgd { momentum, .. } => (momentum != 0.0) as usize,
            Update::Adam { .. } => 2,
            Update::RmsProp { momentum, .. } => 1 + (momentum != 0.0) as usize,
            Update::Lars { .. } => 1,
        }
    }
}
