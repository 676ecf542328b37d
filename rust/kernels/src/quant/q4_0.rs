//! Q4_0: 4-bit values around zero.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::pack::nibbles;
use super::search::{extreme, symmetric, truncate, weigh};
use crate::float::{f16_to_f32, f32_to_f16};

/// 32 values in 18 bytes: `d` f16, `qs` 16 bytes. Value `j` is the low nibble of byte `j`, value `j + 16` the high one; `d * (q - 8)`.
pub(super) const Q4_0: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

impl QuantizeBlock<18, 32> for Layout {
    /// Without an importance matrix the value of largest magnitude becomes level 0; with one, the scale is searched for.
    #[inline(always)]
    fn quantize(x: &[f32; 32], importance: Option<Importance<'_, 32>>, out: &mut [u8; 18]) {
        let (d, levels) = match importance {
            None => {
                let d = extreme(x) / -8.0;
                let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
                (d, x.map(|x| truncate(x * inverse + 8.5).min(15) as u8))
            }
            Some(Importance { columns, sigma2 }) => {
                let mut levels = [0; 32];
                let d = symmetric(8, x, &weigh(columns, sigma2, x), &mut levels);
                (d, levels.map(|level| level as u8))
            }
        };
        out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
        out[2..].copy_from_slice(&nibbles(&levels));
    }
}

struct Layout;
impl Format<18, 32> for Layout {
    const ID: u32 = 2;
    const NAME: &'static str = "Q4_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 18], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let mut levels = [0; 32];
        for (l, &q) in block[2..].iter().enumerate() {
            levels[l] = (q & 0xf) as i8 - 8;
            levels[l + 16] = (q >> 4) as i8 - 8;
        }
        *out = levels.map(|q| d * f32::from(q));
    }
}
