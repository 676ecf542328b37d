//! TQ2_0: four ternary values a byte.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 256 values in 66 bytes: `qs` 64 bytes, `d` f16. In each half, bits `2s` of byte `l` of its 32 bytes are value `32 s + l`; `d * (q - 1)`.
pub(super) const TQ2_0: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<66, 256> for Layout {
    const ID: u32 = 35;
    const NAME: &'static str = "TQ2_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<64>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 66], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[64], block[65]]));
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (half, shift) = (group / 4, group % 4 * 2);
            for (out, &q) in out.iter_mut().zip(&block[half * 32..][..32]) {
                *out = d * f32::from((q >> shift & 3) as i8 - 1);
            }
        }
    }
}
