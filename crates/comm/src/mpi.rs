//! Ranks that are processes: bytes over MPI.
//!
//! A message is a header (tag, length) and its bytes, sent from memory of our own as one or more pieces that MPI can count.
//! Receivers take whatever comes from a rank in its order and keep it by tag: MPI's own tags are too short for ours, and a
//! receive that is not posted need not be cancelled.
//!
//! A large message may be lent: its header goes alone, its bytes from where they lie. Whoever wants it when its header has come has its bytes
//! written to where they belong; to others they come as all messages do, so that who lends never waits for who does not yet want.
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
/// Bytes from which on a message is lent rather than copied.
const LENT_BYTES: usize = 64 << 10;
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
        lent: HashMap::new(),
        wanted: HashMap::new(),
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
    /// By rank and tag: the pieces of a message to it that are read where they lie.
    lent: HashMap<(usize, u64), Vec<ffi::MPI_Request>>,
    /// By rank and tag: where a message from it belongs.
    wanted: HashMap<(usize, u64), Wanted>,
}

/// Where the bytes of a message belong, and whether they are there.
#[derive(Debug)]
struct Wanted {
    into: *mut u8,
    length: usize,
    there: bool,
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

/// What a header says: tag and length.
fn header(message: &[u8]) -> (u64, usize) {
    let number = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes"));
    (number(0), number(8) as usize)
}

/// What comes after the header, in memory that may be longer.
fn content(message: &[u8]) -> &[u8] {
    &message[HEADER..HEADER + header(message).1]
}

/// A message on its way in, of which so many bytes have arrived. A piece of so many more is written behind them until the
/// request is complete; nothing is on its way where it is 0.
#[derive(Debug)]
struct Incoming {
    request: ffi::MPI_Request,
    bytes: Vec<u8>,
    arrived: usize,
    piece: usize,
    /// Its content goes to where it is wanted.
    straight: bool,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A worker that panicked did so outside of the lock, or left whole messages behind.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn send(&self, to: usize, tag: u64, bytes: &[u8]) {
        self.lock().send(to, tag, bytes.len(), bytes);
    }

    /// Begins to send a message, or looks whether it has left: whether it was begun now, and whether it has left.
    ///
    /// # Safety
    /// The bytes stay where they are, written by nobody, until they have left; until then no other message of this tag is sent there.
    pub unsafe fn try_send(&self, to: usize, tag: u64, bytes: &[u8]) -> (bool, bool) {
        let state = &mut *self.lock();
        if bytes.len() < LENT_BYTES {
            state.send(to, tag, bytes.len(), bytes);
            return (true, true);
        }
        let begins = state.lent.entry((to, tag)).or_default().is_empty();
        if begins {
            state.send(to, tag, bytes.len(), &[]);
            let pieces = bytes.chunks(state.piece_bytes);
            // SAFETY: the caller's promise.
            let requests = pieces.map(|piece| unsafe { begin_send(state.own, to, piece) });
            state.lent.get_mut(&(to, tag)).expect("bug: a message that was not begun").extend(requests);
        }
        let requests = state.lent.get_mut(&(to, tag)).expect("bug: a message that was not begun");
        while requests.last_mut().is_some_and(test) {
            requests.pop();
        }
        (begins, requests.is_empty())
    }

    pub fn try_receive(&self, from: usize, tag: u64, into: &mut [u8], hosts: &[String]) -> Result<bool, Error> {
        self.lock().try_receive(from, tag, into, hosts)
    }

    /// The same; what comes from now on may be written before it is asked for again.
    ///
    /// # Safety
    /// `into` stays where it is, read and written by nobody, until the message is there, and is the same at every look.
    pub unsafe fn try_receive_straight(
        &self,
        from: usize,
        tag: u64,
        into: &mut [u8],
        hosts: &[String],
    ) -> Result<bool, Error> {
        let state = &mut *self.lock();
        if into.len() >= LENT_BYTES {
            let (length, address) = (into.len(), into.as_mut_ptr());
            state.wanted.entry((from, tag)).or_insert(Wanted { into: address, length, there: false });
        }
        state.try_receive(from, tag, into, hosts)
    }

