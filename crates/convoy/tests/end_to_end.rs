//! From the command line to a trained network, with small settings.

mod program;

use convoy::{Draft, Run};
use convoy_train::{Observer, StepReport, digest};
use program::{PNG, Place, finish};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A job of some steps that end in the middle of an epoch: 9,000 digits would be an epoch of many.
const SMALL: &str = "--data synthetic:1x28x28:96 --classes 10 --batch 16 --test-data none";

#[test]
fn the_loss_falls_on_digits() {
    let place = Place::new();
    let object = place.json("train --steps 60 --batch 32");
    // Ten classes by chance: ln 10 = 2.30 and one of ten.
    assert!(object["test_loss"].as_f64().unwrap() < 1.0, "{object}");
    assert!(object["test_accuracy"].as_f64().unwrap() > 0.7, "{object}");
    let run = Path::new(object["run"].as_str().unwrap());
    for file in ["job.toml", "plan.json", "network.toml", "metrics.jsonl", "model.safetensors", "checkpoints"] {
        assert!(run.join(file).exists(), "{file}");
    }

    // Evaluation from the folder gives what training said.
    let scores = place.json(&format!("eval {}", run.display()));
    assert_eq!(scores["loss"], object["test_loss"]);
    assert_eq!(scores["top1"], object["test_accuracy"]);
    assert_eq!(scores["top5"], object["test_top5"]);
    assert!(scores["images_per_second"].as_f64().unwrap() > 0.0);
    // And so do the weights alone.
    let words = format!("eval --model lenet --weights {}/model.safetensors --data digits --batch 32", run.display());
    assert_eq!(place.json(&words)["loss"], object["test_loss"]);
}

#[test]
fn the_json_object_has_all_fields() {
    let place = Place::new();
    let object = place.json(&format!("train {SMALL} --steps 3 --ranks 2 --strategy data --threads 1 --name my/run"));
    assert_eq!(object["ranks"], 2);
    assert_eq!(object["threads"], 1);
    assert_eq!(object["steps"], 3);
    assert_eq!(object["strategy"], "data:2");
    assert_eq!(object["stopped"], false);
    assert!(object["test_loss"].is_null() && object["test_accuracy"].is_null());
    assert!(object["train_loss"].as_f64().unwrap() > 0.0);
    assert!(object["seconds"].as_f64().unwrap() > 0.0);
    // Two ranks exchange gradients at least: 431,080 parameters of four bytes, each step.
    let of_ranks = |name: &str| -> Vec<u64> {
        object[name].as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap()).collect()
    };
    let (sent, planned, weights) = (of_ranks("bytes_sent"), of_ranks("planned_bytes"), of_ranks("weight_bytes"));
    assert!(sent.len() == 2 && sent.iter().sum::<u64>() > 3 * 4 * 431_080, "{object}");
    assert!(weights.len() == 2 && weights.iter().all(|bytes| *bytes >= 4 * 431_080), "{object}");
    assert!(planned.iter().zip(&weights).all(|(planned, weights)| *planned > 2 * weights), "{object}");
    // Both ranks are in one process.
    assert!(object["peak_rss_bytes"].is_null() || of_ranks("peak_rss_bytes")[..] > [planned.iter().sum()][..]);
    assert_eq!(object["weights_digest"].as_str().unwrap().len(), 64);
    assert!(object["run"].as_str().unwrap().contains("runs/my-run-"));
}

#[test]
fn threads_and_repetition_change_no_bit() {
    let place = Place::new();
    let digest = |more: &str| {
        let words = format!("train {SMALL} --steps 8 {more}");
        place.json(&words)["weights_digest"].as_str().unwrap().to_string()
    };
    let one = digest("--threads 1");
    assert_eq!(one, digest("--threads 1"));
    assert_eq!(one, digest("--threads 2 --loaders 2"));
    assert_eq!(one, digest("--threads 3"));
    assert_eq!(one, digest("--ranks 2 --strategy data --threads 1"));
    assert_ne!(one, digest("--seed 2"));
}

