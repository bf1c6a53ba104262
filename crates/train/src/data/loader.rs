//! The loader: threads that prepare batches before they are asked for.
//!
//! Step `k` of a run is batch `k % batches` of epoch `k / batches`; a loader that starts at step `k` gives what one that
//! started at 0 would give from there. Each thread prepares a whole batch; at most `ahead` are under way or ready.
//!
//! Always true
//! - Batches come in the order of steps and hold the same bits for any number of threads.
//! - A buffer that was given back is used again: in the steady state the loader allocates nothing, and it never holds more than
//!   its [`bytes`](Loader::bytes), which are part of what a rank plans.
//! - Whatever a thread meets, also a panic, comes out of `next` as the error of its step. Nobody waits forever.
//!
//! Knows nothing of layouts: images are dense, as the files have them.

use super::augment::Warp;
use super::{Augment, DataError, Dataset, Half, Normalise, Order};
use convoy_net::{Axis, Region, Shape};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Epochs, and so steps, have 40 bits in a random number's counter.
const MOST_STEPS: u64 = 1 << 40;

/// What a loader gives, and how.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// The global batch. The last of an epoch may be smaller.
    pub batch: usize,
    /// Where order and augmentation come from.
    pub seed: u64,
    /// How an epoch goes through the samples.
    pub order: Order,
    /// Done last, after augmentation.
    pub normalise: Option<Normalise>,
    /// Random changes, in this order.
    pub augment: Vec<Augment>,
    /// The target of points that a crop takes from beyond the image: the ignored label, where there is one.
    pub border_target: f32,
    /// What this rank needs of each batch, in the coordinates of the batch; else everything.
    pub part: Option<Part>,
    /// What it needs of the smaller last batch of an epoch; else the part as far as that goes.
    pub last_part: Option<Part>,
    /// Threads that prepare.
    pub workers: usize,
    /// Batches that may be under way or ready: at least one for each worker, and no more where batches are large
    /// ([`convoy_program::ahead`]).
    pub ahead: usize,
    /// The step to start at.
    pub first_step: u64,
    /// The step to stop before.
    pub end_step: Option<u64>,
}

impl Default for LoaderOptions {
    fn default() -> LoaderOptions {
        LoaderOptions {
            batch: 1,
            seed: 0,
            order: Order::Shuffled,
            normalise: None,
            augment: Vec::new(),
            border_target: 0.0,
            part: None,
            last_part: None,
            workers: 1,
            ahead: convoy_program::AHEAD,
            first_step: 0,
            end_step: None,
        }
    }
}

/// A rank's part of each batch: boxes in the tensors of all images and of all targets of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Of the images.
    pub images: Region,
    /// Of the targets.
    pub targets: Region,
}

impl Part {
    /// Everything.
    pub fn whole(dataset: &dyn Dataset, batch: usize) -> Part {
        Part {
            images: Region::whole(dataset.sample_shape().with_samples(batch)),
            targets: Region::whole(dataset.target_shape().with_samples(batch)),
        }
    }

    /// Bytes of a batch of it.
    fn bytes(&self) -> usize {
        4 * (self.images.len() + self.targets.len())
    }
}

/// A prepared batch, or a rank's part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Dense `[n][c][d][h][w]`.
    pub images: Vec<f32>,
    /// Dense; class numbers or values.
    pub targets: Vec<f32>,
    /// The shape of `images`.
    pub image_shape: Shape,
    /// The shape of `targets`.
    pub target_shape: Shape,
    /// All samples of the global batch by number, also those outside of the part.
    pub samples: Vec<usize>,
    /// Which step of the run.
    pub step: u64,
    /// Which epoch, from 0.
    pub epoch: u64,
}

impl Batch {
    /// An empty one with room for a part.
    fn new(part: &Part) -> Batch {
        Batch {
            images: Vec::with_capacity(part.images.len()),
            targets: Vec::with_capacity(part.targets.len()),
            image_shape: Shape([0; 5]),
            target_shape: Shape([0; 5]),
            samples: Vec::new(),
            step: 0,
            epoch: 0,
        }
    }
}

/// Gives the batches of a run, one after the other.
pub struct Loader {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    next_step: u64,
    waited_seconds: f64,
}

struct Shared {
    dataset: Arc<dyn Dataset>,
    options: LoaderOptions,
    part: Part,
    batches: u64,
    /// The step to stop before.
    end: u64,
    state: Mutex<State>,
    /// There may be room for another batch, or it is time to stop.
    room: Condvar,
    /// A batch is ready.
    ready: Condvar,
}

