//! Phases: sliding windows, and their adjoint, as dense passes over evenly spaced points.
//!
//! A window reads `kernel` points for every output: one dense pass. Its adjoint (an input gradient, a transposed
//! convolution) spreads every input; turned around, point `i` of the target collects from those sources that some tap sends
//! there, and which taps these are depends only on `i` modulo the stride: one dense pass per remainder, a phase.
//!
//! Always true
//! - The order of a point's taps depends on the window alone, never on which points are asked for.
//! - Every target point is in exactly one phase, and so is every tap; a phase without taps has targets that nothing reaches.
//!
//! Twin: the tests walk every tap of small windows.

/// Pieces of a pass save at least one product in so many, and have so many points.
const WORTH: usize = 32;
// Tests have few points.
const LEAST_POINTS: usize = if cfg!(test) { 4 } else { 96 };

/// A window along one axis: output `i` reads inputs `i·stride − before + k·dilation`, `k < kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub before: usize,
}

/// A tap of a phase: how far from the phase's first source it reads, and its number in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    pub at: usize,
    pub number: usize,
}

/// Evenly spaced targets along one axis, and what they read: target `start + j·step` reads sources
/// `from + j·from_step + tap.at`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Along {
    pub start: isize,
    pub step: usize,
    pub count: usize,
    pub from: isize,
    pub from_step: usize,
    /// By rising `at`.
    pub taps: Vec<Tap>,
}

impl Window {
    /// The pass that computes outputs `span` from inputs.
    pub fn gather(&self, (start, end): (isize, isize)) -> Along {
        Along {
            start,
            step: 1,
            count: (end - start).max(0) as usize,
            from: start * self.stride as isize - self.before as isize,
            from_step: self.stride,
            taps: (0..self.kernel).map(|number| Tap { at: number * self.dilation, number }).collect(),
        }
    }

    /// The passes that compute the adjoint at inputs `span` from outputs, some perhaps without targets.
    pub fn spread(&self, (start, end): (isize, isize)) -> Vec<Along> {
        let (stride, before) = (self.stride as isize, self.before as isize);
        let phase = |remainder: isize| {
            let start = start + (remainder - start - before).rem_euclid(stride);
            let numbers = (0..self.kernel).filter(|k| (k * self.dilation) as isize % stride == remainder);
            let numbers: Vec<usize> = numbers.collect();
            let last = numbers.last().copied().unwrap_or(0);
            Along {
                start,
                step: self.stride,
                count: ((end - start).max(0) as usize).div_ceil(self.stride),
                from: (start + before - (last * self.dilation) as isize).div_euclid(stride),
                from_step: 1,
                // A later tap comes from an earlier source.
                taps: numbers
                    .iter()
                    .rev()
                    .map(|&number| Tap { at: (last - number) * self.dilation / self.stride, number })
                    .collect(),
            }
        };
        (0..stride).map(phase).collect()
    }
}

impl Along {
    /// Work in products.
    fn products(&self) -> usize {
        self.count * self.taps.len()
    }

    /// The same in pieces whose taps all read from `0..size`: others are left out.
    fn inside(&self, size: usize) -> Vec<Along> {
        let reads = |j: usize, tap: &Tap| {
            let source = self.from + (j * self.from_step + tap.at) as isize;
            source >= 0 && source < size as isize
        };
        let mut pieces: Vec<Along> = vec![];
        for j in 0..self.count {
            let taps: Vec<Tap> = self.taps.iter().filter(|tap| reads(j, tap)).copied().collect();
            match pieces.last_mut() {
                Some(last) if last.taps == taps => last.count += 1,
                _ => pieces.push(Along {
                    start: self.start + (j * self.step) as isize,
                    count: 1,
                    from: self.from + (j * self.from_step) as isize,
                    taps,
                    ..*self
                }),
            }
        }
        pieces
    }
}

/// A dense pass along depth, height and width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase(pub [Along; 3]);

impl Phase {
    /// Taps in all.
    pub fn taps(&self) -> usize {
        self.0.iter().map(|along| along.taps.len()).product()
    }

