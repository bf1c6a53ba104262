//! Waiting: a rank that has nothing to do gives its core away, says after a while whom it waits for, and gives up in the end.
//!
//! Always true
//! - Time in which this rank itself was stopped does not count: a process that was put to sleep and woken is not the one to
//!   complain.

use crate::{Communicator, Error, sync};
use std::fmt;
use std::time::{Duration, Instant};

/// Looks with nothing but a yield in between, before a rank sleeps between looks.
const YIELDS: u32 = 64;
/// Sleeps of the short kind, before they become long.
const SHORT_SLEEPS: u32 = 1000;
const SHORT: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_micros(300);
/// Who has waited for long looks less and less often, down to this: a look costs a core some microseconds, and others may want it.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);
/// The most that one pause may count: it is longer only where this rank was stopped.
const LONGEST: Duration = Duration::from_millis(100);

/// For whom and for what a rank waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub from: usize,
    pub host: String,
    /// In a few words.
    pub what: String,
}

impl Waiting {
    pub fn new(communicator: &Communicator, from: usize, what: String) -> Waiting {
        Waiting { from, host: communicator.host(from).into(), what }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rank {} on host {}: {}", self.from, self.host, self.what)
    }
}

/// One wait, from the first look to the last.
#[derive(Debug)]
pub struct Wait<'a> {
    communicator: &'a Communicator,
    looks: u32,
    waited: Duration,
    last: Option<Instant>,
    warned: bool,
}

impl Wait<'_> {
    pub fn new(communicator: &Communicator) -> Wait<'_> {
        Wait { communicator, looks: 0, waited: Duration::ZERO, last: None, warned: false }
    }

    /// What was waited for has come: the next pause is the first one again.
    pub fn over(&mut self) {
        *self = Wait::new(self.communicator);
    }

    /// Nothing has come yet: yields, later sleeps. Warns after half the deadline; after all of it, it is an error.
    pub fn pause(&mut self, waiting: impl FnOnce() -> Waiting) -> Result<(), Error> {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= YIELDS {
            sync::yield_now();
            return Ok(());
        }
        self.communicator.look_around()?;
        let now = Instant::now();
        self.waited += self.last.map_or(Duration::ZERO, |last| (now - last).min(LONGEST));
        self.last = Some(now);
        let (seconds, deadline) = (self.waited.as_secs_f64(), self.communicator.deadline_seconds());
        let (rank, host) = (self.communicator.rank(), || self.communicator.host(self.communicator.rank()));
        if seconds > deadline {
            return Err(Error::Silent { rank, host: host().into(), seconds: seconds as u64, waiting: waiting() });
        }
        if seconds > deadline / 2.0 && !self.warned {
            self.warned = true;
            let left = deadline - seconds;
            crate::tell(&format!(
                "warning: rank {rank} on host {} has waited {seconds:.0} s for {}; gives up in {left:.0} s",
                host(),
                waiting()
            ));
        }
        sync::sleep(sleep_after(self.looks, self.waited));
        Ok(())
    }
}

/// How long to sleep after so many looks, when yields were not enough, and so long a wait: in the end a hundredth of that, within
/// bounds. The wait becomes longer by no more.
fn sleep_after(looks: u32, waited: Duration) -> Duration {
    if looks < YIELDS + SHORT_SLEEPS { SHORT } else { (waited / 100).clamp(LONG, LONGEST_SLEEP) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_for_long_looks_less_often() {
        let long = |waited| sleep_after(YIELDS + SHORT_SLEEPS, waited);
        assert_eq!(long(Duration::from_millis(5)), LONG);
        assert_eq!(long(Duration::from_millis(500)), Duration::from_millis(5));
        assert_eq!(long(Duration::from_secs(60)), LONGEST_SLEEP);
    }

    /// How often a rank looks in a wait of so long if sleeps are as long as was asked for and all else takes no time: never
    /// more often than that.
    fn looks_in(wait: Duration) -> u32 {
        let (mut looks, mut waited) = (0, Duration::ZERO);
        while waited <= wait {
            looks += 1;
            waited += if looks <= YIELDS { Duration::ZERO } else { sleep_after(looks, waited) };
        }
        looks
    }

    /// A look takes a core some 10 us: of a wait of a second that is 1.5 %, of longer ones 0.1 % in the end.
    #[test]
    fn a_wait_leaves_the_core_to_others() {
        let seconds = Duration::from_secs;
        assert!(looks_in(seconds(1)) < 1500, "{}", looks_in(seconds(1)));
        assert_eq!(looks_in(seconds(61)) - looks_in(seconds(60)), 100);
    }

    /// Sleeps last at least as long as was asked for, so a wait has no more pauses than that, whatever the computer does besides.
    #[test]
    fn a_rank_that_waits_does_not_spin() {
        let ranks = crate::threads(2);
        let deadline = Duration::from_millis(60);
        ranks[0].set_deadline(deadline);
        let (mut wait, mut pauses) = (Wait::new(&ranks[0]), 0);
        while wait.pause(|| Waiting::new(&ranks[0], 1, "nothing".into())).is_ok() {
            pauses += 1;
        }
        assert!(pauses > 0 && pauses <= looks_in(deadline), "{pauses} of {}", looks_in(deadline));
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_says_for_whom() {
        let ranks = crate::threads(2);
        ranks[0].set_deadline(Duration::from_millis(2));
        let error = ranks[0].receive(1, 9, &mut [0; 4], "the halo of `conv2`").unwrap_err();
        let host = ranks[0].host(0);
        let text = format!("rank 0 on host {host} waited 0 s for rank 1 on host {host}: the halo of `conv2`");
        assert_eq!(error.to_string(), text);
    }
}
