//! The transforms of Winograd's convolutions F(4x4, 3x3), F(2x2, 3x3), F(2x2, 5x5), and F(4x4, 3x3) of stride 2, on whole lines of 16
//! channels.
//!
//! A two-dimensional transform applies a one-dimensional one to columns, then to rows. Each of these is written out with
//! what even and odd terms share: as products with matrices of constants they were three times slower.
//!
//! With V = input(x), U = weight(w), D = gradient(dy): `y = output(sum of V U)`, `dw = weight_gradient(sum of V D)`,
//! `dx = input_gradient(sum of U D)`, window by window. Sums have as many planes as V and U, but for stride 2.

use super::simd::Simd;
use crate::BLOCK;

/// Rows and columns apart, in floats.
pub type Distances = (usize, usize);

/// A transform of one window of lines: from, distances, to, distances, and what is done to every result.
pub type Transform = unsafe fn(*const f32, Distances, *mut f32, Distances, &After);

/// A transform whose results are added to what is there.
pub type Adding = unsafe fn(*const f32, Distances, *mut f32, Distances);

/// What is done to every result of a transform.
pub struct After {
    /// A line that is added, or null.
    pub line: *const f32,
    /// Least and greatest result.
    pub clamp: Option<[f32; 2]>,
}

impl After {
    pub const NOTHING: After = After { line: std::ptr::null(), clamp: None };
}

/// The transforms of one size: tiles of `m²` points, windows of `r²` taps, `n = m + r - 1` (for stride 2, `n = 2m + 1`); sums have
/// `s = m + r - 1` points (for stride 2, `s = m + 1`).
pub struct Transforms {
    /// Of an input window, `n²` to `n²`.
    pub input: Transform,
    /// Of sums back to outputs, `s²` to `m²`.
    pub output: Transform,
    /// Of an output's gradient, `m²` to `s²`.
    pub gradient: Transform,
    /// Of weights, `r²` to `n²`.
    pub weight: Transform,
    /// Of sums back to the gradient of weights, `n²` to `r²`.
    pub weight_gradient: Transform,
    /// Of sums back to the gradient of an input window, `n²` to `n²`, and added to what is there: windows overlap.
    pub input_gradient: Transform,
    pub input_gradient_added: Adding,
}

// What follows is register arithmetic: its only condition is that the instruction set is there.

#[inline(always)]
unsafe fn ma<S: Simd>(k: f32, a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::fma(S::splat(k), a, b) }
}

#[inline(always)]
unsafe fn scale<S: Simd>(k: f32, a: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::mul(S::splat(k), a) }
}

/// Sum and difference.
#[inline(always)]
unsafe fn both<S: Simd>(even: S::V, odd: S::V) -> (S::V, S::V) {
    // SAFETY: as above.
    unsafe { (S::add(even, odd), S::sub(even, odd)) }
}

/// F(4, 3) on the points 0, 1, −1, 2, −2, infinity.
pub mod four {
    use super::*;

    #[inline(always)]
    pub unsafe fn input<S: Simd>(d: [S::V; 6]) -> [S::V; 6] {
        // SAFETY: registers only.
        unsafe {
            let (t1, t2) = both::<S>(ma::<S>(-4., d[2], d[4]), ma::<S>(-4., d[1], d[3]));
            let (t3, t4) = both::<S>(S::sub(d[4], d[2]), scale::<S>(2., S::sub(d[3], d[1])));
            [ma::<S>(4., d[0], ma::<S>(-5., d[2], d[4])), t1, t2, t3, t4, ma::<S>(4., d[1], ma::<S>(-5., d[3], d[5]))]
        }
    }

    #[inline(always)]
    pub unsafe fn output<S: Simd>(m: [S::V; 6]) -> [S::V; 4] {
        // SAFETY: registers only.
        unsafe {
            let (s1, d1) = both::<S>(m[1], m[2]);
            let (s2, d2) = both::<S>(m[3], m[4]);
            [S::add(m[0], S::add(s1, s2)), ma::<S>(2., d2, d1), ma::<S>(4., s2, s1), S::add(ma::<S>(8., d2, d1), m[5])]
        }
    }

    #[inline(always)]
    pub unsafe fn gradient<S: Simd>(y: [S::V; 4]) -> [S::V; 6] {
        // SAFETY: registers only.
        unsafe {
            let (t1, t2) = both::<S>(S::add(y[0], y[2]), S::add(y[1], y[3]));
            let (t3, t4) = both::<S>(ma::<S>(4., y[2], y[0]), ma::<S>(8., y[3], scale::<S>(2., y[1])));
            [y[0], t1, t2, t3, t4, y[3]]
        }
    }

