//! IQ1_S: ternary vectors with a common shift.

use super::format::{Format, ScaleField, TypeInfo};
use super::grids;
use crate::float::f16_to_f32;

/// 256 values in 50 bytes: `d` f16, `qs` 32 bytes, `qh` 8 words: for 32 values, four times 3 high index bits, a 3-bit scale, and the sign of the shift.
///
/// `d * (2 * scale + 1) * (grid ± 0.125)`.
pub(super) const IQ1_S: TypeInfo = TypeInfo::of::<Layout, _, _>();

/// How far the ternary values are shifted.
pub(super) const DELTA: f32 = 0.125;

struct Layout;
impl Format<50, 256> for Layout {
    const ID: u32 = 19;
    const NAME: &'static str = "IQ1_S";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 50], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let (qs, qh) = block[2..].split_at(32);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = u16::from_le_bytes([qh[i / 4 * 2], qh[i / 4 * 2 + 1]]);
            let dl = d * f32::from(2 * (word >> 12 & 7) + 1);
            let delta = if word & 0x8000 == 0 { DELTA } else { -DELTA };
            let high = usize::from(word >> (i % 4 * 3) & 7);
            for (out, &value) in out.iter_mut().zip(&grids::IQ1_S[usize::from(qs[i]) | high << 8]) {
                *out = dl * (f32::from(value) + delta);
            }
        }
    }
}
