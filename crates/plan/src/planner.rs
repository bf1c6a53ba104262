//! The planner: candidates, the best of them simulated, one chosen, and why.

use crate::eliminate::{Decision, Keep, eliminate};
use crate::grids::{divisors, grids};
use crate::price::Prices;
use crate::{Asked, Error, Goal};
use convoy_net::{LayerId, Shape};
use convoy_predict::{Estimate, Folding, Machine, Prepared, Question, Seat, unlike};
use convoy_program::{Division, Options, ParameterHome};
use convoy_split::{Grid, Placement, Strategy};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

/// A strategy that was weighed.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub strategy: Strategy,
    /// Whether all layers that can be are cut alike.
    pub uniform: bool,
    pub estimate: Estimate,
    /// Whether a rank's memory is enough.
    pub fits: bool,
    /// Where its weights live.
    pub home: ParameterHome,
}

/// The strategy chosen, with all that were weighed and the reasons.
#[derive(Clone, Debug)]
pub struct Plan {
    /// From the best for the goal to the worst; those that do not fit at the end.
    pub candidates: Vec<Candidate>,
    /// Strategies that were priced, and those of them that were simulated.
    pub priced: usize,
    /// Whether no combination of grids has a lower price.
    pub proven: bool,
    /// Bytes that a rank may use.
    pub budget_bytes: f64,
    pub why: String,
}

impl Candidate {
    /// Its strategy's name, and where weights live if not everywhere.
    pub fn words(&self) -> String {
        match self.home {
            ParameterHome::Everywhere => self.strategy.name.clone(),
            ParameterHome::Sharded => format!("{}, sharded", self.strategy.name),
        }
    }
}

impl Plan {
    pub fn chosen(&self) -> &Candidate {
        &self.candidates[0]
    }
}

/// Strategies that are simulated: so many of the best by price, besides plain ones. Each takes a while where ranks are many.
fn simulated(ranks: usize) -> usize {
    if ranks <= 64 { 4 } else { 2 }
}

/// Ranks with different work in a strategy that is simulated: more take long to lower.
const MOST_UNLIKE: usize = 8;
/// Ranks over which weights are divided in a strategy that is simulated: each is lowered.
const MOST_SHARDED: usize = 16;
/// How much faster than the slowest a rank must be to get more samples, and the ranks up to which shares are looked at.
const UNEQUAL: f64 = 1.05;
const MOST_UNEQUAL: usize = 32;
/// Points of the front of time and memory that are kept.
const FRONT: usize = 4;

/// Weighs strategies for a job and chooses one.
pub fn plan(asked: &Asked) -> Result<Plan, Error> {
    let shapes = asked.network.shapes(asked.options.batch)?;
    let candidates = candidates(asked, &shapes)?;
    choose(asked, candidates)
}

/// The plan that a strategy is, where there is nothing to choose.
pub fn plan_of(asked: &Asked, strategy: Strategy) -> Result<Plan, Error> {
    choose(asked, (vec![(strategy, true)], 1, true))
}

