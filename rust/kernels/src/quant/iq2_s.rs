//! IQ2_S: vectors of eight magnitudes from the largest grid, free signs.

use super::format::{Format, ScaleField, TypeInfo};
use super::grids::{self, signed};
use crate::float::f16_to_f32;

/// 256 values in 82 bytes: `d` f16, `qs` 32 bytes, `signs` 32 bytes, `qh` 8 bytes (2 bits for each index), `scales` 8 bytes (a nibble for 16 values).
///
/// `d * (0.5 + scale) * 0.25 * grid * sign`.
pub(super) const IQ2_S: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<82, 256> for Layout {
    const ID: u32 = 22;
    const NAME: &'static str = "IQ2_S";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 82], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let (qs, signs) = (&block[2..34], &block[34..66]);
        let (qh, scales) = (&block[66..74], &block[74..]);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let db = d * (0.5 + f32::from(scales[i / 4] >> (i % 4 / 2 * 4) & 0xf)) * 0.25;
            let high = usize::from(qh[i / 4] >> (i % 4 * 2) & 3);
            signed(db, &grids::IQ2_S[usize::from(qs[i]) | high << 8], signs[i], out);
        }
    }
}
