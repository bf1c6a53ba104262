//! Files with random damage: every one is read or refused, none panics, and what is read keeps its promises.

use crate::files::*;
use convoy_net::Region;
use convoy_train::data::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::path::Path;

/// One thing that can happen to a file.
#[derive(Clone, Debug)]
enum Damage {
    Flip { at: usize, bit: u8 },
    Set { at: usize, to: u8 },
    Truncate { to: usize },
    Extend { by: Vec<u8> },
}

fn damage() -> impl proptest::strategy::Strategy<Value = Vec<Damage>> {
    // Half of the places are near the start: headers are short.
    let at = || prop_oneof![0usize..64, any::<usize>()];
    let one = prop_oneof![
        4 => (at(), 0u8..8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        4 => (at(), any::<u8>()).prop_map(|(at, to)| Damage::Set { at, to }),
        1 => any::<usize>().prop_map(|to| Damage::Truncate { to }),
        1 => prop::collection::vec(any::<u8>(), 1..20).prop_map(|by| Damage::Extend { by }),
    ];
    prop::collection::vec(one, 1..5)
}

fn damaged(mut file: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
    for one in damage {
        let len = file.len().max(1);
        match one {
            Damage::Flip { at, bit } => file.iter_mut().skip(at % len).take(1).for_each(|b| *b ^= 1 << bit),
            Damage::Set { at, to } => file.iter_mut().skip(at % len).take(1).for_each(|b| *b = *to),
            Damage::Truncate { to } => file.truncate(to % len),
            Damage::Extend { by } => file.extend(by),
        }
    }
    file
}

/// Opens and reads everything; says whether all of it worked.
fn read_all(spec: &str) -> Result<(), DataError> {
    let set = open_train(spec)?;
    assert!(!set.is_empty());
    assert!(set.sample_shape().len() < 1 << 20, "larger than any of the files");
    let mut values = vec![f32::NAN; set.sample_shape().len()];
    let mut targets = vec![f32::NAN; set.target_shape().len()];
    for i in 0..set.len() {
        set.read_image(i, &Region::whole(set.sample_shape()), &mut values)?;
        set.read_target(i, &Region::whole(set.target_shape()), &mut targets)?;
        let classes = set.classes().map_or(f32::INFINITY, |n| n as f32);
        assert!(targets.iter().all(|&t| set.classes().is_none() || (0.0..classes).contains(&t)));
    }
    set.digest().map(drop)
}

/// Damages one of the files of a set in many ways; the untouched set must be good, and some damage must be found.
fn check(cases: u32, spec: &str, files: &[(&str, Vec<u8>)]) {
    let dir = folder();
    let spec = spec.replace("DIR", &dir.path().display().to_string());
    let restore = |dir: &Path| files.iter().for_each(|(name, bytes)| write(dir, name, bytes));
    restore(dir.path());
    read_all(&spec).expect("the files before any damage");
    let config = ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(9), ..Default::default() };
    let refused = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(&(0..files.len(), damage()), |(which, damage)| {
        restore(dir.path());
        let (name, bytes) = &files[which];
        write(dir.path(), name, damaged(bytes.clone(), &damage));
        if let Err(error) = read_all(&spec) {
            refused.set(refused.get() + 1);
            let text = error.to_string();
            let folder = dir.path().display().to_string();
            prop_assert!(text.contains(&folder), "names no file: {text}");
            prop_assert!(!text.contains("panicked"), "{text}");
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(refused.get() > cases / 10, "only {} of {cases} damaged files were refused", refused.get());
}

#[test]
fn idx() {
    check(400, "idx:DIR", &[("train-images-idx3-ubyte", idx_images()), ("train-labels-idx1-ubyte", idx_labels())]);
}

#[test]
fn idx_compressed() {
    let files =
        [("train-images-idx3-ubyte.gz", gzip(&idx_images())), ("train-labels-idx1-ubyte.gz", gzip(&idx_labels()))];
    check(400, "idx:DIR", &files);
}

#[test]
fn cifar_records() {
    check(200, "cifar10:DIR", &[("data_batch_1.bin", cifar(0..2)), ("data_batch_2.bin", cifar(2..3))]);
}

#[test]
fn npy_files() {
    let points: Vec<u8> = (0..24).map(|i| pixel(i) % 3).collect();
    let images = npy(1, "<f4", "(2, 1, 3, 4)", &[7; 96]);
    check(400, "npy:DIR", &[("images.npy", images.clone()), ("labels.npy", npy(2, "|u1", "(2, 3, 4)", &points))]);
    check(400, "npy:DIR", &[("images.npy", images), ("labels.npy", npy(3, "<i4", "(2,)", &[1, 0, 0, 0, 0, 0, 0, 0]))]);
}

#[test]
fn images() {
    let files = [
        ("a/0.png", picture("x.png", colours(9, 7, 0))),
        ("a/1.png", picture("x.png", image::GrayImage::from_pixel(9, 7, image::Luma([3])))),
        ("b/0.jpg", picture("x.jpg", colours(9, 7, 0))),
    ];
    check(600, "folder:DIR", &files);
    check(600, "folder:DIR:8x8", &files);
}
