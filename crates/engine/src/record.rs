//! Recordings: when each tile and message of some steps began and ended, on one rank.
//!
//! Always true
//! - Room for all that is recorded is there before the first step; what does not fit is counted, not kept. A step that is not
//!   recorded asks once whether it is.
//!
//! Knows nothing of what ops are: whoever has the program can say.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

/// Something that took time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of those that are recorded, from 0.
    pub step: u32,
    /// Its place in the program, or [`Span::WAIT`].
    pub op: u32,
    /// Nanoseconds since 1970, as this rank's computer has it.
    pub start: u64,
    pub end: u64,
}

impl Span {
    /// In place of an op: a worker had nothing to do.
    pub const WAIT: u32 = u32::MAX;
    /// In place of an op: all of the step.
    pub const STEP: u32 = u32::MAX - 1;
}

/// What one rank did in some steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// By worker, and at the end one for messages: sends, and receives from when they could be received. Each in the order in
    /// which they ended.
    pub lanes: Vec<Vec<Span>>,
    /// Spans for which there was no room.
    pub lost: usize,
}

impl Recording {
    /// For another rank.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut numbers = vec![self.lost as u64, self.lanes.len() as u64];
        for lane in &self.lanes {
            numbers.push(lane.len() as u64);
            numbers.extend(lane.iter().flat_map(|s| [(s.step as u64) << 32 | s.op as u64, s.start, s.end]));
        }
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// What another rank wrote.
    pub fn from_bytes(bytes: &[u8]) -> Recording {
        let mut numbers = bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
        let mut next = || numbers.next().unwrap_or(0);
        let (lost, count) = (next() as usize, next());
        let mut lanes = vec![];
        for _ in 0..count {
            let spans = (0..next()).map(|_| {
                let [place, start, end] = [next(), next(), next()];
                Span { step: (place >> 32) as u32, op: place as u32, start, end }
            });
            lanes.push(spans.collect());
        }
        Recording { lanes, lost }
    }
}

/// Spans that a lane has room for.
const MOST_SPANS: usize = 1 << 17;

/// Writes down what happens.
pub(crate) struct Recorder {
    pub program: usize,
    /// Steps still to be recorded, and the one that is.
    left: usize,
    step: u32,
    began: Instant,
    since_1970: u64,
    lanes: Vec<Mutex<Vec<Span>>>,
    /// By op: when a receive was first looked at in this step, if it was.
    looked: Vec<AtomicU64>,
    lost: AtomicUsize,
}

impl Recorder {
    /// For a program of so many ops and tiles.
    pub fn new(program: usize, steps: usize, workers: usize, ops: usize, tiles: usize) -> Recorder {
        let room = ((tiles + 2 * ops) * steps).min(MOST_SPANS);
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Recorder {
            program,
            left: steps,
            step: 0,
            began: Instant::now(),
            since_1970: since_1970.map_or(0, |time| time.as_nanos() as u64),
            lanes: (0..=workers).map(|_| Mutex::new(Vec::with_capacity(room))).collect(),
            looked: (0..ops).map(|_| AtomicU64::new(0)).collect(),
            lost: AtomicUsize::new(0),
        }
    }

    pub fn wants(&self, program: usize) -> bool {
        self.left > 0 && self.program == program
    }

    pub fn now(&self) -> u64 {
        self.since_1970 + self.began.elapsed().as_nanos() as u64
    }

    pub fn begin_step(&self) -> u64 {
        self.looked.iter().for_each(|time| time.store(0, Relaxed));
        self.now()
    }

    pub fn end_step(&mut self, start: u64) {
        self.write(self.lanes.len() - 1, Span::STEP, start);
        self.left -= 1;
        self.step += 1;
    }

    /// What a worker did until now.
    pub fn write(&self, lane: usize, op: u32, start: u64) {
        let mut spans = self.lanes[lane].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if spans.len() < spans.capacity() {
            spans.push(Span { step: self.step, op, start, end: self.now() });
        } else {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// A message is looked at: when it was for the first time.
    pub fn look(&self, op: usize) -> u64 {
        match self.looked[op].load(Relaxed) {
            0 => {
                let now = self.now();
                self.looked[op].store(now, Relaxed);
                now
            }
            time => time,
        }
    }

    /// A message left or came.
    pub fn talked(&self, op: usize) {
        self.write(self.lanes.len() - 1, op as u32, self.look(op));
    }

    pub fn finish(self) -> Recording {
        let lanes = self.lanes.into_iter().map(|lane| lane.into_inner().unwrap_or_else(|e| e.into_inner()));
        Recording { lanes: lanes.collect(), lost: self.lost.into_inner() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_go_round_and_do_not_grow() {
        let mut recorder = Recorder::new(0, 1, 2, 1, 1);
        let start = recorder.begin_step();
        for _ in 0..4 {
            recorder.write(1, 7, start);
        }
        recorder.talked(0);
        recorder.end_step(start);
        assert!(!recorder.wants(0));
        let found = recorder.finish();
        assert_eq!(found.lanes.iter().map(Vec::len).collect::<Vec<_>>(), [0, 3, 2]);
        assert_eq!(found.lost, 1);
        assert!(found.lanes[1].iter().all(|s| (s.op, s.start) == (7, start) && s.end >= start));
        assert_eq!(Recording::from_bytes(&found.to_bytes()), found);
    }
}
