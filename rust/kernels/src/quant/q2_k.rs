//! Q2_K: super-blocks of 16 sub-blocks with 4-bit scales and minimums.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::lanes::affine_groups;
use super::pack::{pairs, unpack_pairs};
use super::search::{Search, nearest, positive, sum_of_squares, weigh};
use crate::float::{f16_to_f32, f32_to_f16};

/// 256 values in 84 bytes: `scales` 16 bytes (scale in the low nibble, minimum in the high), `qs` 64 bytes, `d` f16, `dmin` f16.
///
/// In each half of 128 values, bits `2s` of byte `l` of its 32 bytes are value `32 s + l`; `d * scale * q - dmin * min`.
pub(super) const Q2_K: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

/// The search with an importance matrix; the one without counts errors by magnitude.
const WEIGHTED: Search = Search { max: 3, first: -0.9, step: 0.05, steps: 36, absolute: false, cut_first: true };
const PLAIN: Search = Search { max: 3, first: -0.5, step: 0.1, steps: 15, absolute: true, cut_first: false };

impl QuantizeBlock<84, 256> for Layout {
    #[inline(always)]
    fn quantize(x: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 84]) {
        let imatrix = importance.map(|importance| importance.columns);
        let (mut levels, mut scales, mut mins) = ([0u8; 256], [0f32; 16], [0f32; 16]);
        let (subs, level_subs) = (x.as_chunks::<16>().0, levels.as_chunks_mut::<16>().0);
        let (mut d, mut dmin, mut packed) = (0.0, 0.0, [0u8; 16]);
        if let Some(imatrix) = imatrix {
            let sigma2 = sum_of_squares(x) / 256.0;
            let weights: [[f32; 16]; 16] = std::array::from_fn(|j| weigh(&imatrix[16 * j..], sigma2, &subs[j]));
            let sums = weights.map(|weights| weights.iter().sum());
            affine_groups(WEIGHTED, subs, &weights, level_subs, &mut scales, &mut mins);
            let (mut low, mut high) = ([0; 16], [0; 16]);
            d = positive(15, &scales, &sums, &mut low);
            dmin = positive(15, &mins, &sums, &mut high);
            packed = std::array::from_fn(|j| low[j] | high[j] << 4);
        } else {
            let weights: [[f32; 16]; 16] = std::array::from_fn(|j| subs[j].map(f32::abs));
            affine_groups(PLAIN, subs, &weights, level_subs, &mut scales, &mut mins);
            let largest = |values: &[f32; 16]| values.iter().fold(0.0, |max, &v| if v > max { v } else { max });
            let (max_scale, max_min) = (largest(&scales), largest(&mins));
            if max_scale > 0.0 {
                packed = scales.map(|scale| nearest(15.0 / max_scale * scale) as u8);
                d = max_scale / 15.0;
            }
            if max_min > 0.0 {
                packed = std::array::from_fn(|j| packed[j] | (nearest(15.0 / max_min * mins[j]) << 4) as u8);
                dmin = max_min / 15.0;
            }
        }
        let (d, dmin) = (f32_to_f16(d), f32_to_f16(dmin));
        // The levels are chosen again for the scales as they are stored; a scale of zero keeps those of the search.
        for (j, (x, levels)) in subs.iter().zip(levels.as_chunks_mut::<16>().0).enumerate() {
            let scale = f16_to_f32(d) * f32::from(packed[j] & 0xf);
            if scale != 0.0 {
                let min = f16_to_f32(dmin) * f32::from(packed[j] >> 4);
                *levels = x.map(|x| nearest((x + min) / scale).clamp(0, 3) as u8);
            }
        }
        out[..16].copy_from_slice(&packed);
        pairs(&levels, &mut out[16..80]);
        out[80..82].copy_from_slice(&d.to_le_bytes());
        out[82..].copy_from_slice(&dmin.to_le_bytes());
    }
}

struct Layout;
impl Format<84, 256> for Layout {
    const ID: u32 = 10;
    const NAME: &'static str = "Q2_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<80>("d"), ScaleField::f16::<82>("dmin")];

    #[inline(always)]
    fn dequantize(block: &[u8; 84], out: &mut [f32; 256]) {
        let (scales, qs) = (&block[..16], &block[16..80]);
        let d = f16_to_f32(u16::from_le_bytes([block[80], block[81]]));
        let dmin = f16_to_f32(u16::from_le_bytes([block[82], block[83]]));
        let mut levels = [0; 256];
        unpack_pairs(qs, &mut levels);
        let subs = out.as_chunks_mut::<16>().0.iter_mut().zip(levels.as_chunks::<16>().0);
        for ((out, levels), &scale) in subs.zip(scales) {
            let (dl, ml) = (d * f32::from(scale & 0xf), dmin * f32::from(scale >> 4));
            for (out, &q) in out.iter_mut().zip(levels) {
                *out = dl * f32::from(q) - ml;
            }
        }
    }
}