/// Simulates strategies and chooses the best.
fn choose(asked: &Asked, (strategies, priced, proven): Candidates) -> Result<Plan, Error> {
    let seats = asked.machine.seats(asked.ranks, asked.ranks_per_node);
    let limit = seats.iter().map(|seat| asked.machine.memory_bytes(seat)).fold(f64::INFINITY, f64::min);
    let budget_bytes = asked.budget_bytes.map_or(limit, |budget| budget.min(limit));
    let weigh = |options: &Options, (strategy, uniform): (Strategy, bool)| {
        let prepared = Prepared::new(asked.network, &strategy, options, Folding::Alike)?;
        let estimate = estimate(asked, asked.machine, &strategy, &prepared);
        let fits = estimate.memory_bytes as f64 <= budget_bytes;
        let home = options.division.home;
        Ok::<_, Error>((Candidate { strategy, uniform, estimate, fits, home }, prepared))
    };
    let weighed = side_by_side(strategies, |one| weigh(asked.options, one));
    let mut found = weighed.into_iter().collect::<Result<Vec<(Candidate, Prepared)>, Error>>()?;
    // Where memory is short or what is asked about: the same with weights divided over ranks.
    let is_short = found.iter().any(|(c, _)| !c.fits) || asked.goal == Goal::Memory;
    if asked.may_shard && is_short && asked.options.division.home == ParameterHome::Everywhere {
        let division = Division { home: ParameterHome::Sharded, ..asked.options.division };
        let options = Options { division, ..*asked.options };
        let again = found.iter().map(|(c, _)| (c.strategy.clone(), c.uniform));
        let again = again.filter(|(s, _)| (2..=MOST_SHARDED).contains(&s.ranks)).collect();
        for one in side_by_side(again, |one| weigh(&options, one)) {
            found.push(one?);
        }
    }
    let worth = |c: &Candidate| match asked.goal {
        Goal::Time => c.estimate.step_seconds,
        Goal::Memory => c.estimate.memory_bytes as f64,
        Goal::Cost => c.estimate.step_seconds * c.strategy.ranks as f64,
    };
    // Of equals the one with fewer different grids.
    found.sort_by(|(a, _), (b, _)| {
        b.fits.cmp(&a.fits).then(worth(a).total_cmp(&worth(b))).then(b.uniform.cmp(&a.uniform))
    });
    if !found.first().is_some_and(|(c, _)| c.fits) {
        let smallest = found.iter().map(|(c, _)| c).min_by_key(|c| c.estimate.memory_bytes);
        let smallest = smallest.expect("bug: data is always a candidate");
        return Err(Error::Budget {
            budget: budget_bytes as u64,
            least: smallest.estimate.memory_bytes as u64,
            strategy: smallest.words(),
        });
    }
    let why = why(asked, &found);
    Ok(Plan { candidates: found.into_iter().map(|(c, _)| c).collect(), priced, proven, budget_bytes, why })
}

/// Does the same with all of a list, on as many cores as there are; results stand in the list's order.
fn side_by_side<T: Send, R: Send>(list: Vec<T>, each: impl Fn(T) -> R + Sync) -> Vec<R> {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(list.len());
    let results: Vec<Mutex<Option<R>>> = list.iter().map(|_| Mutex::new(None)).collect();
    let left = Mutex::new(list.into_iter().enumerate());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let next = || left.lock().unwrap_or_else(|e| e.into_inner()).next();
                while let Some((i, one)) = next() {
                    *results[i].lock().unwrap_or_else(|e| e.into_inner()) = Some(each(one));
                }
            });
        }
    });
    let result = |r: Mutex<Option<R>>| r.into_inner().unwrap_or_else(|e| e.into_inner()).expect("bug: not done");
    results.into_iter().map(result).collect()
}

/// What a strategy would take.
fn estimate(asked: &Asked, machine: &Machine, strategy: &Strategy, prepared: &Prepared) -> Estimate {
    let question = Question {
        network: asked.network,
        strategy,
        options: asked.options,
        machine,
        threads: asked.threads,
        ranks_per_node: asked.ranks_per_node,
        collectives: asked.collectives,
        folding: Folding::Alike,
    };
    prepared.simulate(&question, false).estimate
}

type Candidates = (Vec<(Strategy, bool)>, usize, bool);

