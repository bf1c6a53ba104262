//! Jobs: what a person asked for, as values that mean something.
//!
//! Always true of a [`Job`] that [`Draft::job`](crate::Draft::job) gave
//! - Every number is possible by itself; whether network, data and machine fit together is for [`Ready`](crate::Ready) to say.
//! - [`Job::to_toml`] reads back as the same job.
//!
//! A field that is `None` follows from the rest; in the job of a run all of these are filled in.

use crate::error::Error;
use crate::fields::{FIELDS, TEST_WORDS, WINOGRAD};
use crate::plan_file;
use convoy_kernels::Winograd;
use convoy_net::Loss;
use convoy_predict::Machine;
use convoy_program::{Division, Halos, NormOver, ParameterHome, SumOrder};
use convoy_train::data::{Augment, DataSpec, NpyFiles};
use convoy_train::{Optimizer, Schedule, text_digest};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The strategy that is chosen by prediction.
pub(crate) const AUTO: &str = "auto";

/// What a person asked for.
///
/// ```
/// use convoy::Job;
/// let job = Job { train: convoy::TrainFields { batch: 32, ..Job::default().train }, ..Job::default() };
/// assert_eq!(job.data.train.to_string(), "digits");
/// assert_eq!(Job::from_toml(&job.to_toml()).unwrap(), job);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub network: NetworkFields,
    pub data: DataFields,
    pub train: TrainFields,
    pub parallel: ParallelFields,
    pub run: RunFields,
}

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkFields {
    /// A network of the zoo; or a file.
    pub model: Option<String>,
    pub file: Option<PathBuf>,
    pub classes: Option<usize>,
    /// Channels, then sizes.
    pub input: Option<Vec<usize>>,
    pub loss: Option<Loss>,
}

/// On what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFields {
    #[serde(with = "as_text")]
    pub train: DataSpec,
    pub test: TestData,
    #[serde(default, with = "as_texts")]
    pub augment: Option<Vec<Augment>>,
    pub normalise: Option<Normalisation>,
    pub loaders: usize,
}

/// How.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainFields {
    /// The global batch.
    pub batch: usize,
    pub epochs: u64,
    /// Steps in all, whatever the epochs are.
    pub steps: Option<u64>,
    pub seed: u64,
    pub leaves: usize,
    #[serde(with = "as_word")]
    pub winograd: Winograd,
    pub weights: Option<PathBuf>,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
}

/// On how many cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParallelFields {
    pub ranks: usize,
    /// Threads of each rank.
    pub threads: Option<usize>,
    pub strategy: String,
    /// What `auto` plans for: a file or a name.
    pub machine: Option<String>,
    #[serde(with = "NormWords")]
    pub batch_norm: NormOver,
    #[serde(with = "HomeWords")]
    pub home: ParameterHome,
    /// Whether gradients are summed over ranks in the order of one rank; else, how.
    pub exact: bool,
    pub sums: Sums,
    /// Whether layers compute while their halos travel.
    pub overlap: bool,
    /// Of each rank, such as `3GiB`.
    pub memory: Option<String>,
    /// Seconds.
    pub deadline: u64,
}

/// Whose elements batch norm takes together, as people write it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "NormOver", rename_all = "lowercase")]
enum NormWords {
    Global,
    Team,
    Local,
}

/// Where parameters live, as people write it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ParameterHome", rename_all = "lowercase")]
enum HomeWords {
    Everywhere,
    Sharded,
}

/// How gradients are summed over ranks where any order will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sums {
    Ring,
    Library,
}

/// What is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFields {
    pub name: Option<String>,
    pub folder: PathBuf,
    pub checkpoint_every: u64,
    pub keep: usize,
    pub digest_every: u64,
}

/// What a network is judged by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TestData {
    /// The test part of the train data; nothing where it has none.
    Own,
    /// Every tenth sample of the train data, which is then not trained on.
    HoldOut,
    None,
    /// The test part of other data; all of it where it has none.
    Of(DataSpec),
}

/// What is done to each channel of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Normalisation {
    /// By mean and deviation of the train data.
    Measure,
    None,
    Given {
        #[serde(default)]
        mean: Vec<f32>,
        #[serde(default)]
        deviation: Vec<f32>,
    },
}

