//! `convoy bench`: the speed of a training step, as a whole and layer by layer, beside what this machine could do.

use super::{field_argument, field_arguments, json_argument, lay_flags, path, path_argument, say};
use crate::draft::Draft;
use crate::error::{Error, Errors};
use crate::fields::Field;
use crate::job::Job;
use crate::machine;
use crate::ready;
use crate::words::{bytes, count, table};
use clap::{Arg, ArgAction, ArgMatches, Command};
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::{Mode, Moment, Pass, fma_peak_gflops};
use convoy_net::zoo;
use convoy_net::{LayerSummary, Network, Region};
use convoy_program::{Action, Options, Program, Subject, lower};
use convoy_split::{Rank, Strategy};
use convoy_train::data::{self, DataSpec, Split};
use convoy_train::{Optimizer, Sgd, state};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Steps that are not measured: the first touches of memory and caches.
const WARM_UP: usize = 2;
const SEED: u64 = 1;
const LEARNING_RATE: f32 = 1e-3;

pub fn definition() -> Command {
    let fields = ["network.classes", "network.input", "train.winograd", "parallel.threads"];
    let own = |key: &str, default: &'static str, help: &'static str| {
        let field = Field::find(key).expect("bug: a flag without a field");
        field_argument(field).default_value(default).help(help).help_heading(None)
    };
    Command::new("bench")
        .about("The speed of a training step, layer by layer if asked, beside this machine's peak")
        .after_help(
            "Measures training steps on a fixed batch in memory: forward, loss, backward, and SGD with momentum 0.9 and\n\
             weight decay 1e-4. The peak is what a loop of nothing but multiply-adds reaches on as many threads.",
        )
        .arg(path_argument("NET").required(true).help("a model's name (`convoy models`) or a network's file"))
        .arg(own("train.batch", "16", "samples of a step"))
        .arg(own("train.steps", "10", "steps that are measured, after two that are not"))
        .arg(Arg::new("layers").long("layers").action(ArgAction::SetTrue).help("the same per layer and pass"))
        .arg(json_argument())
        .args(field_arguments(|field| fields.contains(&field.key)))
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let mut draft = Draft::default();
    lay_flags(&mut draft, matches);
    let job = draft.job()?;
    let network = network(path(matches, "NET").unwrap_or(Path::new("")), &job)?;
    let threads = job.parallel.threads.unwrap_or(machine::cores());
    let before = fma_peak_gflops(threads);
    let bench =
        Bench::run(&network, &job, threads, matches.get_flag("layers")).map_err(|errors| draft.located(errors))?;
    let after = fma_peak_gflops(threads);
    tell(&network, &bench, before.max(after), matches)
}

/// The network that a model's name or a file says.
pub fn network(net: &Path, job: &Job) -> Result<Network, Errors> {
    let mut job = job.clone();
    let name = net.to_string_lossy();
    let is_model = zoo::names().iter().any(|model| model.name == name);
    job.network.file = Some(net.to_path_buf()).filter(|net| !is_model && net.exists());
    job.network.model = Some(name.into_owned());
    ready::network_alone(&job)
}

/// What was measured.
struct Bench {
    batch: usize,
    threads: usize,
    /// Of each step.
    seconds: Vec<f64>,
    planned_bytes: u64,
    /// By layer and pass, seconds of all threads together in one step.
    parts: BTreeMap<(usize, Part), f64>,
}

/// Passes as people tell them apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Forward,
    InputGradient,
    WeightGradient,
    Update,
    /// Moving and clearing memory, sums over samples.
    Other,
}

impl Part {
    fn name(self) -> &'static str {
        ["forward", "input gradient", "weight gradient", "update", "other"][self as usize]
    }
}

/// The row of all that belongs to no layer.
const NO_LAYER: usize = usize::MAX;

impl Bench {
    fn run(network: &Network, job: &Job, threads: usize, profile: bool) -> Result<Bench, Errors> {
        let (batch, steps) = (job.train.batch, job.train.steps.unwrap_or(1) as usize);
        let optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, ..Sgd::default() });
        let options = Options {
            batch,
            mode: Mode::Train,
            leaves: job.train.leaves,
            winograd: job.train.winograd,
            update: optimizer.update(),
        };
        let program = lower(network, &Strategy::single(network), Rank(0), &options).map_err(Error::from)?;
        let programs = vec![program];
        ready::check_memory(batch, Engine::planned_bytes(&programs, threads) as u64)?;
        let (images, targets) = batch_of(network, &programs[0])?;
        let communicator = convoy_comm::threads(1).pop().expect("bug: no rank");
        let settings = Settings { profile, ..Settings::default() };
        let mut engine = Engine::new(network, programs, threads, communicator, settings);
        state::put_weights(&mut engine, network, &state::initial_weights(network, SEED));
        let mut seconds = vec![];
        for step in 0..WARM_UP + steps {
            if step == WARM_UP {
                engine.take_times(0);
                seconds.clear();
            }
            let began = Instant::now();
            let moment = Moment { seed: SEED, step: step as u64, learning_rate: LEARNING_RATE };
            engine.step(0, Batch { images: &images, targets: &targets }, moment).map_err(Error::from)?;
            seconds.push(began.elapsed().as_secs_f64());
        }
        let mut parts = BTreeMap::new();
        for time in engine.take_times(0) {
            let place = place(&engine.program(0).ops[time.op].action);
            *parts.entry(place).or_insert(0.0) += time.seconds / steps as f64;
        }
        Ok(Bench { batch, threads, seconds, planned_bytes: engine.bytes() as u64, parts })
    }

    fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
    }
}

