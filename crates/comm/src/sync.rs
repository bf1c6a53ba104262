//! What threads share: the standard library's, or that of a checker which tries many schedules (feature `shuttle`, for tests).

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool, atomic::Ordering};
#[cfg(feature = "shuttle")]
pub use shuttle::thread::{sleep, yield_now};
#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool, atomic::Ordering};
#[cfg(not(feature = "shuttle"))]
pub use std::thread::{sleep, yield_now};
