//! Lowering: from a network and a strategy to what one rank does in a step.
//!
//! Ops are written down in an order in which they could run one after the other: every layer forward (fill its inputs'
//! margins, compute), the loss, every layer backward (complete the output's gradient, compute, sum over ranks, update). What
//! may run side by side is found afterwards, from what the ops touch.

use crate::ahead::{STATISTICS, norms, rectified};
use crate::bucket::Bucket;
use crate::depend::depend;
use crate::gather::Cut;
use crate::holding::{Holding, holdings};
use crate::home::ParameterHome;
use crate::memory::MemoryPlan;
use crate::norm::{NormOver, makes_statistics};
use crate::parts::Parts;
use crate::prioritise::prioritise;
use crate::program::*;
use crate::reduce::{Reduction, SumOrder};
use convoy_kernels::fast::{self, Fast};
use convoy_kernels::{Geometry, Layout, Make, Mode, Operand, Pass, Stage, Tensor, Update, Winograd, Work};
use convoy_net::{AXES, Axis, Error, LayerId, Network, Region, Shape};
use convoy_split::{Exchange, Rank, Strategy, reached};
use std::collections::HashMap;
use std::sync::Arc;

/// More internal operands than any layer has.
const INTERNALS: usize = 64;

/// What a program is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The global batch.
    pub batch: usize,
    pub mode: Mode,
    /// Into how many groups of samples sums over the batch are cut.
    pub leaves: usize,
    /// Which fast algorithm 3x3 convolutions may use.
    pub winograd: Winograd,
    /// How parameters are updated, in training.
    pub update: Update,
    pub division: Division,
}

impl Options {
    /// A training step by plain SGD, as benchmarks and predictions take it where nobody says otherwise.
    pub fn plain(batch: usize) -> Options {
        Options {
            batch,
            mode: Mode::Train,
            leaves: 8,
            winograd: Winograd::Four,
            update: Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 },
            division: Division::default(),
        }
    }
}

/// What ranks do each for itself or together, besides computing layers as the strategy says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Division {
    pub norm: NormOver,
    pub home: ParameterHome,
    /// Of gradients that every rank gets; those of sharded parameters are always summed by the tree.
    pub sums: SumOrder,
    pub halos: Halos,
}

/// What a rank does while the halo of a layer is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Halos {
    /// It computes what needs none of it.
    #[default]
    Overlapped,
    /// Nothing of that layer: for comparison.
    Waited,
}

/// The program of one rank. The network must be verified and the strategy must fit it.
pub fn lower(network: &Network, strategy: &Strategy, rank: Rank, options: &Options) -> Result<Program, Error> {
    let mut program = lower_ops(network, strategy, rank, options)?;
    plan_memory(&mut program);
    debug_assert_eq!(program.verify(), Ok(()), "bug: after planning memory");
    prioritise(&mut program.ops);
    debug_assert_eq!(program.verify(), Ok(()), "bug: after priorities");
    Ok(program)
}

/// The same without memory and priorities: its ops wait for what they read or overwrite, and for nothing else.
pub fn lower_ops(network: &Network, strategy: &Strategy, rank: Rank, options: &Options) -> Result<Program, Error> {
    let shapes = network.shapes(options.batch)?;
    let mut builder = Builder::new(network, strategy, rank, *options, &shapes);
    builder.place();
    builder.forward();
    builder.loss();
    if options.mode == Mode::Train {
        builder.backward();
    }
    Ok(builder.finish())
}

/// Writes ops down. What is not about this rank is equal on all ranks.
pub(crate) struct Builder<'a> {
    pub strategy: &'a Strategy,
    pub rank: Rank,
    pub buffers: Vec<Buffer>,
    pub network: &'a Network,
    pub shapes: &'a [Shape],
    pub options: Options,
    ops: Vec<Op>,
    /// By layer: what ranks have of it.
    pub parts: Vec<Parts>,
    /// By layer: the forms in which ranks have its output.
    holdings: Vec<Vec<Holding>>,
    /// By layer: whether consumers of its output gather gradients, rather than send them back.
    pub gathered: Vec<bool>,
    /// By layer: whether its output's gradient is wanted.
    pub wants_gradient: Vec<bool>,
    /// By layer: the batch norm that takes sums of its output, if this rank has the same part of both.
    pub norms: Vec<Option<LayerId>>,
    /// By layer: the ReLU that it applies itself. What would be before exists nowhere.
    rectified: Vec<Option<LayerId>>,
    pub geometries: Vec<Option<Arc<Geometry>>>,
    /// Gradients that are summed over ranks together.
    pub buckets: Vec<Bucket>,
    /// Those that are complete, with their sums as far as they are begun.
    pub complete: Vec<(Bucket, Option<Reduction>)>,
    pub found: HashMap<What, BufferId>,
    /// Gradients that hold something already: the next consumer adds.
    begun: HashMap<What, ()>,
    /// The piece of a layer that is being written down: each has internals of its own.
    piece: usize,
    images: Region,
}

