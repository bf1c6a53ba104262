//! Grids: into which parts a layer may be cut over so many ranks.

use convoy_net::{LayerId, Network, Shape};
use convoy_split::{Grid, check};

/// Ranks up to which all products are looked at; beyond, samples with space, with filters, or with channels.
const ALL_PRODUCTS: usize = 16;

/// All grids over all ranks that a layer allows, samples first. Passed over: more parts than samples, but for samples alone, which
/// may leave ranks idle; and on many ranks products of more than samples and one other kind, of which there are too many.
pub fn grids(network: &Network, layer: LayerId, shapes: &[Shape], ranks: usize) -> Vec<Grid> {
    let mut all = vec![Grid::data(ranks)];
    for sample in divisors(ranks).into_iter().rev().filter(|&n| n < ranks && n <= shapes[layer.0].samples()) {
        for [filter, channel, depth, height, width] in products(ranks / sample, ranks <= ALL_PRODUCTS) {
            let grid = Grid { sample, filter, channel, depth, height, width };
            if check(&grid, layer, network, shapes).is_ok() {
                all.push(grid);
            }
        }
    }
    all
}

/// All ways to write a number as a product of five; or only those in which the first, the second or the last three are all of it.
fn products(n: usize, any: bool) -> Vec<[usize; 5]> {
    let mut all = vec![];
    for a in divisors(n).into_iter().filter(|&a| any || a == 1 || a == n) {
        for b in divisors(n / a).into_iter().filter(|&b| any || b == 1 || b == n / a) {
            for c in divisors(n / a / b) {
                all.extend(divisors(n / a / b / c).into_iter().map(|d| [a, b, c, d, n / a / b / c / d]));
            }
        }
    }
    all
}

/// From 1 to the number itself.
pub fn divisors(n: usize) -> Vec<usize> {
    (1..=n).filter(|d| n.is_multiple_of(*d)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoy_net::Kind;
    use convoy_net::layers::{Convolution, FullyConnected, GlobalAveragePool};

    #[test]
    fn grids_use_all_ranks_and_fit() {
        let mut net = Network::new("small", &[3, 6, 2]);
        net.push("conv", Kind::Convolution(Convolution::new(4, &[3, 3]).padding(1)));
        net.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
        net.push("fc1", Kind::FullyConnected(FullyConnected::new(6)));
        net.push("fc2", Kind::FullyConnected(FullyConnected::new(6)));
        let shapes = net.shapes(2).unwrap();
        let words = |l: usize, ranks: usize| -> Vec<String> {
            grids(&net, LayerId(l), &shapes, ranks).iter().map(Grid::to_string).collect()
        };
        assert_eq!(words(0, 4), ["data:4", "data:2,spatial:1x2", "data:2,spatial:2", "spatial:2x2", "spatial:4"]);
        let conv = words(1, 4);
        for grid in ["filter:4", "data:2,filter:2", "data:2,channel:2", "filter:2,spatial:2", "spatial:4"] {
            assert!(conv.contains(&grid.to_string()), "{grid} of {conv:?}");
        }
        // Three channels are read, two columns are there.
        assert!(!conv.contains(&"channel:4".to_string()) && !conv.contains(&"spatial:1x4".to_string()), "{conv:?}");
        // The loss reads all channels of the last layer.
        assert_eq!(words(4, 4), ["data:4"]);
        for ranks in 1..=12 {
            let all = (0..5).flat_map(|l| grids(&net, LayerId(l), &shapes, ranks));
            assert!(all.into_iter().all(|g| g.parts() == ranks));
        }
    }
}
