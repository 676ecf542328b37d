//! IQ4_XS: the levels of IQ4_NL in super-blocks.

use super::format::{Format, ScaleField, TypeInfo};
use super::iq4_nl::VALUES;
use crate::float::f16_to_f32;

/// 256 values in 136 bytes: `d` f16, `scales_h` u16 (2 bits for each 32 values), `scales_l` 4 bytes (nibbles), `qs` 128 bytes.
///
/// Each 32 values have 16 bytes as in IQ4_NL; `d * (scale - 32) * VALUES[q]`.
pub(super) const IQ4_XS: TypeInfo = TypeInfo::of::<Layout, _, _>();

struct Layout;
impl Format<136, 256> for Layout {
    const ID: u32 = 23;
    const NAME: &'static str = "IQ4_XS";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 136], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let scales_h = u16::from_le_bytes([block[2], block[3]]);
        let (scales_l, qs) = block[4..].split_at(4);
        for (sub, (out, qs)) in out.as_chunks_mut::<32>().0.iter_mut().zip(qs.as_chunks::<16>().0).enumerate() {
            let low = scales_l[sub / 2] >> (sub % 2 * 4) & 0xf;
            let high = (scales_h >> (2 * sub) & 3) as u8;
            let dl = d * f32::from((low | high << 4) as i8 - 32);
            let (first, second) = out.split_at_mut(16);
            for ((first, second), &q) in first.iter_mut().zip(second).zip(qs) {
                *first = dl * f32::from(VALUES[usize::from(q & 0xf)]);
                *second = dl * f32::from(VALUES[usize::from(q >> 4)]);
            }
        }
    }
}
