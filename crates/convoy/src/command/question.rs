//! What `simulate`, `plan` and `sweep` are asked about: a network, a batch, ranks, a machine.

use super::{bench, field_argument, lay_flags, path, path_argument, warn};
use crate::calibration;
use crate::draft::Draft;
use crate::error::{Error, Errors};
use crate::fields::{Field, Form};
use crate::links::Transport;
use crate::plan_file;
use crate::words::{bytes, short};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches};
use convoy_net::{Network, Shape};
use convoy_plan::{Goal, Plan};
use convoy_predict::{Collectives, Folding, Machine, Question, Simulation, simulate};
use convoy_program::Options;
use convoy_split::Strategy;
use std::path::Path;

/// Ranks that a question may be about.
const MOST_RANKS: u64 = 1 << 20;

/// Samples of which a rank takes equally long for each.
const ENOUGH: usize = 512;

/// Everything a prediction needs but the strategy.
pub struct Asked {
    pub network: Network,
    pub shapes: Vec<Shape>,
    pub options: Options,
    pub machine: Machine,
    pub ranks: usize,
    pub threads: Option<usize>,
    pub ranks_per_node: Option<usize>,
    pub collectives: Collectives,
    /// Whether a person said where weights live.
    pub home_given: bool,
}

/// The flags that all of these commands take.
pub fn arguments() -> Vec<Arg> {
    let own = |key: &str, default: &'static str, help: &'static str| {
        let field = Field::find(key).expect("bug: a flag without a field");
        field_argument(field).default_value(default).help(help).help_heading(None)
    };
    let plain = |key: &str| field_argument(Field::find(key).expect("bug: a flag without a field")).help_heading(None);
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").help(help).allow_negative_numbers(true)
    };
    vec![
        path_argument("NET").required(true).help("a model's name (`convoy models`) or a network's file"),
        own("train.batch", "64", "samples of a step, over all ranks"),
        number("ranks", "ranks, each with its own memory and threads").default_value("1"),
        path_argument("machine")
            .long("machine")
            .value_name("MACHINE")
            .help("a machine's file, or the name of one that comes with Convoy [default: this computer's calibration, else cpu-10g]"),
        number("threads", "threads of each rank [default: its share of the node's cores]"),
        number("ranks-per-node", "ranks on each node [default: as the machine says]"),
        Arg::new("collectives")
            .long("collectives")
            .value_name("HOW")
            .value_parser(PossibleValuesParser::new(["direct", "cheapest"]))
            .default_value("direct")
            .help("sums over ranks as Convoy makes them, or by the cheapest algorithm"),
        plain("network.classes"),
        plain("network.input"),
        plain("train.winograd"),
        plain("train.leaves"),
        plain("parallel.batch_norm"),
        plain("parallel.home"),
        plain("parallel.exact"),
        plain("parallel.sums"),
        plain("parallel.overlap"),
    ]
}

impl Asked {
    pub fn new(matches: &ArgMatches) -> Result<Asked, Errors> {
        let mut draft = Draft::default();
        lay_flags(&mut draft, matches);
        let job = draft.job()?;
        let network = bench::network(path(matches, "NET").unwrap_or(Path::new("")), &job)?;
        let shapes = network.shapes(job.train.batch).map_err(Error::from)?;
        let options = Options {
            leaves: job.train.leaves,
            winograd: job.train.winograd,
            division: job.parallel.division(),
            ..Options::plain(job.train.batch)
        };
        let cheapest = matches.get_one::<String>("collectives").is_some_and(|word| word == "cheapest");
        Ok(Asked {
            network,
            shapes,
            options,
            machine: machine(path(matches, "machine"))?,
            ranks: whole(matches, "ranks", MOST_RANKS)?.expect("bug: it has a default"),
            threads: whole(matches, "threads", 65536)?,
            ranks_per_node: whole(matches, "ranks-per-node", 65536)?,
            collectives: if cheapest { Collectives::Cheapest } else { Collectives::Direct },
            home_given: matches.contains_id("parallel.home"),
        })
    }

