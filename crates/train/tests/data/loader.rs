//! Batches do not depend on threads, ranks, or where a run began; and nobody waits forever.

use crate::files::*;
use convoy_net::{Axis, Region, Shape};
use convoy_train::data::*;
use std::collections::HashSet;
use std::sync::Arc;

fn set() -> Arc<dyn Dataset> {
    let options = OpenOptions { invented: Invented::ClassPerPoint, ..Default::default() };
    open(&DataSpec::parse("synthetic:2x6x5:11").unwrap(), Split::Train, &options).unwrap().into()
}

fn options() -> LoaderOptions {
    LoaderOptions {
        batch: 4,
        seed: 3,
        normalise: Some(Normalise { mean: vec![0.25, -0.5], deviation: vec![2.0, 3.0] }),
        augment: vec![Augment::Crop { pad: 1 }, Augment::Flip],
        ..Default::default()
    }
}

fn batches(options: LoaderOptions, count: usize) -> Vec<Batch> {
    let mut loader = Loader::new(set(), options).unwrap();
    (0..count).map(|_| loader.next().unwrap()).collect()
}

#[test]
fn an_epoch_has_every_sample_once_in_the_order_of_its_seed() {
    let all = batches(options(), 9);
    assert_eq!(all.iter().map(|b| b.samples.len()).collect::<Vec<_>>(), [4, 4, 3, 4, 4, 3, 4, 4, 3]);
    for (epoch, batches) in all.chunks(3).enumerate() {
        let samples: Vec<usize> = batches.iter().flat_map(|b| b.samples.clone()).collect();
        assert_eq!(samples, order(3, epoch as u64, 11));
        assert!(batches.iter().all(|b| b.epoch == epoch as u64));
    }
    assert_eq!(all.iter().map(|b| b.step).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    assert_eq!(all[2].image_shape, Shape([3, 2, 1, 6, 5]));
    assert_eq!(all[2].target_shape, Shape([3, 1, 1, 6, 5]));
    assert_eq!((all[2].images.len(), all[2].targets.len()), (180, 90));
}

#[test]
fn evaluation_goes_through_the_samples_as_they_are() {
    let plain = LoaderOptions { batch: 4, order: Order::Sequential, end_step: Some(3), ..Default::default() };
    let set = set();
    let mut loader = Loader::new(set.clone(), plain).unwrap();
    let mut samples = 0..11;
    for _ in 0..loader.batches_per_epoch() {
        let batch = loader.next().unwrap();
        for (n, found) in batch.samples.iter().enumerate() {
            assert_eq!(Some(*found), samples.next());
            assert_eq!(batch.images[n * 60..][..60], image(&*set, *found));
            assert_eq!(batch.targets[n * 30..][..30], target(&*set, *found));
        }
    }
    assert_eq!(loader.next().err().unwrap().to_string(), "step 3 is past the end, steps go up to 3");
}

#[test]
fn resumed_anywhere_the_batches_are_those_of_the_whole_run() {
    watched("a loader that starts in the middle", || {
        let whole = batches(options(), 7);
        for first_step in 0..7 {
            let rest = batches(LoaderOptions { first_step, ..options() }, 7 - first_step as usize);
            assert_eq!(rest, whole[first_step as usize..]);
        }
    });
}

#[test]
fn threads_and_depth_change_nothing() {
    watched("several workers", || {
        let whole = batches(options(), 12);
        for (workers, ahead) in [(0, 0), (1, 1), (2, 1), (3, 7), (5, 5)] {
            assert_eq!(batches(LoaderOptions { workers, ahead, ..options() }, 12), whole, "{workers} workers");
        }
    });
}

/// All cuts of the batch by samples, height and width: what the parts hold together is the whole.
#[test]
fn parts_put_together_are_the_whole() {
    let whole = batches(options(), 3);
    for cuts in [[1, 1, 1], [2, 1, 1], [4, 1, 1], [1, 2, 1], [1, 3, 2], [3, 2, 2]] {
        let [samples, height, width] = cuts.map(|n| n as isize);
        for i in 0..samples * height * width {
            let (n, h, w) = (i / (height * width), i / width % height, i % width);
            let region = |channels: isize| {
                Region::whole(Shape([4, channels as usize, 1, 6, 5]))
                    .with(Axis::Sample, n * 4 / samples, (n + 1) * 4 / samples)
                    .with(Axis::Height, h * 6 / height, (h + 1) * 6 / height)
                    .with(Axis::Width, w * 5 / width, (w + 1) * 5 / width)
            };
            // Channels too can be cut; the targets need not be cut like the images.
            let images = region(2).with(Axis::Channel, i % 2, 2);
            let part = Part { images, targets: region(1) };
            for (found, whole) in batches(LoaderOptions { part: Some(part), ..options() }, 3).iter().zip(&whole) {
                assert_eq!(found.images, cut(whole.image_shape, &whole.images, &part.images), "{images}");
                assert_eq!(found.targets, cut(whole.target_shape, &whole.targets, &part.targets));
                assert_eq!(found.image_shape.len(), found.images.len());
                assert_eq!(found.samples, whole.samples);
            }
        }
    }
    let nothing = Part { images: Region::EMPTY, targets: Region::EMPTY };
    let batch = &batches(LoaderOptions { part: Some(nothing), ..options() }, 1)[0];
    assert_eq!((batch.images.len(), batch.targets.len(), batch.samples.len()), (0, 0, 4));
}

#[test]
fn buffers_that_are_given_back_are_used_again() {
    watched("reused buffers", || {
        let mut loader = Loader::new(set(), LoaderOptions { workers: 2, ahead: 3, ..options() }).unwrap();
        let mut places = HashSet::new();
        for _ in 0..60 {
            let batch = loader.next().unwrap();
            places.insert((batch.images.as_ptr() as usize, batch.targets.as_ptr() as usize));
            loader.give_back(batch);
        }
        // Three under way and one with the consumer, each for four samples: what it says that it holds.
        assert!(places.len() <= 4, "{} buffers", places.len());
        assert_eq!(loader.bytes(), 4 * 4 * (4 * 60 + 4 * 30));
    });
}

#[test]
fn a_consumer_that_keeps_its_batches_still_gets_more() {
    watched("batches that are never given back", || assert_eq!(batches(options(), 30).len(), 30));
}

#[test]
fn waiting_is_counted_within_the_time_of_next() {
    let mut loader = Loader::new(set(), options()).unwrap();
    let mut outside = 0.0;
    for _ in 0..20 {
        let since = std::time::Instant::now();
        loader.next().unwrap();
        outside += since.elapsed().as_secs_f64();
        assert!((0.0..=outside).contains(&loader.waited_seconds()));
    }
}

/// Data that fails on one sample and panics on another.
struct Faulty(Arc<dyn Dataset>);

impl Dataset for Faulty {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn sample_shape(&self) -> Shape {
        self.0.sample_shape()
    }
    fn target_shape(&self) -> Shape {
        self.0.target_shape()
    }
    fn classes(&self) -> Option<usize> {
        self.0.classes()
    }
    fn read_image(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        match index {
            2 => Err(DataError::Image { path: "cat/2.png".into(), cause: "broken".into() }),
            5 => panic!("sample five"),
            _ => self.0.read_image(index, region, into),
        }
    }
    fn read_target(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        self.0.read_target(index, region, into)
    }
    fn digest(&self) -> Result<String, DataError> {
        self.0.digest()
    }
}

#[test]
fn errors_and_panics_come_out_of_next_at_their_step() {
    watched("a worker that panicked", || {
        for workers in [1, 3] {
            let options = LoaderOptions { batch: 1, order: Order::Sequential, workers, ..Default::default() };
            let mut loader = Loader::new(Arc::new(Faulty(set())), options).unwrap();
            for step in 0..22 {
                let found = loader.next();
                match step % 11 {
                    2 => assert_eq!(found.err().unwrap().to_string(), "image `cat/2.png` cannot be read: broken"),
                    5 => assert_eq!(
                        found.err().unwrap().to_string(),
                        format!("bug: a thread that prepares batches panicked at step {step}: sample five")
                    ),
                    _ => assert_eq!(found.unwrap().samples, [step as usize % 11]),
                }
            }
        }
    });
}

#[test]
fn a_loader_can_be_dropped_at_any_time() {
    watched("dropping a loader", || {
        for taken in 0..5 {
            let mut loader = Loader::new(set(), LoaderOptions { workers: 3, ..options() }).unwrap();
            (0..taken).for_each(|_| drop(loader.next()));
        }
    });
}

#[test]
fn wrong_options_are_errors() {
    let error = |change: &dyn Fn(&mut LoaderOptions)| {
        let mut options = options();
        change(&mut options);
        Loader::new(set(), options).err().unwrap().to_string()
    };
    let batch = "a batch of 0 cannot be made of 11 samples\n  help: a batch of 1 to 11";
    assert_eq!(error(&|o| o.batch = 0), batch);
    assert_eq!(error(&|o| o.batch = 12), batch.replace("of 0", "of 12"));
    let normalise =
        |mean: usize, deviation: f32| Some(Normalise { mean: vec![0.0; mean], deviation: vec![deviation; 2] });
    assert_eq!(error(&|o| o.normalise = normalise(3, 1.0)), "normalisation has 3 means, images have 2 channels");
    assert_eq!(error(&|o| o.normalise = normalise(2, 0.0)), "channel 0 has a deviation of 0, wanted a number above 0");
    let outside = Part { images: Region::whole(Shape([5, 2, 1, 6, 5])), targets: Region::EMPTY };
    assert_eq!(
        error(&|o| o.part = Some(outside)),
        "region [0..5, 0..2, 0..1, 0..6, 0..5] is not inside a tensor of 4x2x6x5"
    );
}
