//! A step allocates nothing and runs no reference code. Alone in its process: both are counted for all of it.

mod harness;

use convoy_engine::Batch;
use convoy_kernels::Moment;
use convoy_split::Strategy;
use harness::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Counts allocations of the whole process.
struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_step_allocates_nothing_and_runs_no_reference_code() {
    let net = residual(true);
    let rank = convoy_comm::threads(1).pop().unwrap();
    let mut engine = engine(&net, &Strategy::single(&net), Way { threads: 2, ..plain(8) }, rank, |_| {});
    let (images, targets) = (images(engine.program(0), 0, 0), targets(&net, engine.program(0), 0, 0));
    let batch = Batch { images: &images, targets: &targets };
    engine.step(0, batch, Moment::default()).unwrap();
    let calls = convoy_kernels::reference::calls();
    // A step that is recorded does not, either.
    engine.record(0, 2);
    let before = ALLOCATIONS.load(SeqCst);
    for step in 0..3 {
        engine.step(0, batch, Moment { seed: 1, step, learning_rate: 0.01 }).unwrap();
    }
    assert_eq!(ALLOCATIONS.load(SeqCst), before, "steps allocate");
    assert_eq!(convoy_kernels::reference::calls(), calls, "reference code ran in a step");
}
