//! Scripts: what the simulator needs of a rank's program.
//!
//! A script has an entry for every op that computes or carries an activation to another rank. The many messages of a sum over
//! ranks become one entry: which slices travel between whom does not matter to the time, and there are as many of them as the
//! square of the ranks.
//!
//! Always true
//! - An entry waits only for earlier ones, and only for what it reads or overwrites: that buffers share bytes, and that an op may
//!   have to wait until they are free, is left out.
//! - Ranks name a sum by the buffer that holds it, which all ranks have: no order of arrival is needed to match them.

use crate::cost::{Ask, ask};
use crate::estimate::Activity;
use convoy_kernels::{Pass, Work};
use convoy_net::{LayerId, Network};
use convoy_program::{Action, BufferId, Op, Part, Program, Purpose, Subject, TOLD, What, longest_paths, memory_plan};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The kind of work of an entry, as people tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PassGroup {
    Forward,
    InputGradient,
    WeightGradient,
    Update,
    /// Moving and clearing memory, sums over samples.
    Other,
}

/// A sum over ranks: the buffer that holds it, and which one of those that are called the same.
pub type SumKey = (What, usize);

/// How the parts of a sum come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Slices to their reducers, sums back to all.
    Reduced,
    /// Slices around a ring, and their sums around it again.
    Ring,
    /// Slices to their reducers, who keep the sums.
    Kept,
    /// As the MPI library likes.
    Library,
}

/// What an entry does.
#[derive(Clone, Debug, PartialEq)]
pub enum Doing {
    Compute {
        ask: Ask,
        tiles: usize,
        part: PassGroup,
    },
    Send {
        to: usize,
        tag: u64,
        bytes: usize,
    },
    Receive {
        from: usize,
        tag: u64,
        bytes: usize,
    },
    /// `adds` where this rank has a part of it.
    Sum {
        key: SumKey,
        way: Way,
        bytes: usize,
        element_bytes: usize,
        adds: bool,
    },
}

/// One entry of a script.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub name: String,
    pub layer: Option<LayerId>,
    pub doing: Doing,
    pub after: Vec<usize>,
    /// The program's own estimate.
    pub seconds: f64,
    /// Its longest remaining path: the most urgent is run first.
    pub remaining: f64,
}

/// A rank's program as the simulator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub entries: Vec<Entry>,
    /// Per sum: the ranks it is exchanged with.
    pub peers: BTreeMap<SumKey, BTreeSet<usize>>,
}

fn tensor_of(what: What) -> Option<LayerId> {
    match what {
        What::Tensor(l, _) | What::Gradient(l, _) | What::PartialTensor(l) | What::PartialGradient(l) => Some(l),
        _ => None,
    }
}

fn layer_of(what: What) -> Option<LayerId> {
    match what {
        What::PartialTensor(l) | What::PartialGradient(l) => Some(l),
        What::Tensor(l, _) | What::Gradient(l, _) | What::Parameter(l, _) | What::ParameterGradient(l, _) => Some(l),
        What::State(l, _, _) | What::Bucket(l, _) => Some(l),
        What::Internal(s, _) | What::Partial(s, _) | What::Sum(s, _) => subject_layer(s),
        _ => None,
    }
}

fn subject_layer(subject: Subject) -> Option<LayerId> {
    match subject {
        Subject::Layer(l) | Subject::Update(l, _) => Some(l),
        Subject::Loss => None,
    }
}

