//! The play of a simulation: what happens in a step, event by event.
//!
//! Workers see to messages, then take tiles of the most urgent ready op, as the engine's do; ranks of a node share its cores; messages take their turn
//! on links; sums over ranks run in the background, one after the other. What a rank's workers do not compute is booked to what
//! they wait for.
//!
//! Always true
//! - Events at equal times are taken in an order that follows from ranks and ops alone: the same question has the same answer.
//!
//! Left out: that messages between nodes, too, are seen to only between tiles; that sums slow halos down more than by sharing a link fairly.

use crate::cost::roofline_seconds;
use crate::estimate::{Activity, Estimate, Event, LayerTimes, Phases};
use crate::machine::Level;
use crate::scene::{Actor, Scene};
use crate::script::{Doing, Script, SumKey};
use crate::simulate::Simulation;
use convoy_net::LayerId;
use convoy_program::Purpose;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

/// Pieces of an op that are told apart on each worker.
const PIECES: usize = 32;

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
pub struct Play<'a> {
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
    pub fn new(scene: &'a Scene<'a>, keep_events: bool) -> Play<'a> {
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

    pub fn run(&mut self) {
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
    fn level(&self, actor: usize, position: usize) -> (usize, &'a Level) {
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

    pub fn result(mut self) -> Simulation {
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
