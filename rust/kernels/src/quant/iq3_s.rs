//! IQ3_S: vectors of four magnitudes, free signs.

use super::format::{Format, ScaleField, TypeInfo};
use super::grids::{self, signed};
use crate::float::f16_to_f32;

/// 256 values in 110 bytes: `d` f16, `qs` 64 bytes, `qh` 8 bytes (a ninth bit for each index), `signs` 32 bytes, `scales` 4 bytes (a nibble for 32 values).
///
/// `d * (1 + 2 * scale) * grid * sign`.
pub(super) const IQ3_S: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<110, 256> for Layout {
    const ID: u32 = 21;
    const NAME: &'static str = "IQ3_S";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 110], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let (qs, qh) = (&block[2..66], &block[66..74]);
        let (signs, scales) = (&block[74..106], &block[106..]);
        for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let scale = scales[i / 16] >> (i / 8 % 2 * 4) & 0xf;
            let db = d * f32::from(1 + 2 * scale);
            let high = usize::from(qh[i / 8] >> (i % 8) & 1);
            signed(db, &grids::IQ3_S[usize::from(qs[i]) | high << 8], signs[i / 2] >> (i % 2 * 4), out);
        }
    }
}
