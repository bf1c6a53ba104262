//! Every source reads back what was written, whole and by regions.

use crate::files::*;
use convoy_kernels::philox::{Key, Purpose};
use convoy_net::{Axis, Region, Shape};
use convoy_train::data::*;
use std::sync::Arc;

/// The law that every source keeps: a region is a cut-out of the whole, for images and targets.
fn check_regions(dataset: &dyn Dataset) {
    let key = Key { seed: 1, purpose: Purpose::Synthetic, layer: 9, step: 0, sample: 0 };
    for index in [0, dataset.len() - 1] {
        let whole = image(dataset, index);
        let whole_target = target(dataset, index);
        for trial in 0..20 {
            let some = |shape: Shape| {
                let mut region = Region::whole(shape);
                for a in 1..5 {
                    let pick = |i: u64| key.word(trial * 8 + a as u64 * 2 + i) as usize % (shape.0[a] + 1);
                    let (x, y) = (pick(0), pick(1));
                    (region.start[a], region.end[a]) = (x.min(y) as isize, x.max(y) as isize);
                }
                region
            };
            let part = some(dataset.sample_shape());
            assert_eq!(region(dataset, index, &part), cut(dataset.sample_shape(), &whole, &part), "{part}");
            let part = some(dataset.target_shape());
            let mut found = vec![f32::NAN; part.len()];
            dataset.read_target(index, &part, &mut found).unwrap();
            assert_eq!(found, cut(dataset.target_shape(), &whole_target, &part), "{part}");
        }
    }
    let outside = Region::whole(dataset.sample_shape()).shifted([0, 0, 0, 0, 1]);
    let mut room = vec![0.0; outside.len()];
    assert!(matches!(dataset.read_image(0, &outside, &mut room), Err(DataError::Region { .. })));
    let whole = Region::whole(dataset.sample_shape());
    let len = dataset.len();
    assert!(matches!(dataset.read_image(len, &whole, &mut room), Err(DataError::Sample { .. })));
    assert!(matches!(dataset.read_image(0, &whole, &mut room[1..]), Err(DataError::Buffer { .. })));
    assert_eq!(dataset.digest().unwrap(), dataset.digest().unwrap());
}

fn bytes(from: usize, count: usize) -> Vec<f32> {
    (from..from + count).map(|i| pixel(i) as f32 / 255.0).collect()
}

fn expected_labels() -> Vec<f32> {
    (0..SAMPLES).map(|s| label(s) as f32).collect()
}

#[test]
fn digits_are_those_of_origin_md() {
    let options = OpenOptions::default();
    for (split, len, per_class) in [(Split::Train, 9000, 900), (Split::Test, 1000, 100)] {
        let digits = open(&DataSpec::Digits, split, &options).unwrap();
        assert_eq!((digits.len(), digits.classes()), (len, Some(10)));
        assert_eq!((digits.sample_shape(), digits.target_shape()), (Shape([1, 1, 1, 28, 28]), Shape([1; 5])));
        let labels = labels(&*digits);
        for class in 0..10 {
            assert_eq!(labels.iter().filter(|&&l| l == class as f32).count(), per_class);
        }
        check_regions(&*digits);
    }
    let train = open(&DataSpec::Digits, Split::Train, &options).unwrap();
    let measured = Normalise::measure(&*train, 2).unwrap();
    assert_eq!(format!("{:.4} {:.4}", measured.mean[0], measured.deviation[0]), "0.1320 0.3095");
    assert_eq!(measured, Normalise::measure(&*train, 1).unwrap());
}

#[test]
fn idx_plain_and_compressed_are_the_same() {
    let plain = folder();
    write(plain.path(), "train-images-idx3-ubyte", idx_images());
    write(plain.path(), "train-labels-idx1-ubyte", idx_labels());
    let compressed = folder();
    write(compressed.path(), "train-images.idx3-ubyte.gz", gzip(&idx_images()));
    write(compressed.path(), "train-labels.idx1-ubyte.gz", gzip(&idx_labels()));
    let sets = [&plain, &compressed].map(|dir| open_train(&format!("idx:{}", dir.path().display())).unwrap());
    for set in &sets {
        assert_eq!((set.len(), set.classes()), (SAMPLES, Some(4)));
        assert_eq!(image(&**set, 2), bytes(40, 20));
        assert_eq!(labels(&**set), expected_labels());
        check_regions(&**set);
    }
    assert_eq!(sets[0].digest().unwrap(), sets[1].digest().unwrap());
    assert_eq!(sets[0].sample_digest(3).unwrap(), sets[1].sample_digest(3).unwrap());
    assert_ne!(sets[0].sample_digest(3).unwrap(), sets[0].sample_digest(4).unwrap());
}

