//! Ranks that do not get on: what they have not in common, one that panics, one that is silent. Each ends all of them, with
//! one error that names the rank.

use convoy_comm::threads;
use convoy_kernels::Winograd;
use convoy_net::{Network, Region, Shape};
use convoy_split::Strategy;
use convoy_train::data::{DataError, Dataset};
use convoy_train::{Error, Outcome, Schedule, Setup, Start, train_rank};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Eight samples of two points. A rank that has read two of them does what is said.
struct Samples {
    then: Then,
    read: AtomicUsize,
}

enum Then {
    Read,
    /// Waits until the other side is gone.
    Wait(Mutex<Receiver<()>>),
    /// Works for a while, from the first one on.
    Work,
}

impl Dataset for Samples {
    fn len(&self) -> usize {
        8
    }
    fn sample_shape(&self) -> Shape {
        Shape([1, 1, 1, 2, 1])
    }
    fn target_shape(&self) -> Shape {
        Shape([1; 5])
    }
    fn classes(&self) -> Option<usize> {
        Some(3)
    }
    fn read_image(&self, index: usize, _: &Region, into: &mut [f32]) -> Result<(), DataError> {
        match (&self.then, self.read.fetch_add(1, Relaxed)) {
            (Then::Wait(other), 2..) => drop(other.lock().unwrap().recv()),
            (Then::Work, _) => drop(black_box((0..WORK).fold(1u64, |x, i| (x ^ i).wrapping_mul(0x9e37_79b9)))),
            _ => {}
        }
        into.fill(0.1 * index as f32);
        Ok(())
    }
    fn read_target(&self, index: usize, _: &Region, into: &mut [f32]) -> Result<(), DataError> {
        into.fill((index % 3) as f32);
        Ok(())
    }
    fn digest(&self) -> Result<String, DataError> {
        Ok("samples".into())
    }
}

fn setup(ranks: usize, then: Then) -> Setup {
    let text = "name = 'tiny'\ninput = [1, 2, 1]\n[loss]\nkind = 'cross-entropy'\n\
                [[layer]]\nname = 'only'\nkind = 'fully-connected'\noutputs = 3\n";
    setup_of(text, "data", ranks, then)
}

fn setup_of(text: &str, strategy: &str, ranks: usize, then: Then) -> Setup {
    let network = Network::from_toml(text).expect("a network");
    let shapes = network.shapes(2).expect("shapes");
    Setup {
        strategy: Strategy::parse(strategy, ranks, &network, &shapes).expect("a strategy"),
        network,
        division: Default::default(),
        threads: 1,
        batch: 2,
        steps: 4,
        optimizer: Default::default(),
        schedule: Schedule { lr: 0.1, ..Schedule::default() },
        seed: 1,
        leaves: 2,
        winograd: Winograd::Off,
        train: Arc::new(Samples { then, read: AtomicUsize::new(0) }),
        test: None,
        normalise: None,
        augment: vec![],
        loaders: 1,
        start: Start::Fresh,
        run: None,
        job_digest: "this job".into(),
        checkpoint_every: 0,
        keep: 1,
        digest_every: 0,
        settings: Default::default(),
        deadline: Duration::from_secs(60),
        predicted_step: None,
        record: 0,
        in_common: vec![("data", "samples".into())],
    }
}

/// What each rank says, each with a setup of its own; `when_first` is called when rank 0 is done.
fn train(setups: &[Setup], when_first: impl FnOnce()) -> Vec<Result<Outcome, Error>> {
    std::thread::scope(|scope| {
        let one = |(setup, communicator)| {
            scope.spawn(move || train_rank(setup, Arc::new(communicator), &AtomicBool::new(false), &mut ()))
        };
        let mut ranks = setups.iter().zip(threads(setups.len())).map(one);
        let first = ranks.next().expect("a rank");
        let others: Vec<_> = ranks.collect();
        let mut results = vec![first.join().expect("no panic gets out")];
        when_first();
        results.extend(others.into_iter().map(|other| other.join().expect("no panic gets out")));
        results
    })
}

fn host() -> String {
    threads(1)[0].host(0).into()
}

