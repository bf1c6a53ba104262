//! Elimination: the best choice for every layer when neighbours' choices cost something together.
//!
//! A layer's choice has a cost of its own, and two layers that touch have a cost for each pair of choices. Layers are taken out
//! one after the other, the one with the fewest neighbours first: what is best for it is written down for every choice of its
//! neighbours, as one cost of theirs. Chains, branches that come together again and skips over them (all series-parallel graphs)
//! leave pairs of neighbours only; others make larger tables, and where those would be too large choices of a layer are fixed
//! greedily and the answer is marked as not proven.
//!
//! Two criteria: with memory in sight, all choices are kept that no other beats in both. Twin: brute force, in the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Seconds and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    pub seconds: f64,
    pub bytes: f64,
}

impl std::ops::Add for Price {
    type Output = Price;
    fn add(self, other: Price) -> Price {
        Price { seconds: self.seconds + other.seconds, bytes: self.bytes + other.bytes }
    }
}

/// What is to be decided.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// By layer and choice.
    pub own: Vec<Vec<Price>>,
    /// By pair of layers, the first of which is smaller: seconds for each pair of choices, `[first][second]`.
    pub pairs: BTreeMap<(usize, usize), Vec<Vec<f64>>>,
}

/// A choice for every layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    pub choices: Vec<usize>,
    pub price: Price,
}

/// What elimination found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// From the fastest to the smallest; none is worse than another in both. Only the fastest where memory was not in sight.
    pub front: Vec<Chosen>,
    /// Whether no choices are better.
    pub proven: bool,
}

/// What is kept while choices are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Fastest,
    /// So many that no other beats in both; beyond that the answer is not proven.
    Front(usize),
}

/// Entries of a table, at most: a layer with three neighbours of a hundred choices each.
const MOST_ENTRIES: usize = 1 << 20;

/// What is kept of the cost of some layers for one choice of each: seconds alone, or points of a front.
trait Worth: Clone {
    fn own(price: Price, layer: usize, choice: usize) -> Self;
    fn pair(seconds: f64) -> Self;
    /// Seconds at best.
    fn seconds(&self) -> f64;
}

/// A cost of some layers together: by their choices, the last varying fastest.
struct Factor<W> {
    layers: Vec<usize>,
    sizes: Vec<usize>,
    worth: Vec<W>,
}

impl<W> Factor<W> {
    /// By neighbour in `among`: how far apart its choices are here; none where it has no part in this.
    fn steps(&self, among: &[usize]) -> Vec<usize> {
        let step = |layer: &usize| {
            let at = self.layers.iter().position(|l| l == layer);
            at.map_or(0, |at| self.sizes[at + 1..].iter().product())
        };
        among.iter().map(step).collect()
    }
}

/// The best choices.
pub fn eliminate(decision: &Decision, keep: Keep) -> Found {
    match keep {
        Keep::Fastest => fastest(decision),
        Keep::Front(most) => front(decision, most),
    }
}

/// What is done with a layer that is taken out, given its costs, its neighbours and the sizes of their choices.
type TakeOut<'a, W> = &'a mut dyn FnMut(usize, Vec<Factor<W>>, &[usize], &[usize]) -> Vec<W>;

/// Takes out one layer after the other; what is left are costs of no layer. Also the layers whose choice was guessed, and which.
fn reduce<W: Worth>(decision: &Decision, take_out: TakeOut<W>) -> (Vec<W>, Vec<(usize, usize)>) {
    let mut factors: Vec<Factor<W>> = vec![];
    for (layer, own) in decision.own.iter().enumerate() {
        let worth = own.iter().enumerate().map(|(choice, price)| W::own(*price, layer, choice)).collect();
        factors.push(Factor { layers: vec![layer], sizes: vec![own.len()], worth });
    }
    for (&(a, b), seconds) in &decision.pairs {
        let worth = seconds.iter().flatten().map(|&s| W::pair(s)).collect();
        factors.push(Factor { layers: vec![a, b], sizes: vec![decision.own[a].len(), decision.own[b].len()], worth });
    }
    let mut guessed = vec![];
    // By layer that is left: its neighbours.
    let mut around: BTreeMap<usize, BTreeSet<usize>> = (0..decision.own.len()).map(|l| (l, BTreeSet::new())).collect();
    for &(a, b) in decision.pairs.keys() {
        around.entry(a).or_default().insert(b);
        around.entry(b).or_default().insert(a);
    }
    let table = |near: &BTreeSet<usize>| near.iter().fold(1usize, |all, l| all.saturating_mul(decision.own[*l].len()));
    while let Some(layer) = around.iter().min_by_key(|(l, near)| (table(near), near.len(), **l)).map(|(l, _)| *l) {
        let mut near = around.remove(&layer).unwrap_or_default();
        near.iter().for_each(|l| {
            around.entry(*l).or_default().remove(&layer);
        });
        if table(&near) > MOST_ENTRIES {
            // Too many neighbours: what is cheapest for itself, and hope.
            guessed.push((layer, fix(&mut factors, layer)));
            near.clear();
        } else {
            let (mine, others): (Vec<_>, Vec<_>) = factors.into_iter().partition(|f| f.layers.contains(&layer));
            factors = others;
            let layers: Vec<usize> = near.iter().copied().collect();
            let sizes: Vec<usize> = layers.iter().map(|&l| decision.own[l].len()).collect();
            let worth = take_out(layer, mine, &layers, &sizes);
            factors.push(Factor { layers, sizes, worth });
        }
        // Neighbours of what is gone are neighbours now.
        for &l in &near {
            let others = near.iter().copied().filter(|&other| other != l);
            around.entry(l).or_default().extend(others);
        }
    }
    (factors.into_iter().filter_map(|f| f.worth.into_iter().next()).collect(), guessed)
}

