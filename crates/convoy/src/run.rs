//! Runs: what happens when a job is trained, and the one folder it leaves.

use crate::draft::Draft;
use crate::error::{Error, Errors};
use crate::job::{AUTO, Job, ParallelFields, TestData};
use crate::measured;
use crate::part;
use crate::plan_file::{self, Remarks};
use crate::ready::{self, Ready};
use crate::world::World;
use convoy_net::Network;
use convoy_program::Options;
use convoy_train::{Checkpoint, DamagedCheckpoint, Observer, Outcome, RunFolder, Setup, Start, Weights};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const NETWORK: &str = "network.toml";
/// The grid of every layer, and how its passes are computed.
pub const PLAN: &str = "plan.json";

/// A job that is ready, with its folder.
///
/// ```no_run
/// use convoy::{Job, Run};
/// use std::sync::atomic::AtomicBool;
/// let run = Run::new(&Job::default())?;
/// let outcome = run.train(&AtomicBool::new(false), &mut ())?;
/// println!("{:?} in {}", outcome.test, run.folder().path().display());
/// # Ok::<(), convoy::Errors>(())
/// ```
pub struct Run {
    ready: Ready,
    folder: RunFolder,
    /// Where it goes on.
    checkpoint: Option<Checkpoint>,
    /// Bytes that each rank will hold.
    pub planned_bytes: Vec<u64>,
    /// Checkpoints that were passed over.
    pub damaged: Vec<DamagedCheckpoint>,
}

impl Run {
    /// A new run in a folder of its own. Nothing is written before everything is found to fit.
    pub fn new(job: &Job) -> Result<Run, Errors> {
        Run::new_in(&World::default(), job)
    }

    /// The same where this process may be one rank of several.
    pub fn new_in(world: &World, job: &Job) -> Result<Run, Errors> {
        world.agree_on(job, None)?;
        let ready = Ready::new_in(world, &world.fit(job)?)?;
        let planned_bytes = world.planned_bytes(&ready)?;
        let name = ready.job.run.name.as_deref().unwrap_or_default();
        let folder = world.folder(|| Ok(RunFolder::create(&ready.job.run.folder, name)?))?;
        let run = Run { ready, folder, planned_bytes, checkpoint: None, damaged: vec![] };
        run.describe(world)?;
        Ok(run)
    }

    /// A run that goes on where its newest sound checkpoint is. `change` may lay flags over its job.
    pub fn resume(path: &Path, change: impl FnOnce(&mut Draft)) -> Result<Run, Errors> {
        Run::resume_in(&World::default(), path, change)
    }

    /// The same where this process may be one rank of several: all of them read the run's folder.
    pub fn resume_in(world: &World, path: &Path, change: impl FnOnce(&mut Draft)) -> Result<Run, Errors> {
        let folder = RunFolder::open(path).map_err(Error::from)?;
        let mut draft = draft_of(&folder)?;
        let before = draft.job()?;
        change(&mut draft);
        let asked = draft.job()?;
        world.agree_on(&asked, Some(path))?;
        let mut job = world.fit(&asked).map_err(|error| draft.located(error.into()))?;
        let words = job.parallel.strategy.clone();
        if words == before.parallel.strategy && (plan_file::is_one(&words) || is_planned_for(&before, &job)) {
            // The folder may have been moved; what was chosen when the run began stays.
            job.parallel.strategy = folder.path().join(PLAN).to_string_lossy().into_owned();
        }
        let found = folder.checkpoints(job.run.keep).newest().map_err(Error::from)?;
        // Its weights are in the checkpoint; the file that it once started from may be gone.
        let mut going_on = job.clone();
        let weights = going_on.train.weights.take();
        let ready = Ready::with_network(world, &going_on, network_of(&folder, &job)?);
        let mut ready = ready.map_err(|errors| draft.located(errors))?;
        ready.job.train.weights = weights;
        if words == AUTO {
            ready.job.parallel.strategy = words;
        }
        let (checkpoint, steps) = (found.checkpoint, ready.steps());
        if ready.digest()? != checkpoint.job_digest {
            let what = changes(&before, &job);
            return Err(Error::Changed { run: path.into(), what }.into());
        }
        if checkpoint.step >= steps {
            return Err(Error::Ended { run: path.into(), steps: checkpoint.step }.into());
        }
        let planned_bytes = world.planned_bytes(&ready).map_err(|error| draft.located(error.into()))?;
        let run = Run { ready, folder, planned_bytes, checkpoint: Some(checkpoint), damaged: found.skipped };
        run.describe(world)?;
        Ok(run)
    }

    /// Writes down what is about to be done.
    fn describe(&self, world: &World) -> Result<(), Error> {
        if !world.is_first() {
            return Ok(());
        }
        self.folder.write_text(NETWORK, &self.ready.network.to_toml())?;
        let mut job = self.ready.job.clone();
        let (leaves, winograd) = (job.train.leaves, job.train.winograd);
        let options = Options { leaves, winograd, ..Options::plain(job.train.batch) };
        let remarks = Remarks { algorithms: part::algorithms(&self.ready.network, &options)?, predicted: None };
        self.folder.write_text(PLAN, &plan_file::write(&self.ready.network, &self.ready.strategy, &remarks))?;
        if plan_file::is_one(&job.parallel.strategy) {
            // The plan as it is now, whatever becomes of the file that it was read from.
            let path = self.folder.path().join(PLAN);
            job.parallel.strategy = std::path::absolute(&path).unwrap_or(path).to_string_lossy().into_owned();
        }
        // Last: a folder with a job is a run.
        self.folder.write_job(&job.to_toml())?;
        Ok(())
    }

