//! The trainer: steps, epochs, evaluation, checkpoints.
//!
//! Every rank runs the same loop over its part of each batch; rank 0 also writes the run's folder and reports. What a step does
//! depends on the job and its number alone, so a run that is resumed goes on with the bits of one that never stopped.
//!
//! Does not know how a layer is split.

use crate::checkpoint::{Checkpoint, EpochSums};
use crate::data::{self, DataError, Dataset, Loader, LoaderOptions, Normalise, Order, Part};
use crate::evaluate::{Over, add, check_labels, check_numbers, is_broken, last_batch, part, pass, scores};
use crate::metrics::{MetricsLine, MetricsLog, Scores};
use crate::optimizer::Optimizer;
use crate::run_folder::RunFolder;
use crate::schedule::Schedule;
use crate::weights::Weights;
use crate::{Broken, Error, NotFinite, agreement, digest, fit, layer_digests, panic_text, state};
use convoy_comm::{Communicator, Kind, Team, gather};
use convoy_engine::{Batch, Engine, Recording, Settings};
use convoy_kernels::fast::{Measured, measure};
use convoy_kernels::{Mode, Moment, Winograd};
use convoy_net::Network;
use convoy_program::{Division, Home, Options, Program, What, lower};
use convoy_split::{Rank, Strategy};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What to train, on what, and how.
pub struct Setup {
    pub network: Network,
    pub strategy: Strategy,
    pub division: Division,
    /// Workers of each rank.
    pub threads: usize,
    /// The global batch.
    pub batch: usize,
    /// Steps in all.
    pub steps: u64,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    pub seed: u64,
    pub leaves: usize,
    pub winograd: Winograd,
    pub train: Arc<dyn Dataset>,
    pub test: Option<Arc<dyn Dataset>>,
    pub normalise: Option<Normalise>,
    pub augment: Vec<data::Augment>,
    pub loaders: usize,
    pub start: Start,
    /// Where rank 0 writes what happens; else nothing is kept.
    pub run: Option<RunFolder>,
    pub job_digest: String,
    /// Steps between checkpoints; one is written at the end of every epoch too, where this is not 0.
    pub checkpoint_every: u64,
    /// Checkpoints that stay.
    pub keep: usize,
    /// Steps between digests of all layers.
    pub digest_every: u64,
    pub settings: Settings,
    /// The least time that a rank waits for another before it gives up; more where steps are long.
    pub deadline: Duration,
    /// What a step is predicted to take, where somebody knows.
    pub predicted_step: Option<Duration>,
    /// Steps of which is recorded when each tile and message began and ended, after some that are not; 0 for none.
    pub record: u64,
    /// What all ranks must have in common besides job, strategy and start, each by its name: they compare it first.
    pub in_common: Vec<(&'static str, String)>,
}

/// Steps before those that are recorded, where there are enough: the first touches of memory and caches are like no others.
pub const UNRECORDED: u64 = 2;

/// A rank that is silent for so many steps is given up.
const SILENT_STEPS: u32 = 20;

/// How long a rank waits for another, at least, while no step has been measured: loading data or the first step may take long.
pub const UNMEASURED: Duration = Duration::from_secs(600);

/// How long a rank waits for another before it gives up: the least that was asked for, or as long as many steps take. The longest yet was
/// `measured`; before that there is what they are predicted to take.
fn patience(least: Duration, predicted: Option<Duration>, measured: Option<Duration>) -> Duration {
    let least = if measured.is_some() { least } else { least.max(UNMEASURED) };
    least.max(measured.or(predicted).unwrap_or_default().saturating_mul(SILENT_STEPS))
}

impl Setup {
    /// What programs are made for, with this batch and mode.
    pub fn options(&self, batch: usize, mode: Mode) -> Options {
        let Setup { leaves, winograd, division, .. } = *self;
        Options { batch, mode, leaves, winograd, update: self.optimizer.update(), division }
    }

    /// Bytes that each rank will hold: weights, the optimizer's state, the buffers of a step, scratch, batches.
    pub fn planned_bytes(&self) -> Result<Vec<u64>, Error> {
        (0..self.strategy.ranks).map(|rank| self.planned_bytes_of(rank)).collect()
    }

