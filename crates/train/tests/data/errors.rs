//! Bad input: one clear sentence each.

use crate::files::*;
use convoy_net::{Region, Shape};
use convoy_train::data::*;
use std::path::Path;

/// The text of an error, with the folder written as `DIR`.
fn text(dir: &Path, error: DataError) -> String {
    error.to_string().replace(&dir.display().to_string(), "DIR")
}

/// The text of the error that opening gives, for a spec in which `DIR` is the folder.
fn fails(dir: &Path, spec: &str, split: Split, options: &OpenOptions) -> String {
    let spec = spec.replace("DIR", &dir.display().to_string());
    let opened = DataSpec::parse(&spec).and_then(|spec| open(&spec, split, options));
    text(dir, opened.err().expect("an error"))
}

fn fails_to_open(dir: &Path, spec: &str) -> String {
    fails(dir, spec, Split::Train, &OpenOptions::default())
}

#[test]
fn specs() {
    let wrong = |spec: &str| DataSpec::parse(spec).expect_err("an error").to_string();
    for spec in ["", "mnist", "digit:x"] {
        assert_eq!(wrong(spec), format!("unknown data `{spec}`\n  help: one of {SOURCES}"));
    }
    for (spec, sentence) in [
        ("digits:x", "something follows, wanted nothing after `digits`"),
        ("idx", "no folder is named, wanted a folder after the colon"),
        ("cifar10:", "no folder is named, wanted a folder after the colon"),
        ("folder::3x3", "no folder is named, wanted a folder after the colon"),
        ("folder:a:0x3", "size 0x3, wanted height and width from 1 to 65536, such as 224x224"),
        ("npy:a.npy", "only one file, wanted a folder, or a file of images and a file of labels with a comma between"),
        (
            "npy:a.npy,",
            "one of two files is missing, wanted a folder, or a file of images and a file of labels with a comma between",
        ),
        ("synthetic", "shape ``, wanted channels and one to three sizes, all above 0, such as synthetic:3x32x32"),
        (
            "synthetic:3x0x2",
            "shape `3x0x2`, wanted channels and one to three sizes, all above 0, such as synthetic:3x32x32",
        ),
        (
            "synthetic:9x99999999x9999999999:1",
            "shape `9x99999999x9999999999`, wanted channels and one to three sizes, all above 0, such as synthetic:3x32x32",
        ),
        ("synthetic:3x2x2:0", "count `0`, wanted samples from 1 to 2147483648, such as synthetic:3x32x32:5000"),
        ("synthetic:3x2x2:", "count ``, wanted samples from 1 to 2147483648, such as synthetic:3x32x32:5000"),
    ] {
        assert_eq!(wrong(spec), format!("data `{spec}`: {sentence}"));
    }
    for text in ["crop", "crop:-1", "crop:1000000", "flip:2", ""] {
        let error = Augment::parse(text).expect_err("an error").to_string();
        assert_eq!(error, format!("unknown augmentation `{text}`\n  help: one of crop:PIXELS, flip"));
    }
}

