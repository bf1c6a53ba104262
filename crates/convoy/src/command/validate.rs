//! `convoy bench --validate`: predicted step times beside measured ones, over networks, batches and strategies.
//!
//! Each case is predicted from this computer's calibration, then run in memory with ranks that are threads; under mpirun, cases with as
//! many ranks as there are processes. A fixed step ([`Yardstick`]) runs before and after each step of a case, on as many cores: a
//! step's time is corrected by how much longer that took than when the computer was calibrated. Both the raw measurement and the
//! corrected one are kept.
//!
//! For each network the strategy that the planner chooses is among the cases: how much slower it is than the best one measured is
//! its regret.

use super::bench::{LEARNING_RATE, SEED, WARM_UP, batch_of};
use super::say;
use crate::calibration;
use crate::error::{Error, Errors};
use crate::links::Transport;
use crate::machine;
use crate::words::{median, percent, table};
use crate::world::World;
use crate::yardstick::Yardstick;
use convoy_comm::tell;
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::Moment;
use convoy_net::zoo::{self, ModelOptions};
use convoy_net::{Network, Region};
use convoy_plan::{Asked, Goal};
use convoy_predict::{Collectives, Estimate, Folding, Machine, Question, Ratios, simulate};
use convoy_program::{Options, lower};
use convoy_split::{Rank, Strategy};
use convoy_train::state;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

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

    /// Whether ranks have a core for each of their threads.
    fn has_cores(&self) -> bool {
        self.ranks * self.threads <= machine::cores()
    }
}

/// A case, predicted and measured.
struct Row {
    case: Case,
    strategy: String,
    predicted: Estimate,
    /// Of each step.
    seconds: Vec<f64>,
    /// Beside each step: how much faster the yardstick was than when the computer was calibrated.
    speeds: Vec<f64>,
    planned_bytes: usize,
    transport: Transport,
}

impl Row {
    fn measured(&self) -> f64 {
        median(self.seconds.iter().copied())
    }

    /// What it would have taken at the speed of the calibration.
    fn corrected(&self) -> f64 {
        self.measured() * self.speeds.iter().sum::<f64>() / self.speeds.len() as f64
    }

    fn accuracy(&self, measured: f64) -> f64 {
        1.0 - (self.predicted.step_seconds - measured).abs() / measured
    }

    fn object(&self) -> Value {
        json!({
            "network": self.case.network, "batch": self.case.batch, "ranks": self.case.ranks,
            "threads": self.case.threads, "asked": self.case.words, "strategy": self.strategy,
            "transport": self.transport.word(), "predicted_seconds": self.predicted.step_seconds,
            "measured_seconds": self.measured(), "corrected_seconds": self.corrected(),
            "all_seconds": self.seconds, "yardstick_speeds": self.speeds,
            "accuracy_raw": self.accuracy(self.measured()), "accuracy": self.accuracy(self.corrected()),
            "predicted_bytes": self.predicted.memory_bytes, "planned_bytes": self.planned_bytes,
        })
    }

    fn cells(&self) -> Vec<String> {
        let ms = |seconds: f64| format!("{:.2}", 1e3 * seconds);
        vec![
            self.case.network.into(),
            self.case.batch.to_string(),
            format!("{} x {}", self.case.ranks, self.case.threads),
            if self.case.words == CHOSEN { format!("chosen: {}", self.strategy) } else { self.strategy.clone() },
            ms(self.predicted.step_seconds),
            ms(self.measured()),
            ms(self.corrected()),
            percent(self.accuracy(self.measured())),
            percent(self.accuracy(self.corrected())),
            if self.predicted.memory_bytes == self.planned_bytes { "exact".into() } else { "differs".into() },
        ]
    }
}

