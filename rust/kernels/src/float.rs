//! Half-precision conversions with exact, portable bits.

/// Turns the bits of an IEEE half into f32: exact, subnormals and NaN payloads kept.
///
/// Written without a branch and without a subnormal f32 on the way, so that it vectorizes and does not care about a flush-to-zero mode.
#[inline(always)]
#[must_use]
pub fn f16_to_f32(half: u16) -> f32 {
    // Sign aside, the half's 15 bits land with their exponent field at f32's place, 112 too low.
    const REBIAS: u32 = (127 - 15) << 23;
    const EXPONENT: u32 = 0x1f << 23;
    let half = u32::from(half);
    let magnitude = (half & 0x7fff) << 13;
    let exponent = magnitude & EXPONENT;
    let normal = magnitude + REBIAS;
    let special = normal + REBIAS;
    // 2^-14 * (1 + m) - 2^-14 is exact and leaves m * 2^-14, the value of a subnormal half.
    let subnormal = (f32::from_bits(normal + (1 << 23)) - f32::from_bits(REBIAS + (1 << 23))).to_bits();
    let bits = if exponent == EXPONENT {
        special
    } else if exponent == 0 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(bits | (half & 0x8000) << 16)
}

/// Rounds f32 to the bits of an IEEE half: to nearest even, overflow to infinity, subnormals kept.
///
/// A NaN stays one, with the upper bits of its payload, as NumPy's conversion has it.
#[inline(always)]
#[must_use]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        let payload = (magnitude >> 13 & 0x3ff) as u16;
        // A payload that lives only in the dropped bits must not turn the NaN into an infinity.
        0x7c00 | if payload == 0 { 1 } else { payload }
    } else if magnitude >= 0x4780_0000 {
        // 65536 and more; what lies between 65520 and it overflows by the carry of the rounding below.
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        // Normal half: re-bias, then round to nearest even on the 13 dropped bits.
        let rebased = magnitude - (112 << 23);
        ((rebased + 0xfff + (rebased >> 13 & 1)) >> 13) as u16
    } else {
        // Subnormal half: adding 0.5 puts the unit of a half's subnormals (2^-24) at the last place of f32, and the addition rounds to nearest even.
        (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits()) as u16
    };
    sign | half
}

/// Turns the bits of a bfloat16 into f32: exact.
#[inline(always)]
#[must_use]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds f32 to the bits of a bfloat16: to nearest even; a NaN stays one and becomes quiet, as in ggml.
#[inline(always)]
#[must_use]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x40;
    }
    // The largest finite f32 carries into infinity, never past it: bits + 0x8000 fits.
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// [`f16_to_f32`] for a slice; converts as many values as the shorter slice has.
pub fn f16s_to_f32s(halves: &[u16], values: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: available has just said that this machine runs the features that the function is compiled for.
        return unsafe { x86::f16s_to_f32s(halves, values) };
    }
    for (value, &half) in values.iter_mut().zip(halves) {
        *value = f16_to_f32(half);
    }
}

/// [`f32_to_f16`] for a slice; converts as many values as the shorter slice has.
pub fn f32s_to_f16s(values: &[f32], halves: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: available has just said that this machine runs the features that the function is compiled for.
        return unsafe { x86::f32s_to_f16s(values, halves) };
    }
    for (half, &value) in halves.iter_mut().zip(values) {
        *half = f32_to_f16(value);
    }
}

