//! Drafts: what was typed becomes what was meant, layer over layer; whatever was typed, nothing panics.

use convoy::{Draft, Job, Normalisation, TestData};
use convoy_train::{Adam, Curve, Optimizer, Sgd};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::path::Path;

const JOB: &str = r#"
[network]
model = "resnet20"
loss = { kind = "cross-entropy", label_smoothing = 0.1 }

[data]
train = "cifar10:data/cifar"
test = "hold-out"
augment = ["crop:4", "flip"]
normalise = { kind = "given", mean = [0.5, 0.5, 0.5], deviation = [0.2, 0.2, 0.2] }

[train]
batch = 128
epochs = 3
steps = 100
optimizer = { kind = "sgd", momentum = 0.8, nesterov = true }
schedule = { kind = "step", lr = 0.3, milestones = [1, 2], warmup_epochs = 0.5 }

[parallel]
ranks = 2
strategy = "data"

[run]
name = "mine"
keep = 3
"#;

fn draft() -> Draft {
    let mut draft = Draft::default();
    draft.read(JOB, Path::new("job.toml"));
    draft
}

fn with(flags: &[(&str, &str)]) -> Job {
    let mut draft = draft();
    flags.iter().for_each(|(key, text)| draft.set(key, text));
    draft.job().unwrap()
}

#[test]
fn a_file_is_read_and_the_rest_has_defaults() {
    let job = with(&[]);
    assert_eq!(job.train.optimizer, Optimizer::Sgd(Sgd { momentum: 0.8, nesterov: true, weight_decay: 0.0 }));
    assert_eq!((job.train.schedule.lr, job.train.schedule.warmup_epochs), (0.3, 0.5));
    assert_eq!(job.train.schedule.curve, Curve::Step { milestones: vec![1.0, 2.0], gamma: 0.1 });
    assert_eq!(job.data.test, TestData::HoldOut);
    assert_eq!((job.train.seed, job.train.leaves, job.run.checkpoint_every), (1, 8, 1000));
    assert_eq!(Job::from_toml(&job.to_toml()).unwrap(), job);
    assert_eq!(Job::from_toml(&Job::default().to_toml()).unwrap(), Job::default());
}

#[test]
fn flags_win_field_by_field() {
    let job = with(&[("train.optimizer.momentum", "0.7"), ("train.batch", "8"), ("data.augment", "flip")]);
    assert_eq!(job.train.optimizer, Optimizer::Sgd(Sgd { momentum: 0.7, nesterov: true, weight_decay: 0.0 }));
    assert_eq!((job.train.batch, job.data.augment.unwrap().len()), (8, 1));
}

#[test]
fn another_kind_takes_the_old_fields_away() {
    let job =
        with(&[("train.optimizer.kind", "adam"), ("train.schedule.kind", "cosine"), ("data.normalise.kind", "none")]);
    assert_eq!(job.train.optimizer, Optimizer::Adam(Adam::default()));
    // The rate was given and stays.
    assert_eq!((job.train.schedule.lr, job.train.schedule.curve), (0.3, Curve::Cosine));
    assert_eq!(job.data.normalise, Some(Normalisation::None));
    let whole = with(&[("train.optimizer.kind", "{ kind = \"adam\", betas = [0.8, 0.9] }")]);
    assert_eq!(whole.train.optimizer, Optimizer::Adam(Adam { betas: [0.8, 0.9], ..Adam::default() }));
    // The same kind again changes nothing.
    assert_eq!(with(&[("train.optimizer.kind", "sgd")]), with(&[]));
}

#[test]
fn fields_that_exclude_each_other() {
    assert_eq!(with(&[("train.epochs", "7")]).train.steps, None);
    assert_eq!(with(&[("train.epochs", "7"), ("train.steps", "9")]).train.steps, Some(9));
    let job = with(&[("network.file", "net.toml")]);
    assert_eq!((job.network.model, job.network.file), (None, Some("net.toml".into())));
    let both = Job::from_toml("[network]\nmodel = 'lenet'\nfile = 'net.toml'").unwrap_err().to_string();
    assert_eq!(both, "job, line 3, [network].file: a model is given too, only one of both is possible");
}

#[test]
fn learning_rates_follow_the_optimizer() {
    let rate = |text: &str| Job::from_toml(text).unwrap().train.schedule.lr;
    assert_eq!(rate(""), 0.02);
    assert_eq!(rate("[train]\noptimizer = 'adam'"), 0.001);
    assert_eq!(rate("[train]\noptimizer = 'adam'\nschedule = { lr = 0.5 }"), 0.5);
}

#[test]
fn fields_imply_their_kind_where_only_one_has_them() {
    let mut draft = Draft::default();
    draft.set("data.normalise.mean", "0.5");
    draft.set("data.normalise.deviation", "0.25");
    let given = Normalisation::Given { mean: vec![0.5], deviation: vec![0.25] };
    assert_eq!(draft.job().unwrap().data.normalise, Some(given));
}

/// A byte of the text replaced, removed, doubled, or a piece of it moved elsewhere.
fn mutated(text: &[u8], kind: u8, at: usize, to: usize, byte: u8) -> Vec<u8> {
    let mut bytes = text.to_vec();
    let (at, to) = (at % bytes.len(), to % bytes.len());
    match kind % 5 {
        0 => bytes[at] = byte,
        1 => drop(bytes.remove(at)),
        2 => bytes.insert(at, byte),
        3 => bytes.truncate(at),
        _ => {
            let piece: Vec<u8> = bytes[at.min(to)..at.max(to)].to_vec();
            bytes.splice(at..at, piece);
        }
    }
    bytes
}

#[test]
fn mutated_jobs_are_jobs_or_errors_with_a_place() {
    let config = Config { cases: 4000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let changes = proptest::collection::vec((any::<u8>(), any::<usize>(), any::<usize>(), any::<u8>()), 1..4);
    let result = runner.run(&changes, |changes| {
        let mut bytes = JOB.as_bytes().to_vec();
        for (kind, at, to, byte) in changes {
            if !bytes.is_empty() {
                bytes = mutated(&bytes, kind, at, to, byte);
            }
        }
        let mut draft = Draft::default();
        draft.read(&String::from_utf8_lossy(&bytes), Path::new("job.toml"));
        match draft.job() {
            Ok(job) => prop_assert_eq!(Job::from_toml(&job.to_toml()).unwrap(), job),
            Err(errors) => {
                prop_assert!(!errors.0.is_empty());
                for error in errors.0 {
                    prop_assert!(error.to_string().starts_with("job.toml, line "), "{}", error);
                }
            }
        }
        Ok(())
    });
    result.unwrap();
}
