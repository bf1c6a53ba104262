//! Augmentation: random changes to images, keyed by seed, epoch and sample.
//!
//! A [`Warp`] says which source element each output element is, axis by axis, so that any region of a changed image can be
//! made from a region of the source. Targets of the image's size are changed with it.
//!
//! Always true
//! - What happens to a sample depends on seed, epoch and sample: never on thread, rank, batch or region.

use super::DataError;
use convoy_kernels::philox::{Key, Purpose};
use convoy_net::{Axis, Region, Shape};
use std::fmt;

/// A random change to an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Augment {
    /// Pads every axis of space that is longer than 1 with this many zeros on both sides and cuts out the old size anywhere.
    /// Zeros are as in the data, before normalisation.
    Crop { pad: usize },
    /// Mirrors the width in one half of the cases.
    Flip,
}

impl Augment {
    /// Reads `crop:4` or `flip`.
    pub fn parse(text: &str) -> Result<Augment, DataError> {
        let pad = text.strip_prefix("crop:").and_then(|pad| pad.parse().ok()).filter(|&pad| pad <= u16::MAX as usize);
        match (text, pad) {
            ("flip", _) => Ok(Augment::Flip),
            (_, Some(pad)) => Ok(Augment::Crop { pad }),
            _ => Err(DataError::Augmentation { found: text.into() }),
        }
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Augment::Crop { pad } => write!(f, "crop:{pad}"),
            Augment::Flip => write!(f, "flip"),
        }
    }
}

/// Along one axis: output `i` is source `sign * i + offset`, for `i` in `valid`; elsewhere it is the border.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AxisWarp {
    sign: isize,
    offset: isize,
    valid: (isize, isize),
}

impl AxisWarp {
    fn shift(&mut self, by: isize, size: isize) {
        self.offset += self.sign * by;
        self.valid = ((self.valid.0 - by).max(0), (self.valid.1 - by).min(size));
    }

    fn mirror(&mut self, size: isize) {
        self.offset += self.sign * (size - 1);
        self.sign = -self.sign;
        self.valid = (size - self.valid.1, size - self.valid.0);
    }

    /// The part of an output range that is not border, and the source range it is made of.
    fn source(&self, range: (isize, isize)) -> ((isize, isize), (isize, isize)) {
        let (start, end) = (range.0.max(self.valid.0), range.1.min(self.valid.1));
        match (start < end, self.sign) {
            (false, _) => ((range.0, range.0), (0, 0)),
            (_, 1) => ((start, end), (start + self.offset, end + self.offset)),
            _ => ((start, end), (self.offset - end + 1, self.offset - start + 1)),
        }
    }
}

/// All changes to one sample together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Warp([AxisWarp; 3]);

impl Warp {
    /// What happens to a sample in an epoch.
    pub fn draw(augment: &[Augment], image: Shape, seed: u64, epoch: u64, sample: usize) -> Warp {
        let space = image.space().map(|n| n as isize);
        let mut axes = space.map(|size| AxisWarp { sign: 1, offset: 0, valid: (0, size) });
        for (nth, augment) in augment.iter().enumerate() {
            let key = Key { seed, purpose: Purpose::Augment, layer: nth as u32, step: epoch, sample: sample as u32 };
            match *augment {
                Augment::Crop { pad } => {
                    for (i, axis) in axes.iter_mut().enumerate().filter(|&(i, _)| space[i] > 1) {
                        let choices = 2 * pad as u64 + 1;
                        let drawn = (key.word(i as u64) as u64 * choices) >> 32;
                        axis.shift(drawn as isize - pad as isize, space[i]);
                    }
                }
                Augment::Flip if key.word(0) >> 31 == 1 => axes[2].mirror(space[2]),
                Augment::Flip => (),
            }
        }
        Warp(axes)
    }

    /// Fills `into` with a region of the changed tensor; `read` gives regions of the source, `held` is room for one.
    pub fn read(
        &self,
        region: &Region,
        border: f32,
        held: &mut Vec<f32>,
        into: &mut [f32],
        read: impl FnOnce(&Region, &mut [f32]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut source = *region;
        let mut inside = *region;
        for (axis, warp) in Axis::SPACE.into_iter().zip(&self.0) {
            let (part, from) = warp.source(region.range(axis));
            inside = inside.with(axis, part.0, part.1);
            source = source.with(axis, from.0, from.1);
        }
        into.fill(border);
        if source.is_empty() {
            return Ok(());
        }
        held.resize(source.len(), 0.0);
        read(&source, held)?;
        let [_, _, d, h, w] = inside.shape().0;
        let [_, _, depth, height, width] = region.shape().0;
        let [_, _, d0, h0, w0] = std::array::from_fn(|a| (inside.start[a] - region.start[a]) as usize);
        for (row, line) in held.chunks_exact(w).enumerate() {
            let (c, z, y) = (row / (d * h), row / h % d, row % h);
            let at = ((c * depth + d0 + z) * height + h0 + y) * width + w0;
            let target = &mut into[at..at + w];
            target.copy_from_slice(line);
            if self.0[2].sign < 0 {
                target.reverse();
            }
        }
        Ok(())
    }
}