#[test]
fn idx_may_have_channels() {
    let dir = folder();
    write(dir.path(), "train-images-idx3-ubyte", idx(&[2, 3, 4, 5], (0..120).map(pixel)));
    write(dir.path(), "train-labels-idx1-ubyte", idx(&[2], [1, 0].into_iter()));
    let set = open_train(&format!("idx:{}", dir.path().display())).unwrap();
    assert_eq!(set.sample_shape(), Shape([1, 3, 1, 4, 5]));
    assert_eq!(image(&*set, 1), bytes(60, 60));
}

#[test]
fn cifar_batches_follow_each_other_by_number() {
    let dir = folder();
    write(dir.path(), "data_batch_2.bin", cifar(2..3));
    write(dir.path(), "data_batch_10.bin", cifar(3..SAMPLES));
    write(dir.path(), "data_batch_1.bin", cifar(0..2));
    write(dir.path(), "test_batch.bin", cifar(0..1));
    let spec = format!("cifar10:{}", dir.path().display());
    let set = open_train(&spec).unwrap();
    assert_eq!((set.len(), set.classes(), set.class_name(3)), (SAMPLES, Some(10), Some("cat")));
    for s in 0..SAMPLES {
        assert_eq!(image(&*set, s), bytes(s * 3072, 3072));
    }
    assert_eq!(labels(&*set), expected_labels());
    check_regions(&*set);
    let test = open(&DataSpec::parse(&spec).unwrap(), Split::Test, &OpenOptions::default()).unwrap();
    assert_eq!(test.len(), 1);
    assert_ne!(test.digest().unwrap(), set.digest().unwrap());
}

