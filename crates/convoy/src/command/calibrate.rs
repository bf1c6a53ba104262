//! `convoy calibrate`: measures this computer once, so that predictions are about it.
//!
//! Measures single layers, op by op, on one core: never a step of a network that somebody trains. What a machine can do at most
//! comes from loops of nothing but multiply-adds and of nothing but copies.

use super::{json_argument, path, path_argument, say};
use crate::calibration::{self, kernels_version};
use crate::error::{Error, Errors};
use crate::machine;
use crate::words::{count, seconds};
use clap::{Arg, ArgMatches, Command};
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::{Mode, Moment, Update, Winograd, fma_peak_gflops, memory_gbytes};
use convoy_net::layers::{Convolution, FullyConnected, GlobalAveragePool};
use convoy_net::zoo::{self, ModelOptions};
use convoy_net::{Kind, LayerId, Network, Shape};
use convoy_predict::{Entry, Level, Machine, Nodes, Table, ask, roofline_seconds};
use convoy_program::{Options, lower};
use convoy_split::{Rank, Strategy};
use convoy_train::state;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Networks whose layers are measured; others are interpolated between them.
const NETWORKS: [&str; 6] = ["resnet18-cifar", "resnet50", "vgg16", "alexnet", "unet", "lenet"];
/// Samples with which each layer is measured.
const SAMPLES: [usize; 2] = [1, 4];
/// Steps that count, after one that does not.
const STEPS: usize = 5;

pub fn definition() -> Command {
    Command::new("calibrate")
        .about("Measure this computer once: layers' tiles, memory, messages between threads")
        .after_help(
            "Keeps what it finds under the user's cache folder, where simulate, plan and train look for it. Layers are those of\n\
             resnet18-cifar, resnet50, vgg16, alexnet, unet and lenet, each alone on one core; others are interpolated.",
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .default_value("120")
                .help("how long it may take; what is not measured by then is interpolated"),
        )
        .arg(path_argument("out").long("out").value_name("FILE").help("where to keep it [default: the user's cache folder]"))
        .arg(json_argument())
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let limit = super::question::whole(matches, "seconds", 86_400)?.expect("bug: it has a default");
    let began = Instant::now();
    let mut machine = this_computer();
    let probes = probes();
    let bar = ProgressBar::new(probes.len() as u64 * SAMPLES.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos} of {len} layers, {elapsed}").expect("bug: a template"));
    let mut found: BTreeMap<String, Vec<(Entry, f64)>> = BTreeMap::new();
    let mut measured = 0u64;
    for samples in SAMPLES {
        for probe in &probes {
            bar.inc(1);
            if measured > 0 && began.elapsed() > Duration::from_secs(limit as u64) {
                continue;
            }
            measured += 1;
            for entry in measure(probe, samples, &machine.groups[0])? {
                let key = format!("{} {:?}", entry.family, entry.size);
                found.entry(key).or_default().push((entry.clone(), entry.ratio));
            }
        }
    }
    bar.finish_and_clear();
    machine.table = Table { entries: found.into_values().map(undisturbed).collect() };
    let path = match path(matches, "out") {
        Some(path) => path.to_path_buf(),
        None => calibration::path().ok_or_else(|| Error::Usage("no cache folder\n  help: --out FILE".into()))?,
    };
    calibration::write(&machine, &path)?;
    let nodes = &machine.groups[0];
    say(&format!(
        "{}: {}, {:.1} GFLOP/s and {:.1} GB/s a core, {:.1} GB/s together; messages {:.1} us and {:.1} GB/s; {} of {} layers in {}",
        machine.name,
        count(nodes.cores as u64, "core"),
        nodes.core_flops / 1e9,
        nodes.core_bandwidth / 1e9,
        nodes.node_bandwidth / 1e9,
        machine.levels[0].latency_seconds * 1e6,
        machine.levels[0].bandwidth / 1e9,
        measured,
        probes.len() * SAMPLES.len(),
        seconds(began.elapsed().as_secs_f64()),
    ))?;
    say(&format!("kept in {}", path.display()))?;
    if matches.get_flag("json") {
        let object = json!({
            "machine": machine.name,
            "cores": nodes.cores,
            "core_flops": nodes.core_flops,
            "core_bandwidth": nodes.core_bandwidth,
            "node_bandwidth": nodes.node_bandwidth,
            "latency_seconds": machine.levels[0].latency_seconds,
            "bandwidth": machine.levels[0].bandwidth,
            "tiles": machine.table.entries.len(),
            "seconds": began.elapsed().as_secs_f64(),
            "file": path,
        });
        say(&object.to_string())?;
    }
    Ok(())
}

/// This computer as loops of nothing but one thing see it.
pub fn this_computer() -> Machine {
    let cores = machine::cores();
    let core_bandwidth = memory_gbytes(1) * 1e9;
    let (latency_seconds, bandwidth) = messages();
    let nodes = Nodes {
        count: 1,
        cores,
        ranks: 1,
        memory_bytes: machine::available_bytes().unwrap_or(1 << 30) as f64,
        core_flops: fma_peak_gflops(1) * 1e9,
        core_bandwidth,
        node_bandwidth: (memory_gbytes(cores) * 1e9).max(core_bandwidth),
        tile_seconds: 1e-6,
    };
    let level = Level {
        name: "threads".into(),
        nodes: 1,
        latency_seconds,
        bandwidth,
        message_seconds: 1e-6,
        links: None,
        by_cores: true,
    };
    let mut machine = Machine::single(&machine::name(), nodes, level);
    machine.kernels = Some(kernels_version());
    machine
}