struct State {
    /// The next step that nobody prepares yet.
    next: u64,
    /// Batches under way, ready, or failed: taken by a worker and not yet by the consumer.
    ahead: usize,
    ready: Vec<(u64, Result<Batch, DataError>)>,
    free: Vec<Batch>,
    /// The order of `epoch`, once it is known.
    order: Vec<usize>,
    epoch: Option<u64>,
    stop: bool,
}

impl Loader {
    /// Starts to prepare batches.
    pub fn new(dataset: Arc<dyn Dataset>, options: LoaderOptions) -> Result<Loader, DataError> {
        let (len, batch) = (dataset.len(), options.batch);
        if batch == 0 || batch > len {
            return Err(DataError::Batch { batch, len });
        }
        let (image, target) = (dataset.sample_shape(), dataset.target_shape());
        let whole = Part::whole(&*dataset, batch);
        let part = options.part.unwrap_or(whole);
        for part in [part, options.last_part.unwrap_or(part)] {
            for (part, whole, shape) in [(part.images, whole.images, image), (part.targets, whole.targets, target)] {
                if !whole.contains(&part) {
                    return Err(DataError::Region { region: Box::new(part), shape: shape.with_samples(batch) });
                }
            }
        }
        if let Some(normalise) = &options.normalise {
            normalise.verify(image)?;
        }
        if !options.augment.is_empty() && target.points() > 1 && target.space() != image.space() {
            return Err(DataError::AugmentTarget { image, target });
        }
        let workers = options.workers.max(1);
        let ahead = convoy_program::ahead(part.bytes(), options.ahead, workers);
        let state = State {
            next: options.first_step,
            ahead: 0,
            ready: Vec::with_capacity(ahead),
            free: Vec::with_capacity(ahead),
            order: Vec::new(),
            epoch: None,
            stop: false,
        };
        let next_step = options.first_step;
        let shared = Arc::new(Shared {
            batches: len.div_ceil(batch) as u64,
            end: options.end_step.unwrap_or(MOST_STEPS).min(MOST_STEPS),
            options: LoaderOptions { workers, ahead, ..options },
            dataset,
            part,
            state: Mutex::new(state),
            room: Condvar::new(),
            ready: Condvar::new(),
        });
        let mut loader = Loader { shared, workers: Vec::new(), next_step, waited_seconds: 0.0 };
        for i in 0..workers {
            let shared = loader.shared.clone();
            let thread = std::thread::Builder::new().name(format!("data {i}"));
            let handle = thread.spawn(move || work(&shared)).map_err(|error| DataError::Thread { error })?;
            loader.workers.push(handle);
        }
        Ok(loader)
    }

    /// Batches of an epoch, the last partial one included.
    pub fn batches_per_epoch(&self) -> u64 {
        self.shared.batches
    }

    /// Bytes of all batches that it holds: those under way or ready, and one that is in use.
    pub fn bytes(&self) -> usize {
        (1 + self.shared.options.ahead) * self.shared.part.bytes()
    }

    /// The step whose batch [`next`](Loader::next) gives.
    pub fn next_step(&self) -> u64 {
        self.next_step
    }

    /// How long [`next`](Loader::next) has waited in all: 0 when data never held up the computation.
    pub fn waited_seconds(&self) -> f64 {
        self.waited_seconds
    }

