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

/// Where in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At its top.
    File,
    /// In `[loss]`.
    Loss,
    /// In the `[[layer]]` of this name.
    Layer(String),
    /// In this `[[layer]]`, counted from 1, which has no name.
    LayerNumber(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Place::File => Ok(()),
            Place::Loss => write!(f, ", [loss]"),
            Place::Layer(name) => write!(f, ", layer `{name}`"),
            Place::LayerNumber(number) => write!(f, ", layer number {number}"),
        }
    }
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A field that there is not.
    UnknownField { name: String, suggestion: Option<String>, known: Vec<&'static str> },
    /// A kind of layer or loss that there is not.
    UnknownKind { name: String, suggestion: Option<String>, known: Vec<&'static str> },
    /// An input that is no earlier layer.
    UnknownLayer { name: String, suggestion: Option<String> },
    /// A field that there must be.
    Missing { name: &'static str },
    /// A field that holds something else.
    Form { name: String, found: String, wanted: String },
    /// What only the reader of TOML can say.
    Other { message: String },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Flaw::UnknownField { name, suggestion, known } => {
                write!(f, "unknown field `{name}`{}", help(suggestion, known))
            }
            Flaw::UnknownKind { name, suggestion, known } => {
                write!(f, "unknown kind \"{name}\"{}", help(suggestion, known))
            }
            Flaw::UnknownLayer { name, suggestion } => {
                write!(f, "`from` has `{name}`, which is no earlier layer")?;
                suggestion.iter().try_for_each(|near| write!(f, "\n  help: did you mean `{near}`?"))
            }
            Flaw::Missing { name } => write!(f, "`{name}` is missing"),
            Flaw::Form { name, found, wanted } => write!(f, "has {name} = {found}, possible is {wanted}"),
            Flaw::Other { message } => write!(f, "{message}"),
        }
    }
}

/// What to write instead of something unknown.
fn help(suggestion: &Option<String>, known: &[&str]) -> String {
    match suggestion {
        Some(near) => format!("\n  help: did you mean `{near}`? Else one of {}", known.join(", ")),
        None => format!("\n  help: one of {}", known.join(", ")),
    }
}

/// Why a network is not one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("layer `{layer}` {misfit}")]
    Layer { layer: String, misfit: Box<Misfit> },
    #[error("the loss {misfit}")]
    Loss { misfit: Box<Misfit> },
    #[error("layer `{layer}` reads `{input}`, which is no earlier layer")]
    UnknownInput { layer: String, input: String },
    #[error("two layers are called `{layer}`")]
    Twice { layer: String },
    #[error("the network has no layers")]
    Empty,
    #[error("layer `{layer}` is of kind {kind}; the first layer, and no other, must be `input` of kind input")]
    InputPlace { layer: String, kind: &'static str },
    #[error(
        "model `{model}` takes an input of channels and {} sizes, usually {usual:?}, was given {found:?}",
        usual.len() - 1
    )]
    ModelInput { model: &'static str, usual: &'static [usize], found: Vec<usize> },
    #[error("unknown model `{name}`{}", help(suggestion, known))]
    UnknownModel { name: String, suggestion: Option<String>, known: Vec<&'static str> },
    #[error("line {line}{place}: {flaw}")]
    File { line: usize, place: Place, flaw: Box<Flaw> },
    /// An error of a network that came from a file, at the line of the layer it names.
    #[error("line {line}: {error}")]
    Line { line: usize, error: Box<Error> },
}

impl Error {
    /// The layer it is about.
    pub fn layer(&self) -> Option<&str> {
        match self {
            Error::Layer { layer, .. }
            | Error::UnknownInput { layer, .. }
            | Error::Twice { layer }
            | Error::InputPlace { layer, .. } => Some(layer),
            Error::Line { error, .. } => error.layer(),
            _ => None,
        }
    }
}
