//! `convoy bench`: the speed of a training step, as a whole and layer by layer, beside what this machine could do.

use super::validate::{self, Validate};
use super::{field_argument, field_arguments, json_argument, lay_flags, path, path_argument, say};
use crate::draft::Draft;
use crate::error::{Error, Errors};
use crate::fields::Field;
use crate::job::Job;
use crate::machine;
use crate::part::{Part, algorithm};
use crate::ready;
use crate::words::{bytes, count, median, table};
use crate::world::World;
use clap::{Arg, ArgAction, ArgMatches, Command};
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::{Mode, Moment, fast, fma_peak_gflops, memory_gbytes};
use convoy_net::zoo;
use convoy_net::{LayerSummary, Network, Region};
use convoy_program::{Action, Options, Program, Subject, lower};
use convoy_split::{Rank, Strategy};
use convoy_train::data::{self, DataSpec, Split};
use convoy_train::{Optimizer, Sgd, Weights, fold, state};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Steps that are not measured: the first touches of memory and caches.
pub const WARM_UP: usize = 2;
pub const SEED: u64 = 1;
pub const LEARNING_RATE: f32 = 1e-3;

pub fn definition() -> Command {
    let fields = ["network.classes", "network.input", "train.leaves", "train.winograd", "parallel.threads"];
    let own = |key: &str, default: &'static str, help: &'static str| {
        let field = Field::find(key).expect("bug: a flag without a field");
        field_argument(field).default_value(default).help(help).help_heading(None)
    };
    Command::new("bench")
        .about("The speed of a training step, layer by layer if asked, beside this machine's peak")
        .after_help(
            "Measures training steps on a fixed batch in memory: forward, loss, backward, and SGD with momentum 0.9 and\n\
             weight decay 1e-4; or, with --eval, forward and loss alone, as `convoy eval` computes them. The peak is what a\n\
             loop of nothing but multiply-adds reaches on as many threads.",
        )
        .arg(path_argument("NET").required_unless_present("validate").help("a model's name (`convoy models`) or a network's file"))
        .arg(own("train.batch", "16", "samples of a step"))
        .arg(own("train.steps", "10", "steps that are measured, after two that are not"))
        .arg(Arg::new("eval").long("eval").action(ArgAction::SetTrue).help("evaluation: batch norms folded, forward only"))
        .arg(Arg::new("layers").long("layers").action(ArgAction::SetTrue).help("the same per layer and pass"))
        .arg(
            Arg::new("validate")
                .long("validate")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["NET", "layers"])
                .help("instead: predicted beside measured, over networks, batches and strategies, and what the planner's choices cost"),
        )
        .arg(
            Arg::new("only")
                .long("only")
                .value_name("LIST")
                .requires("validate")
                .help("cases that have one of these words in their names, such as unet,resnet50+data"),
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .default_value("5")
                .help("with --validate: how long each case is measured, three steps at least"),
        )
        .arg(path_argument("out").long("out").value_name("FILE").requires("validate").help("a line of JSON for each case"))
        .arg(json_argument())
        .args(field_arguments(|field| fields.contains(&field.key)))
}