/// A small network like VGG, to be cut in space where images are large, by samples where they are small, and by filters where
/// weights are many.
const LIKE_VGG: &str = r#"
name = "like-vgg"
input = [3, 16, 16]
layer = [
    { name = "conv1", kind = "convolution", filters = 8, kernel = [3, 3], padding = [[1, 1], [1, 1]] },
    { name = "relu1", kind = "activation", function = "relu" },
    { name = "pool1", kind = "max-pool", kernel = [2, 2], stride = [2, 2] },
    { name = "conv2", kind = "convolution", filters = 12, kernel = [3, 3], padding = [[1, 1], [1, 1]] },
    { name = "pool2", kind = "max-pool", kernel = [2, 2], stride = [2, 2] },
    { name = "fc1", kind = "fully-connected", outputs = 20 },
    { name = "relu2", kind = "activation", function = "relu" },
    { name = "fc2", kind = "fully-connected", outputs = 10 },
]
"#;

#[test]
fn a_plan_that_was_edited_is_trained() {
    let place = Place::new();
    place.file("net.toml", LIKE_VGG);
    let job = "train --network net.toml --data synthetic:3x16x16:64 --batch 8 --steps 6 --test-data none --threads 1";
    let one = place.json(job);
    place.good("plan net.toml --batch 8 --ranks 4 --machine cpu-10g --strategy spatial:2x2 --out plan.json");
    // As it was written: what the words say.
    let words = place.json(&format!("{job} --ranks 4 --strategy spatial:2x2"));
    let read = place.json(&format!("{job} --ranks 4 --strategy plan.json"));
    assert_eq!(read["strategy"], "spatial:2x2");
    assert_eq!(read["weights_digest"], words["weights_digest"]);
    assert_eq!(read["bytes_sent"], words["bytes_sent"]);
    // Spatial early, data in the middle, filters for the first fully connected layer.
    let mut plan: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path().join("plan.json")).unwrap()).unwrap();
    for row in plan["layers"].as_array_mut().unwrap() {
        let name = row["layer"].as_str().unwrap().to_string();
        let axis = match name.as_str() {
            "conv2" | "pool2" | "fc2" => "sample",
            "fc1" | "relu2" => "filter",
            _ => continue,
        };
        *row = serde_json::json!({ "layer": name, axis: 4 });
    }
    place.file("mixed.json", plan.to_string());
    let mixed = place.json(&format!("{job} --ranks 4 --strategy mixed.json --checkpoint-every 2"));
    assert_eq!(mixed["strategy"], "mixed spatial:2x2 + data:4 + filter:4");
    let loss = |object: &serde_json::Value| object["train_loss"].as_f64().unwrap();
    assert!((loss(&mixed) / loss(&one) - 1.0).abs() < 1e-4, "{mixed}\n{one}");
    // Who has a part of the filters has a part of the weights only: 12 * 4 * 4 * 20 of them in fc1.
    let weights = |object: &serde_json::Value| object["weight_bytes"][0].as_u64().unwrap();
    assert!(weights(&words) - weights(&mixed) >= 4 * 3 * (12 * 16 * 20) / 4, "{mixed}");
    // The run keeps the plan: it goes on without the file, and wherever its folder is.
    std::fs::remove_file(place.path().join("mixed.json")).unwrap();
    std::fs::rename(mixed["run"].as_str().unwrap(), place.path().join("moved")).unwrap();
    let more = place.json("train --resume moved --steps 8");
    assert_eq!((more["strategy"].as_str(), more["steps"].as_u64()), (mixed["strategy"].as_str(), Some(8)));
    // And on other numbers of ranks by other strategies, with and without divided weights: as one rank that was never
    // interrupted. The schedule follows from how many steps there are in all, so it is one that does not.
    let constant = |steps: u64| job.replace("--steps 6", &format!("--schedule constant --steps {steps}"));
    let begun = place.json(&format!("{} --ranks 4 --strategy spatial:2x2", constant(2)));
    let run = begun["run"].as_str().unwrap();
    for (steps, ranks, strategy) in
        [(4, 2, "data"), (6, 3, "filter"), (7, 1, "data"), (9, 4, "channel"), (10, 4, "spatial:1x4")]
    {
        let resumed =
            place.json(&format!("train --resume {run} --steps {steps} --ranks {ranks} --strategy {strategy}"));
        let whole = place.json(&constant(steps));
        assert_eq!(resumed["steps"], steps);
        assert!((loss(&resumed) / loss(&whole) - 1.0).abs() < 1e-4, "{strategy}: {resumed}\n{whole}");
    }
}

/// The mesh networks of Dryden et al., small: convolution, ReLU, batch norm, and a mask at the end.
const SMALL_MESH: &str = r#"
name = "small-mesh"
input = [18, 32, 32]

