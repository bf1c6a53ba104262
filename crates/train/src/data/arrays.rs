//! Arrays: samples that lie in files as plain numbers, one after the other.
//!
//! IDX, CIFAR-10 and NPY differ only in their headers; once those are read, an [`Array`] says where the numbers are and
//! [`Arrays`] is the data set made of them. A region of a sample is read by position: little more than was asked for is touched.
//!
//! Always true
//! - The files hold all that their headers promise, and every label of a sample was checked, before the set exists.
//!
//! Knows nothing of file formats.

use super::contents::Contents;
use super::{DataError, Dataset, Half, check_read, hash_header};
use convoy_net::{Axis, Region, Shape};

/// The type of the numbers in a file; little-endian where they have several bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

impl Element {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Element::U8 | Element::I8 => 1,
            Element::U16 | Element::I16 | Element::F16 => 2,
            Element::U32 | Element::I32 | Element::F32 => 4,
            Element::U64 | Element::I64 | Element::F64 => 8,
        }
    }

    /// Whether its numbers can name classes.
    pub fn is_integer(self) -> bool {
        !matches!(self, Element::F16 | Element::F32 | Element::F64)
    }

    fn convert(self, bytes: &[u8], into: &mut [f32]) {
        match self {
            Element::U8 => each(bytes, into, |b: [u8; 1]| b[0] as f32),
            Element::I8 => each(bytes, into, |b| i8::from_le_bytes(b) as f32),
            Element::U16 => each(bytes, into, |b| u16::from_le_bytes(b) as f32),
            Element::I16 => each(bytes, into, |b| i16::from_le_bytes(b) as f32),
            Element::U32 => each(bytes, into, |b| u32::from_le_bytes(b) as f32),
            Element::I32 => each(bytes, into, |b| i32::from_le_bytes(b) as f32),
            Element::U64 => each(bytes, into, |b| u64::from_le_bytes(b) as f32),
            Element::I64 => each(bytes, into, |b| i64::from_le_bytes(b) as f32),
            Element::F16 => each(bytes, into, |b| half(u16::from_le_bytes(b))),
            Element::F32 => each(bytes, into, f32::from_le_bytes),
            Element::F64 => each(bytes, into, |b| f64::from_le_bytes(b) as f32),
        }
    }
}

fn each<const N: usize>(bytes: &[u8], into: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (x, b) in into.iter_mut().zip(bytes.as_chunks().0) {
        *x = value(*b);
    }
}

/// The value of a half-precision number.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = ((bits >> 10) as i32 & 31, (bits & 1023) as f32 / 1024.0);
    match (exponent, fraction) {
        (31, 0.0) => sign * f32::INFINITY,
        (31, _) => f32::NAN,
        (0, _) => sign * fraction / 16384.0,
        _ => sign * (1.0 + fraction) * f32::from_bits(((exponent - 15 + 127) as u32) << 23),
    }
}

/// What the numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Brightness: bytes are scaled to 0..1.
    Image,
    /// Class numbers and other targets: taken as they are.
    Target,
}

/// Numbers of one file, of one shape per sample.
pub(super) struct Array {
    /// The file.
    pub contents: Contents,
    /// The byte at which sample 0 starts.
    pub start: u64,
    /// Bytes from one sample to the next.
    pub stride: u64,
    /// How many samples.
    pub samples: usize,
    /// The shape of one.
    pub shape: Shape,
    /// How a number is stored.
    pub element: Element,
    /// What it means.
    pub meaning: Meaning,
}

impl Array {
    /// Reads a region of one sample. The caller has checked that it is inside.
    pub fn read(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        let width = self.element.bytes();
        let sample = self.start + index as u64 * self.stride;
        let byte_of = |element: usize| sample + (element * width) as u64;
        // Short gaps are read over: one large read is cheaper than one for each row of a slightly smaller region.
        let span = span(self.shape, region);
        let read_on = region.len() * READ_OVER >= span.len();
        // On the stack: reading allocates nothing.
        let mut window = Window { bytes: [0; WINDOW_BYTES], at: 0, len: 0 };
        let mut rest = into;
        runs(self.shape, region, |first, count| {
            let (run, after) = std::mem::take(&mut rest).split_at_mut(count);
            rest = after;
            let until = byte_of(if read_on { span.end } else { first + count });
            for (nth, some) in run.chunks_mut(PIECE).enumerate() {
                let bytes = window.get(&self.contents, byte_of(first + nth * PIECE), some.len() * width, until)?;
                self.element.convert(bytes, some);
            }
            if self.meaning == Meaning::Image && self.element == Element::U8 {
                run.iter_mut().for_each(|x| *x /= 255.0);
            }
            Ok(())
        })
    }
}

/// Gaps are read over while at least one in this many elements is wanted.
const READ_OVER: usize = 4;
const WINDOW_BYTES: usize = 8192;
/// Elements that are converted at a time: they fit the window, whatever their type.
const PIECE: usize = WINDOW_BYTES / 8;

