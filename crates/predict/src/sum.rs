//! Sums over ranks on a machine: who is how near, which links they share, which algorithm is taken.

use crate::collective::{AllReduce, cheapest, hierarchical};
use crate::machine::Machine;
use crate::script::Way;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How sums over ranks are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collectives {
    /// As Convoy's programs do, in the same order on every run: slices straight to their reducers and back.
    #[default]
    Direct,
    /// By whichever algorithm is cheapest, as libraries choose.
    Cheapest,
}

/// What is summed, and how fast cores add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    pub bytes: usize,
    pub element_bytes: usize,
    /// Bytes a second that a core of the slowest rank reads and writes.
    pub bandwidth: f64,
    pub way: Way,
}

impl Sum {
    /// Seconds over ranks that sit so, and whether cores make it, because they are all on one node whose cores move the bytes.
    pub fn seconds(&self, machine: &Machine, spread: &Spread, how: Collectives) -> (f64, bool) {
        let Spread { ranks: p, ways: spreads } = spread;
        let p = *p;
        if p <= 1 {
            return (0.0, false);
        }
        let reaches = |spread: &Vec<usize>| spread.iter().position(|&n| n == p).unwrap_or(spread.len() - 1);
        let outermost = spreads.iter().map(reaches).max().unwrap_or(0);
        let slice = self.bytes as f64 / p as f64;
        // Every rank reads all parts of its slice and writes the sum.
        let add = (self.bytes as f64 + slice) / self.bandwidth;
        let phases = if self.way == Way::Kept { 1.0 } else { 2.0 };
        let once = spreads.iter().map(|spread| phase_seconds(machine, spread, slice)).fold(0.0, f64::max);
        let direct = phases * once + add;
        let seconds = match how {
            _ if self.way == Way::Ring => {
                let level = &machine.levels[outermost];
                let turn = level.latency_seconds + level.message_seconds + slice / level.bandwidth;
                2.0 * (p - 1) as f64 * turn + 3.0 * (p - 1) as f64 * slice / self.bandwidth
            }
            _ if self.way == Way::Kept => direct,
            Collectives::Direct if self.way != Way::Library => direct,
            _ => {
                let together = spreads.iter().map(|s| s[0]).max().unwrap_or(1);
                self.cheapest_seconds(machine, p, together, outermost).min(direct)
            }
        };
        (seconds, machine.levels[outermost].by_cores)
    }

    /// The cheapest algorithm over `p` ranks, `together` on a node, through levels up to `outermost`.
    fn cheapest_seconds(&self, machine: &Machine, p: usize, together: usize, outermost: usize) -> f64 {
        let each = self.element_bytes as f64;
        let (elements, add_seconds) = (self.bytes as f64 / each, 3.0 * each / self.bandwidth);
        let level = &machine.levels[outermost];
        let mut link = level.link(add_seconds);
        let ring = AllReduce::Ring.seconds(p, elements, each, link);
        let inner = (together, machine.levels[0].link(add_seconds));
        let by_node = hierarchical(inner, (p.div_ceil(together), link), 1.0, elements, each);
        // Partners at a distance: all ranks of a node use its links at once.
        link.byte_seconds *= level.contention(if outermost > 0 { together } else { 1 });
        let others = [AllReduce::RecursiveDoubling, AllReduce::Rabenseifner, AllReduce::Tree];
        cheapest(&others, p, elements, each, link).1.min(ring).min(by_node)
    }
}

/// How ranks that make a sum together sit on a machine: how many, and the ways in which they see the others, by level how many are
/// as near as that, themselves included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    ranks: usize,
    ways: BTreeSet<Vec<usize>>,
}

impl Spread {
    /// Of ranks that sit on these nodes.
    pub fn of(machine: &Machine, nodes: impl Iterator<Item = usize>) -> Spread {
        let mut on: BTreeMap<usize, usize> = BTreeMap::new();
        nodes.for_each(|node| *on.entry(node).or_insert(0) += 1);
        let count = |level: &crate::machine::Level| {
            let mut count: HashMap<usize, usize> = HashMap::new();
            on.iter().for_each(|(node, ranks)| *count.entry(node / level.nodes).or_insert(0) += ranks);
            count
        };
        let counts: Vec<HashMap<usize, usize>> = machine.levels.iter().map(count).collect();
        let near = |node: usize, level: usize| counts[level][&(node / machine.levels[level].nodes)];
        let ways = on.keys().map(|&node| (0..machine.levels.len()).map(|l| near(node, l)).collect()).collect();
        Spread { ranks: on.values().sum(), ways }
    }
}

/// Every rank sends a slice to every other.
fn phase_seconds(machine: &Machine, spread: &[usize], slice_bytes: f64) -> f64 {
    let (mut seconds, mut latency, mut nearer) = (0.0, 0.0f64, 1);
    for (level, &near) in machine.levels.iter().zip(spread) {
        let peers = near.saturating_sub(nearer) as f64;
        if peers > 0.0 {
            let contention = if level.nodes > 1 { level.contention(spread[0]) } else { 1.0 };
            seconds += peers * (level.message_seconds + slice_bytes * contention / level.bandwidth);
            latency = latency.max(level.latency_seconds);
        }
        nearer = nearer.max(near);
    }
    seconds + latency
}
