//! Plans of small networks: what is chosen is what was best among all that were simulated, and it fits.

use convoy_kernels::{Mode, Update, Winograd};
use convoy_net::{Kind, Network, layers::*, zoo};
use convoy_plan::{Asked, Error, Goal, Plan, plan};
use convoy_predict::{Collectives, Machine};
use convoy_program::Options;

/// Large images, few samples, then a layer with many weights.
fn network() -> Network {
    let mut net = Network::new("small", &[3, 64, 64]);
    net.push("conv1", Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1)));
    net.push("relu1", Kind::Activation(Activation::Relu));
    let skip = net.push("conv2", Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1)));
    let main = net.push("conv3", Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1)));
    net.join("add", Kind::Add(Add), &[main, skip]);
    net.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
    net.push("fc", Kind::FullyConnected(FullyConnected::new(10)));
    net
}

fn options(batch: usize) -> Options {
    let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    Options { batch, mode: Mode::Train, leaves: 8, winograd: Winograd::Four, update, division: Default::default() }
}

fn ask(batch: usize, ranks: usize, machine: &Machine, budget: Option<f64>, goal: Goal) -> Result<Plan, Error> {
    let (network, options) = (network(), options(batch));
    plan(&Asked {
        network: &network,
        options: &options,
        machine,
        ranks,
        threads: None,
        ranks_per_node: None,
        collectives: Collectives::Direct,
        budget_bytes: budget,
        goal,
        may_shard: true,
    })
}

#[test]
fn the_chosen_one_is_the_best_and_plain_data_is_shown() {
    let machine = Machine::shipped("v100-cluster").unwrap();
    for (batch, ranks) in [(8, 4), (2, 4), (6, 6), (7, 3), (1, 2)] {
        let found = ask(batch, ranks, &machine, None, Goal::Time).unwrap();
        assert!(found.proven);
        let best = &found.candidates[0].estimate;
        assert!(found.candidates.iter().all(|c| c.estimate.step_seconds >= best.step_seconds || !c.fits));
        assert!(found.candidates.iter().any(|c| c.strategy.name == format!("data:{ranks}")));
        assert!(found.why.contains(&found.chosen().strategy.name), "{}", found.why);
        for c in &found.candidates {
            assert_eq!(c.strategy.placements.len(), network().layers.len());
        }
    }
}

#[test]
fn one_sample_on_several_ranks_is_cut_in_space_or_channels() {
    let mut machine = Machine::shipped("v100-cluster").unwrap();
    // Cores so slow that sums and halos cost nothing beside them.
    machine.groups[0].core_flops = 1e9;
    machine.groups[0].core_bandwidth = 1e9;
    let found = ask(1, 4, &machine, None, Goal::Time).unwrap();
    let grid = found.chosen().strategy.placements[1].grid;
    assert_eq!((grid.sample, grid.parts()), (1, 4), "{}", found.why);
    assert!(grid.height * grid.width > 1, "{}", found.why);
    // With samples for all, and links that are slow, by samples.
    machine.levels.iter_mut().for_each(|l| l.latency_seconds = 1.0);
    let found = ask(8, 4, &machine, None, Goal::Time).unwrap();
    assert_eq!(found.chosen().strategy.placements[1].grid.sample, found.chosen().strategy.ranks, "{}", found.why);
}

#[test]
fn memory_decides_where_it_is_short() {
    let machine = Machine::shipped("v100-cluster").unwrap();
    let all = ask(2, 4, &machine, None, Goal::Time).unwrap();
    let mut sizes: Vec<usize> = all.candidates.iter().map(|c| c.estimate.memory_bytes).collect();
    sizes.sort_unstable();
    let (least, most) = (sizes[0], sizes[sizes.len() - 1]);
    assert!(least < most);
    let found = ask(2, 4, &machine, Some(least as f64), Goal::Time).unwrap();
    assert!(found.chosen().estimate.memory_bytes <= least);
    assert!(found.candidates.iter().any(|c| !c.fits), "what does not fit is shown, too");
    let found = ask(2, 4, &machine, None, Goal::Memory).unwrap();
    // With weights divided over ranks it may be less than any that was weighed before.
    assert!(found.chosen().estimate.memory_bytes <= least);
    match ask(2, 4, &machine, Some(1000.0), Goal::Time) {
        Err(Error::Budget { budget: 1000, least: needed, .. }) => assert!(needed <= least as u64),
        other => panic!("{other:?}"),
    }
}

