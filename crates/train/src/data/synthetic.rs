//! Synthetic data: a function of seed, sample and position that a network can learn.
//!
//! Space is divided into 4 x 4 x 4 cells. Per class and channel each cell is bright or dark, and an image is its class's
//! pattern under noise. Where classes are per point, each cell of an image has a class, and shows that class's brightness.
//!
//! Always true
//! - Every element is computed from its own position: any region on any rank is a cut-out of the same image.
//! - Only sums and products that are exact or rounded once: the same bits on every machine.

use super::{DataError, Dataset, OpenOptions, Split, check_read, hash_header};
use convoy_kernels::philox::{Key, Purpose, uniform};
use convoy_net::{Region, Shape};

/// Elements of one sample have 36 bits in a random number's counter; this leaves some room.
pub(super) const MOST_ELEMENTS: usize = 1 << 34;
/// Samples have 32 bits, and the test part has the upper half.
pub(super) const MOST_SAMPLES: usize = 1 << 31;
/// Classes when nobody says how many.
const CLASSES: usize = 10;
/// Cells along each axis of space.
const CELLS: usize = 4;
/// The test part is this much smaller than the train part.
const TRAIN_PER_TEST: usize = 8;

/// What synthetic data has for targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Invented {
    /// A class per image.
    #[default]
    Class,
    /// A class per point.
    ClassPerPoint,
    /// Zeros and ones of this shape, the same for all images of a class: for losses that compare outputs with targets. Where there is
    /// space, they are a mask of cells that all channels share.
    Values(Shape),
}

/// Which random numbers: the `layer` of a key.
#[derive(Clone, Copy)]
enum Stream {
    Noise = 0,
    Pattern = 1,
    CellClass = 2,
    Brightness = 3,
    Value = 4,
}

struct Synthetic {
    shape: Shape,
    len: usize,
    /// The number of sample 0 in random numbers.
    first: u32,
    classes: usize,
    seed: u64,
    invented: Invented,
}

/// Makes up data; the test part has an eighth of the samples, and none that is in the train part.
pub(super) fn open(
    shape: Shape,
    count: usize,
    split: Split,
    options: &OpenOptions,
) -> Result<Box<dyn Dataset>, DataError> {
    let (len, first) = match split {
        Split::Train => (count, 0),
        Split::Test => (count.div_ceil(TRAIN_PER_TEST), MOST_SAMPLES as u32),
    };
    let classes = options.classes.unwrap_or(CLASSES).max(1);
    Ok(Box::new(Synthetic { shape, len, first, classes, seed: options.seed, invented: options.invented }))
}

impl Synthetic {
    fn key(&self, stream: Stream, sample: u32) -> Key {
        Key { seed: self.seed, purpose: Purpose::Synthetic, layer: stream as u32, step: 0, sample }
    }

    fn class_of(&self, index: usize) -> u32 {
        (index % self.classes) as u32
    }

    fn class_of_cell(&self, index: usize, cell: usize) -> u32 {
        self.key(Stream::CellClass, self.first + index as u32).word(cell as u64) % self.classes as u32
    }

    /// Which cells are bright, a bit each.
    fn pattern(&self, stream: Stream, class: u32, channel: usize) -> u64 {
        let [low, high, ..] = self.key(stream, class).words(channel as u64);
        (high as u64) << 32 | low as u64
    }

    fn check(&self, index: usize) -> Result<(), DataError> {
        match index < self.len {
            true => Ok(()),
            false => Err(DataError::Sample { index, len: self.len }),
        }
    }
}

/// Calls `each` for every row of a region: channel, the number of the row's first element in the tensor, the cell of each of
/// its elements' columns added to the row's own, and the row's place in `into`.
fn rows(shape: Shape, region: &Region, into: &mut [f32], mut each: impl FnMut(Row, &mut [f32])) {
    let [_, c0, d0, h0, w0] = region.start.map(|s| s as usize);
    let [_, _, depth, height, width] = shape.0;
    let [_, _, d, h, w] = region.shape().0;
    if into.is_empty() {
        return;
    }
    for (row, line) in into.chunks_exact_mut(w).enumerate() {
        let (c, z, y) = (c0 + row / (d * h), d0 + row / h % d, h0 + row % h);
        let element = ((c * depth + z) * height + y) * width + w0;
        let cell = (z * CELLS / depth * CELLS + y * CELLS / height) * CELLS;
        each(Row { channel: c, element: element as u64, cell, column: w0, width }, line);
    }
}

