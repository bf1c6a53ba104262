//! Axis maps: how one output axis of a layer reads one input axis. The only source of geometry.
//!
//! `reads` says which inputs a range of outputs looks at (beyond the tensor's edge too: that part is padding), `reaches`
//! which outputs an input range has an effect on. Halos, paddings, interiors and boundaries are all derived from these two;
//! no other code computes one.
//!
//! Twin: the tests walk every output of every map on small axes.

/// A half-open range along one axis; may reach outside the tensor.
pub type Span = (isize, isize);

/// What lies beyond the end of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    /// Zeros.
    #[default]
    Zero,
    /// The other end: the axis is a circle.
    Periodic,
}

/// Where between its inputs a resampled output lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sampling {
    /// The input whose cell the output lies in.
    Nearest,
    /// Between two inputs; output and input cover the same interval (PyTorch's default).
    Linear,
    /// Between two inputs; first and last of both coincide (`align_corners`).
    LinearCorners,
}

/// How output `i` of an axis reads the input along it.
///
/// ```
/// use convoy_net::{AxisMap, Edge};
/// // A window of 3 with stride 2 on an axis of 8 points, one point of padding before it.
/// let map = AxisMap::Window { kernel: 3, stride: 2, dilation: 1, before: 1, after: 0, edge: Edge::Zero };
/// assert_eq!(map.reads((0, 2), 8), (-1, 4)); // outputs 0 and 1 read from the padding to point 3
/// assert_eq!(map.reaches((4, 5), 4), (2, 3)); // point 4 has an effect on output 2 alone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AxisMap {
    /// Input `i`.
    Same,
    /// Inputs `i·stride − before + k·dilation` for `k < kernel`.
    Window { kernel: usize, stride: usize, dilation: usize, before: usize, after: usize, edge: Edge },
    /// The adjoint of a window: input `j` is spread over outputs `j·stride − before + k·dilation`.
    Spread { kernel: usize, stride: usize, dilation: usize, before: usize },
    /// One or two neighbours of the place that `i` has on an axis of `input` points.
    Resample { input: usize, output: usize, sampling: Sampling },
    /// Inputs `⌊i·input/output⌋ .. ⌈(i+1)·input/output⌉`.
    Adaptive { input: usize, output: usize },
    /// Input `i − by`, if there is one.
    Shift { by: isize },
    /// The inputs of the group that `i` belongs to: `inputs` of them for every `outputs` outputs.
    Group { inputs: usize, outputs: usize },
    /// Every input.
    All,
}

impl AxisMap {
    /// The least span that holds every input read by outputs `out`, on an axis of `input` points. Where it leaves
    /// `0..input` it reads padding. Empty for an empty `out`.
    pub fn reads(&self, out: Span, input: usize) -> Span {
        let ((a, b), n) = (out, input as isize);
        if b <= a {
            return (0, 0);
        }
        match *self {
            AxisMap::Same => out,
            AxisMap::Window { kernel, stride, dilation, before, .. } => {
                let (s, p) = (stride as isize, before as isize);
                (a * s - p, (b - 1) * s - p + extent(kernel, dilation))
            }
            AxisMap::Spread { kernel, stride, dilation, before } => {
                let (s, p) = (stride as isize, before as isize);
                (ceil_div(a + p - extent(kernel, dilation) + 1, s), (b - 1 + p).div_euclid(s) + 1)
            }
            AxisMap::Resample { input, output, sampling } => {
                (sample(a, input, output, sampling).0, sample(b - 1, input, output, sampling).1)
            }
            AxisMap::Adaptive { input, output } => (adaptive(a, input, output).0, adaptive(b - 1, input, output).1),
            AxisMap::Shift { by } => ((a - by).clamp(0, n), (b - by).clamp(0, n)),
            AxisMap::Group { inputs, outputs } => {
                let (i, o) = (inputs as isize, outputs as isize);
                (a.div_euclid(o) * i, ceil_div(b, o) * i)
            }
            AxisMap::All => (0, n),
        }
    }

    /// The least span of outputs that reads any of inputs `from`, unclamped: on an axis of `output` points, what leaves
    /// `0..output` does not exist and counts as zero. Empty for an empty `from`.
    pub fn reaches(&self, from: Span, output: usize) -> Span {
        let ((a, b), n) = (from, output as isize);
        if b <= a {
            return (0, 0);
        }
        match *self {
            AxisMap::Same => from,
            AxisMap::Window { kernel, stride, dilation, before, .. } => {
                AxisMap::Spread { kernel, stride, dilation, before }.reads(from, 0)
            }
            AxisMap::Spread { kernel, stride, dilation, before } => {
                AxisMap::Window { kernel, stride, dilation, before, after: 0, edge: Edge::Zero }.reads(from, 0)
            }
            AxisMap::Resample { .. } | AxisMap::Adaptive { .. } => {
                let hits = |i: isize| {
                    let (c, d) = self.reads((i, i + 1), 0);
                    c < b && a < d
                };
                // Reads move monotonically with the output, so the outputs that hit `from` are consecutive.
                let first = (0..n).find(|&i| hits(i)).unwrap_or(0);
                (first, (first..n).find(|&i| !hits(i)).unwrap_or(n))
            }
            AxisMap::Shift { by } => ((a + by).clamp(0, n), (b + by).clamp(0, n)),
            AxisMap::Group { inputs, outputs } => AxisMap::Group { inputs: outputs, outputs: inputs }.reads(from, 0),
            AxisMap::All => (0, n),
        }
    }

    /// What lies beyond the ends of the input axis.
    pub fn edge(&self) -> Edge {
        match *self {
            AxisMap::Window { edge, .. } => edge,
            _ => Edge::Zero,
        }
    }
}