/// Weights are most of what a rank holds: where that is too much, dividing them over ranks is weighed, and is smaller.
#[test]
fn weights_are_divided_where_memory_is_short() {
    let machine = Machine::shipped("cpu-10g").unwrap();
    let mut net = Network::new("heavy", &[16, 4, 4]);
    net.push("fc1", Kind::FullyConnected(FullyConnected::new(1024)));
    net.push("fc2", Kind::FullyConnected(FullyConnected::new(10)));
    let options = options(8);
    let asked = Asked {
        network: &net,
        options: &options,
        machine: &machine,
        ranks: 4,
        threads: Some(1),
        ranks_per_node: None,
        collectives: Collectives::Direct,
        budget_bytes: None,
        goal: Goal::Memory,
        may_shard: true,
    };
    let all = plan(&asked).unwrap();
    let bytes = |name: &str| {
        let of = all.candidates.iter().find(|c| c.words() == name);
        of.unwrap_or_else(|| panic!("no {name}")).estimate.memory_bytes
    };
    let (whole, divided) = (bytes("data:4"), bytes("data:4, sharded"));
    assert!(divided < whole, "{divided} {whole}");
    // Everything fits: nobody asks for it; and who says where weights live is not asked again.
    let easy = plan(&Asked { goal: Goal::Time, ..asked }).unwrap();
    assert!(easy.candidates.iter().all(|c| !c.words().contains("sharded")));
    let told = plan(&Asked { may_shard: false, ..asked }).unwrap();
    assert!(told.candidates.iter().all(|c| !c.words().contains("sharded")));
}

/// A rank that is three times as fast gets three times the samples, and the step is shorter for it.
#[test]
fn fast_ranks_get_more_samples() {
    let mut machine = Machine::shipped("cpu-10g").unwrap();
    machine.levels.iter_mut().for_each(|l| l.latency_seconds = 0.0);
    let mut fast = machine.groups[0].clone();
    (fast.count, fast.cores, fast.ranks) = (1, 1, 1);
    (fast.core_flops, fast.core_bandwidth, fast.node_bandwidth) = (3e9, 3e12, 3e12);
    let mut slow = fast.clone();
    (slow.core_flops, slow.count) = (1e9, machine.nodes() - 1);
    machine.groups = vec![fast, slow];
    let found = ask(32, 2, &machine, None, Goal::Time).unwrap();
    let seconds = |name: &str| {
        let of = found.candidates.iter().find(|c| c.strategy.name == name);
        of.unwrap_or_else(|| panic!("no {name}: {}", found.why)).estimate.step_seconds
    };
    assert!(seconds("data:3+1") < 0.6 * seconds("data:2"), "{}", found.why);
}

#[test]
fn ranks_are_left_idle_where_they_cost_more_than_they_save() {
    let mut machine = Machine::shipped("cpu-10g").unwrap();
    machine.levels.iter_mut().for_each(|l| l.latency_seconds = 10.0);
    let found = ask(4, 4, &machine, None, Goal::Time).unwrap();
    assert!(found.chosen().strategy.ranks < 4, "{}", found.why);
    assert!(found.why.contains("ranks idle"), "{}", found.why);
}

/// Weights are many where images are small, and few samples are there to pay for summing their gradients.
#[test]
fn fully_connected_layers_of_vgg_are_cut_by_filters() {
    let net = zoo::model("vgg16", zoo::ModelOptions::default()).unwrap().fused();
    let (options, machine) = (options(32), Machine::shipped("cpu-10g").unwrap());
    let found = plan(&Asked {
        network: &net,
        options: &options,
        machine: &machine,
        ranks: 4,
        threads: None,
        ranks_per_node: None,
        collectives: Collectives::Direct,
        budget_bytes: None,
        goal: Goal::Time,
        may_shard: true,
    })
    .unwrap();
    let layers = net.layers.iter().zip(&found.chosen().strategy.placements);
    let first = layers.clone().find(|(layer, _)| matches!(layer.kind, Kind::FullyConnected(_))).unwrap();
    assert!(first.1.grid.filter * first.1.grid.channel > 1, "{}", found.why);
    let (_, conv) = layers.clone().find(|(layer, _)| matches!(layer.kind, Kind::Convolution(_))).unwrap();
    assert_eq!(conv.grid.filter * conv.grid.channel, 1, "{}", found.why);
}