[loss]
kind = "mean-squared-error"

[[layer]]
name = "conv1"
kind = "convolution"
filters = 16
kernel = [5, 5]
stride = [2, 2]
padding = [2, 2]
bias = false

[[layer]]
name = "relu1"
kind = "activation"
function = "relu"

[[layer]]
name = "bn1"
kind = "batch-norm"

[[layer]]
name = "conv2"
kind = "convolution"
filters = 16
kernel = [3, 3]
stride = [2, 2]
padding = [1, 1]
bias = false

[[layer]]
name = "relu2"
kind = "activation"
function = "relu"

[[layer]]
name = "bn2"
kind = "batch-norm"

[[layer]]
name = "head"
kind = "convolution"
filters = 16
kernel = [1, 1]
bias = false

[[layer]]
name = "mask"
kind = "activation"
function = "sigmoid"
"#;

/// Samples that no rank has as a whole, whose mask can be learned: zeros and ones by halves, so that any constant has a loss of 0.25.
#[test]
fn a_small_mesh_learns_split_over_space() {
    let place = Place::new();
    place.file("net.toml", SMALL_MESH);
    let job = "train --network net.toml --data synthetic:18x32x32:40 --batch 8 --steps 60 --optimizer adam --lr 0.01 --test-data none";
    let four = place.json(&format!("{job} --ranks 4 --strategy spatial:2x2 --threads 1"));
    assert!(four["train_loss"].as_f64().unwrap() < 0.15, "{four}");
}

/// A span of a trace: rank, thread, category, name, when it began and ended.
type Span = (u64, u64, String, String, f64, f64);

fn spans(file: &Path) -> Vec<Span> {
    let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let is_span = |e: &&serde_json::Value| e["ph"] == "X";
    let span = |e: &serde_json::Value| {
        let text = |name: &str| e[name].as_str().unwrap().to_string();
        let (start, length) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap(), text("cat"), text("name"), start, start + length)
    };
    trace.as_array().unwrap().iter().filter(is_span).map(span).collect()
}

#[test]
fn a_trace_shows_what_every_rank_did() {
    let place = Place::new();
    place.file("net.toml", LIKE_VGG);
    let object = place.json(
        "train --network net.toml --data synthetic:3x16x16:64 --batch 8 --steps 7 --test-data none --threads 2 --ranks 2 \
         --strategy spatial --trace t.json",
    );
    let spans = spans(&place.path().join("t.json"));
    for rank in 0..2 {
        let of = |category: &str| spans.iter().filter(|s| s.0 == rank && s.2 == category).count();
        for category in ["compute", "halo", "reduction", "redistribution"] {
            assert!(of(category) >= 3, "rank {rank} has {} spans of {category}", of(category));
        }
        // Three steps, each with one backward pass of each of four layers with weights, in one op or more.
        let passes: Vec<&Span> =
            spans.iter().filter(|s| s.0 == rank && s.3.starts_with("conv2 WeightGradient")).collect();
        assert!(passes.len() >= 3 && passes.len().is_multiple_of(3), "{passes:?}");
        // A thread does one thing at a time, and so does each lane of the network.
        let mut by_thread: Vec<&Span> = spans.iter().filter(|s| s.0 == rank).collect();
        by_thread.sort_by(|a, b| a.1.cmp(&b.1).then(a.4.total_cmp(&b.4)).then(a.5.total_cmp(&b.5)));
        for pair in by_thread.windows(2) {
            assert!(pair[0].1 != pair[1].1 || pair[0].5 <= pair[1].4 + 0.01, "{pair:?}");
        }
        // What is computed at the boundary of conv1 reads what the other rank sent: the last tile of the layer's forward pass
        // begins after the halo of its input came. The input is loaded with its halo, so this is about conv2.
        let steps = |name: &str| {
            let mut all: Vec<&Span> = spans.iter().filter(|s| s.0 == rank && s.3.starts_with(name)).collect();
            all.sort_by(|a, b| a.4.total_cmp(&b.4));
            all
        };
        let (forward, backward) = (steps("conv2 Forward"), steps("conv2 WeightGradient"));
        let halos: Vec<&Span> =
            spans.iter().filter(|s| s.0 == rank && s.2 == "halo" && s.3.ends_with("for pool1")).collect();
        assert!(!halos.is_empty() && halos.len().is_multiple_of(3), "{halos:?}");
        for step in 0..3 {
            let part = |all: usize| step * all / 3..(step + 1) * all / 3;
            let (forward, backward) = (&forward[part(forward.len())], &backward[part(backward.len())]);
            let end = |of: &[&Span]| of.iter().map(|s| s.5).fold(0.0, f64::max);
            let begin = |of: &[&Span]| of.iter().map(|s| s.4).fold(f64::INFINITY, f64::min);
            assert!(end(forward) <= begin(backward), "forward before backward");
            let last = forward.iter().map(|s| s.4).fold(0.0, f64::max);
            let came = halos.iter().map(|s| s.5).filter(|came| *came <= last);
            assert!(came.count() > step * halos.len() / 3, "a boundary was computed before its halo came");
        }
    }
    // The same numbers by phase: they make up the step.
    let times = &object["times"];
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{times}"));
    let phases: f64 = times["measured"].as_object().unwrap().values().map(number).sum();
    let step = number(&times["measured_step_seconds"]);
    assert!(step > 0.0 && phases >= 0.99 * step && phases < 1.5 * step, "{times}");
    let conv1 = times["layers"].as_array().unwrap().iter().find(|row| row["layer"] == "conv1").unwrap();
    assert!(number(&conv1["measured_compute_seconds"]) > 0.0, "{times}");
    assert_eq!(times["steps"], 3);
    // One rank has a trace too, if asked; a file that cannot be written is told before anything is trained.
    place.good(&format!("train {SMALL} --steps 1 --trace one.json"));
    assert!(spans_of_one(&place.path().join("one.json")) > 10);
    let error = place.bad(&format!("train {SMALL} --steps 1 --trace no/where.json"));
    assert!(error.starts_with("error: cannot write no/where.json"), "{error}");
}

