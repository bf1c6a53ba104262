//! The twin of exchanges: element by element, who owns it and who needs it.
//!
//! The walk asks no region and no axis map. Points are handed out to parts one by one ([`owner`]), and every output names
//! the inputs that its layer's definition reads ([`taps`]). A [`Problem`] is a tensor, who owns it, and the layers that read
//! it; [`check`] holds its exchanges against the walk, and against their adjoints: <Ax, y> = <x, A'y> over whole numbers,
//! so that both sides are exact.
//!
//! Rows of up to seven points completely; in two and three dimensions at random, with a fixed seed.

use convoy_net::layers::*;
use convoy_net::{AXES, Axis, Edge, Kind, Region, Sampling, Shape};
use convoy_split::{Exchange, Grid, Placement, Rank, read};
use proptest::prelude::{Just, any, prop, prop_oneof};
use proptest::strategy::Strategy as Generator;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::ops::Range;

type Point = [isize; AXES];

/// A tensor, who owns it, and who reads it.
#[derive(Clone, Debug)]
struct Problem {
    /// All ranks of the job; a placement may be over some of them, in any order.
    ranks: usize,
    tensor: Shape,
    owner: Placement,
    consumers: Vec<Consumer>,
}

/// A layer that reads the tensor.
#[derive(Clone, Debug)]
struct Consumer {
    kind: Kind,
    /// Of all that it reads.
    inputs: Vec<Shape>,
    /// Which of them is the tensor.
    position: usize,
    placement: Placement,
}

impl Consumer {
    fn output(&self) -> Shape {
        self.kind.operation().infer(&self.inputs).expect("a layer that takes its inputs")
    }

    /// Whether ranks each sum over some of the input's channels.
    fn is_partial(&self) -> bool {
        self.placement.grid.channel > 1 && self.kind.operation().sums_channels()
    }

    /// What each rank computes.
    fn computed(&self, ranks: usize) -> Vec<Region> {
        match self.is_partial() {
            true => self.placement.computed(self.output(), ranks),
            false => self.placement.owned(self.output(), ranks),
        }
    }

    /// What each rank reads of the tensor, as the library says.
    fn needed(&self, ranks: usize) -> Vec<Region> {
        let (tensor, computed) = (self.inputs[self.position], self.computed(ranks));
        let channels = self.placement.channels(tensor.channels(), ranks);
        let needed = computed.iter().enumerate().map(|(rank, region)| {
            let region = read(&self.kind, &self.inputs, self.output(), self.position, region);
            match self.is_partial() && !region.is_empty() {
                true => region.with(Axis::Channel, channels[rank].0, channels[rank].1),
                false => region,
            }
        });
        needed.collect()
    }

    fn periodic(&self) -> [bool; AXES] {
        let maps = self.kind.operation().maps(&self.inputs, self.output(), self.position);
        maps.map(|map| map.edge() == Edge::Periodic)
    }

    /// The ranks that compute an output, each with the input channels that it sums over.
    fn makers(&self, at: Point) -> Vec<(Rank, Range<isize>)> {
        let (place, all) = (owner_place(&self.placement, self.output(), at), self.inputs[self.position].channels());
        if !self.is_partial() {
            return vec![(rank_at(&self.placement, place), 0..all as isize)];
        }
        let parts = self.placement.grid.channel;
        let part = |c: usize| {
            let mine = (0..all).filter(|&channel| part_of(all, parts, channel) == c);
            let (first, many) = (mine.clone().next().unwrap_or(0) as isize, mine.count() as isize);
            (rank_at(&self.placement, Place { channel: c, ..place }), first..first + many)
        };
        (0..parts).map(part).collect()
    }

    /// Whether the least box around what is read is what is needed. Windows that are spread leave gaps, and a flattened
    /// element is one of many: there more may be needed than is read.
    fn is_tight(&self) -> bool {
        !matches!(self.kind, Kind::TransposedConvolution(_) | Kind::Flatten(_))
    }
}

/// Where a part is in a grid.
#[derive(Clone, Copy)]
struct Place {
    sample: usize,
    filter: usize,
    channel: usize,
    space: [usize; 3],
}

/// The part that has point `at` of `n` when parts take points in turn, the first `n mod parts` one more.
fn part_of(n: usize, parts: usize, at: usize) -> usize {
    let mut left = at;
    for part in 0..parts {
        let size = n / parts + usize::from(part < n % parts);
        if left < size {
            return part;
        }
        left -= size;
    }
    panic!("point {at} of {n}")
}

