//! Windows: which taps of a pooling window lie inside the tensor, and which windows an input lies under.

use super::lines::Span;
use convoy_net::{Shape, layers::Windows};
use std::ops::Range;

/// A list for each point of an axis, one after another in memory.
#[derive(Clone, Debug)]
pub struct Lists<T> {
    ends: Vec<usize>,
    entries: Vec<T>,
    /// Whether each has just one entry.
    single: bool,
}

impl<T> Lists<T> {
    /// The list of each point.
    pub fn new<I: Iterator<Item = T>>(lists: impl Iterator<Item = I>) -> Lists<T> {
        let (mut ends, mut entries) = (vec![0], vec![]);
        for list in lists {
            entries.extend(list);
            ends.push(entries.len());
        }
        let single = ends.iter().enumerate().all(|(i, end)| i == *end);
        Lists { ends, entries, single }
    }

    /// Entries of all lists.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Every point's only entry, if each has just one.
    pub fn single(&self) -> Option<&[T]> {
        self.single.then_some(&self.entries)
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
    pub after: isize,
    /// Points of the input.
    pub input: isize,
}

impl Window {
    /// Along one axis of space (0, 1, 2), of `input` points.
    pub fn along(windows: &Windows, space: usize, input: usize) -> Window {
        let (kernel, stride, dilation, [before, after]) = windows.along(space);
        let [stride, dilation, before, after, input] = [stride, dilation, before, after, input].map(|n| n as isize);
        Window { kernel, stride, dilation, before, after, input }
    }

    /// Along depth, height and width.
    pub fn all(windows: &Windows, input: Shape) -> [Window; 3] {
        [0, 1, 2].map(|i| Window::along(windows, i, input.space()[i]))
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

/// Random windows with a shape they may fit, in one, two or three dimensions, and more numbers.
#[cfg(test)]
pub fn random(seed: u64, dilations: usize) -> (Windows, Shape, crate::twin::Numbers) {
    let mut numbers = crate::twin::Numbers::new(seed);
    let axes = 1 + numbers.below(3);
    let mut space = [1; 3];
    (3 - axes..3).for_each(|i| space[i] = 1 + numbers.below([20, 12, 7][axes - 1]));
    let mut list = |most: usize| (0..axes).map(|_| 1 + numbers.below(most)).collect::<Vec<_>>();
    let (kernel, stride, dilation, before, after) = (list(4), list(3), list(dilations), list(3), list(3));
    let padding = (0..axes).map(|i| [before[i], after[i]].map(|p| (p - 1).min(kernel[i] / 2))).collect();
    let windows = Windows { kernel, stride, padding, dilation };
    let shape = Shape([1 + numbers.below(3), 1 + numbers.below(36), space[0], space[1], space[2]]);
    (windows, shape, numbers)
}
