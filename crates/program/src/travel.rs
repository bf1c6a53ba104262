//! Travels: what moves between a rank's holdings and those of others, forward and on the way back.

use crate::lower::Builder;
use crate::parts::Parts;
use crate::program::{Action, BufferId, Part, Purpose, What, whole};
use convoy_kernels::{BLOCK, Layout};
use convoy_net::{AXES, LayerId, Region};
use convoy_split::Exchange;

impl Builder<'_> {
    /// Margins and halos of everything that will read a tensor.
    pub fn fill(&mut self, l: LayerId) {
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

    /// Adds up what ranks computed, each over some of the input's channels, where it is owned. In the order of ranks, after
    /// the owner's own part.
    pub fn add_up(&mut self, l: LayerId) {
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
    pub fn gather_gradient(&mut self, l: LayerId) {
        if !self.parts[l.0].are_partial() {
            return;
        }
        let Parts { owned, computed, .. } = &self.parts[l.0];
        let exchange = Exchange::between(owned, computed, self.shapes[l.0], [false; AXES]);
        let target = self.found[&What::PartialGradient(l)];
        self.clear(target, self.computed(l));
        self.exchange(&exchange, What::Gradient(l, 0), What::PartialGradient(l), false, (l.0 as u64) << 16 | 1 << 11);
    }

    /// Brings home what consumers elsewhere added to a tensor's gradient, and clears its margins.
    pub fn complete_gradient(&mut self, l: LayerId) {
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
        let narrow = self.buffers[like.0].layout.as_ref().is_some_and(|l| l.block < BLOCK);
        let layout = if narrow { Layout::image(region) } else { Layout::dense(region) };
        let buffer = self.tensor_buffer(What::Message, &layout);
        (buffer, Part { buffer, bytes: 0..layout.len * 4 })
    }

    pub fn clear(&mut self, target: BufferId, keep: Region) {
        let all = whole(&self.buffers[target.0]);
        if !all.is_empty() && !keep.contains(&all) {
            self.push(Action::Clear { target, keep });
        }
    }
}
