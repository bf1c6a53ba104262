//! CIFAR-10, binary version: records of one label byte and 3 planes of 32 x 32 bytes, red, green, blue.

use super::arrays::{Array, Arrays, Element, Meaning, Targets, read_labels};
use super::contents::Contents;
use super::{DataError, Dataset, OpenOptions, Split, check_folder};
use convoy_net::Shape;
use std::path::{Path, PathBuf};

const IMAGE: Shape = Shape([1, 3, 1, 32, 32]);
const RECORD_BYTES: u64 = 1 + 3 * 32 * 32;
const CLASSES: [&str; 10] = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// `data_batch_1.bin` and so on in the order of their numbers, or `test_batch.bin`.
pub(super) fn open(dir: &Path, split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
    check_folder(dir)?;
    let paths = match split {
        Split::Train => train_files(dir)?,
        Split::Test => Some(dir.join("test_batch.bin")).filter(|path| path.exists()).into_iter().collect(),
    };
    if paths.is_empty() {
        return Err(match split {
            Split::Train => DataError::Missing {
                path: dir.to_owned(),
                wanted: "data_batch_1.bin (the binary version of CIFAR-10, unpacked)".into(),
            },
            Split::Test => {
                DataError::NoTest { spec: format!("cifar10:{}", dir.display()), wanted: "test_batch.bin".into() }
            }
        });
    }
    let told = options.classes.unwrap_or(CLASSES.len());
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for path in &paths {
        let of_file = records(path, 0, Shape([1; 5]), Meaning::Target)?;
        labels.extend(read_labels(&of_file, Some(told), options.ignore)?.0);
        images.push(records(path, 1, IMAGE, Meaning::Image)?);
    }
    Ok(Box::new(Arrays { images, targets: Targets::Labels(labels), classes: Some(told), names: &CLASSES }))
}

fn train_files(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let cannot = |error| DataError::Io { path: dir.to_owned(), error };
    let mut files: Vec<(u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("data_batch_")?.strip_suffix(".bin")?.parse().ok());
        files.extend(number.map(|number| (number, entry.path())));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// What stands `start` bytes into every record of a file.
fn records(path: &Path, start: u64, shape: Shape, meaning: Meaning) -> Result<Array, DataError> {
    let contents = Contents::open(path)?;
    let records = contents.bytes().div_ceil(RECORD_BYTES);
    contents.expect_bytes(records * RECORD_BYTES)?;
    if records == 0 {
        return Err(DataError::Empty { path: path.to_owned() });
    }
    let samples = records as usize;
    Ok(Array { contents, start, stride: RECORD_BYTES, samples, shape, element: Element::U8, meaning })
}
