//! The engine: one rank's memory, workers and programs.
//!
//! Always true
//! - The memory is what the programs planned, allocated before the first step; a step allocates nothing.

use crate::memory::{self, Memory};
use crate::pool::Pool;
use crate::record::{Recorder, Recording};
use crate::run::Run;
use crate::schedule::Schedule;
use convoy_comm::Communicator;
use convoy_kernels::fast::{self, region};
use convoy_kernels::{Kernel, Moment, Operand, Slot};
use convoy_net::{Network, Region};
use convoy_program::{Action, Buffer, BufferId, Home, Op, Program, Subject, What};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// In which order ready ops are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By longest remaining path.
    #[default]
    LongestPath,
    /// First in, first out: for comparison.
    FirstIn,
    /// Any: for tests.
    Random(u64),
}

/// How an engine runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    pub order: Order,
    /// Fill buffers with NaN as soon as nobody will use them any more: finds uses of what is gone.
    pub poison: bool,
    /// Measure each op's time.
    pub profile: bool,
    /// Empty the caches before a step and before its backward pass: a network of one layer then finds in them what it would find in
    /// the midst of a large one.
    pub cold: bool,
}

/// Why a step did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Communication(convoy_comm::Error),
    #[error("bug: a panic in {op}: {text}")]
    Panic { op: String, text: String },
}

/// What a step works on: this rank's part of the batch, dense, as the program's `images` and `owned` regions say.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub images: &'a [f32],
    pub targets: &'a [f32],
}

/// A program with its kernels prepared and its operands found.
pub struct Loaded {
    pub program: Program,
    pub schedule: Schedule,
    pub kernels: Vec<Option<Box<dyn Kernel>>>,
    pub operands: Vec<Vec<(Operand, Slot)>>,
    pub slots: Vec<Slot>,
    pub names: Vec<String>,
    /// By op: the buffers of the step that it touches; by buffer: ops that have not touched it yet.
    pub touches: Vec<Vec<usize>>,
    pub users: Vec<AtomicU32>,
    pub nanoseconds: Vec<AtomicU64>,
    /// The first op of the loss, after which the backward pass begins.
    pub turn: Option<usize>,
}

/// One op's share of the time.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    pub name: String,
    /// By place in the program.
    pub op: usize,
    /// Seconds of all tiles together, since profiling began.
    pub seconds: f64,
}

/// One rank's memory, workers and programs.
pub struct Engine {
    kept: BTreeMap<What, Memory>,
    arena: Memory,
    scratch: Vec<Memory>,
    loaded: Vec<Loaded>,
    pool: Pool,
    communicator: Arc<Communicator>,
    settings: Settings,
    recorder: Option<Recorder>,
}

impl Engine {
    /// Allocates what the programs planned and prepares their kernels.
    pub fn new(
        network: &Network,
        programs: Vec<Program>,
        workers: usize,
        communicator: impl Into<Arc<Communicator>>,
        settings: Settings,
    ) -> Engine {
        let communicator = communicator.into();
        for op in programs.iter().flat_map(|p| &p.ops) {
            if let Action::AllReduce { team, .. } = &op.action {
                communicator.make_team(team);
            }
        }
        memory::return_what_is_freed();
        let mut kept = BTreeMap::new();
        for buffer in programs.iter().flat_map(|p| &p.buffers).filter(|b| b.home == Home::Kept) {
            kept.entry(buffer.what).or_insert_with(|| Memory::zeroed(buffer.bytes));
        }
        let arena = Memory::zeroed(programs.iter().map(|p| p.memory.step_bytes).max().unwrap_or(0));
        let loaded = programs.into_iter().map(|p| load(network, p, &kept, &arena, settings.order)).collect();
        let (pool, scratch) = (Pool::new(1), vec![]);
        let mut engine = Engine { kept, arena, scratch, loaded, pool, communicator, settings, recorder: None };
        engine.set_workers(workers);
        engine
    }

    /// From the next step on it has so many workers.
    pub fn set_workers(&mut self, workers: usize) {
        let floats = self.loaded.iter().map(|l| l.program.scratch()).max().unwrap_or(0);
        self.pool = Pool::new(workers);
        self.scratch.resize_with(self.pool.workers(), || Memory::zeroed(floats * 4));
    }

