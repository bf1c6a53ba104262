//! Ready: a job with everything it needs before the first step. Network, data, strategy and weights, each made and held
//! against the others.
//!
//! [`Ready::new`] finds all that does not fit, not only the first; the job it keeps has every field filled in.

use crate::auto::{self, Auto};
use crate::error::{Error, Errors, TargetShapes};
use crate::job::{AUTO, Job, Normalisation, TestData};
use crate::machine;
use crate::plan_file;
use crate::words::{Sizes, bytes, count, size};
use crate::world::World;
use convoy_net::zoo::{self, ModelOptions};
use convoy_net::{Kind, Loss, Network, Shape};
use convoy_predict::Machine;
use convoy_split::Strategy;
use convoy_train::data::{self, Augment, DataError, DataSpec, Dataset, Invented, Normalise, OpenOptions, Split};
use convoy_train::state::wanted;
use convoy_train::{Setup, Weights, fit, safetensors};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A job with everything it needs before the first step.
pub struct Ready {
    /// The job with every field filled in.
    pub job: Job,
    pub network: Network,
    pub strategy: Strategy,
    pub train: Arc<dyn Dataset>,
    pub test: Option<Arc<dyn Dataset>>,
    pub normalise: Option<Normalise>,
    /// What the job's file of weights holds, in the network's order.
    pub weights: Option<Weights>,
    /// What a step is predicted to take, where the strategy was chosen for that.
    pub predicted_step: Option<Duration>,
    /// Why this strategy, where the job left it to us and there was a choice.
    pub why: Option<String>,
    /// What it was predicted by, then.
    pub machine: Option<Machine>,
}

impl Ready {
    /// Makes everything a job needs, or tells all that is wrong.
    pub fn new(job: &Job) -> Result<Ready, Errors> {
        Ready::new_in(&World::default(), job)
    }

    /// The same where this process may be one rank of several.
    pub fn new_in(world: &World, job: &Job) -> Result<Ready, Errors> {
        match network(job) {
            Ok(network) => Ready::with_network(world, job, network),
            Err(Errors(mut errors)) => {
                let told: Vec<String> = errors.iter().map(Error::to_string).collect();
                errors.extend(apart(job).into_iter().filter(|error| !told.contains(&error.to_string())));
                Err(Errors(errors))
            }
        }
    }

    /// The same with a network that is there already.
    pub fn with_network(world: &World, job: &Job, network: Network) -> Result<Ready, Errors> {
        let mut errors = vec![];
        let shapes = network.shapes(job.train.batch).map_err(|error| Error::at("train.batch", error))?;
        let ranks = job.parallel.ranks;
        let strategy = match job.parallel.strategy.as_str() {
            AUTO => None,
            words => note(&mut errors, "parallel.strategy", plan_file::strategy(words, ranks, &network, &shapes)),
        };
        let weights = job.train.weights.as_deref().map(|path| read_weights(path, &network));
        let weights = weights.and_then(|weights| note(&mut errors, "train.weights", weights));
        let (train, test) = data_of(job, &network, &mut errors)?;
        note(&mut errors, "run.folder", check_folder(&job.run.folder));
        let (Some(train), true) = (train, errors.is_empty()) else {
            return Err(Errors(errors));
        };
        // Last: it takes a while.
        let Auto { strategy, step, reason } = match strategy {
            Some(strategy) => Auto::given(strategy),
            None => auto::choose(world, job, &network)?,
        };
        let threads = job.parallel.threads.unwrap_or((machine::cores() / ranks).max(1));
        let normalise = normalise(job, &*train, (threads * ranks).min(machine::cores()))?;
        let job = resolved(job, &network, threads, normalise.as_ref())?;
        let (machine, why) = reason.unzip();
        Ok(Ready { job, network, strategy, train, test, normalise, weights, predicted_step: step, why, machine })
    }

    /// Steps of an epoch; the last one may be smaller.
    pub fn steps_per_epoch(&self) -> u64 {
        self.train.len().div_ceil(self.job.train.batch) as u64
    }

    /// Steps in all.
    pub fn steps(&self) -> u64 {
        self.job.train.steps.unwrap_or(self.job.train.epochs.saturating_mul(self.steps_per_epoch()))
    }

