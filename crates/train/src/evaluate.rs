//! Evaluation: data through a network, forward only, with running statistics.
//!
//! [`pass`] is the one loop over data that are not trained on: the trainer's tests, [`Evaluation::scores`] and
//! [`Evaluation::outputs`] are all it.

use crate::checkpoint::EpochSums;
use crate::data::{self, Dataset, Loader, LoaderOptions, Normalise, Order, Part};
use crate::fold::fold;
use crate::metrics::Scores;
use crate::weights::Weights;
use crate::{Error, Optimizer, state};
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::fast::{Measured, measure};
use convoy_kernels::{Mode, Moment, Winograd};
use convoy_net::{Network, Region};
use convoy_program::{Options, Program, lower};
use convoy_split::{Rank, Strategy};
use std::sync::Arc;
use std::time::Instant;

/// A trained network and the data it is tried on, by one rank.
pub struct Evaluation<'a> {
    pub network: &'a Network,
    /// They must fit ([`crate::fit`]).
    pub weights: &'a Weights,
    pub data: Arc<dyn Dataset>,
    pub normalise: Option<Normalise>,
    /// At most as large as the data.
    pub batch: usize,
    pub threads: usize,
    pub leaves: usize,
    pub winograd: Winograd,
    /// Threads that prepare batches.
    pub loaders: usize,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluated {
    pub scores: Scores,
    /// From the first batch to the last.
    pub seconds: f64,
}

impl Evaluation<'_> {
    /// Loss and shares of right answers.
    pub fn scores(&self) -> Result<Evaluated, Error> {
        let mut engine = self.engine()?;
        let began = Instant::now();
        let mut sums = EpochSums::default();
        self.pass(&mut engine, false, &mut |_, _, measured| add(&mut sums, measured))?;
        Ok(Evaluated { scores: scores(&sums), seconds: began.elapsed().as_secs_f64() })
    }

    /// The network's outputs, dense, batch by batch in the order of the data. Data need no targets.
    pub fn outputs(&self, each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let mut engine = self.engine()?;
        let mut dense = Vec::new();
        self.pass(&mut engine, true, &mut |engine, program, _| {
            dense.resize(engine.program(program).owned.len(), 0.0);
            engine.output(program, &mut dense);
            each(&dense);
        })
    }

    /// An engine of the folded network.
    fn engine(&self) -> Result<Engine, Error> {
        let (network, weights) = fold(self.network, self.weights);
        let make = |batch: usize| {
            let (mode, update) = (Mode::Evaluate, Optimizer::default().update());
            let division = Default::default();
            let options = Options { batch, mode, leaves: self.leaves, winograd: self.winograd, update, division };
            lower(&network, &Strategy::single(&network), Rank(0), &options)
        };
        let programs = vec![make(self.batch)?, make(last_batch(self.data.len(), self.batch))?];
        let communicator = convoy_comm::threads(1).pop().expect("bug: no rank");
        let mut engine = Engine::new(&network, programs, self.threads, communicator, Settings::default());
        state::put_weights(&mut engine, &network, &weights);
        Ok(engine)
    }

    fn pass(&self, engine: &mut Engine, unlabelled: bool, each: Each) -> Result<(), Error> {
        let options = LoaderOptions {
            batch: self.batch,
            normalise: self.normalise.clone(),
            workers: self.loaders,
            ..LoaderOptions::default()
        };
        let over = Over { network: self.network, data: self.data.clone(), options, programs: [0, 1], unlabelled };
        pass(engine, over, each)
    }
}

/// Samples of the last batch of a pass over `len`.
pub(crate) fn last_batch(len: usize, batch: usize) -> usize {
    if len.is_multiple_of(batch) { batch } else { len % batch }
}

/// What a rank needs of a batch.
pub(crate) fn part(program: &Program, takes_labels: bool) -> Part {
    let mut targets = program.owned;
    if takes_labels {
        (targets.start[1], targets.end[1]) = (0, (!targets.is_empty()) as isize);
    }
    Part { images: program.images, targets }
}

/// What a pass goes over, and by which programs.
pub(crate) struct Over<'a> {
    pub network: &'a Network,
    pub data: Arc<dyn Dataset>,
    /// Batch, normalisation and workers; the rest is the pass's own.
    pub options: LoaderOptions,
    /// For full batches and for the last one.
    pub programs: [usize; 2],
    /// The data have no targets, nobody looks at the loss.
    pub unlabelled: bool,
}

type Each<'a> = &'a mut dyn FnMut(&Engine, usize, &Measured);

/// Takes data through a network once, in order; `each` sees the engine after each batch, with the program that ran.
pub(crate) fn pass(engine: &mut Engine, over: Over, each: Each) -> Result<(), Error> {
    let Over { network, data, options, programs, unlabelled } = over;
    let part_of = |program: usize| {
        let part = part(engine.program(program), network.loss.takes_labels());
        if unlabelled { Part { targets: Region::EMPTY, ..part } } else { part }
    };
    let batch = options.batch;
    let options = LoaderOptions {
        order: Order::Sequential,
        part: Some(part_of(programs[0])),
        last_part: Some(part_of(programs[1])),
        end_step: Some(data.len().div_ceil(batch) as u64),
        ..options
    };
    let mut loader = Loader::new(data, options)?;
    for _ in 0..loader.batches_per_epoch() {
        let mut loaded = loader.next()?;
        let program = if loaded.samples.len() == batch { programs[0] } else { programs[1] };
        if unlabelled {
            loaded.targets.resize(engine.program(program).targets, 0.0);
        }
        let sums =
            engine.step(program, Batch { images: &loaded.images, targets: &loaded.targets }, Moment::default())?;
        let measured = measure(&network.loss, sums);
        if !unlabelled {
            check_labels(&measured, "batch", loaded.step + 1, network)?;
            check_numbers(&measured, &loader, &loaded)?;
        }
        loader.give_back(loaded);
        each(engine, program, &measured);
    }
    Ok(())
}

/// Labels that name no class are an error of the data.
pub(crate) fn check_labels(
    measured: &Measured,
    what: &'static str,
    number: u64,
    network: &Network,
) -> Result<(), Error> {
    if measured.bad == 0.0 {
        return Ok(());
    }
    let classes = network.shapes(1)?.last().map_or(0, |output| output.channels());
    Err(Error::Labels { bad: measured.bad as u64, what, number, classes })
}

/// Where a loss is no number, a look at the data that it was computed from.
pub(crate) fn check_numbers(measured: &Measured, loader: &Loader, batch: &data::Batch) -> Result<(), Error> {
    if is_broken(measured) { Ok(loader.check_numbers(batch)?) } else { Ok(()) }
}

/// Whether there is a loss and it is no number. Where no label counts there is none, and nothing wrong with it.
pub(crate) fn is_broken(measured: &Measured) -> bool {
    measured.count > 0.0 && !measured.loss.is_finite()
}

/// Adds what a batch gave.
pub(crate) fn add(sums: &mut EpochSums, measured: &Measured) {
    if measured.count == 0.0 {
        return;
    }
    sums.samples += measured.count as u64;
    sums.loss += measured.loss * measured.count;
    sums.top1 += measured.top1 as u64;
    sums.top5 += measured.top5 as u64;
}

/// Means over what was added; NaN where nothing was.
pub(crate) fn scores(sums: &EpochSums) -> Scores {
    let n = sums.samples as f64;
    Scores { loss: sums.loss / n, top1: sums.top1 as f64 / n, top5: sums.top5 as f64 / n }
}