    /// Bytes that an engine of these programs holds.
    pub fn planned_bytes(programs: &[Program], workers: usize) -> usize {
        let kept = programs.iter().flat_map(|p| &p.buffers).filter(|b| b.home == Home::Kept);
        let kept: BTreeMap<What, usize> = kept.map(|b| (b.what, b.bytes)).collect();
        let step = programs.iter().map(|p| p.memory.step_bytes).max().unwrap_or(0);
        let scratch = programs.iter().map(|p| p.scratch()).max().unwrap_or(0);
        kept.values().sum::<usize>() + step + workers * scratch * 4
    }

    /// The programs, in the order they were given.
    pub fn program(&self, number: usize) -> &Program {
        &self.loaded[number].program
    }

    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    pub fn workers(&self) -> usize {
        self.pool.workers()
    }

    /// Bytes of memory held: parameters and states, the arena, scratch.
    pub fn bytes(&self) -> usize {
        let scratch: usize = self.scratch.iter().map(|m| m.bytes()).sum();
        self.kept.values().map(|m| m.bytes()).sum::<usize>() + self.arena.bytes() + scratch
    }

    /// Gives back what only a step needs, until the next one: while weights of all ranks are put together there is room for them.
    pub fn rest(&mut self) {
        self.arena.give_back();
    }

    /// A parameter or an optimizer's state, in kernel order.
    pub fn kept(&self, what: What) -> Option<&[f32]> {
        self.kept.get(&what).map(|m| m.floats())
    }

    pub fn kept_mut(&mut self, what: What) -> Option<&mut [f32]> {
        self.kept.get_mut(&what).map(|m| m.floats_mut())
    }

    /// Runs one step; the result is the loss's sums over the global batch.
    pub fn step(&mut self, program: usize, batch: Batch, moment: Moment) -> Result<&[f64], Error> {
        let loaded = &self.loaded[program];
        assert_eq!(batch.images.len(), loaded.program.images.len(), "bug: a batch of another size");
        loaded.schedule.reset();
        if self.settings.cold {
            memory::empty_caches();
        }
        if self.settings.poison {
            loaded.users.iter().for_each(|u| u.store(0, Relaxed));
            loaded.touches.iter().flatten().for_each(|&b| {
                loaded.users[b].fetch_add(1, Relaxed);
            });
        }
        // Workers' slots on the stack: a step allocates nothing.
        let mut scratch = [Slot { data: std::ptr::null_mut(), bytes: 0 }; MOST_WORKERS];
        self.scratch.iter().zip(&mut scratch).for_each(|(m, s)| *s = m.slot(0, m.bytes()));
        let recorder = self.recorder.as_ref().filter(|recorder| recorder.wants(program));
        let began = recorder.map(Recorder::begin_step);
        let run = Run {
            recorder,
            loaded,
            batch,
            moment,
            communicator: &self.communicator,
            pool: &self.pool,
            settings: self.settings,
            scratch: &scratch,
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        };
        self.pool.run(&|worker| run.work(worker));
        let error = run.error.into_inner().unwrap_or_else(|e| e.into_inner());
        began.into_iter().zip(&mut self.recorder).for_each(|(began, recorder)| recorder.end_step(began));
        if let Some(error) = error {
            return Err(error);
        }
        let sums = loaded.slots[loaded.program.measured.0];
        // SAFETY: the step is over; the sums keep their bytes until the next one, which borrows the engine anew.
        Ok(unsafe { std::slice::from_raw_parts(sums.data as *const f64, sums.bytes / 8) })
    }

    /// What this rank owns of the network's output after an evaluation, dense.
    pub fn output(&self, program: usize, dense: &mut [f32]) {
        let program = &self.loaded[program];
        let output = program.program.output;
        let layout = program.program.buffers[output.0].layout.as_ref().expect("bug: tensors have layouts");
        let owned: Region = program.program.owned;
        assert_eq!(dense.len(), owned.len(), "bug: an output of another size");
        // SAFETY: no step is running, and evaluation keeps the output to the end.
        unsafe { region::unload((program.slots[output.0], layout), &owned, dense) };
    }

