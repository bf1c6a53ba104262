//! Buckets: gradients of several parameters that ranks add up together.
//!
//! A message costs the same however short it is, so gradients of small parameters lie side by side in one buffer and are summed
//! as one, as soon as the last of them is there: while earlier layers still compute.
//!
//! Always true
//! - A bucket's ranks have the same share of all its parameters, and all of them know it alike, whatever the batch is.
//! - Each number is summed over ranks in tree order, as it would be alone: the same bits.

use crate::home::slice;
use crate::lower::Builder;
use crate::program::{Action, Home, Number, Part, What};
use crate::reduce::SumOrder;
use convoy_kernels::{Geometry, Mode, Stage, fast};
use convoy_net::{LayerId, Role};

/// Buckets hold at least the least, or a quarter of all that their ranks have in common, but need not hold more than the most.
const LEAST_BYTES: usize = 1 << 16;
const MOST_BYTES: usize = 1 << 20;

/// Parameters begin on cache lines, as kernels want them.
const ALIGN: usize = 64;

/// Gradients that are summed together.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The ranks that sum them, in order.
    pub team: Vec<usize>,
    /// Parameters in the order in which backward makes their gradients, each with its first byte.
    pub members: Vec<(LayerId, usize, usize)>,
    pub bytes: usize,
}

impl Bucket {
    /// The parameter that it is called by.
    pub fn first(&self) -> (LayerId, usize) {
        let (l, p, _) = self.members[0];
        (l, p)
    }

    /// The layer whose backward pass completes it.
    pub fn last(&self) -> LayerId {
        self.members.last().expect("bug: an empty bucket").0
    }
}

