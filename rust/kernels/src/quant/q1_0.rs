//! Q1_0: one sign bit a value.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 128 values in 18 bytes: `d` f16, `qs` 16 bytes. Value `j` is `d` if bit `j % 8` of byte `j / 8` is set, else `-d`. Source: llama.cpp b11434.
pub(super) const Q1_0: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<18, 128> for Layout {
    const ID: u32 = 41;
    const NAME: &'static str = "Q1_0";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 18], out: &mut [f32; 128]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        for (out, &bits) in out.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
            for (j, out) in out.iter_mut().enumerate() {
                *out = if bits >> j & 1 == 1 { d } else { -d };
            }
        }
    }
}