    /// Records the next `steps` steps of a program: when every tile and message began and ended.
    pub fn record(&mut self, program: usize, steps: usize) {
        let ops = &self.loaded[program].program.ops;
        let tiles = ops.iter().map(|op| op.tiles).sum();
        self.recorder = Some(Recorder::new(program, steps, self.pool.workers(), ops.len(), tiles));
    }

    /// What was recorded since [`Engine::record`], if it was called; nothing more is recorded.
    pub fn take_recording(&mut self) -> Option<Recording> {
        self.recorder.take().map(Recorder::finish)
    }

    /// Time of each op since the engine was made or this was last called, if profiling is on.
    pub fn take_times(&mut self, program: usize) -> Vec<OpTime> {
        let loaded = &self.loaded[program];
        let times = loaded.names.iter().zip(&loaded.nanoseconds).enumerate();
        times
            .map(|(op, (name, ns))| OpTime { name: name.clone(), op, seconds: ns.swap(0, Relaxed) as f64 * 1e-9 })
            .collect()
    }
}

/// Messages and sums that were under way when a step failed may still be read or written: their memory stays, the process ends soon.
impl Drop for Engine {
    fn drop(&mut self) {
        if self.communicator.borrows() {
            std::mem::forget(std::mem::replace(&mut self.arena, Memory::zeroed(0)));
            std::mem::forget(std::mem::take(&mut self.kept));
        }
    }
}

/// Workers a rank may have.
const MOST_WORKERS: usize = 256;

fn load(network: &Network, program: Program, kept: &BTreeMap<What, Memory>, arena: &Memory, order: Order) -> Loaded {
    let slot = |(b, buffer): (usize, &Buffer)| {
        let (outer, first) = buffer.within.unwrap_or((BufferId(b), 0));
        match (buffer.home, program.memory.offsets[outer.0]) {
            (Home::Kept, _) => kept[&buffer.what].slot(0, buffer.bytes),
            (Home::Step, Some(offset)) => arena.slot(offset + first, buffer.bytes),
            // Nobody touches it.
            (Home::Step, None) => arena.slot(0, 0),
        }
    };
    let slots: Vec<Slot> = program.buffers.iter().enumerate().map(slot).collect();
    let find = |operands: &[(Operand, BufferId)]| operands.iter().map(|(o, b)| (*o, slots[b.0])).collect();
    let mut kernels: Vec<Option<Box<dyn Kernel>>> = vec![];
    let mut operands: Vec<Vec<(Operand, Slot)>> = vec![];
    for op in &program.ops {
        let (kernel, found) = match &op.action {
            Action::Compute { subject, geometry, stage, operands } => {
                let kernel = match subject {
                    Subject::Layer(l) => fast::twin(&network.layers[l.0].kind).prepare(stage.pass, geometry),
                    _ => fast::Fast::prepare(&network.loss, stage.pass, geometry),
                };
                (Some(kernel), find(operands))
            }
            Action::Update { update, len, stage, operands, .. } => {
                (Some(update.prepare(stage.pass, *len)), find(operands))
            }
            _ => (None, vec![]),
        };
        kernels.push(kernel);
        operands.push(found);
    }
    let results = [program.measured.0, program.output.0];
    let touches = program.ops.iter().map(|op| {
        let in_step = |b: &usize| program.buffers[*b].home == Home::Step && !results.contains(b);
        let mut touched: Vec<usize> = op.accesses.iter().map(|a| a.buffer.0).filter(in_step).collect();
        touched.sort_unstable();
        touched.dedup();
        touched
    });
    let is_loss = |op: &Op| matches!(op.action, Action::Compute { subject: Subject::Loss, .. });
    Loaded {
        turn: program.ops.iter().position(is_loss),
        schedule: Schedule::new(&program, order),
        kernels,
        operands,
        names: program.ops.iter().map(|op| program.describe(op, network)).collect(),
        touches: touches.collect(),
        users: (0..program.buffers.len()).map(|_| AtomicU32::new(0)).collect(),
        nanoseconds: program.ops.iter().map(|_| AtomicU64::new(0)).collect(),
        slots,
        program,
    }
}
