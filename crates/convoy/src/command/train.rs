//! `convoy train`: a job from start, or from where it was interrupted, to a trained network.

use super::progress::{Progress, about_scores};
use super::times::Times;
use super::{field_arguments, json_argument, lay_flags, path, path_argument, say, warn};
use crate::draft::Draft;
use crate::error::{Error, Errors};
use crate::measured;
use crate::ready::Ready;
use crate::run::Run;
use crate::words::{Sizes, bytes, count, grouped, seconds, short};
use crate::world::World;
use clap::{ArgMatches, Command};
use convoy_predict::chrome_trace;
use convoy_train::{Outcome, Scores, digest};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub fn definition() -> Command {
    Command::new("train")
        .about("Train a network; with no argument: lenet on the digits that come with Convoy")
        .after_help(
            "Trains a network and leaves a folder with everything about it. With no argument: lenet on the handwritten\n\
             digits that come with Convoy. A job is a small TOML file (docs/job.md); every field can also be given as a\n\
             flag, and flags win.",
        )
        .arg(path_argument("JOB").help("a job, such as job.toml"))
        .arg(
            path_argument("resume").long("resume").value_name("RUN").conflicts_with_all(["JOB", "train.weights"]).help(
                "go on where a run was interrupted, in its folder and with its job",
            ),
        )
        .arg(
            path_argument("trace").long("trace").value_name("FILE").help(
                "what every rank did in 3 steps, after 2 that are left out, as a Chrome trace (chrome://tracing, ui.perfetto.dev)",
            ),
        )
        .arg(json_argument())
        .args(field_arguments(|_| true))
}

/// Signals that ask for an end.
struct Signals {
    stop: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    /// The first asks politely, the second ends the process at once.
    fn listen() -> Result<Signals, Error> {
        let signals = Signals { stop: Arc::default(), which: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            let code = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, code, signals.stop.clone())
                .and_then(|_| signal_hook::flag::register_usize(signal, signals.which.clone(), signal as usize))
                .and_then(|_| signal_hook::flag::register(signal, signals.stop.clone()))
                .map_err(|cause| Error::Usage(format!("cannot listen to signals: {cause}")))?;
        }
        Ok(signals)
    }

    fn exit_code(&self) -> u8 {
        128 + self.which.load(Ordering::Relaxed) as u8
    }
}

pub fn run(matches: &ArgMatches) -> Result<u8, Errors> {
    let signals = Signals::listen()?;
    World::enter(&[("command", "train".into())], |world| train(matches, &signals, world))
}

fn train(matches: &ArgMatches, signals: &Signals, world: &World) -> Result<u8, Errors> {
    // Ranks follow from the number of processes, unless they are asked for; a run's own job does not ask.
    let lay_ranks = |draft: &mut Draft, asked: bool| {
        if let (Some(ranks), false) = (world.ranks(), asked) {
            draft.set("parallel.ranks", &ranks.to_string());
        }
    };
    let trace = path(matches, "trace");
    if let (Some(path), true) = (trace, world.is_first()) {
        // Whether it can be written is better known before than after.
        OpenOptions::new().create(true).append(true).open(path).map_err(Error::file("write", path))?;
    }
    let run = match path(matches, "resume") {
        Some(folder) => Run::resume_in(world, folder, |draft| {
            lay_flags(draft, matches);
            lay_ranks(draft, matches.contains_id("parallel.ranks"));
        })?,
        None => {
            let mut draft = draft(matches)?;
            let asked = draft.has("parallel.ranks");
            lay_ranks(&mut draft, asked);
            Run::new_in(world, &draft.job()?).map_err(|errors| draft.located(errors))?
        }
    };
    let mut setup = run.setup()?;
    if trace.is_some() {
        setup.record = measured::STEPS;
    }
    if !world.is_first() {
        world.train(setup, &signals.stop, &mut ()).map_err(|error| kept(&run, error))?;
        world.peak_rss_bytes()?;
        return Ok(0);
    }
    for damaged in &run.damaged {
        warn(&format!("passed over a damaged checkpoint: {damaged}"));
    }
    introduce(&run)?;
    let mut progress = Progress::new(run.ready(), run.first_step());
    let outcome = world.train(setup, &signals.stop, &mut progress);
    progress.finish()?;
    let outcome = outcome.map_err(|error| kept(&run, error))?;
    let peak_rss_bytes = world.peak_rss_bytes()?;
    let times = Times::new(&run, world, &outcome)?;
    if let Some(times) = &times {
        if let Some(path) = trace {
            std::fs::write(path, chrome_trace(&times.measured.events)).map_err(Error::file("write", path))?;
        }
        if run.ready().job.parallel.ranks > 1 {
            say(&times.words(&run.ready().network))?;
        }
    }
    let object = matches.get_flag("json").then(|| {
        let mut object = object(&run, &outcome, peak_rss_bytes);
        object["times"] = times.map_or(Value::Null, |times| times.object(&run.ready().network));
        object
    });
    conclude(&run, &outcome, object)?;
    Ok(if outcome.stopped { signals.exit_code() } else { 0 })
}

