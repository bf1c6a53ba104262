//! Convoy trains convolutional networks on as many cores as a person has.
//!
//! The front door: a [`Draft`] is what a person typed, a [`Job`] what was meant, a [`Run`] what happens then. The rest is in
//! the crates behind it; `command` is the program `convoy`.
//!
//! ```
//! use convoy::{Draft, Run};
//! use std::sync::atomic::AtomicBool;
//! # let folder = tempfile::tempdir().unwrap();
//! let mut draft = Draft::default();
//! draft.read("[train]\nsteps = 3\nbatch = 16\n[data]\ntest = 'none'", "job.toml".as_ref());
//! # draft.set("run.folder", folder.path().to_str().unwrap());
//! let run = Run::new(&draft.job()?)?;
//! let outcome = run.train(&AtomicBool::new(false), &mut ())?;
//! assert_eq!(outcome.steps, 3);
//! assert!(run.folder().model().exists());
//! # Ok::<(), convoy::Errors>(())
//! ```
#![forbid(unsafe_code)]

mod auto;
mod calibration;
pub mod command;
mod draft;
mod error;
pub mod fields;
mod job;
mod links;
pub mod machine;
mod measured;
mod part;
mod plan_file;
mod ready;
mod run;
mod survey;
mod words;
mod world;
mod yardstick;

pub use draft::Draft;
pub use error::{Error, Errors, Place, TargetShapes};
pub use job::{DataFields, Job, NetworkFields, Normalisation, ParallelFields, RunFields, TestData, TrainFields};
pub use ready::Ready;
pub use run::Run;
pub use world::World;

/// Code in documents is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