/// Leaves a layer only the choice that is cheapest for itself, and its neighbours no say in it.
fn fix<W: Worth>(factors: &mut [Factor<W>], layer: usize) -> usize {
    let own = factors.iter().position(|f| f.layers == [layer]).expect("bug: a layer without a cost");
    let seconds = |choice: usize| factors[own].worth[choice].seconds();
    let choice = (0..factors[own].worth.len()).min_by(|&a, &b| seconds(a).total_cmp(&seconds(b))).unwrap_or(0);
    for factor in factors.iter_mut() {
        let Some(at) = factor.layers.iter().position(|&l| l == layer) else { continue };
        let inner: usize = factor.sizes[at + 1..].iter().product();
        let size = factor.sizes[at];
        let is_kept = |i: usize| i / inner % size == choice;
        let worth = std::mem::take(&mut factor.worth);
        factor.worth = worth.into_iter().enumerate().filter(|(i, _)| is_kept(*i)).map(|(_, w)| w).collect();
        factor.layers.remove(at);
        factor.sizes.remove(at);
    }
    choice
}

/// Counts through the choices of some layers, the last varying fastest, and keeps the place of each in several tables.
struct Places<'a> {
    sizes: &'a [usize],
    choices: Vec<usize>,
    /// By table: how far apart choices are, by layer; and where it is.
    tables: Vec<(Vec<usize>, usize)>,
}

impl Places<'_> {
    fn next(&mut self) {
        for at in (0..self.sizes.len()).rev() {
            self.choices[at] += 1;
            self.tables.iter_mut().for_each(|(steps, place)| *place += steps[at]);
            if self.choices[at] < self.sizes[at] {
                return;
            }
            self.tables.iter_mut().for_each(|(steps, place)| *place -= steps[at] * self.sizes[at]);
            self.choices[at] = 0;
        }
    }
}

impl Worth for f64 {
    fn own(price: Price, _layer: usize, _choice: usize) -> f64 {
        price.seconds
    }

    fn pair(seconds: f64) -> f64 {
        seconds
    }

    fn seconds(&self) -> f64 {
        *self
    }
}

/// A layer that was taken out: its best choice for each of its neighbours'.
struct Answer {
    layer: usize,
    near: Vec<usize>,
    sizes: Vec<usize>,
    best: Vec<u32>,
}

/// Seconds alone: tables of numbers, and of what was best.
fn fastest(decision: &Decision) -> Found {
    let mut answers: Vec<Answer> = vec![];
    let (left, guessed) = reduce(decision, &mut |layer, mine: Vec<Factor<f64>>, near, sizes| {
        let entries: usize = sizes.iter().product();
        let (mut worth, mut best) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
        let tables = mine.iter().map(|f| (f.steps(near), 0)).collect();
        let own: Vec<usize> = mine.iter().map(|f| f.steps(&[layer])[0]).collect();
        let mut places = Places { sizes, choices: vec![0; sizes.len()], tables };
        for _ in 0..entries {
            let mut least = (f64::INFINITY, 0);
            for choice in 0..decision.own[layer].len() {
                let at = places.tables.iter().zip(&own).map(|((_, place), step)| place + step * choice);
                let seconds: f64 = mine.iter().zip(at).map(|(f, at)| f.worth[at]).sum();
                if seconds < least.0 {
                    least = (seconds, choice);
                }
            }
            worth.push(least.0);
            best.push(least.1 as u32);
            places.next();
        }
        answers.push(Answer { layer, near: near.to_vec(), sizes: sizes.to_vec(), best });
        worth
    });
    let mut choices = vec![0; decision.own.len()];
    guessed.iter().for_each(|&(layer, choice)| choices[layer] = choice);
    // What was taken out last knows its choice first.
    for answer in answers.iter().rev() {
        let at = answer.near.iter().zip(&answer.sizes).fold(0, |at, (l, size)| at * size + choices[*l]);
        choices[answer.layer] = answer.best[at] as usize;
    }
    let bytes = choices.iter().zip(&decision.own).map(|(&choice, own)| own[choice].bytes).sum();
    let price = Price { seconds: left.iter().sum(), bytes };
    Found { front: vec![Chosen { choices, price }], proven: guessed.is_empty() }
}

