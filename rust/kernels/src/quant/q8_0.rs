//! Q8_0: 8-bit values around zero.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::search::truncate;
use crate::float::{f16_to_f32, f32_to_f16};

/// 32 values in 34 bytes: `d` f16, `qs` 32 signed bytes; `q * d`.
pub(super) const Q8_0: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

impl QuantizeBlock<34, 32> for Layout {
    /// The value of largest magnitude becomes ±127; halves are rounded away from zero. An importance matrix changes nothing.
    #[inline(always)]
    fn quantize(x: &[f32; 32], _importance: Option<Importance<'_, 32>>, out: &mut [u8; 34]) {
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let d = largest / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
        for (out, &x) in out[2..].iter_mut().zip(x) {
            *out = truncate((x * inverse).round()) as u8;
        }
    }
}

struct Layout;
impl Format<34, 32> for Layout {
    const ID: u32 = 8;
    const NAME: &'static str = "Q8_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 34], out: &mut [f32; 32]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        for (out, &q) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(q as i8) * d;
        }
    }
}
