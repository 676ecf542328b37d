//! Elementary functions with the same bits on every machine: no call into a system's own library decides a result.
//!
//! Each function is written once, without branches, in operations that IEEE 754 rounds in one way (`mul_add` among them, which every
//! library rounds once). Inlined into a function that is compiled for a vector unit, a loop over it becomes vector code with the same bits.
//! Polynomials: for f32 fitted by weighted least squares toward the smallest largest error, for f64 the Taylor series.

use crate::isa::{Isa, for_isa};

/// 1.5 * 2^23: added to a number below 2^22 it leaves the nearest integer (half to even) in the low bits.
const ROUND: f32 = 12_582_912.0;
/// The upper 16 bits of ln 2, whose product with an exponent is exact, and the rest.
const LN2_HIGH: f32 = 0.693_145_75;
const LN2_LOW: f32 = 1.428_606_8e-6;

/// `c[0] + c[1] x + c[2] x^2 + ...`
#[inline(always)]
fn polynomial<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = y.mul_add(x, c[i]);
    }
    y
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32).wrapping_shl(23))
}

/// e^x, within 1 unit in the last place (2 where the result is subnormal).
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    // Beyond these the result is infinite or zero; NaN passes both.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let q = polynomial(r, [0.499_999_94, 0.166_665_2, 0.041_668_408, 0.008_368_899, 0.001_381_421_9]);
    let y = 1.0 + q.mul_add(r * r, r);
    // In two steps, since 2^exponent alone may be no normal number.
    let half = exponent >> 1;
    y * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// The natural logarithm, within 1 unit in the last place; NaN below zero.
#[inline(always)]
#[must_use]
pub fn log(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    // The exponent counts from sqrt(1/2), so that the mantissa lies in [sqrt(1/2), sqrt(2)).
    let bits = scaled.to_bits().wrapping_sub(0x3f35_04f3) as i32;
    let exponent = (bits >> 23) as f32 - if subnormal { 23.0 } else { 0.0 };
    let f = f32::from_bits((bits & 0x007f_ffff) as u32 + 0x3f35_04f3) - 1.0;
    // log(1 + f) = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + r)) with r = 2 (s^2/3 + s^4/5 + ...)
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * polynomial(z, [0.666_666_6, 0.400_003_37, 0.285_372_17, 0.235_840_2]);
    let half_square = 0.5 * f * f;
    let low = s.mul_add(half_square + r, exponent * LN2_LOW);
    let y = exponent.mul_add(LN2_HIGH, f - (half_square - low));
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// The hyperbolic tangent, within 2 units in the last place.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let z = x * x;
    let p = polynomial(z, [-0.333_333, 0.133_319_59, -0.053_786_68, 0.020_805_378, -0.005_905_860_6]);
    let near = (magnitude * z).mul_add(p, magnitude);
    let far = 1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0);
    let y = if magnitude < 0.6 { near } else { far };
    y.copysign(x)
}

/// `1 / (1 + e^-x)`, within 2.5 units in the last place; zero where it would be below 10^-38.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`, the gate of a SwiGLU, within 3 units in the last place; zero where its magnitude would be below 10^-36.
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// The tanh form of GELU: `x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) * (x + 0.044715 x^3)`, as the equal `x * sigmoid(2 u)`.
#[inline(always)]
#[must_use]
pub fn gelu_tanh(x: f32) -> f32 {
    let u = (x * x).mul_add(0.044_715 * SQRT_8_OVER_PI, SQRT_8_OVER_PI) * x;
    x / (1.0 + exp(-u))
}

/// Twice sqrt(2 / pi).
const SQRT_8_OVER_PI: f32 = 1.595_769;

/// Declares the form over a slice of each function.
macro_rules! in_place {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(isa: Isa, values: &mut [f32]) {
            #[inline(always)]
            fn each(values: &mut [f32]) {
                for value in values {
                    *value = $function(*value);
                }
            }
            for_isa!(isa, each, (values: &mut [f32]));
        }
    )*};
}

in_place! {
    /// [`exp`] of every value.
    exp_in_place = exp;
    /// [`log`] of every value.
    log_in_place = log;
    /// [`tanh`] of every value.
    tanh_in_place = tanh;
    /// [`sigmoid`] of every value.
    sigmoid_in_place = sigmoid;
    /// [`silu`] of every value.
    silu_in_place = silu;
    /// [`gelu_tanh`] of every value.
    gelu_tanh_in_place = gelu_tanh;
}

