//! exp, log, tanh and the like as our own polynomials: the same bits on every machine.
//!
//! Always true
//! - Only additions, multiplications, divisions, square roots, comparisons and operations on bits, each rounded as IEEE 754
//!   says; no fused multiply-add, which not every machine has. So results do not depend on instruction set or library.
//! - No branches (both sides are computed and one is taken): loops over these functions become vector code.
//! - NaN in, NaN out; limits at infinity are exact; denormals count.
//!
//! Errors are stated in units of the last place (ulp) of the exact result and hold over the whole range; the tests measure
//! them. Coefficients are near-minimax fits on the reduced range (Lawson's weights, 40 digits), then rounded. Twin: the `f64`
//! functions of the standard library, in the tests.

use std::f32::consts::{FRAC_2_SQRT_PI, LOG2_E, SQRT_2};

/// `c[0] + c[1]·x + c[2]·x² + ...`
macro_rules! polynomial {
    ($x:expr; $last:expr) => { $last };
    ($x:expr; $first:expr, $($rest:expr),+) => { $first + $x * polynomial!($x; $($rest),+) };
}

/// Adding this rounds a small number to a whole one, which then stands in the low bits.
const WHOLE: f32 = 12_582_912.0;

/// e^x within 1 ulp.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these all is infinite, or zero.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    // x = n·ln 2 + r. The first part of ln 2 has nine bits, so that its multiples are exact.
    let shifted = x * LOG2_E + WHOLE;
    let n = shifted - WHOLE;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let p = polynomial!(r; 0.499_999_94, 0.166_665_21, 0.041_668_393, 0.008_368_745, 0.001_381_453_5);
    let e = 1.0 + (r + r * r * p);
    // Twice half the power of two: a denormal result is rounded once, at the end.
    let n = shifted.to_bits().wrapping_sub(WHOLE.to_bits()) as i32;
    let half = n >> 1;
    e * power(half) * power(n.wrapping_sub(half))
}

/// 2^n where that is a normal number.
#[inline(always)]
fn power(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// The natural logarithm within 1 ulp; −∞ at 0, NaN below.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    let denormal = x < f32::MIN_POSITIVE;
    let normal = if denormal { x * 33_554_432.0 } else { x };
    // x = 2^e·(1 + f) with 1 + f from √½ to √2.
    const ROOT: u32 = 0x3f35_04f3;
    let e = (normal.to_bits().wrapping_sub(ROOT) as i32) >> 23;
    let f = f32::from_bits(normal.to_bits().wrapping_sub((e << 23) as u32)) - 1.0;
    let e = e as f32 - if denormal { 25.0 } else { 0.0 };
    // log(1 + f) = 2s + s·r(s²) with s = f / (2 + f); f − s·f stands for 2s, and f²/2·(1 − s) for s·f, being more exact.
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * polynomial!(z; 0.666_666_6, 0.400_003_34, 0.285_372_73, 0.235_829_26);
    let half = 0.5 * f * f;
    // The first part of ln 2 has 15 bits, so that its multiples are exact.
    let y = e * 0.693_145_75 + (f - (half - (s * (half + r) + e * 1.428_606_8e-6)));
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// log(1 + x) for x from 0 to 1, within 2 ulp.
#[inline(always)]
pub fn log1p_unit(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let z = s * s;
    2.0 * s + s * z * polynomial!(z; 0.666_666_75, 0.399_988_9, 0.286_165_98, 0.214_307_35, 0.242_895_75)
}

/// tanh x within 2 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let (a, z) = (x.abs(), x * x);
    let p = polynomial!(z; -0.333_332_8, 0.133_314_42, -0.053_739_708, 0.020_639_067, -0.005_704_968);
    let near = a + a * z * p;
    let far = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    (if a < 0.625 { near } else { far }).copysign(x)
}

/// 1 / (1 + e^−x) within 3 ulp, for negative x too.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let over = if x < 0.0 { e } else { 1.0 };
    over / (1.0 + e)
}

/// The normal distribution's density within 3 ulp.
#[inline(always)]
pub fn density(x: f32) -> f32 {
    bell(x) * 0.398_942_3
}

