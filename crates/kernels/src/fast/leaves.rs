//! Leaves side by side: for weight gradients that have fewer parts than there should be tiles, subtrees of leaves are summed by
//! different tiles, each into a buffer of its own, and folded in a stage that follows.

use super::fold;
use super::isa::{Isa, isa};
use crate::{BLOCK, Kernel, Operand, Operands, Work};
use std::ops::Range;

/// Floats folded at once: with all levels of the tree they stay in the second-level cache. Tests have few weights.
const PIECE: usize = if cfg!(test) { 128 } else { 4096 };
/// Floats of a tile, at most.
const TILE: usize = 8 * PIECE;

/// All leaves, cut into subtrees of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subtrees {
    /// The leaves of each; without those that have no samples, unless there is only one.
    pub ranges: Vec<Range<usize>>,
    /// Whether each has no samples, also of those left out.
    empty: Vec<bool>,
}

impl Subtrees {
    /// As few as give `wanted` tiles where the weights have `parts`. `empty`: per leaf, whether it has no samples.
    pub fn new(empty: &[bool], parts: usize, wanted: usize) -> Subtrees {
        // The tree splits at powers of two.
        let cut = |size: usize| (0..empty.len()).step_by(size).map(move |l| l..(l + size).min(empty.len()));
        let without = |leaves: &Range<usize>| empty[leaves.clone()].iter().all(|empty| *empty);
        let some = |size: usize| cut(size).filter(|leaves| !without(leaves)).collect::<Vec<_>>();
        let mut size = empty.len().next_power_of_two();
        while size > 1 && parts * some(size).len() < wanted {
            size /= 2;
        }
        match some(size).len() {
            0 | 1 => Subtrees { ranges: cut(empty.len().next_power_of_two()).collect(), empty: vec![false] },
            _ => Subtrees { ranges: some(size), empty: cut(size).map(|leaves| without(&leaves)).collect() },
        }
    }

    /// Whether one tile sums over all leaves.
    pub fn is_whole(&self) -> bool {
        self.ranges.len() == 1
    }

    /// Leaves of the largest.
    pub fn longest(&self) -> usize {
        self.ranges.iter().map(|leaves| leaves.len()).max().unwrap_or(1)
    }

    /// Folds sums of so many floats each.
    pub fn fold(&self, from: Operand, len: usize) -> Leaves {
        Leaves::new(from, len, self.empty.iter().copied())
    }
}

/// Folds `[leaf that is not empty][float]` to the gradient of parameter 0.
pub struct Leaves {
    isa: &'static Isa,
    from: Operand,
    /// Per leaf: the number of its sums, if it has any.
    numbers: Vec<Option<usize>>,
    len: usize,
    tile: usize,
}

impl Leaves {
    /// `len` floats in whole lines; `empty` says which leaves have none.
    fn new(from: Operand, len: usize, empty: impl Iterator<Item = bool>) -> Leaves {
        let mut count = 0;
        let numbers = empty.map(|empty| {
            count += usize::from(!empty);
            (!empty).then(|| count - 1)
        });
        let numbers = numbers.collect();
        let tile = len.div_ceil(8).next_multiple_of(BLOCK).clamp(PIECE.min(len.max(BLOCK)), TILE);
        Leaves { isa: isa(), from, numbers, len, tile }
    }
    pub fn tiles(&self) -> usize {
        self.len.div_ceil(self.tile)
    }
    pub fn scratch(&self) -> usize {
        fold::levels(self.numbers.len()) * PIECE
    }
    pub fn work(&self) -> Work {
        let read = (self.numbers.iter().flatten().count() * self.len) as f64;
        Work { flops: read, bytes: 4.0 * (read + self.len as f64) }
    }
}

impl Kernel for Leaves {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        fold::timed(|| self.fold(tile, operands, scratch));
    }
}

impl Leaves {
    fn fold(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let sums = operands.floats(self.from);
        let end = ((tile + 1) * self.tile).min(self.len);
        for at in (tile * self.tile..end).step_by(PIECE) {
            let len = PIECE.min(end - at);
            let mut levels: [&mut [f32]; 24] = Default::default();
            levels.iter_mut().zip(scratch.chunks_exact_mut(PIECE)).for_each(|(level, part)| *level = &mut part[..len]);
            let any = fold::tree(
                0..self.numbers.len(),
                &mut levels,
                &|l| self.numbers[l].is_none(),
                &mut |l, into: &mut &mut [f32]| {
                    let from = self.numbers[l].expect("not empty") * self.len + at;
                    into.copy_from_slice(&sums[from..from + len]);
                },
                &|into, from| self.isa.add(into, from),
            );
            // SAFETY: these floats are this tile's alone.
            let to = unsafe { operands.floats_mut(Operand::ParameterGradient(0), at..at + len) };
            match any {
                true => to.copy_from_slice(levels[0]),
                false => to.fill(0.0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as asked for, in whole subtrees, all samples in one of them.
    #[test]
    fn subtrees_cover_all_leaves() {
        for leaves in 1..=11 {
            for mask in 0..1u32 << leaves {
                let empty: Vec<bool> = (0..leaves).map(|l| mask >> l & 1 == 1).collect();
                for (parts, wanted) in [(1, 1), (1, 4), (3, 8), (2, 100)] {
                    let subtrees = Subtrees::new(&empty, parts, wanted);
                    let count = subtrees.empty.iter().filter(|empty| !**empty).count();
                    assert_eq!(count, subtrees.ranges.len());
                    let some = empty.iter().filter(|empty| !**empty).count();
                    let covered = subtrees.ranges.iter().flat_map(|r| r.clone()).filter(|&l| !empty[l]).count();
                    assert_eq!(covered, some, "{empty:?}");
                    assert!(parts * count >= wanted || count == some || count == 1, "{empty:?}: {subtrees:?}");
                    assert!(subtrees.ranges.iter().all(|r| r.start % subtrees.longest().next_power_of_two() == 0));
                }
            }
        }
    }
}
