//! The simulator: runs the ranks' programs over a machine, on paper.
//!
//! Workers see to messages, then take tiles of the most urgent ready op, as the engine's do; ranks of a node share its cores; messages take their turn
//! on links; sums over ranks run in the background, one after the other. What a rank's workers do not compute is booked to what
//! they wait for.
//!
//! Always true
//! - Events at equal times are taken in an order that follows from ranks and ops alone: the same question has the same answer.
//! - Groups of ranks that do the same on the same kind of nodes are simulated once; only sums join them (`fold.rs`).
//!
//! Left out: that messages between nodes, too, are seen to only between tiles; that sums slow halos down more than by sharing a link fairly.

use crate::cost::{Ratios, roofline_seconds};
use crate::error::Error;
use crate::estimate::{Activity, Estimate, Event, LayerTimes, Phases};
use crate::fold::{Folded, Folding, fold};
use crate::machine::{Machine, Seat};
use crate::script::{Doing, Script, SumKey, Way, memory_bytes};
use crate::sum::{Collectives, Spread, Sum};
use convoy_net::{LayerId, Network};
use convoy_program::{Options, Program, Purpose, lower_ops, memory_plan};
use convoy_split::{Rank, Strategy};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::rc::Rc;

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

/// Pieces of an op that are told apart on each worker.
const PIECES: usize = 32;

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
    folded: Folded,
    scripts: Vec<Script>,
    /// By position: bytes of the program without scratch, and floats of each worker's scratch.
    held: Vec<(usize, usize)>,
    teams: Vec<Team>,
    /// By position and sum: its team.
    team_of: HashMap<(usize, SumKey), usize>,
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
        let outside = |entry: &crate::script::Entry| match &entry.doing {
            Doing::Send { to: peer, .. } | Doing::Receive { from: peer, .. } => *peer >= folded.period,
            _ => false,
        };
        assert!(!scripts.iter().flat_map(|s| &s.entries).any(outside), "bug: groups of ranks exchange more than sums");
        let mut prepared = Prepared { folded, scripts, held: vec![], teams: vec![], team_of: HashMap::new() };
        prepared.find_teams();
        let held = |(position, program): (usize, Program)| {
            let scratch = program.scratch();
            let bytes = match prepared.folded.groups {
                1 => program.kept_bytes() + memory_plan(&program).step_bytes,
                _ => memory_bytes(program, |key| match prepared.team_of.get(&(position, *key)) {
                    Some(&team) => prepared.team_ranks(&prepared.teams[team]),
                    None => 1,
                }),
            };
            (bytes, scratch)
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
    fn team_ranks(&self, team: &Team) -> usize {
        team.positions.len() * if team.global { self.folded.groups } else { 1 }
    }
}

/// A sum over some ranks of one group, or over the same ranks of all groups.
struct Team {
    /// Places in the group.
    positions: Vec<usize>,
    global: bool,
    way: Way,
    bytes: usize,
    element_bytes: usize,
}

/// How a rank sits: kind of node, ranks on it, level to the first node of its piece.
type Place = (usize, usize, usize);

/// A rank that is simulated.
#[derive(Clone, Copy, Debug)]
struct Actor {
    rank: usize,
    position: usize,
    group: usize,
    seat: Seat,
    threads: usize,
    /// Ranks that do the same, this one included.
    stands_for: usize,
}

/// What does not change while time goes by.
struct Scene<'a> {
    question: &'a Question<'a>,
    job: &'a Prepared,
    seats: Vec<Seat>,
    actors: Vec<Actor>,
    /// By group that is simulated: its first actor.
    first_actor: HashMap<usize, usize>,
    /// By position and entry: how much longer than by roofline it takes, where that was measured.
    ratios: Vec<Vec<Option<Ratios>>>,
    /// By team and group: how its ranks sit. Many teams have the same ranks.
    spreads: HashMap<(usize, usize), Rc<Spread>>,
    /// Bytes a second at which the slowest rank adds.
    add_bandwidth: f64,
}