/// e^(−x²/2) within 2 ulp: the rounding error of x² is multiplied back in.
#[inline(always)]
fn bell(x: f32) -> f32 {
    let a = x.abs();
    let a = if a > 15.0 { 15.0 } else { a };
    let square = a * a;
    // Both parts have twelve bits: their products are exact.
    let high = f32::from_bits(a.to_bits() & 0xffff_f000);
    let low = a - high;
    let lost = ((high * high - square) + 2.0 * high * low) + low * low;
    exp(-0.5 * square) * (1.0 - 0.5 * lost)
}

/// The normal distribution's weight above x, for x of 1 and more, within 6 ulp.
#[inline(always)]
fn tail(x: f32) -> f32 {
    let u = 1.0 / (x + 3.0);
    let p = polynomial!(u; 0.398_930_13, 1.197_884_6, 3.153_242_8, 7.935_278, 3.130_053_5, 69.734_07, -290.329_16, 285.084_8);
    bell(x) * (u * p)
}

/// The normal distribution's weight below x within 6 ulp, for negative x too.
#[inline(always)]
pub fn normal(x: f32) -> f32 {
    let (a, z) = (x.abs(), x * x);
    let p = polynomial!(z; 0.398_942_3, -0.066_490_36, 0.009_973_323, -0.001_186_329_9, 1.134_863_1e-4, -7.654_186e-6);
    let near = 0.5 + x * p;
    let tail = tail(a);
    let far = if x > 0.0 { 1.0 - tail } else { tail };
    if a < 1.0 { near } else { far }
}

/// The error function within 3 ulp.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let (a, z) = (x.abs(), x * x);
    let p = polynomial!(z; FRAC_2_SQRT_PI, -0.376_126_26, 0.112_835_854, -0.026_853_811, 0.005_188_327, -8.010_19e-4, 7.853_85e-5);
    let near = x * p;
    let far = (1.0 - 2.0 * tail(a * SQRT_2)).copysign(x);
    if a < 1.0 { near } else { far }
}

/// e^x in double precision, within 1 ulp.
#[inline(always)]
pub fn exp64(x: f64) -> f64 {
    const WHOLE: f64 = 6_755_399_441_055_744.0;
    let x = if x > 710.0 { 710.0 } else { x };
    let x = if x < -746.0 { -746.0 } else { x };
    let shifted = x * std::f64::consts::LOG2_E + WHOLE;
    let n = shifted - WHOLE;
    let r = (x - n * 0.693_147_180_369_123_8) - n * 1.908_214_929_270_587_8e-10;
    let p = polynomial!(r;
        0.5, 0.166_666_666_666_666_82, 0.041_666_666_666_666_095, 0.008_333_333_333_316_982, 0.001_388_888_888_911_638,
        1.984_126_989_651_600_3e-4, 2.480_158_692_569_472_7e-5, 2.755_723_472_715_257_2e-6, 2.755_758_229_815_895e-7,
        2.511_208_469_262_519e-8, 2.082_657_814_363_335_4e-9);
    let e = 1.0 + (r + r * r * p);
    let n = shifted.to_bits().wrapping_sub(WHOLE.to_bits()) as i64;
    let half = n >> 1;
    let power = |n: i64| f64::from_bits((n.wrapping_add(1023) << 52) as u64);
    e * power(half) * power(n.wrapping_sub(half))
}

/// The natural logarithm in double precision, within 1 ulp; −∞ at 0, NaN below.
#[inline(always)]
pub fn log64(x: f64) -> f64 {
    let denormal = x < f64::MIN_POSITIVE;
    let normal = if denormal { x * 18_014_398_509_481_984.0 } else { x };
    const ROOT: u64 = 0x3fe6_a09e_667f_3bcd;
    let e = (normal.to_bits().wrapping_sub(ROOT) as i64) >> 52;
    let f = f64::from_bits(normal.to_bits().wrapping_sub((e << 52) as u64)) - 1.0;
    let e = e as f64 - if denormal { 54.0 } else { 0.0 };
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * polynomial!(z;
        0.666_666_666_666_666_6, 0.400_000_000_000_062_7, 0.285_714_285_690_786_16, 0.222_222_226_479_651_15,
        0.181_817_755_668_723_32, 0.153_870_952_690_152_02, 0.132_500_124_126_061_02, 0.132_523_231_421_346_1);
    let half = 0.5 * f * f;
    let y = e * 0.693_147_180_369_123_8 + (f - (half - (s * (half + r) + e * 1.908_214_929_270_587_8e-10)));
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f64::NAN }
}

