//! Losses: one number from a network's output and what it should have been.

use crate::Misfit;
use serde::{Deserialize, Serialize};

/// How far an output is from its target. Means are over the global batch: sums travel, the division happens once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Loss {
    /// Softmax over channels and the negative logarithm of the labelled class; mean over labels (images, or pixels where
    /// the output has space) that are not `ignore`.
    CrossEntropy {
        /// Share of the target spread evenly over all classes.
        #[serde(default)]
        label_smoothing: f32,
        /// A label that does not count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ignore: Option<u32>,
    },
    /// Sigmoid and binary cross-entropy against a target of the output's shape; mean over elements.
    BinaryCrossEntropy,
    /// Squared difference to a target of the output's shape; mean over elements.
    MeanSquaredError,
    /// Softmax over channels, then 1 − (2·overlap + 1)/(sizes + 1), mean over classes; sums over all pixels of the batch.
    Dice,
}

impl Default for Loss {
    fn default() -> Loss {
        Loss::CrossEntropy { label_smoothing: 0.0, ignore: None }
    }
}

impl Loss {
    /// Numbers that are possible.
    pub fn check(&self) -> Result<(), Misfit> {
        match *self {
            Loss::CrossEntropy { label_smoothing, .. } if !(0.0..=1.0).contains(&label_smoothing) => {
                let possible = "from 0 to 1".to_string();
                Err(Misfit::Range { what: "label_smoothing", found: label_smoothing.to_string(), possible })
            }
            _ => Ok(()),
        }
    }

    /// The label that does not count, where there is one.
    pub fn ignored(&self) -> Option<u32> {
        match self {
            Loss::CrossEntropy { ignore, .. } => *ignore,
            _ => None,
        }
    }

    /// Whether targets are class numbers, one per point, rather than tensors like the output.
    pub fn takes_labels(&self) -> bool {
        matches!(self, Loss::CrossEntropy { .. } | Loss::Dice)
    }
}