impl ParallelFields {
    /// How ranks do what they do together.
    pub(crate) fn division(&self) -> Division {
        let sums = match (self.exact, self.sums) {
            (true, _) => SumOrder::Tree,
            (false, Sums::Ring) => SumOrder::Ring,
            (false, Sums::Library) => SumOrder::Library,
        };
        let halos = if self.overlap { Halos::Overlapped } else { Halos::Waited };
        Division { norm: self.batch_norm, home: self.home, sums, halos, leaf_samples: None }
    }
}

impl Default for Job {
    fn default() -> Job {
        crate::Draft::default().job().expect("bug: defaults are not a job")
    }
}

impl Job {
    /// The job that a text describes, defaults where it says nothing.
    pub fn from_toml(text: &str) -> Result<Job, crate::Errors> {
        let mut draft = crate::Draft::default();
        draft.read(text, Path::new("job"));
        draft.job()
    }

    /// A job from tables that have all fields with a default, each in its form.
    pub(crate) fn from_table(mut table: toml::Table) -> Result<Job, Error> {
        if let Some(train) = table.get_mut("train").and_then(toml::Value::as_table_mut) {
            let kind = train.get("optimizer").and_then(|o| o.get("kind")).and_then(|k| k.as_str()).unwrap_or("sgd");
            let usual = usual_rate(kind);
            if let Some(schedule) = train.get_mut("schedule").and_then(toml::Value::as_table_mut) {
                schedule.entry("lr").or_insert(usual.into());
            }
        }
        Job::deserialize(table).map_err(|error| Error::Usage(format!("not a job: {}", error.message())))
    }

    /// The job as a file, with every field that has a value.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("bug: a job that TOML cannot say")
    }

    /// Every field that a job may have, in the order of the table of fields, with its value as a file would say it.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, Option<String>)> {
        let table = toml::Value::try_from(self).expect("bug: a job that TOML cannot say");
        FIELDS.iter().map(move |field| {
            let value = field.key.split('.').try_fold(&table, |table, name| table.get(name));
            (field.key, value.map(toml::Value::to_string))
        })
    }

    /// Numbers that are not possible.
    pub(crate) fn verify(&self) -> Vec<Error> {
        let mut errors = vec![];
        let settings = self.train.optimizer.verify().into_iter().chain(self.train.schedule.verify());
        for error in settings {
            errors.push(match error {
                convoy_train::Error::Setting { setting, found, possible } => {
                    let key = setting.split(',').next().unwrap_or(setting);
                    let flaw = format!("{found} is not possible\n  help: {possible}");
                    Error::at(&format!("train.{key}"), flaw)
                }
                error => error.into(),
            });
        }
        if let Some(Normalisation::Given { mean, deviation }) = &self.data.normalise {
            if mean.is_empty() || mean.len() != deviation.len() {
                let flaw = format!(
                    "{} means and {} deviations, wanted one of each for every channel",
                    mean.len(),
                    deviation.len()
                );
                errors.push(Error::at("data.normalise.mean", flaw));
            }
            if let Some(wrong) = mean.iter().find(|m| !m.is_finite()) {
                errors.push(Error::at("data.normalise.mean", format!("{wrong} is not possible\n  help: a number")));
            }
            if let Some(wrong) = deviation.iter().find(|d| !(**d > 0.0 && d.is_finite())) {
                errors.push(Error::at("data.normalise.deviation", format!("{wrong} is not possible\n  help: above 0")));
            }
        }
        if self.parallel.sums == Sums::Library && self.parallel.exact {
            let flaw =
                "the library takes an order of its own, but exact is true\n  help: exact = false, or leave it out";
            errors.push(Error::at("parallel.sums", flaw));
        }
        if self.parallel.home == ParameterHome::Sharded && matches!(self.train.optimizer, Optimizer::Lars(_)) {
            let flaw = "lars needs whole parameters, sharded ones are divided over ranks\n  help: everywhere, or another optimizer";
            errors.push(Error::at("parallel.home", flaw));
        }
        let loss = self.network.loss.map(|loss| loss.check());
        if let Some(Err(misfit)) = loss {
            errors.push(Error::at("network.loss.label_smoothing", misfit));
        }
        errors
    }

    /// The same with paths that mean the same from any folder.
    pub(crate) fn with_absolute_paths(mut self) -> Job {
        let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or(path.clone());
        self.network.file = self.network.file.as_ref().map(whole);
        self.train.weights = self.train.weights.as_ref().map(whole);
        self.run.folder = whole(&self.run.folder);
        if plan_file::is_one(&self.parallel.strategy) {
            self.parallel.strategy = whole(&PathBuf::from(&self.parallel.strategy)).to_string_lossy().into_owned();
        }
        if let Some(file) = self.parallel.machine.as_mut().filter(|name| Machine::shipped(name).is_none()) {
            *file = whole(&PathBuf::from(&*file)).to_string_lossy().into_owned();
        }
        let specs = std::iter::once(&mut self.data.train).chain(match &mut self.data.test {
            TestData::Of(spec) => Some(spec),
            _ => None,
        });
        for spec in specs {
            match spec {
                DataSpec::Digits | DataSpec::Synthetic { .. } => {}
                DataSpec::Idx { dir } | DataSpec::Cifar10 { dir } | DataSpec::Folder { dir, .. } => *dir = whole(dir),
                DataSpec::Npy(NpyFiles::In { dir }) => *dir = whole(dir),
                DataSpec::Npy(NpyFiles::Pair { images, labels }) => {
                    (*images, *labels) = (whole(images), whole(labels));
                }
            }
        }
        self
    }

    /// Of all that decides what is computed, beyond rounding: fields that may change when a run is resumed are not in it.
    pub(crate) fn result_digest(&self, network: &str, data: &str) -> String {
        let mut job = self.clone();
        let Job { parallel, run, .. } = Job::default();
        (job.parallel, job.run) = (ParallelFields { batch_norm: self.parallel.batch_norm, ..parallel }, run);
        (job.train.epochs, job.train.steps, job.train.weights) = (1, None, None);
        (job.network.file, job.data.loaders) = (None, 1);
        // Samples that are held out are missing in the train data's own digest.
        job.data.test = TestData::None;
        text_digest(&format!("{}\n{network}\n{data}", job.to_toml()))
    }
}