pub fn run(matches: &ArgMatches) -> Result<u8, Errors> {
    if matches.get_flag("validate") {
        let only = matches.get_one::<String>("only").map_or("", String::as_str);
        let only = only.split(',').filter(|words| !words.is_empty()).map(String::from).collect();
        let seconds = super::question::whole(matches, "seconds", 86_400)?.expect("bug: it has a default") as f64;
        let validate = Validate { only, seconds, out: path(matches, "out") };
        let asked = [("command", "bench --validate".into()), ("cases", validate.only.join(","))];
        return World::enter(&asked, |world| validate::run(&validate, world, matches.get_flag("json")).map(|()| 0));
    }
    let mut draft = Draft::default();
    lay_flags(&mut draft, matches);
    let job = draft.job()?;
    let mut network = network(path(matches, "NET").unwrap_or(Path::new("")), &job)?;
    let mode = if matches.get_flag("eval") { Mode::Evaluate } else { Mode::Train };
    let mut weights = state::initial_weights(&network, SEED);
    if mode == Mode::Evaluate {
        (network, weights) = fold(&network, &weights);
    }
    let threads = job.parallel.threads.unwrap_or(machine::cores());
    let before = Peak::measure(threads);
    let bench = Bench::run((&network, &weights), &job, mode, threads, matches.get_flag("layers"))
        .map_err(|errors| draft.located(errors))?;
    let peak = before.max(Peak::measure(threads));
    tell(&network, &bench, &peak, matches).map(|()| 0)
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
    mode: Mode,
    threads: usize,
    leaves: usize,
    /// Of each step.
    seconds: Vec<f64>,
    planned_bytes: u64,
    /// Of all threads, on adding leaves of weight gradients together, in one step.
    fold_seconds: f64,
    /// By layer and pass, in one step.
    parts: BTreeMap<(usize, Part), Cost>,
}

/// What a pass of a layer took and asked for.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Of all threads together.
    seconds: f64,
    /// Read and written, each element once.
    bytes: f64,
    algorithm: Option<&'static str>,
}

/// What a machine can do on as many threads, measured beside the steps.
struct Peak {
    gflops: f64,
    gbytes: f64,
}

impl Peak {
    fn measure(threads: usize) -> Peak {
        Peak { gflops: fma_peak_gflops(threads), gbytes: memory_gbytes(threads) }
    }

    fn max(self, other: Peak) -> Peak {
        Peak { gflops: self.gflops.max(other.gflops), gbytes: self.gbytes.max(other.gbytes) }
    }
}

/// The row of all that belongs to no layer.
const NO_LAYER: usize = usize::MAX;

impl Bench {
    fn run(
        (network, weights): (&Network, &Weights),
        job: &Job,
        mode: Mode,
        threads: usize,
        profile: bool,
    ) -> Result<Bench, Errors> {
        let (batch, steps) = (job.train.batch, job.train.steps.unwrap_or(1) as usize);
        let optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, ..Sgd::default() });
        let options = Options {
            batch,
            mode,
            leaves: job.train.leaves,
            winograd: job.train.winograd,
            update: optimizer.update(),
            division: Default::default(),
        };
        let program = lower(network, &Strategy::single(network), Rank(0), &options).map_err(Error::from)?;
        let programs = vec![program];
        ready::check_memory(batch, Engine::planned_bytes(&programs, threads) as u64)?;
        let (images, targets) = batch_of(network, &programs[0])?;
        let communicator = convoy_comm::threads(1).pop().expect("bug: no rank");
        let settings = Settings { profile, ..Settings::default() };
        let mut engine = Engine::new(network, programs, threads, communicator, settings);
        state::put_weights(&mut engine, network, weights);
        let (mut seconds, mut folded_before) = (vec![], 0.0);
        for step in 0..WARM_UP + steps {
            if step == WARM_UP {
                folded_before = fast::fold::seconds();
                engine.take_times(0);
                seconds.clear();
            }
            let began = Instant::now();
            let moment = Moment { seed: SEED, step: step as u64, learning_rate: LEARNING_RATE };
            engine.step(0, Batch { images: &images, targets: &targets }, moment).map_err(Error::from)?;
            seconds.push(began.elapsed().as_secs_f64());
        }
        let fold_seconds = (fast::fold::seconds() - folded_before) / steps as f64;
        let mut parts = BTreeMap::new();
        let times = engine.take_times(0);
        let program = engine.program(0);
        for (time, place) in times.iter().zip(places(program)) {
            let cost: &mut Cost = parts.entry(place).or_default();
            cost.seconds += time.seconds / steps as f64;
            let action = &program.ops[time.op].action;
            cost.bytes += asked(action);
            cost.algorithm = cost.algorithm.or(algorithm(network, action).map(|(_, _, algorithm)| algorithm));
        }
        let planned_bytes = engine.bytes() as u64;
        let leaves = job.train.leaves;
        Ok(Bench { batch, mode, threads, leaves, seconds, planned_bytes, fold_seconds, parts })
    }

    fn median(&self) -> f64 {
        median(self.seconds.iter().copied())
    }
}