impl<'a> Scene<'a> {
    fn new(question: &'a Question<'a>, job: &'a Prepared) -> Scene<'a> {
        let machine = question.machine;
        let seats = machine.seats(question.strategy.ranks, question.ranks_per_node);
        let families = machine.table.families();
        let ratio = |entry: &crate::script::Entry| match &entry.doing {
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
    fn memory_bytes(&self) -> usize {
        let threads = |position: usize| {
            self.actors.iter().filter(|a| a.position == position).map(|a| a.threads).max().unwrap_or(1)
        };
        let of = |(position, (bytes, scratch)): (usize, &(usize, usize))| bytes + threads(position) * scratch * 4;
        self.job.held.iter().enumerate().map(of).max().unwrap_or(0)
    }

    /// Cores of an actor's node that work at the same time.
    fn busy_cores(&self, actor: &Actor) -> usize {
        (actor.threads * actor.seat.neighbours).min(self.question.machine.groups[actor.seat.group].cores)
    }

    /// The share of its node's memory bandwidth that a core has.
    fn core_bandwidth(&self, actor: &Actor) -> f64 {
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
    fn sum_seconds(&self, number: usize, group: usize) -> (f64, bool) {
        let team = &self.job.teams[number];
        let spread = &self.spreads[&(number, if team.global { 0 } else { group })];
        let (way, bytes, element_bytes) = (team.way, team.bytes, team.element_bytes);
        let sum = Sum { bytes, element_bytes, bandwidth: self.add_bandwidth, way };
        sum.seconds(self.question.machine, spread, self.question.collectives)
    }
}

/// What can happen, in the order in which it is taken at equal times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    /// An actor's piece is done: actor, entry, worker.
    Piece(usize, usize, usize),
    /// A message left its sender.
    Left(usize, usize),
    /// A message arrived for an entry of an actor.
    Arrived(usize, usize),
    /// A sum of a team of a group is made.
    Summed(usize, usize),
    /// All of a team are ready for its sum. Last, so that sums that are ready at the same time start in the order of teams.
    Met(usize, usize),
}

/// What changes about an actor.
#[derive(Default)]
struct State {
    pending: Vec<u32>,
    /// Pieces not yet taken, and not yet done.
    to_take: Vec<u32>,
    to_finish: Vec<u32>,
    arrived: Vec<bool>,
    posted: Vec<bool>,
    /// When a receive's message was sent.
    sent_at: Vec<f64>,
    ready: BinaryHeap<(u64, Reverse<usize>)>,
    idle_workers: BTreeSet<usize>,
    /// Workers at work for messages and sums, by phase.
    moving: [usize; 3],
    /// Messages on their way here, and sums that are made.
    halos: usize,
    redistributions: usize,
    sums: usize,
    sums_free: f64,
    since: f64,
    phases: Phases,
    layers: BTreeMap<usize, LayerTimes>,
}

/// A team whose members come together.
#[derive(Default)]
struct Meeting {
    members: Vec<(usize, usize)>,
    expected: usize,
    began: f64,
    seconds: f64,
    by_cores: bool,
}

/// A step while it is simulated.
struct Play<'a> {
    scene: &'a Scene<'a>,
    followers: Vec<Vec<Vec<usize>>>,
    /// By position: (sender's position, tag) to the entry that receives.
    receivers: Vec<HashMap<(usize, u64), usize>>,
    /// By position and entry: the phase of what moves bytes.
    moves: Vec<Vec<Option<usize>>>,
    states: Vec<State>,
    queue: BinaryHeap<Reverse<(u64, Happens)>>,
    free_cores: HashMap<usize, usize>,
    on_node: HashMap<usize, Vec<usize>>,
    /// By level and node (or actor, where each has its own link) and direction: when each link is free.
    links: HashMap<(usize, usize, bool), Vec<f64>>,
    meetings: HashMap<(usize, usize), Meeting>,
    now: f64,
    events: Option<Vec<Event>>,
    piece_began: HashMap<(usize, usize), f64>,
}

/// Places in [`State::moving`].
const HALO: usize = 0;
const REDISTRIBUTION: usize = 1;
const REDUCTION: usize = 2;

/// Order of times that are not negative.
fn order(seconds: f64) -> u64 {
    seconds.max(0.0).to_bits()
}

impl<'a> Play<'a> {
    fn new(scene: &'a Scene<'a>, keep_events: bool) -> Play<'a> {
        let followers = scene.job.scripts.iter().map(|script| {
            let mut followers = vec![vec![]; script.entries.len()];
            for (i, entry) in script.entries.iter().enumerate() {
                entry.after.iter().for_each(|&before| followers[before].push(i));
            }
            followers
        });
        let receivers = scene.job.scripts.iter().map(|script| {
            let receives = script.entries.iter().enumerate().filter_map(|(i, e)| match &e.doing {
                Doing::Receive { from, tag, .. } => Some(((*from, *tag), i)),
                _ => None,
            });
            receives.collect()
        });
        let (mut free_cores, mut on_node) = (HashMap::new(), HashMap::<usize, Vec<usize>>::new());
        for (i, actor) in scene.actors.iter().enumerate() {
            free_cores.insert(actor.seat.node, scene.question.machine.groups[actor.seat.group].cores);
            on_node.entry(actor.seat.node).or_default().push(i);
        }
        let states = scene.actors.iter().map(|actor| {
            let entries = &scene.job.scripts[actor.position].entries;
            State {
                pending: entries.iter().map(|e| e.after.len() as u32).collect(),
                to_take: entries.iter().map(|e| pieces(&e.doing, actor.threads)).collect(),
                to_finish: entries.iter().map(|e| pieces(&e.doing, actor.threads)).collect(),
                arrived: vec![false; entries.len()],
                posted: vec![false; entries.len()],
                sent_at: vec![0.0; entries.len()],
                idle_workers: (0..actor.threads).collect(),
                ..State::default()
            }
        });
        Play {
            followers: followers.collect(),
            receivers: receivers.collect(),
            moves: scene.job.scripts.iter().map(moves).collect(),
            states: states.collect(),
            queue: BinaryHeap::new(),
            free_cores,
            on_node,
            links: HashMap::new(),
            meetings: HashMap::new(),
            now: 0.0,
            events: keep_events.then(Vec::new),
            piece_began: HashMap::new(),
            scene,
        }
    }

    fn run(&mut self) {
        for actor in 0..self.states.len() {
            for entry in 0..self.states[actor].pending.len() {
                if self.states[actor].pending[entry] == 0 {
                    self.offer(actor, entry);
                }
            }
        }
        let nodes: BTreeSet<usize> = self.on_node.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.dispatch(node));
        while let Some(Reverse((time, happens))) = self.queue.pop() {
            self.now = f64::from_bits(time);
            match happens {
                Happens::Piece(actor, entry, worker) => self.piece_done(actor, entry, worker),
                Happens::Left(actor, entry) => self.complete(actor, entry),
                Happens::Arrived(actor, entry) => self.arrived(actor, entry),
                Happens::Summed(team, group) => self.summed(team, group),
                Happens::Met(team, group) => self.begin_sum((team, group)),
            }
        }
    }