#[test]
fn idx_files() {
    let dir = folder();
    let dir = dir.path();
    let images = |bytes: Vec<u8>| write(dir, "train-images-idx3-ubyte", bytes);
    let labels = |bytes: Vec<u8>| write(dir, "train-labels-idx1-ubyte", bytes);
    let error = || fails_to_open(dir, "idx:DIR");
    assert_eq!(error(), "folder `DIR` has no train-images-idx3-ubyte[.gz]");
    images(idx_images());
    assert_eq!(error(), "folder `DIR` has no train-labels-idx1-ubyte[.gz]");
    labels(idx_labels());
    assert!(open_train(&format!("idx:{}", dir.display())).is_ok());

    images(idx_images()[..100].to_vec());
    assert_eq!(error(), "file `DIR/train-images-idx3-ubyte` ends at byte 100, it should have 156 bytes");
    images([idx_images(), vec![0; 9]].concat());
    assert_eq!(error(), "file `DIR/train-images-idx3-ubyte` has 165 bytes, it should have 156");
    images(vec![0, 0]);
    assert_eq!(error(), "file `DIR/train-images-idx3-ubyte` ends at byte 2, it should have 4 bytes");
    // Sizes that no memory holds are compared with the file, not allocated.
    images(idx(&[u32::MAX; 3], [0; 16].into_iter()));
    assert_eq!(
        error(),
        "file `DIR/train-images-idx3-ubyte` ends at byte 32, it should have 18446744073709551615 bytes"
    );
    images(b"JFIF".to_vec());
    assert_eq!(
        error(),
        "file `DIR/train-images-idx3-ubyte`, byte 0: found [4a, 46, 49, 46], wanted [00, 00, 08, ..], the start of an IDX file"
    );
    images(vec![0, 0, 13, 3]);
    assert_eq!(
        error(),
        "file `DIR/train-images-idx3-ubyte`, byte 2: found numbers of type 0x0d, wanted bytes (type 0x08)"
    );
    images(idx_labels());
    assert_eq!(
        error(),
        "file `DIR/train-images-idx3-ubyte`, byte 3: found 1 sizes, wanted 3 or 4 sizes, an image file"
    );
    images(idx(&[0, 4, 5], std::iter::empty()));
    assert_eq!(error(), "`DIR/train-images-idx3-ubyte` holds no sample");
    images(idx_images());
    labels(idx(&[6], (0..6).map(label)));
    assert_eq!(error(), "`DIR/train-images-idx3-ubyte` has 7 images, `DIR/train-labels-idx1-ubyte` has 6 labels");
    labels(idx_labels());
    let three = OpenOptions { classes: Some(3), ..Default::default() };
    let wrong = "file `DIR/train-labels-idx1-ubyte`, byte 8: sample 0 has label 3, there are 3 classes (0 to 2)";
    assert_eq!(fails(dir, "idx:DIR", Split::Train, &three), wrong);
    let ignoring = OpenOptions { ignore: Some(3), ..three };
    assert!(open(&DataSpec::Idx { dir: dir.into() }, Split::Train, &ignoring).is_ok());
    assert_eq!(
        fails(dir, "idx:DIR", Split::Test, &OpenOptions::default()),
        "data `idx:DIR` has no test part: no t10k-images-idx3-ubyte\n  help: give test data of its own, or hold out a tenth"
    );
    assert_eq!(
        fails_to_open(dir, "idx:DIR/nowhere"),
        "cannot read `DIR/nowhere`: No such file or directory (os error 2)"
    );
}

#[test]
fn gzip_files() {
    let dir = folder();
    write(dir.path(), "train-labels-idx1-ubyte", idx_labels());
    let error = |bytes: &[u8]| {
        write(dir.path(), "train-images-idx3-ubyte.gz", bytes);
        fails_to_open(dir.path(), "idx:DIR")
    };
    let whole = gzip(&idx_images());
    // What follows the colon is the library's word.
    let near = |byte: usize| format!("file `DIR/train-images-idx3-ubyte.gz` is damaged near byte {byte}: ");
    let cut = error(&whole[..60]);
    assert!(cut.starts_with(&near(60)), "{cut}");
    let plain = error(&idx_images());
    assert!(plain.starts_with(&near(10)), "{plain}");
}

#[test]
fn cifar_files() {
    let dir = folder();
    let dir = dir.path();
    let error = || fails_to_open(dir, "cifar10:DIR");
    assert_eq!(error(), "folder `DIR` has no data_batch_1.bin (the binary version of CIFAR-10, unpacked)");
    write(dir, "data_batch_1.bin", &cifar(0..3)[..9000]);
    assert_eq!(error(), "file `DIR/data_batch_1.bin` ends at byte 9000, it should have 9219 bytes");
    write(dir, "data_batch_1.bin", "");
    assert_eq!(error(), "`DIR/data_batch_1.bin` holds no sample");
    let mut records = cifar(0..3);
    records[3073] = 17;
    write(dir, "data_batch_1.bin", records);
    assert_eq!(error(), "file `DIR/data_batch_1.bin`, byte 3073: sample 1 has label 17, there are 10 classes (0 to 9)");
    assert_eq!(
        fails(dir, "cifar10:DIR", Split::Test, &OpenOptions::default()),
        "data `cifar10:DIR` has no test part: no test_batch.bin\n  help: give test data of its own, or hold out a tenth"
    );
}

