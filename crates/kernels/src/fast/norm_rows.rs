//! Rows of normalisations whose activation is a clamp or none: what `norm.rs` does point by point, by vectors.
//!
//! Always true
//! - Numbers are those of the loops in `norm.rs`, which serve every other activation: same operations, in the same order, none
//!   fused; only a zero may have another sign. Left to the compiler these took three times as long.

use super::isa::isa;
use super::lines::{Line, Store};
use super::norm::{Norm, Slope};
use super::simd::Simd;
use crate::BLOCK;
use convoy_net::layers::Activation;

/// Points ahead of which a gradient is asked for.
const AHEAD: usize = 32;

/// A row of one block: what is normalised, and how.
#[derive(Clone, Copy)]
pub struct NormRow<'a> {
    pub x: &'a [Line],
    pub norm: &'a Norm,
    /// Least and greatest output.
    pub clamp: Option<[f32; 2]>,
}

/// A bit for each float of a line, the first lowest: whether a clamp let it pass. What was added to what is normalised need not be read
/// again to know it.
pub type Bits = u16;

/// The kernels of one instruction set.
pub struct NormRows {
    pub forward: Forward,
    pub gradient_sums: GradientSums,
    pub input_gradient: InputGradient,
    pub moments: Moments,
}

/// What is added and what passes, then the output.
type Forward = unsafe fn(&NormRow, Option<&[Line]>, Option<&mut [Bits]>, &mut [Line], Store);

/// What passed and the output's gradient, then the sums.
type GradientSums = unsafe fn(&NormRow, Option<&[Bits]>, &[Line], &mut [[f64; BLOCK]; 2]);

/// What passed and the output's gradient, then the input's.
type InputGradient = unsafe fn(&NormRow, Option<&[Bits]>, &[Line], Option<&Slope>, &mut [Line], Store);

/// Adds lines to sums, and moves them.
type Moments = unsafe fn(&Spread<*const f32>, Option<&Spread<*mut f32>>, &mut [[f64; BLOCK]; 2]);

/// Lines here and there: by their offsets from a place.
#[derive(Clone, Copy)]
pub struct Spread<'a, P> {
    pub from: P,
    pub offsets: &'a [u32],
}

/// How rows with a given activation are normalised.
#[derive(Clone, Copy)]
pub struct ByVectors {
    rows: &'static NormRows,
    clamp: Option<[f32; 2]>,
}

impl ByVectors {
    /// None where the activation is no clamp.
    pub fn new(activation: Option<Activation>) -> Option<ByVectors> {
        let clamp = match activation {
            None => None,
            Some(activation) => Some(activation.clamp()?),
        };
        Some(ByVectors { rows: &isa().norm, clamp })
    }

    /// A row; a norm of 16 channels.
    #[inline(always)]
    pub fn row<'a>(&self, x: &'a [Line], norm: &'a Norm) -> NormRow<'a> {
        NormRow { x, norm, clamp: self.clamp }
    }

    /// Normalises, and notes what the clamp lets pass.
    pub fn forward(
        &self,
        row: &NormRow,
        added: Option<&[Line]>,
        passed: Option<&mut [Bits]>,
        y: &mut [Line],
        store: Store,
    ) {
        let points = row.x.len();
        let all = [added.map(|a| a.len()), passed.as_ref().map(|p| p.len()), Some(y.len())];
        assert!(all.into_iter().flatten().all(|len| len == points), "bug: rows of different lengths");
        assert!(may_store(y, store), "bug: parts of lines are streamed");
        // SAFETY: the table is this processor's; lengths and alignment are as asserted.
        unsafe { (self.rows.forward)(row, added, passed, y, store) }
    }

    /// Adds to the sums of dy before the activation, and of it times what is seen from the centre.
    pub fn gradient_sums(&self, row: &NormRow, passed: Option<&[Bits]>, dy: &[Line], sums: &mut [[f64; BLOCK]; 2]) {
        assert!(fits(row, passed, dy), "bug: a gradient of another length");
        // SAFETY: as above.
        unsafe { (self.rows.gradient_sums)(row, passed, dy, sums) }
    }

