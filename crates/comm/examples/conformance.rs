//! The conformance suite over ranks that are processes: `mpirun -n 4 conformance [PIECE_BYTES]`. Messages are cut into pieces of
//! so many bytes; without it, into what MPI can count.

#[path = "../tests/suite/mod.rs"]
mod suite;

use convoy_comm::Leave;
use convoy_comm::mpi::PIECE_BYTES;
use std::time::Duration;

fn main() {
    let piece_bytes = std::env::args().nth(1).map(|word| word.parse().expect("a number of bytes"));
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