#[test]
fn npy_headers() {
    let dir = folder();
    let dir = dir.path();
    write(dir, "y.npy", npy(1, "|u1", "(2,)", &[0, 1]));
    let error = |images: Vec<u8>| {
        write(dir, "x.npy", images);
        let text = fails_to_open(dir, "npy:DIR/x.npy,DIR/y.npy");
        text.strip_prefix("file `DIR/x.npy`, ").map(str::to_string).unwrap_or(text)
    };
    let header = |text: &str| npy_with_header(1, text, &[0; 24]);
    for (images, sentence) in [
        (b"NUMPY123".to_vec(), "byte 0: found [4e, 55, 4d, 50, 59, 31], wanted the start of an NPY file"),
        (npy(4, "<f4", "(2, 1, 3)", &[0; 24]), "byte 6: found format version 4, wanted 1 to 3"),
        (
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(),
            "byte 8: found a header of 4294967295 bytes, wanted at most 65536",
        ),
        (
            npy(1, ">f4", "(2, 1, 3)", &[0; 24]),
            "byte 20: found `>f4`, wanted little-endian numbers (save array.astype(array.dtype.newbyteorder('<')))",
        ),
        (
            npy(1, "<c8", "(2, 1, 3)", &[0; 24]),
            "byte 20: found `<c8`, wanted numbers of type u1, i1, u2, i2, u4, i4, u8, i8, f2, f4, f8 or b1",
        ),
        (
            header("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1, 3)}"),
            "byte 44: found Fortran order, wanted C order (save numpy.ascontiguousarray(array))",
        ),
        (
            header("{'descr': '<f4', 'shape': (2, 1, 3)}"),
            "byte 46: found the end of the header, wanted descr, fortran_order and shape",
        ),
        (header("{'descr': '<f4', 'size': (2, 1, 3)}"), "byte 27: found `size`, wanted descr, fortran_order or shape"),
        (header("{'descr': '<f4', 'shape': (2, x, 3)}"), "byte 40: found `x`, wanted a size"),
        (header("{'descr': '<f4', 'shape': ()}"), "byte 38: found no size, wanted an array with samples"),
        (header("{'descr': '<f4'"), "byte 64: found the end of the header, wanted `}`"),
        (header("descr"), "byte 10: found `d`, wanted `{`"),
        (npy(1, "<f4", "(2, 1, 4)", &[0; 24]), "file `DIR/x.npy` ends at byte 152, it should have 160 bytes"),
        (npy(1, "<f4", "(2, 1, 2)", &[0; 24]), "file `DIR/x.npy` has 152 bytes, it should have 144"),
        (npy(1, "<f4", "(2, 1, 0)", &[]), "`DIR/x.npy` holds no sample"),
        (npy(1, "<f4", "(6,)", &[0; 24]), "`DIR/x.npy` has 6 images, `DIR/y.npy` has 2 labels"),
        (
            npy(1, "<f4", "(2, 3)", &[0; 24]),
            "byte 0: found an array of shape [2, 3], wanted images: samples, channels and one to three sizes",
        ),
    ] {
        assert_eq!(error(images), sentence);
    }
}

#[test]
fn npy_labels() {
    let dir = folder();
    let dir = dir.path();
    write(dir, "images.npy", npy(1, "<f4", "(2, 1, 2, 3)", &[0; 48]));
    let error = |labels: Vec<u8>| {
        write(dir, "labels.npy", labels);
        fails(dir, "npy:DIR", Split::Train, &OpenOptions { classes: Some(5), ..Default::default() })
    };
    assert_eq!(
        error(npy(1, "|i1", "(2,)", &[1, 255])),
        "file `DIR/labels.npy`, byte 129: sample 1 has label -1, there are 5 classes (0 to 4)"
    );
    assert_eq!(
        error(npy(1, "|u1", "(2, 4)", &[0; 8])),
        "file `DIR/labels.npy`, byte 0: found an array of shape [2, 4], wanted labels: one per image, or one per point"
    );
    assert_eq!(
        error(npy(1, "<f4", "(2, 2, 3)", &[0; 48])),
        "file `DIR/labels.npy`, byte 0: found an array of shape [2, 2, 3], wanted targets: samples, channels, and none or all of the images' sizes"
    );
    // Labels per point are checked where they are read: the second row of the second sample.
    write(dir, "labels.npy", npy(1, "|u1", "(2, 2, 3)", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0]));
    let spec = DataSpec::Npy(NpyFiles::In { dir: dir.into() });
    let set = open(&spec, Split::Train, &OpenOptions { classes: Some(5), ..Default::default() }).unwrap();
    let row = Region { start: [0, 0, 0, 1, 1], end: [1, 1, 1, 2, 3] };
    assert_eq!(
        text(dir, set.read_target(1, &row, &mut [0.0; 2]).expect_err("an error")),
        "file `DIR/labels.npy`, byte 138: sample 1 has label 9, there are 5 classes (0 to 4)"
    );
    assert_eq!(
        fails(dir, "npy:DIR", Split::Test, &OpenOptions::default()),
        "data `npy:DIR` has no test part: no test-images.npy\n  help: give test data of its own, or hold out a tenth"
    );
    std::fs::remove_file(dir.join("images.npy")).unwrap();
    assert_eq!(fails_to_open(dir, "npy:DIR"), "folder `DIR` has no train-images.npy or images.npy");
}