fn spans_of_one(file: &Path) -> usize {
    spans(file).iter().filter(|s| s.0 == 0 && s.2 == "compute").count()
}

/// Asks for an end after a step.
struct StopAfter<'a> {
    step: u64,
    stop: &'a AtomicBool,
}

impl Observer for StopAfter<'_> {
    fn step(&mut self, report: &StepReport) {
        if report.step == self.step {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Samples too large for a rank: one is refused before it begins, four that share each sample train within the same budget.
#[test]
fn four_ranks_train_within_a_budget_that_one_cannot_keep() {
    let place = Place::new();
    let layer = |name: &str| {
        format!("[[layer]]\nname = '{name}'\nkind = 'convolution'\nfilters = 16\nkernel = [3, 3]\npadding = [1, 1]\n")
    };
    let end = "[[layer]]\nname = 'pool'\nkind = 'global-average-pool'\n\
               [[layer]]\nname = 'end'\nkind = 'fully-connected'\noutputs = 4\n";
    let net = format!("name = 'wide'\ninput = [3, 64, 64]\n{}{}{}{end}", layer("a"), layer("b"), layer("c"));
    place.file("net.toml", &net);
    let job = "train --network net.toml --data synthetic:3x64x64:4 --batch 1 --steps 2 --test-data none --threads 1";
    let planned = |object: &serde_json::Value| -> Vec<u64> {
        object["planned_bytes"].as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap()).collect()
    };
    let alone = place.json(job);
    let (budget, runs) = (planned(&alone)[0] / 2, place.runs().len());
    let said = place.bad(&format!("{job} --memory {budget}"));
    assert!(said.starts_with("error: --memory: a rank needs ") && said.contains(" under data:1 on 1 rank, "), "{said}");
    assert_eq!(place.runs().len(), runs, "nothing has begun");
    let four = place.json(&format!("{job} --memory {budget} --ranks 4 --strategy spatial:2x2"));
    assert_eq!((four["ranks"].as_u64(), four["steps"].as_u64()), (Some(4), Some(2)));
    let held = planned(&four);
    assert!(held.len() == 4 && held.iter().all(|&bytes| bytes <= budget), "{held:?} of {budget}");
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_never_interrupted() {
    let place = Place::new();
    let mut draft = Draft::default();
    let job = "[data]\ntrain = 'synthetic:1x28x28:40'\naugment = ['crop:2', 'flip']\n[train]\nbatch = 16\nepochs = 3\n";
    draft.read(job, Path::new("job.toml"));
    draft.set("run.folder", place.path().to_str().unwrap());
    let job = draft.job().unwrap();
    let never = AtomicBool::new(false);
    let run = Run::new(&job).unwrap();
    let whole = run.train(&never, &mut ()).unwrap();
    assert_eq!(whole.steps, 9);
    assert_eq!(run.setup().unwrap().planned_bytes().unwrap(), whole.planned_bytes);
    for step in 1..9 {
        let run = Run::new(&job).unwrap();
        let stop = AtomicBool::new(false);
        let outcome = run.train(&stop, &mut StopAfter { step, stop: &stop }).unwrap();
        assert_eq!((outcome.steps, outcome.stopped), (step, true));
        let resumed = Run::resume(run.folder().path(), |_| ()).unwrap();
        assert_eq!(resumed.first_step(), step);
        let outcome = resumed.train(&never, &mut ()).unwrap();
        assert_eq!(digest(&outcome.weights), digest(&whole.weights), "interrupted after step {step}");
        assert_eq!(outcome.test, whole.test);
        assert_eq!(outcome.train_loss.to_bits(), whole.train_loss.to_bits());
    }
}

/// Sends a signal once the first epochs are done.
fn interrupted(place: &Place, words: &str, signal: &str, epochs: usize) -> (Option<i32>, String, String) {
    let mut child = place.start(words);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let mut seen = 0;
    while seen < epochs {
        let line = lines.next().expect("training goes on");
        seen += usize::from(line.starts_with("epoch "));
    }
    let sent = finish(Command::new("kill").args([signal, &child.id().to_string()]));
    assert_eq!(sent.code, Some(0), "{sent:?}");
    let rest: Vec<String> = lines.collect();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), rest.join("\n"), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn signals_end_with_a_checkpoint_and_a_kill_with_the_last_one() {
    // Two steps an epoch, very many epochs.
    let job = "train --data synthetic:1x28x28:32 --batch 16 --test-data none --schedule constant --lr 0.001";
    for (signal, code) in [("-TERM", Some(143)), ("-INT", Some(130)), ("-KILL", None)] {
        let place = Place::new();
        let (ended, out, err) = interrupted(&place, &format!("{job} --epochs 1000000"), signal, 3);
        assert_eq!(ended, code, "{signal}: {out}\n{err}");
        let runs = place.runs();
        let [run] = &runs[..] else { panic!("{runs:?}") };
        let run = run.display();
        if code.is_some() {
            let (_, step) = out.rsplit_once("interrupted after step ").expect("told");
            assert!(step.contains("a checkpoint is kept\n  help: convoy train --resume runs/"), "{out}");
        }
        // Some steps more, and as many from the start: the same bits.
        let metrics = std::fs::read_to_string(format!("{run}/metrics.jsonl")).unwrap();
        let steps = metrics.lines().filter(|line| line.contains("\"kind\":\"step\"")).count() + 5;
        let resumed = place.json(&format!("train --resume {run} --steps {steps}"));
        let whole = place.json(&format!("{job} --steps {steps}"));
        assert_eq!(resumed["steps"].as_u64(), Some(steps as u64));
        assert_eq!(resumed["weights_digest"], whole["weights_digest"], "{signal}");
    }
}

#[test]
fn compare_finds_the_first_step_and_layer_that_differ() {
    let place = Place::new();
    let run = |more: &str| {
        let words = format!("train {SMALL} --steps 6 --digest-every 2 {more}");
        place.json(&words)["run"].as_str().unwrap().to_string()
    };
    let (first, same, other) = (run(""), run("--threads 1"), run("--lr 0.01"));
    let ran = place.run(&format!("compare {first} {same}"));
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.out, "same: weights have the same digests at all 4 steps compared, the last is step 6\n");
    let ran = place.run(&format!("compare {first} {other}"));
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.starts_with("different: first at step 2, layer `c1` ("), "{}", ran.out);
}

