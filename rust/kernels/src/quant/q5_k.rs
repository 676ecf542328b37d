//! Q5_K: Q4_K with a fifth bit.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::pack::{high_bits, quarter_nibbles};
use super::q4_k::{quantize_levels, unpack_scales_mins};
use super::search::Search;
use crate::float::f16_to_f32;

/// 256 values in 176 bytes: `d` f16, `dmin` f16, `scales` 12 bytes, `qh` 32 bytes, `qs` 128 bytes.
///
/// Low bits as in Q4_K; the fifth bit of value `j` is bit `j / 32` of byte `j % 32` of `qh`.
pub(super) const Q5_K: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

const WEIGHTED: Search = Search { max: 31, first: -0.9, step: 0.05, steps: 36, absolute: false, cut_first: true };
const PLAIN: Search = Search { max: 31, first: -0.5, step: 0.1, steps: 15, absolute: false, cut_first: false };

impl QuantizeBlock<176, 256> for Layout {
    #[inline(always)]
    fn quantize(x: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 176]) {
        let imatrix = importance.map(|importance| importance.columns);
        let (header, levels) = quantize_levels(PLAIN, WEIGHTED, x, imatrix);
        out[..16].copy_from_slice(&header);
        high_bits(&levels, 4, &mut out[16..48]);
        quarter_nibbles(&levels, &mut out[48..]);
    }
}

struct Layout;
impl Format<176, 256> for Layout {
    const ID: u32 = 13;
    const NAME: &'static str = "Q5_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d"), ScaleField::f16::<2>("dmin")];

    #[inline(always)]
    fn dequantize(block: &[u8; 176], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let dmin = f16_to_f32(u16::from_le_bytes([block[2], block[3]]));
        let (scales, mins) = unpack_scales_mins(block[4..16].first_chunk().expect("the range is 12 bytes"));
        let (qh, qs) = (&block[16..48], &block[48..]);
        let quarters = out.as_chunks_mut::<64>().0.iter_mut();
        for (quarter, (out, qs)) in quarters.zip(qs.as_chunks::<32>().0).enumerate() {
            let sub = 2 * quarter;
            let (dl, ml) = (d * f32::from(scales[sub]), dmin * f32::from(mins[sub]));
            let (dh, mh) = (d * f32::from(scales[sub + 1]), dmin * f32::from(mins[sub + 1]));
            let (low, high) = out.split_at_mut(32);
            for (((low, high), &q), &h) in low.iter_mut().zip(high).zip(qs).zip(qh) {
                *low = dl * f32::from(q & 0xf | (h >> sub & 1) << 4) - ml;
                *high = dh * f32::from(q >> 4 | (h >> (sub + 1) & 1) << 4) - mh;
            }
        }
    }
}
