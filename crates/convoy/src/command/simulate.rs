//! `convoy simulate`: a training step that never happened, on any machine, on up to thousands of ranks.

use super::question::{Asked, arguments};
use super::{json_argument, path, path_argument, say};
use crate::error::{Error, Errors};
use crate::words::{bytes, count, grouped, seconds, table};
use clap::{Arg, ArgAction, ArgMatches, Command};
use convoy_predict::{Estimate, PassGroup, chrome_trace};
use serde_json::{Value, json};

pub fn definition() -> Command {
    Command::new("simulate")
        .about("How long a training step would take on a machine, and why; on up to thousands of ranks")
        .after_help(
            "Runs the ranks' programs over a described machine, op by op and message by message. MACHINE is a file\n\
             (docs/machines.md) or the name of one that comes with Convoy: v100-cluster, abci, cpu-10g.",
        )
        .args(arguments())
        .arg(
            Arg::new("strategy")
                .long("strategy")
                .value_name("WORDS")
                .default_value("data")
                .help("data, spatial, filter, channel, a product such as data:2,spatial:2x2, or a plan's file"),
        )
        .arg(Arg::new("layers").long("layers").action(ArgAction::SetTrue).help("the same per layer"))
        .arg(path_argument("trace").long("trace").value_name("FILE").help("what ranks did, as a Chrome trace"))
        .arg(json_argument())
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let asked = Asked::new(matches)?;
    let text = matches.get_one::<String>("strategy").expect("bug: it has a default");
    let strategy = asked.strategy(text)?;
    let trace = path(matches, "trace");
    let found = asked.simulate(&strategy, trace.is_some())?;
    if let Some(path) = trace {
        std::fs::write(path, chrome_trace(&found.events)).map_err(Error::file("write", path))?;
    }
    let estimate = &found.estimate;
    say(&about(&asked, &strategy.name, estimate))?;
    say(&phases(estimate))?;
    if matches.get_flag("layers") {
        say(&format!("\n{}", layers(&asked, estimate)))?;
    }
    if matches.get_flag("json") {
        say(&object(&asked, &strategy.name, estimate).to_string())?;
    }
    Ok(())
}

fn about(asked: &Asked, strategy: &str, e: &Estimate) -> String {
    let share = 100.0 * e.memory_bytes as f64 / e.memory_limit_bytes;
    format!(
        "{}, batch {}, {} with {}, strategy {strategy}, on {} ({} simulated)\n\
         {} a step, {} images/s, efficiency {:.0} %, {} of memory a rank ({share:.0} % of {}), {} sent in {}\n\
         bottleneck: {}\n",
        asked.network.name,
        grouped(asked.options.batch as u64),
        count(e.ranks as u64, "rank"),
        count(e.threads as u64, "thread") + if e.ranks > 1 { " each" } else { "" },
        asked.machine_words(),
        grouped(e.simulated_ranks as u64),
        small_seconds(e.step_seconds),
        grouped((asked.options.batch as f64 / e.step_seconds).round() as u64),
        100.0 * e.efficiency,
        bytes(e.memory_bytes as u64),
        bytes(e.memory_limit_bytes as u64),
        bytes(e.sent_bytes as u64),
        count(e.messages as u64, "message"),
        e.bottleneck,
    )
}

/// Seconds of a step, with digits that tell steps apart.
pub fn small_seconds(time: f64) -> String {
    match time {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => seconds(s),
    }
}

fn phases(e: &Estimate) -> String {
    let row = |(name, time): (&str, f64)| {
        vec![name.to_string(), format!("{:.3}", 1e3 * time), format!("{:.1}", 100.0 * time / e.step_seconds)]
    };
    table(&["phase", "ms", "%"], &[], e.phases.named().into_iter().map(row).collect())
}

const PASSES: [(PassGroup, &str); 5] = [
    (PassGroup::Forward, "forward"),
    (PassGroup::InputGradient, "input gradient"),
    (PassGroup::WeightGradient, "weight gradient"),
    (PassGroup::Update, "update"),
    (PassGroup::Other, "other"),
];

fn layers(asked: &Asked, e: &Estimate) -> String {
    let ms = |time: f64| format!("{:.3}", 1e3 * time);
    let rows = e.layers.iter().map(|(layer, times)| {
        let compute = PASSES.iter().map(|(pass, _)| ms(times.compute.get(pass).copied().unwrap_or(0.0)));
        let moved = [times.halo, times.reduction, times.redistribution].map(ms);
        let sent = grouped((times.sent_bytes / 1024.0).round() as u64);
        [asked.network.layers[*layer].name.clone()].into_iter().chain(compute).chain(moved).chain([sent]).collect()
    });
    let mut header = vec!["layer"];
    header.extend(PASSES.iter().map(|(_, name)| *name));
    header.extend(["halo", "reduction", "redistribution", "KiB sent"]);
    let table = table(&header, &[], rows.collect());
    format!(
        "{table}\n\nMilliseconds of the busiest rank: of all its workers for passes, on the way for messages and sums."
    )
}

/// An estimate for programs.
pub fn object(asked: &Asked, strategy: &str, e: &Estimate) -> Value {
    let layers = e.layers.iter().map(|(layer, times)| {
        let pass = |group: PassGroup| times.compute.get(&group).copied().unwrap_or(0.0);
        json!({
            "layer": asked.network.layers[*layer].name,
            "forward_seconds": pass(PassGroup::Forward),
            "input_gradient_seconds": pass(PassGroup::InputGradient),
            "weight_gradient_seconds": pass(PassGroup::WeightGradient),
            "update_seconds": pass(PassGroup::Update),
            "other_seconds": pass(PassGroup::Other),
            "halo_seconds": times.halo,
            "reduction_seconds": times.reduction,
            "redistribution_seconds": times.redistribution,
            "sent_bytes": times.sent_bytes,
        })
    });
    json!({
        "net": asked.network.name,
        "batch": asked.options.batch,
        "ranks": e.ranks,
        "threads": e.threads,
        "strategy": strategy,
        "machine": asked.machine.name,
        "simulated_ranks": e.simulated_ranks,
        "step_seconds": e.step_seconds,
        "images_per_second": asked.options.batch as f64 / e.step_seconds,
        "compute_seconds": e.phases.compute,
        "halo_seconds": e.phases.halo,
        "reduction_seconds": e.phases.reduction,
        "redistribution_seconds": e.phases.redistribution,
        "wait_seconds": e.phases.wait,
        "efficiency": e.efficiency,
        "memory_bytes": e.memory_bytes,
        "memory_limit_bytes": e.memory_limit_bytes,
        "sent_bytes": e.sent_bytes,
        "messages": e.messages,
        "bottleneck": e.bottleneck,
        "layers": layers.collect::<Vec<_>>(),
    })
}
