//! What can go wrong around training: data, files, checkpoints, weights that do not fit, impossible settings.

use crate::checkpoint::DamagedCheckpoint;
use crate::data::DataError;
use crate::safetensors::Damage;
use crate::weights::Misfit;
use convoy_comm::Communicator;
use std::any::Any;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate. Its text says what, where, what was found and, where we know, what helps.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("cannot {action} {}\n  cause: {cause}{}", path.display(), help(cause))]
    File { action: &'static str, path: PathBuf, cause: io::Error },
    #[error("{}: no safetensors file we can read, {damage}", path.display())]
    Safetensors { path: PathBuf, damage: Damage },
    #[error("{origin}: {} not fit the network{}", count(misfits.len()), Lines(misfits))]
    Unfit { origin: String, misfits: Vec<Misfit> },
    #[error("{}: no checkpoint here\n  help: the run ended before it wrote one; start it again", folder.display())]
    NoCheckpoint { folder: PathBuf },
    #[error("{}: all checkpoints are damaged{}", folder.display(), Lines(damaged))]
    AllDamaged { folder: PathBuf, damaged: Vec<DamagedCheckpoint> },
    #[error("{}, line {line}: not a line of metrics\n  cause: {cause}", path.display())]
    Metrics { path: PathBuf, line: usize, cause: serde_json::Error },
    #[error("{}: not the folder of a run, it has no job.toml\n  help: a run's folder is runs/<name>-<time>", path.display())]
    NotARun { path: PathBuf },
    #[error("{setting} = {found} is not possible\n  help: {possible}")]
    Setting { setting: &'static str, found: String, possible: &'static str },
    #[error("unknown {what} \"{found}\"\n  help: one of {}", known.join(", "))]
    Kind { what: &'static str, found: String, known: &'static [&'static str] },
    #[error("`{field}` is a field of kind \"{belongs}\", not of \"{kind}\"")]
    ForeignField { field: &'static str, kind: String, belongs: &'static str },
    #[error(
        "checkpoint of step {step}: it was written by another job\n  help: the job it was written by, or a new run"
    )]
    OtherJob { step: u64 },
    #[error("{found} at step {step}, {broken}\n  help: a smaller learning rate than {learning_rate:?}, or a warm-up")]
    NotFinite { step: u64, found: NotFinite, broken: Broken, learning_rate: f32 },
    #[error("{} no class of the network, which are 0 to {}", labels(*bad, what, *number), classes.saturating_sub(1))]
    Labels { bad: u64, what: &'static str, number: u64, classes: usize },
    #[error(
        "no label of epoch {epoch} counts, all of them are {ignored}, which is ignored\n  \
         help: other data, or another label to ignore"
    )]
    NothingCounts { epoch: u64, ignored: u32 },
    #[error("a strategy for {strategy} ranks, but there are {ranks}")]
    Ranks { strategy: usize, ranks: usize },
    #[error("{0}\n  help: the same program, job and data on every host")]
    Differs(Box<Difference>),
    #[error("rank {rank} on host {host} ended{}\n  cause: {cause}", at(*step))]
    InRank { rank: usize, host: String, step: Option<u64>, cause: Box<Error> },
    #[error("rank {rank} on host {host} ended{}\n  cause: bug: a panic: {text}", at(*step))]
    Panic { rank: usize, host: String, step: Option<u64>, text: String },
    #[error(transparent)]
    Network(#[from] convoy_net::Error),
    #[error(transparent)]
    Engine(#[from] convoy_engine::Error),
}

impl Error {
    /// Whether it only says that another rank ended.
    pub fn is_consequence(&self) -> bool {
        matches!(self, Error::Engine(convoy_engine::Error::Communication(convoy_comm::Error::Ended { .. })))
    }

    /// The same with the rank it happened on and the step, where there are others and it is not the same on all of them.
    pub(crate) fn of_rank(self, communicator: &Communicator, step: Option<u64>) -> Error {
        let own = match &self {
            Error::Engine(_) => !self.is_consequence(),
            Error::Data(DataError::Io { .. } | DataError::Panicked { .. }) | Error::File { .. } => true,
            _ => false,
        };
        if !own || communicator.size() == 1 {
            return self;
        }
        let rank = communicator.rank();
        Error::InRank { rank, host: communicator.host(rank).into(), step, cause: Box::new(self) }
    }

    /// Whether a run that goes on after its last checkpoint would only meet it again.
    pub fn would_recur(&self) -> bool {
        matches!(self, Error::NotFinite { .. } | Error::Labels { .. } | Error::NothingCounts { .. })
    }

    /// What the operating system refused to do.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::File { action, path: path.to_path_buf(), cause }
    }
}

