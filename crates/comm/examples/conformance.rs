//! The conformance suite over ranks that are processes: `mpirun -n 4 conformance [PIECE_BYTES]`. Messages are cut into pieces of
//! so many bytes; without it, into what MPI can count.
//!
//! `mpirun -n 2 conformance large` sends one message of more bytes than 31 bits can count, and needs 9 GiB of memory; without mpirun
//! its two ranks are threads.

#[path = "../tests/suite/mod.rs"]
mod suite;

use convoy_comm::mpi::PIECE_BYTES;
use convoy_comm::{Launch, Leave, threads};
use std::time::Duration;

fn main() {
    let word = std::env::args().nth(1);
    if word.as_deref() == Some("large") {
        return large();
    }
    let piece_bytes = word.map(|word| word.parse().expect("a number of bytes"));
    let communicator = convoy_comm::mpi::world(piece_bytes.unwrap_or(PIECE_BYTES)).expect("a world");
    suite::run(&communicator);
    // The suite ends with the end of one rank.
    communicator.end("a rank ended");
    let leave = Leave { code: 3, patience: Duration::from_secs(60) };
    let code = leave.together(&communicator, |silent| {
        assert_eq!((communicator.rank(), silent), (communicator.size() - 1, &[][..]));
        println!("{} ranks conform, {} bytes a piece", communicator.size(), piece_bytes.unwrap_or(PIECE_BYTES));
    });
    assert_eq!(code, 3);
    communicator.finish();
}

/// A message whose length, and whose number of elements, needs more than 31 bits.
fn large() {
    const LENGTH: usize = (1 << 31) + 17;
    let by = match Launch::found() {
        Some(launch) => {
            let communicator = launch.world().expect("a world");
            assert_eq!(communicator.size(), 2, "a large message has one source and one target");
            suite::large(&communicator, LENGTH);
            communicator.finish();
            if communicator.rank() == 0 {
                return;
            }
            "processes"
        }
        None => {
            std::thread::scope(|scope| {
                threads(2).into_iter().for_each(|c| drop(scope.spawn(move || suite::large(&c, LENGTH))));
            });
            "threads"
        }
    };
    println!("a message of {LENGTH} bytes between {by}");
}
