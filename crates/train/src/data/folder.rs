//! Image folder: one folder a class, JPEG and PNG files in it.
//!
//! With `train/` and `test/` (or `val/`) inside they are the two parts. Classes are numbered in the order of their names. All
//! images become one size: the largest centred piece of the wanted proportions is resized bilinearly, which is what resizing
//! the shorter side and cropping the centre gives. All have three channels, unless the first image of every class is grey.
//!
//! Decoding needs memory of its own; it is bounded by what a file of that length can hold.

use super::{DataError, Dataset, OpenOptions, Split, check_read, hash_header};
use convoy_net::{Region, Shape};
use image::imageops::FilterType;
use image::{DynamicImage, GenericImageView, ImageReader};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A deflate stream gives at most 1,032 bytes for one of its own, and a bit of an indexed PNG becomes three bytes; no JPEG
/// does better.
const HELD_PER_BYTE: u64 = 25_000;
/// More than any image that fits the memory of a worker.
const LARGEST_IMAGE_BYTES: u64 = 4 << 30;
/// A digest opens this many images, evenly spaced; of the others it knows the names.
const HASHED_IMAGES: usize = 1024;

/// Opens a folder of classes.
pub(super) fn open(
    dir: &Path,
    size: Option<[usize; 2]>,
    split: Split,
    options: &OpenOptions,
) -> Result<Box<dyn Dataset>, DataError> {
    let (train, test) = parts(dir);
    let names: Vec<String> = class_folders(&train)?.iter().map(|path| name_of(path)).collect();
    let root = match (split, test) {
        (Split::Train, _) => train.clone(),
        (Split::Test, Some(test)) => test,
        (Split::Test, None) => {
            let spec = format!("folder:{}", dir.display());
            return Err(DataError::NoTest { spec, wanted: "folder test or val".into() });
        }
    };
    if let Some(told) = options.classes.filter(|&told| told < names.len()) {
        return Err(DataError::Classes { path: train, found: names.len(), classes: told });
    }
    let files = list(&root, &names)?;
    // Both parts have the shape that the train part says, whatever the test part's first image is.
    let shape = match split {
        Split::Train => shape_of(&train, &files, size)?,
        Split::Test => shape_of(&train, &list(&train, &names)?, size)?,
    };
    let classes = Some(options.classes.unwrap_or(names.len()));
    Ok(Box::new(Folder { root, files, names, classes, shape }))
}

/// Image files to predict, all brought to one shape: there are no targets.
pub(super) fn unlabelled(paths: &[PathBuf], shape: Shape) -> Result<Folder, DataError> {
    let [_, channels, depth, ..] = shape.0;
    if !matches!(channels, 1 | 3) || depth != 1 {
        return Err(DataError::NoImageShape { shape });
    }
    let files = paths.iter().map(|path| File { class: 0, path: path.clone() }).collect();
    Ok(Folder { root: PathBuf::new(), files, names: Vec::new(), classes: None, shape: shape.with_samples(1) })
}

/// Images in folders.
pub(super) struct Folder {
    root: PathBuf,
    files: Vec<File>,
    names: Vec<String>,
    classes: Option<usize>,
    shape: Shape,
}

/// An image and what it shows.
struct File {
    class: u32,
    /// From the root on.
    path: PathBuf,
}

/// The folders of the train part and of the test part, if it has one.
fn parts(dir: &Path) -> (PathBuf, Option<PathBuf>) {
    let inside = |name: &str| Some(dir.join(name)).filter(|path| path.is_dir());
    match inside("train") {
        Some(train) => (train, inside("test").or_else(|| inside("val"))),
        None => (dir.to_owned(), None),
    }
}

/// What a folder holds and does not hide, in the order of names.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let cannot = |error| DataError::Io { path: dir.to_owned(), error };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if !name_of(&path).starts_with('.') {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The folders of the classes.
fn class_folders(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let folders: Vec<_> = entries(dir)?.into_iter().filter(|path| path.is_dir()).collect();
    match folders.is_empty() {
        true => {
            Err(DataError::Missing { path: dir.to_owned(), wanted: "folder in it, wanted one for each class".into() })
        }
        false => Ok(folders),
    }
}

/// All images of a part, class by class in the order of their names.
fn list(root: &Path, names: &[String]) -> Result<Vec<File>, DataError> {
    let mut files = Vec::new();
    for folder in class_folders(root)? {
        let Some(class) = names.iter().position(|name| *name == name_of(&folder)) else {
            return Err(DataError::UnknownClass { path: folder, known: names.join(", ") });
        };
        let before = files.len();
        for path in entries(&folder)? {
            let kind = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
            if matches!(kind.as_deref(), Some("jpg" | "jpeg" | "png")) {
                let path = path.strip_prefix(root).map(Path::to_owned).unwrap_or(path);
                files.push(File { class: class as u32, path });
            }
        }
        if files.len() == before {
            return Err(DataError::Missing { path: folder, wanted: "image in it (.jpg, .jpeg or .png)".into() });
        }
    }
    Ok(files)
}

