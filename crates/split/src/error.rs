//! Why a strategy does not fit.

use crate::Grid;

/// Why a strategy is not one, or not one for this network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "layer `{layer}` cannot be cut into {axis}:{parts}, its output has {size} along it\n  strategy: {grid}\n  help: {axis}:{size} or less here"
    )]
    TooMany { layer: String, axis: &'static str, parts: usize, size: usize, grid: Grid },
    #[error(
        "strategy `{text}` is not one: {word:?} is no axis with a number of parts\n  help: data, spatial, filter, channel, or a product such as data:2,spatial:2x2"
    )]
    Word { text: String, word: String },
    #[error(
        "strategy `{grid}` has {parts} parts, the job has {ranks} ranks\n  help: the product of all parts must be the number of ranks"
    )]
    Ranks { grid: Grid, parts: usize, ranks: usize },
    #[error(
        "layer `{layer}` cannot be cut into {grid}: it sums over all of a sample's space\n  help: cut it along samples"
    )]
    Space { layer: String, grid: Grid },
    #[error(
        "layer `{layer}` cannot be cut into filter:{filter},channel:{channel}: {why}\n  help: cut it along samples or space instead"
    )]
    Channels { layer: String, filter: usize, channel: usize, why: String },
}
