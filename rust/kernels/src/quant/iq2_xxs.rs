//! IQ2_XXS: vectors of eight magnitudes with packed signs.

use super::format::{Format, ScaleField, TypeInfo};
use super::grids::{self, signed, signs_of};
use crate::float::f16_to_f32;

/// 256 values in 66 bytes: `d` f16, then 8 bytes for each 32 values: four grid indices and a word of four 7-bit sign indices under a 4-bit scale.
///
/// `d * (0.5 + scale) * 0.25 * grid * sign`.
pub(super) const IQ2_XXS: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<66, 256> for Layout {
    const ID: u32 = 16;
    const NAME: &'static str = "IQ2_XXS";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 66], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        for (out, qs) in out.as_chunks_mut::<32>().0.iter_mut().zip(block[2..].as_chunks::<8>().0) {
            let word = u32::from_le_bytes([qs[4], qs[5], qs[6], qs[7]]);
            let db = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                signed(db, &grids::IQ2_XXS[usize::from(qs[l])], signs_of(word >> (7 * l)), out);
            }
        }
    }
}