/// One synthetic batch, dense.
pub fn batch_of(network: &Network, program: &Program) -> Result<(Vec<f32>, Vec<f32>), Errors> {
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

/// The layer and pass that each op works for. What only prepares belongs to what follows.
fn places(program: &Program) -> Vec<(usize, Part)> {
    let mut next = BTreeMap::new();
    let mut places: Vec<(usize, Part)> = vec![];
    for op in program.ops.iter().rev() {
        places.push(match &op.action {
            Action::Compute { subject: Subject::Layer(layer), stage, .. } => {
                let following = || next.get(&layer.0).copied().unwrap_or(Part::Forward);
                let part = Part::of(stage.pass).unwrap_or_else(following);
                next.insert(layer.0, part);
                (layer.0, part)
            }
            Action::Update { layer, .. } => (layer.0, Part::Update),
            _ => (NO_LAYER, Part::Other),
        });
    }
    places.reverse();
    places
}

/// Bytes that an op reads and writes.
fn asked(action: &Action) -> f64 {
    match action {
        Action::Compute { stage, .. } | Action::Update { stage, .. } => stage.work.bytes,
        _ => 0.0,
    }
}

fn tell(network: &Network, bench: &Bench, peak: &Peak, matches: &ArgMatches) -> Result<(), Errors> {
    let step_seconds = bench.median();
    let flops = match bench.mode {
        Mode::Train => network.step_flops(bench.batch),
        Mode::Evaluate => network.summary(bench.batch).map(|layers| layers.iter().map(|layer| layer.flops).sum()),
    };
    let gflop = flops.map_err(Error::from)? as f64 / 1e9;
    let images = bench.batch as f64 / step_seconds;
    let gflops = gflop / step_seconds;
    say(&format!(
        "{}, batch {}, {}: {images:.1} images/s, {step_seconds:.4} s a step (median of {}), {gflops:.1} GFLOP/s, {:.0} % of \
         a peak of {:.1}, {} planned",
        network.name,
        bench.batch,
        count(bench.threads as u64, "thread"),
        bench.seconds.len(),
        100.0 * gflops / peak.gflops,
        peak.gflops,
        bytes(bench.planned_bytes)
    ))?;
    let layers = rows(network, bench, peak)?;
    if matches.get_flag("layers") {
        let header = [
            "layer",
            "pass",
            "ms of all threads",
            "GFLOP/s per thread",
            "% of peak",
            "GB/s",
            "% of bandwidth",
            "algorithm",
        ];
        say(&table(&header, &[1, 7], layers.iter().map(Row::cells).collect()))?;
        say(&bounds(bench, &layers, peak))?;
        let folding = 100.0 * bench.fold_seconds / (step_seconds * bench.threads as f64);
        say(&format!("folding gradients over leaves: {folding:.1} % of the step"))?;
    }
    if matches.get_flag("json") {
        let mut object = json!({
            "net": network.name,
            "batch": bench.batch,
            "threads": bench.threads,
            "leaves": bench.leaves,
            "steps": bench.seconds.len(),
            "images_per_second": images,
            "step_seconds": step_seconds,
            "step_seconds_all": bench.seconds,
            "gflop_step": gflop,
            "gflops": gflops,
            "fma_peak_gflops": peak.gflops,
            "memory_gbytes": peak.gbytes,
            "fold_seconds": bench.fold_seconds,
            "planned_bytes": bench.planned_bytes,
            "peak_rss_bytes": machine::peak_rss_bytes(),
        });
        if matches.get_flag("layers") {
            object["layers"] = layers.iter().map(Row::object).collect();
            object["bounds"] = json!(bounds(bench, &layers, peak));
        }
        say(&object.to_string())?;
    }
    Ok(())
}

/// One pass of one layer in a step.
struct Row {
    layer: String,
    pass: &'static str,
    cost: Cost,
    gflop: f64,
    /// Of what one thread could compute, where it computes sums of products.
    of_peak: Option<f64>,
    /// Of what one thread's part of memory could move.
    of_bandwidth: f64,
}

impl Row {
    fn object(&self) -> Value {
        json!({
            "layer": self.layer, "pass": self.pass, "thread_seconds": self.cost.seconds,
            "gflop": self.gflop, "gflops": self.gflop / self.cost.seconds, "share_of_peak": self.of_peak,
            "bytes": self.cost.bytes, "gbytes": self.cost.bytes / 1e9 / self.cost.seconds,
            "share_of_bandwidth": self.of_bandwidth, "algorithm": self.cost.algorithm,
        })
    }

    fn cells(&self) -> Vec<String> {
        let seconds = self.cost.seconds;
        let number = |value: f64, digits: usize| if value > 0.0 { format!("{value:.digits$}") } else { String::new() };
        vec![
            self.layer.clone(),
            self.pass.to_string(),
            format!("{:.3}", 1e3 * seconds),
            number(self.gflop / seconds, 1),
            number(100.0 * self.of_peak.unwrap_or(0.0), 0),
            number(self.cost.bytes / seconds / 1e9, 1),
            number(100.0 * self.of_bandwidth, 0),
            self.cost.algorithm.unwrap_or("").to_string(),
        ]
    }

    /// What it asks most of.
    fn bound(&self) -> Bound {
        match self.of_peak {
            Some(of_peak) if of_peak >= self.of_bandwidth => Bound::Products,
            _ => Bound::Memory,
        }
    }
}

/// What a pass cannot be faster than.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Products,
    Memory,
}

