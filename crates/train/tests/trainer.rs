//! The trainer on data that are not as they should be: labels, numbers, checkpoints of other jobs. Each is told as what it is.

use convoy_kernels::Winograd;
use convoy_net::{Network, Region, Shape};
use convoy_program::{Division, ParameterHome};
use convoy_split::Strategy;
use convoy_train::data::{DataError, Dataset};
use convoy_train::{
    Checkpoint, EpochSums, Error, MetricsLine, Outcome, RunFolder, Schedule, Setup, Start, digest, state, train,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

const IMAGE: Shape = Shape([1, 2, 1, 1, 1]);
const IGNORED: f32 = 9.0;

/// Samples as a program of somebody else may give them: nobody has looked at the labels.
struct Samples {
    labels: Vec<f32>,
    /// The sample that holds it, and what.
    odd: Option<(usize, f32)>,
}

impl Dataset for Samples {
    fn len(&self) -> usize {
        self.labels.len()
    }
    fn sample_shape(&self) -> Shape {
        IMAGE
    }
    fn target_shape(&self) -> Shape {
        Shape([1; 5])
    }
    fn classes(&self) -> Option<usize> {
        Some(3)
    }
    fn read_image(&self, index: usize, _: &Region, into: &mut [f32]) -> Result<(), DataError> {
        into.fill(0.1 * index as f32);
        if let Some((_, value)) = self.odd.filter(|(sample, _)| *sample == index) {
            into[1] = value;
        }
        Ok(())
    }
    fn read_target(&self, index: usize, _: &Region, into: &mut [f32]) -> Result<(), DataError> {
        into.fill(self.labels[index]);
        Ok(())
    }
    fn digest(&self) -> Result<String, DataError> {
        Ok("samples".into())
    }
}

fn samples(labels: &[f32]) -> Arc<Samples> {
    Arc::new(Samples { labels: labels.to_vec(), odd: None })
}

fn network() -> Network {
    let text = "name = 'tiny'\ninput = [2, 1, 1]\n[loss]\nkind = 'cross-entropy'\nignore = 9\n\
                [[layer]]\nname = 'first'\nkind = 'fully-connected'\noutputs = 4\n\
                [[layer]]\nname = 'last'\nkind = 'fully-connected'\noutputs = 3\n";
    Network::from_toml(text).expect("a network")
}

/// Two samples a step, in the order of a shuffle.
fn setup(data: Arc<Samples>, steps: u64, lr: f64) -> Setup {
    let network = network();
    Setup {
        strategy: Strategy::single(&network),
        network,
        division: Default::default(),
        threads: 1,
        batch: 2,
        steps,
        optimizer: Default::default(),
        schedule: Schedule { lr, ..Schedule::default() },
        seed: 1,
        leaves: 2,
        winograd: Winograd::Off,
        train: data,
        test: None,
        normalise: None,
        augment: vec![],
        loaders: 1,
        start: Start::Fresh,
        run: None,
        job_digest: "this job".into(),
        checkpoint_every: 1,
        keep: 2,
        digest_every: 0,
        settings: Default::default(),
        deadline: Duration::from_secs(60),
        predicted_step: None,
        record: 0,
        in_common: vec![],
    }
}

fn run(setup: &Setup) -> Result<Outcome, Error> {
    train(setup, &AtomicBool::new(false), &mut ())
}

fn fails(setup: &Setup) -> String {
    run(setup).expect_err("an error").to_string()
}

fn on_ranks(mut setup: Setup, ranks: usize) -> Setup {
    let shapes = setup.network.shapes(setup.batch).unwrap();
    setup.strategy = Strategy::parse("data", ranks, &setup.network, &shapes).unwrap();
    setup
}

#[test]
fn labels_that_name_no_class_are_told_as_such() {
    for ranks in [1, 2] {
        let bad = on_ranks(setup(samples(&[0.0, 3.0, -1.0, 0.5]), 1, 0.1), ranks);
        let error = fails(&bad);
        assert!(error.ends_with(" of step 1 name no class of the network, which are 0 to 2"), "{error}");
    }
    let bad = samples(&[0.0, 1.0, 2.0, 7.0]);
    let tested = Setup { test: Some(bad), ..setup(samples(&[0.0, 1.0]), 1, 0.1) };
    assert_eq!(fails(&tested), "1 label of batch 2 names no class of the network, which are 0 to 2");
}

#[test]
fn a_batch_without_a_label_that_counts_changes_nothing_and_stops_nothing() {
    // Plain gradient descent: no momentum, so that a step without a gradient is no step.
    let plain = convoy_train::Optimizer::Sgd(convoy_train::Sgd { momentum: 0.0, ..Default::default() });
    let folder = tempfile::tempdir().unwrap();
    let setup = {
        let run = RunFolder::create(folder.path(), "run").unwrap();
        let data = samples(&[0.0, IGNORED, 1.0, IGNORED]);
        Setup { optimizer: plain, run: Some(run), batch: 1, digest_every: 1, ..setup(data, 4, 0.1) }
    };
    assert_eq!(run(&setup).unwrap().steps, 4);
    let lines = setup.run.as_ref().unwrap().read_metrics().unwrap();
    let (mut losses, mut digests, mut epochs) = (vec![], vec![], vec![]);
    for line in lines {
        match line {
            MetricsLine::Step { loss, .. } => losses.push(loss),
            MetricsLine::Digest { step, layers } if step == digests.len() as u64 => digests.push(layers),
            MetricsLine::Epoch { train, .. } => epochs.push(train.loss),
            _ => (),
        }
    }
    assert_eq!((losses.len(), digests.len(), epochs.len()), (4, 5, 1));
    assert_eq!(losses.iter().filter(|loss| loss.is_nan()).count(), 2);
    for (step, loss) in losses.iter().enumerate() {
        assert_eq!(digests[step] == digests[step + 1], loss.is_nan(), "step {}", step + 1);
    }
    assert!(epochs[0].is_finite());
}

#[test]
fn data_without_a_label_that_counts() {
    let tested = Setup { test: Some(samples(&[IGNORED, IGNORED])), ..setup(samples(&[0.0, 1.0]), 1, 0.1) };
    assert!(run(&tested).unwrap().test.unwrap().loss.is_nan());
    let error = fails(&setup(samples(&[IGNORED; 4]), 2, 0.1));
    assert_eq!(
        error,
        "no label of epoch 1 counts, all of them are 9, which is ignored\n  help: other data, or another label to ignore"
    );
}

#[test]
fn numbers_that_are_none_are_the_datas_fault() {
    let odd = |value| Arc::new(Samples { labels: vec![0.0, 1.0, 2.0, 0.0], odd: Some((2, value)) });
    for ranks in [1, 2] {
        let error = fails(&on_ranks(setup(odd(f32::NAN), 2, 0.1), ranks));
        assert_eq!(error, "image 2 holds NaN, which is no number to compute with");
    }
    let tested = Setup { test: Some(odd(f32::INFINITY)), ..setup(samples(&[0.0, 1.0]), 1, 0.1) };
    assert_eq!(fails(&tested), "image 2 holds inf, which is no number to compute with");
}

/// The one step there is has a good loss, and leaves weights that are no numbers.
#[test]
fn broken_weights_are_never_kept() {
    let folder = tempfile::tempdir().unwrap();
    let large = Arc::new(Samples { labels: vec![0.0, 1.0], odd: Some((1, 1e10)) });
    let run = RunFolder::create(folder.path(), "run").unwrap();
    let broken = Setup { run: Some(run.clone()), ..setup(large.clone(), 1, 1e35) };
    let wanted = "at step 1, layer `first` is the first whose weights are no numbers any more\n  \
                  help: a smaller learning rate than 1e35, or a warm-up";
    assert_eq!(fails(&broken), format!("weights became too large {wanted}"));
    assert!(!run.model().exists() && run.checkpoints(1).newest().is_err());
    let tested = Setup { test: Some(large), run: None, ..broken };
    assert_eq!(fails(&tested), format!("the loss on the test data became NaN {wanted}"));
}

/// An epoch that was interrupted has taken what both its pieces took.
#[test]
fn seconds_of_an_epoch_go_on_after_an_interruption() {
    let folder = tempfile::tempdir().unwrap();
    let run_folder = RunFolder::create(folder.path(), "run").unwrap();
    let weights = state::initial_weights(&network(), 1);
    drop(run_folder.create_metrics().unwrap());
    let sums = EpochSums { samples: 2, loss: 2.0, seconds: 10.0, wait_seconds: 5.0, ..EpochSums::default() };
    let job_digest = "this job".into();
    let checkpoint = Checkpoint { step: 1, epoch_steps: 1, job_digest, sums, weights, ..Checkpoint::default() };
    let start = Start::Checkpoint(Box::new(checkpoint));
    run(&Setup { start, run: Some(run_folder.clone()), ..setup(samples(&[0.0, 1.0, 2.0, 0.0]), 2, 0.1) }).unwrap();
    let lines = run_folder.read_metrics().unwrap();
    let epoch = lines.iter().find(|line| matches!(line, MetricsLine::Epoch { .. })).unwrap();
    let MetricsLine::Epoch { seconds, wait_seconds, .. } = epoch else { unreachable!() };
    assert!(*seconds > 10.0 && *wait_seconds >= 5.0, "{epoch:?}");
}

/// Data to test on, which sees how many hold the data to learn from.
struct Watcher {
    samples: Arc<Samples>,
    learned_from: Weak<Samples>,
    most: AtomicUsize,
}

impl Dataset for Watcher {
    fn len(&self) -> usize {
        self.samples.len()
    }
    fn sample_shape(&self) -> Shape {
        self.samples.sample_shape()
    }
    fn target_shape(&self) -> Shape {
        self.samples.target_shape()
    }
    fn classes(&self) -> Option<usize> {
        self.samples.classes()
    }
    fn read_image(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        self.most.fetch_max(self.learned_from.strong_count(), Relaxed);
        self.samples.read_image(index, region, into)
    }
    fn read_target(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        self.samples.read_target(index, region, into)
    }
    fn digest(&self) -> Result<String, DataError> {
        self.samples.digest()
    }
}

/// What is planned has batches to learn from or to test on, not both: who prepares the first is gone while the others are used,
/// and begins again where it ended.
#[test]
fn batches_of_a_test_take_the_place_of_those_to_learn_from() {
    let data = samples(&[0.0, 1.0, 2.0, 0.0, 1.0]);
    let (samples, learned_from) = (samples(&[0.0, 1.0, 2.0]), Arc::downgrade(&data));
    let watcher = Arc::new(Watcher { samples, learned_from, most: AtomicUsize::new(0) });
    let tested = Setup { test: Some(watcher.clone()), ..setup(data.clone(), 8, 0.1) };
    let found = run(&tested).unwrap();
    // This test and the setup.
    assert_eq!(watcher.most.load(Relaxed), 2);
    assert_eq!(found.planned_bytes, tested.planned_bytes().unwrap());
    let untested = run(&setup(data.clone(), 8, 0.1)).unwrap();
    assert_eq!(digest(&found.weights), digest(&untested.weights));
}

#[test]
fn a_checkpoint_of_another_job_or_network_is_refused() {
    let good = setup(samples(&[0.0, 1.0]), 2, 0.1);
    let weights = state::initial_weights(&good.network, 1);
    let mut checkpoint = Checkpoint { step: 1, job_digest: "that job".into(), weights, ..Checkpoint::default() };
    let from = |checkpoint: &Checkpoint| Setup {
        start: Start::Checkpoint(Box::new(checkpoint.clone())),
        ..setup(samples(&[0.0, 1.0]), 2, 0.1)
    };
    assert!(matches!(run(&from(&checkpoint)), Err(Error::OtherJob { step: 1 })));
    checkpoint.job_digest = "this job".into();
    assert_eq!(run(&from(&checkpoint)).unwrap().steps, 2);
    checkpoint.weights.tensors.pop();
    assert_eq!(
        fails(&from(&checkpoint)),
        "checkpoint of step 1: 1 tensor does not fit the network\n  missing: `last.bias` 3"
    );
}

/// Weights that are divided over ranks are put together for checkpoints, and a run goes on with them anywhere else.
#[test]
fn sharded_weights_are_those_of_any_other_home() {
    let labels = [0.0, 1.0, 2.0, 0.0, 1.0, 1.0];
    let folder = tempfile::tempdir().unwrap();
    let run_folder = RunFolder::create(folder.path(), "run").unwrap();
    let everywhere = run(&on_ranks(setup(samples(&labels), 6, 0.1), 2)).unwrap();
    let division = Division { home: ParameterHome::Sharded, ..Division::default() };
    let sharded = Setup { division, run: Some(run_folder.clone()), ..on_ranks(setup(samples(&labels), 6, 0.1), 2) };
    let found = run(&sharded).unwrap();
    assert_eq!(digest(&found.weights), digest(&everywhere.weights));
    let total = |outcome: &Outcome| outcome.weight_bytes.iter().sum::<u64>();
    assert_eq!(total(&everywhere), 2 * total(&found), "{:?}", found.weight_bytes);
    let (_, path) = run_folder.checkpoints(2).list().unwrap().into_iter().find(|(step, _)| *step == 5).unwrap();
    let checkpoint = Checkpoint::read(&std::fs::read(path).unwrap()).unwrap();
    let resumed = Setup { start: Start::Checkpoint(Box::new(checkpoint)), ..setup(samples(&labels), 6, 0.1) };
    assert_eq!(digest(&run(&resumed).unwrap().weights), digest(&everywhere.weights));
}