    /// The gradient of what is normalised; without a slope, of what is added to it.
    pub fn input_gradient(
        &self,
        row: &NormRow,
        passed: Option<&[Bits]>,
        dy: &[Line],
        slope: Option<&Slope>,
        dx: &mut [Line],
        store: Store,
    ) {
        let whole = fits(row, passed, dy) && dx.len() == dy.len();
        assert!(whole && may_store(dx, store), "bug: a gradient of another length");
        // SAFETY: as above.
        unsafe { (self.rows.input_gradient)(row, passed, dy, slope, dx, store) }
    }
}

fn fits(row: &NormRow, passed: Option<&[Bits]>, dy: &[Line]) -> bool {
    row.x.len() == dy.len() && passed.is_none_or(|passed| passed.len() == dy.len())
}

/// Whether lines begin where they must if they are streamed.
fn may_store(lines: &[Line], store: Store) -> bool {
    store != Store::Stream || lines.as_ptr().addr().is_multiple_of(size_of::<Line>())
}

/// Calls a function with whether there is something, and whether there is a clamp, as constants.
macro_rules! by_form {
    ($some:expr, $row:expr, $f:ident, $($argument:expr),*) => {
        match ($some.is_some(), $row.clamp.is_some()) {
            (false, false) => $f::<S, NV, false, false>($row, $($argument),*),
            (false, true) => $f::<S, NV, false, true>($row, $($argument),*),
            (true, false) => $f::<S, NV, true, false>($row, $($argument),*),
            (true, true) => $f::<S, NV, true, true>($row, $($argument),*),
        }
    };
}

/// Asks for a line of the output's gradient some points ahead. Compilers make one masked load of the gradient and the clamp's slope: it would
/// wait for what is normalised, and one miss of the caches for the other.
#[inline(always)]
unsafe fn ask_ahead<S: Simd>(dy: &Line, v: usize) {
    if v == 0 {
        // SAFETY: the instruction set is there; what is asked for need not exist.
        unsafe { S::prefetch((dy as *const Line).wrapping_add(AHEAD) as *const f32) }
    }
}

/// A line as vectors.
#[inline(always)]
unsafe fn load<S: Simd, const NV: usize>(line: &Line) -> [S::V; NV] {
    // SAFETY: the instruction set is there; NV vectors are one line.
    unsafe {
        let mut all = [S::zero(); NV];
        for (v, vector) in all.iter_mut().enumerate() {
            *vector = S::load(line.as_ptr().add(v * S::LANES));
        }
        all
    }
}

/// Sums as vectors.
#[inline(always)]
unsafe fn load_sums<S: Simd, const NV: usize>(sums: &[[f64; BLOCK]; 2]) -> [[S::D; NV]; 2] {
    // SAFETY: as above; NV vectors of doubles are one block.
    unsafe {
        let mut all = [[S::widen(S::zero()); NV]; 2];
        for (all, sums) in all.iter_mut().zip(sums) {
            for (v, all) in all.iter_mut().enumerate() {
                *all = S::load_doubles(sums.as_ptr().add(v * S::LANES));
            }
        }
        all
    }
}

/// The same back.
#[inline(always)]
unsafe fn save_sums<S: Simd, const NV: usize>(all: &[[S::D; NV]; 2], sums: &mut [[f64; BLOCK]; 2]) {
    // SAFETY: as above.
    unsafe {
        for (all, sums) in all.iter().zip(sums) {
            for (v, all) in all.iter().enumerate() {
                S::store_doubles(sums.as_mut_ptr().add(v * S::LANES), *all);
            }
        }
    }
}

/// Writes a part of a line.
#[inline(always)]
unsafe fn save<S: Simd>(into: &mut Line, v: usize, value: S::V, store: Store) {
    // SAFETY: as above; lines that are streamed are aligned.
    unsafe {
        let into = into.as_mut_ptr().add(v * S::LANES);
        match store {
            Store::Over => S::store(into, value),
            Store::Add => S::store(into, S::add(S::load(into), value)),
            Store::Stream => S::stream(into, value),
        }
    }
}

