//! Augmentation against plain padding, cutting and mirroring.

use crate::files::*;
use convoy_net::{Region, Shape};
use convoy_train::data::*;
use std::collections::HashSet;
use std::sync::Arc;

/// A plain image of one channel.
type Rows = Vec<Vec<f32>>;

/// Pads with zeros and cuts: the slow twin.
fn crop(rows: &Rows, pad: usize, down: usize, right: usize) -> Rows {
    let (height, width) = (rows.len(), rows[0].len());
    let mut padded = vec![vec![0.0; width + 2 * pad]; height + 2 * pad];
    for (y, row) in rows.iter().enumerate() {
        padded[y + pad][pad..pad + width].copy_from_slice(row);
    }
    padded[down..down + height].iter().map(|row| row[right..right + width].to_vec()).collect()
}

fn flip(rows: &Rows) -> Rows {
    rows.iter().map(|row| row.iter().rev().copied().collect()).collect()
}

/// Everything that the augmentations could make of an image.
fn possible(rows: &Rows, augment: &[Augment]) -> Vec<Rows> {
    let Some((first, rest)) = augment.split_first() else { return vec![rows.clone()] };
    let changed: Vec<Rows> = match *first {
        Augment::Flip => vec![rows.clone(), flip(rows)],
        Augment::Crop { pad } => {
            (0..(2 * pad + 1).pow(2)).map(|i| crop(rows, pad, i / (2 * pad + 1), i % (2 * pad + 1))).collect()
        }
    };
    changed.iter().flat_map(|rows| possible(rows, rest)).collect()
}

/// Images whose targets are the images themselves, so that both must change alike.
fn mirror_set(dir: &std::path::Path, samples: usize) -> Arc<dyn Dataset> {
    let values: Vec<f32> = (0..samples * 20).map(|i| 1.0 + i as f32).collect();
    write_npy(&dir.join("x.npy"), &[samples, 1, 4, 5], &values).unwrap();
    write_npy(&dir.join("y.npy"), &[samples, 1, 4, 5], &values).unwrap();
    open_train(&format!("npy:{0}/x.npy,{0}/y.npy", dir.display())).unwrap()
}

#[test]
fn every_outcome_is_a_plain_one_and_all_occur() {
    let dir = folder();
    let set = mirror_set(dir.path(), 3);
    // All of 9, 2 and 18 outcomes; of the 450 of the last list many occur.
    for (texts, steps, wanted) in [
        (&["crop:1"][..], 200, 9),
        (&["flip"], 20, 2),
        (&["crop:1", "flip"], 300, 18),
        (&["crop:2", "flip", "crop:1"], 60, 50),
    ] {
        let augment: Vec<Augment> = texts.iter().map(|text| Augment::parse(text).unwrap()).collect();
        assert_eq!(augment.iter().map(|a| a.to_string()).collect::<Vec<_>>(), *texts);
        let options = LoaderOptions { batch: 3, seed: 4, augment: augment.clone(), ..Default::default() };
        let mut loader = Loader::new(set.clone(), options).unwrap();
        let mut seen = HashSet::new();
        for _ in 0..steps {
            let batch = loader.next().unwrap();
            assert_eq!(batch.images, batch.targets);
            for (n, &sample) in batch.samples.iter().enumerate() {
                let source = image(&*set, sample).chunks(5).map(<[f32]>::to_vec).collect();
                let found: Rows = batch.images[n * 20..][..20].chunks(5).map(<[f32]>::to_vec).collect();
                let outcome = possible(&source, &augment).iter().position(|rows| *rows == found);
                seen.insert(outcome.unwrap_or_else(|| panic!("{texts:?} made {found:?} of {source:?}")));
            }
            loader.give_back(batch);
        }
        assert!(seen.len() >= wanted, "{texts:?}: {} outcomes", seen.len());
    }
}

#[test]
fn augmentation_is_keyed_by_epoch_and_sample_not_by_batch() {
    let dir = folder();
    let set = mirror_set(dir.path(), 12);
    let augment = vec![Augment::Crop { pad: 2 }, Augment::Flip];
    let epochs = |batch: usize, seed| {
        let options = LoaderOptions { batch, seed, augment: augment.clone(), workers: 2, ..Default::default() };
        let mut loader = Loader::new(set.clone(), options).unwrap();
        let mut images = vec![Vec::new(); 24];
        for _ in 0..2 * loader.batches_per_epoch() {
            let batch = loader.next().unwrap();
            for (n, &sample) in batch.samples.iter().enumerate() {
                images[batch.epoch as usize * 12 + sample] = batch.images[n * 20..][..20].to_vec();
            }
        }
        images
    };
    assert_eq!(epochs(5, 1), epochs(12, 1));
    assert_ne!(epochs(5, 1), epochs(5, 2));
    let images = epochs(4, 1);
    assert_ne!(images[..12], images[12..]);
}

/// An axis of length 1 is not one of space: a signal stays in its row, depth of an image is not padded.
#[test]
fn only_axes_longer_than_one_are_cropped() {
    let dir = folder();
    write_npy(&dir.path().join("x.npy"), &[40, 1, 6], &[1.0; 240]).unwrap();
    let set = open_unlabelled(&[dir.path().join("x.npy")], Shape([1; 5])).unwrap();
    let options = LoaderOptions { batch: 40, augment: vec![Augment::Crop { pad: 2 }], ..Default::default() };
    let batch = Loader::new(set.into(), options).unwrap().next().unwrap();
    let zeros: Vec<usize> = batch.images.chunks(6).map(|s| s.iter().filter(|&&x| x == 0.0).count()).collect();
    assert!(zeros.iter().all(|&z| z <= 2) && zeros.contains(&2) && zeros.contains(&0), "{zeros:?}");
}

#[test]
fn points_from_beyond_the_image_get_the_border_target() {
    let dir = folder();
    let set = mirror_set(dir.path(), 8);
    let options =
        LoaderOptions { batch: 8, augment: vec![Augment::Crop { pad: 3 }], border_target: 255.0, ..Default::default() };
    let batch = Loader::new(set, options).unwrap().next().unwrap();
    let border = batch.images.iter().zip(&batch.targets).filter(|(x, _)| **x == 0.0);
    assert!(border.clone().count() > 0 && border.clone().all(|(_, t)| *t == 255.0));
    assert!(batch.images.iter().zip(&batch.targets).all(|(x, t)| x == t || *x == 0.0));
}

#[test]
fn targets_of_another_size_cannot_be_warped() {
    let dir = folder();
    write_npy(&dir.path().join("x.npy"), &[2, 1, 4, 4], &[0.0; 32]).unwrap();
    write_npy(&dir.path().join("y.npy"), &[2, 1, 2, 2], &[0.0; 8]).unwrap();
    let set = open_train(&format!("npy:{0}/x.npy,{0}/y.npy", dir.path().display())).unwrap();
    let options = LoaderOptions { augment: vec![Augment::Flip], ..Default::default() };
    let error = Loader::new(set.clone(), options).err().unwrap();
    assert_eq!(
        error.to_string(),
        "crop and flip need a target per image or one of the image's size 1x1x4x4, the targets are 1x1x2x2"
    );
    assert!(Loader::new(set.clone(), LoaderOptions::default()).is_ok());
    let mut room = [0.0; 4];
    set.read_target(0, &Region::whole(Shape([1, 1, 1, 2, 2])), &mut room).unwrap();
}
