//! Communication: how ranks talk.
//!
//! A [`Communicator`] is a rank's handle to the others: it sends and receives bytes with tags, without waiting, and counts what
//! left. Ranks that are threads of one process talk through [`threads`].
//!
//! Knows nothing of tensors or layers.
#![forbid(unsafe_code)]

mod threads;

pub use threads::threads;

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a rank cannot go on talking.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("rank {rank} ended: {cause}")]
    Ended { rank: usize, cause: String },
    #[error("rank {source_rank} sent {sent} bytes with tag {tag} where {wanted} were expected")]
    Length { source_rank: usize, tag: u64, sent: usize, wanted: usize },
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
    size: usize,
    transport: threads::Mailboxes,
    sent_bytes: AtomicU64,
    sent_messages: AtomicU64,
}

impl Communicator {
    fn new(rank: usize, size: usize, transport: threads::Mailboxes) -> Communicator {
        Communicator { rank, size, transport, sent_bytes: AtomicU64::new(0), sent_messages: AtomicU64::new(0) }
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Hands bytes over for `to`. Messages of equal tag arrive in the order they were sent.
    pub fn send(&self, to: usize, tag: u64, bytes: &[u8]) {
        self.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.sent_messages.fetch_add(1, Ordering::Relaxed);
        self.transport.send(self.rank, to, tag, bytes);
    }

    /// Takes the next message of this tag from `from` if it has arrived.
    pub fn try_receive(&self, from: usize, tag: u64, into: &mut [u8]) -> Result<bool, Error> {
        self.transport.try_receive(from, self.rank, tag, into)
    }

    /// Tells all ranks that this one ends, and why: their next call that would wait returns it as an error. The first to end
    /// is the one that is named.
    pub fn end(&self, cause: &str) {
        self.transport.end(self.rank, cause);
    }

    /// Bytes sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Messages sent so far.
    pub fn sent_messages(&self) -> u64 {
        self.sent_messages.load(Ordering::Relaxed)
    }
}
