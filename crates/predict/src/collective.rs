//! Collectives: how long sums and gathers over ranks take, by algorithm.
//!
//! Every algorithm is named by what it does, never by the paper it stands in. `p` ranks, `n` elements, and a [`Link`] that says
//! what a message costs. Times are those of ranks that start together and have the link to themselves.
//!
//! Knows nothing of programs or networks. Golden numbers: PAPERS.md 1.8, 3.2, 6.4.

/// What it costs to send and to add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds before the first byte arrives.
    pub latency_seconds: f64,
    /// Seconds for each byte.
    pub byte_seconds: f64,
    /// Seconds to add one element to another.
    pub add_seconds: f64,
}

/// How a sum over ranks, which all of them get, is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllReduce {
    /// Everyone sends everyone its slice, adds, and sends the sum back: what Convoy's programs do. Two phases of `p - 1` messages
    /// that are on their way together.
    Direct,
    /// Slices go round twice.
    Ring,
    /// Whole arrays between partners at distance 1, 2, 4, ...; powers of two only.
    RecursiveDoubling,
    /// Halves, quarters, ... to partners, then back; powers of two only.
    Rabenseifner,
    /// Up a binary tree and down again.
    Tree,
}

impl AllReduce {
    pub const ALL: [AllReduce; 5] =
        [AllReduce::Direct, AllReduce::Ring, AllReduce::RecursiveDoubling, AllReduce::Rabenseifner, AllReduce::Tree];

    /// Whether so many ranks can do it.
    pub fn is_possible(self, p: usize) -> bool {
        match self {
            AllReduce::RecursiveDoubling | AllReduce::Rabenseifner => p.is_power_of_two(),
            _ => true,
        }
    }

    /// Seconds to sum `n` elements of `element_bytes` over `p` ranks.
    pub fn seconds(self, p: usize, n: f64, element_bytes: f64, link: Link) -> f64 {
        if p <= 1 {
            return 0.0;
        }
        let Link { latency_seconds: alpha, byte_seconds: beta, add_seconds: gamma } = link;
        let (ranks, steps) = (p as f64, (p as f64).log2());
        let wire = n * element_bytes * beta;
        let others = (ranks - 1.0) / ranks;
        match self {
            AllReduce::Direct => 2.0 * alpha + 2.0 * others * wire + others * n * gamma,
            AllReduce::Ring => 2.0 * (ranks - 1.0) * (alpha + wire / ranks) + others * n * gamma,
            AllReduce::RecursiveDoubling => steps * (alpha + wire + n * gamma),
            AllReduce::Rabenseifner => 2.0 * steps * alpha + 2.0 * others * wire + others * n * gamma,
            AllReduce::Tree => steps.ceil() * (alpha + 2.0 * wire + n * gamma),
        }
    }
}