    /// What a person wrote, over these ranks.
    pub fn strategy(&self, text: &str) -> Result<Strategy, Error> {
        plan_file::strategy(text, self.ranks, &self.network, &self.shapes).map_err(|flaw| Error::flag("strategy", flaw))
    }

    pub fn simulate(&self, strategy: &Strategy, keep_events: bool) -> Result<Simulation, Error> {
        let question = Question {
            network: &self.network,
            strategy,
            options: &self.options,
            machine: &self.machine,
            threads: self.threads,
            ranks_per_node: self.ranks_per_node,
            collectives: self.collectives,
            folding: Folding::Alike,
        };
        Ok(simulate(&question, keep_events)?)
    }

    /// The best strategy and all that were weighed; or the one that is given.
    pub fn plan(&self, given: Option<Strategy>, budget_bytes: Option<f64>, goal: Goal) -> Result<Plan, Error> {
        let asked = convoy_plan::Asked {
            network: &self.network,
            options: &self.options,
            machine: &self.machine,
            ranks: self.ranks,
            threads: self.threads,
            ranks_per_node: self.ranks_per_node,
            collectives: self.collectives,
            budget_bytes,
            goal,
            may_shard: !self.home_given,
        };
        let plan = match given {
            Some(strategy) => convoy_plan::plan_of(&asked, strategy),
            None => convoy_plan::plan(&asked),
        };
        plan.map_err(|error| match error {
            convoy_plan::Error::Budget { budget, least, strategy } => Error::flag(
                "memory",
                format!(
                    "no strategy fits {} a rank\n  help: `{}` needs least, {}; else a smaller batch or more ranks",
                    bytes(budget),
                    short(&strategy),
                    bytes(least)
                ),
            ),
            error => Error::Plan(Box::new(error)),
        })
    }

    /// Seconds of a step on one rank; of a large batch, those of a part times its parts.
    pub fn one_rank_seconds(&self) -> Result<f64, Error> {
        let batch = self.options.batch.min(ENOUGH);
        let options = Options { batch, ..self.options };
        let strategy = Strategy::single(&self.network);
        let question = Question {
            network: &self.network,
            strategy: &strategy,
            options: &options,
            machine: &self.machine,
            threads: self.threads,
            ranks_per_node: self.ranks_per_node,
            collectives: self.collectives,
            folding: Folding::Alike,
        };
        let seconds = simulate(&question, false)?.estimate.step_seconds;
        Ok(seconds * self.options.batch as f64 / batch as f64)
    }

    /// Another batch.
    pub fn set_batch(&mut self, batch: usize) -> Result<(), Error> {
        self.shapes = self.network.shapes(batch)?;
        self.options.batch = batch;
        Ok(())
    }

    /// The machine by name, with what it is.
    pub fn machine_words(&self) -> String {
        match self.machine.about.as_str() {
            "" => self.machine.name.clone(),
            about => format!("{}: {about}", self.machine.name),
        }
    }
}

/// A machine's file, or one that comes with Convoy.
fn machine(given: Option<&Path>) -> Result<Machine, Error> {
    if let (None, Some((machine, flaw))) = (given, calibration::cached(Transport::Threads)) {
        // Other kernels are nearly as fast; another computer is another answer.
        return match flaw {
            Some(flaw) if machine.name != crate::machine::name() => Err(Error::flag("machine", flaw)),
            flaw => {
                flaw.iter().for_each(|flaw| warn(flaw));
                Ok(machine)
            }
        };
    }
    calibration::named(given.unwrap_or(Path::new("cpu-10g")), |flaw| Error::flag("machine", flaw))
}

/// A number given as a flag that is no field of a job.
pub fn whole(matches: &ArgMatches, flag: &'static str, most: u64) -> Result<Option<usize>, Error> {
    let Some(text) = matches.get_one::<String>(flag) else { return Ok(None) };
    let form = Form::UpTo(most);
    let value = form.read_flag(text);
    form.judge(&value).map_err(|flaw| Error::flag(flag, flaw))?;
    Ok(value.as_integer().map(|n| n as usize))
}
