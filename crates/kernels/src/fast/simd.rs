//! The vector vocabulary of the kernels.
//!
//! Kernels are written once, generic over [`Simd`], and instantiated inside `#[target_feature]` functions (`isa.rs`); there
//! every method is one instruction.
//!
//! Always true
//! - `fma` rounds once, on every instruction set: results agree to the bit whatever the vector width.

/// Vectors of some width and what kernels do with them.
///
/// # Safety
/// Every method may be called only where the instruction set is available, and `load`, `store` only on `LANES` floats
/// that may be read or written.
pub trait Simd: Copy + 'static {
    const LANES: usize;
    /// Blocks of 16 columns that a register tile of a sweep has at most.
    const BLOCKS: usize = 1;
    type V: Copy;
    /// As many doubles.
    type D: Copy;
    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// As `store`, to a multiple of the vector's size, past the caches: `isa::fence` must follow before others may read it.
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: Self::V) {
        // SAFETY: the caller promises as much as for `store`, and more.
        unsafe { Self::store(p, v) }
    }
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// What is below `low` becomes it, what is above `high` that; NaN stays.
    unsafe fn clamp(v: Self::V, low: f32, high: f32) -> Self::V;
    /// `x` where `v` is above `low` and below `high`, elsewhere zero.
    unsafe fn within(v: Self::V, low: f32, high: f32, x: Self::V) -> Self::V;
    /// A bit for every float, the first lowest: whether it is above `low` and below `high`.
    unsafe fn inside(v: Self::V, low: f32, high: f32) -> u32;
    /// `x` where its bit is set, elsewhere zero.
    unsafe fn keep(bits: u32, x: Self::V) -> Self::V;
    /// In double precision, exact.
    unsafe fn widen(v: Self::V) -> Self::D;
    unsafe fn load_doubles(p: *const f64) -> Self::D;
    unsafe fn store_doubles(p: *mut f64, d: Self::D);
    unsafe fn add_doubles(a: Self::D, b: Self::D) -> Self::D;
    unsafe fn mul_doubles(a: Self::D, b: Self::D) -> Self::D;
    /// 16 lines of 16 floats into the same with lines and columns swapped; both are 256 floats.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, to: *mut f32) {
        for i in 0..16 {
            for j in 0..16 {
                // SAFETY: the caller promises 256 floats in both.
                unsafe { *to.add(16 * i + j) = *from.add(16 * j + i) }
            }
        }
    }
    /// A hint that `p` will be read soon; any address will do.
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        let _ = p;
    }
}

/// Plain arrays, left to the compiler. Where the target has no fused multiply-add at compile time, `mul_add` is a call of the
/// C library's: slow, and the same bits. Tests also take several blocks at a time, as wider sets do.
#[derive(Clone, Copy)]
pub struct Portable<const BLOCKS: usize = 1>;

