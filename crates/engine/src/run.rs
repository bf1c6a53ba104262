//! One step: what workers do with tiles.

use crate::engine::{Batch, Error, Loaded, Settings};
use crate::memory;
use crate::pool::Pool;
use crate::record::{Recorder, Span};
use convoy_comm::{BY_LIBRARY, Communicator, Summand, Wait, Waiting};
use convoy_kernels::fast::{fold, region};
use convoy_kernels::{Layout, Moment, Operands, Slot};
use convoy_net::{Axis, Region};
use convoy_program::{Action, BufferId, Number, Part, TILE_BYTES};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Instant;

/// A program in the middle of a step.
pub struct Run<'a> {
    /// Where to write down when what happens, if anybody asked.
    pub recorder: Option<&'a Recorder>,
    pub loaded: &'a Loaded,
    pub batch: Batch<'a>,
    pub moment: Moment,
    pub communicator: &'a Communicator,
    pub pool: &'a Pool,
    pub settings: Settings,
    /// By worker: its scratch.
    pub scratch: &'a [Slot],
    pub failed: AtomicBool,
    pub error: Mutex<Option<Error>>,
}

impl Run<'_> {
    /// What worker `worker` does until the step is over.
    pub fn work(&self, worker: usize) {
        let schedule = &self.loaded.schedule;
        let talks = worker == 0 && self.communicator.size() > 1;
        let (mut wait, mut open) = (Wait::new(self.communicator), schedule.open());
        let mut idle_since = None;
        while !schedule.over() && !self.failed.load(Acquire) {
            let mut busy = talks && self.talk();
            if let Some((op, tile)) = schedule.take() {
                busy = true;
                self.waited(worker, &mut idle_since);
                self.tile(worker, op, tile);
            }
            if !busy {
                idle_since = idle_since.or_else(|| self.recorder.map(Recorder::now));
            }
            if busy {
                wait.over();
            } else if talks {
                // Waits for messages, or for workers that are still busy: then nobody is to blame.
                let left = schedule.open();
                if left != open {
                    open = left;
                    wait.over();
                }
                if let Err(error) = wait.pause(|| self.waiting()) {
                    self.fail(Error::Communication(error));
                }
            } else {
                self.pool.wait(|| schedule.over() || schedule.has_tiles() || self.failed.load(Acquire));
            }
        }
        self.waited(worker, &mut idle_since);
        self.pool.ring();
    }

    /// Writes down that a worker waited, if it did.
    fn waited(&self, worker: usize, since: &mut Option<u64>) {
        if let (Some(recorder), Some(since)) = (self.recorder, since.take()) {
            recorder.write(worker, Span::WAIT, since);
        }
    }

    /// Progresses messages; true if any moved.
    fn talk(&self) -> bool {
        let moved = self.loaded.schedule.talk(|op| {
            let _ = self.recorder.map(|recorder| recorder.look(op));
            let done = match &self.loaded.program.ops[op].action {
                Action::Send { from, to, tag } => {
                    // SAFETY: the op is ready and not complete before the bytes have left: nobody writes them until then, and memory outlives
                    // messages that never leave (`Engine::drop`).
                    unsafe {
                        let bytes = std::slice::from_raw_parts(self.part(from).data, from.bytes.len());
                        self.communicator.try_send(to.0, *tag, bytes)
                    }
                }
                Action::Receive { into, from, tag } => {
                    // SAFETY: as above; nobody else touches what it receives into.
                    unsafe {
                        let bytes = std::slice::from_raw_parts_mut(self.part(into).data, into.bytes.len());
                        self.communicator.try_receive_straight(from.0, *tag, bytes)
                    }
                }
                Action::AllReduce { from, into, team, number, tag, .. } => match number {
                    Number::Single => self.all_reduce::<f32>(from, into, team, *tag),
                    Number::Double => self.all_reduce::<f64>(from, into, team, *tag),
                },
                _ => unreachable!("bug: an op that does not talk"),
            };
            if let Ok(true) = done {
                self.poison(op);
                self.recorder.iter().for_each(|recorder| recorder.talked(op));
            }
            done
        });
        match moved {
            Ok(true) => {
                self.pool.ring();
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.fail(Error::Communication(error));
                false
            }
        }
    }

    /// The most urgent message that has not come; if all have, the most urgent one that nobody takes.
    fn waiting(&self) -> Waiting {
        let (mut first, mut first_send) = (None, None);
        let nothing_done: Result<bool, ()> = self.loaded.schedule.talk(|op| {
            let is_send = matches!(self.loaded.program.ops[op].action, Action::Send { .. });
            if is_send { &mut first_send } else { &mut first }.get_or_insert(op);
            Ok(false)
        });
        debug_assert_eq!(nothing_done, Ok(false));
        match first.or(first_send).map(|op| (op, &self.loaded.program.ops[op].action)) {
            Some((op, Action::Receive { into, from, .. })) => {
                let what = format!("{} bytes for {}", into.bytes.len(), self.consumer(op));
                Waiting::new(self.communicator, from.0, what)
            }
            Some((op, Action::Send { from, to, .. })) => {
                let what = format!("to take {} bytes of {}", from.bytes.len(), self.producer(op));
                Waiting::new(self.communicator, to.0, what)
            }
            Some((op, Action::AllReduce { team, .. })) => {
                let others = team.iter().copied().find(|&rank| rank != self.communicator.rank());
                let what = format!("{BY_LIBRARY}, for {}", self.consumer(op));
                Waiting::new(self.communicator, others.unwrap_or(0), what)
            }
            _ => Waiting::new(self.communicator, self.communicator.rank(), "its own workers".into()),
        }
    }

    /// The computation that an op's result goes into: the first that cannot start before it.
    fn consumer(&self, op: usize) -> &str {
        let ops = &self.loaded.program.ops;
        let mut reached = vec![op];
        for (next, later) in ops.iter().enumerate().skip(op + 1) {
            if later.after.iter().any(|before| reached.contains(&before.0)) {
                if matches!(later.action, Action::Compute { .. } | Action::Update { .. }) {
                    return &self.loaded.names[next];
                }
                reached.push(next);
            }
        }
        "the end of the step"
    }

    /// The computation that an op's operands come from: the last that it cannot start before.
    fn producer(&self, op: usize) -> &str {
        let ops = &self.loaded.program.ops;
        let mut needed = vec![op];
        for earlier in (0..op).rev() {
            if needed.iter().any(|&later| ops[later].after.iter().any(|before| before.0 == earlier)) {
                if matches!(ops[earlier].action, Action::Compute { .. } | Action::Update { .. }) {
                    return &self.loaded.names[earlier];
                }
                needed.push(earlier);
            }
        }
        "the beginning of the step"
    }

    fn fail(&self, error: Error) {
        self.communicator.end(&error.to_string());
        self.error.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
        self.failed.store(true, Release);
        self.pool.ring();
    }

    fn tile(&self, worker: usize, op: usize, tile: usize) {
        if self.settings.cold && tile == 0 && self.loaded.turn == Some(op) {
            memory::empty_caches();
        }
        let start = self.settings.profile.then(Instant::now);
        let recorded = self.recorder.map(Recorder::now);
        let done = catch_unwind(AssertUnwindSafe(|| self.compute(worker, op, tile)));
        if let Some(start) = start {
            self.loaded.nanoseconds[op].fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
        }
        if let (Some(recorder), Some(since)) = (self.recorder, recorded) {
            recorder.write(worker, op as u32, since);
        }
        if let Err(panic) = done {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default();
            return self.fail(Error::Panic { op: self.loaded.names[op].clone(), text });
        }
        if self.loaded.schedule.finish_tile(op) {
            self.poison(op);
            if self.loaded.schedule.complete(op) {
                self.pool.ring();
            }
        }
    }

    /// In the mode that looks for mistakes: fills buffers that nobody will use any more with NaN.
    fn poison(&self, op: usize) {
        if !self.settings.poison {
            return;
        }
        for &b in &self.loaded.touches[op] {
            if self.loaded.users[b].fetch_sub(1, AcqRel) == 1 {
                let slot = self.loaded.slots[b];
                // SAFETY: every op that touches the buffer is complete, and those that reuse its bytes wait for this op.
                unsafe { std::ptr::write_bytes(slot.data, 0xff, slot.bytes) };
            }
        }
    }

    /// The samples of a region, counted from its first, that are a tile's: all tiles have about as many.
    fn samples(&self, op: usize, tile: usize, region: &Region) -> Range<usize> {
        let (samples, tiles) = (region.size(Axis::Sample), self.loaded.program.ops[op].tiles);
        tile * samples / tiles..(tile + 1) * samples / tiles
    }

    fn slot(&self, buffer: BufferId) -> Slot {
        self.loaded.slots[buffer.0]
    }

    fn layout(&self, buffer: BufferId) -> &Layout {
        self.loaded.program.buffers[buffer.0].layout.as_ref().expect("bug: tensors have layouts")
    }

    fn part(&self, part: &Part) -> Slot {
        let slot = self.slot(part.buffer);
        assert!(part.bytes.end <= slot.bytes, "bug: a part beyond its buffer");
        // SAFETY: inside the buffer, as asserted.
        Slot { data: unsafe { slot.data.add(part.bytes.start) }, bytes: part.bytes.len() }
    }

    fn compute(&self, worker: usize, op: usize, tile: usize) {
        match &self.loaded.program.ops[op].action {
            Action::Compute { .. } | Action::Update { .. } => {
                let kernel = self.loaded.kernels[op].as_deref().expect("bug: no kernel");
                // SAFETY: the program orders ops that touch the same bytes, and slots live as long as the engine.
                let operands = unsafe { Operands::new(&self.loaded.operands[op], self.moment) };
                let scratch = self.scratch[worker];
                let need = self.loaded.program.ops[op].scratch;
                // SAFETY: each worker has scratch of its own, as large as the largest need.
                let scratch = unsafe { std::slice::from_raw_parts_mut(scratch.data as *mut f32, need) };
                kernel.run(tile, &operands, scratch);
            }
            Action::Load { target, region } => {
                for sample in self.samples(op, tile, region) {
                    let (one, dense) = one_sample(region, sample, self.batch.images);
                    // SAFETY: this tile's samples are nobody else's.
                    unsafe { region::load(dense, &one, (self.slot(*target), self.layout(*target))) };
                }
            }
            Action::LoadTarget { target } => {
                let slot = self.slot(*target);
                assert_eq!(slot.bytes, self.batch.targets.len() * 4, "bug: targets of another size");
                // SAFETY: sizes are equal, and nobody else touches the buffer now.
                unsafe {
                    std::ptr::copy_nonoverlapping(self.batch.targets.as_ptr(), slot.data as *mut f32, slot.bytes / 4)
                };
            }
            Action::Fold { partial, sum, samples, batch, leaves, strips } => {
                let (partial, sum) = (self.slot(*partial), self.slot(*sum));
                // SAFETY: the op's accesses say that both are ours now; buffers are aligned to 64 bytes.
                let (partial, sums) = unsafe {
                    (
                        std::slice::from_raw_parts(partial.data as *const f64, partial.bytes / 8),
                        std::slice::from_raw_parts_mut(sum.data as *mut f64, sum.bytes / 8),
                    )
                };
                fold::fold(partial, samples.clone(), (*batch, *leaves), *strips, sums);
            }
            Action::Clear { target, keep } => {
                let layout = self.layout(*target);
                for sample in self.samples(op, tile, &layout.stored) {
                    let one =
                        Layout { stored: sample_of(&layout.stored, sample), len: layout.sample, ..layout.clone() };
                    let bytes = sample * layout.sample * 4..(sample + 1) * layout.sample * 4;
                    let slot = self.part(&Part { buffer: *target, bytes });
                    // SAFETY: this tile's samples are nobody else's, and the op's accesses say that all outside `keep` is ours.
                    unsafe { region::clear_outside(slot, &one, keep) };
                }
            }
            Action::Copy { source, target, region, shift, add } => {
                for sample in self.samples(op, tile, region) {
                    let one = sample_of(region, sample);
                    let from = (self.slot(*source), self.layout(*source));
                    // SAFETY: the op's accesses say that the source is not written and the target is ours; samples are disjoint.
                    unsafe { region::copy(from, (self.slot(*target), self.layout(*target)), &one, *shift, *add) };
                }
            }
            Action::Combine { parts, into, number } => match number {
                Number::Single => self.combine::<f32>(parts, into, tile),
                Number::Double => self.combine::<f64>(parts, into, tile),
            },
            Action::Send { .. } | Action::Receive { .. } | Action::AllReduce { .. } => {
                unreachable!("bug: tiles do not talk")
            }
        }
    }

    /// Begins a sum that the library makes, or looks whether it is there.
    fn all_reduce<T: Summand>(
        &self,
        from: &Part,
        into: &Part,
        team: &[usize],
        tag: u64,
    ) -> Result<bool, convoy_comm::Error> {
        let (from, into) = (self.part(from), self.part(into));
        assert_eq!(from.bytes, into.bytes, "bug: a sum of another size");
        // SAFETY: the op is ready and not complete before the sum is there: nobody else touches either, and the arena outlives a sum
        // that is never there (`Engine::drop`). Both are as long, and aligned as buffers are.
        unsafe {
            let numbers = std::slice::from_raw_parts_mut(into.data as *mut T, into.bytes / size_of::<T>());
            self.communicator.try_all_reduce(team, tag, from.data as *const T, numbers)
        }
    }

    /// A piece of a sum over ranks, in tree order.
    fn combine<T: Copy + Default + std::ops::AddAssign>(&self, parts: &[Option<Part>], into: &Part, tile: usize) {
        const PIECE: usize = 256;
        let per_tile = TILE_BYTES / size_of::<T>();
        let count = into.bytes.len() / size_of::<T>();
        let target = self.part(into).data as *mut T;
        let mut levels = [[T::default(); PIECE]; 16];
        for start in (tile * per_tile..((tile + 1) * per_tile).min(count)).step_by(PIECE) {
            let width = PIECE.min(((tile + 1) * per_tile).min(count) - start);
            let any = fold::tree(
                0..parts.len(),
                &mut levels,
                &|r| parts[r].is_none(),
                &mut |r, level: &mut [T; PIECE]| {
                    let part = self.part(parts[r].as_ref().expect("bug: an empty part"));
                    // SAFETY: `start + width <= count`, and all parts are as long as `into`.
                    let from = unsafe { std::slice::from_raw_parts((part.data as *const T).add(start), width) };
                    level[..width].copy_from_slice(from);
                },
                &|a, b| a.iter_mut().zip(b).for_each(|(a, b)| *a += *b),
            );
            if !any {
                levels[0] = [T::default(); PIECE];
            }
            // SAFETY: as above; this tile's elements are nobody else's.
            unsafe { std::ptr::copy_nonoverlapping(levels[0].as_ptr(), target.add(start), width) };
        }
    }
}

/// One sample of a region.
fn sample_of(region: &Region, sample: usize) -> Region {
    let n = region.start[0] + sample as isize;
    region.with(Axis::Sample, n, n + 1)
}

/// One sample of a dense region, and its floats.
fn one_sample<'a>(region: &Region, sample: usize, dense: &'a [f32]) -> (Region, &'a [f32]) {
    let one = sample_of(region, sample);
    (one, &dense[sample * one.len()..(sample + 1) * one.len()])
}
