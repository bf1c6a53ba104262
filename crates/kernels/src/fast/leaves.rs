//! Sums of leaves, each in a buffer of its own, folded to one: for weight gradients whose leaves are summed side by side.

use super::fold;
use super::isa::{Isa, isa};
use crate::{BLOCK, Kernel, Operand, Operands, Work};

/// Floats folded at once: with all levels of the tree they stay in the second-level cache.
const PIECE: usize = 4096;
/// Floats of a tile, at most.
const TILE: usize = 8 * PIECE;

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
    pub fn new(from: Operand, len: usize, empty: impl Iterator<Item = bool>) -> Leaves {
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