/// Seconds of a short message between two threads, and bytes a second of long ones.
fn messages() -> (f64, f64) {
    const LONG: usize = 4 << 20;
    const ROUNDS: usize = 5;
    let trip = |bytes: usize, times: usize| {
        let ranks = convoy_comm::threads(2);
        let [a, b] = &ranks[..] else { unreachable!("bug: two ranks were asked for") };
        let one_way =
            |from: &convoy_comm::Communicator, to: usize, message: &mut [u8], sends_first: bool, times: usize| {
                for _ in 0..times {
                    if sends_first {
                        from.send(to, 1, message);
                    }
                    while !from.try_receive(to, 1, message).unwrap_or(true) {
                        std::thread::yield_now();
                    }
                    if !sends_first {
                        from.send(to, 1, message);
                    }
                }
            };
        let mut best = f64::INFINITY;
        std::thread::scope(|scope| {
            scope.spawn(|| one_way(b, 0, &mut vec![0; bytes], false, ROUNDS * times));
            let mut message = vec![0; bytes];
            // The best of some rounds: others may use the cores, too.
            for _ in 0..ROUNDS {
                let began = Instant::now();
                one_way(a, 1, &mut message, true, times);
                best = best.min(began.elapsed().as_secs_f64() / (2 * times) as f64);
            }
        });
        best
    };
    let latency = trip(8, 100);
    let long = trip(LONG, 2);
    // A send copies in, a receive copies out: the bandwidth of each is twice that of both.
    (latency, 2.0 * LONG as f64 / (long - latency).max(1e-9))
}

/// A network around each layer of other networks: a layer before it whose gradient is wanted, and an end.
fn probes() -> Vec<Network> {
    let mut probes: BTreeMap<String, Network> = BTreeMap::new();
    for name in NETWORKS {
        let Ok(network) = zoo::model(name, ModelOptions::default()).map(|network| network.fused()) else { continue };
        let Ok(shapes) = network.shapes(1) else { continue };
        for (l, layer) in network.layers.iter().enumerate().skip(1) {
            let inputs = network.input_shapes(LayerId(l), &shapes);
            let key = format!("{:?} {inputs:?}", layer.kind);
            probes.entry(key).or_insert_with(|| probe(&layer.kind, &inputs));
        }
    }
    // Convolutions first: they matter most where time is short.
    let mut probes: Vec<Network> = probes.into_values().collect();
    probes.sort_by_key(|network| {
        !network.layers.iter().any(|l| l.name == "probe" && matches!(l.kind, Kind::Convolution(_)))
    });
    probes
}

fn probe(kind: &Kind, inputs: &[Shape]) -> Network {
    let [_, _, depth, height, width] = inputs[0].0;
    let sizes: &[usize] = if depth > 1 { &[depth, height, width] } else { &[height, width] };
    let mut input = vec![inputs[0].channels().min(16)];
    input.extend(sizes);
    let mut network = Network::new("probe", &input);
    let ones = vec![1; sizes.len()];
    let before: Vec<LayerId> = inputs
        .iter()
        .enumerate()
        .map(|(i, shape)| {
            let lead = Convolution::new(shape.channels(), &ones);
            network.join(format!("lead{i}"), Kind::Convolution(lead), &[LayerId(0)])
        })
        .collect();
    network.join("probe", kind.clone(), &before);
    network.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
    network.push("end", Kind::FullyConnected(FullyConnected::new(10)));
    network
}

/// How much longer than by roofline each op of a network takes on one core.
fn measure(network: &Network, samples: usize, nodes: &Nodes) -> Result<Vec<Entry>, Errors> {
    let options = Options {
        batch: samples,
        mode: Mode::Train,
        leaves: 8,
        winograd: Winograd::Four,
        update: Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 },
        division: Default::default(),
    };
    let Ok(program) = lower(network, &Strategy::single(network), Rank(0), &options) else { return Ok(vec![]) };
    let asks: Vec<_> = program.ops.iter().map(|op| (ask(op, &program, network), op.tiles)).collect();
    let images: Vec<f32> = (0..program.images.len()).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    let targets = vec![0.0; program.targets];
    let communicator = convoy_comm::threads(1).pop().expect("bug: no rank");
    let settings = Settings { profile: true, ..Settings::default() };
    let mut engine = Engine::new(network, vec![program], 1, communicator, settings);
    state::put_weights(&mut engine, network, &state::initial_weights(network, 1));
    let mut times: Vec<Vec<f64>> = vec![vec![]; asks.len()];
    for step in 0..=STEPS {
        let moment = Moment { seed: 1, step: step as u64, learning_rate: 0.0 };
        engine.step(0, Batch { images: &images, targets: &targets }, moment).map_err(Error::from)?;
        for time in engine.take_times(0).into_iter().filter(|_| step > 0) {
            times[time.op].push(time.seconds);
        }
    }
    let entry = |((ask, tiles), times): ((convoy_predict::Ask, usize), Vec<f64>)| {
        // The best of some: where others use the cores too, the rest is theirs.
        let best = times.into_iter().reduce(f64::min);
        let roofline = roofline_seconds(&ask.work, nodes, nodes.core_bandwidth) + tiles as f64 * nodes.tile_seconds;
        let ratio = best.map_or(1.0, |time| time / roofline);
        Entry { family: ask.family, size: ask.size, ratio }
    };
    let all = asks.into_iter().zip(times).map(entry);
    Ok(all.filter(|e| e.ratio.is_finite() && e.ratio > 0.0).collect())
}

/// Of measurements of the same, one that a quarter is below: most of what is above was interrupted.
fn undisturbed(mut all: Vec<(Entry, f64)>) -> Entry {
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    all.swap_remove(all.len() / 4).0
}