impl Builder<'_> {
    /// All buckets of this rank.
    pub fn plan_buckets(&self) -> Vec<Bucket> {
        let mut alone: Vec<Bucket> = vec![];
        let layers = (1..self.network.layers.len()).rev().map(LayerId);
        let wanted = self.network.wanted_gradients(self.shapes);
        for l in layers.filter(|&l| wanted[l.0] && !self.is_idle(l)) {
            let backward = self.weight_stages(l);
            let team = self.team(l).0;
            for (p, parameter) in self.network.parameters(l, self.shapes).iter().enumerate() {
                let is_summed = parameter.role == Role::Trained && self.gradient_parts(l, p, &backward).is_some();
                if is_summed && team.len() > 1 {
                    let bytes = self.packed_bytes(l, p).next_multiple_of(ALIGN);
                    alone.push(Bucket { team: team.clone(), members: vec![(l, p, 0)], bytes });
                }
            }
        }
        let common = |team: &[usize]| alone.iter().filter(|b| b.team == team).map(|b| b.bytes).sum::<usize>();
        let mut buckets: Vec<Bucket> = vec![];
        for one in &alone {
            let enough = (common(&one.team) / 4).clamp(LEAST_BYTES, MOST_BYTES);
            match buckets.iter_mut().rev().find(|b| b.team == one.team).filter(|b| b.bytes < enough) {
                Some(bucket) => {
                    let (l, p, _) = one.members[0];
                    bucket.members.push((l, p, bucket.bytes));
                    bucket.bytes += one.bytes;
                }
                None => buckets.push(one.clone()),
            }
        }
        buckets
    }

    /// The stages that make a layer's weight gradients, also where a program only evaluates: buckets are the same for all of a
    /// rank's programs.
    fn weight_stages(&self, l: LayerId) -> Vec<Stage> {
        let geometry = self.geometries[l.0].as_ref().expect("bug: no geometry");
        let output_gradient = Some(geometry.output.layout.clone());
        let input_gradients = vec![None; geometry.inputs.len()];
        let geometry = Geometry { mode: Mode::Train, output_gradient, input_gradients, ..Geometry::clone(geometry) };
        fast::twin(&self.network.layers[l.0].kind).backward(&geometry)
    }

    /// Gives the gradients of buckets their places.
    pub fn lay_out_buckets(&mut self) {
        for bucket in self.buckets.clone() {
            let (l, p) = bucket.first();
            let outer = self.buffer(What::Bucket(l, p), bucket.bytes);
            for (l, p, first) in bucket.members {
                let gradient = self.parameter(What::ParameterGradient(l, p), l, p, Home::Step);
                self.buffers[gradient.0].within = Some((outer, first));
            }
        }
    }

    /// After the backward pass of a layer: what of its gradients is no part of a sum is zero.
    pub fn leave_out(&mut self, l: LayerId, backward: &[Stage]) {
        let members = self.buckets.iter().flat_map(|b| &b.members);
        let own: Vec<usize> = members.filter(|m| m.0 == l).map(|m| m.1).collect();
        for p in own {
            if self.gradient_parts(l, p, backward).is_some_and(|has_part| !has_part[self.rank.0]) {
                let buffer = self.found[&What::ParameterGradient(l, p)];
                let into = Part { buffer, bytes: 0..self.buffers[buffer.0].bytes };
                self.push(Action::Combine { parts: vec![None], into, number: Number::Single });
            }
        }
    }

    /// What becomes of the buckets that a layer's backward pass completes: parts leave and arrive. What follows is written down
    /// when the next ones are complete; until then nobody gets their bytes, who would have to wait for their sums.
    pub fn complete_buckets(&mut self, l: LayerId) {
        let complete: Vec<Bucket> = self.buckets.iter().filter(|b| b.last() == l).cloned().collect();
        if complete.is_empty() {
            return;
        }
        self.update_buckets();
        for bucket in complete {
            let (first, p) = bucket.first();
            let (buffer, has_part) = (self.found[&What::Bucket(first, p)], self.parts_of(&bucket));
            let subject = (first.0 as u64) << 12 | p as u64;
            let sums = self.options.division.sums;
            if sums != SumOrder::Tree && !self.is_sharded() {
                let sum = if sums == SumOrder::Ring { Self::ring } else { Self::by_library };
                sum(self, buffer, Number::Single, &bucket.team, &has_part, subject);
                self.complete.push((bucket, None));
                continue;
            }
            let slices = match self.is_sharded() {
                true => (0..bucket.team.len()).map(|q| slice(&bucket, q)).collect(),
                false => self.slices(buffer, Number::Single, bucket.team.len()),
            };
            let reduction = self.begin_reduction((buffer, Number::Single), slices, &bucket.team, &has_part, subject);
            self.complete.push((bucket, Some(reduction)));
        }
    }

    /// Sums buckets that are complete and lets the optimizer have them.
    pub fn update_buckets(&mut self) {
        for (bucket, reduction) in std::mem::take(&mut self.complete) {
            match reduction {
                Some(reduction) if self.is_sharded() => {
                    self.push_bucket(&bucket, &reduction);
                    continue;
                }
                Some(reduction) => self.end_reduction(reduction),
                None => {}
            }
            bucket.members.iter().for_each(|&(l, p, _)| self.update(l, p));
        }
    }

    /// By rank: whether it has a part of any of the gradients.
    fn parts_of(&self, bucket: &Bucket) -> Vec<bool> {
        let mut has_part = vec![false; self.strategy.ranks];
        for &(l, p, _) in &bucket.members {
            let parts = self.gradient_parts(l, p, &self.weight_stages(l)).expect("bug: a gradient that is whole");
            has_part.iter_mut().zip(parts).for_each(|(any, one)| *any |= one);
        }
        has_part
    }
}

#[cfg(test)]
mod tests {
    use crate::{Action, Division, Options, Program, Purpose, Subject, SumOrder, What, lower};
    use convoy_kernels::{Pass, Update};
    use convoy_net::{Network, zoo};
    use convoy_split::{Rank, Strategy};

    fn program(net: &Network, strategy: &str, ranks: usize, rank: usize) -> Program {
        divided(net, strategy, ranks, rank, Division::default())
    }

    fn divided(net: &Network, strategy: &str, ranks: usize, rank: usize, division: Division) -> Program {
        let batch = 8;
        let strategy = Strategy::parse(strategy, ranks, net, &net.shapes(batch).unwrap()).unwrap();
        let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let options = Options { update, division, ..Options::plain(batch) };
        lower(net, &strategy, Rank(rank), &options).unwrap()
    }