impl<'a> Builder<'a> {
    fn new(
        network: &'a Network,
        strategy: &'a Strategy,
        rank: Rank,
        options: Options,
        shapes: &'a [Shape],
    ) -> Builder<'a> {
        let parts = Parts::all(network, shapes, strategy);
        let layers = (0..network.layers.len()).map(LayerId);
        let holdings: Vec<_> = layers.map(|l| holdings(network, shapes, &parts, l)).collect();
        let wanted = network.wanted_gradients(shapes).into_iter();
        let wants_gradient: Vec<bool> = wanted.map(|wanted| wanted && options.mode == Mode::Train).collect();
        let cut = Cut { network, shapes, parts: &parts };
        let gathers = |l: usize| wants_gradient[l] && cut.gathers(LayerId(l), &holdings[l][0]);
        let gathered = (0..network.layers.len()).map(gathers).collect();
        let norms = norms(network, &parts, rank, &options);
        let rectified = rectified(network, &parts);
        Builder {
            strategy,
            rank,
            buffers: vec![],
            network,
            options,
            shapes,
            ops: vec![],
            parts,
            holdings,
            gathered,
            wants_gradient,
            norms,
            rectified,
            geometries: vec![None; network.layers.len()],
            buckets: vec![],
            complete: vec![],
            found: HashMap::new(),
            begun: HashMap::new(),
            piece: 0,
            images: Region::EMPTY,
        }
    }

    fn own(&self, layer: LayerId) -> Region {
        self.parts[layer.0].owned[self.rank.0]
    }

    /// What this rank computes of a layer's output.
    fn computed(&self, layer: LayerId) -> Region {
        self.parts[layer.0].computed[self.rank.0]
    }

    /// Whether a layer is none of this rank's business: it has no part of it, and no share of its parameters.
    pub fn is_idle(&self, layer: LayerId) -> bool {
        self.computed(layer).size(Axis::Channel) == 0
    }

    /// What this rank's computation of a layer writes, and the gradient it reads.
    fn written(&self, l: LayerId) -> (What, What) {
        match self.parts[l.0].are_partial() {
            true => (What::PartialTensor(l), What::PartialGradient(l)),
            false => (What::Tensor(l, 0), What::Gradient(l, 0)),
        }
    }

    /// A buffer of a step, or the one there is for `what`.
    pub fn buffer(&mut self, what: What, bytes: usize) -> BufferId {
        self.buffer_with(what, bytes, Home::Step, None)
    }

    pub fn buffer_with(&mut self, what: What, bytes: usize, home: Home, layout: Option<Layout>) -> BufferId {
        if let Some(&found) = self.found.get(&what) {
            debug_assert_eq!(self.buffers[found.0].bytes, bytes, "bug: {what:?} has two sizes");
            return found;
        }
        let id = BufferId(self.buffers.len());
        self.buffers.push(Buffer { what, bytes, home, layout, within: None });
        // Messages and parts of sums are nobody's in particular: each is new.
        if !matches!(what, What::Message | What::Parts) {
            self.found.insert(what, id);
        }
        id
    }

    fn tensor_buffer(&mut self, what: What, layout: &Layout) -> BufferId {
        self.buffer_with(what, layout.len * 4, Home::Step, Some(layout.clone()))
    }

    /// Writes an op down; what it touches follows from what it does.
    pub fn push(&mut self, action: Action) {
        let accesses = self.accesses(&action);
        let (tiles, scratch, seconds) = match &action {
            Action::Compute { stage, .. } | Action::Update { stage, .. } => {
                (stage.tiles, stage.scratch, seconds(&stage.work))
            }
            Action::Copy { region, .. } | Action::Load { region, .. } => {
                (region.size(Axis::Sample), 0, memory_seconds(region.len() * 8))
            }
            Action::Clear { target, keep } => {
                let all = whole(&self.buffers[target.0]);
                (all.size(Axis::Sample), 0, memory_seconds((all.len() - all.intersect(keep).len()) * 4))
            }
            Action::Fold { partial, .. } => (1, 0, memory_seconds(self.buffers[partial.0].bytes)),
            Action::Combine { into, parts, .. } => {
                (into.bytes.len().div_ceil(1 << 16), 0, memory_seconds(into.bytes.len() * parts.len()))
            }
            Action::LoadTarget { target } => (1, 0, memory_seconds(self.buffers[target.0].bytes)),
            Action::Send { .. } | Action::Receive { .. } => (1, 0, 1e-6),
        };
        if tiles > 0 {
            self.ops.push(Op { action, accesses, after: vec![], tiles, scratch, seconds, remaining: 0.0 });
        }
    }

    /// Lays out tensors and says where each layer works.
    fn place(&mut self) {
        let layers = (0..self.network.layers.len()).map(LayerId);
        layers.clone().for_each(|l| self.make_holdings(l));
        for l in layers.clone() {
            if let Some(relu) = self.rectified[l.0] {
                self.found.insert(What::Tensor(l, 0), self.found[&What::Tensor(relu, 0)]);
            }
        }
        for l in layers {
            if !self.network.layers[l.0].inputs.is_empty() {
                self.geometries[l.0] = Some(Arc::new(self.geometry(l)));
            }
        }
        if self.options.mode == Mode::Train || self.is_sharded() {
            self.buckets = self.plan_buckets();
        }
        if self.options.mode == Mode::Train {
            self.lay_out_buckets();
        }
        if self.is_sharded() {
            self.lay_out_shards();
        }
    }

    fn forward(&mut self) {
        for l in (0..self.network.layers.len()).map(LayerId) {
            if self.network.layers[l.0].inputs.is_empty() {
                let stored = self.layout(What::Tensor(l, 0)).stored;
                self.images = stored.intersect(&Region::whole(self.shapes[l.0]));
                if !self.images.is_empty() {
                    self.push(Action::Load { target: self.found[&What::Tensor(l, 0)], region: self.images });
                }
            } else {
                if self.network.layers[l.0].inputs.iter().any(|input| self.rectified[input.0] == Some(l)) {
                    self.fill(l);
                    continue;
                }
                self.pull(l, 0);
                let geometry = self.geometries[l.0].clone().expect("bug: no geometry");
                if !geometry.region.is_empty() {
                    self.layer_forward(l, &geometry);
                } else {
                    self.stand_in(l, false);
                }
                self.add_up(l);
            }
            if self.rectified[l.0].is_none() {
                self.fill(l);
            }
        }
    }

    /// A layer's passes, in pieces where it reads what others send. What makes sums over samples, or keeps something for the
    /// way back, is not cut.
    fn layer_forward(&mut self, l: LayerId, geometry: &Arc<Geometry>) {
        let twin = fast::twin(&self.network.layers[l.0].kind);
        let stages = twin.forward(geometry);
        let whole = keeps(&stages) || self.options.division.halos == Halos::Waited;
        let pieces = if whole { vec![geometry.region] } else { self.pieces(l, geometry) };
        if pieces.len() == 1 {
            return self.stages(Subject::Layer(l), stages, geometry);
        }
        for (number, region) in pieces.into_iter().enumerate() {
            let piece = Geometry { region, summed: false, ..Geometry::clone(geometry) };
            self.write_piece(l, number, twin.forward(&piece), piece);
        }
    }

    /// Writes down one piece of a layer. What depends on parameters alone is the same for all pieces.
    fn write_piece(&mut self, l: LayerId, number: usize, mut stages: Vec<Stage>, geometry: Geometry) {
        stages.retain(|s| number == 0 || !s.reads.iter().all(|o| matches!(o, Operand::Parameter(_))));
        self.piece = number;
        self.stages(Subject::Layer(l), stages, &Arc::new(geometry));
        self.piece = 0;
    }

    /// What a layer's internal operand is in the piece that is being written down.
    fn internal(&self, subject: Subject, number: usize) -> What {
        What::Internal(subject, self.piece * INTERNALS + number)
    }

    /// Lays out every form in which this rank has a tensor, and its gradient.
    fn make_holdings(&mut self, l: LayerId) {
        let own = self.own(l);
        for k in 0..self.holdings[l.0].len() {
            let needed = self.holdings[l.0][k].needed[self.rank.0];
            let channels = needed.range(Axis::Channel);
            let stored = or_no_samples(needed, channels, self.shapes[l.0]);
            if self.rectified[l.0].is_none() {
                self.tensor_buffer(What::Tensor(l, k), &self.layout_of(l, stored));
            }
            if self.wants_gradient[l.0] {
                let mut stored = own_or_nothing(k, own);
                stored = stored.hull(&self.held_gradient(l, k));
                if k == 0 && !self.parts[l.0].are_partial() {
                    stored = stored.hull(&self.gradient_margin(l));
                }
                let stored = or_no_samples(stored, channels, self.shapes[l.0]);
                self.tensor_buffer(What::Gradient(l, k), &Layout::blocked(stored));
            }
        }
        if self.parts[l.0].are_partial() {
            let (computed, shape) = (self.computed(l), self.shapes[l.0]);
            let channels = computed.range(Axis::Channel);
            self.tensor_buffer(What::PartialTensor(l), &Layout::blocked(or_no_samples(computed, channels, shape)));
            if self.wants_gradient[l.0] {
                let stored = or_no_samples(computed.hull(&self.gradient_margin(l)), channels, shape);
                self.tensor_buffer(What::PartialGradient(l), &Layout::blocked(stored));
            }
        }
    }

    /// Adds up what ranks computed, each over some of the input's channels, where it is owned. In the order of ranks, after
    /// the owner's own part.
    fn add_up(&mut self, l: LayerId) {
        if !self.parts[l.0].are_partial() {
            return;
        }
        let Parts { owned, computed, .. } = &self.parts[l.0];
        let exchange = Exchange::between(computed, owned, self.shapes[l.0], [false; AXES]);
        let target = self.found[&What::Tensor(l, 0)];
        if !self.own(l).is_empty() {
            self.clear(target, Region::EMPTY);
        }
        self.exchange(&exchange, What::PartialTensor(l), What::Tensor(l, 0), true, (l.0 as u64) << 16 | 1 << 11);
    }

    /// Gives every rank that computed a part of sums the gradient of all of them.
    fn gather_gradient(&mut self, l: LayerId) {
        if !self.parts[l.0].are_partial() {
            return;
        }
        let Parts { owned, computed, .. } = &self.parts[l.0];
        let exchange = Exchange::between(owned, computed, self.shapes[l.0], [false; AXES]);
        let target = self.found[&What::PartialGradient(l)];
        self.clear(target, self.computed(l));
        self.exchange(&exchange, What::Gradient(l, 0), What::PartialGradient(l), false, (l.0 as u64) << 16 | 1 << 11);
    }

    /// How a region of a layer's output is stored: images of few channels are narrow.
    fn layout_of(&self, l: LayerId, stored: Region) -> Layout {
        let narrow = self.network.layers[l.0].inputs.is_empty() && self.shapes[l.0].channels() < convoy_kernels::BLOCK;
        if narrow { Layout::image(stored) } else { Layout::blocked(stored) }
    }

    /// How far around what this rank owns the gradients of a layer's inputs look at its output's gradient.
    fn gradient_margin(&self, l: LayerId) -> Region {
        let inputs = self.network.input_shapes(l, self.shapes);
        let layer = &self.network.layers[l.0];
        let mut margin = Region::EMPTY;
        let computed = self.computed(l);
        if computed.is_empty() {
            return margin;
        }
        for (i, input) in layer.inputs.iter().enumerate() {
            if self.wants_gradient[input.0] {
                let wanted = self.gradient_region(l, i);
                let mut reached = reached(&layer.kind, &inputs, self.shapes[l.0], i, &wanted);
                // Samples and channels have no margins.
                for axis in [Axis::Sample, Axis::Channel] {
                    let (start, end) = computed.range(axis);
                    reached = reached.with(axis, start, end);
                }
                margin = margin.hull(&reached);
            }
        }
        margin
    }

    /// The part of an input's gradient that a layer computes on this rank: of what it read. What lies beyond a zero edge has
    /// none.
    fn gradient_region(&self, l: LayerId, i: usize) -> Region {
        let input = self.network.layers[l.0].inputs[i];
        let read = self.parts[l.0].read(self.network, self.shapes, l, i, self.rank.0);
        let held = self.held_gradient(input, self.holding_of(input, l, i).0);
        let region = if self.gathers(l, i) { held } else { read.intersect(&held) };
        or_no_samples(region, read.range(Axis::Channel), self.shapes[input.0])
    }

    /// The part of a holding's gradient that consumers compute on this rank.
    fn held_gradient(&self, tensor: LayerId, k: usize) -> Region {
        match k == 0 && self.gathered[tensor.0] {
            true => self.own(tensor),
            false => self.holdings[tensor.0][k].gradient_region(self.rank.0, self.shapes[tensor.0]),
        }
    }

    /// The form in which a consumer reads a tensor.
    pub fn holding_of(&self, tensor: LayerId, consumer: LayerId, position: usize) -> (usize, &Holding) {
        let all = self.holdings[tensor.0].iter().enumerate();
        let mut found = all.filter(|(_, h)| h.consumers.contains(&(consumer, position)));
        found.next().expect("bug: a consumer without a holding")
    }

    fn layout(&self, what: What) -> &Layout {
        let buffer = &self.buffers[self.found[&what].0];
        buffer.layout.as_ref().expect("bug: tensors have layouts")
    }

    fn geometry(&self, l: LayerId) -> Geometry {
        let layer = &self.network.layers[l.0];
        let computed = self.computed(l);
        // Where nothing is computed, the channels that would be read and written still say which parameters belong to this rank.
        let output = |what: What| match computed.is_empty() {
            false => self.layout(what).clone(),
            true => self.layout_of(l, computed),
        };
        let (written, gradient) = self.written(l);
        let mut inputs = vec![];
        let mut input_gradients = vec![];
        for (i, input) in layer.inputs.iter().enumerate() {
            let (k, _) = self.holding_of(*input, l, i);
            let shape = self.shapes[input.0];
            let layout = match computed.is_empty() {
                false => self.layout(What::Tensor(*input, k)).clone(),
                true => self.layout_of(*input, self.parts[l.0].read(self.network, self.shapes, l, i, self.rank.0)),
            };
            inputs.push(Tensor { shape, layout });
            let gradient = self.wants_gradient[input.0].then(|| {
                let region = self.gradient_region(l, i);
                match computed.is_empty() {
                    false => (self.layout(What::Gradient(*input, k)).clone(), region),
                    true => (Layout::blocked(region), region),
                }
            });
            input_gradients.push(gradient);
        }
        Geometry {
            layer: l.0,
            mode: self.options.mode,
            leaves: self.options.leaves,
            winograd: self.options.winograd,
            accumulate: vec![false; inputs.len()],
            inputs,
            output: Tensor { shape: self.shapes[l.0], layout: output(written) },
            region: computed,
            normed: self.normed(l),
            summed: self.norms[l.0].is_some(),
            rectified: self.rectified[l.0].is_some(),
            output_gradient: self.wants_gradient[l.0].then(|| output(gradient)),
            input_gradients,
        }
    }

    /// Margins and halos of everything that will read a tensor.
    fn fill(&mut self, l: LayerId) {
        let inside = Region::whole(self.shapes[l.0]);
        for k in 0..self.holdings[l.0].len() {
            let target = self.found[&What::Tensor(l, k)];
            self.clear(target, inside);
            let exchange = self.holdings[l.0][k].exchange.clone();
            self.exchange(
                &exchange,
                What::Tensor(l, 0),
                What::Tensor(l, k),
                false,
                (l.0 as u64) << 16 | (k as u64) << 12,
            );
        }
    }

    fn clear(&mut self, target: BufferId, keep: Region) {
        let all = whole(&self.buffers[target.0]);
        if !all.is_empty() && !keep.contains(&all) {
            self.push(Action::Clear { target, keep });
        }
    }

    /// Moves regions from the holding `from` of the sources to `to` of the targets.
    pub fn exchange(&mut self, exchange: &Exchange, from: What, to: What, add: bool, subject: u64) {
        let me = self.rank;
        let near = |what: What| matches!(what, What::Tensor(_, 0) | What::Gradient(_, 0));
        let purpose = if near(from) && near(to) { Purpose::Halo } else { Purpose::Redistribution };
        let tag = |i: usize| purpose.tag() | (add as u64) << 56 | subject << 20 | i as u64;
        for (i, t) in exchange.transfers.iter().enumerate() {
            if t.source == me && t.target == me {
                let (source, target) = (self.found[&from], self.found[&to]);
                self.push(Action::Copy { source, target, region: t.region, shift: t.shift, add });
            } else if t.source == me {
                let (message, part) = self.message(self.found[&from], t.region);
                self.push(Action::Copy {
                    source: self.found[&from],
                    target: message,
                    region: t.region,
                    shift: [0; 5],
                    add: false,
                });
                self.send(part, t.target, tag(i));
            }
        }
        for (i, t) in exchange.transfers.iter().enumerate() {
            if t.target == me && t.source != me {
                let (message, part) = self.message(self.found[&to], t.region);
                self.receive(part, t.source, tag(i));
                self.push(Action::Copy {
                    source: message,
                    target: self.found[&to],
                    region: t.region,
                    shift: t.shift,
                    add,
                });
            }
        }
    }

    /// A message for a region, in blocks like those of `like`, without gaps.
    fn message(&mut self, like: BufferId, region: Region) -> (BufferId, Part) {
        let narrow = self.buffers[like.0].layout.as_ref().is_some_and(|l| l.block < convoy_kernels::BLOCK);
        let layout = if narrow { Layout::image(region) } else { Layout::dense(region) };
        let buffer = self.tensor_buffer(What::Message, &layout);
        (buffer, Part { buffer, bytes: 0..layout.len * 4 })
    }

    /// Writes down stages with their operands; folds and reduces partial sums as they are made.
    fn stages(&mut self, subject: Subject, stages: Vec<Stage>, geometry: &Arc<Geometry>) {
        for stage in stages {
            if stage.writes.contains(&Operand::OutputSums) {
                self.make_output_sums(subject);
            }
            if self.has_sums(subject, &stage) {
                self.fold(subject, &stage, geometry.region);
                continue;
            }
            self.make(subject, &stage, geometry.region.size(Axis::Sample));
            let mut used: Vec<Operand> = stage.reads.iter().chain(&stage.writes).copied().collect();
            used.sort();
            used.dedup();
            let operands = used.into_iter().map(|o| (o, self.operand(subject, o))).collect();
            self.push(Action::Compute { subject, geometry: geometry.clone(), stage: stage.clone(), operands });
            self.fold(subject, &stage, geometry.region);
            if let Subject::Layer(l) = subject {
                self.share_running(l, &stage);
            }
        }
    }

    pub fn make(&mut self, subject: Subject, stage: &Stage, samples: usize) {
        for make in &stage.makes {
            match *make {
                Make::Internal { number, bytes } => self.buffer(self.internal(subject, number), bytes),
                Make::Partial { number, strips, columns } => {
                    self.buffer(What::Sum(subject, number), columns * 8);
                    self.buffer(What::Partial(subject, number), samples * strips * columns * 8)
                }
            };
        }
    }

    /// Partial sums over this rank's samples into one, then over all ranks.
    fn fold(&mut self, subject: Subject, stage: &Stage, region: Region) {
        for make in &stage.makes {
            if let Make::Partial { number, strips, columns } = *make {
                let sum = self.buffer(What::Sum(subject, number), columns * 8);
                let partial = self.found[&What::Partial(subject, number)];
                let samples = region.start[0] as usize..region.end[0] as usize;
                let (batch, leaves) = (self.options.batch, self.options.leaves);
                self.push(Action::Fold { partial, sum, samples, batch, leaves, strips });
                self.reduce_sum(subject, stage, number, sum);
            }
        }
    }

    fn reduce_sum(&mut self, subject: Subject, stage: &Stage, number: usize, sum: BufferId) {
        let layer = match subject {
            Subject::Layer(l) | Subject::Update(l, _) => l,
            Subject::Loss => self.network.output(),
        };
        let (mut team, has_part) = self.team(layer);
        let loss = matches!(subject, Subject::Loss) as u64;
        if loss == 1 {
            // Everyone is told.
            team = (0..self.strategy.ranks).collect();
        } else if makes_statistics(stage) {
            team = self.norm_group(layer, self.rank.0);
        }
        let subject = (layer.0 as u64) << 12 | loss << 11 | 1 << 10 | number as u64;
        self.reduce(sum, Number::Double, &team, &has_part, subject);
    }

    /// The ranks with which this one adds up sums of a layer, and by rank whether it has a part of them.
    pub fn team(&self, l: LayerId) -> (Vec<usize>, Vec<bool>) {
        let parts = &self.parts[l.0];
        (parts.team(self.rank.0), parts.computed.iter().map(|r| !r.is_empty()).collect())
    }

    /// What a rank without a part of a layer still does: take part in the sums that others need.
    fn stand_in(&mut self, l: LayerId, backward: bool) {
        if self.is_idle(l) {
            return;
        }
        let geometry = self.geometries[l.0].clone().expect("bug: no geometry");
        let twin = fast::twin(&self.network.layers[l.0].kind);
        let stages = if backward { twin.backward(&geometry) } else { twin.forward(&geometry) };
        // Where nobody of a group has anything there are no statistics.
        let empty = if geometry.normed == 0 { statistics(&stages) } else { vec![] };
        for stage in stages {
            for make in &stage.makes {
                if let Make::Partial { number, columns, .. } = *make {
                    let sum = self.buffer(What::Sum(Subject::Layer(l), number), columns * 8);
                    self.reduce_sum(Subject::Layer(l), &stage, number, sum);
                }
            }
            // Stages that only turn sums into parameters, or into their gradients, run everywhere: parameters stay alike.
            let mut sums = stage.reads.iter().filter(|o| matches!(o, Operand::Sum(_))).peekable();
            if sums.peek().is_some() && sums.all(|o| !empty.contains(o)) && !touches_tensors(&stage) {
                self.make(Subject::Layer(l), &stage, 0);
                let used = stage.reads.iter().chain(&stage.writes);
                let operands = used.map(|o| (*o, self.operand(Subject::Layer(l), *o))).collect();
                let (subject, geometry, stage) = (Subject::Layer(l), geometry.clone(), stage.clone());
                self.push(Action::Compute { subject, geometry, stage, operands });
            }
            self.share_running(l, &stage);
        }
    }

    pub fn operand(&mut self, subject: Subject, operand: Operand) -> BufferId {
        let (l, inputs) = match subject {
            Subject::Layer(l) => (l, self.network.layers[l.0].inputs.clone()),
            // The loss reads the network's output where it is owned.
            Subject::Loss => (self.network.output(), vec![self.network.output()]),
            Subject::Update(l, _) => (l, vec![]),
        };
        let holding = |b: &Builder, i: usize| match subject {
            Subject::Layer(l) => b.holding_of(inputs[i], l, i).0,
            _ => 0,
        };
        match operand {
            Operand::Input(i) => self.found[&What::Tensor(inputs[i], holding(self, i))],
            Operand::Output => self.found[&self.written(l).0],
            Operand::OutputGradient => self.found[&self.written(l).1],
            Operand::InputGradient(i) => self.found[&What::Gradient(inputs[i], holding(self, i))],
            Operand::Parameter(p) => {
                // The last time it was pulled, if it was.
                let pulled = [1, 0].into_iter().find_map(|pass| self.found.get(&What::Pulled(l, p, pass)).copied());
                pulled.unwrap_or_else(|| self.parameter(What::Parameter(l, p), l, p, Home::Kept))
            }
            Operand::ParameterGradient(p) => self.parameter(What::ParameterGradient(l, p), l, p, Home::Step),
            Operand::Internal(k) => {
                let own = self.found.get(&self.internal(subject, k));
                *own.unwrap_or_else(|| &self.found[&What::Internal(subject, k)])
            }
            Operand::Partial(k) => self.found[&What::Partial(subject, k)],
            Operand::OutputSums => {
                let norm = self.norms[l.0].expect("bug: sums that nobody wants");
                self.found[&What::Partial(Subject::Layer(norm), STATISTICS)]
            }
            Operand::Sum(k) => self.found[&What::Sum(subject, k)],
            Operand::Target => self.target(),
            Operand::State(_) => unreachable!("bug: only updates have states"),
        }
    }

    pub fn parameter(&mut self, what: What, l: LayerId, p: usize, home: Home) -> BufferId {
        if let Some(&found) = self.found.get(&what) {
            return found;
        }
        self.buffer_with(what, self.packed_bytes(l, p), home, None)
    }

    /// Bytes of this rank's share of a parameter in kernel order.
    pub fn packed_bytes(&self, l: LayerId, p: usize) -> usize {
        let geometry = self.geometries[l.0].as_ref().expect("bug: parameters of a layer without a geometry");
        let twin = fast::twin(&self.network.layers[l.0].kind);
        if self.is_idle(l) { 0 } else { twin.packed(p, geometry) * 4 }
    }

    fn target(&mut self) -> BufferId {
        let bytes = self.targets() * 4;
        self.buffer(What::Target, bytes)
    }

    /// Floats of targets for what this rank owns of the output.
    fn targets(&self) -> usize {
        let own = self.own(self.network.output());
        if self.network.loss.takes_labels() { own.size(Axis::Sample) * own.shape().points() } else { own.len() }
    }

    /// How the loss reads the network's output.
    fn loss_geometry(&self) -> Geometry {
        let l = self.network.output();
        let output = Tensor { shape: self.shapes[l.0], layout: self.layout(What::Tensor(l, 0)).clone() };
        let own = self.own(l);
        let gradient = self.wants_gradient[l.0].then(|| (self.layout(What::Gradient(l, 0)).clone(), own));
        Geometry {
            layer: self.network.layers.len(),
            mode: self.options.mode,
            leaves: self.options.leaves,
            winograd: self.options.winograd,
            inputs: vec![output.clone()],
            output,
            region: own,
            normed: 0,
            summed: false,
            rectified: false,
            output_gradient: None,
            input_gradients: vec![gradient],
            accumulate: vec![false],
        }
    }

    fn loss(&mut self) {
        let geometry = Arc::new(self.loss_geometry());
        let loss = self.network.loss;
        if geometry.region.is_empty() {
            for stage in loss.forward(&geometry) {
                for make in &stage.makes {
                    if let Make::Partial { number, columns, .. } = *make {
                        let sum = self.buffer(What::Sum(Subject::Loss, number), columns * 8);
                        self.reduce_sum(Subject::Loss, &stage, number, sum);
                    }
                }
            }
            return;
        }
        let target = self.target();
        self.push(Action::LoadTarget { target });
        self.stages(Subject::Loss, loss.forward(&geometry), &geometry);
        if self.wants_gradient[self.network.output().0] {
            self.stages(Subject::Loss, loss.backward(&geometry), &geometry);
            self.begun.insert(What::Gradient(self.network.output(), 0), ());
        }
    }

    fn backward(&mut self) {
        for l in (1..self.network.layers.len()).rev().map(LayerId) {
            if !self.wants_gradient[l.0] {
                continue;
            }
            self.complete_gradient(l);
            self.gather_gradient(l);
            self.gather_halo(l);
            if self.network.layers[l.0].inputs.iter().any(|input| self.wants_gradient[input.0]) {
                self.pull(l, 1);
            }
            if self.computed(l).is_empty() {
                self.stand_in(l, true);
            } else {
                self.layer_backward(l);
            }
            self.update_all(l);
        }
        self.update_buckets();
    }

    /// Brings home what consumers elsewhere added to a tensor's gradient, and clears its margins.
    fn complete_gradient(&mut self, l: LayerId) {
        for k in 0..self.holdings[l.0].len() {
            // Nobody here wrote it, but others may send or expect parts of it.
            if !self.begun.contains_key(&What::Gradient(l, k)) {
                let target = self.found[&What::Gradient(l, k)];
                self.clear(target, Region::EMPTY);
            }
        }
        for k in usize::from(self.gathered[l.0])..self.holdings[l.0].len() {
            let back = self.holdings[l.0][k].exchange.adjoint();
            let subject = (l.0 as u64) << 16 | (k as u64) << 12;
            self.exchange(&back, What::Gradient(l, k), What::Gradient(l, 0), true, subject);
        }
        let target = self.found[&What::Gradient(l, 0)];
        self.clear(target, self.own(l));
    }

    fn layer_backward(&mut self, l: LayerId) {
        let mut geometry = Geometry::clone(self.geometries[l.0].as_ref().expect("bug: no geometry"));
        for (i, input) in self.network.layers[l.0].inputs.iter().enumerate() {
            if self.wants_gradient[input.0] {
                let (k, _) = self.holding_of(*input, l, i);
                let held = self.held_gradient(*input, k);
                let what = What::Gradient(*input, k);
                geometry.accumulate[i] = self.begun.insert(what, ()).is_some();
                // What this layer did not read but others did, or will be asked for, begins at zero.
                let computed = self.gradient_region(l, i);
                if !geometry.accumulate[i] && !computed.contains(&held) {
                    self.clear(self.found[&what], computed);
                }
            }
        }
        let twin = fast::twin(&self.network.layers[l.0].kind);
        let stages = twin.backward(&geometry);
        let whole = keeps(&stages) || self.options.division.halos == Halos::Waited;
        let (first, last) = if whole { Default::default() } else { self.gradient_pieces(l, &geometry) };
        if last.is_empty() {
            return self.stages(Subject::Layer(l), stages, &Arc::new(geometry));
        }
        // Weight gradients, which are not cut, in between.
        let weights = Geometry { input_gradients: vec![None], ..geometry.clone() };
        let weight_stages = twin.backward(&weights);
        let (before, middle, weights) = (weight_stages.len(), first.len(), Arc::new(weights));
        for (number, region) in first.into_iter().chain(last).enumerate() {
            if number == middle {
                self.stages(Subject::Layer(l), weight_stages.clone(), &weights);
            }
            let gradient = geometry.input_gradients[0].clone().map(|(layout, _)| (layout, region));
            let piece = Geometry { input_gradients: vec![gradient], ..geometry.clone() };
            let stages = twin.backward(&piece).split_off(before);
            self.write_piece(l, number, stages, piece);
        }
    }

    /// By rank, whether it has a part of a parameter's gradient; nothing where the gradient is whole already.
    pub fn gradient_parts(&self, l: LayerId, p: usize, backward: &[Stage]) -> Option<Vec<bool>> {
        let makes_it = |s: &&Stage| s.writes.contains(&Operand::ParameterGradient(p));
        let reads = backward.iter().find(makes_it).map_or(&[][..], |s| &s.reads);
        let is_sum = |o: &Operand| matches!(o, Operand::Sum(_));
        let of_group =
            self.options.division.norm != NormOver::Global && reads.iter().any(|o| statistics(backward).contains(o));
        match reads.iter().any(is_sum) {
            _ if of_group => Some(self.first_of_groups(l)),
            // What was derived from sums over the global batch.
            true => None,
            false => Some(self.team(l).1),
        }
    }

    /// The buffer of a layer's parameter.
    pub fn parameter_buffer(&mut self, l: LayerId, p: usize) -> BufferId {
        self.operand(Subject::Layer(l), Operand::Parameter(p))
    }

    fn finish(mut self) -> Program {
        // Running statistics are written without ever being read in training; they exist all the same.
        for l in (0..self.network.layers.len()).map(LayerId) {
            for p in 0..self.network.parameters(l, self.shapes).len() {
                if self.found.contains_key(&What::Pulled(l, p, 0)) {
                    continue;
                }
                self.parameter(What::Parameter(l, p), l, p, Home::Kept);
            }
        }
        let measured = self.found[&What::Sum(Subject::Loss, 0)];
        let output = self.found[&What::Tensor(self.network.output(), 0)];
        let (owned, targets) = (self.own(self.network.output()), self.targets());
        let shards = self.shards();
        let mut program = Program {
            rank: self.rank,
            ranks: self.strategy.ranks,
            batch: self.options.batch,
            mode: self.options.mode,
            buffers: self.buffers,
            ops: self.ops,
            memory: MemoryPlan::default(),
            shards,
            geometries: self.geometries,
            images: self.images,
            owned,
            targets,
            measured,
            output,
        };
        depend(&mut program.ops, program.buffers.len());
        debug_assert_eq!(program.verify(), Ok(()), "bug: after dependencies");
        program
    }
}