    #[inline(always)]
    pub unsafe fn weight<S: Simd>(w: [S::V; 3]) -> [S::V; 6] {
        // SAFETY: registers only.
        unsafe {
            let (t1, t2) = both::<S>(scale::<S>(-1. / 6., S::add(w[0], w[2])), scale::<S>(-1. / 6., w[1]));
            let (t3, t4) = both::<S>(ma::<S>(1. / 24., w[0], scale::<S>(1. / 6., w[2])), scale::<S>(1. / 12., w[1]));
            [scale::<S>(0.25, w[0]), t1, t2, t3, t4, w[2]]
        }
    }

    #[inline(always)]
    pub unsafe fn weight_gradient<S: Simd>(m: [S::V; 6]) -> [S::V; 3] {
        // SAFETY: registers only.
        unsafe {
            let (s1, d1) = both::<S>(m[1], m[2]);
            let (s2, d2) = both::<S>(m[3], m[4]);
            let first = ma::<S>(0.25, m[0], ma::<S>(-1. / 6., s1, scale::<S>(1. / 24., s2)));
            [first, ma::<S>(-1. / 6., d1, scale::<S>(1. / 12., d2)), ma::<S>(1. / 6., S::sub(s2, s1), m[5])]
        }
    }

    #[inline(always)]
    pub unsafe fn input_gradient<S: Simd>(m: [S::V; 6]) -> [S::V; 6] {
        // SAFETY: registers only.
        unsafe {
            let (s1, d1) = both::<S>(m[1], m[2]);
            let (s2, d2) = both::<S>(m[3], m[4]);
            let (s1, d2) = (S::add(m[0], s1), scale::<S>(2., d2));
            [
                scale::<S>(4., m[0]),
                ma::<S>(4., S::sub(m[5], d1), S::sub(S::zero(), d2)),
                ma::<S>(-4., s1, S::sub(S::sub(S::zero(), m[0]), s2)),
                ma::<S>(-5., m[5], S::add(d1, d2)),
                S::add(s1, s2),
                m[5],
            ]
        }
    }
}

/// F(2, 3) on the points 0, 1, −1, infinity.
pub mod two {
    use super::*;

    #[inline(always)]
    pub unsafe fn input<S: Simd>(d: [S::V; 4]) -> [S::V; 4] {
        // SAFETY: registers only.
        unsafe { [S::sub(d[0], d[2]), S::add(d[1], d[2]), S::sub(d[2], d[1]), S::sub(d[1], d[3])] }
    }

    #[inline(always)]
    pub unsafe fn output<S: Simd>(m: [S::V; 4]) -> [S::V; 2] {
        // SAFETY: registers only.
        unsafe { [S::add(m[0], S::add(m[1], m[2])), S::sub(S::sub(m[1], m[2]), m[3])] }
    }

    #[inline(always)]
    pub unsafe fn gradient<S: Simd>(y: [S::V; 2]) -> [S::V; 4] {
        // SAFETY: registers only.
        unsafe { [y[0], S::add(y[0], y[1]), S::sub(y[0], y[1]), S::sub(S::zero(), y[1])] }
    }

    #[inline(always)]
    pub unsafe fn weight<S: Simd>(w: [S::V; 3]) -> [S::V; 4] {
        // SAFETY: registers only.
        unsafe {
            let (t1, t2) = both::<S>(scale::<S>(0.5, S::add(w[0], w[2])), scale::<S>(0.5, w[1]));
            [w[0], t1, t2, w[2]]
        }
    }

    #[inline(always)]
    pub unsafe fn weight_gradient<S: Simd>(m: [S::V; 4]) -> [S::V; 3] {
        // SAFETY: registers only.
        unsafe {
            let (s, d) = both::<S>(scale::<S>(0.5, m[1]), scale::<S>(0.5, m[2]));
            [S::add(m[0], s), d, S::add(s, m[3])]
        }
    }

    #[inline(always)]
    pub unsafe fn input_gradient<S: Simd>(m: [S::V; 4]) -> [S::V; 4] {
        // SAFETY: registers only.
        unsafe {
            let (s, d) = both::<S>(m[1], m[2]);
            [m[0], S::add(d, m[3]), S::sub(s, m[0]), S::sub(S::zero(), m[3])]
        }
    }
}

/// F(2, 5) on the points of F(4, 3): inputs and their gradients are transformed as there.
pub mod wide {
    use super::*;
    pub use four::{input, input_gradient};

