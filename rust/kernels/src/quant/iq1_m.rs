//! IQ1_M: ternary vectors with a shift for each, and the super-block's scale spread over four words.

use super::format::{Format, ScaleField, TypeInfo};
use super::grids;
use super::iq1_s::DELTA;
use crate::float::f16_to_f32;

/// 256 values in 56 bytes: `qs` 32 bytes, `qh` 16 bytes (a nibble for 8 values: 3 high index bits, the sign of the shift), `scales` 4 words.
///
/// A word's top nibble is a quarter of the f16 scale `d`, the first word's lowest; below lie four 3-bit scales, one for 16 values.
/// `d * (2 * scale + 1) * (grid ± 0.125)`.
pub(super) const IQ1_M: TypeInfo = TypeInfo::of::<Layout, _, _>();

#[inline(always)]
fn super_scale(block: &[u8]) -> f32 {
    f16_to_f32((0..4).map(|w| u16::from(block[49 + 2 * w] >> 4) << (4 * w)).sum())
}

struct Layout;
impl Format<56, 256> for Layout {
    const ID: u32 = 29;
    const NAME: &'static str = "IQ1_M";
    const SCALES: &'static [ScaleField] = &[ScaleField { name: "d", read: |block| super_scale(block) }];

    #[inline(always)]
    fn dequantize(block: &[u8; 56], out: &mut [f32; 256]) {
        let d = super_scale(block);
        let (qs, qh, scales) = (&block[..32], &block[32..48], &block[48..]);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let sub = i / 2;
            let word = u16::from_le_bytes([scales[sub / 4 * 2], scales[sub / 4 * 2 + 1]]);
            let dl = d * f32::from(2 * (word >> (sub % 4 * 3) & 7) + 1);
            let nibble = qh[sub] >> (i % 2 * 4);
            let delta = if nibble & 8 == 0 { DELTA } else { -DELTA };
            let high = usize::from(nibble & 7);
            for (out, &value) in out.iter_mut().zip(&grids::IQ1_S[usize::from(qs[i]) | high << 8]) {
                *out = dl * (f32::from(value) + delta);
            }
        }
    }
}
