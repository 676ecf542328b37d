//! Q4_1: 4-bit values above a minimum.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 32 values in 20 bytes: `d` f16, `m` f16, `qs` 16 bytes. Value `j` is the low nibble of byte `j`, value `j + 16` the high one; `d * q + m`.
pub(super) const Q4_1: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<20, 32> for Layout {
    const ID: u32 = 3;
    const NAME: &'static str = "Q4_1";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d"), ScaleField::f16::<2>("m")];

    #[inline(always)]
    fn dequantize(block: &[u8; 20], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let m = f16_to_f32(u16::from_le_bytes([block[2], block[3]]));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &q) in low.iter_mut().zip(high).zip(&block[4..]) {
            *low = d * f32::from(q & 0xf) + m;
            *high = d * f32::from(q >> 4) + m;
        }
    }
}