/// The part of the samples that has sample `at`: the last one that begins at or before it.
fn sample_part_of(n: usize, placement: &Placement, at: usize) -> usize {
    let parts = placement.grid.sample;
    let shares = if placement.shares.is_empty() { vec![1; parts] } else { placement.shares.clone() };
    let start = |part: usize| n * shares[..part].iter().sum::<usize>() / shares.iter().sum::<usize>();
    (0..parts).rev().find(|&part| start(part) <= at).expect("the first part begins at 0")
}

fn owner_place(placement: &Placement, shape: Shape, at: Point) -> Place {
    let (grid, [n, c, d, h, w]) = (&placement.grid, at.map(|i| i as usize));
    let [samples, channels, depth, height, width] = shape.0;
    let filter = part_of(channels, grid.filter, c);
    // Those who have the same filters share them once more by their channel part.
    let mates: Vec<usize> = (0..channels).filter(|&other| part_of(channels, grid.filter, other) == filter).collect();
    Place {
        sample: sample_part_of(samples, placement, n),
        filter,
        channel: part_of(mates.len(), grid.channel, c - mates[0]),
        space: [part_of(depth, grid.depth, d), part_of(height, grid.height, h), part_of(width, grid.width, w)],
    }
}

/// Ranks are counted with width fastest, then height, depth, channel, filter, samples.
fn rank_at(placement: &Placement, place: Place) -> Rank {
    let (grid, [d, h, w]) = (&placement.grid, place.space);
    let i = (place.sample * grid.filter + place.filter) * grid.channel + place.channel;
    placement.ranks[((i * grid.depth + d) * grid.height + h) * grid.width + w]
}

fn owner(placement: &Placement, shape: Shape, at: Point) -> Rank {
    rank_at(placement, owner_place(placement, shape, at))
}

/// Along each axis, the inputs that an output of a layer reads; some may be beyond the tensor.
fn taps(consumer: &Consumer, at: Point) -> [Vec<isize>; AXES] {
    let (input, output) = (consumer.inputs[consumer.position], consumer.output());
    let same = at.map(|i| vec![i]);
    let all = |axis: Axis| (0..input.along(axis) as isize).collect::<Vec<_>>();
    let space = |along: &dyn Fn(usize, isize, isize) -> Vec<isize>| {
        [0, 1, 2].map(|s| along(s, at[2 + s], input.space()[s] as isize))
    };
    let windows = |windows: &Windows| {
        space(&|s, i, _| {
            let (kernel, stride, dilation, [before, _]) = windows.along(s);
            (0..kernel).map(|k| (i * stride as isize) - before as isize + (k * dilation) as isize).collect()
        })
    };
    let group = |groups: usize| {
        let (inputs, outputs) = (input.channels() / groups, output.channels() / groups);
        all(Axis::Channel).into_iter().filter(|c| *c as usize / inputs == at[1] as usize / outputs).collect::<Vec<_>>()
    };
    let shifted = |before: usize| {
        let c = at[1] - before as isize;
        all(Axis::Channel).into_iter().filter(|&channel| channel == c).collect::<Vec<_>>()
    };
    let [n, c, d, h, w] = same;
    let (c, [d, h, w]) = match &consumer.kind {
        Kind::Convolution(layer) => (group(layer.groups), windows(&layer.windows)),
        Kind::MaxPool(layer) => (c, windows(&layer.windows)),
        Kind::AveragePool(layer) => (c, windows(&layer.windows)),
        Kind::TransposedConvolution(layer) => {
            let spread = |s: usize, i: isize, n: isize| {
                let (kernel, stride, dilation, [before, _]) = layer.windows.along(s);
                let reaches = |j: isize| {
                    (0..kernel).any(|k| j * stride as isize - before as isize + (k * dilation) as isize == i)
                };
                (0..n).filter(|&j| reaches(j)).collect()
            };
            (group(layer.groups), space(&spread))
        }
        Kind::Upsample(layer) => {
            let between = |s: usize, i: isize, n: isize| {
                let m = output.space()[s] as isize;
                let low = match layer.sampling {
                    _ if n == m => return vec![i],
                    Sampling::Nearest => return vec![i / (m / n)],
                    // Half a cell of the input is m cells of 1/2m of it.
                    Sampling::Linear => ((2 * i + 1) * n - m).max(0) / (2 * m),
                    Sampling::LinearCorners => i * (n - 1) / (m - 1),
                };
                vec![low, (low + 1).min(n - 1)]
            };
            (c, space(&between))
        }
        Kind::AdaptiveAveragePool(_) => {
            let overlapping = |s: usize, i: isize, n: isize| {
                let m = output.space()[s] as isize;
                (0..n).filter(|j| (j + 1) * m > i * n && j * m < (i + 1) * n).collect()
            };
            (c, space(&overlapping))
        }
        Kind::GlobalAveragePool(_) => (c, Axis::SPACE.map(all)),
        Kind::FullyConnected(_) => (all(Axis::Channel), Axis::SPACE.map(all)),
        Kind::Flatten(_) => {
            let (c, points) = (at[1] as usize, input.points());
            let [_, rows, columns] = input.space();
            let place = [c % points / (rows * columns), c / columns % rows, c % columns];
            (vec![(c / points) as isize], place.map(|i| vec![i as isize]))
        }
        Kind::Concat(_) => (shifted(consumer.inputs[..consumer.position].iter().map(Shape::channels).sum()), [d, h, w]),
        Kind::PadChannels(layer) => (shifted(layer.before), [d, h, w]),
        Kind::LocalResponseNorm(layer) => {
            let around = at[1] - (layer.size / 2) as isize;
            ((around..around + layer.size as isize).collect(), [d, h, w])
        }
        Kind::Multiply(_) if input.points() == 1 => (c, [vec![0], vec![0], vec![0]]),
        _ => (c, [d, h, w]),
    };
    [n, c, d, h, w]
}

