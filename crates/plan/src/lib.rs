//! Plans: which strategy, and why.
//!
//! [`plan`] prices every way to cut every layer over the ranks, finds the cheapest combination exactly ([`eliminate`]), simulates
//! the best and the plain ones, and chooses the one that serves the [`Goal`] best among those whose memory fits.
//!
//! Knows nothing of kernels, engines or transport.
#![forbid(unsafe_code)]

mod eliminate;
mod grids;
mod planner;
mod price;

pub use eliminate::{Chosen, Decision, Found, Keep, Price, eliminate};
pub use grids::grids;
pub use planner::{Candidate, Plan, mixed, plan, plan_of};

use convoy_net::Network;
use convoy_predict::{Collectives, Machine};
use convoy_program::Options;

/// What a plan is for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub network: &'a Network,
    pub options: &'a Options,
    pub machine: &'a Machine,
    pub ranks: usize,
    pub threads: Option<usize>,
    pub ranks_per_node: Option<usize>,
    pub collectives: Collectives,
    /// Bytes that a rank may use, where that is less than its share of a node's.
    pub budget_bytes: Option<f64>,
    pub goal: Goal,
    /// Whether weights may be divided over ranks where memory is short, too.
    pub may_shard: bool,
}

/// What should be small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// Seconds of a step.
    #[default]
    Time,
    /// Bytes of the heaviest rank.
    Memory,
    /// Seconds of a step times the ranks that are used.
    Cost,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error(
        "no strategy fits {budget} bytes a rank\n  help: `{strategy}` needs least, {least} bytes; a smaller batch or more ranks"
    )]
    Budget { budget: u64, least: u64, strategy: String },
    #[error("{0}")]
    Strategy(String),
    #[error("{0}")]
    Predict(#[from] convoy_predict::Error),
    #[error("{0}")]
    Network(#[from] convoy_net::Error),
}
