//! A part of the samples of a data set: how a test part is made where there is none.

use super::{DataError, Dataset, Half};
use convoy_net::{Region, Shape};
use std::sync::Arc;

/// Of ten samples in a row, the last is held out.
const OF: usize = 10;

/// Train and test parts of one data set: every tenth sample is for the test. Every tenth and not the last tenth, because
/// data are often sorted by class.
pub fn hold_out(dataset: Arc<dyn Dataset>) -> Result<(Subset, Subset), DataError> {
    let len = dataset.len();
    match len < OF {
        true => Err(DataError::TooFew { len }),
        false => Ok((Subset { whole: dataset.clone(), held_out: false }, Subset { whole: dataset, held_out: true })),
    }
}

/// Nine of ten samples of a data set, or the tenth.
pub struct Subset {
    whole: Arc<dyn Dataset>,
    held_out: bool,
}

impl Subset {
    /// The number in the whole data set of one of these samples.
    fn whole_index(&self, index: usize) -> Result<usize, DataError> {
        match (index < self.len(), self.held_out) {
            (false, _) => Err(DataError::Sample { index, len: self.len() }),
            (_, true) => Ok(index * OF + OF - 1),
            (_, false) => Ok(index / (OF - 1) * OF + index % (OF - 1)),
        }
    }
}

impl Dataset for Subset {
    fn len(&self) -> usize {
        let held_out = self.whole.len() / OF;
        if self.held_out { held_out } else { self.whole.len() - held_out }
    }

    fn sample_shape(&self) -> Shape {
        self.whole.sample_shape()
    }

    fn target_shape(&self) -> Shape {
        self.whole.target_shape()
    }

    fn classes(&self) -> Option<usize> {
        self.whole.classes()
    }

    fn class_name(&self, class: usize) -> Option<&str> {
        self.whole.class_name(class)
    }

    fn read_image(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        self.whole.read_image(self.whole_index(index)?, region, into)
    }

    fn read_target(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        self.whole.read_target(self.whole_index(index)?, region, into)
    }

    fn not_finite(&self, index: usize, half: Half, value: f32) -> DataError {
        self.whole_index(index).map_or_else(|error| error, |index| self.whole.not_finite(index, half, value))
    }

    fn digest(&self) -> Result<String, DataError> {
        let part = if self.held_out { "held out of " } else { "kept of " };
        Ok(blake3::hash(format!("{part}{}", self.whole.digest()?).as_bytes()).to_hex().to_string())
    }
}