/// One array per type and version, read back as the numbers that were written.
#[test]
fn npy_reads_every_type_and_version() {
    let values = [0i8, 1, 2, 100, 7, 33];
    let each = |f: &dyn Fn(i8) -> Vec<u8>| values.iter().flat_map(|&v| f(v)).collect::<Vec<u8>>();
    let half = |v: i8| match v {
        0 => 0u16,
        _ => {
            let exponent = (v as u16).ilog2() as u16;
            ((exponent + 15) << 10) | (((v as u16) << 10 >> exponent) & 1023)
        }
    };
    let files = [
        ("|u1", each(&|v| vec![v as u8])),
        ("|i1", each(&|v| vec![v as u8])),
        ("<u2", each(&|v| (v as u16).to_le_bytes().to_vec())),
        ("<i2", each(&|v| (v as i16).to_le_bytes().to_vec())),
        ("<u4", each(&|v| (v as u32).to_le_bytes().to_vec())),
        ("<i4", each(&|v| (v as i32).to_le_bytes().to_vec())),
        ("<u8", each(&|v| (v as u64).to_le_bytes().to_vec())),
        ("<i8", each(&|v| (v as i64).to_le_bytes().to_vec())),
        ("<f2", each(&|v| half(v).to_le_bytes().to_vec())),
        ("<f4", each(&|v| (v as f32).to_le_bytes().to_vec())),
        ("<f8", each(&|v| (v as f64).to_le_bytes().to_vec())),
    ];
    for version in [1, 2, 3] {
        for (descr, numbers) in &files {
            let dir = folder();
            write(dir.path(), "images.npy", npy(version, descr, "(2, 1, 3)", numbers));
            write(
                dir.path(),
                "labels.npy",
                npy(version, "<i8", "(2,)", &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            );
            let set = open_train(&format!("npy:{}", dir.path().display())).unwrap();
            assert_eq!(set.sample_shape(), Shape([1, 1, 1, 1, 3]));
            let scale = if *descr == "|u1" { 255.0 } else { 1.0 };
            assert_eq!(image(&*set, 1), [100.0 / scale, 7.0 / scale, 33.0 / scale], "{descr}");
            assert_eq!((labels(&*set), set.classes()), (vec![1.0, 0.0], Some(2)));
        }
    }
}

fn floats(count: usize) -> (Vec<f32>, Vec<u8>) {
    let values: Vec<f32> = (0..count).map(|i| pixel(i) as f32 - 100.5).collect();
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (values, bytes)
}

#[test]
fn npy_volumes_have_labels_per_point() {
    let dir = folder();
    let (values, numbers) = floats(2 * 2 * 3 * 4 * 5);
    let points: Vec<u8> = (0..2 * 60).map(|i| pixel(i) % 3).collect();
    for shape in ["(2, 3, 4, 5)", "(2, 1, 3, 4, 5)"] {
        write(dir.path(), "train-images.npy", npy(1, "<f4", "(2, 2, 3, 4, 5)", &numbers));
        write(dir.path(), "train-labels.npy", npy(1, "|u1", shape, &points));
        let set = open_train(&format!("npy:{}", dir.path().display())).unwrap();
        assert_eq!((set.sample_shape(), set.target_shape()), (Shape([1, 2, 3, 4, 5]), Shape([1, 1, 3, 4, 5])));
        assert_eq!(set.classes(), Some(3));
        assert_eq!(image(&*set, 1), values[120..]);
        assert_eq!(target(&*set, 1), points[60..].iter().map(|&p| p as f32).collect::<Vec<_>>());
        check_regions(&*set);
    }
}

#[test]
fn npy_targets_may_be_numbers_to_meet() {
    let dir = folder();
    let (values, numbers) = floats(3 * 2 * 4 * 5);
    let spec = format!("npy:{0}/x.npy,{0}/y.npy", dir.path().display());
    write(dir.path(), "x.npy", npy(1, "<f4", "(3, 2, 4, 5)", &numbers));
    for (shape, count, expected) in [
        ("(3,)", 3, Shape([1; 5])),
        ("(3, 6)", 18, Shape([1, 6, 1, 1, 1])),
        ("(3, 2, 4, 5)", 120, Shape([1, 2, 1, 4, 5])),
    ] {
        write(dir.path(), "y.npy", npy(1, "<f4", shape, &numbers[..count * 4]));
        let set = open_train(&spec).unwrap();
        assert_eq!((set.target_shape(), set.classes()), (expected, None));
        assert_eq!(target(&*set, 2), values[count / 3 * 2..count]);
        check_regions(&*set);
    }
}

/// Bytes that this thread has read from files, where the system counts them.
fn bytes_read() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
}

/// A rank reads its slab, and between two pieces of it no more than what is read at once.
#[test]
fn npy_reads_no_more_than_a_slab() {
    const AT_ONCE: u64 = 8192;
    let dir = folder();
    let numbers: Vec<u8> = (0..4 * 256 * 256).flat_map(|i| (i as f32).to_le_bytes()).collect();
    write(dir.path(), "images.npy", npy(1, "<f4", "(1, 4, 256, 256)", &numbers));
    write(dir.path(), "labels.npy", npy(1, "|u1", "(1,)", &[0]));
    let set = open_train(&format!("npy:{}", dir.path().display())).unwrap();
    for (rows, columns) in [((64, 128), (0, 256)), ((0, 64), (0, 256)), ((200, 256), (128, 256))] {
        let slab = Region::whole(set.sample_shape());
        let slab = slab.with(Axis::Height, rows.0, rows.1).with(Axis::Width, columns.0, columns.1);
        let before = bytes_read();
        let found = region(&*set, 0, &slab);
        let (Some(before), Some(after)) = (before, bytes_read()) else { return };
        let read = after - before;
        let wanted = 4 * found.len() as u64;
        // Between rows of a narrower slab half a KiB each is read over; counting itself reads some hundred bytes.
        let rows_over = if columns == (0, 256) { 0 } else { 4 * (rows.1 - rows.0) as u64 * 512 };
        let most = wanted + rows_over + 4 * AT_ONCE + 512;
        assert!((wanted..=most).contains(&read), "{read} bytes were read of {wanted} to {most}");
        assert!(read < numbers.len() as u64 / 2, "{read} of {}", numbers.len());
    }
}