/// Predicts and measures all cases, and tells what came out.
pub fn run(validate: &Validate, world: &World, json: bool) -> Result<(), Errors> {
    let mut bed = Bed::new(world, validate.seconds)?;
    let can_be_run = |case: &Case| world.ranks().is_none_or(|processes| processes == case.ranks);
    let mut rows: Vec<Row> = vec![];
    for case in cases().filter(|case| can_be_run(case) && validate.wants(case)) {
        if world.is_first() {
            tell(&case.name());
        }
        let row = bed.measure(case)?;
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
    if world.is_first() { report(&rows, json) } else { Ok(()) }
}

fn report(rows: &[Row], json: bool) -> Result<(), Errors> {
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
    let (own, shared): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.case.has_cores());
    for (what, rows) in [("a core for each thread", own), ("shared cores", shared)] {
        if !rows.is_empty() {
            say(&summary(what, &rows))?;
        }
    }
    let regrets = regrets(rows);
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

fn regrets(rows: &[Row]) -> Vec<Regret> {
    let mut regrets = vec![];
    for chosen in rows.iter().filter(|row| row.case.words == CHOSEN) {
        let same = |row: &&Row| {
            let (a, b) = (&row.case, &chosen.case);
            (a.network, a.batch, a.ranks, a.threads) == (b.network, b.batch, b.ranks, b.threads)
        };
        // The same strategy measured twice is one strategy: the faster run counts for both.
        let is_chosen = |row: &&Row| row.strategy == chosen.strategy;
        let own = rows.iter().filter(same).filter(is_chosen).map(Row::corrected).fold(f64::INFINITY, f64::min);
        let best = rows.iter().filter(same).min_by(|a, b| a.corrected().total_cmp(&b.corrected()));
        let best = best.expect("bug: the chosen one is among them");
        regrets.push(Regret {
            network: chosen.case.network,
            batch: chosen.case.batch,
            chosen: chosen.strategy.clone(),
            best: best.strategy.clone(),
            regret: own / best.corrected() - 1.0,
        });
    }
    regrets
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

/// Where cases are run: this computer, its calibration, what tells how fast it is.
struct Bed<'a> {
    world: &'a World,
    transport: Transport,
    machine: Machine,
    yardstick: Yardstick,
    /// Of each case.
    seconds: f64,
}

/// What steps of all ranks together took, the yardstick's speed beside each, and what the heaviest rank held.
#[derive(Default)]
struct Measured {
    seconds: Vec<f64>,
    speeds: Vec<f64>,
    planned_bytes: usize,
}

/// A rank of this process, and its part of the batch.
struct Member {
    engine: Engine,
    images: Vec<f32>,
    targets: Vec<f32>,
}

impl Bed<'_> {
    fn new(world: &World, seconds: f64) -> Result<Bed<'_>, Errors> {
        let transport = if world.ranks().is_some() { Transport::Mpi } else { Transport::Threads };
        let known = if world.is_first() { Some(calibrated(transport)?.to_toml().into_bytes()) } else { None };
        let machine = Machine::from_toml(&String::from_utf8_lossy(&world.told(known)?)).map_err(Error::from)?;
        Ok(Bed { world, transport, machine, yardstick: Yardstick::new(machine::cores())?, seconds })
    }

    fn measure(&mut self, case: Case) -> Result<Row, Errors> {
        let network = zoo::model(case.network, ModelOptions::default()).map_err(Error::from)?.fused();
        let options = Options::plain(case.batch);
        let strategy = strategy(&case, &network, &options, &self.machine)?;
        let question = Question {
            network: &network,
            strategy: &strategy,
            options: &options,
            machine: &self.machine,
            threads: Some(case.threads),
            ranks_per_node: Some(case.ranks),
            collectives: Collectives::Direct,
            folding: Folding::Alike,
        };
        let predicted = simulate(&question, false).map_err(Error::from)?.estimate;
        let members = self.members(&case, &network, &strategy, &options)?;
        let measured = self.steps(members, (case.ranks * case.threads).min(machine::cores()))?;
        let Measured { seconds, speeds, planned_bytes } = measured;
        let (strategy, transport) = (strategy.name.clone(), self.transport);
        Ok(Row { strategy, case, predicted, seconds, speeds, planned_bytes, transport })
    }

    /// The ranks of this process: all, or the one it is.
    fn members(
        &self,
        case: &Case,
        network: &Network,
        strategy: &Strategy,
        options: &Options,
    ) -> Result<Vec<Member>, Errors> {
        let communicators = match self.world.communicator() {
            None => convoy_comm::threads(case.ranks).into_iter().map(Arc::new).collect(),
            Some(communicator) => vec![communicator.clone()],
        };
        let mut members = vec![];
        for communicator in communicators {
            let program = lower(network, strategy, Rank(communicator.rank()), options).map_err(Error::from)?;
            let (images, targets) = batch_of(network, &program)?;
            let images = part(&images, &program.images, network, case.batch)?;
            let targets = targets[..program.targets.min(targets.len())].to_vec();
            let mut engine = Engine::new(network, vec![program], case.threads, communicator, Settings::default());
            state::put_initial_weights(&mut engine, network, SEED);
            members.push(Member { engine, images, targets });
        }
        Ok(members)
    }

    fn steps(&mut self, mut members: Vec<Member>, cores: usize) -> Result<Measured, Errors> {
        let own = members.iter().map(|member| member.engine.bytes()).max().unwrap_or(0);
        let planned_bytes = self.world.most(own as u64)? as usize;
        let mut measured = Measured { planned_bytes, ..Measured::default() };
        let began = Instant::now();
        let mut before = self.speed(cores)?;
        for step in 0.. {
            let moment = Moment { seed: SEED, step, learning_rate: LEARNING_RATE };
            let took = self.timed(|| {
                std::thread::scope(|scope| {
                    let run = |m: &mut Member| {
                        m.engine.step(0, Batch { images: &m.images, targets: &m.targets }, moment).map(drop)
                    };
                    let ranks: Vec<_> = members.iter_mut().map(|rank| scope.spawn(move || run(rank))).collect();
                    let ends = ranks.into_iter().map(|rank| rank.join().expect("bug: a rank panicked"));
                    ends.collect::<Result<(), _>>().map_err(|error| Error::from(error).into())
                })
            })?;
            let after = self.speed(cores)?;
            if step >= WARM_UP as u64 {
                measured.seconds.push(took);
                measured.speeds.push((before + after) / 2.0);
            }
            before = after;
            let enough = measured.seconds.len() >= 3 && began.elapsed().as_secs_f64() > self.seconds;
            if self.world.told(Some(vec![u8::from(enough)]))? == [1] {
                return Ok(measured);
            }
        }
        unreachable!("bug: steps end")
    }

    /// How much faster the yardstick is than when the computer was calibrated, with so many cores, of which each process has its share.
    fn speed(&mut self, cores: usize) -> Result<f64, Errors> {
        let share = (cores / self.world.ranks().unwrap_or(1)).max(1);
        self.world.meet()?;
        let now = self.yardstick.seconds(share)?;
        let then = Ratios { alone: self.machine.yardstick_seconds[0], together: self.machine.yardstick_seconds[1] };
        Ok(then.with(cores, self.machine.groups[0].cores) / now)
    }

    /// Seconds until all ranks have done it.
    fn timed(&self, work: impl FnOnce() -> Result<(), Errors>) -> Result<f64, Errors> {
        self.world.meet()?;
        let start = Instant::now();
        work()?;
        self.world.meet()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// A rank's region of a batch of whole images.
fn part(images: &[f32], region: &Region, network: &Network, batch: usize) -> Result<Vec<f32>, Error> {
    let shape = network.shapes(batch)?[0];
    let [_, c, d, h, w] = shape.0;
    let mut part = Vec::with_capacity(region.len());
    for n in region.start[0]..region.end[0] {
        for ch in region.start[1]..region.end[1] {
            for z in region.start[2]..region.end[2] {
                for y in region.start[3]..region.end[3] {
                    let row = (((n as usize * c + ch as usize) * d + z as usize) * h + y as usize) * w;
                    part.extend(&images[row + region.start[4] as usize..row + region.end[4] as usize]);
                }
            }
        }
    }
    Ok(part)
}
