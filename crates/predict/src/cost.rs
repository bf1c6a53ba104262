//! Costs: how long one core takes for an op.
//!
//! Roofline: operations at the core's speed or bytes at its share of the memory's, whichever takes longer. Where a [`Table`] was
//! measured, the time by roofline of a core that has the memory for itself is multiplied by how much longer ops of the same family and
//! a similar size took, with the other cores idle and with all of them at work.

use convoy_kernels::{Operand, Pass, Work};
use convoy_net::{Axis, Kind, Network};
use convoy_program::{Action, Op, Program, Subject};

use crate::machine::Nodes;
use std::collections::HashMap;

/// What an op asks of a machine: work, and what it can be compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    pub work: Work,
    /// Ops of one family are alike but for their sizes.
    pub family: String,
    /// Logarithms to base 2 of channels read, channels written, points of a sample and samples; for what is no layer's, of bytes.
    pub size: [f64; 4],
}

/// What an op asks of a machine.
pub fn ask(op: &Op, program: &Program, network: &Network) -> Ask {
    match &op.action {
        Action::Compute { subject: Subject::Layer(l), geometry, stage, .. } => {
            let region = &geometry.region;
            let points: usize = Axis::SPACE.iter().map(|&a| region.size(a)).product();
            let read = geometry.inputs.first().map_or(1, |t| t.layout.stored.size(Axis::Channel));
            let size = [read, region.size(Axis::Channel), points, region.size(Axis::Sample)];
            let (kind, pass) = (layer_family(&network.layers[l.0].kind), pass_name(stage.pass));
            let sums = if stage.writes.contains(&Operand::OutputSums) { " with sums" } else { "" };
            let family = format!("{kind} {pass} from {}{sums}", sources(&stage.reads));
            Ask { work: stage.work, family, size: size.map(|n| (n.max(1) as f64).log2()) }
        }
        Action::Compute { stage, .. } => by_bytes("loss", stage.work),
        Action::Update { stage, .. } => by_bytes("update", stage.work),
        other => {
            let bytes = op.accesses.iter().map(|a| {
                let each = if program.buffers[a.buffer.0].layout.is_some() { 4 } else { 1 };
                (a.region.len() * each) as f64
            });
            by_bytes(moves(other), Work { flops: 0.0, bytes: bytes.sum() })
        }
    }
}

/// What moves numbers, by how it does so.
fn moves(action: &Action) -> &'static str {
    match action {
        Action::Load { .. } | Action::LoadTarget { .. } => "load",
        Action::Fold { .. } => "fold",
        Action::Clear { .. } => "clear",
        _ => "move",
    }
}

/// What is alike but for its bytes.
fn by_bytes(family: &str, work: Work) -> Ask {
    Ask { work, family: family.into(), size: [work.bytes.max(1.0).log2(), 0.0, 0.0, 0.0] }
}

/// The kind of a layer, with its window where that decides which kernel runs.
fn layer_family(kind: &Kind) -> String {
    match kind {
        Kind::Convolution(c) => {
            let axes = 3 - c.windows.kernel.len()..3;
            let sizes = |of: fn((usize, usize, usize, [usize; 2])) -> usize| {
                axes.clone().map(|space| of(c.windows.along(space)).to_string()).collect::<Vec<_>>().join("x")
            };
            let (kernel, stride) = (sizes(|along| along.0), sizes(|along| along.1));
            let depthwise = if c.groups > 1 { " in groups" } else { "" };
            format!("convolution {kernel} by {stride}{depthwise}")
        }
        _ => kind.name().to_string(),
    }
}

/// What a stage reads: it tells apart stages that have the same name but not the same work, such as a gradient that is computed, and
/// one that is summed from parts computed before.
fn sources(reads: &[Operand]) -> String {
    let name = |operand: &Operand| match operand {
        Operand::Input(_) => "input",
        Operand::Output => "output",
        Operand::OutputGradient | Operand::InputGradient(_) => "gradient",
        Operand::Parameter(_) | Operand::State(_) => "parameter",
        Operand::ParameterGradient(_) => "parameter gradient",
        Operand::Internal(_) => "parts",
        Operand::Partial(_) | Operand::OutputSums | Operand::Sum(_) => "sums",
        Operand::Target => "target",
    };
    let mut names: Vec<&str> = reads.iter().map(name).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

/// What people call a pass.
fn pass_name(pass: Pass) -> &'static str {
    match pass {
        Pass::Transform(_) => "transform",
        Pass::Forward => "forward",
        Pass::Statistics => "statistics",
        Pass::Coefficients => "coefficients",
        Pass::InputGradient(_) => "input gradient",
        Pass::WeightGradient(_) => "weight gradient",
        Pass::GradientStatistics => "gradient statistics",
        Pass::GradientCoefficients => "gradient coefficients",
        Pass::Update => "update",
    }
}

