//! Small files of every format, and what the tests share.

use convoy_net::{Region, Shape};
use convoy_train::data::{DataError, DataSpec, Dataset, OpenOptions, Split, open};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Images of 3 x 4 x 5 bytes that differ everywhere, and as many labels.
pub const SAMPLES: usize = 7;

pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

pub fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// A byte that depends on every coordinate.
pub fn pixel(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 7) as u8
}

pub fn label(sample: usize) -> u8 {
    [3, 0, 2, 1, 1, 3, 0][sample % 7]
}

pub fn idx(sizes: &[u32], bytes: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut file = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|size| file.extend(size.to_be_bytes()));
    file.extend(bytes);
    file
}

pub fn idx_images() -> Vec<u8> {
    idx(&[SAMPLES as u32, 4, 5], (0..SAMPLES * 20).map(pixel))
}

pub fn idx_labels() -> Vec<u8> {
    idx(&[SAMPLES as u32], (0..SAMPLES).map(label))
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn cifar(samples: std::ops::Range<usize>) -> Vec<u8> {
    samples.flat_map(|s| std::iter::once(label(s)).chain((s * 3072..(s + 1) * 3072).map(pixel))).collect()
}

/// An NPY file as NumPy writes it.
pub fn npy(version: u8, descr: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    npy_with_header(version, &header, bytes)
}

pub fn npy_with_header(version: u8, header: &str, bytes: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    let fixed = if version == 1 { 10 } else { 12 };
    let header = format!("{header:<width$}\n", width = (fixed + header.len() + 1).next_multiple_of(64) - fixed - 1);
    match version {
        1 => file.extend((header.len() as u16).to_le_bytes()),
        _ => file.extend((header.len() as u32).to_le_bytes()),
    }
    file.extend(header.bytes());
    file.extend(bytes);
    file
}

/// An image file whose format is the name's ending.
pub fn picture(name: &str, image: impl Into<image::DynamicImage>) -> Vec<u8> {
    let format = image::ImageFormat::from_path(name).unwrap();
    let mut file = std::io::Cursor::new(Vec::new());
    image.into().write_to(&mut file, format).unwrap();
    file.into_inner()
}

pub fn colours(width: u32, height: u32, from: usize) -> image::RgbImage {
    image::RgbImage::from_fn(width, height, |x, y| {
        image::Rgb([0, 1, 2].map(|c| pixel(from + (c * height as usize + y as usize) * width as usize + x as usize)))
    })
}

pub fn open_train(spec: &str) -> Result<Arc<dyn Dataset>, DataError> {
    open(&DataSpec::parse(spec)?, Split::Train, &OpenOptions::default()).map(Arc::from)
}

pub fn image(dataset: &dyn Dataset, index: usize) -> Vec<f32> {
    region(dataset, index, &Region::whole(dataset.sample_shape()))
}

pub fn region(dataset: &dyn Dataset, index: usize, region: &Region) -> Vec<f32> {
    let mut values = vec![f32::NAN; region.len()];
    dataset.read_image(index, region, &mut values).unwrap();
    values
}

pub fn target(dataset: &dyn Dataset, index: usize) -> Vec<f32> {
    let whole = Region::whole(dataset.target_shape());
    let mut values = vec![f32::NAN; whole.len()];
    dataset.read_target(index, &whole, &mut values).unwrap();
    values
}

pub fn labels(dataset: &dyn Dataset) -> Vec<f32> {
    (0..dataset.len()).flat_map(|i| target(dataset, i)).collect()
}

/// The elements of a region of a dense tensor, picked one by one.
pub fn cut(shape: Shape, values: &[f32], region: &Region) -> Vec<f32> {
    let mut picked = Vec::new();
    let [_, channels, depth, height, width] = shape.0;
    let per_sample = channels * depth * height * width;
    for (i, value) in values.iter().enumerate() {
        let at = [
            i / per_sample,
            i / (depth * height * width) % channels,
            i / (height * width) % depth,
            i / width % height,
            i % width,
        ];
        if (0..5).all(|a| region.start[a] <= at[a] as isize && (at[a] as isize) < region.end[a]) {
            picked.push(*value);
        }
    }
    picked
}

/// Runs a test that could hang; after a minute it has.
pub fn watched(what: &str, test: impl FnOnce() + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match wait.recv_timeout(std::time::Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("hangs: {what}"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}