/// Some bytes of a file that are at hand.
struct Window {
    bytes: [u8; WINDOW_BYTES],
    at: u64,
    len: usize,
}

impl Window {
    /// `len` bytes of a file from `at` on; when they are not at hand, what follows is read too, as far as `until`.
    fn get(&mut self, contents: &Contents, at: u64, len: usize, until: u64) -> Result<&[u8], DataError> {
        if at < self.at || at + len as u64 > self.at + self.len as u64 {
            self.len = 0;
            let fill = (until - at).min(WINDOW_BYTES as u64) as usize;
            contents.read_at(at, &mut self.bytes[..fill])?;
            (self.at, self.len) = (at, fill);
        }
        Ok(&self.bytes[(at - self.at) as usize..][..len])
    }
}

/// From the first element of a region of one sample to its last, with all between.
fn span(shape: Shape, region: &Region) -> std::ops::Range<usize> {
    if region.is_empty() {
        return 0..0;
    }
    let number = |at: [isize; 5]| (1..5).fold(0, |n, a| n * shape.0[a] + at[a] as usize);
    number(region.start)..number(region.end.map(|e| e - 1)) + 1
}

/// Gives the runs of consecutive elements that make up a region of one sample, in order: first element and count.
fn runs(
    shape: Shape,
    region: &Region,
    mut each: impl FnMut(usize, usize) -> Result<(), DataError>,
) -> Result<(), DataError> {
    if region.is_empty() {
        return Ok(());
    }
    let size = region.shape().0;
    let start = region.start.map(|s| s as usize);
    // Axes that are read whole join the run of the axis before them.
    let mut axis = Axis::Width as usize;
    while axis > Axis::Channel as usize && size[axis] == shape.0[axis] {
        axis -= 1;
    }
    let count = size[axis..].iter().product();
    let mut outer = size;
    outer[axis..].fill(1);
    for c in start[1]..start[1] + outer[1] {
        for d in start[2]..start[2] + outer[2] {
            for h in start[3]..start[3] + outer[3] {
                let row = (c * shape.0[2] + d) * shape.0[3] + h;
                each(row * shape.0[4] + start[4], count)?;
            }
        }
    }
    Ok(())
}

/// Targets of a data set.
pub(super) enum Targets {
    /// There are none: images to predict.
    None,
    /// A class per sample.
    Labels(Vec<u32>),
    /// A class per point, checked as it is read.
    Points { labels: Array, possible: Possible },
    /// Numbers to be met.
    Values(Array),
}

/// A data set of arrays.
pub(super) struct Arrays {
    /// The images, in one file or several that follow each other.
    pub images: Vec<Array>,
    /// What they should give.
    pub targets: Targets,
    /// How many classes.
    pub classes: Option<usize>,
    /// What they are called, where the format says so.
    pub names: &'static [&'static str],
}

impl Arrays {
    /// Which file holds a sample, and as which of its samples.
    fn find(&self, mut index: usize) -> Result<(&Array, usize), DataError> {
        let len = self.len();
        let asked = index;
        for array in &self.images {
            if index < array.samples {
                return Ok((array, index));
            }
            index -= array.samples;
        }
        Err(DataError::Sample { index: asked, len })
    }
}

impl Dataset for Arrays {
    fn len(&self) -> usize {
        self.images.iter().map(|a| a.samples).sum()
    }

    fn sample_shape(&self) -> Shape {
        self.images[0].shape
    }

    fn target_shape(&self) -> Shape {
        match &self.targets {
            Targets::None => Shape([1, 0, 0, 0, 0]),
            Targets::Labels(_) => Shape([1; 5]),
            Targets::Points { labels, .. } => labels.shape,
            Targets::Values(values) => values.shape,
        }
    }

    fn classes(&self) -> Option<usize> {
        self.classes
    }

    fn class_name(&self, class: usize) -> Option<&str> {
        self.names.get(class).copied()
    }

    fn read_image(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        check_read(self.sample_shape(), region, into)?;
        let (array, index) = self.find(index)?;
        array.read(index, region, into)
    }

    fn read_target(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        check_read(self.target_shape(), region, into)?;
        self.find(index)?;
        match &self.targets {
            Targets::None => Ok(()),
            Targets::Values(values) => values.read(index, region, into),
            Targets::Labels(labels) => {
                into.fill(labels[index] as f32);
                Ok(())
            }
            Targets::Points { labels, possible } => {
                labels.read(index, region, into)?;
                possible.check(labels, index, region, into)
            }
        }
    }

    fn not_finite(&self, index: usize, half: Half, value: f32) -> DataError {
        let array = match (half, &self.targets) {
            (Half::Target, Targets::Values(values)) => Ok((values, index)),
            _ => self.find(index),
        };
        match array {
            Ok((array, sample)) => {
                DataError::NotFinite { path: Some(array.contents.path.clone()), what: half.name(), sample, value }
            }
            Err(error) => error,
        }
    }

