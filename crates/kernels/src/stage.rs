//! Stages: how a layer tells the program what it will do, and how the engine makes it do it.
//!
//! A layer's pass over its tensors is one [`Stage`] or several: batch norm sums, then derives coefficients, then
//! normalises. A stage is plain data. The program lays out its operands and orders it among others; the engine asks for the
//! stage's [`Kernel`] once, when a program is loaded, and then runs tiles.
//!
//! Always true
//! - Tiles of a stage write disjoint elements, so that any number of workers may run them in any order.
//! - What a tile computes does not depend on how many tiles there are: same bits for any tiling.
//! - Running a tile allocates nothing.

use crate::Layout;
use convoy_net::{Region, Shape};
use std::ops::Range;

/// What a stage reads or writes, as its layer calls it. The program says where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operand {
    /// An input, as forward read it.
    Input(usize),
    /// The output, as forward wrote it.
    Output,
    /// The gradient of the output; wherever it is stored but not owned it is another rank's, or zero.
    OutputGradient,
    /// The gradient of an input.
    InputGradient(usize),
    /// A parameter in kernel order, trained or running.
    Parameter(usize),
    /// The gradient of a parameter in kernel order: this rank's sum over its samples.
    ParameterGradient(usize),
    /// Floats that the layer keeps for itself from one stage to a later one.
    Internal(usize),
    /// Doubles, `[sample][strip][column]`: sums of parts of samples, which the program folds into the `Sum` of the same
    /// number, over strips, then leaves, then ranks.
    Partial(usize),
    /// The `Partial` of the batch norm that reads the output: sums of its elements and of their squares.
    OutputSums,
    /// Doubles, `[column]`: sums over the global batch.
    Sum(usize),
    /// What the output should have been: labels `[n][d][h][w]`, or values `[n][c][d][h][w]`, dense, of the owned region.
    Target,
    /// What an optimizer remembers of a parameter.
    State(usize),
}

/// The kind of computation of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Parameters, inputs or sums in another order or domain, for the passes that follow.
    Transform(usize),
    Forward,
    /// Sums over samples that forward needs.
    Statistics,
    /// Few numbers from sums.
    Coefficients,
    InputGradient(usize),
    /// Gradient of parameter number so.
    WeightGradient(usize),
    /// Sums over samples that backward needs.
    GradientStatistics,
    GradientCoefficients,
    /// The optimizer's step.
    Update,
}

/// An operand that a stage is the first to write, with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Make {
    /// `Operand::Internal(number)` of so many bytes.
    Internal { number: usize, bytes: usize },
    /// `Operand::Partial(number)` of so many doubles a sample, `strips * columns`.
    Partial { number: usize, strips: usize, columns: usize },
}

/// What a stage asks of a machine, all tiles together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations, a multiply-add counts two.
    pub flops: f64,
    /// Bytes read and written, each once.
    pub bytes: f64,
}

/// One pass of a layer, as plain data.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    pub pass: Pass,
    pub reads: Vec<Operand>,
    pub writes: Vec<Operand>,
    /// Operands that did not exist before.
    pub makes: Vec<Make>,
    /// Pieces that workers take; 0 where there is nothing to do.
    pub tiles: usize,
    /// Floats each worker needs while it runs a tile.
    pub scratch: usize,
    pub work: Work,
}

/// Whether a program trains or only evaluates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Train,
    Evaluate,
}

/// A tensor as a rank stores it: the shape of the whole, and where its part lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    pub shape: Shape,
    pub layout: Layout,
}

/// Where a layer works: its tensors as this rank stores them, and which part it computes.
///
/// A rank's share of the parameters follows: filters are the channels of `region`, channels those that input 0 stores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// The layer's number in the network: it keys its random numbers.
    pub layer: usize,
    pub mode: Mode,
    /// Into how many groups of consecutive samples sums over the global batch are cut.
    pub leaves: usize,
    /// Samples of the largest of them: which algorithm a weight gradient takes depends on it.
    pub leaf_samples: usize,
    pub inputs: Vec<Tensor>,
    pub output: Tensor,
    /// The part of the output to compute; sums over samples run over it.
    pub region: Region,
    /// Elements of a channel that batch norm's sums run over: those of the whole output, or of the ranks that norm together.
    pub normed: usize,
    /// A batch norm takes sums of just this output: forward may make them (`OutputSums`) while it is near.
    pub summed: bool,
    /// A ReLU alone reads the output: forward applies it at once. Backward is that of what was before.
    pub rectified: bool,
    /// In training, how the output's gradient is stored.
    pub output_gradient: Option<Layout>,
    /// In training, per input whose gradient is wanted: how it is stored, and which part to compute.
    pub input_gradients: Vec<Option<(Layout, Region)>>,
    /// Per input: add to what its gradient holds already, rather than overwrite it.
    pub accumulate: Vec<bool>,
    pub winograd: Winograd,
}