/// Seconds of one core for all of an op, by roofline; `bandwidth` is the core's share of its node's.
pub fn roofline_seconds(work: &Work, nodes: &Nodes, bandwidth: f64) -> f64 {
    (work.flops / nodes.core_flops).max(work.bytes / bandwidth)
}

/// How much longer than by roofline, with the memory for itself alone, a core took for ops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub entries: Vec<Entry>,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub family: String,
    /// As in [`Ask`].
    pub size: [f64; 4],
    /// Measured seconds over the roofline's.
    pub ratios: Ratios,
}

/// How much longer something takes on a core than by roofline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// While the other cores of the computer are idle.
    pub alone: f64,
    /// While all cores work on the same.
    pub together: f64,
}

impl Ratios {
    /// While `busy` of a computer's cores work: as much between the two as there are cores between one and all.
    pub fn with(&self, busy: usize, cores: usize) -> f64 {
        let others = busy.clamp(1, cores.max(1)) - 1;
        self.alone + (self.together - self.alone) * others as f64 / cores.saturating_sub(1).max(1) as f64
    }
}

impl Table {
    /// How much longer than by roofline: between measurements of the same family by distance, if there are any.
    ///
    /// ```
    /// use convoy_predict::{Entry, Ratios, Table};
    /// let entry = |x: f64, alone| {
    ///     Entry { family: "f".into(), size: [x, 0.0, 0.0, 0.0], ratios: Ratios { alone, together: 2.0 * alone } }
    /// };
    /// let table = Table { entries: vec![entry(2.0, 1.0), entry(4.0, 4.0)] };
    /// assert_eq!(table.ratios("f", &[4.0, 0.0, 0.0, 0.0]), Some(Ratios { alone: 4.0, together: 8.0 }));
    /// // Halfway between, in logarithms.
    /// let between = table.ratios("f", &[3.0, 0.0, 0.0, 0.0]).unwrap();
    /// assert!((between.alone - 2.0).abs() < 1e-12 && (between.together - 4.0).abs() < 1e-12);
    /// assert_eq!(table.ratios("g", &[3.0, 0.0, 0.0, 0.0]), None);
    /// // Two of three cores are busy.
    /// assert!((between.with(2, 3) - 3.0).abs() < 1e-12);
    /// ```
    pub fn ratios(&self, family: &str, size: &[f64; 4]) -> Option<Ratios> {
        self.families().ratios(family, size)
    }

    /// Its measurements by family: to be asked often.
    pub(crate) fn families(&self) -> Families<'_> {
        let mut families: HashMap<&str, Vec<&Entry>> = HashMap::new();
        self.entries.iter().for_each(|entry| families.entry(&entry.family).or_default().push(entry));
        Families(families)
    }
}

/// A table's measurements by family, each in the table's order.
pub(crate) struct Families<'a>(HashMap<&'a str, Vec<&'a Entry>>);

impl Families<'_> {
    /// As [`Table::ratios`].
    pub fn ratios(&self, family: &str, size: &[f64; 4]) -> Option<Ratios> {
        let (mut alone, mut together, mut weights) = (0.0, 0.0, 0.0);
        for entry in self.0.get(family)? {
            let square: f64 = entry.size.iter().zip(size).map(|(a, b)| (a - b) * (a - b)).sum();
            if square == 0.0 {
                return Some(entry.ratios);
            }
            let weight = 1.0 / (square * square);
            alone += weight * entry.ratios.alone.ln();
            together += weight * entry.ratios.together.ln();
            weights += weight;
        }
        Some(Ratios { alone: (alone / weights).exp(), together: (together / weights).exp() })
    }
}