#[test]
fn predictions_are_the_networks_outputs() {
    let place = Place::new();
    let run = place.json(&format!("train {SMALL} --steps 3"))["run"].as_str().unwrap().to_string();
    let pixels = 28 * 28;
    let array: Vec<f32> = (0..3 * pixels).map(|i| (i * 7 % 11) as f32 / 11.0).collect();
    let write = |name: &str, images: usize, from: usize| {
        let numbers = &array[from * pixels..(from + images) * pixels];
        convoy_train::data::write_npy(&place.path().join(name), &[images, 1, 28, 28], numbers).unwrap();
    };
    write("x.npy", 3, 0);
    write("last.npy", 1, 2);
    let said = place.good(&format!("predict {run} --input x.npy --out y.npy"));
    assert_eq!(said, "y.npy: 3x10\n");
    let model = format!("--model lenet --weights {run}/model.safetensors");
    place.good(&format!("predict {model} --input last.npy --out last-y.npy --batch 1"));
    let read = |name: &str| std::fs::read(place.path().join(name)).unwrap();
    let (all, last) = (read("y.npy"), read("last-y.npy"));
    // Ten floats each, at the end of the file; an image's outputs do not depend on what else is in the batch.
    assert_eq!(all[all.len() - 40..], last[last.len() - 40..]);
    assert_ne!(all[all.len() - 40..], all[all.len() - 80..all.len() - 40]);
    // A model by itself has its own input and classes, whatever data there are.
    let wide = "train --model resnet20 --data synthetic:3x32x32:2 --batch 2 --steps 1 --test-data none";
    let weights = format!("{}/model.safetensors", place.json(wide)["run"].as_str().unwrap());
    convoy_train::data::write_npy(&place.path().join("wide.npy"), &[1, 3, 32, 32], &[0.5; 3072]).unwrap();
    let said = place.good(&format!("predict --model resnet20 --weights {weights} --input wide.npy --out wide-y.npy"));
    assert_eq!(said, "wide-y.npy: 1x10\n");
    place.file("a.png", PNG);
    place.file("b.png", PNG);
    let table = place.good(&format!("predict {run} --input a.png b.png"));
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("image  first"), "{table}");
    assert!(rows[1].starts_with("a.png  ") && rows[2].starts_with("b.png  "), "{table}");
    assert_eq!(rows[1][5..], rows[2][5..], "the same picture twice");
    let table = place.good(&format!("predict {run} --input x.npy"));
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains(" %"), "{table}");
}

