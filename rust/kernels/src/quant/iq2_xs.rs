//! IQ2_XS: vectors of eight magnitudes from a larger grid, packed signs.

use super::format::{Format, ScaleField, TypeInfo};
use super::grids::{self, signed, signs_of};
use crate::float::f16_to_f32;

/// 256 values in 74 bytes: `d` f16, `qs` 32 words (9-bit grid index, 7-bit sign index), `scales` 8 bytes (a nibble for 16 values).
///
/// `d * (0.5 + scale) * 0.25 * grid * sign`.
pub(super) const IQ2_XS: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<74, 256> for Layout {
    const ID: u32 = 17;
    const NAME: &'static str = "IQ2_XS";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 74], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let (qs, scales) = block[2..].split_at(64);
        for (sub, (out, qs)) in out.as_chunks_mut::<16>().0.iter_mut().zip(qs.as_chunks::<4>().0).enumerate() {
            let db = d * (0.5 + f32::from(scales[sub / 2] >> (sub % 2 * 4) & 0xf)) * 0.25;
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let q = u16::from_le_bytes([qs[2 * l], qs[2 * l + 1]]);
                signed(db, &grids::IQ2_XS[usize::from(q & 511)], signs_of(u32::from(q >> 9)), out);
            }
        }
    }
}
