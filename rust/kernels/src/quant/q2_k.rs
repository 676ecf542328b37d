//! Q2_K: super-blocks of 16 sub-blocks with 4-bit scales and minimums.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 256 values in 84 bytes: `scales` 16 bytes (scale in the low nibble, minimum in the high), `qs` 64 bytes, `d` f16, `dmin` f16.
///
/// In each half of 128 values, bits `2s` of byte `l` of its 32 bytes are value `32 s + l`; `d * scale * q - dmin * min`.
pub(super) const Q2_K: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<84, 256> for Layout {
    const ID: u32 = 10;
    const NAME: &'static str = "Q2_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<80>("d"), ScaleField::f16::<82>("dmin")];

    #[inline(always)]
    fn dequantize(block: &[u8; 84], out: &mut [f32; 256]) {
        let (scales, qs) = (&block[..16], &block[16..80]);
        let d = f16_to_f32(u16::from_le_bytes([block[80], block[81]]));
        let dmin = f16_to_f32(u16::from_le_bytes([block[82], block[83]]));
        for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let dl = d * f32::from(scales[sub] & 0xf);
            let ml = dmin * f32::from(scales[sub] >> 4);
            let (half, shift, odd) = (sub / 8, sub % 8 / 2 * 2, sub % 2);
            let qs = &qs[half * 32 + odd * 16..][..16];
            for (out, &q) in out.iter_mut().zip(qs) {
                *out = dl * f32::from(q >> shift & 3) - ml;
            }
        }
    }
}
