//! The program: ops, buffers, dependencies.
//!
//! Always true after [`lower`](crate::lower)
//! - Ops stand in an order in which they may be run one after the other; each depends only on earlier ones.
//! - Two ops that touch the same bytes, one of them writing, are ordered by dependencies ([`Program::verify`]).

use crate::MemoryPlan;

use convoy_kernels::fast::{self, Packing};
use convoy_kernels::{Geometry, Layout, Mode, Operand, Stage, Update};
use convoy_net::{Axis, LayerId, Network, Parameter, Region};
use convoy_split::Rank;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An op's place in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub usize);

/// A buffer's place in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// Why a message travels: its tag's first four bits, as `comm` counts traffic by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Sums over ranks.
    Reduction,
    /// Margins of a tensor that is where it is needed, or their gradients.
    Halo,
    /// A tensor, or its gradient, to ranks that need other samples or channels than they own.
    Redistribution,
}

impl Purpose {
    /// What a tag of this purpose starts with.
    pub const fn tag(self) -> u64 {
        match self {
            Purpose::Reduction => 1 << 60,
            Purpose::Halo => 2 << 60,
            Purpose::Redistribution => 4 << 60,
        }
    }

    /// Whether the receiver needs it for the next layer, and not only at the end of the step.
    pub fn is_urgent(self) -> bool {
        self != Purpose::Reduction
    }

    /// What a program's tag says.
    pub fn of(tag: u64) -> Purpose {
        let all = [Purpose::Reduction, Purpose::Halo, Purpose::Redistribution];
        all.into_iter().find(|p| p.tag() >> 60 == tag >> 60).expect("bug: a message without a purpose")
    }
}

/// The layer whose tensor, sum or parameter a program's tag says that a message carries; of a bucket it is the first one's. Below
/// it are a message's number and what tells holdings and parameters apart, above it which way it goes.
pub fn layer_of(tag: u64) -> LayerId {
    LayerId((tag >> 36 & 0xf_ffff) as usize)
}

/// Whose computation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    Layer(LayerId),
    Loss,
    /// The optimizer's step of a layer's parameter.
    Update(LayerId, usize),
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// A layer's output on this rank, with its margins; number 0 is the owner's, others are gathered for consumers.
    Tensor(LayerId, usize),
    /// The gradient of the same.
    Gradient(LayerId, usize),
    /// This rank's part of sums that several ranks compute together, before they are added up; and the gradient of them all.
    PartialTensor(LayerId),
    PartialGradient(LayerId),
    Parameter(LayerId, usize),
    ParameterGradient(LayerId, usize),
    /// Gradients of several parameters side by side, called by the first.
    Bucket(LayerId, usize),
    /// What the optimizer remembers: layer, parameter, number.
    State(LayerId, usize, usize),
    /// Of the parameters of a bucket, called by its first, the slice that this rank keeps; what the optimizer remembers of it;
    /// and the gradient that others pushed.
    Shard(LayerId, usize),
    ShardState(LayerId, usize, usize),
    Pushed(LayerId, usize),
    /// All parameters of a bucket, pulled for a pass (0 forward, 1 backward); and one of them.
    Pull(LayerId, usize, usize),
    Pulled(LayerId, usize, usize),
    Internal(Subject, usize),
    Partial(Subject, usize),
    Sum(Subject, usize),
    Target,
    /// A region on its way to or from another rank.
    Message,
    /// Other ranks' parts of a sum.
    Parts,
    /// Nothing: ops that must run one after the other write it.
    Turn,
}

/// How long a buffer's content matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// From step to step, shared by all programs of a rank.
    Kept,
    /// Within a step; shares its bytes with others.
    Step,
}

/// A piece of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    pub what: What,
    pub bytes: usize,
    pub home: Home,
    /// How a tensor lies in it.
    pub layout: Option<Layout>,
    /// Where it lies inside another one, whose bytes it shares: that buffer and the first byte. Ops touch the other one.
    pub within: Option<(BufferId, usize)>,
}

/// What kind of numbers is summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    Single,
    Double,
}

impl Number {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Number::Single => 4,
            Number::Double => 8,
        }
    }
}

/// A range of bytes of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    pub buffer: BufferId,
    pub bytes: Range<usize>,
}

