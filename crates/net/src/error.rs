//! What can be wrong with a network.

use crate::Shape;
use std::fmt;

/// Why a layer cannot take its inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Misfit {
    /// It takes another number of inputs.
    Inputs { wanted: &'static str, found: usize },
    /// The window is larger than the padded input.
    Window { axis: &'static str, window: usize, padded: usize },
    /// Groups must divide channels and filters.
    Groups { groups: usize, what: &'static str, number: usize },
    /// Two inputs must agree along these axes.
    Disagree { first: Shape, other: Shape, along: &'static str },
    /// A number that must not be zero is.
    Zero { what: &'static str },
    /// Lists of sizes of a layer with more or fewer numbers than its kernel has.
    Dimensions { what: &'static str, wanted: usize, found: usize },
    /// A number outside what is possible.
    Range { what: &'static str, found: String, possible: String },
    /// A tensor larger than we can number.
    TooLarge { what: &'static str, sizes: Vec<usize> },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Misfit::Inputs { wanted, found } => write!(f, "takes {wanted}, was given {found}"),
            Misfit::Window { axis, window, padded } => {
                write!(f, "has a window of {window} along {axis}, its padded input has only {padded}")
            }
            Misfit::Groups { groups, what, number } => {
                write!(f, "has {groups} groups, which do not divide its {number} {what}")
            }
            Misfit::Disagree { first, other, along } => {
                write!(f, "needs inputs that agree in {along}, they are {first} and {other}")
            }
            Misfit::Zero { what } => write!(f, "has {what} of 0"),
            Misfit::Dimensions { what, wanted, found } => {
                write!(f, "gives {found} numbers for {what}, its kernel has {wanted}")
            }
            Misfit::Range { what, found, possible } => write!(f, "has {what} = {found}, possible is {possible}"),
            Misfit::TooLarge { what, sizes } => {
                let (size, len) = (Shape::MAX_SIZE, Shape::MAX_LEN);
                write!(f, "has {what} of sizes {sizes:?}, possible is at most {size} each and {len} elements")
            }
        }
    }
}

/// Why a network is not one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("layer `{layer}` {misfit}")]
    Layer { layer: String, misfit: Box<Misfit> },
    #[error("layer `{layer}` reads `{input}`, which is no earlier layer")]
    UnknownInput { layer: String, input: String },
    #[error("two layers are called `{layer}`")]
    Twice { layer: String },
    #[error("the network has no layers")]
    Empty,
    #[error(
        "model `{model}` takes an input of channels and {} sizes, usually {usual:?}, was given {found:?}",
        usual.len() - 1
    )]
    ModelInput { model: &'static str, usual: &'static [usize], found: Vec<usize> },
    #[error("{text}")]
    File { text: String },
    #[error("unknown model `{name}`\n  help: {}one of {}", suggestion.as_ref().map(|s| format!("did you mean `{s}`? Else ")).unwrap_or_default(), known.join(", "))]
    UnknownModel { name: String, suggestion: Option<String>, known: Vec<String> },
}
