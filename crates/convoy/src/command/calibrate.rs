//! `convoy calibrate`: measures this computer once, so that predictions are about it; under mpirun all computers of a job, and
//! messages between its processes.

use super::{json_argument, path, path_argument, say};
use crate::calibration;
use crate::error::{Error, Errors};
use crate::links::Transport;
use crate::survey;
use crate::words::{count, seconds};
use crate::world::World;
use crate::yardstick::Yardstick;
use clap::{Arg, ArgMatches, Command};
use convoy_net::Network;
use convoy_net::zoo::{self, ModelOptions};
use convoy_predict::{Level, Machine};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Networks whose layers are measured; others are interpolated between them.
const NETWORKS: [&str; 6] = ["resnet18-cifar", "resnet50", "vgg16", "alexnet", "unet", "lenet"];
/// Samples with which each layer is measured; what matters most first.
const SAMPLES: [usize; 2] = [8, 1];

/// Layers between two looks at the yardstick.
const LAYERS_A_LOOK: u64 = 12;
/// What the first rank tells the others.
const LOOK: u64 = 1;
const ENOUGH: u64 = 0;

pub fn definition() -> Command {
    Command::new("calibrate")
        .about("Measure this computer once: layers' tiles, memory, messages and sums between ranks")
        .after_help(
            "Keeps what it finds under the user's cache folder, where simulate, plan and train look for it. Layers are those of\n\
             resnet18-cifar, resnet50, vgg16, alexnet, unet and lenet, on one core and on all; others are interpolated. Under\n\
             mpirun every process is a rank: messages go between them, inside a computer and between computers, and what is\n\
             found is kept for trainings under mpirun.",
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .default_value("120")
                .help("how long it may take; what is not measured by then is interpolated"),
        )
        .arg(Arg::new("ranks").long("ranks").value_name("N").help("ranks that send and add up [default: 2; under mpirun: its processes]"))
        .arg(path_argument("out").long("out").value_name("FILE").help("where to keep it [default: the user's cache folder]"))
        .arg(json_argument())
}

pub fn run(matches: &ArgMatches) -> Result<u8, Errors> {
    World::enter(&[("command", "calibrate".into())], |world| calibrate(matches, world).map(|()| 0))
}

fn calibrate(matches: &ArgMatches, world: &World) -> Result<(), Errors> {
    let limit = super::question::whole(matches, "seconds", 86_400)?.expect("bug: it has a default");
    let asked = super::question::whole(matches, "ranks", 256)?;
    let began = Instant::now();
    let (mut machine, ranks) = match world.communicator().filter(|c| c.size() > 1) {
        None => (survey::this_computer(asked.unwrap_or(2))?, asked.unwrap_or(2).max(2)),
        Some(communicator) => {
            let processes = communicator.size();
            if let Some(ranks) = asked.filter(|&ranks| ranks != processes) {
                let flaw = format!("{ranks} ranks, but there are {processes} processes, each one rank");
                return Err(Error::flag("ranks", flaw).into());
            }
            (survey::computers(communicator)?, processes)
        }
    };
    let mut yardstick = Yardstick::new(world, machine.groups[0].cores)?;
    // Tiles are the same on all ranks: the first measures, the others wait, or look at the yardstick with it.
    if !world.is_first() {
        while world.told_number(0)? == LOOK {
            yardstick.look()?;
        }
        return Ok(());
    }
    let networks = NETWORKS.iter().filter_map(|name| zoo::model(name, ModelOptions::default()).ok());
    let probes = survey::probes(&networks.map(|network| network.fused()).collect::<Vec<Network>>());
    let layers = probes.len() * SAMPLES.len();
    let bar = ProgressBar::new(layers as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos} of {len} layers, {elapsed}").expect("bug: a template"));
    let left = Duration::from_secs(limit as u64).saturating_sub(began.elapsed());
    let progress = || {
        bar.inc(1);
        if bar.position() % LAYERS_A_LOOK != 1 {
            return Ok(());
        }
        world.told_number(LOOK)?;
        yardstick.look()
    };
    let (table, measured) = survey::tiles(&probes, &SAMPLES, &machine.groups[0], left, progress)?;
    world.told_number(ENOUGH)?;
    bar.finish_and_clear();
    machine.table = table;
    machine.yardstick_seconds = yardstick.medians();
    let transport = if world.ranks().is_some_and(|ranks| ranks > 1) { Transport::Mpi } else { Transport::Threads };
    let path = match path(matches, "out") {
        Some(path) => path.to_path_buf(),
        None => {
            calibration::path(transport).ok_or_else(|| Error::Usage("no cache folder\n  help: --out FILE".into()))?
        }
    };
    calibration::write(&machine, &path)?;
    let took = began.elapsed().as_secs_f64();
    say(&about(&machine, ranks))?;
    say(&format!("{measured} of {layers} layers in {}; kept in {}", seconds(took), path.display()))?;
    if matches.get_flag("json") {
        let mut object = object(&machine, ranks);
        object["seconds"] = json!(took);
        object["file"] = json!(path);
        say(&object.to_string())?;
    }
    Ok(())
}

/// What was found of computers and links.
fn about(machine: &Machine, ranks: usize) -> String {
    let nodes = &machine.groups[0];
    let others = match machine.nodes() {
        1 => String::new(),
        all => format!(", the first of {}", count(all as u64, "computer")),
    };
    let level = |l: &Level| {
        let (latency, each) = (1e6 * l.latency_seconds, 1e6 * l.message_seconds);
        format!("{}: {latency:.1} us, {each:.1} us of work a message, {:.2} GB/s", l.name, l.bandwidth / 1e9)
    };
    let levels: Vec<String> = machine.levels.iter().map(level).collect();
    format!(
        "{}: {}, {:.1} GFLOP/s and {:.1} GB/s a core, {:.1} GB/s together{others}\n{} ({}): {}; sums at {:.1} GB/s",
        machine.name,
        count(nodes.cores as u64, "core"),
        nodes.core_flops / 1e9,
        nodes.core_bandwidth / 1e9,
        nodes.node_bandwidth / 1e9,
        count(ranks as u64, "rank"),
        machine.transport.as_deref().unwrap_or("unknown"),
        levels.join("; "),
        nodes.add_bandwidth / 1e9,
    )
}

fn object(machine: &Machine, ranks: usize) -> Value {
    let nodes = &machine.groups[0];
    let level = |l: &Level| {
        json!({
            "name": l.name, "nodes": l.nodes, "latency_seconds": l.latency_seconds, "bandwidth": l.bandwidth,
            "message_seconds": l.message_seconds,
        })
    };
    json!({
        "machine": machine.name,
        "nodes": machine.nodes(),
        "cores": nodes.cores,
        "core_flops": nodes.core_flops,
        "core_bandwidth": nodes.core_bandwidth,
        "node_bandwidth": nodes.node_bandwidth,
        "add_bandwidth": nodes.add_bandwidth,
        "ranks": ranks,
        "transport": machine.transport,
        "levels": machine.levels.iter().map(level).collect::<Vec<_>>(),
        "tiles": machine.table.entries.len(),
    })
}
