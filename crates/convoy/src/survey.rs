//! Surveys: computers, the links between their ranks, and layers' tiles, measured.
//!
//! [`computers`] takes about a second for each computer, [`tiles`] as long as it is given. Layers are measured op by op, on one core
//! and on all of them, each in a small network of its own with caches as in the midst of a large one: never a step of a network that
//! somebody trains. What a machine can do at most comes from loops of nothing but multiply-adds and of nothing but sums of arrays.

use crate::calibration::kernels_version;
use crate::error::{Error, Errors};
use crate::links::{self, Links, Transport};
use crate::machine;
use crate::words::median;
use crate::world::cores_by_host;
use convoy_comm::{Communicator, Team, all_gather, broadcast};
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::{Moment, fma_peak_gflops, memory_gbytes};
use convoy_net::layers::{Activation, BatchNorm, Convolution, FullyConnected, GlobalAveragePool};
use convoy_net::{Kind, LayerId, Network, Shape};
use convoy_predict::{Ask, Entry, Machine, Nodes, Ratios, Table, ask, roofline_seconds};
use convoy_program::{Options, Program, lower};
use convoy_split::{Rank, Strategy};
use convoy_train::state;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Steps on one core and on all of them.
const STEPS: usize = 2;
/// Computers whose cores differ by less are alike.
const ALIKE: f64 = 0.1;

/// This computer, with ranks that are threads.
pub fn this_computer(ranks: usize) -> Result<Machine, Error> {
    let cores = machine::cores();
    let node_bandwidth = memory_gbytes(cores) * 1e9;
    let communicators = convoy_comm::threads(ranks.max(2));
    let links = std::thread::scope(|scope| {
        let measure = |c| scope.spawn(move || links::measure(c, Transport::Threads));
        let all: Vec<_> = communicators.iter().map(measure).collect();
        let mut all = all.into_iter().map(|rank| rank.join().expect("bug: a panic between messages"));
        all.next().expect("bug: no rank")
    })?;
    Ok(machine_of(vec![nodes(cores, 1, node_bandwidth)], links, Transport::Threads))
}

/// The computers of all ranks of a communicator, by all of them at once; every rank is told.
pub fn computers(communicator: &Communicator) -> Result<Machine, Error> {
    let (hosts, cores) = (links::hosts(communicator), cores_by_host(communicator)?);
    let mut groups: Vec<Nodes> = vec![];
    // One computer after the other: they may be parts of one.
    for (ranks, cores) in hosts.iter().zip(cores) {
        let own = match Team::of(communicator, ranks.clone()) {
            None => vec![],
            Some(team) => {
                // Ranks may be bound to cores: each measures its own, all at once.
                let gbytes = memory_gbytes((cores / ranks.len()).max(1));
                let all = all_gather(communicator, &team, &gbytes.to_le_bytes())?;
                let gbytes: f64 = all.iter().map(|bytes| f64::from_le_bytes(eight(bytes))).sum();
                match team.own() {
                    0 => described(nodes(cores, ranks.len(), gbytes * 1e9)),
                    _ => vec![],
                }
            }
        };
        let mut text = own;
        broadcast(communicator, &Team::all(communicator), ranks[0], &mut text)?;
        let nodes = read(&text)?;
        match groups.last_mut().filter(|last| are_alike(last, &nodes)) {
            Some(last) => last.count += 1,
            None => groups.push(nodes),
        }
    }
    let links = links::measure(communicator, Transport::Mpi)?;
    Ok(machine_of(groups, links, Transport::Mpi))
}

fn eight(bytes: &[u8]) -> [u8; 8] {
    bytes.try_into().expect("bug: eight bytes are a number")
}

/// One computer, as text that another rank can read.
fn described(nodes: Nodes) -> Vec<u8> {
    machine_of(vec![nodes], Links::none(), Transport::Mpi).to_toml().into_bytes()
}