/// Points from the first to past the last tap of a dilated window.
fn extent(kernel: usize, dilation: usize) -> isize {
    (dilation * (kernel - 1) + 1) as isize
}

/// Division rounded towards plus infinity.
fn ceil_div(a: isize, b: isize) -> isize {
    -(-a).div_euclid(b)
}

fn adaptive(i: isize, input: usize, output: usize) -> Span {
    let (x, y) = (input as isize, output as isize);
    (i * x / y, ceil_div((i + 1) * x, y))
}

/// The inputs that a resampled output reads.
fn sample(i: isize, input: usize, output: usize, sampling: Sampling) -> Span {
    let (x, y) = (input as isize, output as isize);
    let low = match sampling {
        Sampling::Nearest => return ((i * x / y).min(x - 1), (i * x / y).min(x - 1) + 1),
        // (i + 1/2)·x/y − 1/2, rounded down, in integers.
        Sampling::Linear => ((2 * i + 1) * x - y).max(0) / (2 * y),
        Sampling::LinearCorners => i * (x - 1) / (y - 1).max(1),
    };
    (low.min(x - 1), (low + 2).min(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every input that output `i` reads, one by one, as the definition says.
    fn walk(map: AxisMap, i: isize, input: usize) -> Vec<isize> {
        let (x, n) = (input as isize, 0..input as isize);
        match map {
            AxisMap::Same => vec![i],
            AxisMap::Window { kernel, stride, dilation, before, .. } => {
                (0..kernel).map(|k| i * stride as isize - before as isize + (k * dilation) as isize).collect()
            }
            AxisMap::Spread { kernel, stride, dilation, before } => (-40..40)
                .filter(|j| (0..kernel).any(|k| j * stride as isize - before as isize + (k * dilation) as isize == i))
                .collect(),
            AxisMap::Resample { output, sampling, .. } => {
                let (fx, fy) = (x as f64, output as f64);
                let at = match sampling {
                    Sampling::Nearest => return vec![((i as f64 + 0.5) * fx / fy).floor() as isize],
                    Sampling::Linear => ((i as f64 + 0.5) * fx / fy - 0.5).max(0.0),
                    Sampling::LinearCorners => {
                        if output > 1 {
                            i as f64 * (fx - 1.0) / (fy - 1.0)
                        } else {
                            0.0
                        }
                    }
                };
                let low = (at + 1e-9).floor() as isize;
                vec![low, (low + 1).min(x - 1)]
            }
            AxisMap::Adaptive { output, .. } => {
                n.filter(|j| (j + 1) * output as isize > i * x && j * (output as isize) < (i + 1) * x).collect()
            }
            AxisMap::Shift { by } => n.filter(|&j| j == i - by).collect(),
            AxisMap::Group { inputs, outputs } => n.filter(|j| j / inputs as isize == i / outputs as isize).collect(),
            AxisMap::All => n.collect(),
        }
    }

    fn maps(input: usize) -> Vec<(AxisMap, usize)> {
        let mut all = vec![(AxisMap::Same, input), (AxisMap::All, 3), (AxisMap::Shift { by: 2 }, input + 4)];
        for kernel in 1..=4 {
            for stride in 1..=3 {
                for dilation in 1..=2 {
                    for before in 0..=2 {
                        let span = dilation * (kernel - 1) + 1;
                        if input + 2 * before >= span {
                            let output = (input + 2 * before - span) / stride + 1;
                            let edge = Edge::Zero;
                            all.push((
                                AxisMap::Window { kernel, stride, dilation, before, after: before, edge },
                                output,
                            ));
                        }
                        let output = ((input - 1) * stride + span).saturating_sub(2 * before);
                        if output > 0 {
                            all.push((AxisMap::Spread { kernel, stride, dilation, before }, output));
                        }
                    }
                }
            }
        }
        for output in 1..=9 {
            all.push((AxisMap::Adaptive { input, output }, output));
            for sampling in [Sampling::Nearest, Sampling::Linear, Sampling::LinearCorners] {
                all.push((AxisMap::Resample { input, output: output * input, sampling }, output * input));
            }
        }
        for group in 1..=3 {
            if input.is_multiple_of(group) {
                all.push((AxisMap::Group { inputs: group, outputs: 2 }, input / group * 2));
            }
        }
        all
    }

    /// `reads` is the hull of what the definition reads; `reaches` holds every output that reads an input.
    #[test]
    fn maps_agree_with_walking() {
        for input in 1..=7usize {
            for (map, output) in maps(input) {
                for a in 0..output as isize {
                    for b in a + 1..=output as isize {
                        let read: Vec<isize> = (a..b).flat_map(|i| walk(map, i, input)).collect();
                        if let (Some(&low), Some(&high)) = (read.iter().min(), read.iter().max()) {
                            let (c, d) = map.reads((a, b), input);
                            if let AxisMap::Spread { .. } = map {
                                // A stride may leave gaps: the span may be wider, never narrower.
                                assert!(c <= low && high < d, "{map:?} {input}: {a}..{b}");
                            } else {
                                assert_eq!((c, d), (low, high + 1), "{map:?} {input}: {a}..{b}");
                            }
                        }
                    }
                }
                for a in 0..input as isize {
                    for b in a + 1..=input as isize {
                        let (c, d) = map.reaches((a, b), output);
                        for i in 0..output as isize {
                            let touched = walk(map, i, input).iter().any(|&j| a <= j && j < b);
                            assert!(!touched || (c <= i && i < d), "{map:?} {input}: {a}..{b} reaches {i}");
                        }
                    }
                }
            }
        }
    }
}