/// Choices that led somewhere.
enum Trail {
    One(usize, usize),
    Both(Rc<Trail>, Rc<Trail>),
    Nothing,
}

#[derive(Clone)]
struct Point {
    price: Price,
    trail: Rc<Trail>,
}

impl Worth for Vec<Point> {
    fn own(price: Price, layer: usize, choice: usize) -> Vec<Point> {
        vec![Point { price, trail: Rc::new(Trail::One(layer, choice)) }]
    }

    fn pair(seconds: f64) -> Vec<Point> {
        vec![Point { price: Price { seconds, bytes: 0.0 }, trail: Rc::new(Trail::Nothing) }]
    }

    fn seconds(&self) -> f64 {
        self.first().map_or(f64::INFINITY, |point| point.price.seconds)
    }
}

/// Seconds and bytes: every entry has a front of its own.
fn front(decision: &Decision, most: usize) -> Found {
    let mut proven = true;
    let (left, guessed) = reduce(decision, &mut |layer, mine: Vec<Factor<Vec<Point>>>, near, sizes| {
        let entries: usize = sizes.iter().product();
        let tables = mine.iter().map(|f| (f.steps(near), 0)).collect();
        let own: Vec<usize> = mine.iter().map(|f| f.steps(&[layer])[0]).collect();
        let mut places = Places { sizes, choices: vec![0; sizes.len()], tables };
        let mut worth = Vec::with_capacity(entries);
        for _ in 0..entries {
            let mut all = vec![];
            for choice in 0..decision.own[layer].len() {
                let at = places.tables.iter().zip(&own).map(|((_, place), step)| place + step * choice);
                let mut costs = mine.iter().zip(at).map(|(f, at)| &f.worth[at]);
                let first = costs.next().cloned().unwrap_or_default();
                all.extend(costs.fold(first, |sum, points| join(&sum, points)));
            }
            worth.push(best(all, most, &mut proven));
            places.next();
        }
        worth
    });
    proven &= guessed.is_empty();
    let start = <Vec<Point>>::pair(0.0);
    let points = left.iter().fold(start, |sum, points| best(join(&sum, points), most, &mut proven));
    let front = points.into_iter().map(|p| chosen(p, decision.own.len())).collect();
    Found { front, proven }
}

fn join(a: &[Point], b: &[Point]) -> Vec<Point> {
    let both = |x: &Point, y: &Point| Point {
        price: x.price + y.price,
        trail: match (&*x.trail, &*y.trail) {
            (_, Trail::Nothing) => x.trail.clone(),
            (Trail::Nothing, _) => y.trail.clone(),
            _ => Rc::new(Trail::Both(x.trail.clone(), y.trail.clone())),
        },
    };
    a.iter().flat_map(|x| b.iter().map(move |y| both(x, y))).collect()
}

/// Points that no other beats in both.
fn best(mut points: Vec<Point>, most: usize, proven: &mut bool) -> Vec<Point> {
    points.sort_by(|a, b| a.price.seconds.total_cmp(&b.price.seconds).then(a.price.bytes.total_cmp(&b.price.bytes)));
    let mut front: Vec<Point> = vec![];
    for point in points {
        if front.last().is_none_or(|last| point.price.bytes < last.price.bytes) {
            front.push(point);
        }
    }
    if front.len() > most {
        // The fastest, the smallest, and some in between.
        *proven = false;
        let last = front.len() - 1;
        front = (0..most).map(|i| front[i * last / (most - 1).max(1)].clone()).collect();
    }
    front
}

