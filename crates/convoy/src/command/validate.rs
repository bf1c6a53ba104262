//! `convoy bench --validate`: predicted step times beside measured ones, over networks, batches and strategies.
//!
//! Each case is predicted from this computer's calibration, then run in memory with ranks that are threads; under mpirun, cases with as
//! many ranks as there are processes. A fixed step ([`Yardstick`]) runs before and after each step of a case, on as many cores: a
//! step's time is corrected by how much longer that took than when the computer was calibrated. Both the raw measurement and the
//! corrected one are kept.
//!
//! For each network the strategy that the planner chooses is among the cases: how much slower it is than the best one measured is
//! its regret.

use super::bed::{Bed, Crew, StepTimes};
use super::say;
use crate::calibration;
use crate::error::{Error, Errors};
use crate::links::Transport;
use crate::words::{median, percent, table};
use crate::world::World;
use crate::yardstick::Yardstick;
use convoy_comm::tell;
use convoy_net::Network;
use convoy_net::zoo::{self, ModelOptions};
use convoy_plan::{Asked, Goal};
use convoy_predict::{Collectives, Estimate, Folding, Machine, Question, simulate};
use convoy_program::Options;
use convoy_split::Strategy;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Networks, each with its batches: steps of a fifth of a second to some seconds on a core or two.
const NETWORKS: [(&str, [usize; 2]); 5] =
    [("resnet18-cifar", [16, 64]), ("resnet50", [2, 8]), ("vgg16", [2, 4]), ("alexnet", [16, 64]), ("unet", [1, 2])];
/// Ranks, threads of each, strategy.
const WAYS: [(usize, usize, &str); 9] = [
    (1, 1, "data"),
    (1, 2, "data"),
    (2, 1, "data"),
    (2, 1, "spatial"),
    (2, 1, "filter"),
    (2, 1, "channel"),
    (2, 1, CHOSEN),
    (4, 1, "data"),
    (4, 1, "spatial"),
];
/// The planner's own choice.
const CHOSEN: &str = "chosen";

/// Which cases, and for how long.
pub struct Validate<'a> {
    /// Words that a case's name must have one of; all cases where there are none.
    pub only: Vec<String>,
    /// Of measured steps of a case, at least three steps.
    pub seconds: f64,
    /// Where a line of JSON for each case goes, as soon as it is measured.
    pub out: Option<&'a Path>,
}

struct Case {
    network: &'static str,
    batch: usize,
    ranks: usize,
    threads: usize,
    words: &'static str,
}

impl Case {
    fn name(&self) -> String {
        format!("{} {} {}x{} {}", self.network, self.batch, self.ranks, self.threads, self.words)
    }

    fn network(&self) -> Result<Network, Error> {
        Ok(zoo::model(self.network, ModelOptions::default())?.fused())
    }

    fn crew(&self, strategy: &Strategy, bed: &Bed) -> Result<Crew, Errors> {
        bed.crew(&self.network()?, strategy, &Options::plain(self.batch), self.threads)
    }
}

/// A case, predicted and measured.
struct Row {
    case: Case,
    strategy: Strategy,
    predicted: Estimate,
    measured: StepTimes,
    transport: Transport,
    /// Whether ranks have a core for each of their threads.
    has_cores: bool,
}

impl Row {
    fn new(case: Case, bed: &mut Bed) -> Result<Row, Errors> {
        let (network, options) = (case.network()?, Options::plain(case.batch));
        let strategy = strategy(&case, &network, &options, &bed.machine)?;
        let question = Question {
            network: &network,
            strategy: &strategy,
            options: &options,
            machine: &bed.machine,
            threads: Some(case.threads),
            ranks_per_node: Some(case.ranks),
            collectives: Collectives::Direct,
            folding: Folding::Alike,
        };
        let predicted = simulate(&question, false).map_err(Error::from)?.estimate;
        let measured = bed.measure(&mut case.crew(&strategy, bed)?)?;
        let has_cores = case.ranks * case.threads <= bed.machine.groups[0].cores;
        Ok(Row { strategy, case, predicted, measured, transport: bed.transport, has_cores })
    }

    fn measured(&self) -> f64 {
        median(self.measured.seconds.iter().copied())
    }

    /// What it would have taken at the speed of the calibration.
    fn corrected(&self) -> f64 {
        let speeds = &self.measured.speeds;
        self.measured() * speeds.iter().sum::<f64>() / speeds.len() as f64
    }

