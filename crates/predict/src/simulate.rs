//! The simulator: runs the ranks' programs over a machine, on paper. A job is prepared (its programs lowered and read), set in a
//! scene (`scene.rs`), and played event by event (`play.rs`).
//!
//! Always true
//! - The same question has the same answer.
//! - Groups of ranks that do the same on the same kind of nodes are simulated once; only sums join them (`fold.rs`).

use crate::error::Error;
use crate::estimate::{Estimate, Event};
use crate::fold::{Folded, Folding, fold};
use crate::machine::Machine;
use crate::play::Play;
use crate::scene::Scene;
use crate::script::{Doing, Entry, Script, SumKey, Way, memory_bytes};
use crate::sum::Collectives;
use convoy_net::Network;
use convoy_program::{Options, Program, lower_ops, memory_plan};
use convoy_split::{Rank, Strategy};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A job on a machine.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub network: &'a Network,
    pub strategy: &'a Strategy,
    pub options: &'a Options,
    pub machine: &'a Machine,
    /// Workers of each rank; else as many as its share of the node's cores.
    pub threads: Option<usize>,
    /// Else as many as the machine says.
    pub ranks_per_node: Option<usize>,
    pub collectives: Collectives,
    pub folding: Folding,
}

/// Ranks that may have different work: each is lowered.
pub const MOST_UNLIKE: usize = 64;

/// What a simulation found.
#[derive(Clone, Debug)]
pub struct Simulation {
    pub estimate: Estimate,
    /// What the ranks that were simulated did, if asked.
    pub events: Vec<Event>,
}

/// Simulates one step.
pub fn simulate(question: &Question, keep_events: bool) -> Result<Simulation, Error> {
    let Question { network, strategy, options, folding, .. } = *question;
    Ok(Prepared::new(network, strategy, options, folding)?.simulate(question, keep_events))
}

/// A job whose programs are lowered and read: what can be asked about several machines.
pub struct Prepared {
    pub(crate) folded: Folded,
    pub(crate) scripts: Vec<Script>,
    /// By position: bytes of the program without scratch, and floats of each worker's scratch.
    pub(crate) held: Vec<(usize, usize)>,
    pub(crate) teams: Vec<Team>,
    /// By position and sum: its team.
    pub(crate) team_of: HashMap<(usize, SumKey), usize>,
}

impl Prepared {
    pub fn new(network: &Network, strategy: &Strategy, options: &Options, folding: Folding) -> Result<Prepared, Error> {
        let shapes = network.shapes(options.batch)?;
        let folded = fold(network, &shapes, strategy, options, folding);
        if folded.period > MOST_UNLIKE {
            return Err(Error::Unlike { unlike: folded.period, ranks: strategy.ranks, most: MOST_UNLIKE });
        }
        let mut programs = vec![];
        for rank in 0..folded.period {
            programs.push(lower_ops(network, &folded.strategy, Rank(rank), &folded.options)?);
        }
        let mut scripts: Vec<Script> = programs.iter().map(|p| Script::of(p, network)).collect();
        if folded.groups > 1 {
            scripts.iter_mut().for_each(|script| script.forget_told(folded.period));
        }
        let outside = |entry: &Entry| match &entry.doing {
            Doing::Send { to: peer, .. } | Doing::Receive { from: peer, .. } => *peer >= folded.period,
            _ => false,
        };
        assert!(!scripts.iter().flat_map(|s| &s.entries).any(outside), "bug: groups of ranks exchange more than sums");
        let mut prepared = Prepared { folded, scripts, held: vec![], teams: vec![], team_of: HashMap::new() };
        prepared.find_teams();
        let held = |(position, program): (usize, Program)| {
            // One loader, as jobs have that do not say otherwise.
            let (scratch, fed) = (program.scratch(), program.fed_bytes(1));
            let bytes = match prepared.folded.groups {
                1 => program.kept_bytes() + memory_plan(&program).step_bytes,
                _ => memory_bytes(program, |key| match prepared.team_of.get(&(position, *key)) {
                    Some(&team) => prepared.team_ranks(&prepared.teams[team]),
                    None => 1,
                }),
            };
            (bytes + fed, scratch)
        };
        prepared.held = programs.into_iter().enumerate().map(held).collect();
        Ok(prepared)
    }

    /// A step of the job that this was prepared for, on the question's machine.
    pub fn simulate(&self, question: &Question, keep_events: bool) -> Simulation {
        let scene = Scene::new(question, self);
        let mut play = Play::new(&scene, keep_events);
        play.run();
        play.result()
    }

    /// Which ranks make each sum together.
    fn find_teams(&mut self) {
        let period = self.folded.period;
        let mut keys: BTreeMap<SumKey, Vec<usize>> = BTreeMap::new();
        for (position, script) in self.scripts.iter().enumerate() {
            script.peers.keys().for_each(|key| keys.entry(*key).or_default().push(position));
        }
        for (key, positions) in keys {
            let mut left: BTreeSet<usize> = positions.iter().copied().collect();
            while let Some(start) = left.pop_first() {
                let (mut team, mut next, mut global) = (vec![start], 0, false);
                while let Some(&position) = team.get(next) {
                    next += 1;
                    for &peer in &self.scripts[position].peers[&key] {
                        global |= peer / period != 0;
                        if left.remove(&(peer % period)) {
                            team.push(peer % period);
                        }
                    }
                }
                team.sort_unstable();
                let size = self.scripts[start].entries.iter().find_map(|e| match &e.doing {
                    Doing::Sum { key: k, way, bytes, element_bytes, .. } if *k == key => {
                        Some((*way, *bytes, *element_bytes))
                    }
                    _ => None,
                });
                let (way, bytes, element_bytes) = size.expect("bug: peers without a sum");
                team.iter().for_each(|&p| {
                    self.team_of.insert((p, key), self.teams.len());
                });
                self.teams.push(Team { positions: team, global, way, bytes, element_bytes });
            }
        }
    }

    /// Ranks that a team has in the job that is asked about.
    pub(crate) fn team_ranks(&self, team: &Team) -> usize {
        team.positions.len() * if team.global { self.folded.groups } else { 1 }
    }
}

/// A sum over some ranks of one group, or over the same ranks of all groups.
pub(crate) struct Team {
    /// Places in the group.
    pub positions: Vec<usize>,
    pub global: bool,
    pub way: Way,
    pub bytes: usize,
    pub element_bytes: usize,
}