    /// Books the time since an actor's state last changed to what its workers did or waited for.
    fn book(&mut self, actor: usize) {
        let threads = self.scene.actors[actor].threads as f64;
        let state = &mut self.states[actor];
        let passed = self.now - state.since;
        state.since = self.now;
        let idle = passed * state.idle_workers.len() as f64 / threads;
        let moved = state.moving.map(|workers| passed * workers as f64 / threads);
        state.phases.halo += moved[HALO];
        state.phases.redistribution += moved[REDISTRIBUTION];
        state.phases.reduction += moved[REDUCTION];
        state.phases.compute += passed - idle - moved.iter().sum::<f64>();
        if state.halos > 0 {
            state.phases.halo += idle;
        } else if state.redistributions > 0 {
            state.phases.redistribution += idle;
        } else if state.sums > 0 {
            state.phases.reduction += idle;
        } else {
            state.phases.wait += idle;
        }
    }

    fn layer(&mut self, actor: usize, layer: Option<LayerId>) -> Option<&mut LayerTimes> {
        layer.map(|l| self.states[actor].layers.entry(l.0).or_default())
    }

    /// An entry that waits for nothing any more.
    fn offer(&mut self, actor: usize, entry: usize) {
        let scene = self.scene;
        let script = &scene.job.scripts[scene.actors[actor].position];
        match &script.entries[entry].doing {
            Doing::Compute { .. } => self.make_ready(actor, entry),
            Doing::Send { to, .. } => {
                if self.level(actor, *to).1.by_cores {
                    self.make_ready(actor, entry)
                } else {
                    self.send(actor, entry)
                }
            }
            Doing::Receive { .. } => {
                self.states[actor].posted[entry] = true;
                if self.states[actor].arrived[entry] {
                    self.received(actor, entry);
                }
            }
            Doing::Sum { key, .. } => self.meet(actor, entry, *key),
        }
    }

