//! Q6_K: super-blocks of 16 sub-blocks with signed 8-bit scales.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 256 values in 210 bytes: `ql` 128 bytes, `qh` 64 bytes, `scales` 16 signed bytes, `d` f16.
///
/// In each half of 128 values, values 0 to 63 are the low nibbles of its 64 bytes of `ql`, the others the high ones;
/// bits `2s` of byte `l` of its 32 bytes of `qh` are the upper bits of value `32 s + l`; `d * scale * (q - 32)`.
pub(super) const Q6_K: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<210, 256> for Layout {
    const ID: u32 = 14;
    const NAME: &'static str = "Q6_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<208>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 210], out: &mut [f32; 256]) {
        let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = f16_to_f32(u16::from_le_bytes([block[208], block[209]]));
        for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let dl = d * f32::from(scales[sub] as i8);
            let (half, within) = (sub / 8, sub % 8);
            let ql = &ql[half * 64 + within % 4 * 16..][..16];
            let qh = &qh[half * 32 + within % 2 * 16..][..16];
            let (low_shift, high_shift) = (within / 4 * 4, within / 2 * 2);
            for ((out, &l), &h) in out.iter_mut().zip(ql).zip(qh) {
                let q = (l >> low_shift & 0xf | (h >> high_shift & 3) << 4) as i8;
                *out = dl * f32::from(q - 32);
            }
        }
    }
}
