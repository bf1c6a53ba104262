//! Windows: which taps of a pooling window lie inside the tensor, and which windows an input lies under.

use super::lines::Span;
use convoy_net::{Shape, layers::Windows};
use std::ops::Range;

/// A list for each point of an axis, one after another in memory.
#[derive(Clone, Debug)]
pub struct Lists<T> {
    ends: Vec<usize>,
    entries: Vec<T>,
}

impl<T> Lists<T> {
    /// The list of each point.
    pub fn new<I: Iterator<Item = T>>(lists: impl Iterator<Item = I>) -> Lists<T> {
        let (mut ends, mut entries) = (vec![0], vec![]);
        for list in lists {
            entries.extend(list);
            ends.push(entries.len());
        }
        Lists { ends, entries }
    }

    /// The list of the point number so.
    #[inline(always)]
    pub fn of(&self, point: usize) -> &[T] {
        &self.entries[self.ends[point]..self.ends[point + 1]]
    }
}

/// A window along one axis of an input.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub kernel: usize,
    pub stride: isize,
    pub dilation: isize,
    pub before: isize,
    /// Points of the input.
    pub input: isize,
}

impl Window {
    /// Along depth, height and width.
    pub fn all(windows: &Windows, input: Shape) -> [Window; 3] {
        [0, 1, 2].map(|i| {
            let (kernel, stride, dilation, [before, _]) = windows.along(i);
            Window {
                kernel,
                stride: stride as isize,
                dilation: dilation as isize,
                before: before as isize,
                input: input.space()[i] as isize,
            }
        })
    }

    /// The input under the first tap of output `o`; may lie outside.
    pub fn start(&self, o: isize) -> isize {
        o * self.stride - self.before
    }

    /// The taps of output `o` that lie inside.
    pub fn taps(&self, o: isize) -> Range<usize> {
        let start = self.start(o);
        let first = (-start).max(0) as usize;
        let first = first.div_ceil(self.dilation as usize);
        let room = (self.input - start).max(0) as usize;
        first..room.div_ceil(self.dilation as usize).min(self.kernel).max(first)
    }

    /// The inputs from the first to past the last tap of output `o` that lies inside.
    pub fn span(&self, o: isize) -> Span {
        let taps = self.taps(o);
        let at = |tap: usize| self.start(o) + tap as isize * self.dilation;
        if taps.is_empty() { (0, 0) } else { (at(taps.start), at(taps.end - 1) + 1) }
    }

    /// The outputs within `outputs` that input `i` lies under, in order, each with the tap it lies under.
    pub fn over(&self, i: isize, outputs: Span) -> impl Iterator<Item = (isize, usize)> + use<> {
        let window = *self;
        (0..self.kernel).rev().filter_map(move |tap| {
            let start = i + window.before - tap as isize * window.dilation;
            let o = start.div_euclid(window.stride);
            (start % window.stride == 0 && outputs.0 <= o && o < outputs.1).then_some((o, tap))
        })
    }
}