    fn make_ready(&mut self, actor: usize, entry: usize) {
        let entry_of = &self.scene.job.scripts[self.scene.actors[actor].position].entries[entry];
        // Workers see to messages before they take tiles: others wait for them.
        let urgency = match entry_of.doing {
            Doing::Send { .. } | Doing::Receive { .. } => u64::MAX,
            _ => order(entry_of.remaining),
        };
        self.states[actor].ready.push((urgency, Reverse(entry)));
    }

    /// The actor at a position of the same group.
    fn peer(&self, actor: usize, position: usize) -> usize {
        self.scene.first_actor[&self.scene.actors[actor].group] + position
    }

    /// The level through which an actor talks to a position of its group.
    fn level(&self, actor: usize, position: usize) -> (usize, &'a crate::machine::Level) {
        let machine = self.scene.question.machine;
        let peer = self.peer(actor, position);
        let level = machine.level(self.scene.actors[actor].seat.node, self.scene.actors[peer].seat.node);
        (level, &machine.levels[level])
    }

    /// Gives free cores of a node to ranks that have pieces, to those with the fewest at work first.
    fn dispatch(&mut self, node: usize) {
        let here = self.on_node[&node].clone();
        while self.free_cores[&node] > 0 {
            let working = |actor: &usize| {
                let state = &self.states[*actor];
                self.scene.actors[*actor].threads - state.idle_workers.len()
            };
            let can = |actor: &&usize| {
                let state = &self.states[**actor];
                !state.ready.is_empty() && !state.idle_workers.is_empty()
            };
            let Some(&actor) = here.iter().filter(can).min_by_key(|actor| (working(actor), **actor)) else { return };
            self.start_piece(actor);
        }
    }

    fn start_piece(&mut self, actor: usize) {
        self.book(actor);
        let state = &mut self.states[actor];
        let &(_, Reverse(entry)) = state.ready.peek().expect("bug: nothing is ready");
        state.to_take[entry] -= 1;
        if state.to_take[entry] == 0 {
            state.ready.pop();
        }
        let worker = state.idle_workers.pop_first().expect("bug: no worker is idle");
        self.moves[self.scene.actors[actor].position][entry].iter().for_each(|&phase| state.moving[phase] += 1);
        *self.free_cores.get_mut(&self.scene.actors[actor].seat.node).expect("bug: no node") -= 1;
        let seconds = self.piece_seconds(actor, entry);
        if self.events.is_some() {
            self.piece_began.insert((actor, worker), self.now);
        }
        self.queue.push(Reverse((order(self.now + seconds), Happens::Piece(actor, entry, worker))));
    }

    fn piece_seconds(&self, actor: usize, entry: usize) -> f64 {
        let scene = self.scene;
        let who = &scene.actors[actor];
        let nodes = &scene.question.machine.groups[who.seat.group];
        match &scene.job.scripts[who.position].entries[entry].doing {
            doing @ Doing::Compute { ask, tiles, .. } => {
                let (bandwidth, ratio) = match scene.ratios[who.position][entry] {
                    None => (scene.core_bandwidth(who), 1.0),
                    Some(ratios) => (nodes.core_bandwidth, ratios.with(scene.busy_cores(who), nodes.cores)),
                };
                let all = roofline_seconds(&ask.work, nodes, bandwidth) + *tiles as f64 * nodes.tile_seconds;
                all * ratio / pieces(doing, who.threads) as f64
            }
            Doing::Send { to: peer, bytes, .. } | Doing::Receive { from: peer, bytes, .. } => {
                let level = self.level(actor, *peer).1;
                level.message_seconds + *bytes as f64 / level.bandwidth
            }
            Doing::Sum { key, .. } => {
                let team = scene.job.team_of[&(who.position, *key)];
                self.meetings[&self.meeting_of(team, who.group)].seconds
            }
        }
    }

