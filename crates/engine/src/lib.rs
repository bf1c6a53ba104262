//! The engine: runs programs on these cores.
//!
//! An [`Engine`] holds one rank's memory (what stays from step to step, and one arena for the buffers of a step) and its
//! workers. It loads programs, prepares their kernels once, and runs them: ready tiles are taken by longest remaining path,
//! messages are progressed by one worker between tiles.
//!
//! Knows nothing of strategies or of optimizers' reasons.

mod engine;
mod memory;
mod pool;
mod record;
mod run;
mod schedule;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod sync;

pub use engine::{Batch, Engine, Error, OpTime, Order, Settings};
pub use memory::Memory;
pub use record::{Recording, Span};