    fn accuracy(&self, measured: f64) -> f64 {
        1.0 - (self.predicted.step_seconds - measured).abs() / measured
    }

    fn object(&self) -> Value {
        json!({
            "network": self.case.network, "batch": self.case.batch, "ranks": self.case.ranks,
            "threads": self.case.threads, "asked": self.case.words, "strategy": self.strategy.name,
            "transport": self.transport.word(), "predicted_seconds": self.predicted.step_seconds,
            "measured_seconds": self.measured(), "corrected_seconds": self.corrected(),
            "all_seconds": self.measured.seconds, "yardstick_speeds": self.measured.speeds,
            "accuracy_raw": self.accuracy(self.measured()), "accuracy": self.accuracy(self.corrected()),
            "predicted_bytes": self.predicted.memory_bytes, "planned_bytes": self.measured.planned_bytes,
        })
    }

    fn cells(&self) -> Vec<String> {
        let ms = |seconds: f64| format!("{:.2}", 1e3 * seconds);
        let name = &self.strategy.name;
        vec![
            self.case.network.into(),
            self.case.batch.to_string(),
            format!("{} x {}", self.case.ranks, self.case.threads),
            if self.case.words == CHOSEN { format!("chosen: {name}") } else { name.clone() },
            ms(self.predicted.step_seconds),
            ms(self.measured()),
            ms(self.corrected()),
            percent(self.accuracy(self.measured())),
            percent(self.accuracy(self.corrected())),
            if self.predicted.memory_bytes == self.measured.planned_bytes { "exact".into() } else { "differs".into() },
        ]
    }
}

/// Predicts and measures all cases, and tells what came out.
pub fn run(validate: &Validate, world: &World, json: bool) -> Result<(), Errors> {
    let transport = if world.ranks().is_some() { Transport::Mpi } else { Transport::Threads };
    let known = if world.is_first() { Some(calibrated(transport)?.to_toml().into_bytes()) } else { None };
    let machine = Machine::from_toml(&String::from_utf8_lossy(&world.told(known)?)).map_err(Error::from)?;
    let yardstick = Yardstick::new(world, machine.groups[0].cores)?;
    let mut bed = Bed { world, transport, machine, yardstick, seconds: validate.seconds };
    let can_be_run = |case: &Case| world.ranks().is_none_or(|processes| processes == case.ranks);
    let mut rows: Vec<Row> = vec![];
    for case in cases().filter(|case| can_be_run(case) && validate.wants(case)) {
        if world.is_first() {
            tell(&case.name());
        }
        let row = Row::new(case, &mut bed)?;
        if let Some(path) = validate.out.filter(|_| world.is_first()) {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| writeln!(file, "{}", row.object())).map_err(Error::file("write", path))?;
        }
        rows.push(row);
    }
    if rows.is_empty() {
        let processes = world.ranks().map_or(String::new(), |processes| format!(" and {processes} ranks"));
        return Err(Error::flag("only", format!("no case has any of these words in its name{processes}")).into());
    }
    let regrets = regrets(&rows, &bed)?;
    if world.is_first() { report(&rows, &regrets, json) } else { Ok(()) }
}

fn report(rows: &[Row], regrets: &[Regret], json: bool) -> Result<(), Errors> {
    let header = [
        "network",
        "batch",
        "ranks x threads",
        "strategy",
        "predicted ms",
        "measured",
        "corrected",
        "accuracy raw",
        "corrected",
        "memory",
    ];
    say(&table(&header, &[3, 9], rows.iter().map(Row::cells).collect()))?;
    let (own, shared): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.has_cores);
    for (what, rows) in [("a core for each thread", own), ("shared cores", shared)] {
        if !rows.is_empty() {
            say(&summary(what, &rows))?;
        }
    }
    if !regrets.is_empty() {
        let cells = |r: &Regret| {
            vec![r.network.to_string(), r.batch.to_string(), r.chosen.clone(), r.best.clone(), percent(r.regret)]
        };
        let header = ["network", "batch", "chosen", "best measured", "regret"];
        say(&format!("\n{}", table(&header, &[2, 3], regrets.iter().map(cells).collect())))?;
    }
    if json {
        let regret = |r: &Regret| json!({ "network": r.network, "batch": r.batch, "chosen": r.chosen, "best": r.best, "regret": r.regret });
        let object = json!({
            "cases": rows.iter().map(Row::object).collect::<Vec<_>>(),
            "regrets": regrets.iter().map(regret).collect::<Vec<_>>(),
        });
        say(&object.to_string())?;
    }
    Ok(())
}

