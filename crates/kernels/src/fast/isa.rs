//! Instruction sets: every kernel instantiated once for each, one table chosen at run time.
//!
//! Always true
//! - A table of an instruction set is only handed out where the processor has it: who holds a [`Isa`] may call it.

use super::lane_rows::{self, Collect, Gather};
use super::lines::{Line, Store};
use super::norm::Slope;
use super::norm_rows::{self, Bits, NormRow, NormRows, Spread};
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Portable, Simd};
use super::sweep::{self, Leaf, Start, Sweep};
use super::transforms::{self, After, Distances, Transforms};
use crate::BLOCK;

/// The kernels of one instruction set.
pub struct Isa {
    /// Blocks of columns that sweeps want at once; more than [`MOST_BLOCKS`] never.
    pub blocks: usize,
    sweep_unit: unsafe fn(&Sweep),
    sweep_strided: unsafe fn(&Sweep),
    sweep_narrow: unsafe fn(&Sweep),
    sweep_folded: unsafe fn(&Sweep, &[Leaf]),
    gather: unsafe fn(&Gather),
    collect: unsafe fn(&Collect),
    add: unsafe fn(*mut f32, *const f32, usize),
    sum: unsafe fn(*mut f32, *const f32, usize),
    transpose: unsafe fn(*const f32, *mut f32),
    fma_loop: unsafe fn(usize) -> f32,
    pub norm: NormRows,
    /// Of F(4x4, 3x3), F(2x2, 3x3) and F(2x2, 5x5).
    pub four: Transforms,
    pub two: Transforms,
    pub wide: Transforms,
    pub stepped: Transforms,
}

impl Isa {
    /// Runs the matrix kernel.
    ///
    /// # Safety
    /// All of `s.reach()` may be read, and that of C written by nobody else.
    #[inline]
    pub unsafe fn sweep(&self, s: &Sweep) {
        // SAFETY: this table exists because the processor has its instructions; the rest is the caller's promise.
        unsafe {
            match (s.ak, s.bk) {
                _ if s.narrow => (self.sweep_narrow)(s),
                (1, BLOCK) => (self.sweep_unit)(s),
                _ => (self.sweep_strided)(s),
            }
        }
    }

    /// Runs the matrix kernel from zero, leaf by leaf, and folds.
    ///
    /// # Safety
    /// As for [`Isa::sweep`].
    pub unsafe fn sweep_folded(&self, s: &Sweep, leaves: &[Leaf]) {
        assert!(s.start == Start::Zero, "bug: a folded sweep of another form");
        let level = leaves.iter().try_fold(0usize, |level, leaf| {
            assert!(leaf.steps.end <= s.steps.len() && level < sweep::LEVELS, "bug: leaves of another sweep");
            Some(level.checked_sub(leaf.adds)? + 1)
        });
        assert!(level.is_some_and(|level| level <= 1), "bug: sums that are never added");
        // SAFETY: this table exists because the processor has its instructions; leaves are as checked above, the rest is the
        // caller's promise.
        unsafe { (self.sweep_folded)(s, leaves) }
    }

    /// Computes a row of targets of a depthwise convolution.
    ///
    /// # Safety
    /// Sources that taps meet and weights may be read, targets written by nobody else.
    pub unsafe fn gather(&self, row: &Gather) {
        // SAFETY: this table exists because the processor has its instructions; the rest is the caller's promise.
        unsafe { (self.gather)(row) }
    }

    /// Adds what a row has to the gradient of a depthwise convolution's weights.
    ///
    /// # Safety
    /// Sources that taps meet and the gradient may be read, sums written by nobody else.
    pub unsafe fn collect(&self, row: &Collect) {
        // SAFETY: as above.
        unsafe { (self.collect)(row) }
    }

    /// A loop of nothing but fused multiply-adds; says how many operations it did.
    pub fn fma_loop(&self, rounds: usize) -> f32 {
        // SAFETY: it touches no memory of others.
        unsafe { (self.fma_loop)(rounds) }
    }