fn read(text: &[u8]) -> Result<Nodes, Error> {
    let machine = Machine::from_toml(&String::from_utf8_lossy(text))?;
    Ok(machine.groups.into_iter().next().expect("bug: a computer without cores"))
}

fn are_alike(a: &Nodes, b: &Nodes) -> bool {
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < ALIKE;
    (a.cores, a.ranks) == (b.cores, b.ranks)
        && near(a.core_flops, b.core_flops)
        && near(a.core_bandwidth, b.core_bandwidth)
}

/// A computer as loops of nothing but one thing see it.
fn nodes(cores: usize, ranks: usize, node_bandwidth: f64) -> Nodes {
    let core_bandwidth = memory_gbytes(1) * 1e9;
    Nodes {
        count: 1,
        cores,
        ranks,
        memory_bytes: machine::available_bytes().unwrap_or(1 << 30) as f64,
        core_flops: fma_peak_gflops(1) * 1e9,
        core_bandwidth,
        node_bandwidth: node_bandwidth.max(core_bandwidth),
        add_bandwidth: core_bandwidth,
        tile_seconds: 1e-6,
    }
}

fn machine_of(mut groups: Vec<Nodes>, links: Links, transport: Transport) -> Machine {
    groups.iter_mut().for_each(|g| g.add_bandwidth = links.add_bandwidth);
    Machine {
        name: machine::name(),
        about: String::new(),
        groups,
        levels: links.levels,
        table: Table::default(),
        kernels: Some(kernels_version()),
        transport: Some(transport.word().into()),
        yardstick_seconds: vec![],
    }
}

/// What tiles of layers take, as far as time allows: those of the first networks, with each number of samples. Also how many
/// layers there was time for.
pub fn tiles(
    probes: &[Network],
    samples: &[usize],
    nodes: &Nodes,
    limit: Duration,
    mut progress: impl FnMut() -> Result<(), Errors>,
) -> Result<(Table, usize), Errors> {
    let began = Instant::now();
    let mut found: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    let mut measured = 0;
    for &samples in samples {
        let mut longest = Duration::ZERO;
        for probe in probes {
            let start = began.elapsed();
            // The next one may take as long as any.
            if measured > 0 && start + longest > limit {
                break;
            }
            progress()?;
            measured += 1;
            for entry in measure(probe, samples, nodes)? {
                found.entry(format!("{} {:?}", entry.family, entry.size)).or_default().push(entry);
            }
            longest = longest.max(began.elapsed() - start);
        }
    }
    Ok((Table { entries: found.into_values().map(middle).collect() }, measured))
}

/// A network around each layer of others: a layer before it whose gradient is wanted, and an end. Convolutions first: they matter
/// most where time is short.
pub fn probes(networks: &[Network]) -> Vec<Network> {
    let mut probes: BTreeMap<String, Network> = BTreeMap::new();
    for network in networks {
        let Ok(shapes) = network.shapes(1) else { continue };
        for (l, layer) in network.layers.iter().enumerate().skip(1) {
            let inputs = network.input_shapes(LayerId(l), &shapes);
            let normed = is_normed(network, LayerId(l));
            let key = format!("{:?} {inputs:?} {normed}", layer.kind);
            probes.entry(key).or_insert_with(|| probe(&layer.kind, &inputs, normed));
        }
    }
    let mut probes: Vec<Network> = probes.into_values().collect();
    probes.sort_by_key(|network| {
        !network.layers.iter().any(|l| l.name == "probe" && matches!(l.kind, Kind::Convolution(_)))
    });
    probes
}

/// Whether a batch norm reads a layer: then the layer may sum what it computes.
fn is_normed(network: &Network, l: LayerId) -> bool {
    network.layers.iter().any(|layer| layer.inputs.first() == Some(&l) && matches!(layer.kind, Kind::BatchNorm(_)))
}

