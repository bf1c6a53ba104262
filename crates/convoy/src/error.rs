//! What can go wrong at the front door. Each is one sentence a person can act on; its text is part of the interface.

use crate::words::Sizes;
use convoy_net::Shape;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of a job or a command.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Something that was typed.
    #[error("{place}: {flaw}")]
    Field { place: Place, flaw: String },
    #[error("cannot {action} {}\n  cause: {cause}", path.display())]
    File { action: &'static str, path: PathBuf, cause: Arc<io::Error> },
    #[error("cannot read the job {name}, there is no such file\n  help: --model {name} for the network of that name")]
    NetworkForJob { name: &'static str },
    #[error("cannot write to standard output\n  cause: {0}")]
    Output(Arc<io::Error>),
    #[error("{0}")]
    Train(Arc<convoy_train::Error>),
    #[error("{0}")]
    Data(Arc<convoy_train::data::DataError>),
    #[error("{0}")]
    Net(Box<convoy_net::Error>),
    #[error("{}: {error}", path.display())]
    NetworkFile { path: PathBuf, error: Box<convoy_net::Error> },
    #[error("{0}")]
    Engine(convoy_engine::Error),
    #[error("{0}")]
    Predict(Box<convoy_predict::Error>),
    #[error("{0}")]
    Plan(Box<convoy_plan::Error>),
    #[error("{}: {error}", path.display())]
    MachineFile { path: PathBuf, error: Box<convoy_predict::Error> },
    #[error("{0}")]
    Comm(convoy_comm::Error),
    #[error("{}: all {steps} steps of this run are done\n  help: --epochs or --steps with more than that to go on; \
             --weights {} to start a new run from it", run.display(), run.join("model.safetensors").display())]
    Ended { run: PathBuf, steps: u64 },
    #[error("{}: {what} not what it was when the checkpoint was written\n  help: start a new run, with --weights {} \
             where its weights should stay", run.display(), run.join("model.safetensors").display())]
    Changed { run: PathBuf, what: String },
    #[error("{}: the run has no model yet\n  help: convoy train --resume {}", run.display(), run.display())]
    NoModel { run: PathBuf },
    #[error("images are {}, the network `{network}` takes {}", Sizes(*found), Sizes(*taken))]
    Images { network: String, found: Shape, taken: Shape },
    #[error("targets are {}; the output of `{network}` is {}, its loss wants {}: {}", Sizes(shapes.found), Sizes(shapes.output),
            if shapes.output == shapes.wanted { "a value for each element" } else { "a class for each point" },
            Sizes(shapes.wanted))]
    Targets { network: String, shapes: Box<TargetShapes> },
    /// A run that ended before its time, with what is left of it.
    #[error("{error}\n  kept: {}{}", run.display(), left(run, *newest, *resumable))]
    InRun { error: Arc<convoy_train::Error>, run: PathBuf, newest: Option<u64>, resumable: bool },
    /// The command line itself.
    #[error("{0}")]
    Usage(String),
}

/// What targets are and what they should be.
#[derive(Clone, Debug)]
pub struct TargetShapes {
    pub found: Shape,
    /// The network's.
    pub output: Shape,
    pub wanted: Shape,
}

fn left(run: &Path, newest: Option<u64>, resumable: bool) -> String {
    match (newest, resumable) {
        (None, _) => String::new(),
        (Some(step), false) => format!(", last checkpoint at step {step}"),
        (Some(step), true) => {
            format!(", last checkpoint at step {step}\n  help: convoy train --resume {}", run.display())
        }
    }
}

/// Where something was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of a file that is not TOML.
    Line {
        path: PathBuf,
        line: usize,
    },
    /// A field in a file.
    InFile {
        path: PathBuf,
        line: usize,
        key: String,
    },
    Flag(&'static str),
    /// A field of a job that came from nowhere in particular.
    Field(String),
}

impl Place {
    /// The line of a file; flags come after all lines.
    pub(crate) fn line(&self) -> usize {
        match self {
            Place::Line { line, .. } | Place::InFile { line, .. } => *line,
            Place::Flag(_) | Place::Field(_) => usize::MAX,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Place::Line { path, line } => write!(f, "{}, line {line}", path.display()),
            Place::InFile { path, line, key } => write!(f, "{}, line {line}, {}", path.display(), Key(key)),
            Place::Flag(flag) => write!(f, "--{flag}"),
            Place::Field(key) => write!(f, "{}", Key(key)),
        }
    }
}

/// A key as people read it: `[train].batch`.
struct Key<'a>(&'a str);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0.split_once('.') {
            None => write!(f, "[{}]", self.0),
            Some((section, name)) => write!(f, "[{section}].{}", name.trim_end_matches(".kind")),
        }
    }
}

/// Everything that is wrong, at least one error.
#[derive(Clone, Debug)]
pub struct Errors(pub Vec<Error>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(Error::to_string).collect();
        write!(f, "{}", texts.join("\n"))
    }
}

impl std::error::Error for Errors {}

impl<E: Into<Error>> From<E> for Errors {
    fn from(error: E) -> Errors {
        Errors(vec![error.into()])
    }
}

impl Errors {
    /// The same in the order of a file's lines; what has none comes first, flags last.
    pub(crate) fn by_line(mut self) -> Errors {
        self.0.sort_by_key(|error| if let Error::Field { place, .. } = error { place.line() } else { 0 });
        self
    }

    /// 2 where the command line itself is wrong, else 1.
    pub fn exit_code(&self) -> u8 {
        if self.0.iter().all(|error| matches!(error, Error::Usage(_))) { 2 } else { 1 }
    }
}

impl Error {
    /// Whether nobody reads our output any more.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output(cause) if cause.kind() == io::ErrorKind::BrokenPipe)
    }

    /// What the operating system refused to do.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::File { action, path: path.into(), cause: Arc::new(cause) }
    }

    /// An error about a flag that is no field.
    pub(crate) fn flag(flag: &'static str, cause: impl fmt::Display) -> Error {
        Error::Field { place: Place::Flag(flag), flaw: cause.to_string() }
    }

    /// An error about a field, whatever its cause.
    pub(crate) fn at(key: &str, cause: impl fmt::Display) -> Error {
        Error::Field { place: Place::Field(key.into()), flaw: cause.to_string() }
    }
}

impl From<convoy_train::Error> for Error {
    fn from(error: convoy_train::Error) -> Error {
        Error::Train(Arc::new(error))
    }
}

impl From<convoy_train::data::DataError> for Error {
    fn from(error: convoy_train::data::DataError) -> Error {
        Error::Data(Arc::new(error))
    }
}

impl From<convoy_net::Error> for Error {
    fn from(error: convoy_net::Error) -> Error {
        Error::Net(Box::new(error))
    }
}

impl From<convoy_predict::Error> for Error {
    fn from(error: convoy_predict::Error) -> Error {
        Error::Predict(Box::new(error))
    }
}

impl From<convoy_engine::Error> for Error {
    fn from(error: convoy_engine::Error) -> Error {
        Error::Engine(error)
    }
}

impl From<convoy_comm::Error> for Error {
    fn from(error: convoy_comm::Error) -> Error {
        Error::Comm(error)
    }
}