/// One row of a region of a sample.
struct Row {
    channel: usize,
    /// The number of its first element in the sample.
    element: u64,
    /// The first cell that the whole row of the sample crosses.
    cell: usize,
    /// The column of its first element.
    column: usize,
    /// Columns of the whole sample.
    width: usize,
}

impl Row {
    /// The cell of its nth element.
    fn cell(&self, nth: usize) -> usize {
        self.cell + (self.column + nth) * CELLS / self.width
    }
}

impl Dataset for Synthetic {
    fn len(&self) -> usize {
        self.len
    }

    fn sample_shape(&self) -> Shape {
        self.shape
    }

    fn target_shape(&self) -> Shape {
        match self.invented {
            Invented::Class => Shape([1; 5]),
            Invented::ClassPerPoint => Shape([1, 1, self.shape.0[2], self.shape.0[3], self.shape.0[4]]),
            Invented::Values(shape) => shape.with_samples(1),
        }
    }

    fn classes(&self) -> Option<usize> {
        (!matches!(self.invented, Invented::Values(_))).then_some(self.classes)
    }

    fn read_image(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        self.check(index)?;
        check_read(self.shape, region, into)?;
        let noise = self.key(Stream::Noise, self.first + index as u32);
        let class = self.class_of(index);
        let per_point = self.invented == Invented::ClassPerPoint;
        rows(self.shape, region, into, |row, line| {
            let pattern = self.pattern(Stream::Pattern, class, row.channel);
            let brightness = |cell: usize| match per_point {
                false => (pattern >> cell & 1) as f32 - 0.5,
                true => {
                    let class = self.class_of_cell(index, cell);
                    self.key(Stream::Brightness, class).uniform(row.channel as u64) * 2.0 - 1.0
                }
            };
            let loudness = if per_point { 0.25 } else { 1.0 };
            let mut level = (usize::MAX, 0.0);
            let mut words = noise.words(row.element / 4);
            for (nth, x) in line.iter_mut().enumerate() {
                let (cell, element) = (row.cell(nth), row.element + nth as u64);
                if level.0 != cell {
                    level = (cell, brightness(cell));
                }
                if element % 4 == 0 {
                    words = noise.words(element / 4);
                }
                *x = level.1 + loudness * (uniform(words[(element % 4) as usize]) * 2.0 - 1.0);
            }
        });
        Ok(())
    }

    fn read_target(&self, index: usize, region: &Region, into: &mut [f32]) -> Result<(), DataError> {
        self.check(index)?;
        let shape = self.target_shape();
        check_read(shape, region, into)?;
        let class = self.class_of(index);
        match self.invented {
            Invented::Class => into.fill(class as f32),
            Invented::ClassPerPoint => rows(shape, region, into, |row, line| {
                for (nth, x) in line.iter_mut().enumerate() {
                    *x = self.class_of_cell(index, row.cell(nth)) as f32;
                }
            }),
            Invented::Values(_) => rows(shape, region, into, |row, line| {
                let channel = if shape.points() > 1 { 0 } else { row.channel };
                let pattern = self.pattern(Stream::Value, class, channel);
                for (nth, x) in line.iter_mut().enumerate() {
                    *x = (pattern >> row.cell(nth) & 1) as f32;
                }
            }),
        }
        Ok(())
    }

    fn digest(&self) -> Result<String, DataError> {
        let mut hasher = hash_header(self);
        hasher.update(&self.seed.to_le_bytes()).update(&self.first.to_le_bytes());
        Ok(hasher.finalize().to_hex().to_string())
    }
}
