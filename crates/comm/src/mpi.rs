//! Ranks that are processes: bytes over MPI.
//!
//! A message is a header (tag, length) and its bytes, sent from memory of our own as one or more pieces that MPI can count.
//! Receivers take whatever comes from a rank in its order and keep it by tag: MPI's own tags are too short for ours, and a
//! receive that is not posted need not be cancelled.
//!
//! Always true
//! - MPI is called by one thread at a time (its level `SERIALIZED`): all calls go through one lock.
//! - No call waits inside of MPI, but for start, end and the making of teams for sums that MPI makes.
//! - After a warm-up no message allocates.
//!
//! MPI ends the job by itself where a call fails (its default handler). It does not tell that a peer is gone: deadlines do.

#![allow(unsafe_code, reason = "MPI is a C library")]

use crate::{BY_LIBRARY, Communicator, Error, Summand, Team, Transport, Wait, Waiting, all_gather, threads::host};
use mpi_sys as ffi;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::os::unix::process::parent_id;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes that one call of MPI carries: counts are signed and have 32 bits.
pub const PIECE_BYTES: usize = 1 << 30;

/// Tag, length.
const HEADER: usize = 16;
/// The tag of a rank's last message.
const END: u64 = u64::MAX;
/// The tag of a sum that is waited for, so that there is no other.
const ALONE: u64 = u64::MAX - 1;
/// The one tag that MPI sees.
const MPI_TAG: c_int = 1;

/// The communicator of all processes that mpirun started. Called once, by the main thread. Messages are cut into pieces of
/// `piece_bytes`, at least the header's.
pub fn world(piece_bytes: usize) -> Result<Communicator, Error> {
    let (mut rank, mut size, mut provided) = (0, 0, 0);
    let (mut own, mut for_teams) = (null_comm(), null_comm());
    // SAFETY: the first calls of MPI, with pointers to locals; no arguments are handed over, as the standard allows.
    unsafe {
        check(ffi::MPI_Init_thread(null_mut(), null_mut(), ffi::RSMPI_THREAD_SERIALIZED, &mut provided));
        check(ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank));
        check(ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut size));
        check(ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut own));
        check(ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut for_teams));
    }
    // SAFETY: a constant of the library.
    if provided < unsafe { ffi::RSMPI_THREAD_SERIALIZED } {
        return Err(Error::Threads);
    }
    let (rank, size) = (rank as usize, size as usize);
    let state = State {
        own,
        for_teams,
        rank,
        piece_bytes: piece_bytes.clamp(HEADER, PIECE_BYTES),
        outgoing: vec![],
        sent: vec![],
        peers: (0..size).map(|_| Peer::default()).collect(),
        free: vec![],
        ended: false,
        teams: HashMap::new(),
        sums: HashMap::new(),
    };
    let world = World { state: Mutex::new(state), parent: parent_id() };
    let mut communicator = Communicator::new(rank, vec![host(); size], Transport::Mpi(Box::new(world)));
    let hosts = all_gather(&communicator, &Team::all(&communicator), host().as_bytes())?;
    communicator.hosts = hosts.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    communicator.counters = Default::default();
    Ok(communicator)
}

fn null_comm() -> ffi::MPI_Comm {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_COMM_NULL }
}

