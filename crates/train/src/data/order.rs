//! The order in which an epoch takes the samples.

use convoy_kernels::philox::{Key, Purpose};

/// How an epoch goes through the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// A new shuffle each epoch, a function of seed and epoch alone: for training.
    #[default]
    Shuffled,
    /// As they are numbered: for evaluation.
    Sequential,
}

impl Order {
    /// Fills `into` with the order of one epoch, in place.
    pub(super) fn fill(self, seed: u64, epoch: u64, len: usize, into: &mut Vec<usize>) {
        into.clear();
        into.extend(0..len);
        if self == Order::Sequential {
            return;
        }
        let key = Key { seed, purpose: Purpose::Order, layer: 0, step: epoch, sample: 0 };
        // Fisher and Yates, from the end. 64 random bits times the number of choices: the bias is below len / 2^64.
        for last in (1..len).rev() {
            let [low, high, ..] = key.words(last as u64);
            let random = (high as u64) << 32 | low as u64;
            into.swap(last, ((random as u128 * (last as u128 + 1)) >> 64) as usize);
        }
    }
}

/// The samples in the order of an epoch: the same on every rank and machine.
pub fn order(seed: u64, epoch: u64, len: usize) -> Vec<usize> {
    let mut all = Vec::new();
    Order::Shuffled.fill(seed, epoch, len, &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_permutation_of_its_own_seed_and_epoch() {
        for len in [0, 1, 2, 3, 10, 257] {
            let mut sorted = order(7, 3, len);
            assert_eq!(sorted, order(7, 3, len));
            sorted.sort();
            assert_eq!(sorted, (0..len).collect::<Vec<_>>());
        }
        assert_ne!(order(7, 3, 257), order(7, 4, 257));
        assert_ne!(order(7, 3, 257), order(8, 3, 257));
    }

    /// Every sample at every place equally often: 6,000 epochs of 5 samples, 1,200 expected, four deviations are 124.
    #[test]
    fn places_are_even() {
        let mut counts = [[0usize; 5]; 5];
        for epoch in 0..6000 {
            for (place, sample) in order(1, epoch, 5).into_iter().enumerate() {
                counts[place][sample] += 1;
            }
        }
        for count in counts.iter().flatten() {
            assert!(count.abs_diff(1200) < 124, "{counts:?}");
        }
    }
}