impl From<convoy_comm::Error> for Error {
    fn from(error: convoy_comm::Error) -> Error {
        Error::Engine(convoy_engine::Error::Communication(error))
    }
}

/// What two ranks do not have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub what: String,
    /// The first rank that differs from rank 0.
    pub rank: usize,
    /// Of rank 0, of the other.
    pub hosts: [String; 2],
    pub values: [String; 2],
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Difference { what, rank, hosts, values } = self;
        write!(f, "ranks do not have the same {what}: rank 0 on host {} has {}, ", hosts[0], values[0])?;
        write!(f, "rank {rank} on host {} has {}", hosts[1], values[1])
    }
}

/// What is not a number any more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotFinite {
    Loss(f64),
    TestLoss(f64),
    /// A step whose loss was still a number broke the weights.
    Weights,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            NotFinite::Loss(loss) => write!(f, "the loss became {loss}"),
            NotFinite::TestLoss(loss) => write!(f, "the loss on the test data became {loss}"),
            NotFinite::Weights => write!(f, "weights became too large"),
        }
    }
}

/// Where numbers end.
#[derive(Clone, Debug, PartialEq)]
pub enum Broken {
    /// The first layer, in the network's order, with weights that are none.
    Weights { layer: String },
    /// All weights are numbers; the last layer gives the output that is not, or is too large for the loss.
    Output { layer: String },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Broken::Weights { layer } => {
                write!(f, "layer `{layer}` is the first whose weights are no numbers any more")
            }
            Broken::Output { layer } => write!(f, "in the output, which layer `{layer}` gives"),
        }
    }
}

fn help(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull => "\n  help: free some space; what was written before is kept",
        io::ErrorKind::PermissionDenied => "\n  help: this user may not do that here; choose another folder",
        _ => "",
    }
}

/// Before the first step there is none.
fn at(step: Option<u64>) -> String {
    step.map_or(String::new(), |step| format!(" at step {step}"))
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
}

fn count(tensors: usize) -> String {
    if tensors == 1 { "1 tensor does".into() } else { format!("{tensors} tensors do") }
}

fn labels(bad: u64, what: &str, number: u64) -> String {
    let (label, names) = if bad == 1 { ("label", "names") } else { ("labels", "name") };
    format!("{bad} {label} of {what} {number} {names}")
}

/// A list, each entry on a line of its own below the sentence.
struct Lines<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Lines<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_on_one_rank_names_rank_host_step_and_layer() {
        let ranks = convoy_comm::threads(3);
        let host = ranks[2].host(2);
        let panic = || Error::Engine(convoy_engine::Error::Panic { op: "conv2 Forward".into(), text: "no way".into() });
        assert_eq!(
            panic().of_rank(&ranks[2], Some(7)).to_string(),
            format!("rank 2 on host {host} ended at step 7\n  cause: bug: a panic in conv2 Forward: no way")
        );
        assert_eq!(
            panic().of_rank(&ranks[2], None).to_string(),
            format!("rank 2 on host {host} ended\n  cause: bug: a panic in conv2 Forward: no way")
        );
        // Alone there is no rank to name, and whoever ends because another did names that one.
        let alone = convoy_comm::threads(1).remove(0);
        assert_eq!(panic().of_rank(&alone, Some(7)).to_string(), "bug: a panic in conv2 Forward: no way");
        let ended = convoy_comm::Error::Ended { rank: 1, host: host.into(), cause: "out of memory".into() };
        assert_eq!(
            Error::from(ended).of_rank(&ranks[2], Some(7)).to_string(),
            format!("rank 1 on host {host} ended: out of memory")
        );
    }
}
