//! `strategy = "auto"`: the strategy that is predicted to be fastest on this computer.
//!
//! Uses this computer's calibration where there is one, else what a second of measuring says. What is chosen, perhaps
//! with a grid of its own for each layer, stands in the run's plan.

use crate::calibration;
use crate::command;
use crate::error::Error;
use crate::job::Job;
use crate::machine;
use convoy_kernels::Mode;
use convoy_net::Network;
use convoy_plan::{Asked, Goal, plan};
use convoy_predict::Collectives;
use convoy_program::Options;
use convoy_split::Strategy;

/// What was chosen, and why.
pub struct Auto {
    pub strategy: Strategy,
    /// Whether words say it all.
    pub uniform: bool,
    pub why: String,
}

/// Chooses a strategy for a job; one rank needs none.
pub fn choose(job: &Job, network: &Network) -> Result<Auto, Error> {
    let ranks = job.parallel.ranks;
    if ranks == 1 {
        let strategy = Strategy::single(network);
        return Ok(Auto { strategy, uniform: true, why: "one rank needs no plan".into() });
    }
    let (machine, how) = match calibration::cached() {
        Some((machine, None)) => (machine, "by this computer's calibration"),
        _ => (command::this_computer(), "by what a second of measuring says; `convoy calibrate` measures more"),
    };
    let options = Options {
        batch: job.train.batch,
        mode: Mode::Train,
        leaves: job.train.leaves,
        winograd: job.train.winograd,
        update: job.train.optimizer.update(),
        division: job.parallel.division(),
    };
    let asked = Asked {
        network,
        options: &options,
        machine: &machine,
        ranks,
        threads: Some(job.parallel.threads.unwrap_or((machine::cores() / ranks).max(1))),
        ranks_per_node: Some(ranks),
        collectives: Collectives::Direct,
        budget_bytes: None,
        goal: Goal::Time,
    };
    let found = plan(&asked).map_err(|error| Error::at("parallel.strategy", error))?;
    let all = || found.candidates.iter().filter(|c| c.strategy.ranks == ranks);
    let best = all().find(|c| c.fits).or_else(|| all().next()).expect("bug: data is always a candidate");
    let ms = |c: &convoy_plan::Candidate| format!("{:.1} ms", 1e3 * c.estimate.step_seconds);
    let next = all().find(|c| c.strategy.name != best.strategy.name);
    let next = next.map_or(String::new(), |c| format!("; next {} with {}", c.strategy.name, ms(c)));
    let why = format!("{} a step predicted, limited by {}{next}; {how}", ms(best), best.estimate.bottleneck);
    Ok(Auto { strategy: best.strategy.clone(), uniform: best.uniform, why })
}
