//! Updates: what becomes of a parameter's gradient once it is there. Gradients that ranks sum together are `bucket.rs`'s.

use crate::lower::Builder;
use crate::program::{Action, BufferId, Home, Number, Subject, What};
use convoy_kernels::fast;
use convoy_kernels::{Make, Operand};
use convoy_net::{Axis, LayerId, Region, Role};

impl Builder<'_> {
    /// Sums parameter gradients over ranks and lets the optimizer have them: those that are whole now, and those of buckets that
    /// are complete.
    pub fn update_all(&mut self, l: LayerId) {
        if self.is_idle(l) {
            return;
        }
        let geometry = self.geometries[l.0].clone().expect("bug: no geometry");
        let backward = fast::twin(&self.network.layers[l.0].kind).backward(&geometry);
        self.leave_out(l, &backward);
        for (p, parameter) in self.network.parameters(l, self.shapes).iter().enumerate() {
            let in_bucket = self.buckets.iter().any(|b| b.members.iter().any(|m| (m.0, m.1) == (l, p)));
            if parameter.role == Role::Trained && !in_bucket {
                self.update(l, p);
            }
        }
        self.complete_buckets(l);
    }

    /// The optimizer's step of a parameter.
    pub fn update(&mut self, l: LayerId, p: usize) {
        let gradient = self.operand(Subject::Layer(l), Operand::ParameterGradient(p));
        let (update, subject) = (self.options.update, Subject::Update(l, p));
        let len = self.buffers[gradient.0].bytes / 4;
        for stage in update.stages(len) {
            self.make(subject, &stage, 1);
            let used: Vec<Operand> = stage.reads.iter().chain(&stage.writes).copied().collect();
            let mut operands: Vec<(Operand, BufferId)> =
                used.into_iter().map(|o| (o, self.update_operand(l, p, o, len))).collect();
            operands.sort();
            operands.dedup();
            let makes = stage.makes.clone();
            self.push(Action::Update { layer: l, parameter: p, update, len, stage, operands });
            for make in &makes {
                if let Make::Partial { number, strips, columns } = *make {
                    let sum = self.buffer(What::Sum(subject, number), columns * 8);
                    let partial = self.found[&What::Partial(subject, number)];
                    self.push(Action::Fold { partial, sum, samples: 0..1, batch: 1, leaves: 1, strips });
                    self.sum_over_shares(l, p, sum);
                }
            }
        }
    }

    /// Adds up what ranks found of their shares of a parameter, each share once.
    fn sum_over_shares(&mut self, l: LayerId, p: usize, sum: BufferId) {
        let (parts, inputs) = (&self.parts[l.0], self.network.input_shapes(l, self.shapes));
        let parameter = &self.network.parameters(l, self.shapes)[p];
        let range = |region: Region| {
            let (start, end) = region.range(Axis::Channel);
            start as usize..end as usize
        };
        let share = |q: usize| {
            let input = parts.read(self.network, self.shapes, l, 0, q);
            let output = (range(parts.computed[q]), self.shapes[l.0].channels());
            parameter.share(output, (range(input), inputs[0].channels()))
        };
        let ranks = parts.computed.len();
        let team: Vec<usize> = (0..ranks).filter(|&q| parts.computed[q].size(Axis::Channel) > 0).collect();
        let shares: Vec<_> = (0..ranks).map(share).collect();
        let is_first = |q: usize| team.iter().find(|&&r| shares[r] == shares[q]) == Some(&q);
        let has_part: Vec<bool> = (0..ranks).map(is_first).collect();
        if has_part.iter().filter(|part| **part).count() > 1 {
            self.reduce(sum, Number::Double, &team, &has_part, (l.0 as u64) << 12 | 1 << 9 | p as u64);
        }
    }

    fn update_operand(&mut self, l: LayerId, p: usize, operand: Operand, len: usize) -> BufferId {
        match operand {
            Operand::Parameter(0) => self.operand(Subject::Layer(l), Operand::Parameter(p)),
            Operand::ParameterGradient(0) => self.operand(Subject::Layer(l), Operand::ParameterGradient(p)),
            Operand::State(k) => self.buffer_with(What::State(l, p, k), len * 4, Home::Kept, None),
            other => self.operand(Subject::Update(l, p), other),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Action, Op, Options, Subject, lower};
    use convoy_net::zoo;
    use convoy_split::{Rank, Strategy};

    /// The optimizer does not wait for the end of the backward pass, nor it for the optimizer: nine of ten updates have passes of
    /// layers that may run beside them, and only one comes after all of these. More would cost memory, since what waits for an
    /// update does so for its gradient's bytes.
    #[test]
    fn updates_run_beside_the_backward_pass() {
        for (model, batch) in [("lenet", 128), ("resnet20", 128), ("vgg16", 8), ("unet", 2), ("resnet50", 16)] {
            let net = zoo::model(model, Default::default()).unwrap().fused();
            let strategy = Strategy::parse("data", 1, &net, &net.shapes(batch).unwrap()).unwrap();
            let program = lower(&net, &strategy, Rank(0), &Options::plain(batch)).unwrap();
            let ancestors = program.ancestors();
            let all = |is: &dyn Fn(&Op) -> bool| {
                program.ops.iter().enumerate().filter(|(_, op)| is(op)).map(|(o, _)| o).collect::<Vec<usize>>()
            };
            let updates = all(&|op| matches!(op.action, Action::Update { .. }));
            let passes = all(&|op| matches!(op.action, Action::Compute { subject: Subject::Layer(_), .. }));
            let beside = |u: &&usize| passes.iter().any(|p| !ancestors[**u].get(*p) && !ancestors[*p].get(**u));
            let overlapped = updates.iter().filter(beside).count();
            assert!(
                overlapped + updates.len().div_ceil(10) >= updates.len(),
                "{model}: {overlapped} of {} updates",
                updates.len()
            );
            let last = passes.last().expect("a network has passes");
            assert_eq!(updates.iter().filter(|u| ancestors[**u].get(*last)).count(), 1, "{model}: updates at the end");
        }
    }
}