#[test]
fn weights_go_round() {
    let place = Place::new();
    let before = place.json(&format!("train {SMALL} --steps 2"));
    let weights = format!("{}/model.safetensors", before["run"].as_str().unwrap());
    // Starting from a file is not starting from the seed.
    let after = place.json(&format!("train {SMALL} --steps 2 --weights {weights}"));
    assert_ne!(before["weights_digest"], after["weights_digest"]);
    let again = place.json(&format!("train {SMALL} --steps 2 --weights {weights}"));
    assert_eq!(again["weights_digest"], after["weights_digest"]);
    // A run that goes on does not need the file it started from, and does not take another.
    place.file("start.safetensors", std::fs::read(&weights).unwrap());
    let constant = "--schedule constant --weights start.safetensors";
    let whole = place.json(&format!("train {SMALL} {constant} --steps 4"));
    let run = place.json(&format!("train {SMALL} {constant} --steps 2"))["run"].as_str().unwrap().to_string();
    std::fs::remove_file(place.path().join("start.safetensors")).unwrap();
    let resumed = place.json(&format!("train --resume {run} --steps 4"));
    assert_eq!(resumed["weights_digest"], whole["weights_digest"]);
    let ran = place.run(&format!("train --resume {run} --steps 6 --weights {weights}"));
    assert!(ran.code == Some(2) && ran.err.contains("cannot be used with"), "{ran:?}");
}

#[test]
fn a_resolved_job_is_a_job_with_the_same_result() {
    let place = Place::new();
    place.file("job.toml", "[data]\ntest = 'none'\n[train]\nbatch = 20\nsteps = 3\nschedule = 'step'\n");
    let first = place.json("train job.toml --optimizer adam");
    let job = format!("{}/job.toml", first["run"].as_str().unwrap());
    let text = std::fs::read_to_string(&job).unwrap();
    for line in
        ["classes = 10", "input = [1, 28, 28]", "kind = \"given\"", "lr = 0.001", "kind = \"adam\"", "threads = "]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let second = place.json(&format!("train {job}"));
    assert_eq!(first["weights_digest"], second["weights_digest"]);
    let again = std::fs::read_to_string(format!("{}/job.toml", second["run"].as_str().unwrap())).unwrap();
    assert_eq!(text, again);
}