/// All points of a region, in order.
fn points(region: Region) -> impl Iterator<Item = Point> {
    let sizes = region.shape().0;
    (0..region.len()).map(move |mut i| {
        let mut at = region.start;
        for a in (0..AXES).rev() {
            at[a] += (i % sizes[a]) as isize;
            i /= sizes[a];
        }
        at
    })
}

/// Which of the points of a region one is.
fn place_in(region: &Region, at: Point) -> usize {
    (0..AXES).fold(0, |i, a| {
        assert!(region.start[a] <= at[a] && at[a] < region.end[a], "{at:?} is not in {region}");
        i * (region.end[a] - region.start[a]) as usize + (at[a] - region.start[a]) as usize
    })
}

/// The element that a place around a tensor stands for: itself, what it wraps around to, or nothing.
fn stands_for(at: Point, shape: Shape, periodic: [bool; AXES]) -> Option<Point> {
    let mut element = at;
    for a in 0..AXES {
        let n = shape.0[a] as isize;
        if periodic[a] {
            element[a] = at[a].rem_euclid(n);
        }
        if !(0..n).contains(&element[a]) {
            return None;
        }
    }
    Some(element)
}

/// A small whole number that looks random.
fn number(of: usize) -> i64 {
    ((of as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i64 % 97 - 48
}

/// One number for each element of each rank's region.
type Values = Vec<Vec<i64>>;

fn zeros(regions: &[Region]) -> Values {
    regions.iter().map(|region| vec![0; region.len()]).collect()
}

fn random(regions: &[Region], salt: usize) -> Values {
    let rank = |(q, region): (usize, &Region)| (0..region.len()).map(|i| number(salt + 7919 * q + i)).collect();
    regions.iter().enumerate().map(rank).collect()
}

/// Carries an exchange out: what arrives is added.
fn carry_out(exchange: &Exchange, sources: &[Region], from: &Values, targets: &[Region]) -> Values {
    let mut into = zeros(targets);
    for t in &exchange.transfers {
        let (source, target) = (t.source.0, t.target.0);
        for at in points(t.region) {
            let to = std::array::from_fn(|a| at[a] + t.shift[a]);
            into[target][place_in(&targets[target], to)] += from[source][place_in(&sources[source], at)];
        }
    }
    into
}

fn product(a: &Values, b: &Values) -> i64 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| a * b).sum()
}

/// <Ax, y> = <x, A'y>, and transfers in the order that sums are made in, both ways.
fn check_adjoint(exchange: &Exchange, owned: &[Region], needed: &[Region]) {
    let back = exchange.adjoint();
    let (x, y) = (random(owned, 1), random(needed, 2));
    let there = carry_out(exchange, owned, &x, needed);
    let and_back = carry_out(&back, needed, &y, owned);
    assert_eq!(product(&there, &y), product(&x, &and_back), "the way back is not the adjoint");
    for exchange in [exchange, &back] {
        assert!(exchange.transfers.is_sorted_by_key(|t| (t.target, t.source)), "{exchange:?}");
    }
}