    fn piece_done(&mut self, actor: usize, entry: usize, worker: usize) {
        self.book(actor);
        let scene = self.scene;
        let who = scene.actors[actor];
        let node = who.seat.node;
        let state = &mut self.states[actor];
        state.idle_workers.insert(worker);
        self.moves[who.position][entry].iter().for_each(|&phase| state.moving[phase] -= 1);
        state.to_finish[entry] -= 1;
        let over = state.to_finish[entry] == 0;
        *self.free_cores.get_mut(&node).expect("bug: no node") += 1;
        let what = &scene.job.scripts[who.position].entries[entry];
        if let Doing::Compute { part, .. } = &what.doing {
            let seconds = self.piece_seconds(actor, entry);
            let part = *part;
            if let Some(times) = self.layer(actor, what.layer) {
                *times.compute.entry(part).or_insert(0.0) += seconds;
            }
        }
        self.note(actor, Some(worker), entry);
        if over {
            if let Doing::Send { to, .. } = &what.doing {
                let latency = self.level(actor, *to).1.latency_seconds;
                self.deliver(actor, entry, self.now + latency);
            }
            if let Doing::Sum { .. } = &what.doing {
                self.states[actor].sums -= 1;
            }
            self.complete(actor, entry);
        }
        self.dispatch(node);
    }

    fn note(&mut self, actor: usize, worker: Option<usize>, entry: usize) {
        let who = &self.scene.actors[actor];
        let began = worker.and_then(|w| self.piece_began.get(&(actor, w))).copied();
        let (now, rank) = (self.now, who.rank);
        if let (Some(events), Some(began)) = (&mut self.events, began) {
            let name = self.scene.job.scripts[who.position].entries[entry].name.clone();
            let activity = activity(self.moves[who.position][entry]);
            events.push(Event { rank, worker, activity, name, start_seconds: began, end_seconds: now });
        }
    }

    /// Puts a message on its link.
    fn send(&mut self, actor: usize, entry: usize) {
        let scene = self.scene;
        let Doing::Send { to, bytes, .. } = &scene.job.scripts[scene.actors[actor].position].entries[entry].doing
        else {
            unreachable!("bug: not a send")
        };
        let (number, level) = self.level(actor, *to);
        let peer = self.peer(actor, *to);
        let link = |who: usize, out: bool| match level.links {
            Some(_) => (number, scene.actors[who].seat.node, out),
            None => (number, usize::MAX - who, out),
        };
        let ends = [link(actor, true), link(peer, false)];
        let ready = self.now + level.message_seconds;
        let mut start = ready;
        for end in ends {
            let free = self.links.entry(end).or_insert_with(|| vec![0.0; level.links.unwrap_or(1)]);
            start = start.max(free.iter().copied().fold(f64::INFINITY, f64::min));
        }
        // A sum that is made meanwhile takes its share of the link.
        let slower = if self.states[actor].sums > 0 { 2.0 } else { 1.0 };
        let off = start + slower * *bytes as f64 / level.bandwidth;
        for end in ends {
            let free = self.links.get_mut(&end).expect("bug: no link");
            let first = free.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("bug: no link");
            *first = off;
        }
        self.deliver(actor, entry, off + level.latency_seconds);
        self.queue.push(Reverse((order(off), Happens::Left(actor, entry))));
    }

    /// A message is on its way and arrives at a time.
    fn deliver(&mut self, actor: usize, entry: usize, at: f64) {
        let scene = self.scene;
        let who = scene.actors[actor];
        let what = &scene.job.scripts[who.position].entries[entry];
        let Doing::Send { to, tag, bytes } = &what.doing else { unreachable!("bug: not a send") };
        let peer = self.peer(actor, *to);
        let receive = self.receivers[*to].get(&(who.position, *tag));
        let receive = *receive.expect("bug: a message that nobody receives");
        self.book(peer);
        match Purpose::of(*tag) {
            Purpose::Redistribution => self.states[peer].redistributions += 1,
            _ => self.states[peer].halos += 1,
        }
        self.states[peer].sent_at[receive] = self.now;
        if let Some(times) = self.layer(actor, what.layer) {
            times.sent_bytes += *bytes as f64;
        }
        self.queue.push(Reverse((order(at), Happens::Arrived(peer, receive))));
    }

