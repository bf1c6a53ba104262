//! Grids: into which parts a layer may be cut over so many ranks.

use convoy_net::{Axis, Shape};
use convoy_split::Grid;

/// All grids over all ranks that an output of this shape allows, samples first. Passed over: more parts than samples or points
/// along an axis, but for samples alone, which may leave ranks idle; and more parts in width than in height, since columns
/// travel no better than rows and must be packed.
pub fn grids(shape: Shape, ranks: usize) -> Vec<Grid> {
    let [depth, height, width] = Axis::SPACE.map(|axis| shape.along(axis));
    let mut all = vec![Grid::data(ranks)];
    for sample in divisors(ranks).into_iter().rev().filter(|&n| n < ranks && n <= shape.samples()) {
        let rest = ranks / sample;
        for d in divisors(rest).into_iter().filter(|&d| d <= depth) {
            for w in divisors(rest / d).into_iter().filter(|&w| w <= width) {
                let h = rest / d / w;
                if h <= height && w <= h {
                    all.push(Grid { sample, depth: d, height: h, width: w, ..Grid::default() });
                }
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

    #[test]
    fn grids_use_all_ranks_and_fit() {
        let shape = Shape([4, 3, 1, 6, 6]);
        let words: Vec<String> = grids(shape, 8).iter().map(Grid::to_string).collect();
        assert_eq!(words, ["data:8", "data:4,spatial:2", "data:2,spatial:4", "data:2,spatial:2x2", "spatial:4x2"]);
        // After global pooling there is nothing to cut but samples.
        assert_eq!(grids(Shape([4, 3, 1, 1, 1]), 8), [Grid::data(8)]);
        for ranks in 1..=12 {
            assert!(grids(Shape([3, 8, 5, 7, 4]), ranks).iter().all(|g| g.parts() == ranks));
        }
    }
}