impl Script {
    /// The script of a program.
    pub fn of(program: &Program, network: &Network) -> Script {
        let sums = Sums::of(program);
        let tensors = message_tensors(program);
        let mut script = Script { entries: vec![], peers: BTreeMap::new() };
        // A sum stands where its last op stands: by then all that it waits for is written down.
        let mut last: HashMap<usize, usize> = HashMap::new();
        sums.of_op.iter().enumerate().for_each(|(i, sum)| {
            sum.iter().for_each(|s| {
                last.insert(*s, i);
            })
        });
        // By op: its entry, where that is written down already.
        let mut places: Vec<Option<usize>> = Vec::with_capacity(program.ops.len());
        let mut waits: HashMap<usize, Vec<usize>> = HashMap::new();
        for (i, op) in program.ops.iter().enumerate() {
            let sum = sums.of_op[i];
            match (&op.action, sum) {
                (Action::Send { to, .. }, Some(s)) => script.peer(&sums.all[s], to.0),
                (Action::Receive { from, .. }, Some(s)) => script.peer(&sums.all[s], from.0),
                (Action::AllReduce { team, .. }, Some(s)) => {
                    let others = team.iter().filter(|&&rank| rank != program.rank.0);
                    others.for_each(|&rank| script.peer(&sums.all[s], rank));
                }
                _ => {}
            }
            let mut after: Vec<usize> = op.after.iter().filter_map(|before| places[before.0]).collect();
            if let Some(s) = sum {
                let waits = waits.entry(s).or_default();
                waits.append(&mut after);
                if last[&s] != i {
                    places.push(None);
                    continue;
                }
                after = std::mem::take(waits);
            }
            places.push(Some(script.entries.len()));
            let entry = entry(op, program, network, sum.map(|s| &sums.all[s]), &tensors);
            script.entries.push(Entry { after, ..entry });
            if let Some(s) = sum {
                let place = places[i];
                (0..i).filter(|&j| sums.of_op[j] == Some(s)).for_each(|j| places[j] = place);
            }
        }
        for entry in &mut script.entries {
            entry.after.sort_unstable();
            entry.after.dedup();
        }
        script.prioritise();
        script
    }

    /// Longest remaining paths, from the programs' own estimates. A sum counts as what is added up, on whatever rank and however
    /// it is cut: ranks that do the same must do it in the same order. Messages go first as in
    /// programs.
    fn prioritise(&mut self) {
        let seconds: Vec<f64> = self.entries.iter().map(|entry| entry.seconds).collect();
        let goes_first =
            |i: usize| matches!(self.entries[i].doing, Doing::Send { tag, .. } if Purpose::of(tag).is_urgent());
        let paths = longest_paths(&seconds, |i| self.entries[i].after.iter().copied(), goes_first);
        self.entries.iter_mut().zip(paths).for_each(|(entry, path)| entry.remaining = path);
    }

    /// Leaves out messages to other groups of ranks that are no sums: running statistics, which the first group tells the others.
    pub fn forget_told(&mut self, period: usize) {
        for entry in &mut self.entries {
            let is_told = |peer: usize, tag: u64| peer >= period && tag & TOLD == TOLD;
            if let Doing::Send { to: peer, tag, .. } | Doing::Receive { from: peer, tag, .. } = entry.doing
                && is_told(peer, tag)
            {
                let ask = Ask { work: Work { flops: 0.0, bytes: 0.0 }, family: String::new(), size: [0.0; 4] };
                entry.doing = Doing::Compute { ask, tiles: 1, part: PassGroup::Other };
            }
        }
    }

    fn peer(&mut self, sum: &SumOver, rank: usize) {
        self.peers.entry(sum.key).or_default().insert(rank);
    }
}

