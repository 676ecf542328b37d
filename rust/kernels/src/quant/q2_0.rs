//! Q2_0: four values a byte.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 64 values in 18 bytes: `d` f16, `qs` 16 bytes. Value `j` is bits `2 (j % 4)` of byte `j / 4`; `d * (q - 1)`. Source: llama.cpp b11434.
pub(super) const Q2_0: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<18, 64> for Layout {
    const ID: u32 = 42;
    const NAME: &'static str = "Q2_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 18], out: &mut [f32; 64]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        for (out, &bits) in out.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..]) {
            for (j, out) in out.iter_mut().enumerate() {
                *out = d * f32::from((bits >> (2 * j) & 3) as i8 - 1);
            }
        }
    }
}
