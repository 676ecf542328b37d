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