/// Samples that are read in several pieces, of the widest numbers, with small and large gaps between rows.
#[test]
fn npy_samples_may_be_larger_than_what_is_read_at_once() {
    let dir = folder();
    let values: Vec<f64> = (0..2 * 2 * 40 * 60).map(|i| i as f64).collect();
    let numbers: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    write(dir.path(), "images.npy", npy(1, "<f8", "(2, 2, 40, 60)", &numbers));
    write(dir.path(), "labels.npy", npy(1, "|u1", "(2,)", &[0, 1]));
    let set = open_train(&format!("npy:{}", dir.path().display())).unwrap();
    assert_eq!(image(&*set, 1), values[4800..].iter().map(|&v| v as f32).collect::<Vec<_>>());
    check_regions(&*set);
}

#[test]
fn npy_reads_back_what_it_writes() {
    let dir = folder();
    let (values, _) = floats(2 * 3 * 4 * 5);
    let path = dir.path().join("x.npy");
    write_npy(&path, &[2, 3, 4, 5], &values).unwrap();
    let set = open_unlabelled(&[path], Shape([1; 5])).unwrap();
    assert_eq!((set.len(), set.sample_shape(), set.classes()), (2, Shape([1, 3, 1, 4, 5]), None));
    assert_eq!([image(&*set, 0), image(&*set, 1)].concat(), values);
    assert!(target(&*set, 0).is_empty());
    let mut loader =
        Loader::new(set.into(), LoaderOptions { batch: 2, order: Order::Sequential, ..Default::default() });
    assert_eq!(loader.as_mut().unwrap().next().unwrap().images, values);
}

#[test]
fn folders_are_classes_and_png_keeps_its_pixels() {
    let dir = folder();
    for (part, from) in [("train", 0), ("val", 1000)] {
        for (class, name) in ["cat", "dog"].into_iter().enumerate() {
            for i in 0..2 {
                let image = colours(5, 4, from + (class * 2 + i) * 60);
                write(dir.path(), &format!("{part}/{name}/{i}.png"), picture("x.png", image));
            }
        }
    }
    write(dir.path(), "train/dog/notes.txt", "not an image");
    write(dir.path(), "train/.hidden/0.png", "not a class");
    let spec = DataSpec::parse(&format!("folder:{}", dir.path().display())).unwrap();
    for (split, from) in [(Split::Train, 0), (Split::Test, 1000)] {
        let set = open(&spec, split, &OpenOptions::default()).unwrap();
        assert_eq!((set.len(), set.classes(), set.class_name(1)), (4, Some(2), Some("dog")));
        assert_eq!(set.sample_shape(), Shape([1, 3, 1, 4, 5]));
        assert_eq!(labels(&*set), [0.0, 0.0, 1.0, 1.0]);
        for i in 0..4 {
            assert_eq!(image(&*set, i), bytes(from + i * 60, 60));
        }
        check_regions(&*set);
    }
}

/// The centre survives, the sides go: 40 x 20 with a blue middle becomes 16 x 16 of blue.
#[test]
fn images_are_cropped_and_resized_to_one_size() {
    let dir = folder();
    let blue = image::Rgb([10, 20, 240]);
    let wide =
        image::RgbImage::from_fn(40, 20, |x, _| if (10..30).contains(&x) { blue } else { image::Rgb([255, 0, 0]) });
    let tall =
        image::RgbImage::from_fn(3, 50, |_, y| if (23..27).contains(&y) { blue } else { image::Rgb([255, 0, 0]) });
    write(dir.path(), "a/wide.png", picture("x.png", wide));
    write(dir.path(), "a/zoomed.jpg", picture("x.jpg", image::RgbImage::from_pixel(8, 8, blue)));
    write(dir.path(), "b/tall.png", picture("x.png", tall));
    let set = open_train(&format!("folder:{}:16x16", dir.path().display())).unwrap();
    assert_eq!(set.sample_shape(), Shape([1, 3, 1, 16, 16]));
    for (index, grey_levels) in [(0, 0.0), (1, 3.0), (2, 0.0)] {
        for (i, value) in image(&*set, index).into_iter().enumerate() {
            let wanted = blue.0[i / 256] as f32 / 255.0;
            assert!((value - wanted).abs() <= grey_levels / 255.0, "image {index}, element {i}: {value}");
        }
    }
}