    /// The next batch. After an error the following call gives the batch after it.
    #[expect(clippy::should_implement_trait, reason = "an iterator has no end like an error, and no way to give back")]
    pub fn next(&mut self) -> Result<Batch, DataError> {
        let step = self.next_step;
        if step >= self.shared.end {
            return Err(DataError::PastEnd { step, end: self.shared.end });
        }
        let mut state = self.shared.lock();
        let mut since = None;
        let found = loop {
            match state.ready.iter().position(|(of, _)| *of == step) {
                Some(found) => break found,
                None => {
                    since.get_or_insert_with(Instant::now);
                    state = self.shared.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        self.waited_seconds += since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let (_, batch) = state.ready.swap_remove(found);
        state.ahead -= 1;
        self.next_step += 1;
        self.shared.room.notify_one();
        batch
    }

    /// Whether a batch of this loader holds nothing but numbers.
    pub fn check_numbers(&self, batch: &Batch) -> Result<(), DataError> {
        let part = self.shared.part_of(batch.samples.len());
        let halves = [(Half::Image, part.images, &batch.images), (Half::Target, part.targets, &batch.targets)];
        for (half, part, values) in halves {
            if let Some(nth) = values.iter().position(|value| !value.is_finite()) {
                let sample = samples_of(&part, &batch.samples)[nth / part.with(Axis::Sample, 0, 1).len()];
                return Err(self.shared.dataset.not_finite(sample, half, values[nth]));
            }
        }
        Ok(())
    }

    /// Takes a batch back, to be filled again.
    pub fn give_back(&mut self, batch: Batch) {
        self.shared.lock().free.push(batch);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.room.notify_all();
        for worker in self.workers.drain(..) {
            // What it had to say went out as the error of a step.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut held = Vec::new();
    while let Some(mut batch) = shared.take() {
        let step = batch.step;
        let prepared = catch_unwind(AssertUnwindSafe(|| shared.prepare(&mut batch, &mut held)));
        let result = match prepared {
            Ok(Ok(())) => Ok(batch),
            Ok(Err(error)) => Err(error),
            Err(panic) => Err(DataError::Panicked { step, cause: panic_text(&*panic) }),
        };
        shared.lock().ready.push((step, result));
        shared.ready.notify_one();
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch to prepare, with its step and samples; nothing when it is time to stop.
    fn take(&self) -> Option<Batch> {
        let mut state = self.lock();
        while !state.stop && state.ahead == self.options.ahead {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let step = state.next;
        if state.stop || step >= self.end {
            return None;
        }
        state.next += 1;
        state.ahead += 1;
        let mut batch = state.free.pop().unwrap_or_else(|| Batch::new(&self.part));
        let epoch = step / self.batches;
        if state.epoch != Some(epoch) {
            state.epoch = Some(epoch);
            self.options.order.fill(self.options.seed, epoch, self.dataset.len(), &mut state.order);
        }
        let start = (step % self.batches) as usize * self.options.batch;
        let end = (start + self.options.batch).min(state.order.len());
        batch.samples.clear();
        batch.samples.extend_from_slice(&state.order[start..end]);
        (batch.step, batch.epoch) = (step, epoch);
        Some(batch)
    }

    /// What is needed of a batch of so many samples.
    fn part_of(&self, samples: usize) -> Part {
        match self.options.last_part {
            Some(last) if samples < self.options.batch => last,
            _ => Part { images: within(self.part.images, samples), targets: within(self.part.targets, samples) },
        }
    }

    /// Fills a batch whose samples are known.
    fn prepare(&self, batch: &mut Batch, held: &mut Vec<f32>) -> Result<(), DataError> {
        let LoaderOptions { seed, augment, normalise, border_target, .. } = &self.options;
        let (image, target) = (self.dataset.sample_shape(), self.dataset.target_shape());
        let warp = |sample| Warp::draw(augment, image, *seed, batch.epoch, sample);
        let warp_targets = !augment.is_empty() && target.points() > 1;

        let part = self.part_of(batch.samples.len()).images;
        batch.image_shape = part.shape();
        batch.images.resize(part.len(), 0.0);
        let region = part.with(Axis::Sample, 0, 1);
        for (&sample, into) in samples_of(&part, &batch.samples).iter().zip(pieces(&mut batch.images, &region)) {
            let read = |region: &Region, into: &mut [f32]| self.dataset.read_image(sample, region, into);
            match augment.is_empty() {
                true => read(&region, into)?,
                false => warp(sample).read(&region, 0.0, held, into, read)?,
            }
            if let Some(normalise) = normalise {
                normalise.apply(&region, into);
            }
        }

        let part = self.part_of(batch.samples.len()).targets;
        batch.target_shape = part.shape();
        batch.targets.resize(part.len(), 0.0);
        let region = part.with(Axis::Sample, 0, 1);
        for (&sample, into) in samples_of(&part, &batch.samples).iter().zip(pieces(&mut batch.targets, &region)) {
            let read = |region: &Region, into: &mut [f32]| self.dataset.read_target(sample, region, into);
            match warp_targets {
                false => read(&region, into)?,
                true => warp(sample).read(&region, *border_target, held, into, read)?,
            }
        }
        Ok(())
    }
}

/// A part of a full batch, as far as a smaller last batch goes.
fn within(part: Region, samples: usize) -> Region {
    let (start, end) = part.range(Axis::Sample);
    part.with(Axis::Sample, start.min(samples as isize), end.min(samples as isize))
}

/// The numbers of the samples in a part.
fn samples_of<'a>(part: &Region, samples: &'a [usize]) -> &'a [usize] {
    let (start, end) = part.range(Axis::Sample);
    &samples[start as usize..end.max(start) as usize]
}

/// A batch's tensor, sample by sample.
fn pieces<'a>(tensor: &'a mut [f32], region: &Region) -> std::slice::ChunksExactMut<'a, f32> {
    tensor.chunks_exact_mut(region.len().max(1))
}
