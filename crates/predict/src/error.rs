//! What can be wrong with a machine's description or with a question about it.

use std::fmt;

/// Where in a machine's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At its top.
    Top,
    /// In the `[[nodes]]` or `[[levels]]` of this number, counted from 1.
    Entry(&'static str, usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Place::Top => Ok(()),
            Place::Entry(list, number) => write!(f, "[[{list}]] number {number}, "),
        }
    }
}

/// An error of a prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("{message}")]
    Toml { message: String },
    #[error("{place}unknown field `{name}`\n  help: {}one of {}", meant(suggestion), known.join(", "))]
    UnknownField { place: Place, name: String, suggestion: Option<String>, known: Vec<&'static str> },
    #[error("{place}`{name}` is missing\n  help: {possible}")]
    Missing { place: Place, name: &'static str, possible: String },
    #[error("{place}{name} = {found} is not possible\n  help: {possible}")]
    Value { place: Place, name: &'static str, found: String, possible: String },
    #[error(
        "[[levels]] number {number}, nodes = {nodes}: must span more nodes than the level before, which spans {before}"
    )]
    Order { number: usize, nodes: usize, before: usize },
    #[error(
        "the levels span {spanned} nodes, the machine has {nodes}\n  help: leave `nodes` of the last level out: it then spans all"
    )]
    Span { spanned: usize, nodes: usize },
    #[error(
        "{unlike} of {ranks} ranks have different work, at most {most} can be told apart\n  \
             help: fewer parts in space, or a batch that the parts of samples divide"
    )]
    Unlike { unlike: usize, ranks: usize, most: usize },
    #[error("{0}")]
    Network(#[from] convoy_net::Error),
}

fn meant(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map_or(String::new(), |word| format!("did you mean `{word}`? Else "))
}
