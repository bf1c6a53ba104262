//! Normalisation: per channel, values become multiples of the deviation from the mean.

use super::{DataError, Dataset, Half};
use convoy_net::{Axis, Region, Shape};

/// At most this many samples are measured, evenly spaced over the data.
pub const MEASURED_SAMPLES: usize = 10_000;
/// A thread that measures holds about this many elements at a time.
const STRIP_ELEMENTS: usize = 1 << 22;

/// What is subtracted from each channel and what it is then divided by.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalise {
    /// Per channel.
    pub mean: Vec<f32>,
    /// Per channel, above 0.
    pub deviation: Vec<f32>,
}

impl Normalise {
    /// Measures the train part. A channel that is constant is not scaled.
    ///
    /// The result does not depend on `threads`: each sample is measured by itself, and samples are joined in order.
    pub fn measure(dataset: &dyn Dataset, threads: usize) -> Result<Normalise, DataError> {
        let measured = dataset.len().min(MEASURED_SAMPLES);
        let channels = dataset.sample_shape().channels();
        let mut samples: Vec<Result<Vec<Moments>, DataError>> = Vec::new();
        samples.resize_with(measured, || Ok(vec![Moments::default(); channels]));
        let share = measured.div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (part, results) in samples.chunks_mut(share).enumerate() {
                scope.spawn(move || {
                    for (i, result) in results.iter_mut().enumerate() {
                        // Never the same sample twice: there are at least as many as are measured.
                        let index = (part * share + i) as u128 * dataset.len() as u128 / measured as u128;
                        *result = measure_sample(dataset, index as usize);
                    }
                });
            }
        });
        let mut all = vec![Moments::default(); channels];
        for sample in samples {
            all.iter_mut().zip(sample?).for_each(|(all, sample)| all.join(sample));
        }
        let mean = all.iter().map(|m| m.mean as f32).collect();
        let deviation = all.iter().map(|m| (m.squares / m.count.max(1.0)).sqrt() as f32);
        Ok(Normalise { mean, deviation: deviation.map(|d| if d > 0.0 { d } else { 1.0 }).collect() })
    }

    /// Whether it fits images.
    pub fn verify(&self, image: Shape) -> Result<(), DataError> {
        let channels = image.channels();
        for (what, found) in [("means", self.mean.len()), ("deviations", self.deviation.len())] {
            if found != channels {
                return Err(DataError::Normalise { what, found, channels });
            }
        }
        match self.deviation.iter().position(|d| !(*d > 0.0 && d.is_finite())) {
            Some(channel) => Err(DataError::Deviation { channel, found: self.deviation[channel] }),
            None => Ok(()),
        }
    }

    /// Normalises a region of an image in place.
    pub(super) fn apply(&self, region: &Region, values: &mut [f32]) {
        let points = region.shape().points();
        let first = region.start[Axis::Channel as usize] as usize;
        if points == 0 {
            return;
        }
        for (channel, plane) in values.chunks_exact_mut(points).enumerate() {
            let (mean, deviation) = (self.mean[first + channel], self.deviation[first + channel]);
            plane.iter_mut().for_each(|x| *x = (*x - mean) / deviation);
        }
    }
}

/// Count, mean, and sum of squared differences from the mean.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn of(values: &[f32]) -> Moments {
        let count = values.len() as f64;
        let mean = values.iter().map(|&x| x as f64).sum::<f64>() / count.max(1.0);
        let squares = values.iter().map(|&x| (x as f64 - mean) * (x as f64 - mean)).sum();
        Moments { count, mean, squares }
    }

    fn join(&mut self, other: Moments) {
        let count = self.count + other.count;
        if other.count > 0.0 {
            let apart = other.mean - self.mean;
            self.mean += apart * other.count / count;
            self.squares += other.squares + apart * apart * self.count * other.count / count;
            self.count = count;
        }
    }
}

/// The moments of each channel of a sample, strip by strip: a volume may be larger than memory.
fn measure_sample(dataset: &dyn Dataset, index: usize) -> Result<Vec<Moments>, DataError> {
    let shape = dataset.sample_shape();
    let [_, channels, depth, height, width] = shape.0;
    let rows = (STRIP_ELEMENTS / (channels * width).max(1)).clamp(1, height.max(1));
    let mut moments = vec![Moments::default(); channels];
    let mut values = vec![0.0; channels * rows * width];
    for d in 0..depth as isize {
        for h in (0..height).step_by(rows) {
            let end = (h + rows).min(height);
            let strip = Region::whole(shape).with(Axis::Depth, d, d + 1);
            let strip = strip.with(Axis::Height, h as isize, end as isize);
            let values = &mut values[..strip.len()];
            dataset.read_image(index, &strip, values)?;
            for (channel, all) in moments.iter_mut().enumerate() {
                let points = strip.shape().points();
                let plane = &values[channel * points..][..points];
                if let Some(&value) = plane.iter().find(|x| !x.is_finite()) {
                    return Err(dataset.not_finite(index, Half::Image, value));
                }
                all.join(Moments::of(plane));
            }
        }
    }
    Ok(moments)
}
