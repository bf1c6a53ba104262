//! The scene of a simulation: which ranks act, where they sit, and what does not change while time goes by.

use crate::cost::Ratios;
use crate::machine::Seat;
use crate::script::{Doing, Entry, Way};
use crate::simulate::{Prepared, Question};
use crate::sum::{Spread, Sum};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// How a rank sits: kind of node, ranks on it, level to the first node of its piece.
type Place = (usize, usize, usize);

/// A rank that is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Actor {
    pub rank: usize,
    pub position: usize,
    pub group: usize,
    pub seat: Seat,
    pub threads: usize,
    /// Ranks that do the same, this one included.
    pub stands_for: usize,
}

/// What does not change while time goes by.
pub struct Scene<'a> {
    pub question: &'a Question<'a>,
    pub job: &'a Prepared,
    pub seats: Vec<Seat>,
    pub actors: Vec<Actor>,
    /// By group that is simulated: its first actor.
    pub first_actor: HashMap<usize, usize>,
    /// By position and entry: how much longer than by roofline it takes, where that was measured.
    pub ratios: Vec<Vec<Option<Ratios>>>,
    /// By team and group: how its ranks sit. Many teams have the same ranks.
    pub spreads: HashMap<(usize, usize), Rc<Spread>>,
    /// Bytes a second at which the slowest rank adds.
    pub add_bandwidth: f64,
}

