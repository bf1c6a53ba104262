//! Norms: whose elements batch norm takes together, and how ranks stay alike where that is not all of them.
//!
//! Statistics are sums that stages of the passes `Statistics` and `GradientStatistics` make; they run over the ranks of a group.
//! Gradients of weight and bias are then those of a group, the same on its members, and are added up over groups like any
//! other; running statistics are those of the first group that has samples, on every rank.

use crate::lower::Builder;
use crate::program::{BufferId, Part, Purpose};
use convoy_kernels::{Operand, Pass, Stage};
use convoy_net::{Axis, LayerId};

/// Whose elements batch norm takes together, among the ranks that have the same channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NormOver {
    /// The global batch's: the result does not depend on how it is cut.
    #[default]
    Global,
    /// Those of the ranks that share samples.
    Team,
    /// A rank's own.
    Local,
}

/// What the tags of messages start with that carry running statistics from the first group to the others.
pub const TOLD: u64 = Purpose::Redistribution.tag() | 1 << 57;

/// Whether what a stage sums are statistics.
pub(crate) fn makes_statistics(stage: &Stage) -> bool {
    matches!(stage.pass, Pass::Statistics | Pass::GradientStatistics)
}

impl Builder<'_> {
    /// The ranks whose elements of a layer are normed together with those of `rank`, in order.
    pub fn norm_group(&self, l: LayerId, rank: usize) -> Vec<usize> {
        let parts = &self.parts[l.0];
        let samples = |q: usize| parts.computed[q].range(Axis::Sample);
        let mut team = parts.team(rank);
        match self.options.division.norm {
            NormOver::Global => {}
            NormOver::Team => team.retain(|&q| samples(q) == samples(rank)),
            NormOver::Local => team = vec![rank],
        }
        team
    }

    /// Elements of a channel that this rank's group has.
    pub fn normed(&self, l: LayerId) -> usize {
        let computed = &self.parts[l.0].computed;
        let elements = |q: usize| computed[q].len() / computed[q].size(Axis::Channel).max(1);
        self.norm_group(l, self.rank.0).into_iter().map(elements).sum()
    }

    /// By rank of this one's team: whether it stands for its group, as the first of those that have elements.
    pub fn first_of_groups(&self, l: LayerId) -> Vec<bool> {
        let computed = &self.parts[l.0].computed;
        let first = |q: usize| self.norm_group(l, q).into_iter().find(|&member| !computed[member].is_empty());
        (0..computed.len()).map(|q| first(q) == Some(q)).collect()
    }

    /// After a stage that moves running statistics: everyone takes those of the first group.
    pub fn share_running(&mut self, l: LayerId, stage: &Stage) {
        if self.options.division.norm == NormOver::Global {
            return;
        }
        for operand in &stage.writes {
            if let Operand::Parameter(p) = *operand {
                let buffer = self.parameter_buffer(l, p);
                self.tell(buffer, l, (l.0 as u64) << 16 | p as u64);
            }
        }
    }

    /// Gives a buffer of the first rank with elements of a layer to all that have the same share of its parameters.
    fn tell(&mut self, buffer: BufferId, l: LayerId, subject: u64) {
        let (team, has_part) = self.team(l);
        let Some(&first) = team.iter().find(|&&q| has_part[q]) else { return };
        let part = Part { buffer, bytes: 0..self.buffers[buffer.0].bytes };
        let tag = TOLD | subject << 20;
        for (i, &q) in team.iter().enumerate().filter(|(_, q)| **q != first) {
            if self.rank.0 == first {
                self.send(part.clone(), convoy_split::Rank(q), tag | i as u64);
            } else if self.rank.0 == q {
                self.receive(part.clone(), convoy_split::Rank(first), tag | i as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Action, Options, Purpose, Subject, What, lower};
    use convoy_kernels::Pass;
    use convoy_net::{Kind, LayerId, zoo};
    use convoy_split::{Rank, Strategy};

    /// Backward, sums of a norm leave before weight gradients of the convolution after it are computed: these are what a rank does until the
    /// others' sums are there.
    #[test]
    fn sums_of_norms_travel_behind_weight_gradients() {
        let net = zoo::model("resnet20", Default::default()).unwrap().fused();
        let strategy = Strategy::parse("data", 3, &net, &net.shapes(8).unwrap()).unwrap();
        let program = lower(&net, &strategy, Rank(1), &Options::plain(8)).unwrap();
        let ancestors = program.ancestors();
        let weights = |l: LayerId| {
            program.ops.iter().position(|op| match &op.action {
                Action::Compute { subject, stage, .. } => {
                    *subject == Subject::Layer(l) && stage.pass == Pass::WeightGradient(0)
                }
                _ => false,
            })
        };
        let mut behind = 0;
        for (o, op) in program.ops.iter().enumerate() {
            let Action::Send { from, tag, .. } = &op.action else { continue };
            let What::Sum(Subject::Layer(l), number) = program.buffers[from.buffer.0].what else { continue };
            // Parts, not sums that go back.
            if Purpose::of(*tag) != Purpose::Reduction || *tag >> 20 & 1 == 1 {
                continue;
            }
            let next = LayerId(l.0 + 1);
            if number > crate::ahead::STATISTICS && matches!(net.layers[next.0].kind, Kind::Convolution(_)) {
                let weights = weights(next).expect("a convolution has weights");
                assert!(!ancestors[o].get(weights), "sums of {} wait for weight gradients", net.layers[l.0].name);
                behind += 1;
            }
        }
        assert!(behind >= 2 * 9, "{behind} messages");
    }
}
