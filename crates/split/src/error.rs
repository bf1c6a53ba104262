//! Why a strategy does not fit.

use crate::Grid;
use std::fmt;

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
        "layer `{layer}` cannot be cut into {grid}: it sums over all of a sample's space\n  help: spatial:1 here; cut it along samples, or its {groups} groups, filter:{groups} at most"
    )]
    Space { layer: String, grid: Grid, groups: usize },
    #[error("layer `{layer}` cannot be cut into {cut}: {why}\n  help: {}", why.help(cut))]
    Channels {
        layer: String,
        /// The part of the grid that cuts channels.
        cut: Grid,
        why: Uncut,
    },
}

/// Why channels of a layer cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncut {
    Input,
    Output,
    /// The layer reads the network's input, whose edges are joined.
    JoinedEdges,
    /// So many channels of the layer's output.
    Outputs(usize),
    /// So many channels of the layer's input.
    Inputs(usize),
    /// The same where its input is the network's.
    Data(usize),
    /// So many groups of so many channels, which stay whole.
    Groups(usize, usize),
}

impl Uncut {
    /// Whether it is so for whatever network of its kind, and a strategy for all layers means the others: what data have, what a loss
    /// reads, groups that stay whole.
    pub(crate) fn is_nature(&self) -> bool {
        use Uncut::*;
        matches!(self, Input | Output | JoinedEdges | Data(_) | Outputs(1) | Inputs(1) | Groups(..))
    }

    /// The largest that would fit.
    fn help(&self, cut: &Grid) -> String {
        let parts = cut.filter * cut.channel;
        match (*self, cut.filter, cut.channel) {
            (Uncut::Input | Uncut::Output | Uncut::JoinedEdges, ..) => "cut it along samples or space instead".into(),
            (Uncut::Outputs(most), _, 1) => format!("filter:{most} or less here"),
            (Uncut::Inputs(most) | Uncut::Data(most), ..) | (Uncut::Outputs(most), 1, _) => {
                format!("channel:{most} or less here")
            }
            (Uncut::Outputs(most), ..) => format!("filters times channels may be {most} at most here"),
            (Uncut::Groups(groups, _), ..) => {
                let most = (1..=groups.min(parts)).rev().find(|parts| groups.is_multiple_of(*parts)).unwrap_or(1);
                format!("{most} parts here, or another divisor of its {groups} groups")
            }
        }
    }
}

impl fmt::Display for Uncut {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Uncut::Input => write!(f, "it is the input"),
            Uncut::Output => write!(f, "the loss reads all channels of the output"),
            Uncut::JoinedEdges => write!(f, "the edges of the network's input are joined"),
            Uncut::Outputs(1) => write!(f, "its output has 1 channel"),
            Uncut::Outputs(n) => write!(f, "its output has {n} channels"),
            Uncut::Inputs(1) | Uncut::Data(1) => write!(f, "its input has 1 channel"),
            Uncut::Inputs(n) | Uncut::Data(n) => write!(f, "its input has {n} channels"),
            Uncut::Groups(_, channels) => write!(f, "its groups of {channels} channels would be cut"),
        }
    }
}