    /// What is trained, on what.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Where everything lies.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Steps done before it starts.
    pub fn first_step(&self) -> u64 {
        self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.step)
    }

    /// All that the trainer needs.
    pub fn setup(&self) -> Result<Setup, Error> {
        let start = match (&self.checkpoint, &self.ready.weights) {
            (Some(checkpoint), _) => Start::Checkpoint(Box::new(checkpoint.clone())),
            (None, Some(weights)) => Start::Weights(weights.clone()),
            (None, None) => Start::Fresh,
        };
        Ok(Setup { start, run: Some(self.folder.clone()), ..self.ready.setup()? })
    }

    /// Trains. `stop` asks for an early end: a checkpoint is written and the call returns.
    pub fn train(&self, stop: &AtomicBool, observer: &mut dyn Observer) -> Result<Outcome, Errors> {
        Ok(convoy_train::train(&self.setup()?, stop, observer).map_err(Error::from)?)
    }
}

impl Ready {
    /// All that the trainer needs, for a run that starts afresh and keeps nothing.
    pub fn setup(&self) -> Result<Setup, Error> {
        let job = &self.job;
        let data = self.train.digest()?;
        Ok(Setup {
            network: self.network.clone(),
            strategy: self.strategy.clone(),
            division: job.parallel.division(),
            threads: job.parallel.threads.unwrap_or(1),
            batch: job.train.batch,
            steps: self.steps(),
            optimizer: job.train.optimizer,
            schedule: job.train.schedule.clone(),
            seed: job.train.seed,
            leaves: job.train.leaves,
            winograd: job.train.winograd,
            train: self.train.clone(),
            test: self.test.clone(),
            normalise: self.normalise.clone(),
            augment: job.data.augment.clone().unwrap_or_default(),
            loaders: job.data.loaders,
            start: Start::Fresh,
            run: None,
            job_digest: job.result_digest(&self.network.to_toml(), &data),
            checkpoint_every: job.run.checkpoint_every,
            keep: job.run.keep,
            digest_every: job.run.digest_every,
            settings: Default::default(),
            deadline: Duration::from_secs(job.parallel.deadline),
            predicted_step: self.predicted_step,
            record: if job.parallel.ranks > 1 { measured::STEPS } else { 0 },
            in_common: vec![("data", data)],
        })
    }
}

/// The job of a run, as it stands in its folder.
pub fn draft_of(folder: &RunFolder) -> Result<Draft, Error> {
    let mut draft = Draft::default();
    draft.read(&folder.read_job()?, &folder.path().join("job.toml"));
    Ok(draft)
}

/// The network of a run: the one in its folder, whatever became of the file it was read from.
pub fn network_of(folder: &RunFolder, job: &Job) -> Result<Network, Errors> {
    let path = folder.path().join(NETWORK);
    if path.exists() { Ok(ready::read_network(&path)?) } else { ready::network(job) }
}

/// The weights that a run ended with, in the network's order.
pub fn weights_of(folder: &RunFolder, network: &Network) -> Result<Weights, Error> {
    let path = folder.model();
    if !path.exists() {
        return Err(Error::NoModel { run: folder.path().into() });
    }
    Ok(ready::read_weights(&path, network)?)
}

/// Whether the plan that was chosen for a job is for another one, too.
fn is_planned_for(before: &Job, now: &Job) -> bool {
    let asked = |job: &Job| {
        let ParallelFields { ranks, memory, machine, home, batch_norm, exact, sums, .. } = job.parallel.clone();
        (job.parallel.strategy == AUTO, ranks, memory, machine, home, batch_norm, exact, sums)
    };
    asked(before) == asked(now) && now.parallel.strategy == AUTO
}

/// What of a job is not as before: the fields by name, or what is outside of it.
fn changes(before: &Job, now: &Job) -> String {
    let mut names = vec![];
    let mut compare = |name: &str, same: bool| {
        if !same {
            names.push(name.to_string())
        }
    };
    compare("[network]", before.network == now.network);
    compare("[data].train", before.data.train == now.data.train);
    let holds_out = [&before.data.test, &now.data.test].contains(&&TestData::HoldOut);
    compare("[data].test", before.data.test == now.data.test || !holds_out);
    compare("[data].augment", before.data.augment == now.data.augment);
    compare("[data].normalise", before.data.normalise == now.data.normalise);
    compare("[train].batch", before.train.batch == now.train.batch);
    compare("[train].optimizer", before.train.optimizer == now.train.optimizer);
    compare("[train].schedule", before.train.schedule == now.train.schedule);
    compare("[train].seed", before.train.seed == now.train.seed);
    compare("[train].leaves", before.train.leaves == now.train.leaves);
    compare("[train].winograd", before.train.winograd == now.train.winograd);
    compare("[parallel].batch_norm", before.parallel.batch_norm == now.parallel.batch_norm);
    match names.len() {
        0 => "the job or its data is".into(),
        1 => format!("{} is", names[0]),
        _ => format!("{} are", names.join(" and ")),
    }
}
