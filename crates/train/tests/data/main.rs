//! Data: every source reads back what was written, bad input is an error with a text, and batches do not depend on who
//! prepares them or where a run began.

mod augment;
mod errors;
mod files;
mod loader;
mod mutations;
mod sources;
