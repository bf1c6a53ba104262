//! What can be wrong with data.

use convoy_net::{Region, Shape};
use std::path::{Path, PathBuf};

/// Every kind of data that [`DataSpec::parse`](super::DataSpec::parse) knows, as people write it.
pub const SOURCES: &str =
    "digits, idx:DIR, cifar10:DIR, folder:DIR[:HxW], npy:DIR, npy:IMAGES.npy,LABELS.npy, synthetic:CxHxW[:COUNT]";

/// Why data cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("unknown data `{spec}`\n  help: one of {SOURCES}")]
    Source { spec: String },
    #[error("data `{spec}`: {found}, wanted {wanted}")]
    Spec { spec: String, found: String, wanted: &'static str },
    #[error("unknown augmentation `{found}`\n  help: one of crop:PIXELS, flip")]
    Augmentation { found: String },
    #[error("data `{spec}` has no test part: no {wanted}\n  help: give test data of its own, or hold out a tenth")]
    NoTest { spec: String, wanted: String },
    #[error("folder `{path}` has no {wanted}")]
    Missing { path: PathBuf, wanted: String },
    #[error("cannot read `{path}`: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    #[error("file `{path}` ends at byte {found}, it should have {wanted} bytes")]
    Truncated { path: PathBuf, found: u64, wanted: u64 },
    #[error("file `{path}` has {found} bytes, it should have {wanted}")]
    TooLong { path: PathBuf, found: u64, wanted: u64 },
    #[error("file `{path}`, byte {byte}: found {found}, wanted {wanted}")]
    Header { path: PathBuf, byte: u64, found: String, wanted: String },
    #[error("file `{path}` is damaged near byte {byte}: {cause}")]
    Gzip { path: PathBuf, byte: u64, cause: String },
    #[error("image `{path}` cannot be read: {cause}")]
    Image { path: PathBuf, cause: String },
    #[error("`{images}` has {found} images, `{labels}` has {wanted} labels")]
    Counts { images: PathBuf, found: usize, labels: PathBuf, wanted: usize },
    #[error(
        "file `{path}`, byte {byte}: sample {sample} has label {label}, there are {classes} classes (0 to {})",
        classes.saturating_sub(1)
    )]
    Label { path: PathBuf, byte: u64, sample: usize, label: i64, classes: usize },
    #[error("`{path}` has {found} classes, the network has {classes}")]
    Classes { path: PathBuf, found: usize, classes: usize },
    #[error("folder `{path}` is a class that the train part does not have\n  help: it has {known}")]
    UnknownClass { path: PathBuf, known: String },
    #[error("`{path}` is an array, and there are {files} files\n  help: one array, or image files only")]
    SeveralFiles { path: PathBuf, files: usize },
    #[error("image files have 1 or 3 channels and no depth, the network takes {shape}")]
    NoImageShape { shape: Shape },
    #[error("`{path}` holds no sample")]
    Empty { path: PathBuf },
    #[error("{len} samples are too few to hold out a tenth of them")]
    TooFew { len: usize },
    #[error("there is no sample {index}, the data has {len}")]
    Sample { index: usize, len: usize },
    #[error("region {region} is not inside a tensor of {shape}")]
    Region { region: Box<Region>, shape: Shape },
    #[error("{found} numbers were given to hold a region of {wanted}")]
    Buffer { found: usize, wanted: usize },
    #[error("{}{what} {sample} holds {value}, which is no number to compute with", file(path.as_deref()))]
    NotFinite { path: Option<PathBuf>, what: &'static str, sample: usize, value: f32 },
    #[error("normalisation has {found} {what}, images have {channels} channels")]
    Normalise { what: &'static str, found: usize, channels: usize },
    #[error("channel {channel} has a deviation of {found}, wanted a number above 0")]
    Deviation { channel: usize, found: f32 },
    #[error("crop and flip need a target per image or one of the image's size {image}, the targets are {target}")]
    AugmentTarget { image: Shape, target: Shape },
    #[error("a batch of {batch} cannot be made of {len} samples\n  help: a batch of 1 to {len}")]
    Batch { batch: usize, len: usize },
    #[error("step {step} is past the end, steps go up to {end}")]
    PastEnd { step: u64, end: u64 },
    #[error("bug: a thread that prepares batches panicked at step {step}: {cause}")]
    Panicked { step: u64, cause: String },
    #[error("cannot start a thread that prepares batches: {error}")]
    Thread { error: std::io::Error },
}

fn file(path: Option<&Path>) -> String {
    path.map_or(String::new(), |path| format!("file `{}`: ", path.display()))
}
