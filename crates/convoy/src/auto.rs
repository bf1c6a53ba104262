//! `strategy = "auto"`: the strategy that is predicted to be fastest here.
//!
//! What it is predicted by: the machine that the job names, else this computer's calibration, else what some seconds of measuring
//! say, with the layers of the very network. Where ranks are processes rank 0 plans, and all train by its plan; ranks measure their
//! links together. What is chosen, perhaps with a grid of its own for each layer, stands in the run's plan.

use crate::calibration;
use crate::error::Error;
use crate::job::Job;
use crate::links::Transport;
use crate::plan_file::{self, Remarks};
use crate::survey;
use crate::words::{bytes, short, size};
use crate::world::World;
use convoy_comm::Communicator;
use convoy_kernels::Mode;
use convoy_net::Network;
use convoy_plan::{Asked, Candidate, Goal, Plan, plan};
use convoy_predict::{Collectives, Machine};
use convoy_program::{NormOver, Options};
use convoy_split::{Grid, Strategy};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long layers are measured where nothing is known.
const QUICK: Duration = Duration::from_secs(3);
/// Samples that layers are measured with then, at most.
const SAMPLES: usize = 4;
/// How much faster than plain data parallelism, which keeps the bits of one rank, another strategy must be predicted to be.
const WORTH: f64 = 1.03;

/// What was chosen.
pub struct Auto {
    pub strategy: Strategy,
    /// What a step is predicted to take, where there was a choice.
    pub step: Option<Duration>,
    /// What it was predicted by, and why it was chosen: on rank 0, where there was a choice.
    pub reason: Option<(Machine, String)>,
}

impl Auto {
    /// Where there is no choice.
    pub fn given(strategy: Strategy) -> Auto {
        Auto { strategy, step: None, reason: None }
    }
}

/// What is known of the machine that a job runs on.
enum Known {
    /// All of it, and how.
    Machine(Box<Machine>, String),
    /// How long tiles take, but nothing of links between processes.
    Tiles(Box<Machine>),
    Nothing,
}

/// Chooses a strategy for a job, on all ranks the same; one rank needs no choice.
pub fn choose(world: &World, job: &Job, network: &Network) -> Result<Auto, Error> {
    if job.parallel.ranks == 1 {
        return Ok(Auto::given(Strategy::single(network)));
    }
    let communicator = world.communicator();
    let known = if world.is_first() { known(job, communicator)? } else { Known::Nothing };
    // Ranks that are processes measure together, or not at all.
    let measures = world.told(Some(vec![!matches!(known, Known::Machine(..)) as u8]))? == [1];
    let surveyed = match (communicator, measures) {
        (Some(communicator), true) => Some(survey::computers(communicator)?),
        _ => None,
    };
    let planned = match world.is_first() {
        true => Some(planned(world, job, network, machine(known, surveyed, job, network)?)?),
        false => None,
    };
    // As a file, whose reader makes the same of it on every rank.
    let text =
        planned.as_ref().map(|(best, _)| plan_file::write(network, &best.strategy, &Remarks::default()).into_bytes());
    let text = world.told(text)?;
    let seconds = planned.as_ref().map_or(0.0, |(best, _)| best.estimate.step_seconds);
    let step = Duration::try_from_secs_f64(f64::from_bits(world.told_number(seconds.to_bits())?)).ok();
    let shapes = network.shapes(job.train.batch)?;
    let strategy =
        plan_file::parse(&String::from_utf8_lossy(&text), Path::new("auto"), job.parallel.ranks, network, &shapes);
    let strategy = strategy.map_err(|flaw| Error::at("parallel.strategy", flaw))?;
    Ok(Auto { strategy, step, reason: planned.map(|(_, reason)| reason) })
}

/// What is known before anything is measured.
fn known(job: &Job, communicator: Option<&Arc<Communicator>>) -> Result<Known, Error> {
    if let Some(name) = &job.parallel.machine {
        let machine = calibration::named(Path::new(name), |flaw| Error::at("parallel.machine", flaw))?;
        let how = format!("by the machine {}", machine.name);
        return Ok(Known::Machine(Box::new(machine), how));
    }
    let transport = if communicator.is_some() { Transport::Mpi } else { Transport::Threads };
    if let Some(machine) = calibration::sound(transport) {
        return Ok(Known::Machine(Box::new(machine), "by this computer's calibration".into()));
    }
    Ok(match communicator.and_then(|_| calibration::sound(Transport::Threads)) {
        Some(machine) => Known::Tiles(Box::new(machine)),
        None => Known::Nothing,
    })
}

