//! Communication: how ranks talk.
//!
//! A [`Communicator`] is a rank's handle to the others: it sends and receives bytes with tags, without waiting, and counts what
//! left. Ranks that are threads of one process talk through [`threads`]; ranks that are processes through MPI. What several ranks
//! do together ([`barrier`], [`all_gather`], [`all_reduce`], ...) is written once, over both.
//!
//! Always true
//! - Whoever waits gives the core away, and can say for whom and for what it waits ([`Wait`]).
//! - A rank that ends tells the others why; none of them waits for it any longer.
//!
//! Knows nothing of tensors or layers.
#![deny(unsafe_code)]

mod collectives;
mod launch;
mod leave;
mod library;
#[cfg(feature = "mpi")]
pub mod mpi;
mod sync;
mod tell;
mod threads;
mod traffic;
mod wait;

pub use collectives::{
    AllReduce, Summand, Team, all_gather, all_reduce, barrier, broadcast, gather, reduce_scatter, slice,
};
pub use launch::Launch;
pub use leave::Leave;
pub use library::BY_LIBRARY;
pub use tell::tell;
pub use threads::threads;
pub use traffic::{Kind, Traffic};
pub use wait::{Wait, Waiting};

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use traffic::Counters;

/// Why a rank cannot go on talking.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("rank {rank} on host {host} ended: {cause}")]
    Ended { rank: usize, host: String, cause: String },
    #[error("rank {source_rank} sent {sent} bytes with tag {tag:#x} where {wanted} were expected")]
    Length { source_rank: usize, tag: u64, sent: usize, wanted: usize },
    #[error("rank {rank} on host {host} waited {seconds} s for {waiting}")]
    Silent { rank: usize, host: String, seconds: u64, waiting: Waiting },
    #[error("rank {rank} on host {host} was left alone: the process that started it is gone")]
    Orphan { rank: usize, host: String },
    #[error(
        "{} started {} processes, but this convoy was built without MPI and each would do everything\n  \
         help: build it with --features mpi; or start it once, with --ranks {}",
        launch.by, launch.processes, launch.processes
    )]
    WithoutMpi { launch: Launch },
    #[error(
        "{} started {} processes, but MPI knows of {size}\n  help: the launcher and the MPI library must belong together; \
         with Slurm: srun --mpi=pmix",
        launch.by, launch.processes
    )]
    World { launch: Launch, size: usize },
    #[error("this MPI library cannot be used by a process with threads (level SERIALIZED)")]
    Threads,
}

impl Error {
    /// The rank whose error it is: another one's end is that rank's.
    fn rank(&self, communicator: &Communicator) -> usize {
        match self {
            Error::Ended { rank, .. } => *rank,
            _ => communicator.rank(),
        }
    }
}

/// What carries the bytes.
#[derive(Debug)]
enum Transport {
    Threads(threads::Mailboxes),
    #[cfg(feature = "mpi")]
    Mpi(Box<mpi::World>),
}

/// A rank's handle to the others.
///
/// ```
/// let ranks = convoy_comm::threads(2);
/// ranks[0].send(1, 7, &[1, 2, 3]);
/// let mut bytes = [0; 3];
/// assert!(ranks[1].try_receive(0, 7, &mut bytes).unwrap());
/// assert_eq!(bytes, [1, 2, 3]);
/// ```
#[derive(Debug)]
pub struct Communicator {
    rank: usize,
    /// By rank: where it runs.
    hosts: Vec<String>,
    transport: Transport,
    counters: Counters,
    /// Seconds that a rank waits for another, as bits; infinite at first.
    deadline: AtomicU64,
}

/// A rank whose thread panics tells the others, who would wait for it for ever.
impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end("it panicked");
        }
    }
}

