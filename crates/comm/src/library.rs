//! What the transport's library does with its caller's memory while the caller does something else: large messages that are not copied, and
//! sums over ranks.

#![allow(unsafe_code, reason = "the library reads and writes its caller's memory between calls")]

use crate::{Communicator, Error, Summand, Transport};

/// What a rank waits for while the transport's library makes a sum.
pub const BY_LIBRARY: &str = "a sum by the MPI library, with all of its team";

impl Communicator {
    /// Whether the transport comes with a library that makes sums over ranks by itself.
    pub fn has_library(&self) -> bool {
        match &self.transport {
            Transport::Threads(_) => false,
            #[cfg(feature = "mpi")]
            Transport::Mpi(_) => true,
        }
    }

    /// Makes a team of these ranks known to the transport's library, which waits for all of them: to be called by all members, and for
    /// several teams in the same order.
    pub fn make_team(&self, _ranks: &[usize]) {
        #[cfg(feature = "mpi")]
        if let Some(world) = self.mpi() {
            world.make_team(_ranks);
        }
    }

    /// Begins the sum with this tag over a team that was made, or looks whether it is there. It is the library's: members must
    /// begin a team's sums in the same order, and what it sends is not known; what it was handed is counted.
    ///
    /// # Safety
    /// `from` has as many numbers as `into`, and both stay where they are, read and written by nobody, until the sum is there: for ever
    /// if it never is ([`Communicator::borrows`]).
    pub unsafe fn try_all_reduce<T: Summand>(
        &self,
        _team: &[usize],
        _tag: u64,
        _from: *const T,
        _into: &mut [T],
    ) -> Result<bool, Error> {
        #[cfg(feature = "mpi")]
        if let Some(world) = self.mpi() {
            // SAFETY: the caller's promise.
            let done = unsafe { world.try_all_reduce(_team, _tag, _from, _into) };
            if done {
                self.counters.add(crate::Kind::of(_tag), size_of_val(_into));
                return Ok(true);
            }
            return world.first_end(&self.hosts).map_or(Ok(false), Err);
        }
        unreachable!("bug: threads have no library that makes sums")
    }

    /// Begins to hand bytes over for `to`, or looks whether they have left: as [`Communicator::send`], without a copy where they are many.
    ///
    /// # Safety
    /// The bytes stay where they are, written by nobody, until they have left: for ever if they never do ([`Communicator::borrows`]). Until then
    /// no other message of this tag is sent there.
    pub unsafe fn try_send(&self, to: usize, tag: u64, bytes: &[u8]) -> Result<bool, Error> {
        #[cfg(feature = "mpi")]
        if let Some(world) = self.mpi() {
            // SAFETY: the caller's promise.
            let (begins, left) = unsafe { world.try_send(to, tag, bytes) };
            if begins {
                self.counters.add(crate::Kind::of(tag), bytes.len());
            }
            return if left { Ok(true) } else { world.first_end(&self.hosts).map_or(Ok(false), Err) };
        }
        self.send(to, tag, bytes);
        Ok(true)
    }

    /// As [`Communicator::try_receive`], without a copy where bytes are many and come after the first look.
    ///
    /// # Safety
    /// `into` stays where it is, read and written by nobody, until the message is there: for ever if it never is ([`Communicator::borrows`]).
    /// It is the same at every look.
    pub unsafe fn try_receive_straight(&self, from: usize, tag: u64, into: &mut [u8]) -> Result<bool, Error> {
        #[cfg(feature = "mpi")]
        if let Some(world) = self.mpi() {
            // SAFETY: the caller's promise.
            return unsafe { world.try_receive_straight(from, tag, into, &self.hosts) };
        }
        self.try_receive(from, tag, into)
    }

    /// Whether the library may still read or write memory that was lent to it.
    pub fn borrows(&self) -> bool {
        #[cfg(feature = "mpi")]
        if let Some(world) = self.mpi() {
            return world.borrows();
        }
        false
    }
}