fn chosen(point: Point, layers: usize) -> Chosen {
    let mut choices = vec![0; layers];
    let mut open = vec![point.trail];
    while let Some(trail) = open.pop() {
        match &*trail {
            Trail::One(layer, choice) => choices[*layer] = *choice,
            Trail::Both(a, b) => open.extend([a.clone(), b.clone()]),
            Trail::Nothing => {}
        }
    }
    Chosen { choices, price: point.price }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    /// All choices, one after the other.
    fn brute_force(decision: &Decision) -> Vec<Chosen> {
        let sizes: Vec<usize> = decision.own.iter().map(Vec::len).collect();
        let all: usize = sizes.iter().product();
        let mut found: Vec<Chosen> = (0..all)
            .map(|mut i| {
                let choices: Vec<usize> = sizes
                    .iter()
                    .map(|size| {
                        let choice = i % size;
                        i /= size;
                        choice
                    })
                    .collect();
                let own = choices.iter().enumerate().map(|(l, &c)| decision.own[l][c]);
                let own = own.fold(Price::default(), |a, b| a + b);
                let pairs: f64 = decision.pairs.iter().map(|((a, b), s)| s[choices[*a]][choices[*b]]).sum();
                Chosen { choices, price: Price { seconds: own.seconds + pairs, bytes: own.bytes } }
            })
            .collect();
        found.sort_by(|a, b| a.price.seconds.total_cmp(&b.price.seconds).then(a.price.bytes.total_cmp(&b.price.bytes)));
        found
    }

    /// PAPERS.md 1.9: three layers, S and H, the best path is S, H, H.
    #[test]
    fn golden_path() {
        let own = |s: f64, h: f64| [s, h].map(|seconds| Price { seconds, bytes: 0.0 }).to_vec();
        let shuffle = vec![vec![0.0, 1.5], vec![1.5, 0.0]];
        let decision = Decision {
            own: vec![own(4.0, 6.0), own(5.0, 2.0), own(3.0, 4.0)],
            pairs: BTreeMap::from([((0, 1), shuffle.clone()), ((1, 2), shuffle)]),
        };
        let found = eliminate(&decision, Keep::Fastest);
        assert!(found.proven);
        assert_eq!((found.front[0].choices.as_slice(), found.front[0].price.seconds), (&[0, 1, 1][..], 11.5));
        let totals: Vec<f64> = brute_force(&decision).iter().map(|c| c.price.seconds).collect();
        assert_eq!(totals, [11.5, 12.0, 12.0, 12.0, 12.5, 14.5, 15.5, 18.0]);
    }

    /// Costs in whole numbers, so that sums are exact in any order; any graph of up to six layers.
    fn decisions() -> impl proptest::strategy::Strategy<Value = Decision> {
        let own = prop::collection::vec(prop::collection::vec((0u32..20, 0u32..20), 1..4), 1..7);
        (own, prop::collection::vec((0usize..6, 0usize..6, prop::collection::vec(0u32..20, 9)), 0..10)).prop_map(
            |(own, edges)| {
                let price = |(s, b): &(u32, u32)| Price { seconds: *s as f64, bytes: *b as f64 };
                let own: Vec<Vec<Price>> = own.iter().map(|c| c.iter().map(price).collect()).collect();
                let mut pairs = BTreeMap::new();
                for (a, b, costs) in edges {
                    let (a, b) = (a % own.len(), b % own.len());
                    if a < b {
                        let row = |i: usize| (0..own[b].len()).map(|j| costs[i * 3 + j] as f64).collect();
                        pairs.insert((a, b), (0..own[a].len()).map(row).collect());
                    }
                }
                Decision { own, pairs }
            },
        )
    }

    #[test]
    fn elimination_is_brute_force() {
        let config = Config { cases: 600, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
        let check = |decision: Decision| {
            let all = brute_force(&decision);
            let fastest = eliminate(&decision, Keep::Fastest);
            prop_assert!(fastest.proven);
            prop_assert_eq!(fastest.front[0].price.seconds, all[0].price.seconds);
            // The choices are worth what is said of them.
            let own = all.iter().find(|c| c.choices == fastest.front[0].choices).expect("one of all");
            prop_assert_eq!(own.price, fastest.front[0].price);
            let mut front: Vec<Price> = vec![];
            for c in &all {
                if front.last().is_none_or(|last| c.price.bytes < last.bytes) {
                    front.push(c.price);
                }
            }
            let found = eliminate(&decision, Keep::Front(1000));
            prop_assert!(found.proven);
            let prices: Vec<Price> = found.front.iter().map(|c| c.price).collect();
            prop_assert_eq!(prices, front);
            Ok(())
        };
        runner.run(&decisions(), check).unwrap();
    }

    /// Everyone beside everyone, many choices: no table is small enough, and the answer says so.
    #[test]
    fn what_is_too_tangled_is_not_proven() {
        let (layers, choices) = (6, 20);
        let own = vec![(0..choices).map(|c| Price { seconds: c as f64, bytes: 0.0 }).collect(); layers];
        let apart = vec![vec![0.0; choices]; choices];
        let pairs =
            (0..layers).flat_map(|a| (a + 1..layers).map(move |b| (a, b))).map(|p| (p, apart.clone())).collect();
        let found = eliminate(&Decision { own, pairs }, Keep::Fastest);
        assert!(!found.proven);
        assert_eq!(found.front[0].choices, [0; 6]);
    }
}