    fn arrived(&mut self, actor: usize, entry: usize) {
        self.book(actor);
        let scene = self.scene;
        let who = scene.actors[actor];
        let what = &scene.job.scripts[who.position].entries[entry];
        let took = self.now - self.states[actor].sent_at[entry];
        match self.moves[who.position][entry] {
            Some(REDISTRIBUTION) => {
                self.states[actor].redistributions -= 1;
                self.layer(actor, what.layer).into_iter().for_each(|times| times.redistribution += took);
            }
            _ => {
                self.states[actor].halos -= 1;
                self.layer(actor, what.layer).into_iter().for_each(|times| times.halo += took);
            }
        }
        if let Some(events) = &mut self.events {
            let start_seconds = self.now - took;
            let (rank, name) = (who.rank, what.name.clone());
            let activity = activity(self.moves[who.position][entry]);
            events.push(Event { rank, worker: None, activity, name, start_seconds, end_seconds: self.now });
        }
        self.states[actor].arrived[entry] = true;
        if self.states[actor].posted[entry] {
            self.received(actor, entry);
        }
    }

    /// A message is here and wanted.
    fn received(&mut self, actor: usize, entry: usize) {
        let scene = self.scene;
        let position = scene.actors[actor].position;
        let Doing::Receive { from, .. } = &scene.job.scripts[position].entries[entry].doing else {
            unreachable!("bug: not a receive")
        };
        if self.level(actor, *from).1.by_cores {
            self.make_ready(actor, entry);
            self.dispatch(scene.actors[actor].seat.node);
        } else {
            self.complete(actor, entry);
        }
    }

    fn meeting_of(&self, team: usize, group: usize) -> (usize, usize) {
        (team, if self.scene.job.teams[team].global { 0 } else { group })
    }

    /// A member of a team is ready for its sum.
    fn meet(&mut self, actor: usize, entry: usize, key: SumKey) {
        let scene = self.scene;
        let who = scene.actors[actor];
        let number = scene.job.team_of[&(who.position, key)];
        let (team, place) = (&scene.job.teams[number], self.meeting_of(number, who.group));
        let meeting = self.meetings.entry(place).or_insert_with(|| {
            let is_member = |a: &&Actor| team.positions.contains(&a.position) && (team.global || a.group == who.group);
            let expected = scene.actors.iter().filter(is_member).count();
            let (seconds, by_cores) = scene.sum_seconds(number, who.group);
            Meeting { expected, seconds, by_cores, ..Meeting::default() }
        });
        meeting.members.push((actor, entry));
        if meeting.members.len() == meeting.expected {
            self.queue.push(Reverse((order(self.now), Happens::Met(place.0, place.1))));
        }
    }

    fn begin_sum(&mut self, place: (usize, usize)) {
        let scene = self.scene;
        let meeting = self.meetings.get_mut(&place).expect("bug: nobody met");
        meeting.members.sort_unstable();
        let (members, seconds, by_cores) = (meeting.members.clone(), meeting.seconds, meeting.by_cores);
        let free = members.iter().map(|(a, _)| self.states[*a].sums_free).fold(self.now, f64::max);
        meeting.began = self.now;
        for &(member, of) in &members {
            self.book(member);
            self.states[member].sums += 1;
            if by_cores {
                self.make_ready(member, of);
            } else {
                self.states[member].sums_free = free + seconds;
            }
        }
        if by_cores {
            let nodes: BTreeSet<usize> = members.iter().map(|(a, _)| scene.actors[*a].seat.node).collect();
            nodes.into_iter().for_each(|node| self.dispatch(node));
        } else {
            self.queue.push(Reverse((order(free + seconds), Happens::Summed(place.0, place.1))));
        }
    }

    fn summed(&mut self, team: usize, group: usize) {
        let meeting = self.meetings.remove(&(team, group)).expect("bug: a sum that nobody makes");
        for (actor, entry) in meeting.members {
            self.book(actor);
            self.states[actor].sums -= 1;
            let who = self.scene.actors[actor];
            let what = &self.scene.job.scripts[who.position].entries[entry];
            let (took, end_seconds) = (self.now - meeting.began, self.now);
            self.layer(actor, what.layer).into_iter().for_each(|times| times.reduction += took);
            if let Some(events) = &mut self.events {
                let (rank, name, start_seconds) = (who.rank, what.name.clone(), meeting.began);
                let activity = Activity::Reduction;
                events.push(Event { rank, worker: None, activity, name, start_seconds, end_seconds });
            }
            self.complete(actor, entry);
        }
    }