#[test]
fn bench_prints_all_its_numbers() {
    let place = Place::new();
    let object = place.json("bench lenet --batch 8 --threads 1 --steps 3 --layers");
    for field in ["images_per_second", "step_seconds", "gflop_step", "gflops", "fma_peak_gflops", "planned_bytes"] {
        assert!(object[field].as_f64().unwrap() > 0.0, "{field}: {object}");
    }
    let (images, step) = (object["images_per_second"].as_f64().unwrap(), object["step_seconds"].as_f64().unwrap());
    assert!((images * step - 8.0).abs() < 1e-9);
    let layers = object["layers"].as_array().unwrap();
    let of_c1 = |pass: &str| layers.iter().any(|row| row["layer"] == "c1" && row["pass"] == pass);
    assert!(of_c1("forward") && of_c1("weight gradient") && !of_c1("input gradient"), "{object}");
}

/// Convolutions of windows that Winograd's algorithm can do, on 8x8 points: a sample has four tiles of 4x4.
const THICK: &str = r#"
name = "thick"
input = [16, 8, 8]
layer = [
    { name = "conv1", kind = "convolution", filters = 16, kernel = [3, 3], padding = [[1, 1], [1, 1]] },
    { name = "relu1", kind = "activation", function = "relu" },
    { name = "conv2", kind = "convolution", filters = 16, kernel = [3, 3], padding = [[1, 1], [1, 1]] },
    { name = "fc", kind = "fully-connected", outputs = 10 },
]
"#;

/// The cells of a line of a table that has none without text.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn every_pass_is_benched_with_its_algorithm_and_what_bounds_it() {
    let place = Place::new();
    place.file("thick.toml", THICK);
    let said = place.good("bench thick.toml --batch 16 --threads 1 --steps 1 --layers --json");
    let lines: Vec<&str> = said.lines().collect();
    let object: serde_json::Value = serde_json::from_str(lines[lines.len() - 1]).unwrap();
    assert_eq!(
        cells(lines[1]),
        [
            "layer",
            "pass",
            "ms of all threads",
            "GFLOP/s per thread",
            "% of peak",
            "GB/s",
            "% of bandwidth",
            "algorithm"
        ]
    );
    let rows = object["layers"].as_array().unwrap();
    for (row, line) in rows.iter().zip(&lines[2..]) {
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
        let seconds = number("thread_seconds");
        assert!(seconds > 0.0, "{row}");
        assert!(near(number("gflops") * seconds, number("gflop")), "{row}");
        assert!(near(number("gbytes") * 1e9 * seconds, number("bytes")), "{row}");
        let of_bandwidth = number("gbytes") / object["memory_gbytes"].as_f64().unwrap();
        assert!(near(number("share_of_bandwidth"), of_bandwidth), "{row}");
        let cells = cells(line);
        assert_eq!(cells[..2], [row["layer"].as_str().unwrap(), row["pass"].as_str().unwrap()], "{said}");
        assert_eq!(cells[2], format!("{:.3}", 1e3 * seconds), "{said}");
        // Layers of products have all columns.
        if ["conv1", "conv2", "fc"].contains(&cells[0]) && cells[1] != "update" {
            let of_peak = number("gflops") / object["fma_peak_gflops"].as_f64().unwrap();
            assert!(number("gflop") > 0.0 && near(number("share_of_peak"), of_peak), "{row}");
            let wanted = [
                format!("{:.1}", number("gflops")),
                format!("{:.0}", 100.0 * of_peak),
                format!("{:.1}", number("gbytes")),
                format!("{:.0}", 100.0 * of_bandwidth),
                row["algorithm"].as_str().unwrap().to_string(),
            ];
            assert_eq!(cells[3..], wanted, "{said}");
        } else {
            assert!(row["algorithm"].is_null(), "{row}");
        }
    }
    let of = |layer: &str| rows.iter().filter(|row| row["layer"] == layer).count();
    // Forward, weight gradient and update; the gradient of images is nobody's.
    assert_eq!((of("conv1"), of("conv2"), of("fc")), (3, 4, 4), "{said}");
    let bounds = lines[2 + rows.len()];
    assert_eq!(object["bounds"], bounds, "{said}");
    let number = |word: &&str| word.parse::<f64>().is_ok();
    let text: Vec<&str> = bounds.split(' ').map(|word| if number(&word) { "#" } else { word }).collect();
    assert_eq!(
        text.join(" "),
        "products take # % of the threads' time, at # % of the peak of # GFLOP/s; passes over memory # %, at # % of # GB/s; \
         # % nothing runs"
    );
    let numbers: Vec<f64> = bounds.split(' ').filter(number).map(|word| word.parse().unwrap()).collect();
    assert!(numbers.iter().all(|number| number.is_sign_positive()), "{bounds}");
    // Three shares that were rounded to whole numbers.
    assert!((numbers[0] + numbers[3] + numbers[6] - 100.0).abs() <= 1.5, "{bounds}");
    assert!(lines[3 + rows.len()].starts_with("folding gradients over leaves: "), "{said}");
}