/// Strategies worth simulating, how many were priced, and whether the best price is proven.
fn candidates(asked: &Asked, shapes: &[Shape]) -> Result<Candidates, Error> {
    let prices = Prices::new(asked, shapes)?;
    let layers = (0..shapes.len()).map(LayerId);
    let choices: Vec<Vec<Grid>> = layers.map(|l| grids(asked.network, l, shapes, asked.ranks)).collect();
    let decision = decision(asked, &prices, &choices);
    let keep = if asked.budget_bytes.is_some() { Keep::Front(FRONT) } else { Keep::Fastest };
    let found = eliminate(&decision, keep);
    // The same grid for every layer, as a person would write it.
    let mut uniform: Vec<(f64, Strategy)> = vec![];
    let words: HashSet<Grid> = choices.iter().flatten().copied().collect();
    for grid in words {
        let Ok(strategy) = Strategy::parse(&grid.to_string(), asked.ranks, asked.network, shapes) else { continue };
        uniform.push((price_of(&decision, &choices, &strategy), strategy));
    }
    uniform.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.name.cmp(&b.1.name)));
    let priced = uniform.len() + found.front.len();
    let is_small = |s: &Strategy| unlike(shapes, s, asked.options) <= MOST_UNLIKE.max(asked.ranks.min(2));
    let plain =
        Strategy::parse("data", asked.ranks, asked.network, shapes).map_err(|e| Error::Strategy(e.to_string()))?;
    let mut all = vec![(plain, true)];
    let add = |all: &mut Vec<(Strategy, bool)>, strategy: Strategy, is_uniform: bool| {
        if all.iter().all(|(s, _)| s.placements != strategy.placements) {
            all.push((strategy, is_uniform));
        }
    };
    for chosen in &found.front {
        let grids = chosen.choices.iter().zip(&choices).map(|(&c, grids)| grids[c]);
        let strategy = mixed(asked.ranks, grids.map(Placement::over).collect());
        if is_small(&strategy) {
            let is_uniform = uniform.iter().any(|(_, s)| s.placements == strategy.placements);
            if !is_uniform {
                add(&mut all, strategy, false);
            }
        }
    }
    for (_, strategy) in uniform.into_iter().filter(|(_, s)| is_small(s)).take(simulated(asked.ranks)) {
        add(&mut all, strategy, true);
    }
    // By filters and channels, as far as they can be cut: what pays where weights are many and samples few.
    for words in [format!("data:{},filter:2", asked.ranks / 2), "filter".into(), "channel".into()] {
        if let Ok(strategy) = Strategy::parse(&words, asked.ranks, asked.network, shapes)
            && is_small(&strategy)
        {
            add(&mut all, strategy, true);
        }
    }
    if let Some(strategy) = by_speed(asked, shapes) {
        add(&mut all, strategy, true);
    }
    // Fewer ranks, the rest idle: where sums over ranks cost more than ranks save.
    for ranks in divisors(asked.ranks).into_iter().rev().filter(|&r| r < asked.ranks).take(2) {
        if let Ok(strategy) = Strategy::parse("data", ranks, asked.network, shapes) {
            all.push((strategy, true));
        }
    }
    Ok((all, priced, found.proven))
}

/// Samples in proportion to the speed of each rank, where ranks are not equally fast.
fn by_speed(asked: &Asked, shapes: &[Shape]) -> Option<Strategy> {
    let (batch, seats) = (asked.options.batch, asked.machine.seats(asked.ranks, asked.ranks_per_node));
    let speed = |s: &Seat| {
        let nodes = &asked.machine.groups[s.group];
        let threads = asked.threads.unwrap_or(asked.machine.threads(s)) as f64;
        nodes.core_flops * threads.min(nodes.cores as f64 / s.neighbours as f64)
    };
    let speeds: Vec<f64> = seats.iter().map(speed).collect();
    let (least, all) = (speeds.iter().copied().fold(f64::INFINITY, f64::min), speeds.iter().sum::<f64>());
    let unequal = speeds.iter().any(|s| *s > UNEQUAL * least);
    if !unequal || asked.ranks > MOST_UNEQUAL || batch < asked.ranks {
        return None;
    }
    // Whole samples; those that are left go where most of one is missing.
    let exact: Vec<f64> = speeds.iter().map(|s| batch as f64 * s / all).collect();
    let mut shares: Vec<usize> = exact.iter().map(|n| *n as usize).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    let left = batch - shares.iter().sum::<usize>();
    order.iter().take(left).for_each(|&rank| shares[rank] += 1);
    let common = shares.iter().copied().fold(0, greatest_common);
    let words: Vec<String> = shares.iter().map(|n| (n / common.max(1)).to_string()).collect();
    Strategy::parse(&format!("data:{}", words.join("+")), asked.ranks, asked.network, shapes).ok()
}

fn greatest_common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common(b, a % b) }
}

