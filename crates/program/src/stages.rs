//! Stages: a layer's passes written down as ops, with the sums that they make over samples and over ranks.

use crate::lower::Builder;
use crate::norm::{NormOver, makes_statistics};
use crate::program::{Action, BufferId, Number, Subject, What};
use convoy_kernels::{Geometry, Make, Operand, Stage, fast};
use convoy_net::{Axis, LayerId, Region};
use std::sync::Arc;

impl Builder<'_> {
    /// Writes down stages with their operands; folds and reduces partial sums as they are made.
    pub fn stages(&mut self, subject: Subject, stages: Vec<Stage>, geometry: &Arc<Geometry>) {
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

    /// Takes part in the sums that a stage makes on other ranks.
    pub fn take_part(&mut self, subject: Subject, stage: &Stage) {
        for make in &stage.makes {
            if let Make::Partial { number, columns, .. } = *make {
                let sum = self.buffer(What::Sum(subject, number), columns * 8);
                self.reduce_sum(subject, stage, number, sum);
            }
        }
    }

    /// The ranks with which this one adds up sums of a layer, and by rank whether it has a part of them.
    pub fn team(&self, l: LayerId) -> (Vec<usize>, Vec<bool>) {
        let parts = &self.parts[l.0];
        (parts.team(self.rank.0), parts.computed.iter().map(|r| !r.is_empty()).collect())
    }

    /// What a rank without a part of a layer still does: take part in the sums that others need.
    pub fn stand_in(&mut self, l: LayerId, backward: bool) {
        if self.is_idle(l) {
            return;
        }
        let geometry = self.geometries[l.0].clone().expect("bug: no geometry");
        let twin = fast::twin(&self.network.layers[l.0].kind);
        let stages = if backward { twin.backward(&geometry) } else { twin.forward(&geometry) };
        // Where nobody of a group has anything there are no statistics.
        let empty = if geometry.normed == 0 { statistics(&stages) } else { vec![] };
        for stage in stages {
            self.take_part(Subject::Layer(l), &stage);
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
