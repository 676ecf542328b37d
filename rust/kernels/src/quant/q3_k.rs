//! Q3_K: super-blocks of 16 sub-blocks with signed 6-bit scales.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 256 values in 110 bytes: `hmask` 32 bytes, `qs` 64 bytes, `scales` 12 bytes, `d` f16.
///
/// Low bits as in Q2_K; bit `j / 32` of byte `j % 32` of `hmask` says that 4 is **not** taken off value `j`; `d * (scale - 32) * q`.
pub(super) const Q3_K: TypeInfo = TypeInfo::of::<Layout, _, _>();

/// The sixteen 6-bit scales, 32 taken off: low nibbles in bytes 0 to 7, the two high bits in bytes 8 to 11.
#[inline(always)]
fn unpack_scales(scales: &[u8]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = scales[j % 8] >> (j / 8 * 4) & 0xf;
        let high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

struct Layout;
impl Format<110, 256> for Layout {
    const ID: u32 = 11;
    const NAME: &'static str = "Q3_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<108>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 110], out: &mut [f32; 256]) {
        let (hmask, qs) = (&block[..32], &block[32..96]);
        let scales = unpack_scales(&block[96..108]);
        let d = f16_to_f32(u16::from_le_bytes([block[108], block[109]]));
        for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let dl = d * f32::from(scales[sub]);
            let (half, shift, odd) = (sub / 8, sub % 8 / 2 * 2, sub % 2);
            let qs = &qs[half * 32 + odd * 16..][..16];
            let hmask = &hmask[odd * 16..][..16];
            for ((out, &q), &h) in out.iter_mut().zip(qs).zip(hmask) {
                let low = (q >> shift & 3) as i8;
                let missing = (!h >> (sub / 2) & 1) as i8;
                *out = dl * f32::from(low - 4 * missing);
            }
        }
    }
}