/// Gives every buffer of a program its bytes, and makes ops wait where buffers share them.
fn plan_memory(program: &mut Program) {
    let results = results(program);
    MemoryPlan::make(program, &results);
}

/// What `plan_memory` would plan: how many bytes a step takes.
pub fn memory_plan(program: &Program) -> MemoryPlan {
    MemoryPlan::of(program, &results(program))
}

/// Buffers that are read when a step is over.
fn results(program: &Program) -> Vec<usize> {
    let (measured, output) = (program.measured.0, program.output.0);
    if program.mode == Mode::Evaluate { vec![measured, output] } else { vec![measured] }
}

/// A region, or where a rank has nothing of a tensor, no samples of some channels: they still say how parameters lie.
fn or_no_samples(region: Region, (start, end): (isize, isize), shape: Shape) -> Region {
    if !region.is_empty() {
        return region;
    }
    Region::whole(shape).with(Axis::Sample, 0, 0).with(Axis::Channel, start, end)
}

/// Only the owner's holding stores what is owned.
fn own_or_nothing(holding: usize, own: Region) -> Region {
    if holding == 0 { own } else { Region::EMPTY }
}

/// Whether stages make sums over samples, or keep something for later passes: then they are not cut into pieces.
fn keeps(stages: &[Stage]) -> bool {
    stages.iter().any(|s| !s.makes.is_empty() && !matches!(s.pass, Pass::Transform(_)))
}

/// The sums that stages take as statistics.
fn statistics(stages: &[Stage]) -> Vec<Operand> {
    let makes = stages.iter().filter(|s| makes_statistics(s)).flat_map(|s| &s.makes);
    let sum = |make: &Make| match *make {
        Make::Partial { number, .. } => Some(Operand::Sum(number)),
        Make::Internal { .. } => None,
    };
    makes.filter_map(sum).collect()
}

/// Whether a stage reads or writes activations or their gradients.
fn touches_tensors(stage: &Stage) -> bool {
    let mut operands = stage.reads.iter().chain(&stage.writes);
    operands.any(|o| {
        matches!(
            o,
            Operand::Input(_) | Operand::Output | Operand::OutputGradient | Operand::InputGradient(_) | Operand::Target
        )
    })
}

/// A rough guess at one core's time: only the order of ready ops depends on it.
fn seconds(work: &Work) -> f64 {
    (work.flops / 60e9).max(work.bytes / 12e9) + 1e-6
}

fn memory_seconds(bytes: usize) -> f64 {
    seconds(&Work { flops: 0.0, bytes: bytes as f64 })
}
