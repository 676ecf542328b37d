//! Q5_0: 5-bit values around zero.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::pack::{fifth_bits, nibbles};
use super::search::{extreme, symmetric, truncate, weigh};
use crate::float::{f16_to_f32, f32_to_f16};

/// 32 values in 22 bytes: `d` f16, `qh` u32, `qs` 16 bytes. Low bits as in Q4_0, the fifth bit of value `j` is bit `j` of `qh`; `d * (q - 16)`.
pub(super) const Q5_0: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

impl QuantizeBlock<22, 32> for Layout {
    /// Without an importance matrix the value of largest magnitude becomes level 0; with one, the scale is searched for.
    #[inline(always)]
    fn quantize(x: &[f32; 32], importance: Option<Importance<'_, 32>>, out: &mut [u8; 22]) {
        let (d, levels) = match importance {
            None => {
                let d = extreme(x) / -16.0;
                let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
                (d, x.map(|x| truncate(x * inverse + 16.5).min(31) as u8))
            }
            Some(Importance { columns, sigma2 }) => {
                let mut levels = [0; 32];
                let d = symmetric(16, x, &weigh(columns, sigma2, x), &mut levels);
                (d, levels.map(|level| level as u8))
            }
        };
        out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
        out[6..].copy_from_slice(&nibbles(&levels));
        out[2..6].copy_from_slice(&fifth_bits(&levels));
    }
}

struct Layout;
impl Format<22, 32> for Layout {
    const ID: u32 = 6;
    const NAME: &'static str = "Q5_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 22], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let qh = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let (low, high) = out.split_at_mut(16);
        for (j, ((low, high), &q)) in low.iter_mut().zip(high).zip(&block[6..]).enumerate() {
            let q = u32::from(q);
            *low = d * ((q & 0xf | (qh >> j & 1) << 4) as i32 - 16) as f32;
            *high = d * ((q >> 4 | (qh >> (j + 16) & 1) << 4) as i32 - 16) as f32;
        }
    }
}
