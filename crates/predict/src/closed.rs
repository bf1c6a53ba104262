//! Closed forms: published formulas for a training step, beside which simulation can be held.
//!
//! [`paradl`] has ParaDL's strategies per epoch (PAPERS.md 6.3), [`pydtnn`] the roofline model of data and model parallelism
//! (PAPERS.md 3). Where a source has a slip, we compute what was meant; the tests show the slip beside it.

pub mod paradl;
pub mod pydtnn;