/// Which algorithm convolutions of 3 x 3 windows with stride 1 or 2 and of 5 x 5 ones with stride 1 may use. Part of what is computed: it changes the rounding.
/// Errors are those against double precision, as multiples of the direct convolution's (`rounding_errors_are_as_stated`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Winograd {
    /// F(4x4, 3x3) where it pays: about three times as fast, at three to five times the rounding error; with stride 2 1.1 to
    /// 1.5 times as fast, at three to four times the rounding error, in gradients of weights under two. F(2x2, 5x5) where that pays: at three to four times
    /// the rounding error, in gradients of weights seven.
    #[default]
    Four,
    /// F(2x2, 3x3) where it pays: under twice as fast, no more rounding error.
    Two,
    Off,
}

/// Samples of leaf `leaf` of a batch, in global numbers. Leaves differ by at most one sample and may be empty.
pub fn leaf_range(batch: usize, leaves: usize, leaf: usize) -> Range<usize> {
    leaf * batch / leaves..(leaf + 1) * batch / leaves
}

/// The leaf that sample `sample` of a batch belongs to.
pub fn leaf_of(batch: usize, leaves: usize, sample: usize) -> usize {
    (0..leaves).find(|&l| leaf_range(batch, leaves, l).contains(&sample)).expect("bug: a sample outside its batch")
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    pub seed: u64,
    /// Steps done before this one.
    pub step: u64,
    pub learning_rate: f32,
}

/// Bytes of an operand. Tiles that run at the same time share it: each writes only elements that are its own.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub data: *mut u8,
    pub bytes: usize,
}

// SAFETY: a slot is only an address; `Operands` says who may use it how.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

/// The operands of one stage, found by name.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    slots: &'a [(Operand, Slot)],
    pub moment: Moment,
}

impl<'a> Operands<'a> {
    /// # Safety
    /// Each slot points to `bytes` bytes, aligned to 64, that live as long as `'a`; while a tile runs, nobody else writes
    /// what it reads, and nobody else touches what it writes.
    pub unsafe fn new(slots: &'a [(Operand, Slot)], moment: Moment) -> Operands<'a> {
        Operands { slots, moment }
    }

    /// Where an operand lies.
    pub fn slot(&self, operand: Operand) -> Slot {
        match self.slots.iter().find(|(o, _)| *o == operand) {
            Some((_, slot)) => *slot,
            None => panic!("bug: {operand:?} is not among this stage's operands"),
        }
    }

    /// All floats of an operand that no tile writes now.
    pub fn floats(&self, operand: Operand) -> &'a [f32] {
        let slot = self.slot(operand);
        // SAFETY: `new` was promised that the slot is valid and that nobody writes what is read.
        unsafe { std::slice::from_raw_parts(slot.data as *const f32, slot.bytes / 4) }
    }

    /// All doubles of an operand that no tile writes now.
    pub fn doubles(&self, operand: Operand) -> &'a [f64] {
        let slot = self.slot(operand);
        // SAFETY: as for `floats`.
        unsafe { std::slice::from_raw_parts(slot.data as *const f64, slot.bytes / 8) }
    }

    /// # Safety
    /// No other tile touches `range` (in floats) of this operand while the slice is used.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn floats_mut(&self, operand: Operand, range: Range<usize>) -> &'a mut [f32] {
        let slot = self.slot(operand);
        assert!(range.start <= range.end && range.end <= slot.bytes / 4, "bug: {operand:?} has no floats {range:?}");
        // SAFETY: in bounds as asserted; exclusive as the caller promises.
        unsafe { std::slice::from_raw_parts_mut((slot.data as *mut f32).add(range.start), range.len()) }
    }

    /// # Safety
    /// No other tile touches `range` (in doubles) of this operand while the slice is used.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn doubles_mut(&self, operand: Operand, range: Range<usize>) -> &'a mut [f64] {
        let slot = self.slot(operand);
        assert!(range.start <= range.end && range.end <= slot.bytes / 8, "bug: {operand:?} has no doubles {range:?}");
        // SAFETY: in bounds as asserted; exclusive as the caller promises.
        unsafe { std::slice::from_raw_parts_mut((slot.data as *mut f64).add(range.start), range.len()) }
    }
}

/// A stage made ready to run: tables and blocking are worked out, only memory is missing.
pub trait Kernel: Send + Sync {
    /// Runs one tile. `scratch` has the floats the stage asked for, with any content, aligned to 64 bytes.
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]);
}