impl<'a> Scene<'a> {
    pub fn new(question: &'a Question<'a>, job: &'a Prepared) -> Scene<'a> {
        let machine = question.machine;
        let seats = machine.seats(question.strategy.ranks, question.ranks_per_node);
        let families = machine.table.families();
        let ratio = |entry: &Entry| match &entry.doing {
            Doing::Compute { ask, .. } => families.ratios(&ask.family, &ask.size),
            _ => None,
        };
        let mut scene = Scene {
            question,
            job,
            ratios: job.scripts.iter().map(|s| s.entries.iter().map(ratio).collect()).collect(),
            seats,
            actors: vec![],
            first_actor: HashMap::new(),
            spreads: HashMap::new(),
            add_bandwidth: f64::INFINITY,
        };
        scene.choose_actors();
        let adds = |a: &Actor| scene.core_bandwidth(a).min(machine.groups[a.seat.group].add_bandwidth);
        scene.add_bandwidth = scene.actors.iter().map(adds).fold(f64::INFINITY, f64::min);
        scene.find_spreads();
        scene
    }

    /// Cuts ranks into pieces of whole groups on whole nodes; of pieces that are alike the first one acts.
    fn choose_actors(&mut self) {
        let (ranks, period) = (self.seats.len(), self.job.folded.period);
        let is_cut = |r: usize| r.is_multiple_of(period) && self.seats[r].node != self.seats[r - 1].node;
        let mut cuts: Vec<usize> = (1..ranks).filter(|&r| is_cut(r)).collect();
        cuts.insert(0, 0);
        cuts.push(ranks);
        // By how a piece sits: the first of its kind, and how many there are.
        let mut kinds: BTreeMap<Vec<Place>, (usize, usize)> = BTreeMap::new();
        for (i, cut) in cuts.windows(2).enumerate() {
            let first = self.seats[cut[0]].node;
            let describe = |r: usize| {
                let seat = &self.seats[r];
                (seat.group, seat.neighbours, self.question.machine.level(first, seat.node))
            };
            kinds.entry((cut[0]..cut[1]).map(describe).collect()).or_insert((i, 0)).1 += 1;
        }
        let mut chosen: Vec<(usize, usize)> = kinds.into_values().collect();
        chosen.sort_unstable();
        for (piece, stands_for) in chosen {
            for rank in cuts[piece]..cuts[piece + 1] {
                let seat = self.seats[rank];
                let threads = self.question.threads.unwrap_or(self.question.machine.threads(&seat));
                let (group, position) = (rank / period, rank % period);
                if position == 0 {
                    self.first_actor.insert(group, self.actors.len());
                }
                self.actors.push(Actor { rank, position, group, seat, threads, stands_for });
            }
        }
    }

    /// What the heaviest rank holds.
    pub fn memory_bytes(&self) -> usize {
        let threads = |position: usize| {
            self.actors.iter().filter(|a| a.position == position).map(|a| a.threads).max().unwrap_or(1)
        };
        let of = |(position, (bytes, scratch)): (usize, &(usize, usize))| bytes + threads(position) * scratch * 4;
        self.job.held.iter().enumerate().map(of).max().unwrap_or(0)
    }

    /// Cores of an actor's node that work at the same time.
    pub fn busy_cores(&self, actor: &Actor) -> usize {
        (actor.threads * actor.seat.neighbours).min(self.question.machine.groups[actor.seat.group].cores)
    }

    /// The share of its node's memory bandwidth that a core has.
    pub fn core_bandwidth(&self, actor: &Actor) -> f64 {
        let nodes = &self.question.machine.groups[actor.seat.group];
        nodes.core_bandwidth.min(nodes.node_bandwidth / self.busy_cores(actor) as f64)
    }

    /// How the ranks of teams sit, in each group that acts; those of a team over all groups under the first.
    fn find_spreads(&mut self) {
        let (job, machine) = (self.job, self.question.machine);
        let acting: BTreeSet<usize> = self.actors.iter().map(|a| a.group).collect();
        let mut known: HashMap<(&[usize], bool, usize), Rc<Spread>> = HashMap::new();
        for (number, team) in job.teams.iter().enumerate() {
            for &group in acting.iter().take(if team.global { 1 } else { acting.len() }) {
                let spread = known.entry((&team.positions[..], team.global, group)).or_insert_with(|| {
                    let groups = if team.global { 0..job.folded.groups } else { group..group + 1 };
                    let ranks = groups.flat_map(|g| team.positions.iter().map(move |q| g * job.folded.period + q));
                    Rc::new(Spread::of(machine, ranks.map(|r| self.seats[r].node)))
                });
                self.spreads.insert((number, if team.global { 0 } else { group }), spread.clone());
            }
        }
    }

    /// Seconds of a sum, and whether cores make it.
    pub fn sum_seconds(&self, number: usize, group: usize) -> (f64, bool) {
        let team = &self.job.teams[number];
        let spread = &self.spreads[&(number, if team.global { 0 } else { group })];
        let (way, bytes, element_bytes) = (team.way, team.bytes, team.element_bytes);
        let sum = Sum { bytes, element_bytes, bandwidth: self.add_bandwidth, way };
        sum.seconds(self.question.machine, spread, self.question.collectives)
    }

    /// Bytes and messages that a rank at a position sends, in the job that is asked about, on average.
    pub fn sent(&self, position: usize) -> (f64, f64) {
        let script = &self.job.scripts[position];
        let (mut bytes, mut messages) = (0.0, 0.0);
        for entry in &script.entries {
            match &entry.doing {
                // What a library is handed counts, not what it makes of it.
                Doing::Send { bytes: b, .. } | Doing::Sum { way: Way::Library, bytes: b, .. } => {
                    bytes += *b as f64;
                    messages += 1.0;
                }
                Doing::Sum { key, bytes: b, adds, way, .. } => {
                    let team = &self.job.teams[self.job.team_of[&(position, *key)]];
                    let p = self.job.team_ranks(team) as f64;
                    // Each of the reducers gets a slice of everyone and gives everyone the sum; short sums have few.
                    let reducers = ((*b / team.element_bytes) as f64).min(p);
                    let phases = match way {
                        Way::Reduced => 1.0 + f64::from(*adds),
                        Way::Ring => 2.0,
                        Way::Kept | Way::Library => f64::from(*adds),
                    };
                    bytes += phases * *b as f64 * (p - 1.0) / p;
                    messages += phases * reducers * (p - 1.0) / p;
                }
                _ => {}
            }
        }
        (bytes, messages)
    }
}