#[inline(always)]
fn map2(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl<const BLOCKS: usize> Simd for Portable<BLOCKS> {
    const LANES: usize = 4;
    const BLOCKS: usize = BLOCKS;
    type V = [f32; 4];
    type D = [f64; 4];
    #[inline(always)]
    unsafe fn zero() -> Self::V {
        [0.0; 4]
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller promises four readable floats.
        unsafe { (p as *const [f32; 4]).read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller promises four writable floats.
        unsafe { (p as *mut [f32; 4]).write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| x - y)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| x * y)
    }
    #[inline(always)]
    unsafe fn clamp(v: Self::V, low: f32, high: f32) -> Self::V {
        v.map(|x| {
            let x = if x < low { low } else { x };
            if x > high { high } else { x }
        })
    }
    #[inline(always)]
    unsafe fn within(v: Self::V, low: f32, high: f32, x: Self::V) -> Self::V {
        map2(v, x, |v, x| if v > low && v < high { x } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn inside(v: Self::V, low: f32, high: f32) -> u32 {
        let bit = |i: usize| u32::from(v[i] > low && v[i] < high) << i;
        bit(0) | bit(1) | bit(2) | bit(3)
    }
    #[inline(always)]
    unsafe fn keep(bits: u32, x: Self::V) -> Self::V {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { x[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn widen(v: Self::V) -> Self::D {
        v.map(f64::from)
    }
    #[inline(always)]
    unsafe fn load_doubles(p: *const f64) -> Self::D {
        // SAFETY: the caller promises four readable doubles.
        unsafe { (p as *const [f64; 4]).read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_doubles(p: *mut f64, d: Self::D) {
        // SAFETY: the caller promises four writable doubles.
        unsafe { (p as *mut [f64; 4]).write_unaligned(d) }
    }
    #[inline(always)]
    unsafe fn add_doubles(a: Self::D, b: Self::D) -> Self::D {
        [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
    }
    #[inline(always)]
    unsafe fn mul_doubles(a: Self::D, b: Self::D) -> Self::D {
        [a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]]
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    // Each block below is one instruction on arguments whose validity the trait's caller promises.
    #![allow(clippy::undocumented_unsafe_blocks)]

    use super::Simd;
    use std::arch::x86_64::*;

    /// Eight floats; needs AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub struct Avx2;

    impl Simd for Avx2 {
        const LANES: usize = 8;
        type V = __m256;
        type D = [__m256d; 2];
        #[inline(always)]
        unsafe fn zero() -> __m256 {
            unsafe { _mm256_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> __m256 {
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m256 {
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m256) {
            unsafe { _mm256_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn stream(p: *mut f32, v: __m256) {
            unsafe { _mm256_stream_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn clamp(v: __m256, low: f32, high: f32) -> __m256 {
            // The second operand is the result where either is NaN.
            unsafe { _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), v)) }
        }
        #[inline(always)]
        unsafe fn within(v: __m256, low: f32, high: f32, x: __m256) -> __m256 {
            unsafe {
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(v, _mm256_set1_ps(low));
                let below = _mm256_cmp_ps::<_CMP_LT_OQ>(v, _mm256_set1_ps(high));
                _mm256_and_ps(_mm256_and_ps(above, below), x)
            }
        }
        #[inline(always)]
        unsafe fn inside(v: __m256, low: f32, high: f32) -> u32 {
            unsafe {
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(v, _mm256_set1_ps(low));
                let below = _mm256_cmp_ps::<_CMP_LT_OQ>(v, _mm256_set1_ps(high));
                _mm256_movemask_ps(_mm256_and_ps(above, below)) as u32
            }
        }
        #[inline(always)]
        unsafe fn keep(bits: u32, x: __m256) -> __m256 {
            unsafe {
                let own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
                let set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), own), own);
                _mm256_and_ps(_mm256_castsi256_ps(set), x)
            }
        }
        #[inline(always)]
        unsafe fn widen(v: __m256) -> [__m256d; 2] {
            unsafe { [_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(v))] }
        }
        #[inline(always)]
        unsafe fn load_doubles(p: *const f64) -> [__m256d; 2] {
            unsafe { [_mm256_loadu_pd(p), _mm256_loadu_pd(p.add(4))] }
        }
        #[inline(always)]
        unsafe fn store_doubles(p: *mut f64, d: [__m256d; 2]) {
            unsafe {
                _mm256_storeu_pd(p, d[0]);
                _mm256_storeu_pd(p.add(4), d[1]);
            }
        }
        #[inline(always)]
        unsafe fn add_doubles(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] {
            unsafe { [_mm256_add_pd(a[0], b[0]), _mm256_add_pd(a[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn mul_doubles(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] {
            unsafe { [_mm256_mul_pd(a[0], b[0]), _mm256_mul_pd(a[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, to: *mut f32) {
            for (i, j) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
                unsafe { transpose_eight(from.add(16 * i + j), to.add(16 * j + i)) }
            }
        }
        #[inline(always)]
        unsafe fn prefetch(p: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p as *const i8) }
        }
    }

    /// Sixteen floats; needs AVX-512F.
    #[derive(Clone, Copy)]
    pub struct Avx512;

    impl Simd for Avx512 {
        const LANES: usize = 16;
        const BLOCKS: usize = 4;
        type V = __m512;
        type D = [__m512d; 2];
        #[inline(always)]
        unsafe fn zero() -> __m512 {
            unsafe { _mm512_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> __m512 {
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m512 {
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m512) {
            unsafe { _mm512_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn stream(p: *mut f32, v: __m512) {
            unsafe { _mm512_stream_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn clamp(v: __m512, low: f32, high: f32) -> __m512 {
            // The second operand is the result where either is NaN.
            unsafe { _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), v)) }
        }
        #[inline(always)]
        unsafe fn within(v: __m512, low: f32, high: f32, x: __m512) -> __m512 {
            unsafe {
                let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(v, _mm512_set1_ps(low));
                let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(v, _mm512_set1_ps(high));
                _mm512_maskz_mov_ps(above & below, x)
            }
        }
        #[inline(always)]
        unsafe fn inside(v: __m512, low: f32, high: f32) -> u32 {
            unsafe {
                let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(v, _mm512_set1_ps(low));
                let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(v, _mm512_set1_ps(high));
                (above & below) as u32
            }
        }
        #[inline(always)]
        unsafe fn keep(bits: u32, x: __m512) -> __m512 {
            unsafe { _mm512_maskz_mov_ps(bits as u16, x) }
        }
        #[inline(always)]
        unsafe fn widen(v: __m512) -> [__m512d; 2] {
            unsafe {
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
                [_mm512_cvtps_pd(_mm512_castps512_ps256(v)), _mm512_cvtps_pd(high)]
            }
        }
        #[inline(always)]
        unsafe fn load_doubles(p: *const f64) -> [__m512d; 2] {
            unsafe { [_mm512_loadu_pd(p), _mm512_loadu_pd(p.add(8))] }
        }
        #[inline(always)]
        unsafe fn store_doubles(p: *mut f64, d: [__m512d; 2]) {
            unsafe {
                _mm512_storeu_pd(p, d[0]);
                _mm512_storeu_pd(p.add(8), d[1]);
            }
        }
        #[inline(always)]
        unsafe fn add_doubles(a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
            unsafe { [_mm512_add_pd(a[0], b[0]), _mm512_add_pd(a[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn mul_doubles(a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
            unsafe { [_mm512_mul_pd(a[0], b[0]), _mm512_mul_pd(a[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, to: *mut f32) {
            unsafe { Avx2::transpose(from, to) }
        }
        #[inline(always)]
        unsafe fn prefetch(p: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p as *const i8) }
        }
    }

    /// 8 lines of 8 floats, lines 16 apart, with lines and columns swapped.
    #[inline(always)]
    unsafe fn transpose_eight(from: *const f32, to: *mut f32) {
        unsafe {
            // Halves of lines i and i + 4 side by side: then only pairs and quads within halves need to change places.
            let mut x = [_mm256_setzero_ps(); 8];
            for i in 0..4 {
                let [low, high] = [16 * i, 16 * (i + 4)].map(|line| from.add(line));
                x[i] = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high));
                x[i + 4] = _mm256_insertf128_ps::<1>(
                    _mm256_castps128_ps256(_mm_loadu_ps(low.add(4))),
                    _mm_loadu_ps(high.add(4)),
                );
            }
            for half in [0, 4] {
                let (a, b) = (_mm256_unpacklo_ps(x[half], x[half + 1]), _mm256_unpacklo_ps(x[half + 2], x[half + 3]));
                let (c, d) = (_mm256_unpackhi_ps(x[half], x[half + 1]), _mm256_unpackhi_ps(x[half + 2], x[half + 3]));
                let to = to.add(16 * half);
                _mm256_storeu_ps(to, _mm256_shuffle_ps::<0x44>(a, b));
                _mm256_storeu_ps(to.add(16), _mm256_shuffle_ps::<0xee>(a, b));
                _mm256_storeu_ps(to.add(32), _mm256_shuffle_ps::<0x44>(c, d));
                _mm256_storeu_ps(to.add(48), _mm256_shuffle_ps::<0xee>(c, d));
            }
        }
    }
}
