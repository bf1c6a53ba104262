//! Kernels: how one core computes a layer.
//!
//! `reference/` is naive, readable and complete, in double precision; it never runs in a training step. `fast/` is what runs.
//! Each layer has a file of the same name in both and in `net`'s `layers/`; property tests hold the two together.
//!
//! A fast layer describes its passes as [`Stage`]s (what each reads and writes, its tiles, its work), which the program
//! sizes and orders, and prepares a [`Kernel`] for each, which the engine runs tile by tile.
//!
//! Knows nothing of ranks, networks or graphs.

pub mod fast;
mod layout;
pub mod math;
mod peak;
pub mod philox;
pub mod reference;
mod stage;
#[cfg(test)]
mod twin;
mod update;

/// A digest of this crate's sources: what was measured with other ones is noticed by it.
pub const SOURCES: &str = env!("CONVOY_KERNELS_SOURCES");

pub use fast::{Measured, measure};
pub use layout::{BLOCK, Layout};
pub use peak::{fma_peak_gflops, memory_gbytes};
pub use stage::{
    Geometry, Kernel, Make, Mode, Moment, Operand, Operands, Pass, Slot, Stage, Tensor, Winograd, Work, leaf_of,
    leaf_range,
};
pub use update::Update;
