//! Logarithm and exponential in f64 from plain arithmetic alone.
//!
//! The system's libm differs between machines in its last bit, and a rotary frequency that differs there moves an
//! identity hash. Only `+ - * /` and bit operations are used, without fused multiply-add, so NumPy says the same.

const LN2_HI: f64 = 6.931_471_803_691_238e-1;
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;

/// Natural logarithm of a positive finite normal number, within 2 ulp.
pub fn ln(x: f64) -> f64 {
    debug_assert!(x.is_finite() && x >= f64::MIN_POSITIVE);
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh s with |s| <= 0.172: the series below stops under 1e-18.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let s2 = s * s;
    let mut sum = 0.0;
    let mut k = 23;
    while k >= 3 {
        sum = (sum + 1.0 / f64::from(k)) * s2;
        k -= 2;
    }
    let e = exponent as f64;
    e * LN2_HI + (2.0 * s + (2.0 * s * sum + e * LN2_LO))
}

/// Exponential of a number between -700 and 700, within 2 ulp.
///
/// Written without branches, divisions or calls, so that a loop over a vocabulary becomes vector code.
#[inline]
pub fn exp(x: f64) -> f64 {
    debug_assert!(x.abs() <= 700.0);
    // Adding and subtracting this rounds to the nearest integer, ties to even, without a library call.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (x - k * LN2_HI) - k * LN2_LO;
    let mut sum = INVERSE_FACTORIALS[14];
    let mut n = 14;
    while n >= 1 {
        n -= 1;
        sum = sum * r + INVERSE_FACTORIALS[n];
    }
    // The low bits of `shifted` are k itself; the shift drops all but the exponent field.
    sum * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

/// `1 / n!`, each a quotient of two exact numbers.
const INVERSE_FACTORIALS: [f64; 15] = {
    let mut table = [1.0; 15];
    let mut factorial = 1.0;
    let mut n = 1;
    while n < 15 {
        factorial *= n as f64;
        table[n] = 1.0 / factorial;
        n += 1;
    }
    table
};

/// `base` to the power of `exponent`, for a positive base.
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ln_agrees_with_libm(x in 1e-300_f64..1e300) {
            let want = x.ln();
            prop_assert!((ln(x) - want).abs() <= 4.0 * f64::EPSILON * want.abs().max(1e-3));
        }

        #[test]
        fn exp_agrees_with_libm(x in -700.0_f64..700.0) {
            prop_assert!((exp(x) / x.exp() - 1.0).abs() <= 1e-15);
        }

        #[test]
        fn pow_agrees_with_libm(base in 1e3_f64..1e8, exponent in -1.0_f64..0.0) {
            prop_assert!((pow(base, exponent) / base.powf(exponent) - 1.0).abs() <= 1e-14);
        }
    }
}
