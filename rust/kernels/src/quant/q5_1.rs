//! Q5_1: 5-bit values above a minimum.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::pack::{fifth_bits, nibbles};
use super::search::{Search, affine, range, truncate, weigh};
use crate::float::{f16_to_f32, f32_to_f16};

/// 32 values in 24 bytes: `d` f16, `m` f16, `qh` u32, `qs` 16 bytes. Bits as in Q5_0; `d * q + m`.
pub(super) const Q5_1: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

const SEARCH: Search = Search { max: 31, first: -0.9, step: 0.05, steps: 36, absolute: false, cut_first: true };

impl QuantizeBlock<24, 32> for Layout {
    /// Without an importance matrix the levels span the range of the values; with one, scale and minimum are searched for.
    #[inline(always)]
    fn quantize(x: &[f32; 32], importance: Option<Importance<'_, 32>>, out: &mut [u8; 24]) {
        let (d, m, levels) = match importance {
            None => {
                let (min, max) = range(x);
                let d = (max - min) / 31.0;
                let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
                (d, min, x.map(|x| truncate((x - min) * inverse + 0.5) as u8))
            }
            Some(Importance { columns, sigma2 }) => {
                let mut levels = [0; 32];
                let (d, min) = affine(SEARCH, x, &weigh(columns, sigma2, x), &mut levels);
                (d, -min, levels)
            }
        };
        out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
        out[2..4].copy_from_slice(&f32_to_f16(m).to_le_bytes());
        out[8..].copy_from_slice(&nibbles(&levels));
        out[4..8].copy_from_slice(&fifth_bits(&levels));
    }
}

struct Layout;
impl Format<24, 32> for Layout {
    const ID: u32 = 7;
    const NAME: &'static str = "Q5_1";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d"), ScaleField::f16::<2>("m")];

    #[inline(always)]
    fn dequantize(block: &[u8; 24], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let m = f16_to_f32(u16::from_le_bytes([block[2], block[3]]));
        let qh = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        let (low, high) = out.split_at_mut(16);
        for (j, ((low, high), &q)) in low.iter_mut().zip(high).zip(&block[8..]).enumerate() {
            let q = u32::from(q);
            *low = d * (q & 0xf | (qh >> j & 1) << 4) as i32 as f32 + m;
            *high = d * (q >> 4 | (qh >> (j + 16) & 1) << 4) as i32 as f32 + m;
        }
    }
}