    fn digest(&self) -> Result<String, DataError> {
        let mut hasher = hash_header(self);
        for array in &self.images {
            array.contents.hash(&mut hasher)?;
        }
        match &self.targets {
            Targets::None => (),
            Targets::Labels(labels) => labels.iter().for_each(|l| _ = hasher.update(&l.to_le_bytes())),
            Targets::Points { labels: array, .. } | Targets::Values(array) => array.contents.hash(&mut hasher)?,
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

/// Which labels are possible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Possible {
    /// Below this number.
    pub classes: usize,
    /// This one too: it does not count in the loss.
    pub ignore: Option<u32>,
}

impl Possible {
    fn allows(self, label: f32) -> bool {
        (label >= 0.0 && label < self.classes as f32) || self.ignore.is_some_and(|i| label == i as f32)
    }

    /// The first label of a region that is not possible, as an error that names its place in the file.
    fn check(self, labels: &Array, sample: usize, region: &Region, found: &[f32]) -> Result<(), DataError> {
        let Some(nth) = found.iter().position(|&label| !self.allows(label)) else { return Ok(()) };
        let (mut before, mut element) = (0, 0);
        runs(labels.shape, region, |first, count| {
            if (before..before + count).contains(&nth) {
                element = first + nth - before;
            }
            before += count;
            Ok(())
        })?;
        Err(DataError::Label {
            path: labels.contents.path.clone(),
            byte: labels.start + sample as u64 * labels.stride + (element * labels.element.bytes()) as u64,
            sample,
            label: found[nth] as i64,
            classes: self.classes,
        })
    }
}

/// The class of every sample and the number of classes: as told, or one more than the highest label.
pub(super) fn read_labels(
    labels: &Array,
    told: Option<usize>,
    ignore: Option<u32>,
) -> Result<(Vec<u32>, usize), DataError> {
    let whole = Region::whole(labels.shape);
    let mut label = [0.0];
    let mut found = Vec::new();
    for sample in 0..labels.samples {
        labels.read(sample, &whole, &mut label)?;
        // Without a number of classes any label that is a number of a class at all will do.
        let possible = Possible { classes: told.unwrap_or(u32::MAX as usize), ignore };
        possible.check(labels, sample, &whole, &label)?;
        found.push(label[0] as u32);
    }
    let highest = found.iter().copied().filter(|&l| Some(l) != ignore).max().unwrap_or(0);
    Ok((found, told.unwrap_or(highest as usize + 1)))
}

/// The number of classes that labels per point need.
pub(super) fn count_point_classes(labels: &Array, ignore: Option<u32>) -> Result<usize, DataError> {
    let whole = Region::whole(labels.shape);
    let mut found = vec![0.0; labels.shape.len()];
    let mut highest = 0;
    for sample in 0..labels.samples {
        labels.read(sample, &whole, &mut found)?;
        Possible { classes: u32::MAX as usize, ignore }.check(labels, sample, &whole, &found)?;
        let labels = found.iter().map(|&l| l as u32).filter(|&l| Some(l) != ignore);
        highest = highest.max(labels.max().unwrap_or(0));
    }
    Ok(highest as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every half-precision number against its definition.
    #[test]
    fn halves_are_what_their_bits_say() {
        for bits in 0..=u16::MAX {
            let (exponent, fraction) = ((bits >> 10 & 31) as i32, (bits & 1023) as f64);
            let size = match exponent {
                0 => fraction * 2f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
            };
            let value = if bits >> 15 == 1 { -size } else { size } as f32;
            assert!(half(bits) == value || (half(bits).is_nan() && value.is_nan()), "{bits:#x}");
        }
    }

    /// Runs against a walk over all elements, for every region of a small tensor.
    #[test]
    fn runs_cover_a_region_in_order() {
        let shape = Shape([1, 2, 2, 3, 3]);
        let ranges = |n: isize| (0..n).flat_map(move |a| (a..=n).map(move |b| (a, b)));
        for c in ranges(2) {
            for d in ranges(2) {
                for h in ranges(3) {
                    for w in ranges(3) {
                        let region = Region { start: [0, c.0, d.0, h.0, w.0], end: [1, c.1, d.1, h.1, w.1] };
                        let mut found = Vec::new();
                        let collect = |first: usize, count: usize| {
                            found.extend(first..first + count);
                            Ok(())
                        };
                        runs(shape, &region, collect).unwrap();
                        let inside = |i: usize| {
                            let at = [0, i / 18, i / 9 % 2, i / 3 % 3, i % 3].map(|x| x as isize);
                            (1..5).all(|a| region.start[a] <= at[a] && at[a] < region.end[a])
                        };
                        assert_eq!(found, (0..36).filter(|&i| inside(i)).collect::<Vec<_>>(), "{region}");
                    }
                }
            }
        }
    }
}
