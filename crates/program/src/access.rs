//! Accesses: which region of which buffer an op reads or writes. Dependencies follow from nothing else.

use crate::lower::Builder;
use crate::program::{Access, Action, BufferId, Part, Subject, whole};
use convoy_kernels::{Geometry, Operand, Stage};
use convoy_net::{Axis, Region};
use convoy_split::reached;

impl Builder<'_> {
    /// What an op touches. What lies inside another buffer is that one's.
    pub fn accesses(&self, action: &Action) -> Vec<Access> {
        let mut accesses = self.named_accesses(action);
        for access in &mut accesses {
            if let Some((outer, first)) = self.buffers[access.buffer.0].within {
                *access =
                    Access { buffer: outer, region: access.region.shifted([0, 0, 0, 0, first as isize]), ..*access };
            }
        }
        accesses
    }

    fn named_accesses(&self, action: &Action) -> Vec<Access> {
        let all = |buffer: BufferId, writes| Access { buffer, region: whole(&self.buffers[buffer.0]), writes };
        let part = |p: &Part, writes| {
            let (start, end) = (p.bytes.start as isize, p.bytes.end as isize);
            // Messages are tensors in a layout of their own, and travel whole.
            let flat = self.buffers[p.buffer.0].layout.is_none();
            let region =
                if flat { Region::flat(0).with(Axis::Width, start, end) } else { whole(&self.buffers[p.buffer.0]) };
            Access { buffer: p.buffer, region, writes }
        };
        match action {
            Action::Load { target, region } => vec![Access { buffer: *target, region: *region, writes: true }],
            Action::LoadTarget { target } => vec![all(*target, true)],
            Action::Compute { subject, geometry, stage, operands } => {
                operands.iter().map(|(o, b)| self.touched(*subject, geometry, stage, *o, *b)).collect()
            }
            Action::Update { stage, operands, .. } => {
                operands.iter().map(|(o, b)| all(*b, stage.writes.contains(o))).collect()
            }
            Action::Fold { partial, sum, .. } => vec![all(*partial, false), all(*sum, true)],
            Action::Clear { target, keep } => outside(&whole(&self.buffers[target.0]), keep)
                .into_iter()
                .map(|region| Access { buffer: *target, region, writes: true })
                .collect(),
            Action::Copy { source, target, region, shift, .. } => vec![
                Access { buffer: *source, region: *region, writes: false },
                Access { buffer: *target, region: region.shifted(*shift), writes: true },
            ],
            Action::Send { from, .. } => vec![part(from, false)],
            Action::Receive { into, .. } => vec![part(into, true)],
            Action::Combine { parts, into, .. } => {
                parts.iter().flatten().map(|p| part(p, false)).chain([part(into, true)]).collect()
            }
            Action::AllReduce { from, into, turn, .. } => vec![part(from, false), part(into, true), all(*turn, true)],
        }
    }

    /// The region of an operand that a stage touches.
    fn touched(&self, subject: Subject, g: &Geometry, stage: &Stage, operand: Operand, buffer: BufferId) -> Access {
        let all = whole(&self.buffers[buffer.0]);
        let region = match (operand, subject) {
            (Operand::Input(i), Subject::Layer(l)) => {
                self.parts[l.0].read_for(&g.region, self.network, self.shapes, l, i, self.rank.0).intersect(&all)
            }
            (Operand::Input(_), _) | (Operand::Output, _) => g.region,
            // Weights' gradients are summed over this rank's outputs; inputs' need others' too.
            (Operand::OutputGradient, Subject::Layer(l)) if self.gathers(l, 0) => match &g.input_gradients[0] {
                Some((_, region)) => {
                    let inputs = self.network.input_shapes(l, self.shapes);
                    let kind = &self.network.layers[l.0].kind;
                    g.region.hull(&reached(kind, &inputs, self.shapes[l.0], 0, region).intersect(&all))
                }
                None => g.region,
            },
            (Operand::InputGradient(i), _) => g.input_gradients[i].as_ref().expect("bug: an unwanted gradient").1,
            _ => all,
        };
        Access { buffer, region, writes: stage.writes.contains(&operand) }
    }
}

/// A region without a box inside it, as boxes.
pub(crate) fn outside(all: &Region, keep: &Region) -> Vec<Region> {
    let inner = all.intersect(keep);
    if inner.is_empty() {
        return vec![*all];
    }
    let mut boxes = vec![];
    let mut rest = *all;
    for axis in Axis::ALL {
        let ((start, end), (a, b)) = (rest.range(axis), inner.range(axis));
        boxes.push(rest.with(axis, start, a));
        boxes.push(rest.with(axis, b, end));
        rest = rest.with(axis, a, b);
    }
    boxes.retain(|r| !r.is_empty());
    boxes
}