    /// Bytes that each rank will hold; an error where they are more than can be had.
    pub fn planned_bytes(&self) -> Result<Vec<u64>, Error> {
        let planned = self.setup()?.planned_bytes()?;
        self.check_budget(&planned)?;
        check_memory(self.job.train.batch, planned.iter().sum())?;
        Ok(planned)
    }

    /// Whether every rank keeps to the memory it was given; where not, what would.
    pub(crate) fn check_budget(&self, planned: &[u64]) -> Result<(), Error> {
        let Some(text) = &self.job.parallel.memory else { return Ok(()) };
        let budget = size(text).map_err(|flaw| Error::at("parallel.memory", flaw))?;
        let most = |planned: &[u64]| planned.iter().copied().max().unwrap_or(0);
        if most(planned) as f64 <= budget {
            return Ok(());
        }
        let shapes = self.network.shapes(self.job.train.batch)?;
        let mut fits = None;
        for (ranks, words) in [2, 4, 8, 16].into_iter().flat_map(|ranks| [(ranks, "data"), (ranks, "spatial")]) {
            let Ok(strategy) = Strategy::parse(words, ranks, &self.network, &shapes) else { continue };
            let setup = Setup { strategy, ..self.setup()? };
            let most = most(&setup.planned_bytes()?);
            if most as f64 <= budget {
                fits = Some(format!("--ranks {ranks} --strategy {words} needs {} a rank", bytes(most)));
                break;
            }
        }
        let help = fits.unwrap_or("a smaller batch, or more ranks that share samples".into());
        let flaw = format!(
            "a rank needs {} under {} on {}, {} is allowed\n  help: {help}",
            bytes(most(planned)),
            self.strategy.name,
            count(self.strategy.ranks as u64, "rank"),
            bytes(budget as u64)
        );
        Err(Error::at("parallel.memory", flaw))
    }

    /// A digest of all that decides the result: what a resumed run must have in common with the one it goes on with.
    pub fn digest(&self) -> Result<String, Error> {
        Ok(self.job.result_digest(&self.network.to_toml(), &self.train.digest()?))
    }
}

/// Keeps what is good and writes down what is not, as an error about a field.
fn note<T, E: std::fmt::Display>(errors: &mut Vec<Error>, key: &str, result: Result<T, E>) -> Option<T> {
    result.map_err(|error| errors.push(Error::at(key, error))).ok()
}

/// What is wrong with the parts of a job by themselves, where there is no network to hold them against.
pub fn apart(job: &Job) -> Vec<Error> {
    let mut errors = vec![];
    let options = open_options(job, &job.network.loss.unwrap_or_default(), None);
    let train = data::open(&job.data.train, Split::Train, &options).map_err(Error::from);
    let train = note(&mut errors, "data.train", train.map(Arc::from));
    let parts = open_test(job, &options, train.clone());
    let (train, _) = note(&mut errors, "data.test", parts).unwrap_or((train, None));
    check_batch(job, train.as_deref(), &mut errors);
    let weights = job.train.weights.as_deref().map_or(Ok(()), |path| safetensors::read_file(path).map(drop));
    note(&mut errors, "train.weights", weights);
    note(&mut errors, "run.folder", check_folder(&job.run.folder));
    errors
}

/// Whether a folder is one, or can be made.
fn check_folder(path: &Path) -> Result<(), String> {
    let whole = std::path::absolute(path).unwrap_or(path.into());
    match whole.ancestors().find(|path| path.exists()) {
        Some(there) if !there.is_dir() => Err(format!("{} is not a folder", there.display())),
        _ => Ok(()),
    }
}

fn check_batch(job: &Job, train: Option<&dyn Dataset>, errors: &mut Vec<Error>) {
    if let Some(len) = train.map(|train| train.len()).filter(|&len| len < job.train.batch) {
        errors.push(Error::at("train.batch", DataError::Batch { batch: job.train.batch, len }));
    }
}

/// The network of a job. What a model takes and tells apart is the data's where the job does not say.
pub fn network(job: &Job) -> Result<Network, Errors> {
    let mut network = match (&job.network.file, &job.network.model) {
        (Some(path), _) => read_network(path)?,
        (None, name) => {
            let name = name.as_deref().unwrap_or_default();
            let (shape, classes) = match &job.data.train {
                DataSpec::Synthetic { shape, .. } => (*shape, None),
                spec => {
                    let options = open_options(job, &job.network.loss.unwrap_or_default(), None);
                    let data = data::open(spec, Split::Train, &options);
                    let data = data.map_err(|error| Errors(vec![Error::at("data.train", error)]))?;
                    (data.sample_shape(), data.classes())
                }
            };
            model(job, name, shape, classes)?
        }
    };
    network.loss = job.network.loss.unwrap_or(network.loss);
    network.verify().map_err(Error::from)?;
    Ok(network)
}