impl Communicator {
    fn new(rank: usize, hosts: Vec<String>, transport: Transport) -> Communicator {
        let deadline = AtomicU64::new(f64::INFINITY.to_bits());
        Communicator { rank, hosts, transport, counters: Counters::default(), deadline }
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// The computer that a rank runs on.
    pub fn host(&self, rank: usize) -> &str {
        &self.hosts[rank]
    }

    /// Hands bytes over for `to`. Messages of equal tag arrive in the order they were sent. The tag's first four bits say
    /// what [`Kind`] of traffic it is.
    pub fn send(&self, to: usize, tag: u64, bytes: &[u8]) {
        self.counters.add(Kind::of(tag), bytes.len());
        match &self.transport {
            Transport::Threads(mailboxes) => mailboxes.send(self.rank, to, tag, bytes),
            #[cfg(feature = "mpi")]
            Transport::Mpi(world) => world.send(to, tag, bytes),
        }
    }

    /// Takes the next message of this tag from `from` if it has arrived.
    pub fn try_receive(&self, from: usize, tag: u64, into: &mut [u8]) -> Result<bool, Error> {
        match &self.transport {
            Transport::Threads(mailboxes) => mailboxes.try_receive(from, self.rank, tag, into),
            #[cfg(feature = "mpi")]
            Transport::Mpi(world) => world.try_receive(from, tag, into, &self.hosts),
        }
    }

    /// Waits for the next message of this tag from `from`; `what` says in a few words what it is.
    pub fn receive(&self, from: usize, tag: u64, into: &mut [u8], what: &str) -> Result<(), Error> {
        let mut wait = Wait::new(self);
        while !self.try_receive(from, tag, into)? {
            if let Err(error) = wait.pause(|| Waiting::new(self, from, what.into())) {
                // What came together with the bad news is still to be had.
                return if self.try_receive(from, tag, into) == Ok(true) { Ok(()) } else { Err(error) };
            }
        }
        Ok(())
    }

    /// Tells all ranks that this one ends, and why: their next call that would wait returns it as an error. The first to end
    /// is the one that is named.
    pub fn end(&self, cause: &str) {
        match &self.transport {
            Transport::Threads(mailboxes) => mailboxes.end(self.rank, self.host(self.rank), cause),
            #[cfg(feature = "mpi")]
            Transport::Mpi(world) => world.end(cause),
        }
    }

    /// Whether something happened that ends this rank too: another one's end, the loss of whoever started it.
    pub fn look_around(&self) -> Result<(), Error> {
        match &self.transport {
            Transport::Threads(mailboxes) => mailboxes.first_end().map_or(Ok(()), Err),
            #[cfg(feature = "mpi")]
            Transport::Mpi(world) => world.look_around(self.rank, &self.hosts),
        }
    }

    /// How long a rank waits for another before it gives up; after half of it, it warns. Without one, for ever.
    pub fn set_deadline(&self, deadline: Duration) {
        self.deadline.store(deadline.as_secs_f64().to_bits(), Ordering::Relaxed);
    }

    fn deadline_seconds(&self) -> f64 {
        f64::from_bits(self.deadline.load(Ordering::Relaxed))
    }

    #[cfg(feature = "mpi")]
    fn mpi(&self) -> Option<&mpi::World> {
        match &self.transport {
            Transport::Threads(_) => None,
            Transport::Mpi(world) => Some(world),
        }
    }

    /// By rank: which rank ended first, as far as that one knows; waits for all to end at most `patience`.
    fn ends(&self, _patience: Duration) -> Vec<Option<usize>> {
        match &self.transport {
            // Threads share what they know: the first end is every rank's.
            Transport::Threads(mailboxes) => vec![mailboxes.first_end().map(|end| end.rank(self)); self.size()],
            #[cfg(feature = "mpi")]
            Transport::Mpi(world) => world.ends(_patience),
        }
    }

    /// Waits until all that was sent has left, at most `patience`.
    fn flush(&self, _patience: Duration) {
        #[cfg(feature = "mpi")]
        if let Some(world) = self.mpi() {
            world.flush(_patience);
        }
    }

    /// The last call, by every rank and its main thread: MPI is left in good order. A process that ends without it should
    /// end with an error.
    pub fn finish(&self) {
        #[cfg(feature = "mpi")]
        if let Some(world) = self.mpi() {
            // MPI waits for the last rank too, but spins; where a rank has ended before, nobody will be long.
            let _ = barrier(self, &Team::all(self));
            world.finish();
        }
    }

    /// Bytes sent so far.
    pub fn sent_bytes(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.sent(*kind).bytes).sum()
    }

    /// Messages sent so far.
    pub fn sent_messages(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.sent(*kind).messages).sum()
    }

    /// What was sent so far of one kind.
    pub fn sent(&self, kind: Kind) -> Traffic {
        self.counters.get(kind)
    }
}
