//! Laws of the simulator: folded is unfolded, what is predicted is what the programs say, time adds up.

use convoy_kernels::{Mode, Update, Winograd};
use convoy_net::{Kind, Network, layers::*, zoo};
use convoy_predict::*;
use convoy_program::{Division, NormOver, Options, ParameterHome, Program, SumOrder, lower};
use convoy_split::{Rank, Strategy};

/// A job on a machine, in words.
struct Problem {
    network: Network,
    strategy: &'static str,
    ranks: usize,
    batch: usize,
    leaves: usize,
    machine: Machine,
}

impl Problem {
    fn options(&self) -> Options {
        let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let division = Default::default();
        Options {
            batch: self.batch,
            mode: Mode::Train,
            leaves: self.leaves,
            winograd: Winograd::Four,
            update,
            division,
        }
    }

    fn strategy(&self) -> Strategy {
        let shapes = self.network.shapes(self.batch).unwrap();
        Strategy::parse(self.strategy, self.ranks, &self.network, &shapes).unwrap()
    }

    fn ask(&self, folding: Folding, collectives: Collectives) -> Simulation {
        self.ask_with(SumOrder::Tree, folding, collectives)
    }

    fn ask_with(&self, sums: SumOrder, folding: Folding, collectives: Collectives) -> Simulation {
        let division = Division { sums, ..Division::default() };
        let (strategy, options) = (self.strategy(), Options { division, ..self.options() });
        let question = Question {
            network: &self.network,
            strategy: &strategy,
            options: &options,
            machine: &self.machine,
            threads: None,
            ranks_per_node: None,
            collectives,
            folding,
        };
        simulate(&question, true).unwrap()
    }

    fn estimate(&self) -> Estimate {
        self.ask(Folding::Alike, Collectives::Direct).estimate
    }

    fn programs(&self) -> Vec<Program> {
        let (strategy, options) = (self.strategy(), self.options());
        (0..self.ranks).map(|r| lower(&self.network, &strategy, Rank(r), &options).unwrap()).collect()
    }
}

/// Convolutions with halos, batch norm with sums over the batch, pooling, a layer that gathers.
fn small() -> Network {
    let mut net = Network::new("small", &[3, 16, 16]);
    net.push("conv1", Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1)));
    net.push("norm1", Kind::BatchNorm(BatchNorm::default()));
    net.push("relu1", Kind::Activation(Activation::Relu));
    net.push("conv2", Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1).stride(2)));
    net.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(10)));
    net
}

/// Fast and slow nodes, of different numbers of cores, in racks of two.
fn unequal() -> Machine {
    Machine::from_toml(
        "name = 'unequal'\n[[nodes]]\ncount = 10\ncores = 4\nranks = 2\nmemory_bytes = 1e9\ncore_flops = 1e10\n\
         core_bandwidth = 5e9\nnode_bandwidth = 1e10\ntile_seconds = 1e-6\n[[nodes]]\ncount = 24\ncores = 2\nranks = 2\n\
         memory_bytes = 2e9\ncore_flops = 6e9\ncore_bandwidth = 5e9\nnode_bandwidth = 9e9\n[[levels]]\nname = 'memory'\n\
         nodes = 1\nlatency_seconds = 1e-6\nbandwidth = 3e9\nby_cores = true\n[[levels]]\nname = 'rack'\nnodes = 2\n\
         latency_seconds = 1e-5\nbandwidth = 1e9\nlinks = 1\nmessage_seconds = 1e-6\n[[levels]]\nname = 'all'\n\
         latency_seconds = 3e-5\nbandwidth = 5e8\nlinks = 1\n",
    )
    .unwrap()
}

fn problems() -> Vec<Problem> {
    let machine = |name: &str| Machine::shipped(name).unwrap();
    let lenet = || zoo::model("lenet", zoo::ModelOptions::default()).unwrap();
    let of =
        |network, strategy, ranks, batch, leaves, machine| Problem { network, strategy, ranks, batch, leaves, machine };
    vec![
        of(small(), "data", 1, 4, 8, machine("cpu-10g")),
        of(small(), "data", 2, 8, 8, machine("cpu-10g")),
        of(small(), "data", 16, 32, 8, machine("v100-cluster")),
        of(lenet(), "data", 64, 128, 8, machine("abci")),
        of(lenet(), "data", 32, 64, 8, unequal()),
        of(small(), "data:8,spatial:2x2", 32, 32, 8, unequal()),
        of(small(), "data:4,spatial:4", 16, 8, 8, machine("v100-cluster")),
        of(small(), "data:16,spatial:2x2", 64, 16, 8, machine("abci")),
        of(small(), "data:2,spatial:3", 6, 2, 2, unequal()),
        of(small(), "spatial:4x4", 16, 3, 8, machine("cpu-10g")),
        of(small(), "filter", 4, 4, 8, machine("cpu-10g")),
        of(small(), "data:8,filter:2", 16, 16, 8, unequal()),
        of(small(), "data:8,channel:2", 16, 16, 8, machine("v100-cluster")),
        of(small(), "data:2,filter:2,spatial:2", 8, 8, 8, machine("abci")),
        of(small(), "data:6", 6, 12, 6, unequal()),
        // Batches that ranks do not divide: two samples here, one there.
        of(small(), "data", 12, 18, 6, machine("v100-cluster")),
    ]
}

