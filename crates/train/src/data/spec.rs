//! What a person writes to say which data: `digits`, `idx:DIR`, `synthetic:3x32x32` and so on.

use super::DataError;
use super::synthetic::{MOST_ELEMENTS, MOST_SAMPLES};
use convoy_net::Shape;
use std::fmt;
use std::path::PathBuf;

/// Samples of synthetic data when no number is given.
const SYNTHETIC_SAMPLES: &str = "1024";
/// No image is larger: what a typing error asks for should fail here, not when memory runs out.
const LARGEST_SIDE: usize = 65536;

/// Where data come from. Its text form reads back as the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSpec {
    /// The handwritten digits in the binary.
    Digits,
    /// A folder with files like MNIST's.
    Idx { dir: PathBuf },
    /// A folder with CIFAR-10's binary files.
    Cifar10 { dir: PathBuf },
    /// A folder with a folder of images for each class; `size` is height and width, else the first image's.
    Folder { dir: PathBuf, size: Option<[usize; 2]> },
    /// NumPy's arrays.
    Npy(NpyFiles),
    /// Made up from the seed, to be learned; `count` train samples.
    Synthetic { shape: Shape, count: usize },
}

/// Which files of arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NpyFiles {
    /// A folder with `train-images.npy`, `train-labels.npy` and the same with `test`, or `images.npy` and `labels.npy`.
    In { dir: PathBuf },
    /// Two files; there is no test part.
    Pair { images: PathBuf, labels: PathBuf },
}

impl DataSpec {
    /// Reads what a person wrote.
    pub fn parse(spec: &str) -> Result<DataSpec, DataError> {
        let (kind, rest) = match spec.split_once(':') {
            None => (spec, None),
            Some((kind, rest)) => (kind, Some(rest)),
        };
        let text = rest.unwrap_or("");
        let parsed = match kind {
            "digits" if rest.is_none() => Ok(DataSpec::Digits),
            "digits" => Err(("something follows".into(), "nothing after `digits`")),
            "idx" => folder(text).map(|dir| DataSpec::Idx { dir }),
            "cifar10" => folder(text).map(|dir| DataSpec::Cifar10 { dir }),
            "folder" => image_folder(text),
            "npy" => npy(text).map(DataSpec::Npy),
            "synthetic" => synthetic(text),
            _ => return Err(DataError::Source { spec: spec.into() }),
        };
        parsed.map_err(|(found, wanted)| DataError::Spec { spec: spec.into(), found, wanted })
    }
}

/// What was found and what was wanted instead.
type Wrong = (String, &'static str);

fn folder(text: &str) -> Result<PathBuf, Wrong> {
    match text {
        "" => Err(("no folder is named".into(), "a folder after the colon")),
        dir => Ok(dir.into()),
    }
}

/// `DIR` or `DIR:HxW`. A folder's own name may have colons, but then does not end like a size.
fn image_folder(text: &str) -> Result<DataSpec, Wrong> {
    let sized = text.rsplit_once(':').and_then(|(dir, size)| {
        let (height, width) = size.split_once('x')?;
        Some((dir, [height.parse().ok()?, width.parse().ok()?]))
    });
    let (dir, size) = match sized {
        None => (text, None),
        Some((dir, size)) => (dir, Some(size)),
    };
    match size {
        Some(size) if size.contains(&0) || size.iter().any(|&n: &usize| n > LARGEST_SIDE) => {
            Err((format!("size {}x{}", size[0], size[1]), "height and width from 1 to 65536, such as 224x224"))
        }
        _ => Ok(DataSpec::Folder { dir: folder(dir)?, size }),
    }
}

fn npy(text: &str) -> Result<NpyFiles, Wrong> {
    let wanted = "a folder, or a file of images and a file of labels with a comma between";
    match text.split_once(',') {
        Some(("", _) | (_, "")) => Err(("one of two files is missing".into(), wanted)),
        Some((images, labels)) => Ok(NpyFiles::Pair { images: images.into(), labels: labels.into() }),
        None if text.ends_with(".npy") => Err(("only one file".into(), wanted)),
        None => folder(text).map(|dir| NpyFiles::In { dir }),
    }
}

/// `SHAPE` or `SHAPE:COUNT`.
fn synthetic(text: &str) -> Result<DataSpec, Wrong> {
    let (shape, count) = text.split_once(':').unwrap_or((text, SYNTHETIC_SAMPLES));
    let wanted = "channels and one to three sizes, all above 0, such as synthetic:3x32x32";
    let shape = sample_shape(shape).ok_or_else(|| (format!("shape `{shape}`"), wanted))?;
    match count.parse() {
        Ok(count) if (1..=MOST_SAMPLES).contains(&count) => Ok(DataSpec::Synthetic { shape, count }),
        _ => Err((format!("count `{count}`"), "samples from 1 to 2147483648, such as synthetic:3x32x32:5000")),
    }
}

/// `CxW`, `CxHxW` or `CxDxHxW`, all above 0, and not so many that they could not be counted.
fn sample_shape(text: &str) -> Option<Shape> {
    let sizes: Vec<usize> = text.split('x').map(|n| n.parse().ok().filter(|&n| n > 0)).collect::<Option<_>>()?;
    let shape = match sizes[..] {
        [c, w] => Shape([1, c, 1, 1, w]),
        [c, h, w] => Shape([1, c, 1, h, w]),
        [c, d, h, w] => Shape([1, c, d, h, w]),
        _ => return None,
    };
    let len = sizes.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
    len.filter(|&len| len <= MOST_ELEMENTS).map(|_| shape)
}

impl fmt::Display for DataSpec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DataSpec::Digits => write!(f, "digits"),
            DataSpec::Idx { dir } => write!(f, "idx:{}", dir.display()),
            DataSpec::Cifar10 { dir } => write!(f, "cifar10:{}", dir.display()),
            DataSpec::Folder { dir, size: None } => write!(f, "folder:{}", dir.display()),
            DataSpec::Folder { dir, size: Some([h, w]) } => write!(f, "folder:{}:{h}x{w}", dir.display()),
            DataSpec::Npy(NpyFiles::In { dir }) => write!(f, "npy:{}", dir.display()),
            DataSpec::Npy(NpyFiles::Pair { images, labels }) => {
                write!(f, "npy:{},{}", images.display(), labels.display())
            }
            DataSpec::Synthetic { shape, count } => {
                let [_, c, d, h, w] = shape.0;
                match (d, h) {
                    (1, 1) => write!(f, "synthetic:{c}x{w}:{count}"),
                    (1, _) => write!(f, "synthetic:{c}x{h}x{w}:{count}"),
                    _ => write!(f, "synthetic:{c}x{d}x{h}x{w}:{count}"),
                }
            }
        }
    }
}
