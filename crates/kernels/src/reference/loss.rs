//! Losses by their definitions, with the gradient of the mean.

use super::softmax::{shares, through};
use super::{Array, indices};
use crate::Measured;
use convoy_net::Loss;

/// What a loss says of an output and a target: labels `[n][d][h][w]` or values `[n][c][d][h][w]`, dense. The second is the
/// gradient of the mean with respect to the output.
pub fn judge(loss: &Loss, x: &Array, target: &[f64]) -> (Measured, Array) {
    super::count();
    match *loss {
        Loss::CrossEntropy { label_smoothing, ignore } => cross_entropy(label_smoothing as f64, ignore, x, target),
        Loss::BinaryCrossEntropy => binary_cross_entropy(x, target),
        Loss::MeanSquaredError => mean_squared_error(x, target),
        Loss::Dice => dice(x, target),
    }
}

/// Every point: its index with channel 0, and its label.
fn points<'a>(x: &Array, target: &'a [f64]) -> impl Iterator<Item = ([usize; 5], f64)> + use<'a> {
    let mut shape = x.shape;
    shape.0[1] = 1;
    assert_eq!(target.len(), shape.len(), "bug: as many labels as points");
    indices(shape).zip(target.iter().copied())
}

/// The same point in another channel.
fn channel([n, _, d, h, w]: [usize; 5], c: usize) -> [usize; 5] {
    [n, c, d, h, w]
}

/// The class that a label names, if it does.
fn class(x: &Array, label: f64) -> Option<usize> {
    (0..x.shape.channels()).find(|&c| c as f64 == label)
}

/// Counts a point with a label of class `label`: how many classes are before it, if sorted with the greatest first and of
/// equal ones the first first.
fn count(measured: &mut Measured, x: &Array, at: [usize; 5], label: usize) {
    let own = x[channel(at, label)];
    let before = (0..x.shape.channels()).filter(|&c| {
        let other = x[channel(at, c)];
        c != label && (other.is_nan() || other > own || other == own && c < label)
    });
    let before = if own.is_nan() { usize::MAX } else { before.count() };
    measured.count += 1.0;
    measured.top1 += (before < 1) as usize as f64;
    measured.top5 += (before < 5) as usize as f64;
}

fn cross_entropy(smoothing: f64, ignore: Option<u32>, x: &Array, target: &[f64]) -> (Measured, Array) {
    let (mut measured, mut gradient) = (Measured::default(), Array::zeros(x.shape));
    let p = shares(x);
    let classes = x.shape.channels();
    for (at, label) in points(x, target) {
        if ignore.is_some_and(|ignore| label == ignore as f64) {
            continue;
        }
        let Some(label) = class(x, label) else {
            measured.bad += 1.0;
            continue;
        };
        count(&mut measured, x, at, label);
        let most = (0..classes).map(|c| x[channel(at, c)]).fold(f64::NEG_INFINITY, f64::max);
        let sum = (0..classes).map(|c| (x[channel(at, c)] - most).exp()).sum::<f64>().ln() + most;
        for c in 0..classes {
            let wanted = smoothing / classes as f64 + if c == label { 1.0 - smoothing } else { 0.0 };
            // The logarithm of a share that is zero is still finite this way.
            measured.loss += wanted * (sum - x[channel(at, c)]);
            gradient[channel(at, c)] = p[channel(at, c)] - wanted;
        }
    }
    mean(measured, gradient)
}

fn binary_cross_entropy(x: &Array, target: &[f64]) -> (Measured, Array) {
    let (mut measured, mut gradient) = (Measured::default(), Array::zeros(x.shape));
    assert_eq!(x.data.len(), target.len(), "bug: as many targets as elements");
    for (i, (&x, &t)) in x.data.iter().zip(target).enumerate() {
        measured.count += 1.0;
        measured.loss += x.max(0.0) - x * t + (-x.abs()).exp().ln_1p();
        measured.top1 += ((x > 0.0) == (t > 0.5)) as usize as f64;
        gradient.data[i] = 1.0 / (1.0 + (-x).exp()) - t;
    }
    mean(measured, gradient)
}

fn mean_squared_error(x: &Array, target: &[f64]) -> (Measured, Array) {
    let (mut measured, mut gradient) = (Measured::default(), Array::zeros(x.shape));
    assert_eq!(x.data.len(), target.len(), "bug: as many targets as elements");
    for (i, (&x, &t)) in x.data.iter().zip(target).enumerate() {
        measured.count += 1.0;
        measured.loss += (x - t) * (x - t);
        gradient.data[i] = 2.0 * (x - t);
    }
    mean(measured, gradient)
}

/// The sum divided by its count, the gradient too; where nothing counts the mean is NaN and the gradient zero.
fn mean(mut measured: Measured, mut gradient: Array) -> (Measured, Array) {
    measured.loss /= measured.count;
    if measured.count > 0.0 {
        gradient.data.iter_mut().for_each(|g| *g /= measured.count);
    }
    (measured, gradient)
}

fn dice(x: &Array, target: &[f64]) -> (Measured, Array) {
    let mut measured = Measured::default();
    let p = shares(x);
    let classes = x.shape.channels();
    let (mut overlap, mut sizes) = (vec![0.0; classes], vec![0.0; classes]);
    for (at, label) in points(x, target) {
        let Some(label) = class(x, label) else {
            measured.bad += 1.0;
            continue;
        };
        count(&mut measured, x, at, label);
        overlap[label] += p[channel(at, label)];
        sizes[label] += 1.0;
        (0..classes).for_each(|c| sizes[c] += p[channel(at, c)]);
    }
    let each = (0..classes).map(|c| 1.0 - (2.0 * overlap[c] + 1.0) / (sizes[c] + 1.0));
    measured.loss = each.sum::<f64>() / classes as f64;
    let mut of_shares = Array::zeros(x.shape);
    for (at, label) in points(x, target) {
        let Some(label) = class(x, label) else { continue };
        for c in 0..classes {
            let own = if c == label { 2.0 / (sizes[c] + 1.0) } else { 0.0 };
            let all = (2.0 * overlap[c] + 1.0) / (sizes[c] + 1.0).powi(2);
            of_shares[channel(at, c)] = (all - own) / classes as f64;
        }
    }
    (measured, through(&p, &of_shares))
}