#[test]
fn grey_folders_have_one_channel_and_one_coloured_class_makes_three() {
    let dir = folder();
    let grey = image::GrayImage::from_fn(3, 2, |x, y| image::Luma([pixel((y * 3 + x) as usize)]));
    write(dir.path(), "a/0.png", picture("x.png", grey.clone()));
    write(dir.path(), "b/0.png", picture("x.png", grey.clone()));
    let spec = format!("folder:{}", dir.path().display());
    let set = open_train(&spec).unwrap();
    assert_eq!((set.sample_shape(), image(&*set, 1)), (Shape([1, 1, 1, 2, 3]), bytes(0, 6)));
    write(dir.path(), "b/0.png", picture("x.png", colours(3, 2, 50)));
    let set = open_train(&spec).unwrap();
    assert_eq!(image(&*set, 0), [bytes(0, 6), bytes(0, 6), bytes(0, 6)].concat());
    assert_eq!(image(&*set, 1), bytes(50, 18));
    let paths = [dir.path().join("b/0.png")];
    let unlabelled = open_unlabelled(&paths, Shape([1, 3, 1, 2, 3])).unwrap();
    assert_eq!(image(&*unlabelled, 0), bytes(50, 18));
}

/// A class is where the nearest mean is: what a network can learn, this can.
#[test]
fn synthetic_classes_can_be_learned() {
    let spec = DataSpec::parse("synthetic:3x8x8:200").unwrap();
    let options = OpenOptions { seed: 5, classes: Some(4), ..Default::default() };
    let [train, test] = [Split::Train, Split::Test].map(|split| open(&spec, split, &options).unwrap());
    assert_eq!((train.len(), test.len(), train.classes()), (200, 25, Some(4)));
    let mut means = vec![vec![0.0; 192]; 4];
    for i in 0..200 {
        let class = target(&*train, i)[0] as usize;
        means[class].iter_mut().zip(image(&*train, i)).for_each(|(m, x)| *m += x / 50.0);
    }
    for i in 0..25 {
        let image = image(&*test, i);
        let away = |mean: &[f32]| mean.iter().zip(&image).map(|(m, x)| (m - x) * (m - x)).sum::<f32>();
        let nearest = (0..4).min_by(|&a, &b| away(&means[a]).total_cmp(&away(&means[b])));
        assert_eq!(nearest, Some(target(&*test, i)[0] as usize));
        assert!((0..200).all(|t| image != crate::files::image(&*train, t)));
    }
}

#[test]
fn synthetic_points_have_the_brightness_of_their_class() {
    let spec = DataSpec::parse("synthetic:2x9x10:20").unwrap();
    let options = OpenOptions { classes: Some(3), invented: Invented::ClassPerPoint, ..Default::default() };
    let set = open(&spec, Split::Train, &options).unwrap();
    assert_eq!(set.target_shape(), Shape([1, 1, 1, 9, 10]));
    let mut seen: Vec<[f32; 2]> = vec![[f32::INFINITY, f32::NEG_INFINITY]; 3];
    for i in 0..20 {
        let (image, classes) = (image(&*set, i), target(&*set, i));
        for (value, class) in image.iter().zip(&classes) {
            let [low, high] = &mut seen[*class as usize];
            (*low, *high) = (low.min(*value), high.max(*value));
        }
    }
    // The noise is below a quarter on either side of the class's own brightness.
    assert!(seen.iter().all(|[low, high]| *high > *low && high - low < 0.5), "{seen:?}");
    check_regions(&*set);
}

#[test]
fn synthetic_data_is_a_function_of_seed_sample_and_position() {
    for (spec, invented) in [
        ("synthetic:3x6x7", Invented::Class),
        ("synthetic:1x3x4x5:9", Invented::ClassPerPoint),
        ("synthetic:2x11:9", Invented::Values(Shape([1, 5, 1, 2, 3]))),
    ] {
        let spec = DataSpec::parse(spec).unwrap();
        let made = |seed| open(&spec, Split::Train, &OpenOptions { seed, invented, ..Default::default() }).unwrap();
        let (one, same, other) = (made(1), made(1), made(2));
        assert_eq!(image(&*one, 3), image(&*same, 3));
        assert_ne!(image(&*one, 3), image(&*other, 3));
        assert_ne!(image(&*one, 3), image(&*one, 4));
        assert_eq!(one.digest().unwrap(), same.digest().unwrap());
        assert_ne!(one.digest().unwrap(), other.digest().unwrap());
        check_regions(&*one);
    }
    assert_eq!(open_train("synthetic:3x6x7").unwrap().len(), 1024);
}