fn entry(
    op: &Op,
    program: &Program,
    network: &Network,
    sum: Option<&SumOver>,
    tensors: &HashMap<BufferId, LayerId>,
) -> Entry {
    let what = |part: &Part| tensor_of(program.buffers[part.buffer.0].what).or(tensors.get(&part.buffer).copied());
    let name = program.describe(op, network);
    let (name, layer, doing) = match (&op.action, sum) {
        (_, Some(s)) => {
            let layer = layer_of(s.key.0);
            let of = layer.map_or("the loss".into(), |l| network.layers[l.0].name.clone());
            let doing =
                Doing::Sum { key: s.key, way: s.way, bytes: s.bytes, element_bytes: s.element_bytes, adds: s.adds };
            (format!("sum over ranks for {of}"), layer, doing)
        }
        (Action::Send { from, to, tag }, _) => {
            let doing = Doing::Send { to: to.0, tag: *tag, bytes: from.bytes.len() };
            (name, what(from), doing)
        }
        (Action::Receive { into, from, tag }, _) => {
            (name, what(into), Doing::Receive { from: from.0, tag: *tag, bytes: into.bytes.len() })
        }
        (action, _) => {
            let layer = match action {
                Action::Compute { subject, .. } => subject_layer(*subject),
                Action::Update { layer, .. } => Some(*layer),
                _ => op.accesses.iter().find_map(|a| layer_of(program.buffers[a.buffer.0].what)),
            };
            (name, layer, Doing::Compute { ask: ask(op, program, network), tiles: op.tiles, part: part(action) })
        }
    };
    let seconds = match &doing {
        Doing::Sum { bytes, .. } => *bytes as f64 / 12e9 + 1e-6,
        _ => op.seconds,
    };
    Entry { name, layer, doing, after: vec![], seconds, remaining: seconds }
}

/// What an op is done for.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    pub name: String,
    pub layer: Option<LayerId>,
    pub activity: Activity,
    pub part: PassGroup,
}

/// By op of a program: what it is done for, as a simulation would say.
pub fn done(program: &Program, network: &Network) -> Vec<Done> {
    let (tensors, sums) = (message_tensors(program), Sums::of(program));
    let ops = program.ops.iter().enumerate().map(|(i, op)| {
        let Entry { layer, .. } = entry(op, program, network, sums.of_op[i].map(|s| &sums.all[s]), &tensors);
        let activity = match &op.action {
            Action::Send { tag, .. } | Action::Receive { tag, .. } => match Purpose::of(*tag) {
                Purpose::Halo => Activity::Halo,
                Purpose::Redistribution => Activity::Redistribution,
                _ => Activity::Reduction,
            },
            Action::Combine { .. } | Action::AllReduce { .. } => Activity::Reduction,
            _ => Activity::Compute,
        };
        let mut name = program.describe(op, network);
        if let (Some(l), true) = (layer, activity != Activity::Compute) {
            name += &format!(" for {}", network.layers[l.0].name);
        }
        Done { name, layer, activity, part: part(&op.action) }
    });
    ops.collect()
}

fn part(action: &Action) -> PassGroup {
    match action {
        Action::Compute { subject: Subject::Layer(_), stage, .. } => match stage.pass {
            Pass::InputGradient(_) | Pass::GradientStatistics | Pass::GradientCoefficients => PassGroup::InputGradient,
            Pass::WeightGradient(_) => PassGroup::WeightGradient,
            _ => PassGroup::Forward,
        },
        Action::Update { .. } => PassGroup::Update,
        _ => PassGroup::Other,
    }
}

/// The tensor that a message was taken from or goes to.
fn message_tensors(program: &Program) -> HashMap<BufferId, LayerId> {
    let mut tensors = HashMap::new();
    for op in &program.ops {
        if let Action::Copy { source, target, .. } = &op.action {
            for (message, other) in [(source, target), (target, source)] {
                let what = program.buffers[other.0].what;
                if let (What::Message, Some(tensor)) = (program.buffers[message.0].what, tensor_of(what)) {
                    tensors.insert(*message, tensor);
                }
            }
        }
    }
    tensors
}

/// A sum over ranks in a program.
struct SumOver {
    key: SumKey,
    way: Way,
    bytes: usize,
    element_bytes: usize,
    /// Whether this rank has a part of it: it then sends more than its own slice of the result.
    adds: bool,
}

/// All sums over ranks in a program, and which ops belong to which.
struct Sums {
    all: Vec<SumOver>,
    of_op: Vec<Option<usize>>,
}