    /// Adds `from` to `into`, whole lines of 16.
    pub fn add(&self, into: &mut [f32], from: &[f32]) {
        assert!(into.len() == from.len() && into.len().is_multiple_of(BLOCK), "bug: sums of different sizes");
        // SAFETY: both are as long as said.
        unsafe { (self.add)(into.as_mut_ptr(), from.as_ptr(), into.len()) }
    }

    /// Adds the lines of `lines` to the one line `into`, one after the other.
    pub fn sum(&self, into: &mut [f32; BLOCK], lines: &[f32]) {
        assert!(lines.len().is_multiple_of(BLOCK), "bug: part of a line");
        // SAFETY: both are as long as said.
        unsafe { (self.sum)(into.as_mut_ptr(), lines.as_ptr(), lines.len()) }
    }
}

impl Isa {
    /// Lines of up to 16 channels of 16 filters into 16 lines of 16 channels, filled up with zeros.
    pub fn transpose(&self, from: &[f32], to: &mut [f32]) {
        assert!(from.len() <= BLOCK * BLOCK && to.len() == BLOCK * BLOCK, "bug: more than a pair of blocks");
        if from.len() == to.len() {
            // SAFETY: both are 256 floats.
            return unsafe { (self.transpose)(from.as_ptr(), to.as_mut_ptr()) };
        }
        for (filter, to) in to.chunks_exact_mut(BLOCK).enumerate() {
            for (channel, to) in to.iter_mut().enumerate() {
                *to = from.get(channel * BLOCK + filter).copied().unwrap_or(0.0);
            }
        }
    }
}

/// Blocks of columns that sweeps of any instruction set want at once: scratch has room for them on every computer, so that a program
/// needs the same memory everywhere.
pub const MOST_BLOCKS: usize = 4;

/// Independent sums: more than the latency of a fused multiply-add times those that start in one cycle.
const CHAINS: usize = 12;

#[inline(always)]
unsafe fn fma_loop<S: Simd>(rounds: usize) -> f32 {
    // SAFETY: registers only, but for the last line, which is as long as said.
    unsafe {
        let mut sums = [S::splat(1.0); CHAINS];
        let (x, y) = (S::splat(0.999_999), S::splat(1e-7));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = S::fma(*sum, x, y);
            }
        }
        let all = sums.into_iter().reduce(|a, b| S::add(a, b)).unwrap_or(x);
        let mut line = [0f32; BLOCK];
        S::store(line.as_mut_ptr(), all);
        std::hint::black_box(line.iter().sum::<f32>());
        (2 * rounds * CHAINS * S::LANES) as f32
    }
}

#[inline(always)]
unsafe fn add<S: Simd>(into: *mut f32, from: *const f32, len: usize) {
    for i in (0..len).step_by(S::LANES) {
        // SAFETY: the caller promises `len` floats, a multiple of 16, in both.
        unsafe { S::store(into.add(i), S::add(S::load(into.add(i)), S::load(from.add(i)))) }
    }
}

#[inline(always)]
unsafe fn sum<S: Simd, const NV: usize>(into: *mut f32, lines: *const f32, len: usize) {
    // SAFETY: the caller promises 16 floats in `into` and `len`, a multiple of 16, in `lines`.
    unsafe {
        let mut sums = [S::zero(); NV];
        for (v, sum) in sums.iter_mut().enumerate() {
            *sum = S::load(into.add(v * S::LANES));
        }
        for i in (0..len).step_by(BLOCK) {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, S::load(lines.add(i + v * S::LANES)));
            }
        }
        for (v, sum) in sums.iter().enumerate() {
            S::store(into.add(v * S::LANES), *sum);
        }
    }
}

/// What a pass writes above this leaves the last-level cache before anybody reads it: then it is written past the caches, which
/// saves reading what it replaces. A third of a cache of 32 MiB, since cores of others share it: mobilenet-v2's step went from 0.793
/// to 0.761 s, others stayed as they were. Tests have small tensors.
pub const STREAM_BYTES: usize = if cfg!(test) { 16 << 10 } else { 12 << 20 };

