//! Ranks that are threads of one process: a mailbox for every pair.
//!
//! Always true
//! - After a warm-up no message allocates: its bytes go into the memory of one that was received.

use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering};
use crate::{Communicator, Error, Transport};
use std::collections::VecDeque;

/// Communicators for `ranks` ranks of this process.
pub fn threads(ranks: usize) -> Vec<Communicator> {
    let shared = Arc::new(Shared {
        boxes: (0..ranks * ranks).map(|_| Mutex::new(Mailbox::default())).collect(),
        ranks,
        over: AtomicBool::new(false),
        cause: Mutex::new(None),
    });
    let hosts = vec![host(); ranks];
    (0..ranks)
        .map(|rank| Communicator::new(rank, hosts.clone(), Transport::Threads(Mailboxes(shared.clone()))))
        .collect()
}

/// This computer's name, as far as the system says.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".into() } else { name.trim().into() }
}

/// Every pair's mailbox.
#[derive(Clone, Debug)]
pub(crate) struct Mailboxes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    boxes: Vec<Mutex<Mailbox>>,
    ranks: usize,
    over: AtomicBool,
    cause: Mutex<Option<Error>>,
}

#[derive(Debug, Default)]
struct Mailbox {
    waiting: VecDeque<(u64, Vec<u8>)>,
    free: Vec<Vec<u8>>,
}

impl Mailbox {
    /// The largest free memory first, so that it fits soon and for good.
    fn take_free(&mut self) -> Vec<u8> {
        let largest = (0..self.free.len()).max_by_key(|&i| self.free[i].capacity());
        largest.map(|i| self.free.swap_remove(i)).unwrap_or_default()
    }
}

impl Mailboxes {
    fn mailbox(&self, from: usize, to: usize) -> MutexGuard<'_, Mailbox> {
        // A rank that panicked while it held the lock left whole messages behind: taking over is safe.
        self.0.boxes[from * self.0.ranks + to].lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn send(&self, from: usize, to: usize, tag: u64, bytes: &[u8]) {
        // Memory is filled outside the lock: whoever looks for messages goes on meanwhile.
        let mut message = self.mailbox(from, to).take_free();
        message.clear();
        message.extend_from_slice(bytes);
        self.mailbox(from, to).waiting.push_back((tag, message));
    }

    pub fn try_receive(&self, from: usize, to: usize, tag: u64, into: &mut [u8]) -> Result<bool, Error> {
        // Before the look: what a rank sent before it ended is still to be had.
        let over = self.0.over.load(Ordering::Acquire);
        let mut mailbox = self.mailbox(from, to);
        let Some(at) = mailbox.waiting.iter().position(|(t, _)| *t == tag) else {
            drop(mailbox);
            return if over { Err(self.cause()) } else { Ok(false) };
        };
        let (_, message) = mailbox.waiting.remove(at).expect("bug: a message vanished");
        drop(mailbox);
        if message.len() != into.len() {
            return Err(Error::Length { source_rank: from, tag, sent: message.len(), wanted: into.len() });
        }
        into.copy_from_slice(&message);
        self.mailbox(from, to).free.push(message);
        Ok(true)
    }

    pub fn end(&self, rank: usize, host: &str, cause: &str) {
        let mut first = self.0.cause.lock().unwrap_or_else(|e| e.into_inner());
        first.get_or_insert_with(|| Error::Ended { rank, host: host.into(), cause: cause.into() });
        self.0.over.store(true, Ordering::Release);
    }

    /// Why the first rank ended, if one did.
    pub fn first_end(&self) -> Option<Error> {
        self.0.over.load(Ordering::Acquire).then(|| self.cause())
    }

    fn cause(&self) -> Error {
        let first = self.0.cause.lock().unwrap_or_else(|e| e.into_inner());
        first.clone().expect("bug: over without a cause")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_end_is_named_to_all() {
        let ranks = threads(3);
        ranks[1].end("out of memory");
        ranks[2].end("lost a peer");
        let error = ranks[0].try_receive(2, 0, &mut []).unwrap_err();
        assert_eq!(error.to_string(), format!("rank 1 on host {} ended: out of memory", host()));
    }
}