/// What an op does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The batch's images, a dense region, into a tensor.
    Load {
        target: BufferId,
        region: Region,
    },
    /// The batch's targets.
    LoadTarget {
        target: BufferId,
    },
    /// One stage of a layer or of the loss.
    Compute {
        subject: Subject,
        geometry: Arc<Geometry>,
        stage: Stage,
        operands: Vec<(Operand, BufferId)>,
    },
    /// One stage of the optimizer's step of a parameter of `len` floats.
    Update {
        layer: LayerId,
        parameter: usize,
        update: Update,
        len: usize,
        stage: Stage,
        operands: Vec<(Operand, BufferId)>,
    },
    /// Partial sums of this rank's samples into one.
    Fold {
        partial: BufferId,
        sum: BufferId,
        samples: Range<usize>,
        batch: usize,
        leaves: usize,
        strips: usize,
    },
    /// Zeros everywhere outside `keep`.
    Clear {
        target: BufferId,
        keep: Region,
    },
    /// A region from one tensor to another, moved by `shift`; added where it arrives if `add`.
    Copy {
        source: BufferId,
        target: BufferId,
        region: Region,
        shift: [isize; 5],
        add: bool,
    },
    Send {
        from: Part,
        to: Rank,
        tag: u64,
    },
    Receive {
        into: Part,
        from: Rank,
        tag: u64,
    },
    /// Ranks' parts of a sum, combined in tree order; `None` where a rank has no samples.
    Combine {
        parts: Vec<Option<Part>>,
        into: Part,
        number: Number,
    },
    /// Parts of the ranks of a team into their sum, by the library that carries messages.
    AllReduce {
        from: Part,
        into: Part,
        team: Vec<usize>,
        number: Number,
        tag: u64,
        turn: BufferId,
    },
}

/// A region of a buffer that an op touches. Buffers without a layout are flat: bytes along the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub buffer: BufferId,
    pub region: Region,
    pub writes: bool,
}

/// Bytes that a tile of an op that moves memory touches, about: so many take some microseconds, taking a tile about one.
pub const TILE_BYTES: usize = 1 << 16;

/// One entry of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    pub action: Action,
    pub accesses: Vec<Access>,
    /// Ops that must be finished before.
    pub after: Vec<OpId>,
    /// Pieces that workers take.
    pub tiles: usize,
    /// Floats each worker needs.
    pub scratch: usize,
    /// Estimated seconds on one core: only the order of ready ops depends on it.
    pub seconds: f64,
    /// Estimated seconds from its start to the end of the step along the longest path.
    pub remaining: f64,
}

impl Op {
    /// Whether it talks to other ranks.
    pub fn communicates(&self) -> bool {
        matches!(self.action, Action::Send { .. } | Action::Receive { .. } | Action::AllReduce { .. })
    }
}

/// Parameters that lie side by side, divided over ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Layer, number and first float of each.
    pub members: Vec<(LayerId, usize, usize)>,
    /// The floats that this rank keeps.
    pub own: Range<usize>,
}

/// Where a rank keeps what it has of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptAt {
    pub parameter: What,
    /// Where the parameter's first float would be.
    pub first: isize,
}

/// All that one rank does in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub rank: Rank,
    pub ranks: usize,
    pub batch: usize,
    pub mode: Mode,
    pub buffers: Vec<Buffer>,
    pub ops: Vec<Op>,
    pub memory: MemoryPlan,
    /// Parameters of which this rank keeps a slice.
    pub shards: Vec<Shard>,
    /// Per layer that computes: where it works on this rank.
    pub geometries: Vec<Option<Arc<Geometry>>>,
    /// The region of the batch that this rank loads.
    pub images: Region,
    /// The region of the output that this rank owns: its targets, its part of the result.
    pub owned: Region,
    /// Floats of targets for `owned`.
    pub targets: usize,
    /// The loss's sums over the global batch, and the network's output.
    pub measured: BufferId,
    pub output: BufferId,
}

impl Program {
    /// Bytes of the buffers that stay from step to step.
    pub fn kept_bytes(&self) -> usize {
        self.buffers.iter().filter(|b| b.home == Home::Kept).map(|b| b.bytes).sum()
    }

    /// Floats of scratch that each worker needs.
    pub fn scratch(&self) -> usize {
        self.ops.iter().map(|op| op.scratch).max().unwrap_or(0)
    }

