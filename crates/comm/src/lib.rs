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
#![forbid(unsafe_code)]

mod collectives;
mod threads;
mod traffic;
mod wait;

pub use collectives::{
    AllReduce, Summand, Team, all_gather, all_reduce, barrier, broadcast, gather, reduce_scatter, slice,
};
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
    transport: threads::Mailboxes,
    counters: Counters,
    /// Seconds that a rank waits for another, as bits; infinite at first.
    deadline: AtomicU64,
}

impl Communicator {
    fn new(rank: usize, hosts: Vec<String>, transport: threads::Mailboxes) -> Communicator {
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
        self.transport.send(self.rank, to, tag, bytes);
    }

    /// Takes the next message of this tag from `from` if it has arrived.
    pub fn try_receive(&self, from: usize, tag: u64, into: &mut [u8]) -> Result<bool, Error> {
        self.transport.try_receive(from, self.rank, tag, into)
    }

    /// Waits for the next message of this tag from `from`; `what` says in a few words what it is.
    pub fn receive(&self, from: usize, tag: u64, into: &mut [u8], what: &str) -> Result<(), Error> {
        let mut wait = Wait::new(self);
        while !self.try_receive(from, tag, into)? {
            wait.pause(|| Waiting::new(self, from, what.into()))?;
        }
        Ok(())
    }

    /// Tells all ranks that this one ends, and why: their next call that would wait returns it as an error. The first to end
    /// is the one that is named.
    pub fn end(&self, cause: &str) {
        self.transport.end(self.rank, self.host(self.rank), cause);
    }

    /// How long a rank waits for another before it gives up; after half of it, it warns. Without one, for ever.
    pub fn set_deadline(&self, deadline: Duration) {
        self.deadline.store(deadline.as_secs_f64().to_bits(), Ordering::Relaxed);
    }

    fn deadline_seconds(&self) -> f64 {
        f64::from_bits(self.deadline.load(Ordering::Relaxed))
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
