//! IQ4_NL: 4-bit indices into a table.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 32 values in 18 bytes: `d` f16, `qs` 16 bytes. Value `j` is the low nibble of byte `j`, value `j + 16` the high one; `d * VALUES[q]`.
pub(super) const IQ4_NL: TypeInfo = TypeInfo::of::<Layout, _, _>();

/// The sixteen levels: denser near zero. Source: `kvalues` of gguf-py 0.19.
pub(super) const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

struct Layout;
impl Format<18, 32> for Layout {
    const ID: u32 = 20;
    const NAME: &'static str = "IQ4_NL";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 18], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &q) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = d * f32::from(VALUES[usize::from(q & 0xf)]);
            *high = d * f32::from(VALUES[usize::from(q >> 4)]);
        }
    }
}