/// Equal but for the order in which numbers of many ranks were added.
fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

#[test]
fn folded_is_unfolded() {
    let mut folded_somewhere = 0;
    for (i, p) in problems().iter().enumerate() {
        let ways = [(SumOrder::Tree, Collectives::Direct), (SumOrder::Library, Collectives::Direct)];
        let ways = ways.into_iter().chain([(SumOrder::Tree, Collectives::Cheapest)].into_iter().filter(|_| i < 7));
        for (sums, collectives) in ways {
            let folded = p.ask_with(sums, Folding::Alike, collectives).estimate;
            let whole = p.ask_with(sums, Folding::Nothing, collectives).estimate;
            let name = format!("{} {} on {}", p.network.name, p.strategy, p.machine.name);
            assert_eq!(whole.simulated_ranks, p.ranks);
            folded_somewhere += usize::from(folded.simulated_ranks < p.ranks);
            assert_eq!(folded.step_seconds, whole.step_seconds, "{name}");
            assert_eq!(folded.phases, whole.phases, "{name}");
            assert_eq!(folded.layers, whole.layers, "{name}");
            assert_eq!(folded.memory_bytes, whole.memory_bytes, "{name}");
            assert_eq!(folded.bottleneck, whole.bottleneck, "{name}");
            assert!(close(folded.sent_bytes, whole.sent_bytes), "{name}: {} {}", folded.sent_bytes, whole.sent_bytes);
            assert!(close(folded.messages, whole.messages), "{name}: {} {}", folded.messages, whole.messages);
            assert!(close(folded.efficiency, whole.efficiency), "{name}");
        }
    }
    assert!(folded_somewhere >= 10, "{folded_somewhere}");
}

#[test]
fn bytes_and_memory_are_what_the_programs_say() {
    for p in problems() {
        let (found, programs) = (p.estimate(), p.programs());
        let sent: usize = programs.iter().map(|p| p.sent_bytes()).sum();
        // Where some ranks have no samples of a layer, how many slices they do not send and how long these are is known on average.
        let exactly = p.batch >= p.ranks || !p.strategy.contains("spatial");
        let is = |found: f64, sent: usize, within: f64| {
            close(found, sent as f64) || !exactly && (found / sent as f64 - 1.0).abs() < within
        };
        assert!(is(found.sent_bytes, sent, 0.05), "{} {}: {} {sent}", p.network.name, p.strategy, found.sent_bytes);
        let sends = |p: &Program| {
            let is_send = |op: &&convoy_program::Op| matches!(op.action, convoy_program::Action::Send { .. });
            p.ops.iter().filter(is_send).count()
        };
        let sent: usize = programs.iter().map(sends).sum();
        // A sum of few numbers has few reducers, and whether those are among the ranks with samples is not known: since gradients
        // travel in buckets, such sums are a larger share of all messages.
        assert!(is(found.messages, sent, 0.1), "{} {}: {} {sent}", p.network.name, p.strategy, found.messages);
        // What an engine holds: kept buffers, the arena, scratch of each worker.
        let seats = p.machine.seats(p.ranks, None);
        let held = |(program, seat): (&Program, &Seat)| {
            let threads = p.machine.threads(seat);
            let step = program.kept_bytes() + program.memory.step_bytes + threads * program.scratch() * 4;
            step + program.fed_bytes(1)
        };
        let most = programs.iter().zip(&seats).map(held).max();
        assert_eq!(Some(found.memory_bytes), most, "{} {}", p.network.name, p.strategy);
    }
}

