//! Why a strategy does not fit.

use crate::Grid;

/// Why a strategy is not one, or not one for this network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "layer `{layer}` cannot be cut into {axis}:{parts}, its output has {size} along it\n  strategy: {strategy}\n  help: {axis}:{size} or less here"
    )]
    TooMany { layer: String, axis: &'static str, parts: usize, size: usize, strategy: String },
    #[error(
        "strategy `{text}` is not one: {word:?} is no axis with a number of parts\n  help: data, spatial, or a product such as data:2,spatial:2x2"
    )]
    Word { text: String, word: String },
    #[error(
        "strategy `{grid}` has {parts} parts, the job has {ranks} ranks\n  help: the product of all parts must be the number of ranks"
    )]
    Ranks { grid: Grid, parts: usize, ranks: usize },
    #[error(
        "strategy `{text}` cuts filters or channels, which is not possible yet\n  help: data, spatial, or a product such as data:2,spatial:2x2"
    )]
    NotYet { text: String },
}