    /// Of all buckets but the last, messages leave while gradients of activations are still to be computed; and there are fewer
    /// messages than gradients.
    #[test]
    fn buckets_leave_before_the_backward_pass_ends() {
        for (model, strategy, ranks) in [("resnet20", "data", 4), ("resnet20", "spatial", 2), ("lenet", "data", 2)] {
            let net = zoo::model(model, Default::default()).unwrap().fused();
            let program = program(&net, strategy, ranks, 1);
            let ancestors = program.ancestors();
            let is_backward = |o: &usize| match &program.ops[*o].action {
                Action::Compute { subject: Subject::Layer(_), stage, .. } => {
                    matches!(stage.pass, Pass::InputGradient(_))
                }
                _ => false,
            };
            let backward: Vec<usize> = (0..program.ops.len()).filter(is_backward).collect();
            let buckets = program.buffers.iter().filter(|b| matches!(b.what, What::Bucket(..))).count();
            assert!((2..=8).contains(&buckets), "{model}: {buckets} buckets");
            let mut overlapped = std::collections::BTreeSet::new();
            let mut messages = 0;
            for (o, op) in program.ops.iter().enumerate() {
                let part = match &op.action {
                    Action::Send { from, tag, .. } if Purpose::of(*tag) == Purpose::Reduction => from,
                    _ => continue,
                };
                let what = program.buffers[part.buffer.0].what;
                if let What::Bucket(..) = what {
                    messages += 1;
                    // Neither waits for the other.
                    if backward.iter().any(|&b| !ancestors[o].get(b) && !ancestors[b].get(o)) {
                        overlapped.insert(what);
                    }
                }
            }
            assert!(overlapped.len() + 1 >= buckets, "{model} under {strategy}: {overlapped:?} of {buckets}");
            // Two messages with every other rank for each bucket: one would be two for each gradient.
            assert_eq!(messages, 2 * (ranks - 1) * buckets, "{model} under {strategy}");
            let gradients = program.buffers.iter().filter(|b| b.within.is_some()).count();
            assert!(gradients > 2 * buckets, "{model}: {gradients} gradients in {buckets} buckets");
        }
    }

    /// A library must be asked for sums in one order by all who share any: each waits for the one before, and there is an order of all
    /// sums that every rank keeps.
    #[test]
    fn sums_by_a_library_have_one_order() {
        let net = zoo::model("resnet20", Default::default()).unwrap().fused();
        let division = Division { sums: SumOrder::Library, ..Division::default() };
        for (strategy, ranks) in [("data", 4), ("data:2,filter:2", 4), ("data:2,spatial:2", 4)] {
            let mut orders: Vec<Vec<(Vec<usize>, u64)>> = vec![];
            for rank in 0..ranks {
                let program = divided(&net, strategy, ranks, rank, division);
                let (ancestors, mut before, mut order) = (program.ancestors(), None, vec![]);
                for (o, op) in program.ops.iter().enumerate() {
                    if let Action::AllReduce { team, tag, .. } = &op.action {
                        assert!(team.contains(&rank) && before.is_none_or(|b| ancestors[o].get(b)), "{strategy}");
                        before = Some(o);
                        order.push((team.clone(), *tag));
                    }
                }
                let buckets = program.buffers.iter().filter(|b| matches!(b.what, What::Bucket(..))).count();
                assert_eq!(order.len(), buckets, "{strategy}");
                orders.push(order);
            }
            // Ask for the first of what is left wherever all members would: nobody is left waiting.
            assert!(orders.iter().all(|order| order.len() > 1), "{strategy}");
            while let Some(sum) = orders.iter().find_map(|order| {
                let sum = order.first()?;
                sum.0.iter().all(|&rank| orders[rank].first() == Some(sum)).then(|| sum.clone())
            }) {
                sum.0.iter().for_each(|&rank| drop(orders[rank].remove(0)));
            }
            assert!(orders.iter().all(Vec::is_empty), "{strategy}: {orders:?} wait for each other");
        }
    }
}