    /// Whether MPI may still read or write memory that was lent to it.
    pub fn borrows(&self) -> bool {
        let state = self.lock();
        let under_way = |requests: &Vec<_>| !requests.is_empty();
        state.sums.values().any(under_way) || state.lent.values().any(under_way) || !state.wanted.is_empty()
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
        (0..state.peers.len()).filter(|&to| to != own).for_each(|to| state.send(to, END, word.len(), &word));
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

/// Memory is never made shorter: what is longer again would be cleared first.
fn make_room(bytes: &mut Vec<u8>, length: usize) {
    if bytes.len() < length {
        bytes.resize(length, 0);
    }
}

/// Whether a request is complete.
fn test(request: &mut ffi::MPI_Request) -> bool {
    let mut done = 0;
    // SAFETY: a request of ours, or null, which counts as complete.
    unsafe { check(ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE)) };
    done != 0
}

/// Begins to send a piece of a message.
///
/// # Safety
/// The piece stays where it is, written by nobody, until the request is complete.
unsafe fn begin_send(own: ffi::MPI_Comm, to: usize, piece: &[u8]) -> ffi::MPI_Request {
    let mut request = null_request();
    let (bytes, length) = (piece.as_ptr().cast(), piece.len() as c_int);
    // SAFETY: the caller's promise.
    unsafe { check(ffi::MPI_Isend(bytes, length, ffi::RSMPI_UINT8_T, to as c_int, MPI_TAG, own, &mut request)) };
    request
}

impl State {
    fn try_receive(&mut self, from: usize, tag: u64, into: &mut [u8], hosts: &[String]) -> Result<bool, Error> {
        for heard in [false, true] {
            if heard {
                self.clear_outgoing();
                self.hear(from);
            }
            // What was written straight to where it belongs came before what is kept.
            if self.wanted.get(&(from, tag)).is_some_and(|wanted| wanted.there) {
                self.wanted.remove(&(from, tag));
                return Ok(true);
            }
            let Some(message) = self.find(from, tag) else { continue };
            self.wanted.remove(&(from, tag));
            let content = content(&message);
            if content.len() != into.len() {
                return Err(Error::Length { source_rank: from, tag, sent: content.len(), wanted: into.len() });
            }
            into.copy_from_slice(content);
            self.free.push(message);
            return Ok(true);
        }
        self.first_end(hosts).map_or(Ok(false), Err)
    }

    /// Sends the header of a message of so many bytes, and those of them that go along: all, or none.
    fn send(&mut self, to: usize, tag: u64, length: usize, along: &[u8]) {
        // The largest memory first, so that it fits soon and for good.
        let largest = (0..self.sent.len()).max_by_key(|&i| self.sent[i].bytes.capacity());
        let mut message = largest.map(|i| self.sent.swap_remove(i)).unwrap_or_default();
        message.bytes.clear();
        message.bytes.extend_from_slice(&tag.to_le_bytes());
        message.bytes.extend_from_slice(&(length as u64).to_le_bytes());
        message.bytes.extend_from_slice(along);
        for piece in message.bytes.chunks(self.piece_bytes) {
            // SAFETY: the piece stays where it is until the request is complete: `outgoing` keeps the message, and a vector
            // that moves does not move its bytes.
            message.requests.push(unsafe { begin_send(self.own, to, piece) });
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
                incoming = Some(self.receive(from, incoming, piece, message));
            }
            let mut incoming = incoming.expect("bug: nothing on its way");
            if !test(&mut incoming.request) {
                self.peers[from].incoming = Some(incoming);
                return;
            }
            incoming.arrived += std::mem::take(&mut incoming.piece);
            let (tag, length) = header(&incoming.bytes);
            let wanted = self.wanted.get_mut(&(from, tag)).filter(|wanted| wanted.length == length && !wanted.there);
            if incoming.arrived < HEADER + length {
                incoming.straight |= incoming.arrived == HEADER && wanted.is_some();
                if !incoming.straight {
                    make_room(&mut incoming.bytes, HEADER + length);
                }
                self.peers[from].incoming = Some(incoming);
            } else if incoming.straight {
                wanted.expect("bug: nobody wants it any more").there = true;
                self.free.push(incoming.bytes);
            } else {
                self.keep(from, tag, incoming.bytes);
            }
        }
    }

    fn keep(&mut self, from: usize, tag: u64, message: Vec<u8>) {
        if tag == END {
            let content = content(&message);
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
    fn receive(
        &mut self,
        from: usize,
        begun: Option<Incoming>,
        piece: usize,
        mut message: ffi::MPI_Message,
    ) -> Incoming {
        let mut incoming = begun.unwrap_or_else(|| {
            let largest = (0..self.free.len()).max_by_key(|&i| self.free[i].capacity());
            let mut bytes = largest.map(|i| self.free.swap_remove(i)).unwrap_or_default();
            make_room(&mut bytes, piece);
            Incoming { request: null_request(), bytes, arrived: 0, piece: 0, straight: false }
        });
        let (first, room) = if incoming.straight {
            let wanted = &self.wanted[&(from, header(&incoming.bytes).0)];
            (wanted.into.wrapping_add(incoming.arrived - HEADER), HEADER + wanted.length - incoming.arrived)
        } else {
            let free = &mut incoming.bytes[incoming.arrived..];
            (free.as_mut_ptr(), free.len())
        };
        assert!(piece <= room, "bug: a piece that belongs to no message");
        incoming.piece = piece;
        // SAFETY: there is room for the piece, as asserted; it is neither read nor moved until the request is complete: `bytes` by us, what is
        // wanted by the promise of who wants it.
        unsafe {
            let (byte, request) = (ffi::RSMPI_UINT8_T, &mut incoming.request);
            check(ffi::MPI_Imrecv(first.cast(), piece as c_int, byte, &mut message, request));
        }
        incoming
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