/// This computer as it was measured, by these kernels.
fn calibrated(transport: Transport) -> Result<Machine, Error> {
    match calibration::cached(transport) {
        Some((machine, None)) if machine.yardstick_seconds.len() == 2 => Ok(machine),
        Some((_, None)) => Err(Error::Usage("the calibration has no yardstick\n  help: convoy calibrate".into())),
        Some((_, Some(flaw))) => Err(Error::Usage(flaw)),
        None => Err(Error::Usage("this computer was not calibrated\n  help: convoy calibrate".into())),
    }
}

impl Validate<'_> {
    fn wants(&self, case: &Case) -> bool {
        let name = case.name();
        self.only.is_empty() || self.only.iter().any(|words| words.split('+').all(|word| name.contains(word)))
    }
}

fn cases() -> impl Iterator<Item = Case> {
    NETWORKS.into_iter().flat_map(|(network, batches)| {
        batches.into_iter().flat_map(move |batch| {
            WAYS.into_iter().map(move |(ranks, threads, words)| Case { network, batch, ranks, threads, words })
        })
    })
}

fn summary(what: &str, rows: &[&Row]) -> String {
    let all = |of: &dyn Fn(&Row) -> f64| {
        let values: Vec<f64> = rows.iter().map(|row| of(row)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        format!("mean {}, least {}", percent(mean), percent(least))
    };
    format!(
        "{} cases with {what}: accuracy raw {}; corrected {}",
        rows.len(),
        all(&|row| row.accuracy(row.measured())),
        all(&|row| row.accuracy(row.corrected()))
    )
}

/// How much slower the planner's choice was than the best that was measured.
struct Regret {
    network: &'static str,
    batch: usize,
    chosen: String,
    best: String,
    regret: f64,
}

/// Cases with the same network, batch, ranks and threads are compared. What seemed faster than the choice is run again, both in turn: of
/// several that are measured one after the other, the best was also lucky.
fn regrets(rows: &[Row], bed: &Bed) -> Result<Vec<Regret>, Errors> {
    let mut regrets = vec![];
    for chosen in rows.iter().filter(|row| row.case.words == CHOSEN) {
        let same = |row: &Row| {
            let (a, b) = (&row.case, &chosen.case);
            (a.network, a.batch, a.ranks, a.threads) == (b.network, b.batch, b.ranks, b.threads)
        };
        let same = (0..rows.len()).filter(|&i| same(&rows[i]));
        let best = same.min_by(|&a, &b| rows[a].corrected().total_cmp(&rows[b].corrected()));
        // Ranks that are processes measured their own times: the first decides.
        let best = &rows[bed.world.told_number(best.expect("bug: the chosen one is among them") as u64)? as usize];
        let mut regret = 0.0;
        if best.strategy.name != chosen.strategy.name {
            let [mut own, mut other] = [chosen.case.crew(&chosen.strategy, bed)?, best.case.crew(&best.strategy, bed)?];
            regret = bed.ratio(&mut own, &mut other)? - 1.0;
        }
        let best = if regret > 0.0 { best } else { chosen };
        let (network, batch) = (chosen.case.network, chosen.case.batch);
        let (chosen, best) = (chosen.strategy.name.clone(), best.strategy.name.clone());
        regrets.push(Regret { network, batch, chosen, best, regret: regret.max(0.0) });
    }
    Ok(regrets)
}

fn strategy(case: &Case, network: &Network, options: &Options, machine: &Machine) -> Result<Strategy, Error> {
    if case.words != CHOSEN {
        let shapes = network.shapes(case.batch)?;
        return Strategy::parse(case.words, case.ranks, network, &shapes).map_err(|e| Error::Usage(e.to_string()));
    }
    let asked = Asked {
        network,
        options,
        machine,
        ranks: case.ranks,
        threads: Some(case.threads),
        ranks_per_node: Some(case.ranks),
        collectives: Collectives::Direct,
        budget_bytes: None,
        goal: Goal::Time,
        may_shard: false,
    };
    let plan = convoy_plan::plan(&asked).map_err(|error| Error::Plan(Box::new(error)))?;
    let uses_all = plan.candidates.into_iter().find(|c| c.strategy.ranks == case.ranks);
    Ok(uses_all.expect("bug: data is always a candidate").strategy)
}