    /// Bytes that one rank will hold.
    pub fn planned_bytes_of(&self, rank: usize) -> Result<u64, Error> {
        let programs = Programs::new(self, Rank(rank))?.list;
        Ok((Engine::planned_bytes(&programs, self.threads) + programs[TRAIN].fed_bytes(self.loaders)) as u64)
    }

    /// How long a rank waits for another after steps of which the longest took so long, if there were any.
    fn patience(&self, measured: Option<Duration>) -> Duration {
        patience(self.deadline, self.predicted_step, measured)
    }

    /// Whether what a run starts from is its own and fits the network.
    pub(crate) fn check_start(&self) -> Result<(), Error> {
        let (weights, origin) = match &self.start {
            Start::Fresh => return Ok(()),
            Start::Weights(weights) => (weights, "the weights to start from".to_string()),
            Start::Checkpoint(checkpoint) if checkpoint.job_digest != self.job_digest => {
                return Err(Error::OtherJob { step: checkpoint.step });
            }
            Start::Checkpoint(checkpoint) => (&checkpoint.weights, format!("checkpoint of step {}", checkpoint.step)),
        };
        fit(&state::wanted(&self.network), weights, &origin).map(drop)
    }
}

/// Where a run starts.
pub enum Start {
    /// From the seed.
    Fresh,
    /// From these weights.
    Weights(Weights),
    /// Where another one stopped.
    Checkpoint(Box<Checkpoint>),
}

/// What a trainer tells while it works. All of it happens on rank 0.
pub trait Observer {
    /// A step is done.
    fn step(&mut self, _report: &StepReport) {}
    /// An epoch is done and tested.
    fn epoch(&mut self, _report: &EpochReport) {}
}

/// Nobody listens.
impl Observer for () {}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: u64,
    pub steps: u64,
    pub steps_per_epoch: u64,
    pub loss: f64,
    pub learning_rate: f32,
    pub seconds: f64,
}

/// One epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochReport {
    /// Epochs done.
    pub epoch: u64,
    pub train: Scores,
    pub test: Option<Scores>,
    pub seconds: f64,
    pub images_per_second: f64,
    /// Seconds of it spent waiting for data.
    pub wait_seconds: f64,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub steps: u64,
    /// Mean loss of the last batch.
    pub train_loss: f64,
    pub test: Option<Scores>,
    pub seconds: f64,
    pub weights: Weights,
    /// By rank, on rank 0: bytes that its steps sent, bytes it held, bytes of its weights.
    pub bytes_sent: Vec<u64>,
    pub planned_bytes: Vec<u64>,
    pub weight_bytes: Vec<u64>,
    /// By rank, on rank 0: when what happened in the steps that were recorded.
    pub recordings: Vec<Recording>,
    /// Somebody asked it to stop before its last step.
    pub stopped: bool,
}

/// Trains, with ranks that are threads of this process. `stop` asks for an early end: a checkpoint is written and the call
/// returns.
pub fn train(setup: &Setup, stop: &AtomicBool, observer: &mut dyn Observer) -> Result<Outcome, Error> {
    let mut communicators = convoy_comm::threads(setup.strategy.ranks);
    let others = communicators.split_off(1);
    let first = communicators.pop().expect("bug: no rank");
    std::thread::scope(|scope| {
        let spawn =
            |communicator: Communicator| scope.spawn(move || train_rank(setup, communicator.into(), stop, &mut ()));
        let others: Vec<_> = others.into_iter().map(spawn).collect();
        let mut outcome = train_rank(setup, first.into(), stop, observer);
        for other in others {
            let other = other.join().expect("bug: a panic got out of a rank");
            outcome = match (outcome, other) {
                (Ok(all), Ok(_)) => Ok(all),
                (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
                // A rank that ended because another did is not the cause; nor is a loss, where a rank has seen bad data.
                (Err(first), Err(second)) => {
                    let is_cause = !second.is_consequence() && matches!(first, Error::NotFinite { .. });
                    Err(if first.is_consequence() || is_cause { second } else { first })
                }
            };
        }
        outcome
    })
}

/// Trains as one rank of several, all of which call it. An error, a panic included, ends all of them. What rank 0 has heard
/// of `stop` counts.
pub fn train_rank(
    setup: &Setup,
    communicator: Arc<Communicator>,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let step = Cell::new(None);
    let run = || -> Result<Outcome, Error> {
        communicator.set_deadline(setup.patience(None));
        agreement::check(setup, &communicator)?;
        Member::new(setup, communicator.clone(), &step)?.train(stop, observer)
    };
    let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let rank = communicator.rank();
        let (host, text) = (communicator.host(rank).into(), panic_text(&*panic));
        Err(Error::Panic { rank, host, step: step.get(), text })
    });
    let outcome = outcome.map_err(|error| error.of_rank(&communicator, step.get()));
    if let Err(error) = &outcome {
        communicator.end(&error.to_string());
    }
    outcome
}

