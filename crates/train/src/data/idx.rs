//! IDX: the format of MNIST and the sets made after it, plain or gzip; and the digits that ship with Convoy.
//!
//! Two zero bytes, the type of the numbers (8: bytes), the number of sizes, the sizes (big-endian), the numbers.

use super::arrays::{Array, Arrays, Element, Meaning, Targets, read_labels};
use super::contents::Contents;
use super::{DataError, Dataset, OpenOptions, Split, check_folder};
use convoy_net::Shape;
use std::path::{Path, PathBuf};

macro_rules! digits {
    ($name:literal) => {
        ($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/digits/", $name, "-ubyte.gz")))
    };
}

/// The digits in the binary; data/digits/ORIGIN.md says where they come from.
pub(super) fn digits(split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
    let ((images_name, images), (labels_name, labels)): ((_, &[u8]), (_, &[u8])) = match split {
        Split::Train => (digits!("train-images-idx3"), digits!("train-labels-idx1")),
        Split::Test => (digits!("t10k-images-idx3"), digits!("t10k-labels-idx1")),
    };
    join(Contents::embedded(images_name, images)?, Contents::embedded(labels_name, labels)?, options)
}

/// The files `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two whose names start with `t10k`; each may end
/// in `.gz`, and have a dot before `idx`.
pub(super) fn open(dir: &Path, split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
    check_folder(dir)?;
    let part = match split {
        Split::Train => "train",
        Split::Test => "t10k",
    };
    let find = |kind: &str| -> Result<PathBuf, DataError> {
        let wanted = format!("{part}-{kind}-ubyte");
        let names = [wanted.clone(), wanted.replace("-idx", ".idx")];
        let paths = names.iter().flat_map(|name| [dir.join(name), dir.join(format!("{name}.gz"))]);
        paths.into_iter().find(|path| path.exists()).ok_or_else(|| match split {
            Split::Train => DataError::Missing { path: dir.to_owned(), wanted: format!("{wanted}[.gz]") },
            Split::Test => DataError::NoTest { spec: format!("idx:{}", dir.display()), wanted },
        })
    };
    let (images, labels) = (find("images-idx3")?, find("labels-idx1")?);
    join(Contents::open(&images)?, Contents::open(&labels)?, options)
}

fn join(images: Contents, labels: Contents, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
    let images = parse(images, Meaning::Image, &[3, 4], "3 or 4 sizes, an image file")?;
    let labels = parse(labels, Meaning::Target, &[1], "1 size, a label file")?;
    if images.samples != labels.samples {
        return Err(DataError::Counts {
            images: images.contents.path,
            found: images.samples,
            labels: labels.contents.path,
            wanted: labels.samples,
        });
    }
    let (labels, classes) = read_labels(&labels, options.classes, options.ignore)?;
    let targets = Targets::Labels(labels);
    Ok(Box::new(Arrays { images: vec![images], targets, classes: Some(classes), names: &[] }))
}

fn parse(contents: Contents, meaning: Meaning, dimensions: &[u8], wanted: &str) -> Result<Array, DataError> {
    let mut magic = [0; 4];
    contents.read_at(0, &mut magic)?;
    let wrong = |byte, found, wanted: &str| {
        Err(DataError::Header { path: contents.path.clone(), byte, found, wanted: wanted.into() })
    };
    match magic {
        [0, 0, 8, n] if dimensions.contains(&n) => (),
        [0, 0, 8, n] => return wrong(3, format!("{n} sizes"), wanted),
        [0, 0, kind, _] => return wrong(2, format!("numbers of type {kind:#04x}"), "bytes (type 0x08)"),
        _ => return wrong(0, format!("{magic:02x?}"), "[00, 00, 08, ..], the start of an IDX file"),
    }
    let mut sizes = [0usize; 4];
    for (size, byte) in sizes.iter_mut().zip((4..).step_by(4)).take(magic[3] as usize) {
        let mut number = [0; 4];
        contents.read_at(byte, &mut number)?;
        *size = u32::from_be_bytes(number) as usize;
    }
    let (samples, shape) = match (magic[3], sizes) {
        (1, [n, ..]) => (n, Shape([1; 5])),
        (3, [n, h, w, _]) => (n, Shape([1, 1, 1, h, w])),
        (_, [n, c, h, w]) => (n, Shape([1, c, 1, h, w])),
    };
    let start = 4 + 4 * magic[3] as u64;
    let total = sizes[..magic[3] as usize].iter().try_fold(1u64, |all, &size| all.checked_mul(size as u64));
    contents.expect_bytes(total.unwrap_or(u64::MAX).saturating_add(start))?;
    if total == Some(0) {
        return Err(DataError::Empty { path: contents.path });
    }
    Ok(Array { start, stride: shape.len() as u64, samples, shape, element: Element::U8, meaning, contents })
}