impl Sums {
    fn of(program: &Program) -> Sums {
        // Other ranks' parts are received beside the sum; combining says which sum they belong to.
        let mut beside: HashMap<BufferId, (BufferId, usize)> = HashMap::new();
        let mut own = HashMap::new();
        let mut turns: HashMap<BufferId, usize> = HashMap::new();
        for op in &program.ops {
            // What one rank makes of nothing or of its own is no sum.
            if let Action::Combine { parts, into, number } = &op.action
                && parts.len() > 1
            {
                own.insert(into.buffer, into.bytes.clone());
                *turns.entry(into.buffer).or_insert(0) += 1;
                for part in parts.iter().flatten() {
                    beside.insert(part.buffer, (into.buffer, number.bytes()));
                }
            }
        }
        let mut sums = Sums { all: vec![], of_op: vec![] };
        let mut numbers: HashMap<BufferId, usize> = HashMap::new();
        let mut counts: HashMap<What, usize> = HashMap::new();
        for op in &program.ops {
            let is_sum = |tag: u64| Purpose::of(tag) == Purpose::Reduction;
            let buffer = match &op.action {
                Action::Send { from: part, tag, .. } | Action::Receive { into: part, tag, .. } if is_sum(*tag) => {
                    Some(part.buffer)
                }
                Action::Combine { into: part, parts, .. } if parts.len() > 1 => Some(part.buffer),
                Action::AllReduce { into, .. } => Some(into.buffer),
                _ => None,
            };
            let number = buffer.map(|buffer| {
                let home = beside.get(&buffer).map_or(buffer, |(home, _)| *home);
                let bytes = beside.get(&home).map_or(4, |(_, bytes)| *bytes);
                *numbers.entry(home).or_insert_with(|| {
                    // What is kept by its owner is called as what everyone has a part of.
                    let (what, way, whole) = match program.buffers[home.0].what {
                        What::Pushed(l, p) => {
                            let bucket = What::Bucket(l, p);
                            let whole = program.buffers.iter().find(|b| b.what == bucket).map(|b| b.bytes);
                            (bucket, Way::Kept, whole)
                        }
                        what if matches!(op.action, Action::AllReduce { .. }) => (what, Way::Library, None),
                        what if turns.get(&home).is_some_and(|turns| *turns > 1) => (what, Way::Ring, None),
                        what => (what, Way::Reduced, None),
                    };
                    let count = counts.entry(what).or_insert(0);
                    let key = (what, *count);
                    *count += 1;
                    sums.all.push(SumOver {
                        key,
                        way,
                        bytes: whole.unwrap_or(program.buffers[home.0].bytes),
                        element_bytes: bytes,
                        adds: false,
                    });
                    sums.all.len() - 1
                })
            });
            if let (Some(number), Action::Send { from, .. }) = (number, &op.action) {
                sums.all[number].adds |= own.get(&from.buffer) != Some(&from.bytes);
            }
            sums.of_op.push(number);
        }
        sums
    }
}

/// Bytes that an engine of this program holds, but for its workers' scratch, if each of its sums over ranks ran over `ranks(key)`
/// ranks rather than over those it was lowered for. The program is as [`lower_ops`](convoy_program::lower_ops) makes it.
pub fn memory_bytes(mut program: Program, ranks: impl Fn(&SumKey) -> usize) -> usize {
    let sums = Sums::of(&program);
    for (i, number) in sums.of_op.iter().enumerate() {
        let (Some(number), Action::Combine { parts, into, .. }) = (number, program.ops[i].action.clone()) else {
            continue;
        };
        let sum = &sums.all[*number];
        let ranks = ranks(&sum.key);
        // The first rank's slice is the largest.
        let slice = (sum.bytes / sum.element_bytes).div_ceil(ranks) * sum.element_bytes;
        for part in parts.into_iter().flatten().filter(|part| part.buffer != into.buffer) {
            program.buffers[part.buffer.0].bytes = slice * (ranks - 1);
        }
    }
    program.kept_bytes() + memory_plan(&program).step_bytes
}