/// The slice forms with F16C, which differs from the scalar functions for NaN alone: it makes a signalling NaN quiet.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cmp_ps,
        _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_movemask_ps, _mm256_storeu_ps,
    };

    /// Whether this machine has AVX and F16C. The answer is cached by the standard library.
    #[inline]
    pub fn available() -> bool {
        is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c")
    }

    #[target_feature(enable = "avx,f16c")]
    pub fn f16s_to_f32s(halves: &[u16], values: &mut [f32]) {
        let len = halves.len().min(values.len());
        let (halves, rest) = halves[..len].as_chunks::<8>();
        let (values, values_rest) = values[..len].as_chunks_mut::<8>();
        for (halves, values) in halves.iter().zip(values) {
            // SAFETY: the array is 16 bytes long, and the load needs no alignment.
            let packed = unsafe { _mm_loadu_si128(halves.as_ptr().cast::<__m128i>()) };
            let wide = _mm256_cvtph_ps(packed);
            if _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide)) == 0 {
                // SAFETY: the array is 32 bytes long, and the store needs no alignment.
                unsafe { _mm256_storeu_ps(values.as_mut_ptr(), wide) };
            } else {
                *values = halves.map(super::f16_to_f32);
            }
        }
        for (value, &half) in values_rest.iter_mut().zip(rest) {
            *value = super::f16_to_f32(half);
        }
    }

    #[target_feature(enable = "avx,f16c")]
    pub fn f32s_to_f16s(values: &[f32], halves: &mut [u16]) {
        let len = halves.len().min(values.len());
        let (values, rest) = values[..len].as_chunks::<8>();
        let (halves, halves_rest) = halves[..len].as_chunks_mut::<8>();
        for (values, halves) in values.iter().zip(halves) {
            // SAFETY: the array is 32 bytes long, and the load needs no alignment.
            let wide = unsafe { _mm256_loadu_ps(values.as_ptr()) };
            if _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide)) == 0 {
                let packed = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                // SAFETY: the array is 16 bytes long, and the store needs no alignment.
                unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast::<__m128i>(), packed) };
            } else {
                *halves = values.map(super::f32_to_f16);
            }
        }
        for (half, &value) in halves_rest.iter_mut().zip(rest) {
            *half = super::f32_to_f16(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The value of a finite half by the definition of the format, in f64.
    fn defined(half: u16) -> f64 {
        let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
        let (exponent, mantissa) = (i32::from(half >> 10 & 0x1f), f64::from(half & 0x3ff));
        let magnitude = match exponent {
            0 => mantissa * 2f64.powi(-24),
            _ => (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
        };
        sign * magnitude
    }

    #[test]
    fn every_half_reads_as_its_definition() {
        for half in 0..=u16::MAX {
            let value = f16_to_f32(half);
            if half & 0x7c00 == 0x7c00 {
                let expected = 0x7f80_0000 | u32::from(half & 0x3ff) << 13 | u32::from(half & 0x8000) << 16;
                assert_eq!(value.to_bits(), expected, "{half:#06x}");
            } else {
                assert_eq!(f64::from(value), defined(half), "{half:#06x}");
                assert_eq!(value.is_sign_negative(), half & 0x8000 != 0, "{half:#06x}");
            }
            assert_eq!(f32_to_f16(value), half, "{half:#06x} does not survive the way there and back");
        }
        assert_eq!(f16_to_f32(0x0001), 5.960_464_5e-8);
    }

    #[test]
    fn halves_round_to_nearest_even() {
        for half in 0..0x7c00u16 {
            // The successor of the largest half is 65536 for the purpose of rounding, and stored as infinity.
            let (low, high) = (defined(half), if half == 0x7bff { 65536.0 } else { defined(half + 1) });
            let middle = ((low + high) / 2.0) as f32;
            let even = half + (half & 1);
            assert_eq!(f32_to_f16(middle), even, "{middle:e}");
            assert_eq!(f32_to_f16(middle.next_down()), half, "below {middle:e}");
            assert_eq!(f32_to_f16(middle.next_up()), half + 1, "above {middle:e}");
            assert_eq!(f32_to_f16(-middle), even | 0x8000, "{:e}", -middle);
        }
        assert_eq!(f32_to_f16(f32::MAX), 0x7c00);
        assert_eq!(f32_to_f16(f32::NEG_INFINITY), 0xfc00);
        assert_eq!(f32_to_f16(f32::from_bits(1)), 0);
        assert_eq!(f32_to_f16(f32::from_bits(0x7f80_0001)), 0x7c01);
        assert_eq!(f32_to_f16(f32::from_bits(0xffa0_0000)), 0xfd00);
    }

    #[test]
    fn bfloats_round_to_nearest_even() {
        assert_eq!(bf16_to_f32(0x3f80), 1.0);
        for bits in 0..=u16::MAX {
            let value = bf16_to_f32(bits);
            let quiet = if value.is_nan() { bits | 0x40 } else { bits };
            assert_eq!(f32_to_bf16(value), quiet, "{bits:#06x}");
            if value.is_finite() {
                let exact = value.to_bits();
                assert_eq!(f32_to_bf16(f32::from_bits(exact | 0x7fff)), bits, "below the middle");
                assert_eq!(f32_to_bf16(f32::from_bits(exact | 0x8000)), bits + (bits & 1), "in the middle");
                assert_eq!(f32_to_bf16(f32::from_bits(exact | 0x8001)), bits + 1, "above the middle");
            }
        }
    }

    #[test]
    fn slices_of_halves_have_the_bits_of_single_ones() {
        let halves: Vec<u16> = (0..=u16::MAX).chain([7, 0x7c01, 9]).collect();
        let mut values = vec![0.0; halves.len()];
        f16s_to_f32s(&halves, &mut values);
        for (&half, value) in halves.iter().zip(&values) {
            assert_eq!(value.to_bits(), f16_to_f32(half).to_bits(), "{half:#06x}");
        }
    }

    proptest! {
        #[test]
        fn slices_of_values_have_the_bits_of_single_ones(bits in prop::collection::vec(any::<u32>(), 0..100)) {
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            let mut halves = vec![0; values.len()];
            f32s_to_f16s(&values, &mut halves);
            for (half, &value) in halves.iter().zip(&values) {
                prop_assert_eq!(*half, f32_to_f16(value));
            }
        }
    }
}
