//! Q8_0: 8-bit values around zero.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 32 values in 34 bytes: `d` f16, `qs` 32 signed bytes; `q * d`.
pub(super) const Q8_0: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<34, 32> for Layout {
    const ID: u32 = 8;
    const NAME: &'static str = "Q8_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 34], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        for (out, &q) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(q as i8) * d;
        }
    }
}