/// Weights that are divided, sums around a ring, norms over fewer samples: what is held is what programs hold, and what is sent.
#[test]
fn other_divisions_are_sized_as_they_run() {
    let machine = Machine::shipped("cpu-10g").unwrap();
    let network = small();
    let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    for (words, ranks) in [("data", 4), ("data", 8), ("data:2,spatial:2", 4), ("data:2,filter:2", 4), ("spatial", 2)] {
        let shapes = network.shapes(8).unwrap();
        let strategy = Strategy::parse(words, ranks, &network, &shapes).unwrap();
        for home in [ParameterHome::Everywhere, ParameterHome::Sharded] {
            for sums in [SumOrder::Tree, SumOrder::Ring, SumOrder::Library] {
                for norm in [NormOver::Global, NormOver::Team, NormOver::Local] {
                    let division = Division { home, sums, norm, ..Default::default() };
                    let (mode, winograd) = (Mode::Train, Winograd::Four);
                    let options = Options { batch: 8, mode, leaves: 8, winograd, update, division };
                    let question = Question {
                        network: &network,
                        strategy: &strategy,
                        options: &options,
                        machine: &machine,
                        threads: Some(1),
                        ranks_per_node: None,
                        collectives: Collectives::Direct,
                        folding: Folding::Alike,
                    };
                    let found = simulate(&question, false).unwrap().estimate;
                    let programs = (0..ranks).map(|r| lower(&network, &strategy, Rank(r), &options).unwrap());
                    let (mut most, mut sent) = (0, 0);
                    for program in programs {
                        sent += program.sent_bytes();
                        let step = program.kept_bytes() + program.memory.step_bytes + program.scratch() * 4;
                        most = most.max(step + program.fed_bytes(1));
                    }
                    let name = format!("{words} {division:?}");
                    assert_eq!(found.memory_bytes, most, "{name}");
                    // Slices are cut at whole cache lines, and running statistics of other groups may be left out.
                    assert!((found.sent_bytes / sent as f64 - 1.0).abs() < 0.05, "{name}: {} {sent}", found.sent_bytes);
                    assert!(found.step_seconds > 0.0, "{name}");
                }
            }
        }
    }
}

#[test]
fn phases_add_up_to_the_step_and_halos_are_halos() {
    for p in problems() {
        let found = p.estimate();
        let sum: f64 = found.phases.named().iter().map(|(_, seconds)| seconds).sum();
        assert!((sum / found.step_seconds - 1.0).abs() < 1e-9, "{sum} {}", found.step_seconds);
        assert!(found.phases.named().iter().all(|(_, seconds)| *seconds >= 0.0), "{:?}", found.phases);
        assert!((0.0..=1.0).contains(&found.efficiency));
        let of = |layer: &str| p.network.layers.iter().position(|l| l.name == layer).and_then(|l| found.layers.get(&l));
        if p.strategy.contains("spatial") && !p.strategy.contains("filter") {
            // Rows of relu1 go forward; back go theirs, or those of conv2.
            let relu = of("relu1").unwrap();
            let halo = relu.halo + of("conv2").unwrap().halo;
            assert!(halo > 0.0 && relu.redistribution == 0.0, "conv2 reads rows of neighbours");
            // Pooling is by samples: whoever has one gathers it.
            let gathers = of("conv2").unwrap().redistribution > 0.0;
            assert!(gathers || p.batch < p.ranks, "{}", p.strategy);
        }
    }
}

/// One core, one rank: nothing can overlap, and nothing is waited for.
#[test]
fn alone_on_one_core_a_step_is_the_sum_of_its_ops() {
    let mut machine = Machine::shipped("cpu-10g").unwrap();
    machine.groups[0].cores = 1;
    let p = Problem { network: small(), strategy: "data", ranks: 1, batch: 4, leaves: 8, machine };
    let (program, nodes) = (&p.programs()[0], &p.machine.groups[0]);
    let seconds = |op: &convoy_program::Op| {
        let work = ask(op, program, &p.network).work;
        roofline_seconds(&work, nodes, nodes.core_bandwidth) + op.tiles as f64 * nodes.tile_seconds
    };
    let sum: f64 = program.ops.iter().map(seconds).sum();
    let found = p.estimate();
    assert!((found.step_seconds / sum - 1.0).abs() < 1e-9, "{} {sum}", found.step_seconds);
    assert!(found.phases.wait < 1e-9 * sum);
}

#[test]
fn better_machines_are_not_slower_and_slow_nodes_hold_all_up() {
    let seconds = |change: &dyn Fn(&mut Machine)| {
        let mut machine = Machine::shipped("cpu-10g").unwrap();
        change(&mut machine);
        let p = Problem { network: small(), strategy: "data", ranks: 8, batch: 32, leaves: 8, machine };
        p.estimate().step_seconds
    };
    let plain = seconds(&|_| ());
    assert!(seconds(&|m| m.levels[1].bandwidth /= 100.0) > plain);
    assert!(seconds(&|m| m.levels[1].latency_seconds *= 100.0) > plain);
    assert!(seconds(&|m| m.groups[0].core_flops *= 2.0) <= plain);
    assert!(seconds(&|m| m.groups[0].core_bandwidth /= 4.0) > plain);
    // One slow node of eight: as slow as eight slow ones, but for what overlaps.
    let all_slow = seconds(&|m| m.groups[0].core_flops /= 8.0);
    let one_slow = seconds(&|m| {
        let mut slow = m.groups[0].clone();
        (slow.count, slow.core_flops) = (1, slow.core_flops / 8.0);
        m.groups.push(slow);
        m.groups[0].count = 7;
    });
    assert!(one_slow > plain && one_slow <= all_slow * (1.0 + 1e-12), "{plain} {one_slow} {all_slow}");
}

