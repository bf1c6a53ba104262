//! Data: where samples come from, how they are changed, and how they become batches.
//!
//! [`DataSpec`] is what a person writes, [`open`] makes a [`Dataset`] of it, a [`Loader`] prepares its batches in the
//! background. What a batch holds is a function of the data, the seed and the step: never of threads, ranks or of where a run
//! was resumed.
//!
//! ```
//! use convoy_train::data::*;
//! let spec = DataSpec::parse("digits")?;
//! let digits = open(&spec, Split::Test, &OpenOptions::default())?;
//! assert_eq!((digits.len(), digits.classes()), (1000, Some(10)));
//! assert_eq!(digits.sample_shape().to_string(), "1x1x28x28");
//!
//! let mut loader = Loader::new(digits.into(), LoaderOptions { batch: 64, ..Default::default() })?;
//! let batch = loader.next()?;
//! assert_eq!((batch.image_shape.samples(), batch.targets.len()), (64, 64));
//! loader.give_back(batch);
//! # Ok::<(), DataError>(())
//! ```
//!
//! Knows nothing of networks, strategies or engines: who needs which part of a batch is told by [`Part`].

mod arrays;
mod augment;
mod cifar;
mod contents;
mod error;
mod folder;
mod idx;
mod loader;
mod normalise;
mod npy;
mod order;
mod spec;
mod subset;
mod synthetic;

pub use augment::Augment;
pub use error::{DataError, SOURCES};
pub use loader::{Batch, Loader, LoaderOptions, Part};
pub use normalise::{MEASURED_SAMPLES, Normalise};
pub use npy::write_npy;
pub use order::{Order, order};
pub use spec::{DataSpec, NpyFiles};
pub use subset::{Subset, hold_out};
pub use synthetic::Invented;

use convoy_net::{Region, Shape};
use std::path::{Path, PathBuf};

/// Samples by number: images, and what the network should make of them.
///
/// Reading goes into slices that the caller owns, and only as much as it asks for: a rank that computes a part of an image
/// reads that part. Any number of threads may read at once.
pub trait Dataset: Send + Sync {
    /// How many samples.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape of one image; its `samples` is 1.
    fn sample_shape(&self) -> Shape;

    /// The shape of one target: all ones for a class per image, one channel and the image's space for a class per point.
    fn target_shape(&self) -> Shape;

    /// How many classes there are, where targets are class numbers.
    fn classes(&self) -> Option<usize>;

    /// What a class is called, where the data says so.
    fn class_name(&self, _class: usize) -> Option<&str> {
        None
    }

    /// Reads a region of a sample's image, densely as `[c][d][h][w]`. The region's samples are 0..1.
    fn read_image(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError>;

    /// Reads a region of a sample's target, as [`read_image`](Dataset::read_image) does.
    fn read_target(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError>;

    /// The error of a sample that holds what is no number.
    fn not_finite(&self, index: usize, half: Half, value: f32) -> DataError {
        DataError::NotFinite { path: None, what: half.name(), sample: index, value }
    }

    /// 64 hexadecimal digits that are the same where the data is the same: ranks compare them before the first step, a
    /// resumed run with the one it continues. Of very large data it sees all names and sizes, but not every byte.
    fn digest(&self) -> Result<String, DataError>;

    /// The digest of one sample as it is read, image and target.
    fn sample_digest(&self, index: usize) -> Result<String, DataError> {
        let mut hasher = blake3::Hasher::new();
        let (image, target) = (self.sample_shape(), self.target_shape());
        let mut values = vec![0.0; image.len()];
        self.read_image(index, &Region::whole(image), &mut values)?;
        values.iter().for_each(|x| _ = hasher.update(&x.to_le_bytes()));
        values.resize(target.len(), 0.0);
        self.read_target(index, &Region::whole(target), &mut values)?;
        values.iter().for_each(|x| _ = hasher.update(&x.to_le_bytes()));
        Ok(hasher.finalize().to_hex().to_string())
    }
}

/// The two halves of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Image,
    Target,
}

impl Half {
    fn name(self) -> &'static str {
        match self {
            Half::Image => "image",
            Half::Target => "target",
        }
    }
}

/// The two parts of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// What the network learns from.
    Train,
    /// What it never sees until it is judged.
    Test,
}

/// What a job knows about its data beyond where they are.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The network's classes; labels beyond them are errors. Else the data's own number.
    pub classes: Option<usize>,
    /// A label that may stand beyond the classes because the loss ignores it.
    pub ignore: Option<u32>,
    /// Where synthetic data comes from.
    pub seed: u64,
    /// What synthetic data has for targets.
    pub invented: Invented,
}

/// Opens one part of the data. [`DataError::NoTest`] says that there is no test part: then [`hold_out`] can make one.
pub fn open(spec: &DataSpec, split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
    match spec {
        DataSpec::Digits => idx::digits(split, options),
        DataSpec::Idx { dir } => idx::open(dir, split, options),
        DataSpec::Cifar10 { dir } => cifar::open(dir, split, options),
        DataSpec::Folder { dir, size } => folder::open(dir, *size, split, options),
        DataSpec::Npy(files) => npy::open(files, split, options),
        DataSpec::Synthetic { shape, count } => synthetic::open(*shape, *count, split, options),
    }
}

/// Opens data to predict from, which has no targets (their shape holds nothing): one `.npy` array of images, or image files
/// that are brought to the network's `shape`.
pub fn open_unlabelled(paths: &[PathBuf], shape: Shape) -> Result<Box<dyn Dataset>, DataError> {
    let array = paths.iter().find(|path| path.extension().is_some_and(|e| e == "npy"));
    match (array, paths.len()) {
        (None, _) => Ok(Box::new(folder::unlabelled(paths, shape)?)),
        (Some(path), 1) => Ok(Box::new(npy::unlabelled(path)?)),
        (Some(path), files) => Err(DataError::SeveralFiles { path: path.clone(), files }),
    }
}

/// Whether a folder is there at all: what it lacks is the next question.
fn check_folder(path: &Path) -> Result<(), DataError> {
    let found = std::fs::read_dir(path);
    found.map(drop).map_err(|error| DataError::Io { path: path.to_owned(), error })
}

/// Whether a region can be read from a tensor of one sample into a slice.
fn check_read(shape: Shape, region: &Region, into: &[f32]) -> Result<(), DataError> {
    if !Region::whole(shape).contains(region) {
        return Err(DataError::Region { region: Box::new(*region), shape });
    }
    match region.len() == into.len() {
        true => Ok(()),
        false => Err(DataError::Buffer { found: into.len(), wanted: region.len() }),
    }
}

/// A hasher that has seen what kind of data this is.
fn hash_header(dataset: &dyn Dataset) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    let (image, target) = (dataset.sample_shape().0, dataset.target_shape().0);
    let counts = [dataset.len(), dataset.classes().unwrap_or(0)];
    for number in counts.iter().chain(&image).chain(&target) {
        hasher.update(&(*number as u64).to_le_bytes());
    }
    hasher
}
