//! Splits: who holds and who computes which part of a network.
//!
//! A [`Grid`] says into how many parts a layer is cut along each axis, a [`Placement`] which ranks take the parts, a
//! [`Strategy`] has one placement per layer. From these and the layers' axis maps follow the regions that ranks own and need;
//! an [`Exchange`] lists what must travel between the two.
//!
//! Knows nothing of kernels, time or transport.
#![forbid(unsafe_code)]

mod error;
mod exchange;
mod grid;
mod needs;
mod strategy;

pub use error::{Error, Uncut};
pub use exchange::{Exchange, Transfer, pieces};
pub use grid::{Grid, Placement, Rank, block, sample_block};
pub use needs::{reached, read};
pub use strategy::{Strategy, check};