/// Prices of all choices of all layers.
fn decision(asked: &Asked, prices: &Prices, choices: &[Vec<Grid>]) -> Decision {
    let layers = asked.network.layers.iter().enumerate();
    let own = layers.clone().map(|(l, _)| choices[l].iter().map(|grid| prices.own(LayerId(l), grid)).collect());
    let mut pairs = BTreeMap::new();
    // Networks repeat themselves: what reads the same in the same way costs the same.
    let mut known = HashMap::new();
    for (l, layer) in layers {
        for input in &layer.inputs {
            let seconds = |from: &Grid| {
                choices[l].iter().map(|to| prices.exchange(*input, LayerId(l), from, to)).collect::<Vec<f64>>()
            };
            let key = (prices.exchange_key(*input, LayerId(l)), &choices[input.0][..], &choices[l][..]);
            let priced: &mut Vec<Vec<f64>> =
                known.entry(key).or_insert_with(|| choices[input.0].iter().map(seconds).collect());
            pairs.insert((input.0, l), priced.clone());
        }
    }
    Decision { own: own.collect(), pairs }
}

/// The price of a strategy, if all its grids are among the choices.
fn price_of(decision: &Decision, choices: &[Vec<Grid>], strategy: &Strategy) -> f64 {
    let picked = strategy.placements.iter().zip(choices).map(|(p, grids)| grids.iter().position(|g| *g == p.grid));
    let Some(picked) = picked.collect::<Option<Vec<usize>>>() else { return f64::INFINITY };
    let own: f64 = picked.iter().zip(&decision.own).map(|(&c, own)| own[c].seconds).sum();
    let pairs: f64 = decision.pairs.iter().map(|((a, b), s)| s[picked[*a]][picked[*b]]).sum();
    own + pairs
}

