//! Feeding: the batches that a rank holds besides its program, one that a step reads and others that are prepared meanwhile.
//!
//! They are memory like what the program plans. Loaders hold as many as this says, so budgets and predictions can count them.

use crate::Program;

/// Batches that may be under way or ready, where they are small.
pub const AHEAD: usize = 3;
/// Bytes of them, unless a single one is larger.
const MOST_AHEAD: usize = 32 << 20;

/// How many batches of so many bytes are under way or ready while a step reads another: at most `most`, but one for each of the
/// threads that prepare them.
pub fn ahead(batch_bytes: usize, most: usize, loaders: usize) -> usize {
    most.min(MOST_AHEAD / batch_bytes.max(1)).max(loaders).max(1)
}

impl Program {
    /// Bytes of the batches that a rank with so many loaders holds: its part of each, images and targets.
    pub fn fed_bytes(&self, loaders: usize) -> usize {
        let bytes = 4 * (self.images.len() + self.targets);
        (1 + ahead(bytes, AHEAD, loaders)) * bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batches_are_prepared_one_at_a_time() {
        assert_eq!(
            [1 << 10, 10 << 20, 16 << 20, 17 << 20, 75 << 20].map(|bytes| ahead(bytes, AHEAD, 1)),
            [3, 3, 2, 1, 1]
        );
        // Every thread that prepares has one.
        assert_eq!((ahead(75 << 20, AHEAD, 2), ahead(1 << 10, AHEAD, 5), ahead(0, AHEAD, 1)), (2, 5, 3));
    }
}
