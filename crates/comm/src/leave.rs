//! Leaving: how ranks end once one of them has, so that one error is told, and told once.
//!
//! All say that they end, and wait until all have. The rank that ended first tells why (of several, the lowest); the others
//! wait for its word before they go, since a launcher may end everybody as soon as one is gone.

use crate::{Communicator, Kind, sync};
use std::time::{Duration, Instant};

/// The word of the rank that told why: the exit code.
const WORD: u64 = Kind::Other.tag() | 1 << 58;

/// How ranks leave.
#[derive(Clone, Copy, Debug)]
pub struct Leave {
    /// The exit code of this rank's own error.
    pub code: u8,
    /// How long this rank waits for the others, twice at most.
    pub patience: Duration,
}

impl Leave {
    /// The last that a rank does after [`Communicator::end`]. `tell` is called on one rank, with those that have not said that
    /// they end too; the result is that rank's exit code.
    pub fn together(self, communicator: &Communicator, tell: impl FnOnce(&[usize])) -> u8 {
        let ends = communicator.ends(self.patience);
        let first = ends.iter().flatten().copied().min().unwrap_or(communicator.rank());
        let others = (0..communicator.size()).filter(|&rank| rank != communicator.rank());
        if first == communicator.rank() {
            let silent: Vec<usize> = (0..ends.len()).filter(|&rank| ends[rank].is_none()).collect();
            tell(&silent);
            others.for_each(|rank| communicator.send(rank, WORD, &[self.code]));
            communicator.flush(self.patience);
            return self.code;
        }
        let (began, mut code) = (Instant::now(), [self.code]);
        // All have ended: what is not there yet is an error to others, not to us.
        while began.elapsed() < self.patience && communicator.try_receive(first, WORD, &mut code) != Ok(true) {
            sync::sleep(Duration::from_millis(1));
        }
        code[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn one_rank_tells_and_all_leave_with_its_code() {
        let told = Mutex::new(vec![]);
        let codes = std::thread::scope(|scope| {
            let told = &told;
            let spawn = |c: Communicator| {
                scope.spawn(move || {
                    let error = match c.rank() {
                        2 => "out of memory".into(),
                        _ => c.receive(2, 0, &mut [0], "a word").unwrap_err().to_string(),
                    };
                    c.end(&error);
                    let leave = Leave { code: c.rank() as u8 + 10, patience: Duration::from_secs(60) };
                    leave.together(&c, |silent| {
                        told.lock().unwrap().push((c.rank(), error.clone()));
                        assert_eq!(silent, []);
                    })
                })
            };
            let ranks: Vec<_> = crate::threads(4).into_iter().map(spawn).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<u8>>()
        });
        assert_eq!(codes, [12; 4]);
        assert_eq!(told.into_inner().unwrap(), [(2, "out of memory".to_string())]);
    }
}