/// The programs of a rank: full batches and the last one of an epoch, for training and for testing.
struct Programs {
    list: Vec<Program>,
    test_batch: usize,
}

const TRAIN: usize = 0;
const TRAIN_LAST: usize = 1;
const TEST: usize = 2;
const TEST_LAST: usize = 3;

impl Programs {
    fn new(setup: &Setup, rank: Rank) -> Result<Programs, Error> {
        let make = |batch: usize, mode: Mode| -> Result<Program, Error> {
            Ok(lower(&setup.network, &setup.strategy, rank, &setup.options(batch, mode))?)
        };
        let test_len = setup.test.as_ref().map_or(setup.batch, |t| t.len());
        let test_batch = setup.batch.min(test_len);
        let list = vec![
            make(setup.batch, Mode::Train)?,
            make(last_batch(setup.train.len(), setup.batch), Mode::Train)?,
            make(test_batch, Mode::Evaluate)?,
            make(last_batch(test_len, test_batch), Mode::Evaluate)?,
        ];
        Ok(Programs { list, test_batch })
    }
}

/// One rank at work.
struct Member<'a> {
    setup: &'a Setup,
    engine: Engine,
    parts: Vec<Part>,
    test_batch: usize,
    log: Option<MetricsLog>,
    steps_per_epoch: u64,
    /// Bytes of batches that the loader holds.
    fed_bytes: usize,
    /// Seconds of pieces of the run before this one.
    seconds_before: f64,
    began: Instant,
    /// The step that is being done, or was done last: what is told where something goes wrong.
    current: &'a Cell<Option<u64>>,
}