/// Every needed element that exists arrives once, from the one who owns it, and where it is needed.
fn check_arrivals(problem: &Problem, exchange: &Exchange, needed: &[Region], periodic: [bool; AXES]) {
    let Problem { tensor, owner: placement, .. } = problem;
    // What arrived: how often, and the last number of the element.
    let mut arrived: Vec<Vec<(usize, usize)>> = needed.iter().map(|region| vec![(0, 0); region.len()]).collect();
    for t in &exchange.transfers {
        for at in points(t.region) {
            assert_eq!(owner(placement, *tensor, at), t.source, "who owns {at:?}");
            let to = std::array::from_fn(|a| at[a] + t.shift[a]);
            let slot = &mut arrived[t.target.0][place_in(&needed[t.target.0], to)];
            *slot = (slot.0 + 1, place_in(&Region::whole(*tensor), at));
        }
    }
    for (region, arrived) in needed.iter().zip(&arrived) {
        for (at, &found) in points(*region).zip(arrived) {
            let wanted = stands_for(at, *tensor, periodic).map(|at| (1, place_in(&Region::whole(*tensor), at)));
            assert_eq!(found, wanted.unwrap_or((0, 0)), "what arrives at {at:?}");
        }
    }
}

/// What a rank needs holds every input that its outputs read, and no more than the box around them.
fn check_needs(consumer: &Consumer, needed: &[Region]) {
    let mut read = vec![Region::EMPTY; needed.len()];
    for at in points(Region::whole(consumer.output())) {
        let taps = taps(consumer, at);
        for (rank, channels) in consumer.makers(at) {
            let mut taps = taps.clone();
            if consumer.is_partial() {
                taps[1].retain(|c| channels.contains(c));
            }
            let ends = taps.each_ref().map(|t| (t.iter().min(), t.iter().max().map(|t| t + 1)));
            let around = Region {
                start: ends.map(|(first, _)| *first.unwrap_or(&0)),
                end: ends.map(|(_, end)| end.unwrap_or(0)),
            };
            read[rank.0] = read[rank.0].hull(&around);
        }
    }
    for (rank, (read, needed)) in read.iter().zip(needed).enumerate() {
        match consumer.is_tight() {
            true if read.is_empty() => assert!(needed.is_empty(), "rank {rank} reads nothing, is to need {needed}"),
            true => assert_eq!(read, needed, "rank {rank}"),
            false => assert!(needed.contains(read), "rank {rank} reads {read}, is to need {needed}"),
        }
    }
}

/// Parts of sums go from all who computed one to the one who owns it, and gradients the other way.
fn check_sums(consumer: &Consumer, ranks: usize) {
    let (output, none) = (consumer.output(), [false; AXES]);
    let (computed, owned) = (consumer.computed(ranks), consumer.placement.owned(output, ranks));
    let mut wanted = vec![];
    for at in points(Region::whole(output)) {
        let target = owner(&consumer.placement, output, at);
        wanted.extend(consumer.makers(at).iter().map(|(source, _)| (target, *source, at)));
    }
    wanted.sort();
    let moves = |exchange: &Exchange| {
        let each = |t: &convoy_split::Transfer| {
            let (target, source) = (t.target, t.source);
            points(t.region.shifted(t.shift)).map(move |at| (target, source, at))
        };
        let mut all: Vec<_> = exchange.transfers.iter().flat_map(each).collect();
        all.sort();
        all
    };
    let sums = Exchange::between(&computed, &owned, output, none);
    assert_eq!(moves(&sums), wanted, "parts of sums");
    assert_eq!(moves(&sums.adjoint()), moves(&Exchange::between(&owned, &computed, output, none)), "their gradients");
    check_adjoint(&sums, &computed, &owned);
}

/// The regions that the ranks of a problem need for a consumer, and the exchange that brings them.
fn exchange_for(problem: &Problem, consumer: &Consumer) -> (Vec<Region>, Exchange) {
    let (owned, needed) = (problem.owner.owned(problem.tensor, problem.ranks), consumer.needed(problem.ranks));
    let exchange = Exchange::between(&owned, &needed, problem.tensor, consumer.periodic());
    (needed, exchange)
}