/// The network of a job by itself: a model's own input and classes where the job does not say.
pub fn network_alone(job: &Job) -> Result<Network, Errors> {
    let network = match (&job.network.file, &job.network.model) {
        (Some(path), _) => read_network(path)?,
        (None, name) => {
            let options = ModelOptions { classes: job.network.classes, input: job.network.input.clone() };
            zoo::model(name.as_deref().unwrap_or_default(), options)?.fused()
        }
    };
    Ok(network)
}

fn model(job: &Job, name: &str, shape: Shape, classes: Option<usize>) -> Result<Network, Errors> {
    let [_, channels, depth, height, width] = shape.0;
    let usual = zoo::names().iter().find(|model| model.name == name).map_or(3, |model| model.input.len());
    let sizes =
        if usual == 4 || depth > 1 { vec![channels, depth, height, width] } else { vec![channels, height, width] };
    let options = ModelOptions {
        classes: job.network.classes.or(classes),
        input: Some(job.network.input.clone().unwrap_or(sizes)),
    };
    let network = zoo::model(name, options).map(|network| network.fused());
    network.map_err(|error| match job.network.input {
        Some(_) => Errors(vec![Error::at("network.input", error)]),
        None => {
            let flaw = format!(
                "{error}\n  help: the data's images are {}; choose another model, or data of another size",
                Sizes(shape)
            );
            Errors(vec![Error::at("network.model", flaw)])
        }
    })
}

/// A network from its file, with as few passes over memory as it needs.
pub fn read_network(path: &Path) -> Result<Network, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    let network = Network::from_toml(&text).map(|network| network.fused());
    network.map_err(|error| Error::NetworkFile { path: path.into(), error: Box::new(error) })
}

/// The weights of a file, in the network's order.
pub fn read_weights(path: &Path, network: &Network) -> Result<Weights, convoy_train::Error> {
    let found = safetensors::read_file(path)?.weights;
    let fitting = fit(&wanted(network), &found, &path.display().to_string())?;
    Ok(Weights { tensors: fitting.into_iter().cloned().collect() })
}

/// The shape of a network's output for one image.
pub fn output(network: &Network) -> Result<Shape, Error> {
    Ok(network.shapes(1)?.pop().expect("bug: a network without layers"))
}

fn input(network: &Network) -> Option<&[usize]> {
    match &network.layers.first()?.kind {
        Kind::Input(input) => Some(&input.shape),
        _ => None,
    }
}

/// How data are opened for a network with this loss and output; the output may not be known yet.
pub fn open_options(job: &Job, loss: &Loss, output: Option<Shape>) -> OpenOptions {
    let invented = match output {
        Some(output) if !loss.takes_labels() => Invented::Values(output),
        Some(output) if output.points() > 1 => Invented::ClassPerPoint,
        _ => Invented::Class,
    };
    let classes = output.map(|output| output.channels()).or(job.network.classes).filter(|_| loss.takes_labels());
    OpenOptions { classes, ignore: loss.ignored(), seed: job.train.seed, invented }
}

/// The job with everything filled in that follows from the rest.
fn resolved(job: &Job, network: &Network, threads: usize, normalise: Option<&Normalise>) -> Result<Job, Error> {
    let mut job = job.clone().with_absolute_paths();
    job.network.classes = network.loss.takes_labels().then_some(output(network)?.channels());
    job.network.input = input(network).map(<[usize]>::to_vec);
    job.network.loss = Some(network.loss);
    job.data.normalise = Some(match normalise {
        None => Normalisation::None,
        Some(n) => Normalisation::Given { mean: n.mean.clone(), deviation: n.deviation.clone() },
    });
    let usual = if job.data.train == DataSpec::Digits { vec![Augment::Crop { pad: 2 }] } else { vec![] };
    job.data.augment.get_or_insert(usual);
    job.parallel.threads = Some(threads);
    job.run.name.get_or_insert_with(|| network.name.clone());
    Ok(job)
}

