//! `convoy plan`: which strategy for a network, a batch, ranks and a machine; how long, how much memory, and why.

use super::question::{Asked, arguments};
use super::simulate::small_seconds;
use super::{json_argument, path, path_argument, say};
use crate::error::{Error, Errors};
use crate::part;
use crate::plan_file::{self, Remarks};
use crate::words::{bytes, grouped, seconds, size, table};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use convoy_plan::{Candidate, Goal, Plan};
use convoy_program::ParameterHome;
use serde_json::{Value, json};

pub fn definition() -> Command {
    Command::new("plan")
        .about("Which strategy to split a network over ranks by: time and memory of each, the best one, and why")
        .after_help(
            "Prices every way to cut every layer over the ranks, finds the best combination, simulates the best and the plain\n\
             strategies (`convoy simulate`), and chooses among those whose memory fits.",
        )
        .args(arguments())
        .arg(
            Arg::new("memory")
                .long("memory")
                .value_name("SIZE")
                .help("memory of each rank, such as 3GiB [default: its share of a node's]"),
        )
        .arg(
            Arg::new("goal")
                .long("goal")
                .value_name("GOAL")
                .value_parser(PossibleValuesParser::new(["time", "memory", "cost"]))
                .default_value("time")
                .help("what should be small: seconds, bytes of a rank, or seconds times ranks"),
        )
        .arg(
            Arg::new("strategy")
                .long("strategy")
                .value_name("WORDS")
                .help("only this one: data, spatial, filter, channel, a product such as data:2,spatial:2x2, or a plan's file"),
        )
        .arg(Arg::new("samples").long("samples").value_name("N").help("samples of an epoch, to tell its time"))
        .arg(path_argument("out").long("out").value_name("FILE").help("the grid of each layer, for train --strategy FILE (docs/formats.md)"))
        .arg(json_argument())
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let asked = Asked::new(matches)?;
    let memory = matches
        .get_one::<String>("memory")
        .map(|text| size(text).map_err(|flaw| Error::flag("memory", flaw)))
        .transpose()?;
    let goal = match matches.get_one::<String>("goal").map(String::as_str) {
        Some("memory") => Goal::Memory,
        Some("cost") => Goal::Cost,
        _ => Goal::Time,
    };
    let samples = super::question::whole(matches, "samples", 1 << 40)?;
    let given = matches.get_one::<String>("strategy").map(|words| asked.strategy(words)).transpose()?;
    // Side by side: both take a while where ranks are many.
    let (plan, one) = std::thread::scope(|scope| {
        let one = scope.spawn(|| asked.one_rank_seconds());
        (asked.plan(given, memory, goal), one.join().expect("bug: a panic in a simulation"))
    });
    let (plan, one) = (plan?, one?);
    say(&format!(
        "{}, batch {}, {} ranks, on {}: {} strategies priced, {} simulated, {} fit {} a rank{}\n",
        asked.network.name,
        grouped(asked.options.batch as u64),
        grouped(asked.ranks as u64),
        asked.machine_words(),
        plan.priced,
        plan.candidates.len(),
        plan.candidates.iter().filter(|c| c.fits).count(),
        bytes(plan.budget_bytes as u64),
        if plan.proven { "" } else { "; not proven best" },
    ))?;
    let labels = labels(&plan);
    say(&ranking(&asked, &plan, &labels, one, samples))?;
    for (label, candidate) in labels.iter().zip(&plan.candidates).filter(|(label, c)| **label != c.words()) {
        say(&format!("{label}: {}", grids(&candidate.strategy.name)))?;
    }
    say(&format!("\n{}", placements(&asked, plan.chosen())))?;
    let known = labels.iter().zip(&plan.candidates);
    let why =
        known.fold(plan.why.clone(), |why, (label, c)| why.replace(&format!("`{}`", c.words()), &format!("`{label}`")));
    say(&format!("\n{why}"))?;
    if let Some(path) = path(matches, "out") {
        let Candidate { strategy, estimate, .. } = plan.chosen();
        let remarks = Remarks {
            algorithms: part::algorithms(&asked.network, &asked.options).map_err(Error::from)?,
            predicted: Some((asked.options.batch, estimate)),
        };
        std::fs::write(path, plan_file::write(&asked.network, strategy, &remarks))
            .map_err(Error::file("write", path))?;
    }
    if matches.get_flag("json") {
        let candidates = plan.candidates.iter().map(|c| {
            let mut object = super::simulate::object(&asked, &c.strategy.name, &c.estimate);
            object["fits"] = json!(c.fits);
            object["uniform"] = json!(c.uniform);
            object["home"] = json!(home(c));
            object["speed_up"] = json!(one / c.estimate.step_seconds);
            object["layers"] = json!(null);
            object
        });
        let object = json!({
            "chosen": object(&asked, plan.chosen()),
            "candidates": candidates.collect::<Vec<_>>(),
            "priced": plan.priced,
            "proven": plan.proven,
            "budget_bytes": plan.budget_bytes,
            "one_rank_seconds": one,
            "why": plan.why,
        });
        say(&object.to_string())?;
    }
    Ok(())
}

