//! Training: what surrounds a step. Data, optimizers and schedules, initial weights, checkpoints, the folder a run leaves.
//!
//! Knows nothing of how a layer is split.
#![forbid(unsafe_code)]

mod agreement;
mod checkpoint;
mod compare;
pub mod data;
mod digest;
mod error;
mod evaluate;
mod fold;
mod initial;
mod metrics;
mod number;
mod optimizer;
mod run_folder;
pub mod safetensors;
mod schedule;
pub mod state;
mod trainer;
mod weights;
mod whole;

pub use agreement::agree;
pub use checkpoint::{Checkpoint, Checkpoints, DamagedCheckpoint, EpochSums, Flaw, Found};
pub use compare::{Comparison, compare, compare_metrics};
pub use digest::{digest, file_digest, layer_digests, text_digest};
pub use error::{Broken, Difference, Error, NotFinite, panic_text};
pub use evaluate::{Evaluated, Evaluation};
pub use fold::fold;
pub use initial::{initial, initial_range};
pub use metrics::{MetricsLine, MetricsLog, Scores};
pub use optimizer::{Adam, AdamW, Lars, Optimizer, RmsProp, Sgd};
pub use run_folder::RunFolder;
pub use schedule::{Curve, Schedule};
pub use trainer::{
    EpochReport, Observer, Outcome, Setup, Start, StepReport, UNMEASURED, UNRECORDED, train, train_rank,
};
pub use weights::{Misfit, NamedTensor, Weights, fit};