/// One synthetic batch, dense.
fn batch_of(network: &Network, program: &Program) -> Result<(Vec<f32>, Vec<f32>), Errors> {
    let shapes = network.shapes(1).map_err(Error::from)?;
    let (input, output) = (shapes[0], shapes[shapes.len() - 1]);
    let options = ready::open_options(&Job::default(), &network.loss, Some(output));
    let spec = DataSpec::Synthetic { shape: input, count: program.batch };
    let data = data::open(&spec, Split::Train, &options).map_err(Error::from)?;
    let (image, target) = (data.sample_shape(), data.target_shape());
    let mut images = vec![0.0; image.len() * program.batch];
    let mut targets = vec![0.0; target.len() * program.batch];
    for (i, into) in images.chunks_mut(image.len()).enumerate() {
        data.read_image(i, &Region::whole(image), into).map_err(Error::from)?;
    }
    for (i, into) in targets.chunks_mut(target.len()).enumerate() {
        data.read_target(i, &Region::whole(target), into).map_err(Error::from)?;
    }
    Ok((images, targets))
}

/// The layer and pass that an op works for.
fn place(action: &Action) -> (usize, Part) {
    match action {
        Action::Compute { subject: Subject::Layer(layer), stage, .. } => {
            let part = match stage.pass {
                Pass::InputGradient(_) => Part::InputGradient,
                Pass::WeightGradient(_) => Part::WeightGradient,
                Pass::GradientStatistics | Pass::GradientCoefficients => Part::InputGradient,
                _ => Part::Forward,
            };
            (layer.0, part)
        }
        Action::Update { layer, .. } => (layer.0, Part::Update),
        _ => (NO_LAYER, Part::Other),
    }
}

fn tell(network: &Network, bench: &Bench, peak: f64, matches: &ArgMatches) -> Result<(), Errors> {
    let step_seconds = bench.median();
    let gflop = network.step_flops(bench.batch).map_err(Error::from)? as f64 / 1e9;
    let images = bench.batch as f64 / step_seconds;
    let gflops = gflop / step_seconds;
    say(&format!(
        "{}, batch {}, {}: {images:.1} images/s, {step_seconds:.4} s a step (median of {}), {gflops:.1} GFLOP/s, {:.0} % of \
         a peak of {peak:.1}, {} planned",
        network.name,
        bench.batch,
        count(bench.threads as u64, "thread"),
        bench.seconds.len(),
        100.0 * gflops / peak,
        bytes(bench.planned_bytes)
    ))?;
    let layers = rows(network, bench, peak)?;
    if matches.get_flag("layers") {
        let text = |row: &Row| {
            let speed = if row.gflop > 0.0 { format!("{:.1}", row.gflop / row.seconds) } else { String::new() };
            let share = row.share.map_or(String::new(), |share| format!("{:.0}", 100.0 * share));
            let name = [row.layer.clone(), row.pass.to_string()];
            name.into_iter().chain([format!("{:.3}", 1e3 * row.seconds), speed, share]).collect()
        };
        let header = ["layer", "pass", "ms of all threads", "GFLOP/s per thread", "% of peak"];
        say(&table(&header, &[1], layers.iter().map(text).collect()))?;
    }
    if matches.get_flag("json") {
        let mut object = json!({
            "net": network.name,
            "batch": bench.batch,
            "threads": bench.threads,
            "steps": bench.seconds.len(),
            "images_per_second": images,
            "step_seconds": step_seconds,
            "step_seconds_all": bench.seconds,
            "gflop_step": gflop,
            "gflops": gflops,
            "fma_peak_gflops": peak,
            "planned_bytes": bench.planned_bytes,
            "peak_rss_bytes": machine::peak_rss_bytes(),
        });
        if matches.get_flag("layers") {
            object["layers"] = layers.iter().map(Row::object).collect();
        }
        say(&object.to_string())?;
    }
    Ok(())
}

/// One pass of one layer in a step.
struct Row {
    layer: String,
    pass: &'static str,
    /// Of all threads together.
    seconds: f64,
    gflop: f64,
    /// Of what one thread could do.
    share: Option<f64>,
}

impl Row {
    fn object(&self) -> Value {
        json!({
            "layer": self.layer, "pass": self.pass, "thread_seconds": self.seconds, "gflop": self.gflop,
            "share_of_peak": self.share,
        })
    }
}

fn rows(network: &Network, bench: &Bench, peak: f64) -> Result<Vec<Row>, Error> {
    let layers: Vec<LayerSummary> = network.summary(bench.batch)?;
    let per_thread = peak / bench.threads as f64;
    let row = |(&(layer, part), &seconds): (&(usize, Part), &f64)| {
        let known = layers.get(layer);
        let computes = matches!(part, Part::Forward | Part::InputGradient | Part::WeightGradient);
        let gflop = known.filter(|_| computes).map_or(0.0, |layer| layer.flops as f64 / 1e9);
        let share = (gflop > 0.0).then(|| gflop / seconds / per_thread);
        Row { layer: known.map_or("(all)".into(), |l| l.name.clone()), pass: part.name(), seconds, gflop, share }
    };
    Ok(bench.parts.iter().map(row).collect())
}
