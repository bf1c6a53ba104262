//! Folding: sums over the batch in an order that depends on the batch alone.
//!
//! A batch is cut into leaves of consecutive samples. A leaf is summed in the order of samples and strips, leaves are
//! combined by a fixed binary tree: a rank that holds whole subtrees gets the bits that one rank would. Empty leaves are
//! passed over, never added as zeros.

use super::isa::Isa;
use crate::stage::leaf_range;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds that all threads spent on adding leaves of weight gradients together.
static SPENT: AtomicU64 = AtomicU64::new(0);

/// Seconds that all threads of this process spent on adding leaves of weight gradients together, where they were not in
/// registers.
pub fn seconds() -> f64 {
    Duration::from_nanos(SPENT.load(Ordering::Relaxed)).as_secs_f64()
}

/// Does something and counts its time among that of folding.
pub fn timed<T>(f: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = f();
    SPENT.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result
}

/// Adds a leaf's sums to another's.
pub fn add(isa: &Isa, into: &mut [f32], from: &[f32]) {
    timed(|| isa.add(into, from));
}

/// Where the tree splits `count` leaves (or ranks): the largest power of two below.
pub fn middle(count: usize) -> usize {
    debug_assert!(count > 1);
    count.next_power_of_two() / 2
}

/// Adds sums of leaves together as the tree does, keeping one sum per level. `sum(leaf, into)` writes the sum of a leaf that
/// is not empty; `add(into, from)` adds the second to the first. `levels` are at least `log2(leaves) + 2`; the result is in
/// the first, or nothing was there to add and it returns false.
pub fn tree<T>(
    leaves: Range<usize>,
    levels: &mut [T],
    empty: &impl Fn(usize) -> bool,
    sum: &mut impl FnMut(usize, &mut T),
    add: &impl Fn(&mut T, &T),
) -> bool {
    match leaves.len() {
        0 => false,
        1 if empty(leaves.start) => false,
        1 => {
            sum(leaves.start, &mut levels[0]);
            true
        }
        count => {
            let middle = leaves.start + middle(count);
            let left = tree(leaves.start..middle, levels, empty, sum, add);
            let (first, rest) = levels.split_at_mut(left as usize);
            let right = tree(middle..leaves.end, rest, empty, sum, add);
            if left && right {
                add(&mut first[0], &rest[0]);
            }
            left || right
        }
    }
}

/// The same as a list: leaves that are not empty, in order, each with how many of the sums before it are then added to its own, the
/// last one first.
pub fn order(leaves: Range<usize>, empty: &impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    match leaves.len() {
        0 => vec![],
        1 if empty(leaves.start) => vec![],
        1 => vec![(leaves.start, 0)],
        count => {
            let middle = leaves.start + middle(count);
            let mut all = order(leaves.start..middle, empty);
            let right = order(middle..leaves.end, empty);
            let both = !all.is_empty() && !right.is_empty();
            all.extend(right);
            if both {
                all.last_mut().expect("not empty").1 += 1;
            }
            all
        }
    }
}

/// Levels that `tree` may need for so many leaves.
pub fn levels(leaves: usize) -> usize {
    leaves.max(1).next_power_of_two().ilog2() as usize + 2
}

/// Columns that are folded together: they stay on the stack.
const COLUMNS: usize = 32;

/// Folds `[sample][strip][column]` over a rank's `samples` (global numbers) of a batch into one sum per column. No sample
/// gives zeros.
pub fn fold(partial: &[f64], samples: Range<usize>, (batch, leaves): (usize, usize), strips: usize, sums: &mut [f64]) {
    let columns = sums.len();
    assert_eq!(partial.len(), samples.len() * strips * columns, "bug: partial sums of another size");
    for c in (0..columns).step_by(COLUMNS) {
        let width = COLUMNS.min(columns - c);
        let mut levels = [[0f64; COLUMNS]; 24];
        let clip = |l: usize| {
            let leaf = leaf_range(batch, leaves, l);
            leaf.start.max(samples.start)..leaf.end.min(samples.end)
        };
        let any = tree(
            // All leaves, not only the rank's own: the tree's shape must not depend on who holds what.
            0..leaves,
            &mut levels,
            &|l| clip(l).is_empty(),
            &mut |l, into: &mut [f64; COLUMNS]| {
                into.fill(0.0);
                for row in clip(l).flat_map(|n| (n - samples.start) * strips..(n - samples.start + 1) * strips) {
                    let row = &partial[row * columns + c..][..width];
                    into.iter_mut().zip(row).for_each(|(a, b)| *a += b);
                }
            },
            &|into, from| into.iter_mut().zip(from).for_each(|(a, b)| *a += b),
        );
        sums[c..c + width].copy_from_slice(&if any { levels[0] } else { [0.0; COLUMNS] }[..width]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list adds what the tree adds.
    #[test]
    fn the_order_is_that_of_the_tree() {
        for leaves in 1..=9 {
            for mask in 0..1u32 << leaves {
                let empty = |l: usize| mask >> l & 1 == 1;
                let mut levels = vec![String::new(); 8];
                let add = |into: &mut String, from: &String| *into = format!("({into}+{from})");
                let any = tree(0..leaves, &mut levels, &empty, &mut |l, into| *into = l.to_string(), &add);
                let mut held: Vec<String> = vec![];
                for (leaf, adds) in order(0..leaves, &empty) {
                    let sum =
                        (0..adds).fold(leaf.to_string(), |sum, _| format!("({}+{sum})", held.pop().expect("a sum")));
                    held.push(sum);
                }
                assert_eq!(held, if any { vec![levels[0].clone()] } else { vec![] });
            }
        }
    }

    /// Numbers whose sum depends on the order: folding whole subtrees and then those together changes no bit.
    #[test]
    fn subtrees_fold_to_the_same_bits() {
        for (batch, strips) in [(16, 1), (13, 3), (8, 2), (5, 1), (3, 2), (1, 1)] {
            let columns = 37;
            let partial: Vec<f64> =
                (0..batch * strips * columns).map(|i| 1.0 / (1.0 + (i * 7919 % 1013) as f64)).collect();
            let mut whole = vec![0.0; columns];
            fold(&partial, 0..batch, (batch, 8), strips, &mut whole);
            for ranks in [2, 4, 8] {
                let part = |r: usize| {
                    leaf_range(batch, 8, r * 8 / ranks).start..leaf_range(batch, 8, (r + 1) * 8 / ranks - 1).end
                };
                let mut levels = vec![vec![0.0; columns]; 8];
                tree(
                    0..ranks,
                    &mut levels,
                    &|r| part(r).is_empty(),
                    &mut |r, into| {
                        let rows = part(r).start * strips * columns..part(r).end * strips * columns;
                        fold(&partial[rows], part(r), (batch, 8), strips, into);
                    },
                    &|into, from| into.iter_mut().zip(from).for_each(|(a, b)| *a += b),
                );
                assert_eq!(levels[0], whole, "batch {batch}, {ranks} ranks");
            }
            let plain: f64 = (0..batch * strips).map(|row| partial[row * columns]).sum();
            assert!((whole[0] - plain).abs() < 1e-12 * plain);
        }
    }
}