/// Where the normal distribution's weight below is `p`, for p from 1e-10 to 1 − 1e-10, within 2e-7 of itself: algorithm AS 241
/// (Wichura 1988) in its seven-digit form, evaluated in double precision.
pub fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    let r = 0.180625 - q * q;
    if r >= 0.0 {
        let over = polynomial!(r; 3.387_132_717_9, 50.434_271_938, 159.291_132_02, 59.109_374_72);
        return q * over / polynomial!(r; 1.0, 17.895_169_469, 78.757_757_664, 67.187_563_6);
    }
    let r = (-log64(if q < 0.0 { p } else { 1.0 - p })).sqrt() - 1.6;
    let over = polynomial!(r; 1.423_437_277_7, 2.756_815_39, 1.306_728_481_6, 0.170_238_211_03);
    (over / polynomial!(r; 1.0, 0.737_001_642_5, 0.120_211_329_75)).copysign(q)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error in ulp over floats of both signs from 0 to `most`, every 4,001st of them, and the point itself.
    fn worst(most: f32, fast: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for bits in (0..=most.to_bits()).step_by(4001) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let (y, exact) = (fast(x), exact(x as f64));
                let error = ulps(y, exact);
                if error > worst.0 {
                    worst = (error, x);
                }
            }
        }
        worst
    }

    /// How many units in the last place (of the float nearest to `exact`) a float is away.
    fn ulps(y: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        if nearest.is_infinite() || nearest.is_nan() || y.is_nan() || y.is_infinite() {
            return if y == nearest || y.is_nan() && nearest.is_nan() { 0.0 } else { f64::INFINITY };
        }
        let exponent = (nearest.abs().max(f32::MIN_POSITIVE).to_bits() >> 23) as i32 - 127;
        (y as f64 - exact).abs() / 2f64.powi(exponent - 23)
    }

    fn within(what: &str, limit: f64, (error, at): (f64, f32)) {
        assert!(error <= limit, "{what} is {error:.3} ulp away at {at:e}, stated are {limit}");
    }

    /// The error function by its series or continued fraction, to some 1e-15.
    fn erfc(x: f64) -> f64 {
        if x < 0.0 {
            return 2.0 - erfc(-x);
        }
        if x < 2.5 {
            let (mut term, mut sum) = (x, x);
            for k in 1..100 {
                term *= -x * x / k as f64;
                sum += term / (2 * k + 1) as f64;
            }
            return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum;
        }
        let fraction = (1..200).rev().fold(0.0, |f, k| k as f64 / 2.0 / (x + f));
        (-x * x).exp() / std::f64::consts::PI.sqrt() / (x + fraction)
    }

    #[test]
    fn stated_errors_hold() {
        let most = f32::INFINITY;
        within("exp", 1.0, worst(most, exp, f64::exp));
        within("log", 1.0, worst(most, log, f64::ln));
        within("tanh", 2.0, worst(most, tanh, f64::tanh));
        within("sigmoid", 3.0, worst(most, sigmoid, |x| 1.0 / (1.0 + (-x).exp())));
        within("log1p", 2.0, worst(1.0, |x| log1p_unit(x.abs()), |x| x.abs().ln_1p()));
        within("density", 3.0, worst(most, density, |x| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()));
        // The test's own series is good to 1e-15 absolute, which is what erf near 0 cannot be judged by.
        within(
            "erf",
            3.0,
            worst(most, erf, |x| if x.abs() < 1e-4 { x * std::f64::consts::FRAC_2_SQRT_PI } else { 1.0 - erfc(x) }),
        );
        within("normal", 6.0, worst(most, normal, |x| 0.5 * erfc(-x / 2f64.sqrt())));
    }

    #[test]
    fn double_precision_too() {
        let mut errors = (0f64, 0f64);
        for i in 0..400_000 {
            let x = -745.0 + 1455.0 * (i as f64 / 400_000.0);
            let (y, exact) = (exp64(x), x.exp());
            errors.0 = errors.0.max((y - exact).abs() / (exact * f64::EPSILON).max(5e-324));
            let x = f64::from_bits(i * ((0x7ff << 52) / 400_000) + 12345);
            let (y, exact) = (log64(x), x.ln());
            errors.1 = errors.1.max((y - exact).abs() / (exact.abs() * f64::EPSILON));
        }
        // EPSILON·y is up to one ulp, so half of what is found at least; the library may be off by half a one itself.
        assert!(errors.0 <= 1.5 && errors.1 <= 1.5, "exp64 {}, log64 {}", errors.0, errors.1);
        assert_eq!((exp64(f64::INFINITY), exp64(f64::NEG_INFINITY), exp64(0.0)), (f64::INFINITY, 0.0, 1.0));
        assert_eq!((log64(f64::INFINITY), log64(0.0), log64(1.0)), (f64::INFINITY, f64::NEG_INFINITY, 0.0));
        assert!(exp64(f64::NAN).is_nan() && log64(f64::NAN).is_nan() && log64(-1.0).is_nan());
    }

    #[test]
    fn special_values() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!([exp(0.0), exp(-0.0), exp(inf), exp(-inf), exp(1e30), exp(-1e30)], [1.0, 1.0, inf, 0.0, inf, 0.0]);
        assert_eq!([log(1.0), log(inf), log(0.0), log(-0.0)], [0.0, inf, -inf, -inf]);
        assert_eq!([tanh(inf), tanh(-inf), sigmoid(inf), sigmoid(-inf), sigmoid(0.0)], [1.0, -1.0, 1.0, 0.0, 0.5]);
        assert_eq!([normal(inf), normal(-inf), normal(0.0), erf(inf), erf(-inf)], [1.0, 0.0, 0.5, 1.0, -1.0]);
        assert_eq!([density(inf), density(-inf)], [0.0, 0.0]);
        for f in [exp, log, tanh, sigmoid, normal, erf, density] {
            assert!(f(nan).is_nan());
        }
        assert!(log(-1.0).is_nan() && log(-inf).is_nan());
        assert!(tanh(-0.0).is_sign_negative() && erf(-0.0).is_sign_negative());
        // The least denormal, and results that are denormal.
        let least = f32::from_bits(1);
        assert_eq!([log(least), tanh(least), exp(least)], [-103.27893, least, 1.0]);
        assert!(exp(-100.0) > 0.0 && exp(-100.0) < f32::MIN_POSITIVE);
        assert!(sigmoid(-95.0) > 0.0 && sigmoid(-95.0) < f32::MIN_POSITIVE);
    }

    /// Vector code and scalar code of the same function, and so all instruction sets, agree: bits pinned once.
    #[test]
    fn bits_are_pinned() {
        let digest = |f: fn(f32) -> f32| {
            let values = (0..4096).map(|i| f((i as f32 - 2048.0) / 128.0).to_bits());
            values.fold(0u32, |h, b| h.rotate_left(5).wrapping_mul(0x9e37_79b1) ^ b)
        };
        let found = [exp, tanh, sigmoid, normal, erf, density].map(digest);
        assert_eq!(found, [3959155198, 2247646867, 1773099353, 3623885705, 994199112, 1003545346]);
    }

    #[test]
    fn quantiles_undo_the_distribution() {
        for i in 1..2000 {
            let x = i as f64 / 2000.0 * 6.3 * if i % 2 == 0 { 1.0 } else { -1.0 };
            let found = normal_quantile(0.5 * erfc(-x / 2f64.sqrt()));
            // Above, 1 − p has lost digits: an error of 1e-16 in p moves x by that over the density.
            let lost = 2e-16 / (-0.5 * x * x).exp() * 2.6;
            assert!((found - x).abs() <= 2e-7 * x.abs() + lost, "{found} for {x}");
        }
        assert_eq!(normal_quantile(0.5), 0.0);
    }
}
