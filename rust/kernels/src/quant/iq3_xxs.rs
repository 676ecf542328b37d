//! IQ3_XXS: vectors of four magnitudes with packed signs.

use super::format::{Format, ScaleField, TypeInfo};
use super::grids::{self, signed, signs_of};
use crate::float::f16_to_f32;

/// 256 values in 98 bytes: `d` f16, `qs` 64 grid indices, then a word for each 32 values: four 7-bit sign indices under a 4-bit scale.
///
/// `d * (0.5 + scale) * 0.5 * grid * sign`.
pub(super) const IQ3_XXS: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<98, 256> for Layout {
    const ID: u32 = 18;
    const NAME: &'static str = "IQ3_XXS";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 98], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let (qs, words) = block[2..].split_at(64);
        let subs = qs.as_chunks::<8>().0.iter().zip(words.as_chunks::<4>().0);
        for (out, (qs, word)) in out.as_chunks_mut::<32>().0.iter_mut().zip(subs) {
            let word = u32::from_le_bytes(*word);
            let db = d * (0.5 + (word >> 28) as f32) * 0.5;
            for (l, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let signs = signs_of(word >> (7 * (l / 2))) >> (l % 2 * 4);
                signed(db, &grids::IQ3_XXS[usize::from(qs[l])], signs, out);
            }
        }
    }
}
