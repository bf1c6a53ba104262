//! What workers share: the standard library's, or that of a checker which tries many schedules (feature `shuttle`, for tests).

#[cfg(feature = "shuttle")]
pub use shuttle::{
    hint::spin_loop,
    sync::{Arc, Condvar, Mutex, atomic},
    thread,
};
#[cfg(not(feature = "shuttle"))]
pub use std::{
    hint::spin_loop,
    sync::{Arc, Condvar, Mutex, atomic},
    thread,
};