/// A norm as vectors.
struct Loaded<V, const NV: usize> {
    centre: [V; NV],
    scale: [V; NV],
    shift: [V; NV],
    /// Infinite ends where there is no clamp.
    low: f32,
    high: f32,
}

impl<V: Copy, const NV: usize> Loaded<V, NV> {
    #[inline(always)]
    unsafe fn new<S: Simd<V = V>>(row: &NormRow) -> Loaded<V, NV> {
        let [low, high] = row.clamp.unwrap_or([f32::NEG_INFINITY, f32::INFINITY]);
        // SAFETY: the instruction set is there.
        unsafe {
            let [centre, scale, shift] =
                [&row.norm.centre, &row.norm.scale, &row.norm.shift].map(|line| load::<S, NV>(line));
            Loaded { centre, scale, shift, low, high }
        }
    }

    /// A vector of a point as seen from the centre, and normalised.
    #[inline(always)]
    unsafe fn point<S: Simd<V = V>>(&self, row: &NormRow, point: usize, v: usize) -> (V, V) {
        // SAFETY: the caller promises that the point exists and that the instruction set is there.
        unsafe {
            let x = S::load(row.x.get_unchecked(point).as_ptr().add(v * S::LANES));
            let seen = S::sub(x, self.centre[v]);
            (seen, S::add(S::mul(seen, self.scale[v]), self.shift[v]))
        }
    }

    /// A vector of a point as seen from the centre, and of the gradient before the clamp: what passed, where that was noted, else what passes.
    #[inline(always)]
    unsafe fn slope<S: Simd<V = V>, const NOTED: bool, const CLAMP: bool>(
        &self,
        row: &NormRow,
        passed: &[Bits],
        dy: &Line,
        [point, v]: [usize; 2],
    ) -> (V, V) {
        // SAFETY: as above; where bits are noted, every point has its own.
        unsafe {
            let (seen, z) = self.point::<S>(row, point, v);
            ask_ahead::<S>(dy, v);
            let dy = S::load(dy.as_ptr().add(v * S::LANES));
            let dy = match (NOTED, CLAMP) {
                (true, _) => S::keep(u32::from(*passed.get_unchecked(point)) >> (v * S::LANES), dy),
                (false, true) => S::within(z, self.low, self.high, dy),
                (false, false) => dy,
            };
            (seen, dy)
        }
    }
}

/// Normalises a row.
///
/// # Safety
/// The instruction set is there; all slices have as many points; lines of `y` are aligned to 64 bytes if they are streamed.
#[inline(always)]
pub unsafe fn forward<S: Simd, const NV: usize>(
    row: &NormRow,
    added: Option<&[Line]>,
    passed: Option<&mut [Bits]>,
    y: &mut [Line],
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe { by_form!(added, row, forward_as, added.unwrap_or_default(), passed, y, store) }
}

#[inline(always)]
unsafe fn forward_as<S: Simd, const NV: usize, const ADDED: bool, const CLAMP: bool>(
    row: &NormRow,
    added: &[Line],
    mut passed: Option<&mut [Bits]>,
    y: &mut [Line],
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let norm = Loaded::<S::V, NV>::new::<S>(row);
        for (point, y) in y.iter_mut().enumerate() {
            let mut bits = 0;
            for v in 0..NV {
                let (_, mut z) = norm.point::<S>(row, point, v);
                if ADDED {
                    z = S::add(z, S::load(added.get_unchecked(point).as_ptr().add(v * S::LANES)));
                }
                bits |= S::inside(z, norm.low, norm.high) << (v * S::LANES);
                save::<S>(y, v, if CLAMP { S::clamp(z, norm.low, norm.high) } else { z }, store);
            }
            if ADDED
                && CLAMP
                && let Some(passed) = &mut passed
            {
                *passed.get_unchecked_mut(point) = bits as Bits;
            }
        }
    }
}