#[test]
fn image_folders() {
    let dir = folder();
    let dir = dir.path();
    let error = || fails_to_open(dir, "folder:DIR");
    assert_eq!(error(), "folder `DIR` has no folder in it, wanted one for each class");
    write(dir, "cat/notes.txt", "");
    assert_eq!(error(), "folder `DIR/cat` has no image in it (.jpg, .jpeg or .png)");
    let whole = picture("x.png", colours(40, 30, 0));
    write(dir, "cat/0.png", &whole[..whole.len() / 2]);
    let unreadable = "image `DIR/cat/0.png` cannot be read: ";
    assert!(error().starts_with(unreadable), "{}", error());
    write(dir, "cat/0.png", "text");
    assert!(error().starts_with(unreadable), "{}", error());
    write(dir, "cat/0.png", &whole);
    write(dir, "dog/0.jpg", &picture("x.jpg", colours(40, 30, 0))[..200]);
    let set = open_train(&format!("folder:{}", dir.display())).unwrap();
    let mut room = vec![0.0; 3600];
    let unreadable = set.read_image(1, &Region::whole(set.sample_shape()), &mut room);
    let unreadable = text(dir, unreadable.expect_err("an error"));
    assert!(unreadable.starts_with("image `DIR/dog/0.jpg` cannot be read: "), "{unreadable}");
    let one = OpenOptions { classes: Some(1), ..Default::default() };
    assert_eq!(fails(dir, "folder:DIR", Split::Train, &one), "`DIR` has 2 classes, the network has 1");
    let no_test = fails(dir, "folder:DIR", Split::Test, &OpenOptions::default());
    assert_eq!(
        no_test,
        "data `folder:DIR` has no test part: no folder test or val\n  help: give test data of its own, or hold out a tenth"
    );
    let paths = [dir.join("cat/0.png")];
    assert_eq!(
        open_unlabelled(&paths, Shape([1, 4, 1, 8, 8])).err().expect("an error").to_string(),
        "image files have 1 or 3 channels and no depth, the network takes 1x4x8x8"
    );
}

#[test]
fn a_test_part_has_no_classes_of_its_own() {
    let dir = folder();
    write(dir.path(), "train/cat/0.png", picture("x.png", colours(4, 4, 0)));
    write(dir.path(), "train/dog/0.png", picture("x.png", colours(4, 4, 0)));
    write(dir.path(), "test/cow/0.png", picture("x.png", colours(4, 4, 0)));
    assert_eq!(
        fails(dir.path(), "folder:DIR", Split::Test, &OpenOptions::default()),
        "folder `DIR/test/cow` is a class that the train part does not have\n  help: it has cat, dog"
    );
}

/// A header may promise 60,000 x 60,000 pixels in a file of 100 bytes: it is refused before memory is asked for.
#[test]
fn images_are_not_larger_than_their_files_can_hold() {
    let dir = folder();
    let mut file = picture("x.png", colours(2, 2, 0));
    let header_end = 8 + 4 + 4 + 13;
    file[16..20].copy_from_slice(&60_000u32.to_be_bytes());
    file[20..24].copy_from_slice(&60_000u32.to_be_bytes());
    let mut crc = flate2::Crc::new();
    crc.update(&file[12..header_end]);
    file[header_end..header_end + 4].copy_from_slice(&crc.sum().to_be_bytes());
    write(dir.path(), "a/0.png", file);
    assert_eq!(fails_to_open(dir.path(), "folder:DIR"), "image `DIR/a/0.png` cannot be read: Memory limit exceeded");
}

#[test]
fn numbers_that_are_none_cannot_be_measured() {
    let dir = folder();
    let mut values = vec![0.5; 24];
    values[17] = f32::NAN;
    write_npy(&dir.path().join("x.npy"), &[2, 1, 3, 4], &values).unwrap();
    let set = open_unlabelled(&[dir.path().join("x.npy")], Shape([1; 5])).unwrap();
    let error = Normalise::measure(&*set, 2).expect_err("an error").to_string();
    let error = error.replace(&dir.path().display().to_string(), "DIR");
    assert_eq!(error, "file `DIR/x.npy`: image 1 holds NaN, which is no number to compute with");
}

/// A file that shrinks while it is in use.
#[test]
fn files_may_shrink_after_they_were_opened() {
    let dir = folder();
    write(dir.path(), "data_batch_1.bin", cifar(0..3));
    let set = open_train(&format!("cifar10:{}", dir.path().display())).unwrap();
    write(dir.path(), "data_batch_1.bin", &cifar(0..3)[..7000]);
    let mut room = vec![0.0; 3072];
    let whole = Region::whole(set.sample_shape());
    assert!(set.read_image(0, &whole, &mut room).is_ok());
    assert!(matches!(set.read_image(2, &whole, &mut room), Err(DataError::Truncated { .. })));
}