fn rows(network: &Network, bench: &Bench, peak: &Peak) -> Result<Vec<Row>, Error> {
    let layers: Vec<LayerSummary> = network.summary(bench.batch)?;
    let [gflops, gbytes] = [peak.gflops, peak.gbytes].map(|all| all / bench.threads as f64);
    let row = |(&(layer, part), &cost): (&(usize, Part), &Cost)| {
        let known = layers.get(layer);
        let computes = matches!(part, Part::Forward | Part::InputGradient | Part::WeightGradient);
        let gflop = known.filter(|_| computes).map_or(0.0, |layer| layer.flops as f64 / 1e9);
        let of_peak = (gflop > 0.0).then(|| gflop / cost.seconds / gflops);
        let of_bandwidth = cost.bytes / 1e9 / cost.seconds / gbytes;
        let layer = known.map_or("(all)".into(), |l| l.name.clone());
        Row { layer, pass: part.name(), cost, gflop, of_peak, of_bandwidth }
    };
    Ok(bench.parts.iter().map(row).collect())
}

/// Where the time of all threads goes, in a sentence.
fn bounds(bench: &Bench, rows: &[Row], peak: &Peak) -> String {
    let threads = bench.threads as f64;
    let all = bench.median() * threads;
    // From zero on: the sum of no floats is minus zero, and would be printed so.
    let sum = |bound: Bound, of: fn(&Row) -> f64| {
        rows.iter().filter(|row| row.bound() == bound).fold(0.0, |sum, row| sum + of(row))
    };
    let [products, memory] = [Bound::Products, Bound::Memory].map(|bound| sum(bound, |row| row.cost.seconds));
    let gflop = sum(Bound::Products, |row| row.gflop);
    let gbytes = sum(Bound::Memory, |row| row.cost.bytes) / 1e9;
    let percent = |part: f64| 100.0 * part / all;
    format!(
        "products take {:.0} % of the threads' time, at {:.0} % of the peak of {:.1} GFLOP/s; passes over memory {:.0} %, at {:.0} % of \
         {:.1} GB/s; {:.0} % nothing runs",
        percent(products),
        100.0 * gflop / products.max(1e-9) / (peak.gflops / threads),
        peak.gflops,
        percent(memory),
        100.0 * gbytes / memory.max(1e-9) / (peak.gbytes / threads),
        peak.gbytes,
        percent((all - products - memory).max(0.0))
    )
}
