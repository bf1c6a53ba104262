//! `convoy eval`: how good a trained network is on data.

use super::{field_arguments, json_argument, lay_flags, path, run_argument, say};
use crate::draft::Draft;
use crate::error::{Error, Errors};
use crate::fields::Field;
use crate::job::{Job, Normalisation, TestData};
use crate::machine;
use crate::ready;
use crate::run;
use crate::words::{Sizes, grouped, percent};
use clap::{Arg, ArgMatches, Command};
use convoy_net::Network;
use convoy_train::data::{self, Dataset, Normalise, Split};
use convoy_train::{Evaluation, RunFolder, Weights};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Fields that say what a trained network is and what it is given.
pub const FIELDS: [&str; 11] = [
    "network.model",
    "network.file",
    "network.classes",
    "network.input",
    "train.weights",
    "data.normalise.kind",
    "data.normalise.mean",
    "data.normalise.deviation",
    "train.batch",
    "train.winograd",
    "parallel.threads",
];

pub fn definition() -> Command {
    let more = ["network.loss.kind", "network.loss.ignore", "data.train", "data.loaders", "train.seed"];
    Command::new("eval")
        .about("Loss, top-1 and top-5 of a trained network on data")
        .after_help(
            "Loss, top-1 and top-5 of a trained network on the test part of data (all of them where they have none).\n\
             Either a run, whose own test data are used unless --data says otherwise,\n\
             or --model (or --network) with --weights and --data.",
        )
        .arg(run_argument("RUN"))
        .arg(json_argument())
        .args(network_arguments(|field| FIELDS.contains(&field.key) || more.contains(&field.key)))
}

/// Flags for some fields; those that say what the network is do not go with a run, whose network is in its folder.
pub fn network_arguments(takes: impl Fn(&Field) -> bool) -> Vec<Arg> {
    let alone = |argument: Arg| {
        let is_network = argument.get_id().as_str().starts_with("network.");
        if is_network { argument.conflicts_with("RUN") } else { argument }
    };
    field_arguments(takes).into_iter().map(alone).collect()
}

/// A trained network with what is done to its input.
pub struct Trained {
    pub job: Job,
    pub network: Network,
    pub weights: Weights,
    pub folder: Option<RunFolder>,
    /// What was typed.
    pub draft: Draft,
}

impl Trained {
    /// From a run, or from a network, which `network` makes of the flags, and a file of weights.
    pub fn find(matches: &ArgMatches, network: fn(&Job) -> Result<Network, Errors>) -> Result<Trained, Errors> {
        let folder = path(matches, "RUN").map(RunFolder::open).transpose().map_err(Error::from)?;
        let mut draft = folder.as_ref().map_or(Ok(Draft::default()), run::draft_of)?;
        lay_flags(&mut draft, matches);
        let job = draft.job()?;
        let given = matches.get_one::<String>("train.weights");
        if folder.is_none() && given.is_none() {
            let text = "which network?\n  help: a run's folder, or --model NAME with --weights FILE";
            return Err(Error::Usage(text.into()).into());
        }
        let network = match &folder {
            Some(folder) => run::network_of(folder, &job)?,
            None => network(&job).map_err(|errors| draft.located(errors))?,
        };
        let weights = match (given, &folder) {
            (Some(path), _) => ready::read_weights(Path::new(path), &network).map_err(Error::from)?,
            (None, Some(folder)) => run::weights_of(folder, &network)?,
            (None, None) => unreachable!("bug: checked above"),
        };
        Ok(Trained { job, network, weights, folder, draft })
    }

    pub fn threads(&self) -> usize {
        // A run's own number may be of another machine; evaluation has one rank.
        self.job.parallel.threads.filter(|_| self.folder.is_none()).unwrap_or(machine::cores())
    }

    /// Evaluates on data; batches are no larger than they are.
    pub fn on(&self, data: Arc<dyn Dataset>, normalise: Option<Normalise>) -> Evaluation<'_> {
        Evaluation {
            network: &self.network,
            weights: &self.weights,
            normalise,
            batch: self.job.train.batch.min(data.len()),
            data,
            threads: self.threads(),
            leaves: self.job.train.leaves,
            winograd: self.job.train.winograd,
            loaders: self.job.data.loaders,
        }
    }
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let trained = Trained::find(matches, ready::network)?;
    evaluate(&trained, matches).map_err(|errors| trained.draft.located(errors))
}

fn evaluate(trained: &Trained, matches: &ArgMatches) -> Result<(), Errors> {
    let job = &trained.job;
    let options = ready::open_options(job, &trained.network.loss, Some(ready::output(&trained.network)?));
    let own = trained.folder.is_some() && !matches.contains_id("data.train");
    let data = match (&job.data.test, own) {
        (TestData::HoldOut, true) => {
            let whole = data::open(&job.data.train, Split::Train, &options).map_err(Error::from)?;
            Arc::new(data::hold_out(whole.into()).map_err(Error::from)?.1)
        }
        (TestData::Of(spec), true) => {
            ready::test_part(spec, &options).map_err(|error| Error::at("data.test", error))?
        }
        _ => ready::test_part(&job.data.train, &options).map_err(|error| Error::at("data.train", error))?,
    };
    ready::fits(&*data, &trained.network).map_err(|error| Error::at("data.train", error))?;
    let normalise = match &job.data.normalise {
        Some(Normalisation::None | Normalisation::Given { .. }) => ready::normalise(job, &*data, 1),
        _ => {
            let train = data::open(&job.data.train, Split::Train, &options).map_err(Error::from)?;
            ready::normalise(job, &*train, trained.threads())
        }
    };
    let evaluated = trained.on(data.clone(), normalise?).scores().map_err(Error::from)?;
    let (scores, labels) = (evaluated.scores, trained.network.loss.takes_labels());
    let rate = data.len() as f64 / evaluated.seconds;
    let images = format!("{} images of {}", grouped(data.len() as u64), Sizes(data.sample_shape()));
    let shares = format!(", top-1 {}, top-5 {}", percent(scores.top1), percent(scores.top5));
    let shares = if labels { shares } else { String::new() };
    say(&format!("{} on {images}: loss {:.6}{shares}, {rate:.0} images/s", trained.network.name, scores.loss))?;
    if matches.get_flag("json") {
        let object = json!({
            "model": trained.network.name,
            "images": data.len(),
            "loss": scores.loss,
            "top1": labels.then_some(scores.top1),
            "top5": labels.then_some(scores.top5),
            "images_per_second": rate,
            "seconds": evaluated.seconds,
            "threads": trained.threads(),
            "peak_rss_bytes": machine::peak_rss_bytes(),
        });
        say(&object.to_string())?;
    }
    Ok(())
}
