//! The conformance suite over ranks that are threads of this process.

mod suite;

use convoy_comm::{Team, barrier, threads};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn on_all(ranks: usize, work: impl Fn(&convoy_comm::Communicator) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        threads(ranks).into_iter().for_each(|c| drop(scope.spawn(move || work(&c))));
    });
}

#[test]
fn threads_conform() {
    [1, 2, 3, 4, 7].into_iter().for_each(|ranks| on_all(ranks, suite::run));
}

/// Small here; `examples/conformance.rs` has it with more than 31 bits can count.
#[test]
fn a_message_arrives_whole() {
    [0, 7, 8, (1 << 20) + 17].into_iter().for_each(|length| on_all(2, |c| suite::large(c, length)));
}

#[test]
fn nobody_leaves_a_barrier_before_the_last_has_come() {
    for ranks in [1, 2, 3, 5, 8] {
        let come = AtomicUsize::new(0);
        on_all(ranks, |c| {
            for round in 1..=50 {
                come.fetch_add(1, SeqCst);
                barrier(c, &Team::all(c)).unwrap();
                assert!(come.load(SeqCst) >= round * ranks);
            }
        });
    }
}