/// A placement for each layer; its name says which grids there are, in the order of layers.
pub fn mixed(ranks: usize, placements: Vec<Placement>) -> Strategy {
    let mut names: Vec<String> = vec![];
    for placement in &placements {
        let name = placement.grid.to_string();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Strategy { ranks, placements, name: format!("mixed {}", names.join(" + ")) }
}

/// Why the first one was chosen, what comes next, and what would change the choice.
fn why(asked: &Asked, found: &[(Candidate, Prepared)]) -> String {
    let (best, best_prepared) = &found[0];
    let goal = match asked.goal {
        Goal::Time => "fastest",
        Goal::Memory => "smallest",
        Goal::Cost => "cheapest",
    };
    let ms = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
    let fit = found.iter().filter(|(c, _)| c.fits).count();
    let numbers = format!("{} a step, limited by {}", ms(best.estimate.step_seconds), best.estimate.bottleneck);
    if found.len() == 1 {
        return format!("{} was asked for: {numbers}.", named(asked, best));
    }
    let mut text = format!("{} is the {goal} of {fit} that fit: {numbers}.", named(asked, best));
    let Some((next, next_prepared)) = found.get(1).filter(|(c, _)| c.fits) else {
        return text + " No other strategy that was simulated fits the memory.";
    };
    let more = next.estimate.step_seconds / best.estimate.step_seconds - 1.0;
    let differs = next.estimate.phases.named().into_iter().zip(best.estimate.phases.named());
    let largest = differs.map(|((name, a), (_, b))| (name, a - b)).max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
    let (phase, difference) = largest.expect("bug: no phases");
    text += &format!(
        " The runner-up, {}, takes {} ({:+.1} %), with {} {} for {phase}.",
        named(asked, next),
        ms(next.estimate.step_seconds),
        100.0 * more,
        ms(difference.abs()),
        if difference < 0.0 { "less" } else { "more" }
    );
    let both = CHANGES.iter().flat_map(|change| [(change, best, best_prepared), (change, next, next_prepared)]);
    let seconds = side_by_side(both.collect(), |((_, change), candidate, prepared)| {
        let mut machine = asked.machine.clone();
        change(&mut machine);
        estimate(asked, &machine, &candidate.strategy, prepared).step_seconds
    });
    let mut changes = vec![];
    for ((what, _), pair) in CHANGES.iter().zip(seconds.chunks(2)) {
        if asked.goal == Goal::Time && pair[1] < pair[0] {
            changes.push(format!("{what} ({} against {})", ms(pair[1]), ms(pair[0])));
        }
    }
    text += &match changes.is_empty() {
        true => " Neither a network four times slower or faster nor cores four times faster would change their order."
            .into(),
        false => format!(" It would be chosen with {}.", changes.join(", or with ")),
    };
    text
}

/// Something that might be otherwise, in words and done.
type Change = (&'static str, fn(&mut Machine));

const CHANGES: [Change; 3] = [
    ("a network four times slower", |m| m.levels.iter_mut().for_each(|l| l.bandwidth /= 4.0)),
    ("a network four times faster", |m| m.levels.iter_mut().for_each(|l| l.bandwidth *= 4.0)),
    ("cores four times faster", |m| m.groups.iter_mut().for_each(|g| g.core_flops *= 4.0)),
];

/// A strategy's name, with its ranks where some are idle.
fn named(asked: &Asked, candidate: &Candidate) -> String {
    let (name, ranks) = (candidate.words(), candidate.strategy.ranks);
    match asked.ranks - ranks {
        0 => format!("`{name}`"),
        idle => format!("`{name}` with {idle} of {} ranks idle", asked.ranks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoy_kernels::{Mode, Update, Winograd};
    use convoy_net::layers::*;
    use convoy_net::{Kind, Network};
    use convoy_predict::Collectives;
    use proptest::prelude::{Strategy as _, *};
    use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
    use std::collections::BTreeSet;

    /// Small networks of all shapes: a chain, a skip over a layer, two branches, fully connected layers.
    fn networks() -> Vec<Network> {
        let conv = |filters| Kind::Convolution(Convolution::new(filters, &[3, 3]).padding(1));
        let mut chain = Network::new("chain", &[2, 6, 4]);
        chain.push("conv", conv(4));
        chain.push("pool", Kind::MaxPool(MaxPool::new(&[2, 2])));
        chain.push("fc1", Kind::FullyConnected(FullyConnected::new(64)));
        chain.push("fc2", Kind::FullyConnected(FullyConnected::new(3)));
        let mut skip = Network::new("skip", &[4, 4, 4]);
        let first = skip.push("first", conv(4));
        let second = skip.push("second", conv(4));
        skip.join("add", Kind::Add(Add), &[first, second]);
        skip.push("end", Kind::FullyConnected(FullyConnected::new(3)));
        let mut branches = Network::new("branches", &[2, 5, 3]);
        let a = branches.join("a", conv(2), &[LayerId(0)]);
        let b = branches.join("b", conv(6), &[LayerId(0)]);
        branches.join("both", Kind::Concat(Concat), &[a, b]);
        branches.push("end", Kind::FullyConnected(FullyConnected::new(3)));
        vec![chain, skip, branches]
    }

    /// A network of a few layers on a small image, any of which may read any earlier one: by window, by pooling, summed or
    /// put side by side.
    fn random_networks() -> impl proptest::strategy::Strategy<Value = Network> {
        let step = (0usize..7, 0usize..100, 0usize..100, 1usize..5);
        let steps = prop::collection::vec(step, 1..4);
        ((1usize..4, 1usize..7, 1usize..7), steps).prop_map(|((channels, height, width), steps)| {
            let mut net = Network::new("random", &[channels, height, width]);
            for (i, (kind, a, b, filters)) in steps.into_iter().enumerate() {
                let (a, b) = (LayerId(a % (i + 1)), LayerId(b % (i + 1)));
                let (kind, inputs) = match kind {
                    0 => (Kind::MaxPool(MaxPool::new(&[2, 2]).stride(1).padding(1)), vec![a]),
                    1 => (Kind::Activation(Activation::Relu), vec![a]),
                    2 => (Kind::Add(Add), vec![a, b]),
                    3 => (Kind::Concat(Concat), vec![a, b]),
                    4 => (Kind::BatchNorm(BatchNorm::default()), vec![a]),
                    _ => (Kind::Convolution(Convolution::new(filters, &[3, 3]).padding(1)), vec![a]),
                };
                net.join(format!("layer{i}"), kind, &inputs);
            }
            net.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
            net.push("end", Kind::FullyConnected(FullyConnected::new(3)));
            net
        })
    }

    /// Combinations of grids that brute force takes its time for; networks with more are passed over.
    const MOST: usize = 20_000;

    #[test]
    fn the_best_price_of_random_networks_is_that_of_brute_force() {
        let config = Config { cases: 150, failure_persistence: None, max_global_rejects: 4000, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[12; 32]));
        let machines = Machine::names().collect::<Vec<_>>();
        let problems = (random_networks(), 1usize..5, 1usize..5, 0..machines.len());
        let check = |(network, batch, ranks, machine): (Network, usize, usize, usize)| {
            let Ok(shapes) = network.shapes(batch) else { return Err(TestCaseError::reject("sizes that do not fit")) };
            let all = |l| grids(&network, LayerId(l), &shapes, ranks).len();
            prop_assume!((0..shapes.len()).map(all).product::<usize>() <= MOST);
            check_brute_force(&network, batch, ranks, machines[machine]);
            Ok(())
        };
        runner.run(&problems, check).unwrap();
    }

    /// What is found by elimination is what trying every grid of every layer finds, with no grid left out.
    #[test]
    fn the_best_price_is_that_of_brute_force() {
        for network in networks() {
            for (batch, ranks, machine) in
                [(2, 2, "cpu-10g"), (1, 2, "v100-cluster"), (3, 3, "abci"), (4, 4, "cpu-10g")]
            {
                check_brute_force(&network, batch, ranks, machine);
            }
        }
    }

    fn check_brute_force(network: &Network, batch: usize, ranks: usize, machine: &str) {
        let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let machine = Machine::shipped(machine).unwrap();
        let division = Default::default();
        let options = Options { batch, mode: Mode::Train, leaves: 8, winograd: Winograd::Four, update, division };
        let asked = Asked {
            network,
            options: &options,
            machine: &machine,
            ranks,
            threads: None,
            ranks_per_node: None,
            collectives: Collectives::Direct,
            budget_bytes: None,
            goal: Goal::Time,
            may_shard: false,
        };
        let shapes = network.shapes(batch).unwrap();
        let prices = Prices::new(&asked, &shapes).unwrap();
        let layers = (0..shapes.len()).map(LayerId);
        let choices: Vec<Vec<Grid>> = layers.map(|l| grids(network, l, &shapes, ranks)).collect();
        let decision = decision(&asked, &prices, &choices);
        let found = eliminate(&decision, Keep::Fastest);
        assert!(found.proven);
        // All combinations, one after the other, each price asked for by itself and not taken from the decision.
        let own: Vec<Vec<f64>> = (0..choices.len())
            .map(|l| choices[l].iter().map(|grid| prices.own(LayerId(l), grid).seconds).collect())
            .collect();
        let read: Vec<(usize, usize)> =
            (0..choices.len()).flat_map(|l| network.layers[l].inputs.iter().map(move |t| (t.0, l))).collect();
        let read: BTreeSet<(usize, usize)> = read.into_iter().collect();
        let exchange = |&(t, l): &(usize, usize)| {
            let to =
                |from: &Grid| choices[l].iter().map(|to| prices.exchange(LayerId(t), LayerId(l), from, to)).collect();
            ((t, l), choices[t].iter().map(to).collect::<Vec<Vec<f64>>>())
        };
        let exchanges: BTreeMap<(usize, usize), Vec<Vec<f64>>> = read.iter().map(exchange).collect();
        let count: usize = choices.iter().map(Vec::len).product();
        assert!(count <= 200_000, "{} has {count} combinations", network.name);
        let price = |mut i: usize| {
            let pick = |grids: &Vec<Grid>| {
                let choice = i % grids.len();
                i /= grids.len();
                choice
            };
            let picked: Vec<usize> = choices.iter().map(pick).collect();
            let own: f64 = picked.iter().zip(&own).map(|(&choice, own)| own[choice]).sum();
            let pairs: f64 = exchanges.iter().map(|((t, l), seconds)| seconds[picked[*t]][picked[*l]]).sum();
            own + pairs
        };
        let best = (0..count).map(price).fold(f64::INFINITY, f64::min);
        let found = found.front[0].price.seconds;
        assert!((found / best - 1.0).abs() < 1e-9, "{network:?} on {ranks}: {found} is not {best}");
    }
}