/// What a plan says, what a run's plan says and what is benched is the same: by flags and by a job's file.
#[test]
fn algorithms_are_as_the_job_says_and_as_the_plan_tells() {
    let place = Place::new();
    place.file("thick.toml", THICK);
    let read =
        |path: &Path| -> serde_json::Value { serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() };
    let of_conv2 = |plan: &serde_json::Value| {
        let rows = plan["layers"].as_array().unwrap();
        rows.iter().find(|row| row["layer"] == "conv2").unwrap()["algorithm"].clone()
    };
    let mut digests = vec![];
    let [four, two, direct] = ["winograd 4x4", "winograd 2x2", "direct"];
    for (job, flags, [forward, weights]) in [
        ("", "--batch 24", [four, four]),
        // Two samples of four tiles are too few for a leaf.
        ("", "--batch 16", [four, direct]),
        ("", "--batch 16 --leaves 1", [four, four]),
        ("winograd = \"2x2\"", "--batch 16", [two, two]),
        ("winograd = \"2x2\"", "--batch 16 --winograd off", [direct, direct]),
    ] {
        let wanted = serde_json::json!({ "forward": forward, "input gradient": forward, "weight gradient": weights });
        place.file("job.toml", format!("[network]\nfile = \"thick.toml\"\n[train]\n{job}\n"));
        let data = "--data synthetic:16x8x8:48 --test-data none --threads 1";
        let trained = place.json(&format!("train job.toml {data} --steps 2 {flags}"));
        let run = Path::new(trained["run"].as_str().unwrap());
        assert_eq!(of_conv2(&read(&run.join("plan.json"))), wanted, "{job} {flags}");
        digests.push(trained["weights_digest"].as_str().unwrap().to_string());
        let flags =
            if job.is_empty() || flags.contains("winograd") { flags.into() } else { format!("{flags} --winograd 2x2") };
        place.good(&format!("plan thick.toml --ranks 2 --machine cpu-10g --strategy spatial {flags} --out p.json"));
        assert_eq!(of_conv2(&read(&place.path().join("p.json"))), wanted, "{flags}");
        let benched = place.json(&format!("bench thick.toml --threads 1 --steps 1 --layers {flags}"));
        for row in benched["layers"].as_array().unwrap().iter().filter(|row| row["layer"] == "conv2") {
            assert_eq!(row["algorithm"], wanted[row["pass"].as_str().unwrap()], "{flags}: {row}");
        }
    }
    // Tiles of 4x4, of 2x2 and none, on the same batches.
    let [_, four, _, two, off] = &digests[..] else { unreachable!() };
    assert!(four != two && two != off && four != off, "{digests:?}");
}

#[test]
fn models_check_and_completions_answer() {
    let place = Place::new();
    let models = place.good("models");
    assert!(models.contains("resnet50") && models.contains("25,557,032"), "{models}");
    let listed: serde_json::Value = serde_json::from_str(&place.good("models --json")).unwrap();
    let alexnet = listed.as_array().unwrap().iter().find(|model| model["name"] == "alexnet").unwrap();
    assert_eq!(alexnet["parameters"], 61_100_840);
    let lenet = place.good("models lenet");
    assert!(lenet.lines().nth(2).unwrap().starts_with("c1"), "{lenet}");

    let checked = place.good("check --batch 100");
    assert!(
        checked.starts_with("lenet, 431,080 parameters, on digits: 9,000 images of 1x28x28 in 10 classes"),
        "{checked}"
    );
    assert!(checked.trim_end().ends_with("planned: ready to train"), "{checked}");
    assert!(place.runs().is_empty());

    for shell in ["bash", "zsh", "fish"] {
        let script = place.good(&format!("completions {shell}"));
        assert!(script.contains("checkpoint-every") && script.contains("weight-decay"), "{shell}");
    }
    let help = place.good("train --help");
    for field in convoy::fields::FIELDS {
        assert!(help.contains(&format!("--{}", field.flag)), "{}", field.flag);
    }
}