fn home(candidate: &Candidate) -> &'static str {
    match candidate.home {
        ParameterHome::Everywhere => "everywhere",
        ParameterHome::Sharded => "sharded",
    }
}

/// What candidates are called in what people read: those with many grids by a letter.
fn labels(plan: &Plan) -> Vec<String> {
    let mut letters = 'A'..='Z';
    let label = |c: &Candidate| match c.strategy.name.starts_with("mixed ") {
        true => {
            let home = if c.home == ParameterHome::Sharded { ", sharded" } else { "" };
            format!("mixed {}{home}", letters.next().unwrap_or('Z'))
        }
        false => c.words(),
    };
    plan.candidates.iter().map(label).collect()
}

/// The grids of a name, the first of many.
fn grids(name: &str) -> String {
    let all: Vec<&str> = name.trim_start_matches("mixed ").split(" + ").collect();
    let more = if all.len() > SHOWN { format!(" and {} more", all.len() - SHOWN) } else { String::new() };
    format!("{}{more}", all[..all.len().min(SHOWN)].join(" + "))
}

/// Grids of a strategy, and layers of a grid, that are shown to people.
const SHOWN: usize = 4;

fn ranking(asked: &Asked, plan: &Plan, labels: &[String], one: f64, samples: Option<usize>) -> String {
    let ms = |time: f64| format!("{:.2}", 1e3 * time);
    let row = |(c, label): (&Candidate, &String)| {
        let e = &c.estimate;
        let idle = asked.ranks - c.strategy.ranks;
        let name = label.clone() + &if idle > 0 { format!(" ({idle} idle)") } else { String::new() };
        let share = 100.0 * e.memory_bytes as f64 / plan.budget_bytes;
        let memory =
            format!("{} ({share:.0} %{})", bytes(e.memory_bytes as u64), if c.fits { "" } else { ", too much" });
        let epoch =
            samples.map_or("".into(), |n| seconds(e.step_seconds * (n as f64 / asked.options.batch as f64).ceil()));
        let phases = e.phases.named().map(|(_, time)| ms(time));
        let words = [name, memory].into_iter().chain(phases);
        let end = [
            small_seconds(e.step_seconds),
            epoch,
            format!("{:.2}", one / e.step_seconds),
            format!("{:.0} %", 100.0 * e.efficiency),
            e.bottleneck.split(',').next().unwrap_or("").to_string(),
        ];
        words.chain(end).collect()
    };
    let header = [
        "strategy",
        "memory a rank",
        "compute",
        "halo",
        "reduction",
        "redistribution",
        "wait",
        "step",
        "epoch",
        "speed-up",
        "efficiency",
        "bottleneck",
    ];
    table(&header, &[11], plan.candidates.iter().zip(labels).map(row).collect())
        + "\n\nPhases in milliseconds, of the busiest rank."
}

/// Layers that have the same grid: how many, and the first and last of each run.
struct Alike {
    grid: String,
    layers: usize,
    runs: Vec<(String, String)>,
}

impl Alike {
    fn cells(&self) -> Vec<String> {
        let run = |(first, last): &(String, String)| match first == last {
            true => first.clone(),
            false => format!("{first} to {last}"),
        };
        let mut words: Vec<String> = self.runs.iter().take(SHOWN).map(run).collect();
        if self.runs.len() > SHOWN {
            words.push(format!("and {} more", self.runs.len() - SHOWN));
        }
        vec![self.grid.clone(), self.layers.to_string(), words.join(", ")]
    }
}

/// The layers that have each grid.
fn placements(asked: &Asked, chosen: &Candidate) -> String {
    let mut rows: Vec<Alike> = vec![];
    let mut before = None;
    for (layer, placement) in asked.network.layers.iter().zip(&chosen.strategy.placements).skip(1) {
        let grid = placement.grid.to_string();
        let at = rows.iter().position(|row| row.grid == grid).unwrap_or(rows.len());
        if at == rows.len() {
            rows.push(Alike { grid, layers: 0, runs: vec![] });
        }
        let row = &mut rows[at];
        row.layers += 1;
        match row.runs.last_mut().filter(|_| before == Some(at)) {
            Some(run) => run.1 = layer.name.clone(),
            None => row.runs.push((layer.name.clone(), layer.name.clone())),
        }
        before = Some(at);
    }
    table(&["chosen grid", "layers", "which"], &[2], rows.iter().map(Alike::cells).collect())
}

/// The plan for programs.
fn object(asked: &Asked, chosen: &Candidate) -> Value {
    let layers = asked.network.layers.iter().zip(&chosen.strategy.placements);
    let layers = layers.map(|(layer, placement)| json!({ "layer": layer.name, "grid": placement.grid.to_string() }));
    json!({
        "strategy": chosen.strategy.name,
        "home": home(chosen),
        "ranks": chosen.strategy.ranks,
        "batch": asked.options.batch,
        "step_seconds": chosen.estimate.step_seconds,
        "memory_bytes": chosen.estimate.memory_bytes,
        "layers": layers.collect::<Vec<_>>(),
    })
}