fn check(problem: &Problem) {
    let Problem { ranks, tensor, ref owner, ref consumers } = *problem;
    let owned = owner.owned(tensor, ranks);
    for consumer in consumers {
        let (needed, exchange) = exchange_for(problem, consumer);
        check_needs(consumer, &needed);
        check_arrivals(problem, &exchange, &needed, consumer.periodic());
        check_adjoint(&exchange, &owned, &needed);
        if consumer.is_partial() {
            check_sums(consumer, ranks);
        }
    }
    // Several that agree about edges may read one holding around what is owned.
    let periodic = consumers[0].periodic();
    if consumers.len() > 1 && consumers.iter().all(|consumer| consumer.periodic() == periodic) {
        let mut needed = owned.clone();
        for consumer in consumers {
            needed.iter_mut().zip(consumer.needed(ranks)).for_each(|(all, more)| *all = all.hull(&more));
        }
        let exchange = Exchange::between(&owned, &needed, tensor, periodic);
        check_arrivals(problem, &exchange, &needed, periodic);
        check_adjoint(&exchange, &owned, &needed);
        check_adjoint(&exchange.without_stays(), &owned, &needed);
    }
}

/// All layers with windows on an axis of `size` points, within the sizes that the exhaustive test is about.
fn rows(size: usize) -> Vec<Kind> {
    let mut kinds = vec![];
    let along = |kernel, stride, dilation, padding| Windows {
        kernel: vec![kernel, 1],
        stride: vec![stride, 1],
        padding: vec![padding, [0, 0]],
        dilation: vec![dilation, 1],
    };
    for (kernel, stride, before, after) in every([1..8, 1..5, 0..5, 0..5]) {
        for dilation in 1..4 {
            let windows = along(kernel, stride, dilation, [before, after]);
            for edge in [Edge::Zero, Edge::Periodic] {
                let new = Convolution { edge, ..Convolution::new(1, &[1, 1]) };
                kinds.push(Kind::Convolution(Convolution { windows: windows.clone(), ..new }));
            }
            let new = TransposedConvolution::new(1, &[1, 1]);
            kinds.push(Kind::TransposedConvolution(TransposedConvolution { windows, ..new }));
        }
        for ceil in [false, true] {
            let windows = along(kernel, stride, 1, [before, after]);
            kinds.push(Kind::AveragePool(AveragePool { windows: windows.clone(), ceil, count_padding: true }));
            kinds.push(Kind::MaxPool(MaxPool { windows, ceil }));
        }
    }
    for scale in 1..5 {
        for sampling in [Sampling::Nearest, Sampling::Linear, Sampling::LinearCorners] {
            kinds.push(Kind::Upsample(Upsample { scale: vec![scale, 1], sampling }));
        }
        kinds.push(Kind::AdaptiveAveragePool(AdaptiveAveragePool::new(&[scale, 1])));
    }
    kinds.extend([Kind::GlobalAveragePool(GlobalAveragePool), Kind::Activation(Activation::Relu)]);
    kinds.retain(|kind| kind.operation().infer(&[Shape([1, 1, 1, size, 1])]).is_ok());
    kinds
}

fn every([a, b, c, d]: [Range<usize>; 4]) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let pairs = move |a: usize| b.clone().map(move |b| (a, b));
    let threes = move |(a, b)| c.clone().map(move |c| (a, b, c));
    a.flat_map(pairs).flat_map(threes).flat_map(move |(a, b, c)| d.clone().map(move |d| (a, b, c, d)))
}

/// Windows of up to 7 taps, strides up to 4, dilations up to 3, paddings up to 4 on each side, zero and periodic edges, on
/// up to 7 points over up to 4 ranks; pooling, transposed convolution and upsampling as well.
#[test]
fn rows_completely() {
    let (mut wraps, mut far, mut idle) = (0, 0, 0);
    for size in 1..8 {
        let tensor = Shape([1, 1, 1, size, 1]);
        for kind in rows(size) {
            for ranks in 1..5 {
                let placement = Placement::over(Grid::rows(ranks));
                let consumer =
                    Consumer { kind: kind.clone(), inputs: vec![tensor], position: 0, placement: placement.clone() };
                let problem = Problem { ranks, tensor, owner: placement, consumers: vec![consumer] };
                let said = Said(&problem);
                check(said.0);
                let (needed, exchange) = exchange_for(&problem, &problem.consumers[0]);
                let moves = &exchange.transfers;
                wraps += usize::from(moves.iter().any(|t| t.shift != [0; AXES]));
                far += usize::from(moves.iter().any(|t| t.shift == [0; AXES] && t.source.0.abs_diff(t.target.0) > 1));
                idle += usize::from(needed.iter().any(Region::is_empty));
            }
        }
    }
    // The cases that are easy to get wrong are among them.
    assert!(wraps > 1000 && far > 1000 && idle > 1000, "{wraps} wrap, {far} reach far, {idle} have idle ranks");
}