    /// Bytes this rank sends in a step.
    pub fn sent_bytes(&self) -> usize {
        self.sends().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes and messages of one purpose that this rank sends in a step.
    pub fn sent(&self, purpose: Purpose) -> (usize, usize) {
        let sends = self.sends().filter(|(tag, _)| Purpose::of(*tag) == purpose);
        sends.fold((0, 0), |(bytes, messages), (_, len)| (bytes + len, messages + 1))
    }

    /// Tag and bytes of all that this rank hands over to be carried. What a library sends for a sum is its own business: the part counts.
    fn sends(&self) -> impl Iterator<Item = (u64, usize)> {
        self.ops.iter().filter_map(|op| match &op.action {
            Action::Send { from, tag, .. } | Action::AllReduce { from, tag, .. } => Some((*tag, from.bytes.len())),
            _ => None,
        })
    }

    /// Where each element of this rank's share of a layer's parameter lies in kernel order.
    pub fn packing(&self, network: &Network, layer: LayerId, number: usize) -> Packing {
        let g = self.geometries[layer.0].as_ref().expect("bug: parameters of a layer that computes nothing");
        match g.region.size(Axis::Channel) {
            0 => Packing { len: 0, places: vec![] },
            _ => fast::twin(&network.layers[layer.0].kind).packing(number, g),
        }
    }

    /// The part of a layer's parameter that this rank has: a range along each axis of its shape in files.
    pub fn share(&self, layer: LayerId, parameter: &Parameter) -> Vec<Range<usize>> {
        let g = self.geometries[layer.0].as_ref().expect("bug: parameters of a layer that computes nothing");
        let range = |region: &Region| {
            let (start, end) = region.range(Axis::Channel);
            start as usize..end as usize
        };
        let input = &g.inputs[0];
        let output = (range(&g.region), g.output.shape.channels());
        parameter.share(output, (range(&input.layout.stored), input.shape.channels()))
    }

    /// Every op that an op must wait for, directly or not, as bits.
    pub(crate) fn ancestors(&self) -> Vec<Bits> {
        let mut all: Vec<Bits> = Vec::with_capacity(self.ops.len());
        for op in &self.ops {
            let mut bits = Bits::new(self.ops.len());
            for before in &op.after {
                bits.union(&all[before.0]);
                bits.set(before.0);
            }
            all.push(bits);
        }
        all
    }

    /// Checks what always holds of a program; says what does not.
    pub fn verify(&self) -> Result<(), String> {
        for (i, op) in self.ops.iter().enumerate() {
            if let Some(late) = op.after.iter().find(|before| before.0 >= i) {
                return Err(format!("op {i} waits for op {}, which is not earlier", late.0));
            }
            for access in &op.accesses {
                let buffer = self.buffers.get(access.buffer.0).ok_or(format!("op {i} touches no buffer"))?;
                let all = whole(buffer);
                if !all.contains(&access.region) {
                    return Err(format!("op {i} touches {} of {:?}, which has {all}", access.region, buffer.what));
                }
            }
        }
        let ancestors = self.ancestors();
        let mut users: Vec<Vec<(usize, Access)>> = vec![vec![]; self.buffers.len()];
        for (i, op) in self.ops.iter().enumerate() {
            for access in &op.accesses {
                for (j, other) in &users[access.buffer.0] {
                    let conflict =
                        (access.writes || other.writes) && !access.region.intersect(&other.region).is_empty();
                    if conflict && *j != i && !ancestors[i].get(*j) {
                        let what = self.buffers[access.buffer.0].what;
                        return Err(format!("ops {j} and {i} both touch {what:?} and are not ordered"));
                    }
                }
                users[access.buffer.0].push((i, *access));
            }
        }
        if let Some(i) = (0..self.ops.len())
            .find(|&i| self.ops[i].after.iter().any(|b| self.ops[b.0].remaining < self.ops[i].remaining))
        {
            return Err(format!("op {i} has a longer remaining path than an op it waits for"));
        }
        self.memory.verify(self)
    }

    /// The program as text, an op a line: for people and for golden tests.
    pub fn text(&self, network: &Network) -> String {
        let mut text = format!("{} of {}, batch {}\n", self.rank, self.ranks, self.batch);
        for (i, op) in self.ops.iter().enumerate() {
            let after: Vec<String> = op.after.iter().map(|o| o.0.to_string()).collect();
            let line =
                format!("{i:4}  {:50} tiles {:3}  after {}", self.describe(op, network), op.tiles, after.join(" "));
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// What an op does, in a few words.
    pub fn describe(&self, op: &Op, network: &Network) -> String {
        match &op.action {
            Action::Compute { subject, stage, .. } => {
                let name = match subject {
                    Subject::Layer(l) => network.layers[l.0].name.clone(),
                    Subject::Loss => "loss".into(),
                    Subject::Update(l, _) => network.layers[l.0].name.clone(),
                };
                format!("{name} {:?}", stage.pass)
            }
            Action::Update { layer, parameter, stage, .. } => {
                format!("{} parameter {parameter} {:?}", network.layers[layer.0].name, stage.pass)
            }
            Action::Load { region, .. } => format!("load images {region}"),
            Action::LoadTarget { .. } => "load targets".into(),
            Action::Fold { strips, samples, .. } => format!("fold {} samples x {strips} strips", samples.len()),
            Action::Clear { keep, .. } => format!("clear outside {keep}"),
            Action::Copy { region, add, .. } => format!("{} {region}", if *add { "add" } else { "copy" }),
            Action::Send { from, to, .. } => format!("send {} bytes to {to}", from.bytes.len()),
            Action::Receive { into, from, .. } => format!("receive {} bytes from {from}", into.bytes.len()),
            Action::Combine { parts, into, .. } => {
                format!("combine {} parts of {} bytes", parts.len(), into.bytes.len())
            }
            Action::AllReduce { from, team, .. } => {
                format!("sum {} bytes over {} ranks by the MPI library", from.bytes.len(), team.len())
            }
        }
    }
}

/// All of a buffer as a region.
pub(crate) fn whole(buffer: &Buffer) -> Region {
    match &buffer.layout {
        Some(layout) => layout.stored,
        None => Region::flat(buffer.bytes),
    }
}

/// A set of small numbers.
#[derive(Clone, Debug)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub fn new(len: usize) -> Bits {
        Bits(vec![0; len.div_ceil(64)])
    }
    pub fn set(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }
    pub fn get(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }
    pub fn union(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Subject::Layer(l) => write!(f, "layer {}", l.0),
            Subject::Loss => write!(f, "loss"),
            Subject::Update(l, p) => write!(f, "update of parameter {p} of layer {}", l.0),
        }
    }
}
