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
use crate::norm::NormOver;
use crate::parts::Parts;
use crate::prioritise::prioritise;
use crate::program::*;
use crate::reduce::{Reduction, SumOrder};
use convoy_kernels::fast::{self, Fast};
use convoy_kernels::{Geometry, Layout, Mode, Operand, Pass, Stage, Tensor, Update, Winograd, Work};
use convoy_net::{Axis, Error, Kind, LayerId, Network, Region, Shape};
use convoy_split::{Rank, Strategy};
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

    /// Samples of the largest leaf.
    pub fn leaf_samples(&self) -> usize {
        self.division.leaf_samples.unwrap_or(self.batch.div_ceil(self.leaves.max(1)))
    }
}

/// How a job is divided besides by the strategy: what ranks do each for itself or together, and by which leaves algorithms are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Division {
    pub norm: NormOver,
    pub home: ParameterHome,
    /// Of gradients that every rank gets; those of sharded parameters are always summed by the tree.
    pub sums: SumOrder,
    pub halos: Halos,
    /// Samples of the largest leaf of the job that this one stands for, if it does.
    pub leaf_samples: Option<usize>,
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
    pub holdings: Vec<Vec<Holding>>,
    /// By layer: whether consumers of its output gather gradients, rather than send them back.
    pub gathered: Vec<bool>,
    /// By layer: whether its output's gradient is wanted.
    pub wants_gradient: Vec<bool>,
    /// By layer: the batch norm that takes sums of its output, if this rank has the same part of both.
    pub norms: Vec<Option<LayerId>>,
    /// By layer: the ReLU that it applies itself. What would be before exists nowhere.
    pub rectified: Vec<Option<LayerId>>,
    pub geometries: Vec<Option<Arc<Geometry>>>,
    /// Gradients that are summed over ranks together.
    pub buckets: Vec<Bucket>,
    /// Those that are complete, with their sums as far as they are begun.
    pub complete: Vec<(Bucket, Option<Reduction>)>,
    pub found: HashMap<What, BufferId>,
    /// Gradients that hold something already: the next consumer adds.
    pub begun: HashMap<What, ()>,
    /// Weight gradients that are written down while the next sum over ranks is on its way.
    late: Option<(LayerId, Vec<Stage>, Arc<Geometry>)>,
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
            late: None,
            piece: 0,
            images: Region::EMPTY,
        }
    }

    pub fn own(&self, layer: LayerId) -> Region {
        self.parts[layer.0].owned[self.rank.0]
    }

    /// What this rank computes of a layer's output.
    pub fn computed(&self, layer: LayerId) -> Region {
        self.parts[layer.0].computed[self.rank.0]
    }

    /// Whether a layer is none of this rank's business: it has no part of it, and no share of its parameters.
    pub fn is_idle(&self, layer: LayerId) -> bool {
        self.computed(layer).size(Axis::Channel) == 0
    }

    /// What this rank's computation of a layer writes, and the gradient it reads.
    pub fn written(&self, l: LayerId) -> (What, What) {
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

    pub fn tensor_buffer(&mut self, what: What, layout: &Layout) -> BufferId {
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
                let bytes = region.len() * 8;
                (sample_tiles(region, bytes), 0, memory_seconds(bytes))
            }
            Action::Clear { target, keep } => {
                let all = whole(&self.buffers[target.0]);
                let bytes = (all.len() - all.intersect(keep).len()) * 4;
                (sample_tiles(&all, bytes), 0, memory_seconds(bytes))
            }
            Action::Fold { partial, .. } => (1, 0, memory_seconds(self.buffers[partial.0].bytes)),
            Action::Combine { into, parts, .. } => {
                (into.bytes.len().div_ceil(TILE_BYTES), 0, memory_seconds(into.bytes.len() * parts.len()))
            }
            Action::LoadTarget { target } => (1, 0, memory_seconds(self.buffers[target.0].bytes)),
            Action::Send { .. } | Action::Receive { .. } => (1, 0, 1e-6),
            Action::AllReduce { into, .. } => (1, 0, memory_seconds(2 * into.bytes.len())),
        };
        if tiles > 0 {
            self.ops.push(Op { action, accesses, after: vec![], tiles, scratch, seconds, remaining: 0.0 });
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

    /// Writes down one piece of a layer. What depends on parameters alone is the same for all pieces: the first that needs it makes it.
    fn write_piece(&mut self, l: LayerId, number: usize, stages: Vec<Stage>, geometry: Geometry) {
        let (subject, geometry) = (Subject::Layer(l), Arc::new(geometry));
        let is_shared = |s: &Stage| s.reads.iter().all(|o| matches!(o, Operand::Parameter(_)));
        let (mut shared, own): (Vec<Stage>, Vec<Stage>) = stages.into_iter().partition(is_shared);
        let is_made =
            |o: &Operand| matches!(o, Operand::Internal(k) if self.found.contains_key(&What::Internal(subject, *k)));
        shared.retain(|stage| !stage.writes.iter().any(is_made));
        self.stages(subject, shared, &geometry);
        self.piece = number;
        self.stages(subject, own, &geometry);
        self.piece = 0;
    }

    /// What a layer's internal operand is in the piece that is being written down.
    pub fn internal(&self, subject: Subject, number: usize) -> What {
        What::Internal(subject, self.piece * INTERNALS + number)
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
            leaf_samples: self.options.leaf_samples(),
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
            return loss.forward(&geometry).iter().for_each(|stage| self.take_part(Subject::Loss, stage));
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
            if self.late.as_ref().is_none_or(|(late, ..)| *late != l) {
                self.write_late();
                self.update_all(l);
            }
        }
        self.update_buckets();
    }

    /// Whether a layer is a convolution and the next one of the backward pass a norm that sums over ranks: weight gradients are then computed
    /// while it waits for them.
    fn meets_next(&self, l: LayerId) -> bool {
        let next = (1..l.0).rev().map(LayerId).find(|next| self.wants_gradient[next.0]);
        let kind = |l: LayerId| &self.network.layers[l.0].kind;
        let meets = |next: LayerId| {
            matches!(kind(next), Kind::BatchNorm(_))
                && !self.is_idle(next)
                && self.norm_group(next, self.rank.0).len() > 1
        };
        matches!(kind(l), Kind::Convolution(_)) && next.is_some_and(meets)
    }

    /// Writes down weight gradients that were put off, and what becomes of them.
    pub fn write_late(&mut self) {
        if let Some((l, stages, geometry)) = self.late.take() {
            self.stages(Subject::Layer(l), stages, &geometry);
            self.update_all(l);
        }
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
        let mut stages = twin.backward(&geometry);
        let whole = keeps(&stages) || self.options.division.halos == Halos::Waited;
        let (first, last) = if whole { Default::default() } else { self.gradient_pieces(l, &geometry) };
        let is_late = last.is_empty() && !whole && self.meets_next(l);
        if last.is_empty() && !is_late {
            return self.stages(Subject::Layer(l), stages, &Arc::new(geometry));
        }
        let weights = Geometry { input_gradients: vec![None], ..geometry.clone() };
        let weight_stages = twin.backward(&weights);
        let (before, middle, weights) = (weight_stages.len(), first.len(), Arc::new(weights));
        if is_late {
            let gradient = stages.split_off(before);
            self.stages(Subject::Layer(l), gradient, &Arc::new(geometry));
            self.late = Some((l, weight_stages, weights));
            return;
        }
        // Weight gradients, which are not cut, in between.
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

/// Whether stages make sums over samples, or keep something for later passes: then they are not cut into pieces.
fn keeps(stages: &[Stage]) -> bool {
    stages.iter().any(|s| !s.makes.is_empty() && !matches!(s.pass, Pass::Transform(_)))
}

/// A rough guess at one core's time: only the order of ready ops depends on it.
fn seconds(work: &Work) -> f64 {
    (work.flops / 60e9).max(work.bytes / 12e9) + 1e-6
}

fn memory_seconds(bytes: usize) -> f64 {
    seconds(&Work { flops: 0.0, bytes: bytes as f64 })
}

/// Tiles of whole samples.
fn sample_tiles(region: &Region, bytes: usize) -> usize {
    region.size(Axis::Sample).min(bytes.div_ceil(TILE_BYTES))
}
