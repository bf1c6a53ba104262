//! Lane rows: the kernels of depthwise convolutions, where channels meet only themselves.
//!
//! ```text
//! gather:   to[p]        = start + sum over taps t of  from[p + t.from] * weights[t.weight]
//! collect:  sums[weight] +=        sum over points p of from[p + t.from] * gradient[p]
//! ```
//! for the points p of one row and for some blocks: all are lines of 16 channels, multiplied lane by lane. Neighbouring points share
//! lines, which come from the first-level cache as operands of the multiply-adds; what comes from memory is asked for ahead.
//!
//! Always true
//! - A number that is gathered is one chain of fused multiply-adds in the order of taps, one that is collected in the order of points:
//!   bits depend neither on how points and taps are cut into registers' fill, nor on the vector width.

use super::simd::Simd;
use super::sweep::Start;
use crate::BLOCK;

/// Points and taps whose sums are in registers at once: more than the latency of a multiply-add times those that start in one cycle.
const POINTS: usize = 8;
const TAPS: usize = 9;
/// Lines ahead of which sources and gradients are asked for.
const AHEAD: usize = 64;

/// Lines of a row: the first point's in the first block, and the floats to the next point's and to the next block's.
#[derive(Clone, Copy, Debug)]
pub struct Lines<P> {
    pub first: P,
    pub point: usize,
    pub block: usize,
}

/// A tap: floats from a point's first line to the one that it meets, and from a block's first weight to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTap {
    pub from: usize,
    pub weight: usize,
}

/// A row of targets.
#[derive(Clone, Copy)]
pub struct Gather<'r> {
    pub from: Lines<*const f32>,
    pub taps: &'r [LaneTap],
    pub weights: *const f32,
    /// Floats of a block's weights.
    pub panel: usize,
    pub to: Lines<*mut f32>,
    pub points: usize,
    pub blocks: usize,
    pub start: Start,
    /// Results below the first number become it, results above the second that.
    pub clamp: Option<[f32; 2]>,
    /// Targets are written past the caches; each begins at a multiple of 64 bytes then.
    pub stream: bool,
}

/// What a row adds to the gradient of the weights.
#[derive(Clone, Copy)]
pub struct Collect<'r> {
    pub from: Lines<*const f32>,
    pub taps: &'r [LaneTap],
    pub gradient: Lines<*const f32>,
    pub sums: *mut f32,
    /// Floats of a block's sums.
    pub panel: usize,
    pub points: usize,
    pub blocks: usize,
}

/// Floats from the first point's line in the first block to the end of the last one's in the last.
fn reach<P>(lines: &Lines<P>, points: usize, blocks: usize) -> usize {
    if points * blocks == 0 { 0 } else { (points - 1) * lines.point + (blocks - 1) * lines.block + BLOCK }
}

/// Floats of the weights of some blocks that taps meet.
fn weights_reach(taps: &[LaneTap], panel: usize, blocks: usize) -> usize {
    let last = taps.iter().map(|tap| tap.weight + BLOCK).max().unwrap_or(0);
    if blocks == 0 { 0 } else { (blocks - 1) * panel + last }
}

fn furthest(taps: &[LaneTap]) -> usize {
    taps.iter().map(|tap| tap.from).max().unwrap_or(0)
}

impl Gather<'_> {
    /// In debug builds: all that is touched is inside so many floats of sources, weights and targets.
    #[inline]
    pub fn assert_inside(&self, from: usize, weights: usize, to: usize) {
        if cfg!(debug_assertions) {
            let read = reach(&self.from, self.points, self.blocks);
            assert!(self.taps.is_empty() || read + furthest(self.taps) <= from, "bug: sources beyond the last");
            assert!(weights_reach(self.taps, self.panel, self.blocks) <= weights, "bug: weights beyond the last");
            assert!(reach(&self.to, self.points, self.blocks) <= to, "bug: targets beyond the last");
            let aligned = [self.to.first.addr() / 4, self.to.point, self.to.block].map(|n| n.is_multiple_of(BLOCK));
            assert!(!self.stream || aligned == [true; 3], "bug: parts of lines are streamed");
        }
    }
}

impl Collect<'_> {
    /// The same of sources, the gradient and sums.
    #[inline]
    pub fn assert_inside(&self, from: usize, gradient: usize, sums: usize) {
        if cfg!(debug_assertions) {
            let read = reach(&self.from, self.points, self.blocks);
            assert!(read + furthest(self.taps) <= from, "bug: sources beyond the last");
            assert!(reach(&self.gradient, self.points, self.blocks) <= gradient, "bug: a gradient beyond the last");
            assert!(weights_reach(self.taps, self.panel, self.blocks) <= sums, "bug: sums beyond the last");
        }
    }
}

/// Calls `$f::<S, N, $rest>` with the number `$n`, which is at most nine, as the constant N.
macro_rules! by_count {
    ($n:expr, $f:ident::<S $(, $rest:ident)*>, $arguments:tt) => {
        match $n {
            1 => $f::<S, 1 $(, { $rest })*> $arguments,
            2 => $f::<S, 2 $(, { $rest })*> $arguments,
            3 => $f::<S, 3 $(, { $rest })*> $arguments,
            4 => $f::<S, 4 $(, { $rest })*> $arguments,
            5 => $f::<S, 5 $(, { $rest })*> $arguments,
            6 => $f::<S, 6 $(, { $rest })*> $arguments,
            7 => $f::<S, 7 $(, { $rest })*> $arguments,
            8 => $f::<S, 8 $(, { $rest })*> $arguments,
            _ => $f::<S, 9 $(, { $rest })*> $arguments,
        }
    };
}