    #[inline(always)]
    pub unsafe fn output<S: Simd>(m: [S::V; 6]) -> [S::V; 2] {
        // SAFETY: registers only.
        unsafe {
            let (s1, d1) = both::<S>(m[1], m[2]);
            let (s2, d2) = both::<S>(m[3], m[4]);
            [S::add(m[0], S::add(s1, s2)), S::add(ma::<S>(2., d2, d1), m[5])]
        }
    }

    #[inline(always)]
    pub unsafe fn gradient<S: Simd>(y: [S::V; 2]) -> [S::V; 6] {
        // SAFETY: registers only.
        unsafe {
            let (t1, t2) = both::<S>(y[0], y[1]);
            let (t3, t4) = both::<S>(y[0], scale::<S>(2., y[1]));
            [y[0], t1, t2, t3, t4, y[1]]
        }
    }

    #[inline(always)]
    pub unsafe fn weight<S: Simd>(w: [S::V; 5]) -> [S::V; 6] {
        // SAFETY: registers only.
        unsafe {
            let even = S::add(w[0], S::add(w[2], w[4]));
            let (t1, t2) = both::<S>(scale::<S>(-1. / 6., even), scale::<S>(-1. / 6., S::add(w[1], w[3])));
            let even = ma::<S>(1. / 24., w[0], ma::<S>(1. / 6., w[2], scale::<S>(2. / 3., w[4])));
            let (t3, t4) = both::<S>(even, ma::<S>(1. / 12., w[1], scale::<S>(1. / 3., w[3])));
            [scale::<S>(0.25, w[0]), t1, t2, t3, t4, w[4]]
        }
    }

    #[inline(always)]
    pub unsafe fn weight_gradient<S: Simd>(m: [S::V; 6]) -> [S::V; 5] {
        // SAFETY: registers only.
        unsafe {
            let (s1, d1) = both::<S>(m[1], m[2]);
            let (s2, d2) = both::<S>(m[3], m[4]);
            let (s1, d1) = (scale::<S>(-1. / 6., s1), scale::<S>(-1. / 6., d1));
            [
                ma::<S>(0.25, m[0], ma::<S>(1. / 24., s2, s1)),
                ma::<S>(1. / 12., d2, d1),
                ma::<S>(1. / 6., s2, s1),
                ma::<S>(1. / 3., d2, d1),
                S::add(ma::<S>(2. / 3., s2, s1), m[5]),
            ]
        }
    }
}

/// F(4, 3) of stride 2: a convolution of every other input, from the first on, with the outer two taps, and one of those between with the
/// middle tap. The first is F(4, 2) on the points 0, 1, −1, 2, infinity, the second F(4, 1) on all of these but 2; what both have at a
/// point is added before it is brought back. Nine inputs become five values of the first and four of the second.
pub mod stepped {
    use super::*;

    #[inline(always)]
    pub unsafe fn input<S: Simd>(d: [S::V; 9]) -> [S::V; 9] {
        // SAFETY: registers only.
        unsafe {
            let rise = S::sub(d[6], d[2]);
            let (t1, t2) = both::<S>(d[5], d[3]);
            [
                ma::<S>(2., S::sub(d[0], d[4]), rise),
                ma::<S>(-2., d[2], S::sub(d[6], d[4])),
                ma::<S>(-3., d[4], ma::<S>(2., d[2], d[6])),
                rise,
                ma::<S>(-2., rise, S::sub(d[8], d[4])),
                S::sub(d[1], d[5]),
                t1,
                t2,
                S::sub(d[7], d[3]),
            ]
        }
    }

    #[inline(always)]
    pub unsafe fn output<S: Simd>(m: [S::V; 5]) -> [S::V; 4] {
        // SAFETY: registers only.
        unsafe {
            let (s, d) = both::<S>(m[1], m[2]);
            [
                S::add(m[0], S::add(s, m[3])),
                ma::<S>(2., m[3], d),
                ma::<S>(4., m[3], s),
                S::add(ma::<S>(8., m[3], d), m[4]),
            ]
        }
    }

    #[inline(always)]
    pub unsafe fn gradient<S: Simd>(y: [S::V; 4]) -> [S::V; 5] {
        // SAFETY: registers only.
        unsafe {
            let (t1, t2) = both::<S>(S::add(y[0], y[2]), S::add(y[1], y[3]));
            let t3 = S::add(ma::<S>(4., y[2], y[0]), ma::<S>(8., y[3], scale::<S>(2., y[1])));
            [y[0], t1, t2, t3, y[3]]
        }
    }

    #[inline(always)]
    pub unsafe fn weight<S: Simd>(w: [S::V; 3]) -> [S::V; 9] {
        // SAFETY: registers only.
        unsafe {
            let half = scale::<S>(0.5, w[1]);
            [
                scale::<S>(0.5, w[0]),
                scale::<S>(-0.5, S::add(w[0], w[2])),
                scale::<S>(1. / 6., S::sub(w[2], w[0])),
                ma::<S>(1. / 6., w[0], scale::<S>(1. / 3., w[2])),
                w[2],
                w[1],
                half,
                half,
                w[1],
            ]
        }
    }