fn null_request() -> ffi::MPI_Request {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

/// MPI's default handler has ended the job where a call failed; another handler would bring its code here.
fn check(code: c_int) {
    assert_eq!(code as u32, ffi::MPI_SUCCESS, "bug: a call of MPI failed");
}

/// All processes.
#[derive(Debug)]
pub(crate) struct World {
    state: Mutex<State>,
    /// Who started this process.
    parent: u32,
}

#[derive(Debug)]
struct State {
    own: ffi::MPI_Comm,
    /// What teams are made from: Open MPI sends messages of its own on it, which must not meet ours.
    for_teams: ffi::MPI_Comm,
    rank: usize,
    piece_bytes: usize,
    outgoing: Vec<Outgoing>,
    /// Memory of messages that have left.
    sent: Vec<Outgoing>,
    peers: Vec<Peer>,
    /// Memory of messages that were taken.
    free: Vec<Vec<u8>>,
    /// This rank has told the others that it ends.
    ended: bool,
    /// By members: what MPI knows of a team.
    teams: HashMap<Vec<usize>, ffi::MPI_Comm>,
    /// By tag: the pieces of a sum that MPI is making.
    sums: HashMap<u64, Vec<ffi::MPI_Request>>,
}

// SAFETY: handles of MPI are not bound to a thread at level `SERIALIZED`, and the lock around the state lets one thread at a
// time use them.
unsafe impl Send for State {}

/// A message on its way out: its pieces read from `bytes` until their requests are complete.
#[derive(Debug, Default)]
struct Outgoing {
    requests: Vec<ffi::MPI_Request>,
    bytes: Vec<u8>,
}

/// What comes from one rank.
#[derive(Debug, Default)]
struct Peer {
    incoming: Option<Incoming>,
    /// Messages nobody has asked for yet, header included.
    waiting: VecDeque<(u64, Vec<u8>)>,
    /// It has ended: the rank that ended first, as far as it knew, and why.
    end: Option<(usize, String)>,
}

/// A message on its way in, of which so many bytes have arrived. A piece of so many more is written behind them until the
/// request is complete; nothing is on its way where it is 0.
#[derive(Debug)]
struct Incoming {
    request: ffi::MPI_Request,
    bytes: Vec<u8>,
    arrived: usize,
    piece: usize,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A worker that panicked did so outside of the lock, or left whole messages behind.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn send(&self, to: usize, tag: u64, bytes: &[u8]) {
        self.lock().send(to, tag, bytes);
    }

    pub fn try_receive(&self, from: usize, tag: u64, into: &mut [u8], hosts: &[String]) -> Result<bool, Error> {
        let state = &mut *self.lock();
        let Some(message) = state.find(from, tag).or_else(|| {
            state.clear_outgoing();
            state.hear(from);
            state.find(from, tag)
        }) else {
            return state.first_end(hosts).map_or(Ok(false), Err);
        };
        let content = &message[HEADER..];
        if content.len() != into.len() {
            return Err(Error::Length { source_rank: from, tag, sent: content.len(), wanted: into.len() });
        }
        into.copy_from_slice(content);
        state.free.push(message);
        Ok(true)
    }

    /// What must be noticed by those who wait: ranks that ended, a launcher that is gone.
    pub fn look_around(&self, rank: usize, hosts: &[String]) -> Result<(), Error> {
        if parent_id() != self.parent {
            return Err(Error::Orphan { rank, host: hosts[rank].clone() });
        }
        let mut state = self.lock();
        state.clear_outgoing();
        (0..state.peers.len()).for_each(|peer| state.hear(peer));
        state.first_end(hosts).map_or(Ok(()), Err)
    }

    pub fn end(&self, cause: &str) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        let own = state.rank;
        let (first, cause) = state.first().map_or((own, cause.into()), |(rank, cause)| (rank, cause.to_string()));
        let mut word = (first as u64).to_le_bytes().to_vec();
        word.extend_from_slice(cause.as_bytes());
        (0..state.peers.len()).filter(|&to| to != own).for_each(|to| state.send(to, END, &word));
        state.peers[own].end = Some((first, cause));
    }

    /// By rank: who ended first, as far as that rank knew; waits for all at most `patience`.
    pub fn ends(&self, patience: Duration) -> Vec<Option<usize>> {
        let began = Instant::now();
        loop {
            let mut state = self.lock();
            state.clear_outgoing();
            (0..state.peers.len()).for_each(|peer| state.hear(peer));
            let known: Vec<_> = state.peers.iter().map(|peer| peer.end.as_ref().map(|(first, _)| *first)).collect();
            drop(state);
            if known.iter().all(|end| end.is_some()) || began.elapsed() > patience {
                return known;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until all that was sent has left, at most `patience`.
    pub fn flush(&self, patience: Duration) {
        let began = Instant::now();
        loop {
            let mut state = self.lock();
            state.clear_outgoing();
            if state.outgoing.is_empty() || began.elapsed() > patience {
                return;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The last call: MPI is left in good order.
    pub fn finish(&self) {
        let mut state = self.lock();
        for (_, mut team) in state.teams.drain() {
            // SAFETY: made by `team`, used by nobody any more.
            check(unsafe { ffi::MPI_Comm_free(&mut team) });
        }
        // SAFETY: the main thread's last call; every rank makes it.
        check(unsafe { ffi::MPI_Finalize() });
    }

    /// Makes a team of these ranks known to MPI, which waits for all of them.
    pub fn make_team(&self, ranks: &[usize]) {
        self.lock().team(ranks);
    }

    /// Begins the sum with this tag over a team that is known, or looks whether it is there.
    ///
    /// # Safety
    /// `from` has as many numbers as `into`, and both stay where they are, read and written by nobody, until the sum is there.
    pub unsafe fn try_all_reduce<T: Summand>(&self, ranks: &[usize], tag: u64, from: *const T, into: &mut [T]) -> bool {
        let state = &mut *self.lock();
        let comm = state.team(ranks);
        let requests = state.sums.entry(tag).or_default();
        if requests.is_empty() {
            let number = if T::BYTES == 4 { &raw const ffi::RSMPI_FLOAT } else { &raw const ffi::RSMPI_DOUBLE };
            let most = state.piece_bytes / T::BYTES;
            for (i, piece) in into.chunks_mut(most).enumerate() {
                let mut request = null_request();
                // SAFETY: constants of the library; both pieces hold as many numbers of this type, and the caller keeps them.
                unsafe {
                    let (from, to, count) =
                        (from.add(i * most).cast(), piece.as_mut_ptr().cast(), piece.len() as c_int);
                    check(ffi::MPI_Iallreduce(from, to, count, *number, ffi::RSMPI_SUM, comm, &mut request));
                }
                requests.push(request);
            }
        }
        while requests.last_mut().is_some_and(test) {
            requests.pop();
        }
        requests.is_empty()
    }

    /// The end that this rank knows of, if any.
    pub fn first_end(&self, hosts: &[String]) -> Option<Error> {
        self.lock().first_end(hosts)
    }

    /// Whether MPI is still making sums.
    pub fn is_summing(&self) -> bool {
        self.lock().sums.values().any(|requests| !requests.is_empty())
    }

    /// Numbers become their sums over a team, as the library does it.
    pub fn all_reduce<T: Summand>(&self, c: &Communicator, team: &Team, numbers: &mut [T]) -> Result<(), Error> {
        let own = numbers.to_vec();
        self.make_team(team.ranks());
        let mut wait = Wait::new(c);
        // SAFETY: as many numbers, which live until the sum is there; where the wait fails the process ends without using them again.
        while !unsafe { self.try_all_reduce(team.ranks(), ALONE, own.as_ptr(), numbers) } {
            let next = team.ranks()[(team.own() + 1) % team.size()];
            wait.pause(|| Waiting::new(c, next, BY_LIBRARY.into()))?;
        }
        Ok(())
    }
}

/// Whether a request is complete.
fn test(request: &mut ffi::MPI_Request) -> bool {
    let mut done = 0;
    // SAFETY: a request of ours, or null, which counts as complete.
    unsafe { check(ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE)) };
    done != 0
}

impl State {
    fn send(&mut self, to: usize, tag: u64, bytes: &[u8]) {
        // The largest memory first, so that it fits soon and for good.
        let largest = (0..self.sent.len()).max_by_key(|&i| self.sent[i].bytes.capacity());
        let mut message = largest.map(|i| self.sent.swap_remove(i)).unwrap_or_default();
        message.bytes.clear();
        message.bytes.extend_from_slice(&tag.to_le_bytes());
        message.bytes.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        message.bytes.extend_from_slice(bytes);
        for piece in message.bytes.chunks(self.piece_bytes) {
            let mut request = null_request();
            // SAFETY: the piece stays where it is until the request is complete: `outgoing` keeps the message, and a vector
            // that moves does not move its bytes.
            unsafe {
                let (bytes, length) = (piece.as_ptr().cast(), piece.len() as c_int);
                let byte = ffi::RSMPI_UINT8_T;
                check(ffi::MPI_Isend(bytes, length, byte, to as c_int, MPI_TAG, self.own, &mut request));
            }
            message.requests.push(request);
        }
        self.outgoing.push(message);
    }

    /// Takes back the memory of messages that have left.
    fn clear_outgoing(&mut self) {
        let mut i = 0;
        while i < self.outgoing.len() {
            // From the last piece: while that one is on its way, the others need no look.
            let requests = &mut self.outgoing[i].requests;
            while requests.last_mut().is_some_and(test) {
                requests.pop();
            }
            if requests.is_empty() {
                let gone = self.outgoing.swap_remove(i);
                self.sent.push(gone);
            } else {
                i += 1;
            }
        }
    }

    /// The next message of this tag among those that have come.
    fn find(&mut self, from: usize, tag: u64) -> Option<Vec<u8>> {
        let waiting = &mut self.peers[from].waiting;
        let at = waiting.iter().position(|(t, _)| *t == tag)?;
        waiting.remove(at).map(|(_, message)| message)
    }

    /// Takes in all that has come from a rank, piece by piece: those of one message come without others in between.
    fn hear(&mut self, from: usize) {
        loop {
            let mut incoming = self.peers[from].incoming.take();
            if incoming.as_ref().is_none_or(|incoming| incoming.piece == 0) {
                let Some((piece, message)) = self.probe(from) else {
                    self.peers[from].incoming = incoming;
                    return;
                };
                incoming = Some(self.receive(incoming, piece, message));
            }
            let mut incoming = incoming.expect("bug: nothing on its way");
            if !test(&mut incoming.request) {
                self.peers[from].incoming = Some(incoming);
                return;
            }
            incoming.arrived += std::mem::take(&mut incoming.piece);
            let number = |at: usize| u64::from_le_bytes(incoming.bytes[at..at + 8].try_into().expect("eight bytes"));
            let (tag, length) = (number(0), number(8) as usize);
            if incoming.arrived == HEADER + length {
                self.keep(from, tag, incoming.bytes);
            } else {
                incoming.bytes.resize(HEADER + length, 0);
                self.peers[from].incoming = Some(incoming);
            }
        }
    }

    fn keep(&mut self, from: usize, tag: u64, message: Vec<u8>) {
        if tag == END {
            let content = &message[HEADER..];
            let first = content[..8].try_into().map_or(from, |bytes| u64::from_le_bytes(bytes) as usize);
            self.peers[from].end = Some((first, String::from_utf8_lossy(&content[8..]).into_owned()));
        } else {
            self.peers[from].waiting.push_back((tag, message));
        }
    }

    /// Whether something has come from a rank: its length, and what MPI knows it by.
    fn probe(&mut self, from: usize) -> Option<(usize, ffi::MPI_Message)> {
        let (mut found, mut length) = (0, 0);
        // SAFETY: pointers to locals; the status is filled in where something was found.
        unsafe {
            let mut message = ffi::RSMPI_MESSAGE_NULL;
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            check(ffi::MPI_Improbe(from as c_int, MPI_TAG, self.own, &mut found, &mut message, &mut status));
            if found == 0 {
                return None;
            }
            check(ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut length));
            Some((length as usize, message))
        }
    }

    /// Starts to take in a piece: of a message of which some is there, or the first one of the next.
    fn receive(&mut self, begun: Option<Incoming>, piece: usize, mut message: ffi::MPI_Message) -> Incoming {
        let (mut bytes, arrived) = match begun {
            Some(incoming) => (incoming.bytes, incoming.arrived),
            None => {
                let largest = (0..self.free.len()).max_by_key(|&i| self.free[i].capacity());
                let mut bytes = largest.map(|i| self.free.swap_remove(i)).unwrap_or_default();
                bytes.resize(piece, 0);
                (bytes, 0)
            }
        };
        assert!(arrived + piece <= bytes.len(), "bug: a piece that belongs to no message");
        let mut request = null_request();
        // SAFETY: there is room for the piece, as asserted; it is neither read nor moved until the request is complete.
        unsafe {
            let into = bytes[arrived..].as_mut_ptr().cast();
            check(ffi::MPI_Imrecv(into, piece as c_int, ffi::RSMPI_UINT8_T, &mut message, &mut request));
        }
        Incoming { request, bytes, arrived, piece }
    }

    /// The rank that ended first, as far as this one knows, and why.
    fn first(&self) -> Option<(usize, &str)> {
        self.peers.iter().find_map(|peer| peer.end.as_ref()).map(|(first, cause)| (*first, cause.as_str()))
    }

    fn first_end(&self, hosts: &[String]) -> Option<Error> {
        let (rank, cause) = self.first()?;
        Some(Error::Ended { rank, host: hosts[rank].clone(), cause: cause.into() })
    }

    /// What MPI knows of a team, made at its first use. All members must come; MPI waits for them.
    fn team(&mut self, team: &[usize]) -> ffi::MPI_Comm {
        if let Some(comm) = self.teams.get(team) {
            return *comm;
        }
        let ranks: Vec<c_int> = team.iter().map(|&rank| rank as c_int).collect();
        let mut made = null_comm();
        // SAFETY: pointers to locals; the list has as many ranks as is said.
        unsafe {
            let (mut all, mut members) = (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL);
            check(ffi::MPI_Comm_group(self.for_teams, &mut all));
            check(ffi::MPI_Group_incl(all, ranks.len() as c_int, ranks.as_ptr(), &mut members));
            check(ffi::MPI_Comm_create_group(self.for_teams, members, MPI_TAG, &mut made));
            check(ffi::MPI_Group_free(&mut members));
            check(ffi::MPI_Group_free(&mut all));
        }
        self.teams.insert(team.to_vec(), made);
        made
    }
}
