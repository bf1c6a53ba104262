//! Networks: what is computed, and nothing about who computes it, where or when.
//!
//! A [`Network`] is a list of [`Layer`]s, each reading earlier ones; a layer's [`Kind`] says what it computes and, as one
//! [`AxisMap`] per axis, how its output reads its inputs. Everything that later divides, sizes or times a network derives
//! from these.
//!
//! Knows nothing of ranks, memory or time.
#![forbid(unsafe_code)]

mod axis_map;
mod error;
mod fields;
mod file;
mod fuse;
pub mod layers;
mod loss;
mod network;
mod shape;
mod suggestion;
mod summary;
pub mod zoo;

pub use axis_map::{AxisMap, Edge, Sampling};
pub use error::{Error, Flaw, Misfit, Place};
pub use fuse::{Folded, FoldedNorm};
pub use layers::{Init, Kind, Operation, Parameter, Role};
pub use loss::Loss;
pub use network::{Layer, LayerId, Network};
pub use shape::{AXES, Axis, Region, Shape};
pub use suggestion::suggestion;
pub use summary::LayerSummary;