    fn complete(&mut self, actor: usize, entry: usize) {
        let position = self.scene.actors[actor].position;
        for i in 0..self.followers[position][entry].len() {
            let next = self.followers[position][entry][i];
            self.states[actor].pending[next] -= 1;
            if self.states[actor].pending[next] == 0 {
                self.offer(actor, next);
            }
        }
        self.dispatch(self.scene.actors[actor].seat.node);
    }

    fn result(mut self) -> Simulation {
        let scene = self.scene;
        let step_seconds = self.now;
        (0..self.states.len()).for_each(|actor| self.book(actor));
        let busiest = (0..self.states.len())
            .max_by(|&a, &b| {
                let compute = |i: usize| self.states[i].phases.compute;
                compute(a).total_cmp(&compute(b)).then(b.cmp(&a))
            })
            .expect("bug: nobody was simulated");
        let (mut sent_bytes, mut messages, mut busy, mut workers) = (0.0, 0.0, 0.0, 0.0);
        for (actor, state) in scene.actors.iter().zip(&self.states) {
            let times = actor.stands_for as f64;
            let (bytes, count) = scene.sent(actor.position);
            sent_bytes += bytes * times;
            messages += count * times;
            busy += state.phases.compute * actor.threads as f64 * times;
            workers += actor.threads as f64 * times;
        }
        let machine = scene.question.machine;
        let state = &self.states[busiest];
        let estimate = Estimate {
            step_seconds,
            phases: state.phases,
            layers: state.layers.clone(),
            sent_bytes,
            messages,
            memory_bytes: scene.memory_bytes(),
            memory_limit_bytes: scene.seats.iter().map(|seat| machine.memory_bytes(seat)).fold(f64::INFINITY, f64::min),
            efficiency: if step_seconds > 0.0 { busy / workers / step_seconds } else { 1.0 },
            bottleneck: bottleneck(state, scene),
            ranks: scene.question.strategy.ranks,
            simulated_ranks: scene.actors.len(),
            threads: scene.actors[busiest].threads,
        };
        Simulation { estimate, events: self.events.unwrap_or_default() }
    }
}

/// What a phase of [`State::moving`] is called.
fn activity(moves: Option<usize>) -> Activity {
    moves.map_or(Activity::Compute, |phase| [Activity::Halo, Activity::Redistribution, Activity::Reduction][phase])
}

/// By entry: the phase of what moves bytes.
fn moves(script: &Script) -> Vec<Option<usize>> {
    let entries = script.entries.iter().map(|entry| match &entry.doing {
        Doing::Compute { .. } => None,
        Doing::Sum { .. } => Some(REDUCTION),
        Doing::Send { tag, .. } | Doing::Receive { tag, .. } => Some(match Purpose::of(*tag) {
            Purpose::Redistribution => REDISTRIBUTION,
            _ => HALO,
        }),
    });
    entries.collect()
}

/// Pieces of an entry that are told apart.
fn pieces(doing: &Doing, threads: usize) -> u32 {
    match doing {
        Doing::Compute { tiles, .. } => (*tiles).clamp(1, PIECES * threads) as u32,
        _ => 1,
    }
}

impl Scene<'_> {
    /// Bytes and messages that a rank at a position sends, in the job that is asked about, on average.
    fn sent(&self, position: usize) -> (f64, f64) {
        let script = &self.job.scripts[position];
        let (mut bytes, mut messages) = (0.0, 0.0);
        for entry in &script.entries {
            match &entry.doing {
                Doing::Send { bytes: b, .. } => {
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
                        Way::Kept => f64::from(*adds),
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

/// The phase that takes most of the time, with the layer that has most of it.
fn bottleneck(state: &State, scene: &Scene) -> String {
    let (phase, _) = state.phases.named().into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("bug: no phases");
    let of = |times: &LayerTimes| match phase {
        "compute" => times.compute.values().sum(),
        "halo" => times.halo,
        "reduction" => times.reduction,
        "redistribution" => times.redistribution,
        _ => 0.0,
    };
    let most = state.layers.iter().map(|(l, times)| (*l, of(times))).max_by(|a, b| a.1.total_cmp(&b.1));
    match most.filter(|(_, seconds)| *seconds > 0.0) {
        Some((layer, _)) => format!("{phase}, most of it for `{}`", scene.question.network.layers[layer].name),
        None => phase.into(),
    }
}