    #[inline(always)]
    pub unsafe fn weight_gradient<S: Simd>(m: [S::V; 9]) -> [S::V; 3] {
        // SAFETY: registers only.
        unsafe {
            [
                ma::<S>(0.5, S::sub(m[0], m[1]), scale::<S>(1. / 6., S::sub(m[3], m[2]))),
                ma::<S>(0.5, S::add(m[6], m[7]), S::add(m[5], m[8])),
                ma::<S>(-0.5, m[1], ma::<S>(1. / 6., m[2], ma::<S>(1. / 3., m[3], m[4]))),
            ]
        }
    }

    #[inline(always)]
    pub unsafe fn input_gradient<S: Simd>(m: [S::V; 9]) -> [S::V; 9] {
        // SAFETY: registers only.
        unsafe {
            let (s, d) = both::<S>(m[1], m[2]);
            let (t1, t2) = both::<S>(m[6], m[7]);
            [
                scale::<S>(2., m[0]),
                m[5],
                S::sub(ma::<S>(2., S::sub(m[4], d), S::sub(S::zero(), m[0])), m[3]),
                S::sub(t2, m[8]),
                S::sub(ma::<S>(-2., S::add(m[0], m[2]), S::sub(S::zero(), s)), m[4]),
                S::sub(t1, m[5]),
                ma::<S>(-2., m[4], S::add(S::add(m[0], m[3]), s)),
                m[8],
                m[4],
            ]
        }
    }
}

/// `f` on columns, then on rows: `C x C` lines to `R x R` lines, and what comes after. What that is is asked once: within the loops it
/// made steps of resnet18-cifar some 5 % slower.
///
/// # Safety
/// The instruction set is there, and all these lines may be read and written.
#[inline(always)]
pub unsafe fn two_sided<S: Simd, const C: usize, const R: usize>(
    f: impl Fn([S::V; C]) -> [S::V; R],
    source: *const f32,
    from: Distances,
    target: *mut f32,
    to: Distances,
    after: &After,
) {
    // SAFETY: the caller's promise; a line has 16 floats.
    unsafe {
        let add = |value, v, _: *mut f32| S::add(value, S::load(after.line.add(v)));
        match after {
            After { line, clamp: None } if line.is_null() => {
                sides::<S, C, R>(f, source, from, target, to, |value, _, _| value)
            }
            After { clamp: None, .. } => sides::<S, C, R>(f, source, from, target, to, add),
            &After { line, clamp: Some([low, high]) } => {
                sides::<S, C, R>(f, source, from, target, to, |value, v, held| {
                    S::clamp(if line.is_null() { value } else { add(value, v, held) }, low, high)
                })
            }
        }
    }
}

/// The same, added to what is there.
///
/// # Safety
/// The instruction set is there, and all these lines may be read and written.
#[inline(always)]
pub unsafe fn two_sided_added<S: Simd, const C: usize, const R: usize>(
    f: impl Fn([S::V; C]) -> [S::V; R],
    source: *const f32,
    from: Distances,
    target: *mut f32,
    to: Distances,
) {
    // SAFETY: the caller's promise.
    unsafe { sides::<S, C, R>(f, source, from, target, to, |value, _, held| S::add(S::load(held), value)) }
}

/// The same; `after` sees each vector of a result, its first lane, and where it will be.
///
/// # Safety
/// The instruction set is there, and all these lines may be read and written.
#[inline(always)]
unsafe fn sides<S: Simd, const C: usize, const R: usize>(
    f: impl Fn([S::V; C]) -> [S::V; R],
    source: *const f32,
    from: Distances,
    target: *mut f32,
    to: Distances,
    after: impl Fn(S::V, usize, *mut f32) -> S::V,
) {
    for v in (0..BLOCK).step_by(S::LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [[S::zero(); C]; R];
            for j in 0..C {
                let mut column = [S::zero(); C];
                for (i, value) in column.iter_mut().enumerate() {
                    *value = S::load(source.add(i * from.0 + j * from.1 + v));
                }
                for (row, value) in columns.iter_mut().zip(f(column)) {
                    row[j] = value;
                }
            }
            for (i, row) in columns.into_iter().enumerate() {
                for (j, value) in f(row).into_iter().enumerate() {
                    let held = target.add(i * to.0 + j * to.1 + v);
                    S::store(held, after(value, v, held));
                }
            }
        }
    }
}
