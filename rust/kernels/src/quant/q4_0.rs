//! Q4_0: 4-bit values around zero.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 32 values in 18 bytes: `d` f16, `qs` 16 bytes. Value `j` is the low nibble of byte `j`, value `j + 16` the high one; `d * (q - 8)`.
pub(super) const Q4_0: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<18, 32> for Layout {
    const ID: u32 = 2;
    const NAME: &'static str = "Q4_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 18], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &q) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = d * f32::from((q & 0xf) as i8 - 8);
            *high = d * f32::from((q >> 4) as i8 - 8);
        }
    }
}