/// Says what was checked when the check fails.
struct Said<'a>(&'a Problem);

impl Drop for Said<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:#?}", self.0);
        }
    }
}

/// Any grid of at most so many parts, over any ranks in any order, with or without shares of samples.
fn placements(ranks: usize) -> impl Generator<Value = Placement> {
    let cuts = prop::array::uniform6(1usize..4);
    let order = Just((0..ranks).map(Rank).collect::<Vec<_>>()).prop_shuffle();
    let axes = Just([0, 1, 2, 3, 4, 5]).prop_shuffle();
    let shares = prop_oneof![Just(vec![]), prop::collection::vec(1usize..4, 6)];
    (cuts, axes, order, shares).prop_map(move |(cuts, axes, mut order, mut shares)| {
        // Axes in random order take their cuts while there are ranks left.
        let mut parts = [1; 6];
        for axis in axes {
            if parts.iter().product::<usize>() * cuts[axis] <= ranks {
                parts[axis] = cuts[axis];
            }
        }
        let [sample, filter, channel, depth, height, width] = parts;
        let grid = Grid { sample, filter, channel, depth, height, width };
        order.truncate(grid.parts());
        shares.truncate(sample);
        Placement { ranks: order, grid, shares }
    })
}

/// Windows in two or three dimensions.
fn windows() -> impl Generator<Value = Windows> {
    let axis = (1usize..5, 1usize..4, 1usize..3, 0usize..3, 0usize..3);
    prop::collection::vec(axis, 2..4).prop_map(|axes| Windows {
        kernel: axes.iter().map(|axis| axis.0).collect(),
        stride: axes.iter().map(|axis| axis.1).collect(),
        dilation: axes.iter().map(|axis| axis.2).collect(),
        padding: axes.iter().map(|axis| [axis.3, axis.4]).collect(),
    })
}

/// Any layer that reads a tensor, and what else it reads; some do not fit it.
fn layers(tensor: Shape) -> impl Generator<Value = (Kind, Vec<Shape>, usize)> {
    let groups = prop_oneof![Just(1), Just(1), Just(2)];
    let convolution = (windows(), groups, 1usize..3, any::<bool>()).prop_map(|(windows, groups, filters, wraps)| {
        let edge = if wraps { Edge::Periodic } else { Edge::Zero };
        let new = Convolution { groups, edge, ..Convolution::new(filters * groups, &[1]) };
        Kind::Convolution(Convolution { windows, ..new })
    });
    let transposed = (windows(), 1usize..3, 1usize..3).prop_map(|(windows, groups, filters)| {
        let new = TransposedConvolution { groups, ..TransposedConvolution::new(filters * groups, &[1]) };
        Kind::TransposedConvolution(TransposedConvolution { windows, ..new })
    });
    let max = (windows(), any::<bool>()).prop_map(|(windows, ceil)| Kind::MaxPool(MaxPool { windows, ceil }));
    let average = (windows(), any::<bool>()).prop_map(|(windows, ceil)| {
        let windows = Windows { dilation: vec![], ..windows };
        Kind::AveragePool(AveragePool { windows, ceil, count_padding: true })
    });
    let samplings = prop_oneof![Just(Sampling::Nearest), Just(Sampling::Linear), Just(Sampling::LinearCorners)];
    let upsample = (prop::collection::vec(1usize..4, 1..4), samplings)
        .prop_map(|(scale, sampling)| Kind::Upsample(Upsample { scale, sampling }));
    let adaptive = prop::collection::vec(1usize..5, 1..4)
        .prop_map(|output| Kind::AdaptiveAveragePool(AdaptiveAveragePool { output }));
    let pad = (0usize..3, 0usize..3).prop_map(|(before, after)| Kind::PadChannels(PadChannels { before, after }));
    let simple = prop_oneof![
        Just(Kind::Activation(Activation::Relu)),
        Just(Kind::BatchNorm(BatchNorm::default())),
        Just(Kind::GlobalAveragePool(GlobalAveragePool)),
        Just(Kind::Flatten(Flatten)),
        Just(Kind::FullyConnected(FullyConnected::new(3))),
        Just(Kind::LocalResponseNorm(LocalResponseNorm::new(3))),
    ];
    let windowed = prop_oneof![4 => convolution, 2 => transposed, 1 => max, 1 => average];
    let other = prop_oneof![2 => upsample, 1 => adaptive, 1 => pad, 3 => simple];
    let alone = prop_oneof![windowed, other];
    let concat =
        (prop::collection::vec(1usize..4, 1..3), any::<prop::sample::Index>()).prop_map(move |(others, at)| {
            let with = |channels: usize| Shape([tensor.0[0], channels, tensor.0[2], tensor.0[3], tensor.0[4]]);
            let position = at.index(others.len() + 1);
            let mut inputs: Vec<Shape> = others.into_iter().map(with).collect();
            inputs.insert(position, tensor);
            (Kind::Concat(Concat), inputs, position)
        });
    let pairs = prop_oneof![Just(Kind::Add(Add)), Just(Kind::Multiply(Multiply))];
    let pair = (pairs, 0usize..2).prop_map(move |(kind, position)| (kind, vec![tensor; 2], position));
    prop_oneof![8 => alone.prop_map(move |kind| (kind, vec![tensor], 0)), 2 => concat, 1 => pair]
}