fn probe(kind: &Kind, inputs: &[Shape], normed: bool) -> Network {
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
            let lead = network.join(format!("lead{i}"), Kind::Convolution(lead), &[LayerId(0)]);
            match kind {
                // It is to take its sums itself.
                Kind::BatchNorm(_) => {
                    network.join(format!("lead{i}.relu"), Kind::Activation(Activation::Relu), &[lead])
                }
                _ => lead,
            }
        })
        .collect();
    network.join("probe", kind.clone(), &before);
    if normed {
        network.push("norm", Kind::BatchNorm(BatchNorm::default()));
    }
    network.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
    network.push("end", Kind::FullyConnected(FullyConnected::new(10)));
    network
}

/// How much longer than by roofline each op of a network takes on a core.
fn measure(network: &Network, samples: usize, nodes: &Nodes) -> Result<Vec<Entry>, Errors> {
    let options = Options::plain(samples);
    let Ok(program) = lower(network, &Strategy::single(network), Rank(0), &options) else { return Ok(vec![]) };
    let asks: Vec<_> = program.ops.iter().map(|op| (ask(op, &program, network), op.tiles)).collect();
    // A process may be bound to a part of its computer.
    let own_cores = machine::cores().min(nodes.cores);
    let mut seconds = op_seconds(network, program, &[own_cores, 1])?;
    let (alone, together) = (seconds.pop().expect("bug: measured"), seconds.pop().expect("bug: measured"));
    let shared = nodes.core_bandwidth.min(nodes.node_bandwidth / nodes.cores as f64);
    let entry = |(op, (ask, tiles)): (usize, (Ask, usize))| {
        let roofline = |bandwidth| roofline_seconds(&ask.work, nodes, bandwidth) + tiles as f64 * nodes.tile_seconds;
        let by = roofline(nodes.core_bandwidth);
        let together = if own_cores > 1 { together[op] } else { alone[op] * roofline(shared) / by };
        let ratios = Ratios { alone: alone[op] / by, together: together / by };
        Entry { family: ask.family, size: ask.size, ratios }
    };
    let is_sound = |ratio: f64| ratio.is_finite() && ratio > 0.0;
    let all = asks.into_iter().enumerate().map(entry);
    Ok(all.filter(|e| is_sound(e.ratios.alone) && is_sound(e.ratios.together)).collect())
}

/// By number of threads: seconds of all tiles of each op of a network, on average over some steps.
fn op_seconds(network: &Network, program: Program, threads: &[usize]) -> Result<Vec<Vec<f64>>, Errors> {
    let images: Vec<f32> = (0..program.images.len()).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    let targets = vec![0.0; program.targets];
    let ops = program.ops.len();
    let communicator = convoy_comm::threads(1).pop().expect("bug: no rank");
    let settings = Settings { profile: true, cold: true, ..Settings::default() };
    let mut engine = Engine::new(network, vec![program], threads[0], communicator, settings);
    state::put_initial_weights(&mut engine, network, 1);
    let step = |engine: &mut Engine| {
        let moment = Moment { seed: 1, step: 1, learning_rate: 0.0 };
        engine.step(0, Batch { images: &images, targets: &targets }, moment).map_err(Error::from)?;
        Ok::<_, Errors>(engine.take_times(0))
    };
    // The first touch of memory is like no other.
    step(&mut engine)?;
    let mut found = vec![];
    for &threads in threads {
        engine.set_workers(threads);
        let mut seconds = vec![0.0; ops];
        for _ in 0..STEPS {
            step(&mut engine)?.iter().for_each(|time| seconds[time.op] += time.seconds / STEPS as f64);
        }
        found.push(seconds);
    }
    Ok(found)
}

/// The middle of measurements of the same.
fn middle(all: Vec<Entry>) -> Entry {
    let of = |ratio: fn(&Ratios) -> f64| median(all.iter().map(|entry| ratio(&entry.ratios)));
    let ratios = Ratios { alone: of(|r| r.alone), together: of(|r| r.together) };
    Entry { ratios, ..all[0].clone() }
}