/// A learning rate that an optimizer usually takes.
fn usual_rate(optimizer: &str) -> f64 {
    match optimizer {
        "sgd" => 0.02,
        "lars" => 1.0,
        _ => 0.001,
    }
}

impl TryFrom<String> for TestData {
    type Error = convoy_train::data::DataError;

    fn try_from(text: String) -> Result<TestData, Self::Error> {
        Ok(match TEST_WORDS.iter().position(|word| *word == text) {
            Some(0) => TestData::Own,
            Some(1) => TestData::HoldOut,
            Some(_) => TestData::None,
            None => TestData::Of(DataSpec::parse(&text)?),
        })
    }
}

impl From<TestData> for String {
    fn from(test: TestData) -> String {
        match test {
            TestData::Own => TEST_WORDS[0].into(),
            TestData::HoldOut => TEST_WORDS[1].into(),
            TestData::None => TEST_WORDS[2].into(),
            TestData::Of(spec) => spec.to_string(),
        }
    }
}

/// The algorithm of convolutions as people write it.
mod as_word {
    use super::{WINOGRAD, Winograd};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const ALL: [Winograd; 3] = [Winograd::Four, Winograd::Two, Winograd::Off];

    pub fn serialize<S: Serializer>(winograd: &Winograd, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(WINOGRAD[ALL.iter().position(|w| w == winograd).expect("bug: an algorithm without a word")])
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Winograd, D::Error> {
        let word = String::deserialize(from)?;
        let place = WINOGRAD.iter().position(|known| *known == word);
        place.map(|place| ALL[place]).ok_or_else(|| D::Error::custom(format!("unknown word `{word}`")))
    }
}

/// Data as people write it.
mod as_text {
    use super::DataSpec;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(spec: &DataSpec, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(spec)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DataSpec, D::Error> {
        DataSpec::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Random changes as people write them.
mod as_texts {
    use super::Augment;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(list: &Option<Vec<Augment>>, to: S) -> Result<S::Ok, S::Error> {
        match list {
            Some(list) => to.collect_seq(list.iter().map(Augment::to_string)),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Augment>>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let list: Result<_, _> = texts.iter().map(|text| Augment::parse(text).map_err(D::Error::custom)).collect();
        list.map(Some)
    }
}