/// The cheapest algorithm that is possible, among those given.
pub fn cheapest(among: &[AllReduce], p: usize, n: f64, element_bytes: f64, link: Link) -> (AllReduce, f64) {
    let possible = among.iter().filter(|a| a.is_possible(p));
    let timed = possible.map(|&a| (a, a.seconds(p, n, element_bytes, link)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((AllReduce::Direct, f64::INFINITY))
}

/// A sum inside nodes of `inner` ranks by ring, then over `outer` leaders, whose link carries `flows` at once.
pub fn hierarchical(inner: (usize, Link), outer: (usize, Link), flows: f64, n: f64, element_bytes: f64) -> f64 {
    let slow = Link { byte_seconds: outer.1.byte_seconds * flows, ..outer.1 };
    AllReduce::Ring.seconds(inner.0, n, element_bytes, inner.1)
        + AllReduce::Ring.seconds(outer.0, n, element_bytes, slow)
}

/// How everyone gets everyone's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllGather {
    /// Parts go round.
    Ring,
    /// Between partners at distance 1, 2, 4, ...
    RecursiveDoubling,
    /// Gathered by a tree and scattered: four latencies a level.
    Tree,
}

impl AllGather {
    /// Seconds until everyone has all `n` elements, of which each of `p` ranks gave as many.
    pub fn seconds(self, p: usize, n: f64, element_bytes: f64, link: Link) -> f64 {
        if p <= 1 {
            return 0.0;
        }
        let (ranks, steps) = (p as f64, (p as f64).log2());
        let wire = (ranks - 1.0) / ranks * n * element_bytes * link.byte_seconds;
        let latencies = match self {
            AllGather::Ring => ranks - 1.0,
            AllGather::RecursiveDoubling => steps,
            AllGather::Tree => 4.0 * steps.ceil(),
        };
        latencies * link.latency_seconds + wire
    }
}

/// Seconds of a sum of `n` elements of which each of `p` ranks keeps its slice, by ring.
pub fn reduce_scatter(p: usize, n: f64, element_bytes: f64, link: Link) -> f64 {
    let ranks = p.max(1) as f64;
    AllGather::Ring.seconds(p, n, element_bytes, link) + (ranks - 1.0) / ranks * n * link.add_seconds
}

/// Seconds of one message.
pub fn message(bytes: f64, link: Link) -> f64 {
    link.latency_seconds + bytes * link.byte_seconds
}

/// When sums that run in the background one at a time, in the order they become ready, and the computation that makes them are
/// both over. By layer in the order of the backward pass: seconds of its backward pass, and of its sum.
///
/// ```
/// assert_eq!(convoy_predict::collective::overlapped(0.0, &[(3.0, 5.0), (2.0, 1.0), (4.0, 2.0), (1.0, 3.0)]), 14.0);
/// ```
pub fn overlapped(forward_seconds: f64, backward: &[(f64, f64)]) -> f64 {
    let (mut time, mut link) = (forward_seconds, 0.0f64);
    for &(compute, sum) in backward {
        time += compute;
        if sum > 0.0 {
            link = link.max(time) + sum;
        }
    }
    time.max(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64) {
        // Six digits are given.
        assert!((found / wanted - 1.0).abs() < 2e-6, "{found} {wanted}");
    }

    const BETWEEN: Link = Link { latency_seconds: 1.2e-6, byte_seconds: 3.893e-11, add_seconds: 1.075e-13 };
    const INSIDE: Link = Link { latency_seconds: 8e-6, byte_seconds: 2.661e-11, add_seconds: 1.075e-13 };

    /// Dryden's rule: short arrays by recursive doubling, others by Rabenseifner's algorithm.
    fn by_length(p: usize, n: usize, link: Link) -> f64 {
        let algorithm = if n <= 512 { AllReduce::RecursiveDoubling } else { AllReduce::Rabenseifner };
        algorithm.seconds(p, n as f64, 4.0, link)
    }

    #[test]
    fn golden_sums_of_dryden() {
        for (p, n, between, inside) in [
            (4, 9408, 6.99828e-06, 3.35028e-05),
            (8, 256, 3.71968e-06, 2.40818e-05),
            (16, 57600, 2.64236e-05, 7.55013e-05),
            (64, 442368, 1.50065e-04, 1.88747e-04),
            (512, 25503912, 7.95176e-03, 5.56541e-03),
        ] {
            near(by_length(p, n, BETWEEN), between);
            near(by_length(p, n, INSIDE), inside);
        }
        near(AllGather::RecursiveDoubling.seconds(8, 1e6, 4.0, BETWEEN), 1.39855e-04);
    }

    #[test]
    fn golden_halos_of_dryden() {
        let words = |n: f64| message(n * 4.0, BETWEEN);
        // conv1_1 of the mesh model on a 4 x 4 grid: strips along both axes, corners.
        let halo = |o: f64, c: f64, h: f64| 4.0 * words(o * c * h) + 4.0 * words(o * o * c);
        near(halo(2.0, 18.0, 512.0), 2.11258e-05);
        near(halo(2.0, 128.0, 256.0), 5.07400e-05);
        near(2.0 * words(2.0 * 18.0 * 2048.0), 2.53618e-05);
        near(2.0 * words(2.0 * 128.0 * 1024.0), 8.40421e-05);
    }

    #[test]
    fn golden_collectives_of_pydtnn() {
        let link = Link { latency_seconds: 0.5e-6, byte_seconds: 8.0 / 1e9, add_seconds: 1.0 / 4e12 };
        let sum = |a: AllReduce, n: f64, p: usize| a.seconds(p, n, 4.0, link);
        near(sum(AllReduce::Rabenseifner, 1000.0, 8), 5.90002e-05);
        near(sum(AllReduce::Tree, 1000.0, 8), 1.93501e-04);
        near(sum(AllReduce::Rabenseifner, 138357544.0, 8), 7.74806);
        near(sum(AllReduce::Tree, 138357544.0, 8), 26.5648);
        near(sum(AllReduce::Rabenseifner, 138357544.0, 64), 8.71657);
        near(sum(AllReduce::Tree, 138357544.0, 64), 53.1295);
        near(AllGather::Ring.seconds(8, 1000.0, 4.0, link), 3.15000e-05);
        near(AllGather::Tree.seconds(8, 1000.0, 4.0, link), 3.40000e-05);
        near(AllGather::Ring.seconds(8, 12845056.0, 4.0, link), 0.359665);
        near(AllGather::Tree.seconds(8, 12845056.0, 4.0, link), 0.359668);
        near(reduce_scatter(8, 12845056.0, 4.0, link), 0.359668);
    }

    #[test]
    fn golden_collectives_of_paradl() {
        let link = Link { latency_seconds: 1e-5, byte_seconds: 1e-10, add_seconds: 0.0 };
        near(AllReduce::Ring.seconds(4, 1e6, 1.0, link), 2.1e-4);
        near(AllGather::Ring.seconds(4, 1e6, 1.0, link), 1.05e-4);
        // VGG-16's weights in nodes of 4 over NVLink, then over 256 nodes with 8 flows a link.
        let inside = Link { latency_seconds: 9e-6, byte_seconds: 1.0 / 50e9, add_seconds: 0.0 };
        let between = Link { latency_seconds: 40.98e-6, byte_seconds: 1.0 / 12.5e9, add_seconds: 0.0 };
        let weights = 169_801_408.0;
        near(hierarchical((4, inside), (1, between), 8.0, weights, 4.0), 0.02043016896);
        near(hierarchical((1, inside), (256, between), 8.0, weights, 4.0), 0.8868869808);
    }

    #[test]
    fn the_cheapest_depends_on_length_and_ranks() {
        let all = &AllReduce::ALL[1..];
        assert_eq!(cheapest(all, 8, 16.0, 4.0, BETWEEN).0, AllReduce::RecursiveDoubling);
        assert_eq!(cheapest(all, 8, 1e6, 4.0, BETWEEN).0, AllReduce::Rabenseifner);
        // Six ranks have no partners at distance four.
        assert_eq!(cheapest(all, 6, 1e7, 4.0, BETWEEN).0, AllReduce::Ring);
        assert_eq!(cheapest(all, 6, 1.0, 4.0, BETWEEN).0, AllReduce::Tree);
        assert!(all.iter().all(|a| a.seconds(1, 1e6, 4.0, BETWEEN) == 0.0));
    }
}
