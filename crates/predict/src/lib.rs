//! Predictions: how long a training step would take, and why.
//!
//! A [`Machine`] is a described or measured computer or cluster. [`simulate`] runs the programs of a job's ranks over it, op by
//! op and message by message, and gives an [`Estimate`]: seconds by phase and layer, bytes, memory, the bottleneck by name.
//! [`collective`] and [`closed`] have the published formulas beside which that can be held.
//!
//! Knows nothing of engines or transport: it reads the programs that they run.
#![forbid(unsafe_code)]

pub mod closed;
pub mod collective;
mod cost;
mod error;
mod estimate;
mod fold;
mod machine;
mod play;
mod scene;
mod script;
mod simulate;
mod sum;

pub use cost::{Ask, Entry, Ratios, Table, ask, roofline_seconds};
pub use error::{Error, Place};
pub use estimate::{Activity, Estimate, Event, LayerTimes, Phases, chrome_trace};
pub use fold::{Folding, unlike};
pub use machine::{Level, Machine, Nodes, Seat};
pub use script::{Done, PassGroup, Way, done};
pub use simulate::{MOST_UNLIKE, Prepared, Question, Simulation, simulate};
pub use sum::{Collectives, Spread, Sum};