/// Adds a row to the sums of dy before the activation, and of it times what is seen from the centre.
///
/// # Safety
/// As for [`forward`].
#[inline(always)]
pub unsafe fn gradient_sums<S: Simd, const NV: usize>(
    row: &NormRow,
    passed: Option<&[Bits]>,
    dy: &[Line],
    sums: &mut [[f64; BLOCK]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe { by_form!(passed, row, gradient_sums_as, passed.unwrap_or_default(), dy, sums) }
}

#[inline(always)]
unsafe fn gradient_sums_as<S: Simd, const NV: usize, const NOTED: bool, const CLAMP: bool>(
    row: &NormRow,
    passed: &[Bits],
    dy: &[Line],
    sums: &mut [[f64; BLOCK]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let norm = Loaded::<S::V, NV>::new::<S>(row);
        let mut all = load_sums::<S, NV>(sums);
        let [sums_of_dy, sums_along] = &mut all;
        for (point, dy) in dy.iter().enumerate() {
            for (v, (sum, along)) in sums_of_dy.iter_mut().zip(sums_along.iter_mut()).enumerate() {
                let (seen, g) = norm.slope::<S, NOTED, CLAMP>(row, passed, dy, [point, v]);
                let g = S::widen(g);
                *sum = S::add_doubles(*sum, g);
                *along = S::add_doubles(*along, S::mul_doubles(g, S::widen(seen)));
            }
        }
        save_sums::<S, NV>(&all, sums);
    }
}

/// Adds lines to the sums of their elements and of their squares; moves them past the caches to `to`, if it is anywhere.
///
/// # Safety
/// The instruction set is there; all lines may be read, those of `to` (as many, each on a multiple of 64 bytes) written by nobody
/// else.
#[inline(always)]
pub unsafe fn moments<S: Simd, const NV: usize>(
    lines: &Spread<*const f32>,
    to: Option<&Spread<*mut f32>>,
    sums: &mut [[f64; BLOCK]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut all = load_sums::<S, NV>(sums);
        let [sums_of_x, squares] = &mut all;
        for (point, &offset) in lines.offsets.iter().enumerate() {
            for (v, (sum, square)) in sums_of_x.iter_mut().zip(squares.iter_mut()).enumerate() {
                let x = S::load(lines.from.add(offset as usize + v * S::LANES));
                if let Some(to) = to {
                    S::stream(to.from.add(*to.offsets.get_unchecked(point) as usize + v * S::LANES), x);
                }
                let x = S::widen(x);
                *sum = S::add_doubles(*sum, x);
                *square = S::add_doubles(*square, S::mul_doubles(x, x));
            }
        }
        save_sums::<S, NV>(&all, sums);
    }
}

/// The gradient of what is normalised; without a slope, of what is added to it.
///
/// # Safety
/// As for [`forward`].
#[inline(always)]
pub unsafe fn input_gradient<S: Simd, const NV: usize>(
    row: &NormRow,
    passed: Option<&[Bits]>,
    dy: &[Line],
    slope: Option<&Slope>,
    dx: &mut [Line],
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe { by_form!(passed, row, input_gradient_as, passed.unwrap_or_default(), dy, slope, dx, store) }
}

#[inline(always)]
unsafe fn input_gradient_as<S: Simd, const NV: usize, const NOTED: bool, const CLAMP: bool>(
    row: &NormRow,
    passed: &[Bits],
    dy: &[Line],
    slope: Option<&Slope>,
    dx: &mut [Line],
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let norm = Loaded::<S::V, NV>::new::<S>(row);
        let Some(slope) = slope else {
            for (point, (dx, dy)) in dx.iter_mut().zip(dy).enumerate() {
                for v in 0..NV {
                    let (_, g) = norm.slope::<S, NOTED, CLAMP>(row, passed, dy, [point, v]);
                    save::<S>(dx, v, g, store);
                }
            }
            return;
        };
        let [scale, along, shift] = [&slope.scale, &slope.along, &slope.shift].map(|line| load::<S, NV>(line));
        for (point, (dx, dy)) in dx.iter_mut().zip(dy).enumerate() {
            for v in 0..NV {
                let (seen, g) = norm.slope::<S, NOTED, CLAMP>(row, passed, dy, [point, v]);
                let rest = S::add(S::mul(seen, along[v]), shift[v]);
                save::<S>(dx, v, S::add(S::mul(g, scale[v]), rest), store);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::function::{Clip, Function, Identity, Relu};
    use crate::fast::isa::portably;
    use crate::fast::lines::each;
    use crate::fast::norm;
    use crate::twin::Numbers;

    /// Rows of random points, each line aligned as lines of tensors are.
    #[repr(align(64))]
    struct Aligned<const N: usize>([Line; N]);

    fn random<const N: usize>(numbers: &mut Numbers) -> Aligned<N> {
        Aligned(std::array::from_fn(|_| std::array::from_fn(|_| numbers.value(false) as f32)))
    }

    /// What the loops of `norm.rs` and those by vectors do, with a function and the clamp that it is.
    fn compare<F: Function>(f: F, activation: Option<Activation>, seed: u64) {
        const N: usize = 7;
        let mut numbers = Numbers::new(seed);
        let [x, added, dy]: [Aligned<N>; 3] = std::array::from_fn(|_| random(&mut numbers));
        let lines: Aligned<8> = random(&mut numbers);
        let [centre, rest, inverse, scale, shift, along, slope_scale, slope_shift] = lines.0;
        let norm = Norm { centre, rest, inverse, scale, shift };
        let slope = Slope { scale: slope_scale, along, shift: slope_shift };
        for (added, store) in [(None, Store::Over), (Some(&added.0[..]), Store::Stream), (None, Store::Add)] {
            let points = || x.0.iter().enumerate().map(|(i, x)| (x, added.map(|added| &added[i])));
            for portable in [false, true] {
                let by_vectors = || ByVectors::new(activation).expect("a clamp");
                let by_vectors = if portable { portably(by_vectors) } else { by_vectors() };
                let row = by_vectors.row(&x.0, &norm);
                // What lines held before, in both.
                let before: Aligned<N> = random(&mut numbers);
                let both = || [Aligned(before.0), Aligned(before.0)];
                let [mut expected, mut found] = both();
                norm::normalise(f, points(), &norm, &mut expected.0, store);
                // What passes is noted where the slope of a clamp depends on what was added.
                let mut bits = (added.is_some() && activation.is_some()).then_some([0; N]);
                let passed = bits.as_mut().map(|bits| &mut bits[..]);
                by_vectors.forward(&row, added, passed, &mut found.0, store);
                assert_eq!(found.0, expected.0, "forward, {activation:?}, {store:?}");
                let passed = bits.as_ref().map(|bits| &bits[..]);
                let mut sums = [[[0.25; BLOCK]; 2]; 2];
                norm::gradient_moments(f, points(), &norm, &dy.0, &mut sums[0]);
                by_vectors.gradient_sums(&row, passed, &dy.0, &mut sums[1]);
                assert_eq!(sums[1], sums[0], "sums, {activation:?}");
                for slope in [Some(&slope), None] {
                    let [mut expected, mut found] = both();
                    norm::input_gradient(f, points(), &norm, &dy.0, slope, &mut expected.0, store);
                    by_vectors.input_gradient(&row, passed, &dy.0, slope, &mut found.0, store);
                    assert_eq!(found.0, expected.0, "gradient, {activation:?}, {store:?}");
                }
            }
        }
        let some = each(|l| f.slope_at((x.0[0][l] - norm.centre[l]) * norm.scale[l] + norm.shift[l]));
        assert!(activation.is_none() || some.contains(&0.0), "nothing was cut off");
    }

    #[test]
    fn vectors_do_what_points_do() {
        for seed in 0..20 {
            compare(Identity, None, seed);
            compare(Relu, Some(Activation::Relu), seed);
            let (low, high) = (-0.125, 0.25);
            compare(Clip { low, high }, Some(Activation::Clip { low, high }), seed);
        }
    }

    #[test]
    fn curved_functions_are_left_to_points() {
        assert!(ByVectors::new(Some(Activation::Silu)).is_none() && ByVectors::new(None).is_some());
    }
}