#[test]
fn rank_0_has_the_numbers_of_all() {
    let results = train(&[setup(2, Then::Read), setup(2, Then::Read)], || ());
    let outcomes: Vec<Outcome> = results.into_iter().map(|outcome| outcome.expect("an outcome")).collect();
    let planned = setup(2, Then::Read).planned_bytes().expect("a plan");
    assert_eq!(outcomes[0].planned_bytes, planned);
    // Six weights and three biases: each rank holds them all.
    assert!(outcomes[0].weight_bytes.len() == 2 && outcomes[0].weight_bytes.iter().all(|bytes| *bytes >= 36));
    assert!(outcomes[0].bytes_sent.iter().all(|bytes| *bytes > 0));
    assert!(outcomes[1].bytes_sent.is_empty());
    assert_eq!(outcomes[0].weights.tensors.len(), 2);
}

#[test]
fn ranks_that_would_do_different_things_refuse() {
    let host = host();
    type Change = fn(&mut Setup);
    let cases: [(Change, &str, [&str; 2]); 3] = [
        (|setup| setup.in_common[0].1 = "others".into(), "data", ["samples", "others"]),
        (|setup| setup.job_digest = "that job".into(), "job", ["this job", "that job"]),
        (|setup| setup.steps = 5, "number of steps", ["4", "5"]),
    ];
    for (change, what, [first, other]) in cases {
        let mut setups = [setup(3, Then::Read), setup(3, Then::Read), setup(3, Then::Read)];
        change(&mut setups[2]);
        let wanted = format!(
            "ranks do not have the same {what}: rank 0 on host {host} has {first}, rank 2 on host {host} has {other}\n  \
             help: the same program, job and data on every host"
        );
        for result in train(&setups, || ()) {
            assert_eq!(result.unwrap_err().to_string(), wanted);
        }
    }
}

#[test]
fn a_rank_that_is_silent_is_named_with_what_it_owes() {
    // Ranks have a row each: the second layer needs one of the other's.
    let text = "name = 'rows'\ninput = [1, 2, 1]\n[loss]\nkind = 'cross-entropy'\n\
                [[layer]]\nname = 'first'\nkind = 'convolution'\nfilters = 2\nkernel = [1, 1]\n\
                [[layer]]\nname = 'second'\nkind = 'convolution'\nfilters = 3\nkernel = [3, 1]\npadding = [1, 0]\n\
                [[layer]]\nname = 'mean'\nkind = 'global-average-pool'\n";
    let (gone, wait) = channel();
    let silent = Then::Wait(Mutex::new(wait));
    let mut setups = [setup_of(text, "spatial", 2, Then::Read), setup_of(text, "spatial", 2, silent)];
    setups.iter_mut().for_each(|setup| setup.deadline = Duration::from_millis(300));
    let results = train(&setups, || drop(gone));
    let texts: Vec<String> = results.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    let host = host();
    // For how long depends on what the step before took.
    let begins = format!("rank 0 on host {host} ended at step 2\n  cause: rank 0 on host {host} waited ");
    let ends = format!(" s for rank 1 on host {host}: 128 bytes for second Forward");
    assert!(texts[0].starts_with(&begins) && texts[0].ends_with(&ends), "{}", texts[0]);
    // The silent one, when it comes back, hears of it.
    assert!(texts[1].starts_with(&format!("rank 0 on host {host} ended: ")), "{}", texts[1]);
}

/// Far more than a millisecond.
const WORK: u64 = 1 << 22;

/// A rank that is slow is not silent: the first step may take long, later ones what steps have taken.
#[test]
fn a_rank_that_is_slow_is_waited_for() {
    let mut setups = [setup(2, Then::Read), setup(2, Then::Work)];
    setups.iter_mut().for_each(|setup| setup.deadline = Duration::from_millis(1));
    for result in train(&setups, || ()) {
        assert_eq!(result.expect("an outcome").steps, 4);
    }
}

struct Panics;

impl convoy_train::Observer for Panics {
    fn step(&mut self, report: &convoy_train::StepReport) {
        assert!(report.step < 2, "somebody's mistake");
    }
}

#[test]
fn a_rank_that_panics_ends_all() {
    let setup = setup(3, Then::Read);
    let error = convoy_train::train(&setup, &AtomicBool::new(false), &mut Panics).unwrap_err();
    let wanted = format!("rank 0 on host {} ended at step 2\n  cause: bug: a panic: somebody's mistake", host());
    assert_eq!(error.to_string(), wanted);
}
