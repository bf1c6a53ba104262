//! The pool: a rank's worker threads, which live as long as the engine.
//!
//! The caller of [`Pool::run`] is worker 0; the others sleep between calls, after looking for new work for a short while.

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use crate::sync::{Arc, Condvar, Mutex, spin_loop, thread};

/// How often a worker looks again before it sleeps; under the checker it sleeps soon, to be woken often.
const LOOKS: usize = if cfg!(feature = "shuttle") { 2 } else { 4000 };

/// A rank's workers.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

/// The work of all workers, by worker number.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts calls of `run`; odd while one goes on.
    round: AtomicUsize,
    work: Mutex<Option<Work<'static>>>,
    /// Workers other than 0 that have not finished this round.
    busy: AtomicUsize,
    end: AtomicBool,
    /// Sleepers of all kinds.
    lock: Mutex<()>,
    bell: Condvar,
    sleepers: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "round {:?}, busy {:?}", self.round, self.busy)
    }
}

impl Pool {
    pub fn new(workers: usize) -> Pool {
        let shared = Arc::new(Shared {
            round: AtomicUsize::new(0),
            work: Mutex::new(None),
            busy: AtomicUsize::new(0),
            end: AtomicBool::new(false),
            lock: Mutex::new(()),
            bell: Condvar::new(),
            sleepers: AtomicUsize::new(0),
        });
        let threads = (1..workers.max(1)).map(|worker| {
            let shared = shared.clone();
            thread::Builder::new()
                .name(format!("worker {worker}"))
                .spawn(move || shared.live(worker))
                .expect("bug: the system gives no more threads")
        });
        let threads = threads.collect();
        Pool { shared, threads }
    }

    pub fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `work` on every worker and returns when all have returned from it. `work` must not panic.
    pub fn run(&self, work: Work) {
        if self.threads.is_empty() {
            return work(0);
        }
        // SAFETY: the reference is taken back, and no worker uses it any more, before this function returns.
        let lasting: Work<'static> = unsafe { std::mem::transmute::<Work, Work<'static>>(work) };
        *self.shared.work.lock().expect("bug: a worker panicked") = Some(lasting);
        self.shared.busy.store(self.threads.len(), Release);
        self.shared.round.fetch_add(1, SeqCst);
        self.shared.ring();
        work(0);
        self.shared.wait(|| self.shared.busy.load(SeqCst) == 0);
        *self.shared.work.lock().expect("bug: a worker panicked") = None;
    }

    /// Wakes those who sleep in `wait`.
    pub fn ring(&self) {
        self.shared.ring();
    }

    /// Returns when `ready` is true; sleeps until somebody rings if it takes long.
    pub fn wait(&self, ready: impl Fn() -> bool) {
        self.shared.wait(ready);
    }
}

impl Shared {
    fn live(&self, worker: usize) {
        let mut round = 0;
        loop {
            self.wait(|| self.round.load(SeqCst) != round || self.end.load(SeqCst));
            if self.end.load(SeqCst) {
                return;
            }
            round += 1;
            let work = *self.work.lock().expect("bug: a worker panicked");
            if let Some(work) = work {
                work(worker);
            }
            if self.busy.fetch_sub(1, SeqCst) == 1 {
                self.ring();
            }
        }
    }

    fn ring(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            let _awake = self.lock.lock().expect("bug: a worker panicked");
            self.bell.notify_all();
        }
    }

    fn wait(&self, ready: impl Fn() -> bool) {
        for look in 0..LOOKS {
            if ready() {
                return;
            }
            // Somebody else may need this core to make it ready.
            if look % 16 == 15 { thread::yield_now() } else { spin_loop() }
        }
        let mut asleep = self.lock.lock().expect("bug: a worker panicked");
        self.sleepers.fetch_add(1, SeqCst);
        while !ready() {
            asleep = self.bell.wait(asleep).expect("bug: a worker panicked");
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.end.store(true, SeqCst);
        self.shared.ring();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so already.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn every_worker_works_in_every_round() {
        for workers in 1..=4 {
            let pool = Pool::new(workers);
            let count: Vec<AtomicUsize> = (0..workers).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..200 {
                pool.run(&|worker| {
                    count[worker].fetch_add(1, Relaxed);
                });
            }
            assert!(count.iter().all(|c| c.load(Relaxed) == 200), "{count:?}");
        }
    }
    /// Between rounds nobody spins: all but the caller sleep until somebody rings, and wake for the next round.
    #[test]
    fn workers_sleep_between_rounds() {
        for workers in 2..=4 {
            let pool = Pool::new(workers);
            for round in 1..=3 {
                let worked = AtomicUsize::new(0);
                pool.run(&|_| {
                    worked.fetch_add(1, SeqCst);
                });
                assert_eq!(worked.load(SeqCst), workers, "round {round}");
                // Whoever is counted holds the lock until it sleeps.
                let asleep = || {
                    let _lock = pool.shared.lock.lock().expect("a lock");
                    pool.shared.sleepers.load(SeqCst)
                };
                let began = std::time::Instant::now();
                while asleep() < workers - 1 {
                    assert!(began.elapsed().as_secs() < 60, "{} of {} sleep after a minute", asleep(), workers - 1);
                    thread::yield_now();
                }
                assert_eq!(asleep(), workers - 1);
            }
        }
    }
}