fn problems() -> impl Generator<Value = Problem> {
    let shapes = (1usize..4, 1usize..5, 1usize..4, 1usize..7, 1usize..7);
    let consumers = |tensor: Shape, ranks: usize| {
        let fits = |layer: &(Kind, Vec<Shape>, usize)| layer.0.operation().infer(&layer.1).is_ok();
        let consumer = (layers(tensor).prop_filter("layers that do not fit", fits), placements(ranks));
        prop::collection::vec(consumer, 1..4)
    };
    (shapes, 1usize..9).prop_flat_map(move |((n, c, d, h, w), ranks)| {
        let tensor = Shape([n, c, d, h, w]);
        (placements(ranks), consumers(tensor, ranks)).prop_map(move |(owner, readers)| {
            // Often readers are placed as the owner is: then what moves is a halo.
            let consumers = readers.into_iter().enumerate().map(|(i, ((kind, inputs, position), placement))| {
                let placement = if i % 2 == 0 { owner.clone() } else { placement };
                Consumer { kind, inputs, position, placement }
            });
            let consumers = consumers.collect();
            Problem { ranks, tensor, owner, consumers }
        })
    })
}

/// Two and three dimensions: any layer, any two placements, several consumers.
#[test]
fn planes_and_volumes_at_random() {
    let config = Config { cases: 4000, failure_persistence: None, max_local_rejects: 1 << 20, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[23; 32]));
    let [corners, gathers, moves, sums] = std::array::from_fn(|_| std::cell::Cell::new(0));
    let count = |cell: &std::cell::Cell<usize>, is: bool| cell.set(cell.get() + usize::from(is));
    let checked = runner.run(&problems(), |problem| {
        check(&problem);
        let owned = problem.owner.owned(problem.tensor, problem.ranks);
        for consumer in &problem.consumers {
            let (_, exchange) = exchange_for(&problem, consumer);
            // A corner lies outside of what its target owns along two axes of space or more.
            let outside = |t: &convoy_split::Transfer| {
                let (own, part) = (owned[t.target.0], t.region.shifted(t.shift));
                let leaves = |axis: &&Axis| {
                    let ((a, b), (c, d)) = (own.range(**axis), part.range(**axis));
                    d <= a || b <= c
                };
                !own.is_empty() && Axis::SPACE.iter().filter(leaves).count() > 1
            };
            let halo = consumer.placement == problem.owner;
            count(&corners, halo && exchange.transfers.iter().any(outside));
            count(&gathers, consumer.placement.grid.parts() < problem.owner.grid.parts());
            count(&moves, !halo && exchange.transfers.iter().any(|t| t.source != t.target));
            count(&sums, consumer.is_partial());
        }
        Ok(())
    });
    checked.unwrap();
    let found = [&corners, &gathers, &moves, &sums].map(|cell| cell.get());
    assert!(found.iter().all(|&n| n > 50), "corners, gathers onto fewer, redistributions, parts of sums: {found:?}");
}