#[test]
fn ranks_that_share_cores_take_their_turns() {
    let seconds = |cores: usize, ranks: usize| {
        let mut machine = Machine::shipped("cpu-10g").unwrap();
        (machine.groups[0].count, machine.groups[0].cores) = (1, cores);
        // No network and no overhead: only cores are short.
        machine.groups[0].tile_seconds = 0.0;
        machine.groups[0].node_bandwidth = 1e15;
        machine.levels.truncate(1);
        (machine.levels[0].bandwidth, machine.levels[0].latency_seconds) = (1e15, 0.0);
        Problem { network: small(), strategy: "data", ranks, batch: 32, leaves: 8, machine }.estimate().step_seconds
    };
    let (own, shared) = (seconds(4, 4), seconds(2, 4));
    assert!(shared > 1.8 * own && shared < 2.2 * own, "{own} {shared}");
}

#[test]
fn traces_are_json_and_events_lie_within_the_step() {
    let p = &problems()[6];
    let found = p.ask(Folding::Alike, Collectives::Direct);
    let trace = chrome_trace(&found.events);
    assert!(trace.starts_with("[\n{\"ph\":\"M\"") && trace.ends_with("}\n]\n"), "{}", &trace[..200]);
    assert!(trace.contains("conv2 WeightGradient") && trace.contains("sum over ranks for norm1"));
    let step = found.estimate.step_seconds;
    assert!(
        found
            .events
            .iter()
            .all(|e| 0.0 <= e.start_seconds && e.start_seconds <= e.end_seconds && e.end_seconds <= step)
    );
    // No worker does two things at once.
    let mut of: Vec<(usize, usize, f64, f64)> =
        found.events.iter().filter_map(|e| e.worker.map(|w| (e.rank, w, e.start_seconds, e.end_seconds))).collect();
    of.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
    assert!(of.windows(2).all(|w| (w[0].0, w[0].1) != (w[1].0, w[1].1) || w[0].3 <= w[1].2));
}

#[test]
fn too_many_unlike_ranks_are_an_error() {
    let mut net = Network::new("wide", &[3, 128, 128]);
    net.push("conv", Kind::Convolution(Convolution::new(8, &[3, 3]).padding(1)));
    let machine = Machine::shipped("v100-cluster").unwrap();
    let p = Problem { network: net, strategy: "spatial:16x16", ranks: 256, batch: 1, leaves: 8, machine };
    let (strategy, options) = (p.strategy(), p.options());
    let question = Question {
        network: &p.network,
        strategy: &strategy,
        options: &options,
        machine: &p.machine,
        threads: None,
        ranks_per_node: None,
        collectives: Collectives::Direct,
        folding: Folding::Alike,
    };
    assert_eq!(
        simulate(&question, false).unwrap_err().to_string(),
        "256 of 256 ranks have different work, at most 64 can be told apart\n  help: fewer parts in space, or a batch that \
         the parts of samples divide"
    );
}

/// The engine's workers see to messages between tiles, whatever else is ready. Where the simulator's let them wait for their turn,
/// ranks of equal work waited for each other half of the time.
#[test]
fn messages_do_not_wait_for_tiles() {
    let options = zoo::ModelOptions { input: Some(vec![1, 64, 64]), ..Default::default() };
    let machine = Machine::from_toml(
        "name = 'one'\n[[nodes]]\ncores = 2\nranks = 2\nmemory_bytes = 1e9\ncore_flops = 1e10\ncore_bandwidth = 5e9\n\
         node_bandwidth = 1e10\n[[levels]]\nname = 'memory'\nnodes = 1\nlatency_seconds = 1e-6\nbandwidth = 1e10\nby_cores = true\n",
    );
    let network = zoo::model("unet", options).unwrap().fused();
    let machine = machine.unwrap();
    for strategy in ["filter", "channel"] {
        let problem =
            Problem { network: network.clone(), strategy, ranks: 2, batch: 2, leaves: 2, machine: machine.clone() };
        let estimate = problem.estimate();
        assert!(estimate.phases.wait < 0.1 * estimate.step_seconds, "{strategy}: {:?}", estimate.phases);
    }
}
