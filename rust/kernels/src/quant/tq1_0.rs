//! TQ1_0: five ternary digits a byte.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 256 values in 54 bytes: `qs` 48 bytes, `qh` 4 bytes, `d` f16.
///
/// A byte is a base-3 fraction: digit `n` is `((byte * 3^n mod 256) * 3) >> 8`. The first 32 bytes hold five values each, digit by digit,
/// then 16 bytes five, then `qh` four; `d * (digit - 1)`.
pub(super) const TQ1_0: TypeInfo = TypeInfo::of::<Layout, _, _>();

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

#[inline(always)]
fn digits(d: f32, bytes: &[u8], power: u8, out: &mut [f32]) {
    for (out, &byte) in out.iter_mut().zip(bytes) {
        let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
        *out = d * f32::from(digit as i16 - 1);
    }
}

struct Layout;
impl Format<54, 256> for Layout {
    const ID: u32 = 34;
    const NAME: &'static str = "TQ1_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<52>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 54], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[52], block[53]]));
        let (first, rest) = out.split_at_mut(160);
        let (second, third) = rest.split_at_mut(80);
        for (n, &power) in POWERS.iter().enumerate() {
            digits(d, &block[..32], power, &mut first[n * 32..][..32]);
            digits(d, &block[32..48], power, &mut second[n * 16..][..16]);
        }
        for (n, &power) in POWERS[..4].iter().enumerate() {
            digits(d, &block[48..52], power, &mut third[n * 4..][..4]);
        }
    }
}