/// The machine to plan for, and how it is known; measures what is not, and says so.
fn machine(known: Known, surveyed: Option<Machine>, job: &Job, network: &Network) -> Result<(Machine, String), Error> {
    let table = match known {
        Known::Machine(machine, how) => return Ok((*machine, how)),
        Known::Tiles(machine) => Some(machine.table),
        Known::Nothing => None,
    };
    if table.is_none() {
        let seconds = QUICK.as_secs() + 1;
        convoy_comm::tell(&format!(
            "no calibration of this computer: measures for up to {seconds} s; `convoy calibrate` does it once"
        ));
    }
    let mut machine = match surveyed {
        Some(machine) => machine,
        None => survey::this_computer(2)?,
    };
    machine.table = match table {
        Some(table) => table,
        None => {
            let samples = (job.train.batch / job.parallel.ranks).clamp(1, SAMPLES);
            let probes = survey::probes(std::slice::from_ref(network));
            let tiles = survey::tiles(&probes, &[samples], &machine.groups[0], QUICK, || Ok(()));
            tiles.map_err(|errors| errors.0.into_iter().next().expect("bug: no error of all"))?.0
        }
    };
    Ok((machine, "by what was measured just now".into()))
}

/// The best candidate that uses all ranks; what it was predicted by, and why it was chosen.
fn planned(
    world: &World,
    job: &Job,
    network: &Network,
    (machine, how): (Machine, String),
) -> Result<(Candidate, (Machine, String)), Error> {
    let (ranks, memory) = (job.parallel.ranks, job.parallel.memory.as_deref());
    let options = Options {
        batch: job.train.batch,
        mode: Mode::Train,
        leaves: job.train.leaves,
        winograd: job.train.winograd,
        update: job.train.optimizer.update(),
        division: job.parallel.division(),
    };
    let ranks_per_node = world.ranks_per_node(ranks);
    let asked = Asked {
        network,
        options: &options,
        machine: &machine,
        ranks,
        threads: Some(job.parallel.threads.unwrap_or((crate::machine::cores() / ranks).max(1))),
        ranks_per_node: Some(ranks_per_node),
        collectives: Collectives::Direct,
        budget_bytes: memory.map(size).transpose().map_err(|flaw| Error::at("parallel.memory", flaw))?,
        goal: Goal::Time,
        may_shard: false,
    };
    let found = plan(&asked).map_err(|error| match error {
        convoy_plan::Error::Budget { budget, least, strategy } => {
            let key = if memory.is_some() { "parallel.memory" } else { "train.batch" };
            let (budget, least, strategy) = (bytes(budget), bytes(least), short(&strategy));
            Error::at(
                key,
                format!(
                    "no strategy for {ranks} ranks fits {budget} a rank\n  \
                     help: `{strategy}` needs least, {least}; else a smaller batch, more ranks, or --home sharded"
                ),
            )
        }
        error => Error::at("parallel.strategy", error),
    })?;
    let best = best(&found, job)?;
    let why = why(job, &found, best, &how);
    Ok((best.clone(), (machine, why)))
}

/// The best of those that use all ranks; one that keeps the bits of one rank, unless that costs something.
fn best<'a>(found: &'a Plan, job: &Job) -> Result<&'a Candidate, Error> {
    let ranks = job.parallel.ranks;
    let mut all = found.candidates.iter().filter(|c| c.fits && c.strategy.ranks == ranks);
    let best = all.clone().next().ok_or_else(|| {
        let flaw =
            format!("no strategy over all {ranks} ranks fits their memory\n  help: fewer ranks, or a smaller batch");
        Error::at("parallel.ranks", flaw)
    })?;
    let near = |c: &&Candidate| c.estimate.step_seconds < WORTH * best.estimate.step_seconds;
    Ok(all.find(|c| near(c) && has_bits_of_one(job, &c.strategy)).unwrap_or(best))
}

fn why(job: &Job, found: &Plan, best: &Candidate, how: &str) -> String {
    let ranks = job.parallel.ranks;
    let ms = |c: &Candidate| format!("{:.1} ms", 1e3 * c.estimate.step_seconds);
    let mut text = format!(
        "strategy {} chosen: {} a step and {} a rank predicted {how}, limited by {}",
        short(&best.strategy.name),
        ms(best),
        bytes(best.estimate.memory_bytes as u64),
        best.estimate.bottleneck
    );
    let mut others = found.candidates.iter().filter(|c| c.fits && c.strategy.name != best.strategy.name);
    if let Some(next) = others.clone().find(|c| c.strategy.ranks == ranks) {
        text += &format!("; next {} with {}", short(&next.strategy.name), ms(next));
    }
    if let Some(fewer) = others.find(|c| c.estimate.step_seconds < best.estimate.step_seconds) {
        text += &format!("; --ranks {} alone would take {}", fewer.strategy.ranks, ms(fewer));
    }
    text + match has_bits_of_one(job, &best.strategy) {
        true => "; weights will have the bits of one rank",
        false => "; weights will be within rounding of one rank's (--strategy data keeps its bits)",
    }
}

/// Whether training gives the weights of one rank, bit for bit.
fn has_bits_of_one(job: &Job, strategy: &Strategy) -> bool {
    let ranks = strategy.ranks;
    let by_samples = strategy.placements.iter().all(|p| p.grid == Grid::data(ranks) && p.shares.is_empty());
    let whole_trees = ranks.is_power_of_two() && job.train.leaves.is_multiple_of(ranks);
    by_samples && whole_trees && job.parallel.exact && job.parallel.batch_norm == NormOver::Global
}