/// Sine and cosine of an angle in radians, within 2^-50 of the exact values for |x| up to 10^6; beyond it, still the same bits everywhere.
#[inline(always)]
#[must_use]
pub fn sin_cos(x: f64) -> (f64, f64) {
    /// pi / 2 in three parts.
    const PARTS: [f64; 3] = [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17, -1.497_384_904_859_169_8e-33];
    /// 1.5 * 2^52: as for f32.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let r = PARTS.iter().fold(x, |r, part| n.mul_add(-part, r));
    let z = r * r;
    // 1/3!, 1/5!, ... and 1/2!, 1/4!, ... with alternating signs; the first term left out is below 2^-53 on [-pi/4, pi/4].
    let series = |first: u32, last: u32| {
        let mut y: f64 = 0.0;
        let mut power = last;
        while power >= first {
            y = y.mul_add(z, if power / 2 % 2 == 1 { -1.0 } else { 1.0 } / factorial(power));
            power -= 2;
        }
        y
    };
    let sine = (r * z).mul_add(series(3, 15), r);
    let cosine = z.mul_add(series(2, 16), 1.0);
    match shifted.to_bits() & 3 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// n! for n <= 18: exact in f64.
const fn factorial(n: u32) -> f64 {
    let mut product = 1u64;
    let mut i = 2;
    while i <= n as u64 {
        product *= i;
        i += 1;
    }
    product as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    type F32 = fn(f32) -> f32;
    type F64 = fn(f64) -> f64;
    type Slice = fn(Isa, &mut [f32]);

    /// Name, function, its slice form, the same in f64, and the largest error allowed in units of the last place.
    const FUNCTIONS: [(&str, F32, Slice, F64, f64); 6] = [
        ("exp", exp, exp_in_place, f64::exp, 1.0),
        ("log", log, log_in_place, f64::ln, 1.0),
        ("tanh", tanh, tanh_in_place, f64::tanh, 2.0),
        ("sigmoid", sigmoid, sigmoid_in_place, |x| 1.0 / (1.0 + (-x).exp()), 2.5),
        ("silu", silu, silu_in_place, |x| x / (1.0 + (-x).exp()), 3.0),
        (
            "gelu_tanh",
            gelu_tanh,
            gelu_tanh_in_place,
            |x| x / (1.0 + (-(8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).exp()),
            0.0,
        ),
    ];

    /// Values over all bit patterns, a prime apart.
    fn patterns() -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(4099).map(f32::from_bits)
    }

    /// Distance from the exact value in units of the last place of an f32 there.
    fn ulps(found: f32, exact: f64) -> f64 {
        let near = (exact as f32).abs().clamp(f32::MIN_POSITIVE, f32::MAX);
        let unit = f64::from(near) - f64::from(near.next_down());
        (f64::from(found) - exact).abs() / unit
    }

    #[test]
    fn functions_are_near_those_of_f64() {
        for (name, function, _, exact, allowed) in FUNCTIONS {
            let (mut worst, mut at) = (0.0, 0.0);
            for x in patterns().filter(|x| x.is_finite()) {
                let (found, exact) = (function(x), exact(f64::from(x)));
                if exact.is_nan() {
                    assert!(found.is_nan(), "{name}({x:e}) is {found:e}");
                    continue;
                }
                if (exact as f32).is_infinite() {
                    assert_eq!(found, exact as f32, "{name}({x:e})");
                    continue;
                }
                let mut error = ulps(found, exact);
                if name != "exp" && exact.abs() < 1e-36 && found == 0.0 {
                    continue;
                }
                if name == "gelu_tanh" {
                    // The argument of exp carries its own rounding, which grows with it.
                    error /= 4.0 + 3.0 * f64::from(x).powi(3).abs();
                }
                if error > worst {
                    (worst, at) = (error, x);
                }
            }
            let allowed = if name == "gelu_tanh" { 1.0 } else { allowed };
            assert!(worst <= allowed, "{name}({at:e}) is {} off by {worst} units", function(at));
        }
    }

    #[test]
    fn special_values() {
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(88.73), f32::INFINITY);
        assert!(exp(-103.9) >= 0.0 && exp(-103.0) > 0.0);
        assert_eq!(log(0.0), f32::NEG_INFINITY);
        assert_eq!(log(1.0).to_bits(), 0);
        assert_eq!(log(f32::INFINITY), f32::INFINITY);
        assert!(log(-1.0).is_nan());
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert_eq!(tanh(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        for (name, function, ..) in FUNCTIONS {
            assert!(function(f32::NAN).is_nan(), "{name} hides NaN");
        }
    }

    #[test]
    fn slices_have_the_bits_of_single_values() {
        for (name, function, slice, ..) in FUNCTIONS {
            let values: Vec<f32> = patterns().chain([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]).collect();
            for isa in Isa::available() {
                let mut found = values.clone();
                slice(isa, &mut found);
                for (found, &x) in found.iter().zip(&values) {
                    let expected = function(x);
                    let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                    assert!(same, "{isa} {name}({x:e}) is {found:e}, expected {expected:e}");
                }
            }
        }
    }

    #[test]
    fn angles_are_reduced_exactly_enough() {
        let mut worst: f64 = 0.0;
        for i in 0..2_000_000u32 {
            let x = f64::from(i) * 0.5 + f64::from(i % 7919) / 7919.0;
            let (sine, cosine) = sin_cos(x);
            worst = worst.max((sine - x.sin()).abs()).max((cosine - x.cos()).abs());
            assert_eq!(sin_cos(-x), (-sine, cosine), "{x}");
        }
        assert!(worst <= 2f64.powi(-50), "{worst:e}");
        // Multiples of pi / 2 leave next to nothing, which must be right all the same.
        for n in [1.0, 2.0, 3.0, 1001.0, 600_000.0] {
            let x = n * std::f64::consts::FRAC_PI_2;
            let (sine, cosine) = sin_cos(x);
            assert!((sine - x.sin()).abs() <= 2f64.powi(-53) && (cosine - x.cos()).abs() <= 2f64.powi(-53), "{x}");
        }
        assert!(sin_cos(f64::NAN).0.is_nan() && sin_cos(f64::INFINITY).1.is_nan());
    }
}
