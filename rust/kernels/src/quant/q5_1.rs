//! Q5_1: 5-bit values above a minimum.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 32 values in 24 bytes: `d` f16, `m` f16, `qh` u32, `qs` 16 bytes. Bits as in Q5_0; `d * q + m`.
pub(super) const Q5_1: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<24, 32> for Layout {
    const ID: u32 = 7;
    const NAME: &'static str = "Q5_1";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d"), ScaleField::f16::<2>("m")];

    #[inline(always)]
    fn dequantize(block: &[u8; 24], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let m = f16_to_f32(u16::from_le_bytes([block[2], block[3]]));
        let qh = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        let (low, high) = out.split_at_mut(16);
        for (j, ((low, high), &q)) in low.iter_mut().zip(high).zip(&block[8..]).enumerate() {
            let q = u32::from(q);
            *low = d * (q & 0xf | (qh >> j & 1) << 4) as i32 as f32 + m;
            *high = d * (q >> 4 | (qh >> (j + 16) & 1) << 4) as i32 as f32 + m;
        }
    }
}