/// What was typed: a job's file, and flags over it.
pub fn draft(matches: &ArgMatches) -> Result<Draft, Error> {
    let mut draft = path(matches, "JOB").map_or(Ok(Draft::default()), Draft::open)?;
    lay_flags(&mut draft, matches);
    Ok(draft)
}

/// What is about to be done, on what and where.
fn introduce(run: &Run) -> Result<(), Error> {
    let ready = run.ready();
    say(&about_network(ready)?)?;
    let (ranks, threads) = (ready.job.parallel.ranks as u64, ready.job.parallel.threads.unwrap_or(1) as u64);
    say(&format!(
        "{} with {}, strategy {}, batch {}, {} planned; {}",
        count(ranks, "rank"),
        count(threads, "thread") + if ranks > 1 { " each" } else { "" },
        short(&ready.strategy.name),
        grouped(ready.job.train.batch as u64),
        bytes(run.planned_bytes.iter().sum()),
        shown(run.folder().path())
    ))?;
    if let Some(why) = &ready.why {
        say(why)?;
    }
    match run.first_step() {
        0 => Ok(()),
        step => say(&format!("goes on after step {} of {}", grouped(step), grouped(ready.steps()))),
    }
}

/// Network and data in one line.
pub fn about_network(ready: &Ready) -> Result<String, Error> {
    let parameters = grouped(ready.network.parameter_count()? as u64);
    let classes = ready.train.classes().map_or(String::new(), |classes| format!(" in {classes} classes"));
    let test = ready.test.as_ref().map_or("no test data".into(), |t| format!("{} to test", grouped(t.len() as u64)));
    Ok(format!(
        "{}, {parameters} parameters, on {}: {} images of {}{classes}, {test}",
        ready.network.name,
        ready.job.data.train,
        grouped(ready.train.len() as u64),
        Sizes(ready.train.sample_shape())
    ))
}

/// An error with what is left of the run.
fn kept(run: &Run, error: convoy_train::Error) -> Error {
    let newest = run.folder().checkpoints(1).newest().ok().map(|found| found.checkpoint.step);
    Error::InRun { run: run.folder().path().into(), newest, resumable: !error.would_recur(), error: Arc::new(error) }
}

/// How it ended, for people and for programs.
fn conclude(run: &Run, outcome: &Outcome, object: Option<Value>) -> Result<(), Error> {
    let folder = shown(run.folder().path());
    let scores = match &outcome.test {
        Some(test) => format!(", test {}", about_scores(test, run.ready().network.loss.takes_labels())),
        None => String::new(),
    };
    if outcome.stopped {
        say(&format!(
            "interrupted after step {} of {}; a checkpoint is kept\n  help: convoy train --resume {folder}",
            grouped(outcome.steps),
            grouped(run.ready().steps())
        ))?;
    } else {
        say(&format!(
            "done: {} in {}{scores}; {folder}/model.safetensors",
            count(outcome.steps, "step"),
            seconds(outcome.seconds)
        ))?;
    }
    object.map_or(Ok(()), |object| say(&object.to_string()))
}

fn object(run: &Run, outcome: &Outcome, peak_rss_bytes: Option<Vec<u64>>) -> Value {
    let ready = run.ready();
    let labels = ready.network.loss.takes_labels();
    let share = |of: fn(&Scores) -> f64| outcome.test.as_ref().filter(|_| labels).map(of);
    json!({
        "model": ready.network.name,
        "parameters": ready.network.parameter_count().ok(),
        "batch": ready.job.train.batch,
        "steps": outcome.steps,
        "steps_per_epoch": ready.steps_per_epoch(),
        "stopped": outcome.stopped,
        "train_loss": outcome.train_loss,
        "test_loss": outcome.test.map(|test| test.loss),
        "test_accuracy": share(|test| test.top1),
        "test_top5": share(|test| test.top5),
        "seconds": outcome.seconds,
        "ranks": ready.job.parallel.ranks,
        "threads": ready.job.parallel.threads,
        "strategy": ready.strategy.name,
        "bytes_sent": outcome.bytes_sent,
        "planned_bytes": outcome.planned_bytes,
        "weight_bytes": outcome.weight_bytes,
        "peak_rss_bytes": peak_rss_bytes,
        "weights_digest": digest(&outcome.weights),
        "run": run.folder().path(),
    })
}

/// A path as short as it can be said from here.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let short = here.as_deref().and_then(|here| path.strip_prefix(here).ok());
    short.unwrap_or(path).display().to_string()
}