/// The shape that all images are brought to.
fn shape_of(root: &Path, files: &[File], size: Option<[usize; 2]>) -> Result<Shape, DataError> {
    let mut channels = 1;
    let mut first_of_class = None;
    for file in files {
        if first_of_class.replace(file.class) != Some(file.class) && decode(&root.join(&file.path))?.color().has_color()
        {
            channels = 3;
            break;
        }
    }
    let [height, width] = match size {
        Some(size) => size,
        None => {
            let first = decode(&root.join(&files[0].path))?;
            [first.height() as usize, first.width() as usize]
        }
    };
    Ok(Shape([1, channels, 1, height, width]))
}

/// Decodes an image file.
fn decode(path: &Path) -> Result<DynamicImage, DataError> {
    let bytes = std::fs::read(path).map_err(|error| DataError::Io { path: path.to_owned(), error })?;
    let wrong = |cause: String| DataError::Image { path: path.to_owned(), cause };
    let mut limits = image::Limits::default();
    limits.max_alloc = Some((bytes.len() as u64 * HELD_PER_BYTE).min(LARGEST_IMAGE_BYTES));
    let decoding = || {
        let mut reader = ImageReader::new(Cursor::new(&bytes)).with_guessed_format()?;
        reader.limits(limits);
        reader.decode()
    };
    // A decoder that panics on a damaged file is one more way for the file to be unreadable.
    match catch_unwind(AssertUnwindSafe(decoding)) {
        Ok(image) => image.map_err(|error| wrong(error.to_string().trim_end().into())),
        Err(_) => Err(wrong("its decoder panicked".into())),
    }
}

/// Brings an image to a height and width.
fn fit(image: DynamicImage, height: u32, width: u32) -> DynamicImage {
    let (w, h) = image.dimensions();
    if (h, w) == (height, width) {
        return image;
    }
    // The largest centred piece with the proportions of the target; products in u64, sides are u32.
    let piece = |side: u32, other: u32, target: u64, target_other: u64| -> u32 {
        let most = (other as u64 * target + target_other / 2) / target_other;
        most.clamp(1, side as u64) as u32
    };
    let crop_w = piece(w, h, width as u64, height as u64);
    let crop_h = piece(h, w, height as u64, width as u64);
    let image = image.crop_imm((w - crop_w) / 2, (h - crop_h) / 2, crop_w, crop_h);
    image.resize_exact(width, height, FilterType::Triangle)
}

impl Dataset for Folder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn sample_shape(&self) -> Shape {
        self.shape
    }

    fn target_shape(&self) -> Shape {
        match self.classes {
            Some(_) => Shape([1; 5]),
            None => Shape([1, 0, 0, 0, 0]),
        }
    }

    fn classes(&self) -> Option<usize> {
        self.classes
    }

    fn class_name(&self, class: usize) -> Option<&str> {
        self.names.get(class).map(String::as_str)
    }

    fn read_image(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        check_read(self.shape, region, into)?;
        let file = self.files.get(index).ok_or(DataError::Sample { index, len: self.len() })?;
        let [_, channels, _, height, width] = self.shape.0;
        let image = fit(decode(&self.root.join(&file.path))?, height as u32, width as u32);
        let pixels = match channels {
            1 => image.into_luma8().into_raw(),
            _ => image.into_rgb8().into_raw(),
        };
        let [_, c0, _, h0, w0] = region.start.map(|s| s as usize);
        let [_, c, d, h, w] = region.shape().0;
        if c * d * h * w == 0 {
            return Ok(());
        }
        for (row, line) in into.chunks_exact_mut(w).enumerate() {
            let (channel, y) = (c0 + row / h, h0 + row % h);
            let from = &pixels[(y * width + w0) * channels + channel..];
            for (x, byte) in line.iter_mut().zip(from.iter().step_by(channels)) {
                *x = *byte as f32 / 255.0;
            }
        }
        Ok(())
    }

    fn read_target(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        check_read(self.target_shape(), region, into)?;
        let file = self.files.get(index).ok_or(DataError::Sample { index, len: self.len() })?;
        into.fill(file.class as f32);
        Ok(())
    }

    fn digest(&self) -> Result<String, DataError> {
        let mut hasher = hash_header(self);
        for file in &self.files {
            let name = file.path.as_os_str().as_encoded_bytes();
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name);
            hasher.update(&file.class.to_le_bytes());
        }
        let opened = self.len().min(HASHED_IMAGES);
        for i in 0..opened {
            let path = self.root.join(&self.files[i * self.len() / opened].path);
            let bytes = std::fs::read(&path).map_err(|error| DataError::Io { path, error })?;
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}