impl<'a> Member<'a> {
    fn new(
        setup: &'a Setup,
        communicator: Arc<Communicator>,
        current: &'a Cell<Option<u64>>,
    ) -> Result<Member<'a>, Error> {
        let rank = communicator.rank();
        let Programs { list, test_batch } = Programs::new(setup, Rank(rank))?;
        let parts = list.iter().map(|p| part(p, setup.network.loss.takes_labels())).collect();
        let mut engine = Engine::new(&setup.network, list, setup.threads, communicator, setup.settings);
        let mut seconds_before = 0.0;
        match &setup.start {
            Start::Fresh => state::put_initial_weights(&mut engine, &setup.network, setup.seed),
            Start::Weights(weights) => state::put_weights(&mut engine, &setup.network, weights),
            Start::Checkpoint(checkpoint) => {
                state::put_weights(&mut engine, &setup.network, &checkpoint.weights);
                let states = setup.optimizer.states();
                state::put_optimizer_state(&mut engine, &setup.network, &states, &checkpoint.optimizer);
                seconds_before = checkpoint.seconds;
            }
        }
        let log = match (&setup.run, &setup.start, rank) {
            (Some(run), Start::Checkpoint(checkpoint), 0) => Some(run.resume_metrics(checkpoint.step)?),
            (Some(run), _, 0) => Some(run.create_metrics()?),
            _ => None,
        };
        let steps_per_epoch = setup.train.len().div_ceil(setup.batch) as u64;
        let began = Instant::now();
        let fed_bytes = 0;
        Ok(Member { setup, engine, parts, test_batch, log, steps_per_epoch, fed_bytes, seconds_before, began, current })
    }

    fn seconds(&self) -> f64 {
        self.seconds_before + self.began.elapsed().as_secs_f64()
    }

    fn is_first(&self) -> bool {
        self.engine.communicator().rank() == 0
    }

    fn write(&mut self, line: &MetricsLine) -> Result<(), Error> {
        self.log.as_mut().map_or(Ok(()), |log| log.append(line))
    }

    /// Gives batches up to the end; up to the end of an epoch where that is tested, so that there are never batches to learn from
    /// beside those of a test.
    fn loader(&mut self, first_step: u64) -> Result<Loader, DataError> {
        let setup = self.setup;
        let epoch_end = (first_step / self.steps_per_epoch + 1) * self.steps_per_epoch;
        let end = if setup.test.is_some() { epoch_end.min(setup.steps) } else { setup.steps };
        let options = LoaderOptions {
            batch: setup.batch,
            seed: setup.seed,
            order: Order::Shuffled,
            normalise: setup.normalise.clone(),
            augment: setup.augment.clone(),
            // What a crop takes from beyond the image should not count, where the loss has a word for that.
            border_target: setup.network.loss.ignored().map_or(0.0, |label| label as f32),
            part: Some(self.parts[TRAIN]),
            last_part: Some(self.parts[TRAIN_LAST]),
            workers: setup.loaders,
            first_step,
            end_step: Some(end),
            ..LoaderOptions::default()
        };
        let loader = Loader::new(setup.train.clone(), options)?;
        self.fed_bytes = loader.bytes();
        Ok(loader)
    }

    fn train(&mut self, stop: &AtomicBool, observer: &mut dyn Observer) -> Result<Outcome, Error> {
        let setup = self.setup;
        let (mut step, mut sums) = match &setup.start {
            Start::Checkpoint(checkpoint) => (checkpoint.step, checkpoint.sums),
            _ => (0, EpochSums::default()),
        };
        let mut feed = Some(self.loader(step)?);
        if step == 0 {
            self.write_digests(0)?;
        }
        let (mut train_loss, mut test, mut stopped) = (f64::NAN, None, false);
        // When this piece of the epoch began, and what the pieces before it took.
        let (mut began, mut before) = (Instant::now(), sums);
        let mut longest = Duration::ZERO;
        let record_at = step + setup.steps.saturating_sub(step).saturating_sub(setup.record).min(UNRECORDED);
        while step < setup.steps {
            if step == record_at && setup.record > 0 {
                self.engine.record(TRAIN, setup.record as usize);
            }
            self.current.set(Some(step + 1));
            if self.agree(stop.load(Ordering::Relaxed))? {
                stopped = true;
                break;
            }
            let step_began = Instant::now();
            let learning_rate = setup.schedule.rate(step, self.steps_per_epoch, setup.steps);
            let loader = match &mut feed {
                Some(loader) => loader,
                none => none.insert(self.loader(step)?),
            };
            let waited = loader.waited_seconds();
            let measured = self.step(loader, step, learning_rate)?;
            sums.wait_seconds += loader.waited_seconds() - waited;
            step += 1;
            // A step that took long may do so again, also after some whose data were there already.
            longest = longest.max(step_began.elapsed());
            self.engine.communicator().set_deadline(setup.patience(Some(longest)));
            train_loss = measured.loss;
            add(&mut sums, &measured);
            sums.seconds = before.seconds + began.elapsed().as_secs_f64();
            let (epoch, seconds) = (step.div_ceil(self.steps_per_epoch), self.seconds());
            self.write(&MetricsLine::Step {
                step,
                epoch,
                loss: train_loss,
                learning_rate: learning_rate as f64,
                seconds,
            })?;
            let epoch_ends = step % self.steps_per_epoch == 0;
            let is_tested = epoch_ends || step == setup.steps;
            if is_tested || (setup.digest_every > 0 && step % setup.digest_every == 0) {
                self.write_digests(step)?;
            }
            let (steps, steps_per_epoch) = (setup.steps, self.steps_per_epoch);
            observer.step(&StepReport { step, steps, steps_per_epoch, loss: train_loss, learning_rate, seconds });
            if is_tested {
                if let (true, 0, Some(ignored)) = (epoch_ends, sums.samples, setup.network.loss.ignored()) {
                    return Err(Error::NothingCounts { epoch, ignored });
                }
                feed.take_if(|_| setup.test.is_some());
                test = self.test(step)?;
                let wait_seconds = sums.wait_seconds;
                let train = scores(&sums);
                self.write(&MetricsLine::Epoch { epoch, step, train, test, seconds: sums.seconds, wait_seconds })?;
                let images =
                    if epoch_ends { setup.train.len() } else { (step % steps_per_epoch) as usize * setup.batch };
                let images_per_second = images as f64 / sums.seconds;
                observer.epoch(&EpochReport {
                    epoch,
                    train,
                    test,
                    seconds: sums.seconds,
                    images_per_second,
                    wait_seconds,
                });
            }
            if epoch_ends {
                sums = EpochSums::default();
                (began, before) = (Instant::now(), sums);
            }
            let every = setup.checkpoint_every;
            if every > 0 && step < setup.steps && (epoch_ends || step % every == 0) {
                self.check_weights(step)?;
                self.save(step, &sums)?;
            }
        }
        self.check_weights(step)?;
        if stopped || (setup.checkpoint_every > 0 && setup.run.is_some()) {
            self.save(step, &sums)?;
        }
        self.outcome(step, train_loss, test, stopped)
    }

    fn outcome(&mut self, steps: u64, train_loss: f64, test: Option<Scores>, stopped: bool) -> Result<Outcome, Error> {
        let weights = self.weights()?.unwrap_or_default();
        let seconds = self.seconds();
        if let (Some(run), false) = (&self.setup.run, stopped)
            && self.is_first()
        {
            run.write_model(&weights)?;
            let weights_digest = digest(&weights);
            self.write(&MetricsLine::End { step: steps, train_loss, test, seconds, weights_digest })?;
        }
        let [bytes_sent, planned_bytes, weight_bytes] = self.numbers_of_ranks()?;
        let recordings = self.recordings()?;
        Ok(Outcome {
            recordings,
            steps,
            train_loss,
            test,
            seconds,
            weights,
            bytes_sent,
            planned_bytes,
            weight_bytes,
            stopped,
        })
    }

    /// By rank, on rank 0: what was recorded, if anything should be.
    fn recordings(&mut self) -> Result<Vec<Recording>, Error> {
        if self.setup.record == 0 {
            return Ok(vec![]);
        }
        let own = self.engine.take_recording().unwrap_or_default().to_bytes();
        let communicator = self.engine.communicator();
        let all = gather(communicator, &Team::all(communicator), 0, &own)?.unwrap_or_default();
        Ok(all.iter().map(|bytes| Recording::from_bytes(bytes)).collect())
    }

    /// By rank, on rank 0: bytes that steps sent, bytes held, bytes of weights.
    fn numbers_of_ranks(&self) -> Result<[Vec<u64>; 3], Error> {
        let communicator = self.engine.communicator();
        // What ranks tell each other besides is not the program's.
        let sent = communicator.sent_bytes() - communicator.sent(Kind::Other).bytes;
        let buffers = self.engine.program(TRAIN).buffers.iter();
        let weights =
            buffers.filter(|b| b.home == Home::Kept && matches!(b.what, What::Parameter(..) | What::Shard(..)));
        let held = self.engine.bytes() + self.fed_bytes;
        let own = [sent, held as u64, weights.map(|b| b.bytes as u64).sum()];
        let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
        let all = gather(communicator, &Team::all(communicator), 0, &bytes)?.unwrap_or_default();
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("bug: eight bytes are a number"));
        Ok([0, 1, 2].map(|n| all.iter().map(|rank| number(&rank[n * 8..(n + 1) * 8])).collect()))
    }

    /// One training step.
    fn step(&mut self, loader: &mut Loader, step: u64, learning_rate: f32) -> Result<Measured, Error> {
        let batch = loader.next()?;
        let program = if batch.samples.len() == self.setup.batch { TRAIN } else { TRAIN_LAST };
        let moment = Moment { seed: self.setup.seed, step, learning_rate };
        let sums = self.engine.step(program, Batch { images: &batch.images, targets: &batch.targets }, moment)?;
        let measured = measure(&self.setup.network.loss, sums);
        check_labels(&measured, "step", step + 1, &self.setup.network)?;
        check_numbers(&measured, loader, &batch)?;
        loader.give_back(batch);
        match is_broken(&measured) {
            true => Err(self.not_finite(step + 1, NotFinite::Loss(measured.loss))),
            false => Ok(measured),
        }
    }

    /// Whether all weights are numbers: others are neither kept nor given away.
    fn check_weights(&self, step: u64) -> Result<(), Error> {
        match state::first_not_finite(&self.engine, &self.setup.network) {
            Some(_) => Err(self.not_finite(step, NotFinite::Weights)),
            None => Ok(()),
        }
    }

    fn not_finite(&self, step: u64, found: NotFinite) -> Error {
        let setup = self.setup;
        let last = setup.network.layers.last().map_or(String::new(), |layer| layer.name.clone());
        let weights = state::first_not_finite(&self.engine, &setup.network);
        let broken = weights.map_or(Broken::Output { layer: last }, |layer| Broken::Weights { layer });
        let learning_rate = setup.schedule.rate(step.saturating_sub(1), self.steps_per_epoch, setup.steps);
        Error::NotFinite { step, found, broken, learning_rate }
    }

    /// Scores on the test data, with running statistics.
    fn test(&mut self, step: u64) -> Result<Option<Scores>, Error> {
        let Some(test) = &self.setup.test else { return Ok(None) };
        let options = LoaderOptions {
            batch: self.test_batch,
            normalise: self.setup.normalise.clone(),
            workers: self.setup.loaders,
            ..LoaderOptions::default()
        };
        let network = &self.setup.network;
        let over = Over { network, data: test.clone(), options, programs: [TEST, TEST_LAST], unlabelled: false };
        let mut sums = EpochSums::default();
        pass(&mut self.engine, over, &mut |_, _, measured| add(&mut sums, measured))?;
        let scores = scores(&sums);
        match sums.samples > 0 && !scores.loss.is_finite() {
            true => Err(self.not_finite(step, NotFinite::TestLoss(scores.loss))),
            false => Ok(Some(scores)),
        }
    }

    /// The weights of all ranks, on rank 0, in the place of what only a step needs.
    fn weights(&mut self) -> Result<Option<Weights>, Error> {
        if self.is_first() {
            self.engine.rest();
        }
        state::weights(&self.engine, &self.setup.network)
    }

    fn write_digests(&mut self, step: u64) -> Result<(), Error> {
        if self.setup.run.is_none() {
            return Ok(());
        }
        match self.weights()? {
            Some(weights) => self.write(&MetricsLine::Digest { step, layers: layer_digests(&weights) }),
            None => Ok(()),
        }
    }

    fn save(&mut self, step: u64, sums: &EpochSums) -> Result<(), Error> {
        let Some(run) = &self.setup.run else { return Ok(()) };
        let weights = self.weights()?;
        let optimizer = state::optimizer_state(&self.engine, &self.setup.network, &self.setup.optimizer.states())?;
        let (Some(weights), Some(optimizer)) = (weights, optimizer) else { return Ok(()) };
        let checkpoint = Checkpoint {
            step,
            epoch: step / self.steps_per_epoch,
            epoch_steps: step % self.steps_per_epoch,
            seed: self.setup.seed,
            job_digest: self.setup.job_digest.clone(),
            sums: *sums,
            seconds: self.seconds(),
            weights,
            optimizer,
        };
        run.checkpoints(self.setup.keep).save(&checkpoint).map(drop)
    }

    /// Whether to stop: what rank 0 has heard, so that all stop after the same step.
    fn agree(&self, stop: bool) -> Result<bool, Error> {
        const TAG: u64 = Kind::Other.tag();
        let communicator = self.engine.communicator();
        communicator.look_around()?;
        if self.is_first() {
            (1..communicator.size()).for_each(|q| communicator.send(q, TAG, &[stop as u8]));
            return Ok(stop);
        }
        let mut word = [0];
        communicator.receive(0, TAG, &mut word, "its word to go on")?;
        Ok(word[0] == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_patient_as_steps_are_long() {
        let seconds = Duration::from_secs;
        // What is asked for is the least, once a step was measured.
        assert_eq!(patience(seconds(4), None, Some(seconds(0))), seconds(4));
        assert_eq!(patience(seconds(4), Some(seconds(1000)), Some(seconds(1))), seconds(20));
        assert_eq!(patience(seconds(300), None, Some(seconds(10))), seconds(300));
        // Before, nobody knows how long it takes, or somebody predicted that it takes longer.
        assert_eq!(patience(seconds(4), None, None), UNMEASURED);
        assert_eq!(patience(seconds(4), Some(seconds(2)), None), UNMEASURED);
        assert_eq!(patience(seconds(4), Some(seconds(60)), None), seconds(1200));
        assert_eq!(patience(seconds(4000), Some(seconds(60)), None), seconds(4000));
        assert_eq!(patience(seconds(4), Some(Duration::MAX), None), Duration::MAX);
    }
}