/// Computes a row of targets.
///
/// # Safety
/// The instruction set is there; sources that taps meet and weights may be read, targets written by nobody else.
#[inline(always)]
pub unsafe fn gather<S: Simd, const NV: usize>(g: &Gather) {
    // SAFETY: the caller's promise.
    unsafe {
        match (g.from.point / BLOCK, g.from.point % BLOCK) {
            (1, 0) => gather_at::<S, NV, 1>(g),
            (2, 0) => gather_at::<S, NV, 2>(g),
            _ => gather_at::<S, NV, 0>(g),
        }
    }
}

/// The same with so many lines from a point's to the next's, known when this is compiled unless it is 0.
#[inline(always)]
unsafe fn gather_at<S: Simd, const NV: usize, const STEP: usize>(g: &Gather) {
    let tiles = g.points.div_ceil(POINTS);
    for block in 0..g.blocks {
        for tile in 0..tiles {
            // Tiles of equal length: few sums do not hide the latency of a multiply-add.
            let [first, end] = [tile, tile + 1].map(|t| t * g.points / tiles);
            for v in 0..NV {
                // SAFETY: these points exist; the rest is the caller's promise.
                unsafe { by_count!(end - first, gather_tile::<S, STEP>, (g, block, first, v)) }
            }
        }
    }
}

/// `P` points of one block, one vector of each.
#[inline(always)]
unsafe fn gather_tile<S: Simd, const P: usize, const STEP: usize>(g: &Gather, block: usize, first: usize, v: usize) {
    // SAFETY: the caller promises that these points exist and may be used as `gather` says.
    unsafe {
        let step = if STEP == 0 { g.from.point } else { STEP * BLOCK };
        let lane = v * S::LANES;
        let from = g.from.first.wrapping_add(block * g.from.block + first * step + lane);
        let weights = g.weights.wrapping_add(block * g.panel + lane);
        let to = g.to.first.add(block * g.to.block + first * g.to.point + lane);
        let mut sums = match g.start {
            Start::Zero => [S::zero(); P],
            Start::Line(line) => [S::load(line.add(block * BLOCK + lane)); P],
            Start::Held => {
                let mut held = [S::zero(); P];
                for (p, sum) in held.iter_mut().enumerate() {
                    *sum = S::load(to.add(p * g.to.point));
                }
                held
            }
        };
        // Earlier taps meet rows that were read for earlier targets; a line comes with its first vector.
        if let Some(last) = g.taps.last()
            && v == 0
        {
            let ahead = from.wrapping_add(last.from + AHEAD * BLOCK);
            (0..P * step / BLOCK).for_each(|line| S::prefetch(ahead.wrapping_add(line * BLOCK)));
        }
        for tap in g.taps {
            let (x, weight) = (from.add(tap.from), S::load(weights.add(tap.weight)));
            for (p, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(S::load(x.add(p * step)), weight, *sum);
            }
        }
        for (p, sum) in sums.into_iter().enumerate() {
            let sum = match g.clamp {
                Some([low, high]) => S::clamp(sum, low, high),
                None => sum,
            };
            match g.stream {
                true => S::stream(to.add(p * g.to.point), sum),
                false => S::store(to.add(p * g.to.point), sum),
            }
        }
    }
}

/// Adds what a row has to the gradient of the weights.
///
/// # Safety
/// The instruction set is there; sources that taps meet and the gradient may be read, sums written by nobody else.
#[inline(always)]
pub unsafe fn collect<S: Simd, const NV: usize>(c: &Collect) {
    for block in 0..c.blocks {
        for taps in c.taps.chunks(TAPS) {
            for v in 0..NV {
                // SAFETY: the caller's promise.
                unsafe {
                    match v {
                        0 => by_count!(taps.len(), collect_taps::<S, true>, (c, taps, block, v)),
                        _ => by_count!(taps.len(), collect_taps::<S, false>, (c, taps, block, v)),
                    }
                }
            }
        }
    }
}

/// `T` taps of one block, one vector of each; if `ASK`, lines are asked for ahead.
#[inline(always)]
unsafe fn collect_taps<S: Simd, const T: usize, const ASK: bool>(
    c: &Collect,
    taps: &[LaneTap],
    block: usize,
    v: usize,
) {
    // SAFETY: the caller promises that there are as many taps and that all may be used as `collect` says.
    unsafe {
        let lane = v * S::LANES;
        let from = c.from.first.add(block * c.from.block + lane);
        let mut gradient = c.gradient.first.add(block * c.gradient.block + lane);
        let to = c.sums.add(block * c.panel + lane);
        let (mut x, mut sums) = ([from; T], [S::zero(); T]);
        for (t, tap) in taps.iter().enumerate().take(T) {
            x[t] = from.add(tap.from);
            sums[t] = S::load(to.add(tap.weight));
        }
        let mut at = 0;
        for _ in 0..c.points {
            if ASK {
                S::prefetch(gradient.wrapping_add(AHEAD * BLOCK));
                S::prefetch(x[T - 1].wrapping_add(at + AHEAD * BLOCK));
            }
            let line = S::load(gradient);
            for t in 0..T {
                sums[t] = S::fma(S::load(x[t].add(at)), line, sums[t]);
            }
            at += c.from.point;
            gradient = gradient.wrapping_add(c.gradient.point);
        }
        for (tap, sum) in taps.iter().zip(sums) {
            S::store(to.add(tap.weight), sum);
        }
    }
}
