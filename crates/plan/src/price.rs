//! Prices: what a layer costs under a grid, and what it costs to bring it its input.
//!
//! Estimates by formula, of the slowest rank, without overlap: good enough to find candidates, which are then simulated.

use crate::Asked;
use crate::eliminate::Price;
use crate::grids::divisors;
use convoy_net::{Axis, LayerId, LayerSummary, Region, Role, Shape};
use convoy_predict::{Seat, Spread, Sum, Way};
use convoy_program::{Division, ParameterHome, SumOrder};
use convoy_split::{Grid, read};
use std::collections::BTreeMap;

/// Everything about a job that prices need.
pub struct Prices<'a> {
    asked: &'a Asked<'a>,
    shapes: &'a [Shape],
    summary: Vec<LayerSummary>,
    wanted: Vec<bool>,
    seats: Vec<Seat>,
    core_flops: f64,
    core_bandwidth: f64,
    add_bandwidth: f64,
    threads: f64,
    /// By layer and shares of its parameters: seconds of its sums over ranks.
    sums: Vec<BTreeMap<usize, f64>>,
}

impl<'a> Prices<'a> {
    pub fn new(asked: &'a Asked, shapes: &'a [Shape]) -> Result<Prices<'a>, convoy_net::Error> {
        let seats = asked.machine.seats(asked.ranks, asked.ranks_per_node);
        let slowest = |of: &dyn Fn(&Seat) -> f64| seats.iter().map(of).fold(f64::INFINITY, f64::min);
        let groups = &asked.machine.groups;
        let threads = |s: &Seat| asked.threads.unwrap_or(asked.machine.threads(s)) as f64;
        let bandwidth = |s: &Seat| {
            let busy = (threads(s) * s.neighbours as f64).min(groups[s.group].cores as f64);
            groups[s.group].core_bandwidth.min(groups[s.group].node_bandwidth / busy)
        };
        let mut prices = Prices {
            asked,
            shapes,
            summary: asked.network.summary(asked.options.batch)?,
            wanted: asked.network.wanted_gradients(shapes),
            core_flops: slowest(&|s| groups[s.group].core_flops),
            core_bandwidth: slowest(&bandwidth),
            add_bandwidth: slowest(&|s| bandwidth(s).min(groups[s.group].add_bandwidth)),
            threads: slowest(&threads),
            seats,
            sums: vec![],
        };
        let spread = |shares: usize| {
            let nodes = prices.seats.iter().step_by(shares).map(|s| s.node);
            (shares, Spread::of(asked.machine, nodes))
        };
        let spreads: Vec<(usize, Spread)> = divisors(asked.ranks).into_iter().map(spread).collect();
        let sums =
            |l: usize| spreads.iter().map(|(n, spread)| (*n, prices.sum_seconds(LayerId(l), *n, spread))).collect();
        prices.sums = (0..shapes.len()).map(sums).collect();
        Ok(prices)
    }

    /// Gradients of parameters are summed over the ranks that have the same share of them: of those that share samples, `shares`
    /// have different ones.
    fn sum_seconds(&self, layer: LayerId, shares: usize, spread: &Spread) -> f64 {
        let parameters = self.asked.network.parameters(layer, self.shapes).into_iter();
        let each = parameters.filter(|p| p.role == Role::Trained).map(|p| {
            let bytes = p.len().div_ceil(shares) * 4;
            let sum = Sum { bytes, element_bytes: 4, bandwidth: self.add_bandwidth, way: self.way() };
            sum.seconds(self.asked.machine, spread, self.asked.collectives).0
        });
        each.sum()
    }

    /// How gradients are summed.
    fn way(&self) -> Way {
        match self.asked.options.division {
            Division { home: ParameterHome::Sharded, .. } => Way::Kept,
            Division { sums: SumOrder::Ring, .. } => Way::Ring,
            Division { sums: SumOrder::Library, .. } => Way::Library,
            _ => Way::Reduced,
        }
    }

    /// A layer under a grid: passes, sums, and the memory of its output and its parameters.
    pub fn own(&self, layer: LayerId, grid: &Grid) -> Price {
        let summary = &self.summary[layer.0];
        let output = self.shapes[layer.0];
        let operation = self.asked.network.layers[layer.0].kind.operation();
        // Where input channels are cut, parts of sums are computed: all of the output, from some of the input.
        let terms = if operation.sums_channels() { grid.channel as f64 } else { 1.0 };
        let part = largest(grid, output, operation.sums_channels());
        let share = part.len() as f64 / output.len() as f64 / terms;
        let inputs = &self.asked.network.layers[layer.0].inputs;
        let kind = &self.asked.network.layers[layer.0].kind;
        let shapes = self.asked.network.input_shapes(layer, self.shapes);
        let needed = |i: usize| {
            let region = read(kind, &shapes, output, i, &part).intersect(&Region::whole(shapes[i]));
            region.len() as f64 / terms
        };
        let read: f64 = (0..inputs.len()).map(needed).sum();
        let gradient = self.wanted[layer.0] as usize as f64;
        let back = inputs.iter().any(|i| self.wanted[i.0]) as usize as f64;
        let weights = (summary.parameters > 0) as usize as f64;
        let shares = grid.filter * grid.channel;
        let bytes = 4.0 * (read + part.len() as f64) + 4.0 * (summary.parameters / shares) as f64;
        let once = (summary.flops as f64 * share / self.core_flops).max(bytes / self.core_bandwidth);
        let passes = if inputs.is_empty() { 0.0 } else { 1.0 + gradient * (back + weights) };
        // Parts of sums are added up where they are owned, and their gradient is gathered.
        let adding = match terms > 1.0 {
            true => (1.0 + gradient) * self.messages_seconds(grid.channel, 4.0 * part.len() as f64, grid, grid),
            false => 0.0,
        };
        Price {
            seconds: passes * once / self.threads + self.sums[layer.0][&shares] + adding,
            bytes: 4.0 * ((1.0 + gradient) * part.len() as f64 + 3.0 * (summary.parameters / shares) as f64),
        }
    }

    /// What the price of an exchange depends on, but for the grids.
    pub fn exchange_key(&self, tensor: LayerId, consumer: LayerId) -> String {
        let network = self.asked.network;
        let layer = &network.layers[consumer.0];
        let reads: Vec<bool> = layer.inputs.iter().map(|input| *input == tensor).collect();
        let (shapes, from) = (network.input_shapes(consumer, self.shapes), &network.layers[tensor.0].kind);
        let wanted = self.wanted[tensor.0];
        format!("{:?} {shapes:?} {:?} {reads:?} {} {wanted}", layer.kind, self.shapes[consumer.0], from.name())
    }

    /// Seconds to bring a consumer under a grid what it reads of a tensor under another, and its gradient back.
    pub fn exchange(&self, tensor: LayerId, consumer: LayerId, from: &Grid, to: &Grid) -> f64 {
        let network = self.asked.network;
        // Images are loaded by whoever needs them.
        if network.layers[tensor.0].inputs.is_empty() || self.asked.ranks == 1 {
            return 0.0;
        }
        let inputs = network.input_shapes(consumer, self.shapes);
        let shape = self.shapes[tensor.0];
        let layer = &network.layers[consumer.0];
        let mut most = 0.0f64;
        for (position, _) in layer.inputs.iter().enumerate().filter(|(_, input)| **input == tensor) {
            // Some ranks of all: the first, the last and some in between are unlike enough.
            for rank in [0, self.asked.ranks / 3, self.asked.ranks / 2, self.asked.ranks - 1] {
                let sums = layer.kind.operation().sums_channels();
                let output = self.shapes[consumer.0];
                let out = if sums { to.computed(output, rank) } else { to.region(output, rank) };
                let needed = read(&layer.kind, &inputs, output, position, &out);
                let mut needed = needed.intersect(&Region::whole(shape));
                if sums && to.channel > 1 {
                    let (first, end) = to.channels(shape.channels(), rank);
                    needed = needed.with(Axis::Channel, first, end);
                }
                if needed.is_empty() {
                    continue;
                }
                let own = from.region(shape, rank);
                let missing = needed.len() - own.intersect(&needed).len();
                if missing > 0 {
                    most =
                        most.max(self.messages_seconds(owners(from, shape, &needed), missing as f64 * 4.0, from, to));
                }
            }
        }
        let ways = 1.0 + self.wanted[tensor.0] as usize as f64;
        ways * most
    }

    /// So many bytes from so many ranks, at the level at which parts of one sample are apart.
    fn messages_seconds(&self, sources: usize, bytes: f64, from: &Grid, to: &Grid) -> f64 {
        let machine = self.asked.machine;
        // Ranks that share samples under either grid.
        let apart = (self.asked.ranks / from.sample).max(self.asked.ranks / to.sample).max(2) - 1;
        let level = machine.level(self.seats[0].node, self.seats[apart.min(self.seats.len() - 1)].node);
        let level = &machine.levels[level];
        let contention = if level.nodes > 1 { level.contention(self.seats[0].neighbours) } else { 1.0 };
        let messages = sources.saturating_sub(1).max(1) as f64;
        level.latency_seconds + messages * level.message_seconds + bytes * contention / level.bandwidth
    }
}

/// The part of a grid that is largest: its first along axes that are cut in blocks, and samples differ by one at most.
fn largest(grid: &Grid, shape: Shape, sums_channels: bool) -> Region {
    let first = if sums_channels { grid.computed(shape, 0) } else { grid.region(shape, 0) };
    first.with(Axis::Sample, 0, shape.samples().div_ceil(grid.sample) as isize)
}

/// How many parts of a grid a region has points of.
fn owners(grid: &Grid, shape: Shape, region: &Region) -> usize {
    let parts = [(Axis::Sample, grid.sample), (Axis::Channel, grid.filter * grid.channel)];
    let parts = parts.into_iter().chain(Axis::SPACE.into_iter().zip(grid.space()));
    let along = |(axis, parts): (Axis, usize)| {
        let (start, end) = region.range(axis);
        let size = shape.along(axis).max(1);
        let at = |point: isize| point.max(0) as usize * parts / size;
        at(end - 1) - at(start) + 1
    };
    parts.map(along).product()
}
