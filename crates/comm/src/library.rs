//! Sums over ranks that the transport's library makes by itself, while its caller does something else.

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
    /// if it never is ([`Communicator::is_summing`]).
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

    /// Whether the library is still making a sum, and may read and write what it was given.
    pub fn is_summing(&self) -> bool {
        #[cfg(feature = "mpi")]
        if let Some(world) = self.mpi() {
            return world.is_summing();
        }
        false
    }
}
