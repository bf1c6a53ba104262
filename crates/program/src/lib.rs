//! Programs: what one rank does in a step, and in which memory.
//!
//! A [`Program`] is a value: a list of [`Op`]s with explicit dependencies over planned buffers. The engine runs it, a simulator
//! can time it, its [`MemoryPlan`] sizes it. [`lower`] makes it from a network and a strategy, pass by pass: place and exchange
//! (which regions, which transfers), lower (forward, loss, backward, update), depend, prioritise, plan memory.
//!
//! Knows nothing of how it is run or timed, nor of transport.
#![forbid(unsafe_code)]

mod access;
mod ahead;
mod bucket;
mod depend;
mod feed;
mod gather;
mod holding;
mod home;
mod lower;
mod memory;
mod norm;
mod parts;
mod pieces;
mod place;
mod prioritise;
mod program;
mod reduce;
mod stages;
mod travel;
mod update;

pub use feed::{AHEAD, ahead};
pub use home::ParameterHome;
pub use lower::{Division, Halos, Options, lower, lower_ops, memory_plan};
pub use memory::MemoryPlan;
pub use norm::{NormOver, TOLD};
pub use prioritise::longest_paths;
pub use program::{
    Access, Action, Buffer, BufferId, Home, KeptAt, Number, Op, OpId, Part, Program, Purpose, Shard, Subject,
    TILE_BYTES, What, layer_of,
};
pub use reduce::SumOrder;