/// What was streamed before this is seen by whoever sees what is written after it.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has it.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}

/// A hint that `p` will be read soon; any address will do.
#[inline(always)]
pub fn prefetch(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has it, and it reads nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p as *const i8)
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

macro_rules! instantiate {
    // `half` are the vectors of a narrow sweep: those that half a line fills.
    ($module:ident, $simd:ty, $half:ty $(, $feature:literal)?) => {
        mod $module {
            // Wrappers: each passes on its caller's promise.
            #![allow(clippy::undocumented_unsafe_blocks)]
            use super::*;
            const NV: usize = BLOCK / <$simd>::LANES;
            $(#[target_feature(enable = $feature)])?
            unsafe fn sweep_unit(s: &Sweep) {
                unsafe { sweep::blocks::<$simd, NV, { sweep::UNIT }>(s) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn sweep_strided(s: &Sweep) {
                unsafe { sweep::blocks::<$simd, NV, { sweep::STRIDED }>(s) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn sweep_narrow(s: &Sweep) {
                unsafe {
                    match s.ak == 1 && s.bk == BLOCK {
                        true => sweep::tall_rows::<$half, { BLOCK / 2 / <$half>::LANES }, { sweep::UNIT }>(s),
                        false => sweep::tall_rows::<$half, { BLOCK / 2 / <$half>::LANES }, { sweep::STRIDED }>(s),
                    }
                }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn sweep_folded(s: &Sweep, leaves: &[Leaf]) {
                unsafe { sweep::folded::<$simd, NV>(s, leaves) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn gather(row: &Gather) {
                unsafe { lane_rows::gather::<$simd, NV>(row) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn collect(row: &Collect) {
                unsafe { lane_rows::collect::<$simd, NV>(row) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn add(into: *mut f32, from: *const f32, len: usize) {
                unsafe { super::add::<$simd>(into, from, len) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn sum(into: *mut f32, lines: *const f32, len: usize) {
                unsafe { super::sum::<$simd, NV>(into, lines, len) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn transpose(from: *const f32, to: *mut f32) {
                unsafe { <$simd as Simd>::transpose(from, to) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn fma_loop(rounds: usize) -> f32 {
                unsafe { super::fma_loop::<$simd>(rounds) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn norm_forward(
                row: &NormRow,
                added: Option<&[Line]>,
                passed: Option<&mut [Bits]>,
                y: &mut [Line],
                store: Store,
            ) {
                unsafe { norm_rows::forward::<$simd, NV>(row, added, passed, y, store) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn norm_sums(
                row: &NormRow,
                passed: Option<&[Bits]>,
                dy: &[Line],
                sums: &mut [[f64; BLOCK]; 2],
            ) {
                unsafe { norm_rows::gradient_sums::<$simd, NV>(row, passed, dy, sums) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn norm_gradient(
                row: &NormRow,
                passed: Option<&[Bits]>,
                dy: &[Line],
                slope: Option<&Slope>,
                dx: &mut [Line],
                store: Store,
            ) {
                unsafe { norm_rows::input_gradient::<$simd, NV>(row, passed, dy, slope, dx, store) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn norm_moments(
                lines: &Spread<*const f32>,
                to: Option<&Spread<*mut f32>>,
                sums: &mut [[f64; BLOCK]; 2],
            ) {
                unsafe { norm_rows::moments::<$simd, NV>(lines, to, sums) }
            }
            instantiate!(@transforms four, $simd, ($($feature)?));
            instantiate!(@transforms two, $simd, ($($feature)?));
            instantiate!(@transforms wide, $simd, ($($feature)?));
            instantiate!(@transforms stepped, $simd, ($($feature)?));
            const _: () = assert!(<$simd as Simd>::BLOCKS <= MOST_BLOCKS);
            pub static ISA: Isa = Isa {
                blocks: <$simd as Simd>::BLOCKS,
                sweep_unit,
                sweep_strided,
                sweep_narrow,
                sweep_folded,
                gather,
                collect,
                add,
                sum,
                transpose,
                fma_loop,
                norm: NormRows {
                    forward: norm_forward,
                    gradient_sums: norm_sums,
                    input_gradient: norm_gradient,
                    moments: norm_moments,
                },
                four: four::ALL,
                two: two::ALL,
                wide: wide::ALL,
                stepped: stepped::ALL,
            };
        }
    };
    (@transforms $size:ident, $simd:ty, $feature:tt) => {
        mod $size {
            use super::*;
            instantiate!(@one $size, input, $simd, $feature);
            instantiate!(@one $size, output, $simd, $feature);
            instantiate!(@one $size, gradient, $simd, $feature);
            instantiate!(@one $size, weight, $simd, $feature);
            instantiate!(@one $size, weight_gradient, $simd, $feature);
            instantiate!(@one $size, input_gradient, $simd, $feature);
            instantiate!(@adding $size, input_gradient, input_gradient_added, $simd, $feature);
            pub const ALL: Transforms =
                Transforms { input, output, gradient, weight, weight_gradient, input_gradient, input_gradient_added };
        }
    };
    (@one $size:ident, $name:ident, $simd:ty, ($($feature:literal)?)) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $name(source: *const f32, from: Distances, target: *mut f32, to: Distances, after: &After) {
            let f = |x| unsafe { transforms::$size::$name::<$simd>(x) };
            unsafe { transforms::two_sided::<$simd, _, _>(f, source, from, target, to, after) }
        }
    };
    (@adding $size:ident, $name:ident, $added:ident, $simd:ty, ($($feature:literal)?)) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $added(source: *const f32, from: Distances, target: *mut f32, to: Distances) {
            let f = |x| unsafe { transforms::$size::$name::<$simd>(x) };
            unsafe { transforms::two_sided_added::<$simd, _, _>(f, source, from, target, to) }
        }
    };
}

instantiate!(portable, Portable, Portable);
#[cfg(test)]
instantiate!(together, Portable<MOST_BLOCKS>, Portable);
#[cfg(target_arch = "x86_64")]
instantiate!(avx2, Avx2, Avx2, "avx2,fma");
#[cfg(target_arch = "x86_64")]
instantiate!(avx512, Avx512, Avx2, "avx512f,avx2,fma");

/// Instruction sets, each with all that those before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub enum Set {
    Portable,
    /// Several blocks at a time: what AVX-512 does, on any processor.
    #[cfg(test)]
    Together,
    /// With fused multiply-add.
    Avx2,
    Avx512,
}

/// The best that this processor has; in tests, no more than they allow.
pub fn set() -> Set {
    #[cfg(test)]
    return best().min(MOST.get());
    #[cfg(not(test))]
    best()
}

fn best() -> Set {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        return if std::is_x86_feature_detected!("avx512f") { Set::Avx512 } else { Set::Avx2 };
    }
    Set::Portable
}

/// The kernels of the best set.
pub fn isa() -> &'static Isa {
    match set() {
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => &avx512::ISA,
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => &avx2::ISA,
        #[cfg(test)]
        Set::Together => &together::ISA,
        _ => &portable::ISA,
    }
}

#[cfg(test)]
thread_local! {
    static MOST: std::cell::Cell<Set> = const { std::cell::Cell::new(Set::Avx512) };
}

/// Runs `f` with no more than `most`, whatever the processor has.
#[cfg(test)]
pub fn at_most<T>(most: Set, f: impl FnOnce() -> T) -> T {
    let before = MOST.replace(most.min(MOST.get()));
    let result = f();
    MOST.set(before);
    result
}

/// Runs `f` with the portable kernels.
#[cfg(test)]
pub fn portably<T>(f: impl FnOnce() -> T) -> T {
    at_most(Set::Portable, f)
}