#[test]
fn every_tenth_sample_is_held_out() {
    for len in [10, 11, 19, 20, 35] {
        let whole = open_train(&format!("synthetic:1x2x2:{len}")).unwrap();
        let (train, test) = hold_out(whole.clone()).unwrap();
        let images = |set: &dyn Dataset| (0..set.len()).map(|i| image(set, i)).collect::<Vec<_>>();
        let (kept, held) = (images(&train), images(&test));
        assert_eq!((kept.len(), held.len()), (len - len / 10, len / 10));
        let (mut kept, mut held) = (kept.into_iter(), held.into_iter());
        for (i, sample) in images(&*whole).into_iter().enumerate() {
            let from = if i % 10 == 9 { held.next() } else { kept.next() };
            assert_eq!(from, Some(sample), "sample {i} of {len}");
        }
        assert_ne!(train.digest().unwrap(), test.digest().unwrap());
        let past = train.len();
        assert!(matches!(
            train.read_target(past, &Region::whole(Shape([1; 5])), &mut [0.0]),
            Err(DataError::Sample { .. })
        ));
    }
    assert!(matches!(hold_out(open_train("synthetic:1x2x2:9").unwrap()), Err(DataError::TooFew { len: 9 })));
}

#[test]
fn specs_read_back_as_written() {
    for text in [
        "digits",
        "idx:some/dir",
        "cifar10:/data",
        "folder:a:b",
        "folder:c:32x48",
        "npy:dir",
        "npy:x.npy,y.npy",
        "synthetic:3x32x32:1024",
        "synthetic:2x100:5",
        "synthetic:1x8x9x10:1",
    ] {
        assert_eq!(DataSpec::parse(text).unwrap().to_string(), text);
    }
    let size = |text| match DataSpec::parse(text) {
        Ok(DataSpec::Folder { size, .. }) => size,
        other => panic!("{other:?}"),
    };
    assert_eq!((size("folder:a:b"), size("folder:c:32x48")), (None, Some([32, 48])));
}

/// Means far from zero lose nothing, constant channels are not scaled, and threads change nothing.
#[test]
fn measured_normalisation_is_exact() {
    let dir = folder();
    let (n, points) = (5, 12);
    let value = |i: usize| match i / points % 3 {
        0 => 1000.0 + pixel(i) as f32 / 64.0,
        1 => 7.0,
        _ => pixel(i) as f32,
    };
    let values: Vec<f32> = (0..n * 3 * points).map(value).collect();
    write_npy(&dir.path().join("x.npy"), &[n, 3, 3, 4], &values).unwrap();
    let set = open_unlabelled(&[dir.path().join("x.npy")], Shape([1; 5])).unwrap();
    let measured = Normalise::measure(&*set, 3).unwrap();
    for channel in 0..3 {
        let all: Vec<f64> = (0..values.len()).filter(|i| i / points % 3 == channel).map(|i| values[i] as f64).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let deviation = (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
        let deviation = if channel == 1 { 1.0 } else { deviation };
        assert_eq!(measured.mean[channel], mean as f32);
        // The two sums go in different orders: 60 terms, each rounded to double precision, rounded once more to single.
        assert!((measured.deviation[channel] as f64 - deviation).abs() <= deviation * f32::EPSILON as f64);
    }
    assert_eq!(measured, Normalise::measure(&*set, 1).unwrap());
    let mut loader = Loader::new(
        Arc::from(set),
        LoaderOptions { batch: n, order: Order::Sequential, normalise: Some(measured.clone()), ..Default::default() },
    )
    .unwrap();
    let batch = loader.next().unwrap();
    for (i, x) in batch.images.iter().enumerate() {
        let channel = i / points % 3;
        assert_eq!(*x, (values[i] - measured.mean[channel]) / measured.deviation[channel]);
    }
}
