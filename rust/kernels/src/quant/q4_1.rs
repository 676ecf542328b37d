//! Q4_1: 4-bit values above a minimum.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::pack::nibbles;
use super::search::{Search, affine, range, truncate, weigh};
use crate::float::{f16_to_f32, f32_to_f16};

/// 32 values in 20 bytes: `d` f16, `m` f16, `qs` 16 bytes. Value `j` is the low nibble of byte `j`, value `j + 16` the high one; `d * q + m`.
pub(super) const Q4_1: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

const SEARCH: Search = Search { max: 15, first: -0.9, step: 0.05, steps: 36, absolute: false, cut_first: true };

impl QuantizeBlock<20, 32> for Layout {
    /// Without an importance matrix the levels span the range of the values; with one, scale and minimum are searched for.
    #[inline(always)]
    fn quantize(x: &[f32; 32], importance: Option<Importance<'_, 32>>, out: &mut [u8; 20]) {
        let (d, m, levels) = match importance {
            None => {
                let (min, max) = range(x);
                let d = (max - min) / 15.0;
                let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
                (d, min, x.map(|x| truncate((x - min) * inverse + 0.5).min(15) as u8))
            }
            Some(Importance { columns, sigma2 }) => {
                let mut levels = [0; 32];
                let (d, min) = affine(SEARCH, x, &weigh(columns, sigma2, x), &mut levels);
                (d, -min, levels)
            }
        };
        out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
        out[2..4].copy_from_slice(&f32_to_f16(m).to_le_bytes());
        out[4..].copy_from_slice(&nibbles(&levels));
    }
}

struct Layout;
impl Format<20, 32> for Layout {
    const ID: u32 = 3;
    const NAME: &'static str = "Q4_1";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d"), ScaleField::f16::<2>("m")];

    #[inline(always)]
    fn dequantize(block: &[u8; 20], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let m = f16_to_f32(u16::from_le_bytes([block[2], block[3]]));
        let mut levels = [0; 32];
        for (l, &q) in block[4..].iter().enumerate() {
            levels[l] = q & 0xf;
            levels[l + 16] = q >> 4;
        }
        *out = levels.map(|q| d * f32::from(q) + m);
    }
}