type Parts = (Option<Arc<dyn Dataset>>, Option<Arc<dyn Dataset>>);

/// Train and test data, as far as they are there and fit; what does not is written down.
fn data_of(job: &Job, network: &Network, errors: &mut Vec<Error>) -> Result<Parts, Error> {
    let options = open_options(job, &network.loss, Some(output(network)?));
    let train = data::open(&job.data.train, Split::Train, &options).map_err(Error::from);
    let train = train.and_then(|train| fits(&*train, network).map(|()| Arc::from(train)));
    let train = note(errors, "data.train", train);
    let parts = open_test(job, &options, train.clone());
    let parts = parts.and_then(|(train, test)| {
        test.as_deref().map_or(Ok(()), |test| fits(test, network))?;
        Ok((train, test))
    });
    let (train, test) = note(errors, "data.test", parts).unwrap_or((train, None));
    check_batch(job, train.as_deref(), errors);
    Ok((train, test))
}

/// Train and test part. Where nothing can be trained on, test data of their own are looked at all the same.
fn open_test(job: &Job, options: &OpenOptions, train: Option<Arc<dyn Dataset>>) -> Result<Parts, Error> {
    Ok(match (&job.data.test, train) {
        (TestData::None, train) => (train, None),
        (TestData::Of(spec), train) => (train, Some(test_part(spec, options)?)),
        (_, None) => (None, None),
        (TestData::Own, train) => match data::open(&job.data.train, Split::Test, options) {
            Ok(test) => (train, Some(Arc::from(test))),
            Err(DataError::NoTest { .. }) => (train, None),
            Err(error) => return Err(error.into()),
        },
        (TestData::HoldOut, Some(train)) => {
            let (rest, held_out) = data::hold_out(train)?;
            (Some(Arc::new(rest)), Some(Arc::new(held_out)))
        }
    })
}

/// The test part of data, all of them where they have none.
pub fn test_part(spec: &DataSpec, options: &OpenOptions) -> Result<Arc<dyn Dataset>, DataError> {
    match data::open(spec, Split::Test, options) {
        Err(DataError::NoTest { .. }) => Ok(Arc::from(data::open(spec, Split::Train, options)?)),
        result => result.map(Arc::from),
    }
}

/// Whether a network can take images and targets of such data.
pub fn fits(data: &dyn Dataset, network: &Network) -> Result<(), Error> {
    let (taken, output) = (network.shapes(1)?[0], output(network)?);
    let (image, target) = (data.sample_shape(), data.target_shape());
    let name = network.name.clone();
    if image != taken {
        return Err(Error::Images { network: name, found: image, taken });
    }
    let mut wanted = output;
    if network.loss.takes_labels() {
        wanted.0[1] = 1;
    }
    match target == wanted {
        true => Ok(()),
        false => {
            let shapes = TargetShapes { found: target, output, wanted };
            Err(Error::Targets { network: name, shapes: Box::new(shapes) })
        }
    }
}

/// Whether so much memory can be had, as far as the system says.
pub fn check_memory(batch: usize, planned: u64) -> Result<(), Error> {
    match machine::available_bytes() {
        Some(available) if available < planned => {
            let (planned, available) = (bytes(planned), bytes(available));
            let flaw = format!(
                "a batch of {batch} needs {planned} of memory, {available} can be had\n  help: a smaller batch"
            );
            Err(Error::at("train.batch", flaw))
        }
        _ => Ok(()),
    }
}

/// What is done to each channel: as the job says; images are measured, arrays are taken as they are.
pub fn normalise(job: &Job, train: &dyn Dataset, threads: usize) -> Result<Option<Normalise>, Error> {
    let usual = match job.data.train {
        DataSpec::Npy(_) | DataSpec::Synthetic { .. } => Normalisation::None,
        _ => Normalisation::Measure,
    };
    let normalise = match job.data.normalise.clone().unwrap_or(usual) {
        Normalisation::None => return Ok(None),
        Normalisation::Measure => Normalise::measure(train, threads).map_err(|error| Error::at("data.train", error))?,
        Normalisation::Given { mean, deviation } => Normalise { mean, deviation },
    };
    normalise.verify(train.sample_shape()).map_err(|error| Error::at("data.normalise.kind", error))?;
    Ok(Some(normalise))
}