    /// The same pass over so many samples of a source of such sizes, zero outside, in pieces that leave out taps which read
    /// zeros only: where that saves work, and pieces do not become too small.
    pub fn inside(self, sizes: [usize; 3], samples: usize) -> Vec<Phase> {
        let mut pieces = self.0.each_ref().map(|along| vec![along.clone()]);
        let least = |pieces: &[Along]| pieces.iter().map(|piece| piece.count).min().unwrap_or(0);
        for axis in 0..3 {
            let cut = self.0[axis].inside(sizes[axis]);
            let (products, all) = (cut.iter().map(Along::products).sum::<usize>(), self.0[axis].products());
            let before = std::mem::replace(&mut pieces[axis], cut);
            let points = samples * pieces.each_ref().map(|p| least(p)).iter().product::<usize>();
            if (all - products) * WORTH < all || points < LEAST_POINTS {
                pieces[axis] = before;
            }
        }
        combine(pieces)
    }

    /// Targets of one sample.
    pub fn points(&self) -> usize {
        self.0.iter().map(|along| along.count).product()
    }
}

/// Every combination of phases along three axes.
pub fn combine(axes: [Vec<Along>; 3]) -> Vec<Phase> {
    let [depth, height, width] = axes;
    let mut phases = vec![];
    for d in &depth {
        for h in &height {
            for w in &width {
                phases.push(Phase([d.clone(), h.clone(), w.clone()]));
            }
        }
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every (input, tap, output) that meet, from the definition and from both directions of phases.
    #[test]
    fn phases_agree_with_walking() {
        for kernel in 1..=5 {
            for stride in 1..=4 {
                for dilation in 1..=3 {
                    for before in 0..=3 {
                        let window = Window { kernel, stride, dilation, before };
                        for (start, end) in [(-3, 9), (0, 7), (5, 6), (2, 2)] {
                            check(window, start, end);
                        }
                    }
                }
            }
        }
    }

    fn check(window: Window, start: isize, end: isize) {
        let reads =
            |o: isize, k: usize| o * window.stride as isize - window.before as isize + (k * window.dilation) as isize;
        let all = (-60..60).flat_map(|o| (0..window.kernel).map(move |k| (o, k, reads(o, k))));
        let walk = |along: &Along| {
            let mut met = vec![];
            for j in 0..along.count as isize {
                for tap in &along.taps {
                    let source = along.from + j * along.from_step as isize + tap.at as isize;
                    met.push((along.start + j * along.step as isize, tap.number, source));
                }
            }
            assert!(along.taps.is_sorted_by_key(|t| t.at), "{window:?}");
            met
        };
        let mut expected: Vec<_> = all.clone().filter(|(o, _, _)| (start..end).contains(o)).collect();
        let mut met = walk(&window.gather((start, end)));
        expected.sort();
        met.sort();
        assert_eq!(met, expected, "{window:?} outputs {start}..{end}");

        // Pieces leave out what reads outside, and nothing else.
        let inside = |met: Vec<(isize, usize, isize)>| met.into_iter().filter(|(_, _, i)| (0..6).contains(i));
        let gather = window.gather((start, end));
        let pieces: Vec<_> = gather.inside(6).iter().flat_map(walk).collect();
        assert_eq!(pieces, inside(walk(&gather)).collect::<Vec<_>>(), "{window:?} outputs {start}..{end}");

        let mut expected: Vec<_> =
            all.filter(|(_, _, i)| (start..end).contains(i)).map(|(o, k, i)| (i, k, o)).collect();
        let phases = window.spread((start, end));
        for phase in &phases {
            let pieces: Vec<_> = phase.inside(6).iter().flat_map(walk).collect();
            assert_eq!(pieces, inside(walk(phase)).collect::<Vec<_>>(), "{window:?} inputs {start}..{end}");
        }
        let mut met: Vec<_> = phases.iter().flat_map(walk).collect();
        expected.sort();
        met.sort();
        assert_eq!(met, expected, "{window:?} inputs {start}..{end}");
        let mut targets: Vec<_> =
            phases.iter().flat_map(|p| (0..p.count).map(|j| p.start + (j * p.step) as isize)).collect();
        targets.sort();
        assert_eq!(targets, (start..end).collect::<Vec<_>>(), "{window:?}");
    }
}
