//! Q2_K: super-blocks of 16 sub-blocks with 4-bit scales and minimums.

use super::format::{Format, QuantizeFn, ScaleField, TypeInfo, each_row_block};
use super::pack::{pairs, unpack_pairs};
use super::search::{Search, affine, importance, nearest, positive, sum_of_squares};
use crate::float::{f16_to_f32, f32_to_f16};

/// 256 values in 84 bytes: `scales` 16 bytes (scale in the low nibble, minimum in the high), `qs` 64 bytes, `d` f16, `dmin` f16.
///
/// In each half of 128 values, bits `2s` of byte `l` of its 32 bytes are value `32 s + l`; `d * scale * q - dmin * min`.
pub(super) const Q2_K: TypeInfo = TypeInfo::of::<Layout, _, _>();

/// The search with an importance matrix; the one without counts errors by magnitude.
const WEIGHTED: Search = Search { max: 3, first: -0.9, step: 0.05, steps: 36, absolute: false, cut_first: true };
const PLAIN: Search = Search { max: 3, first: -0.5, step: 0.1, steps: 15, absolute: true, cut_first: false };

fn quantize(row: &[f32], imatrix: Option<&[f32]>, out: &mut [u8]) {
    each_row_block(row, imatrix, out, quantize_block);
}

fn quantize_block(x: &[f32; 256], imatrix: Option<&[f32; 256]>, out: &mut [u8; 84]) {
    let (mut levels, mut scales, mut mins) = ([0u8; 256], [0f32; 16], [0f32; 16]);
    let (subs, level_subs) = (x.as_chunks::<16>().0, levels.as_chunks_mut::<16>().0);
    let (mut d, mut dmin, mut packed) = (0.0, 0.0, [0u8; 16]);
    if let Some(imatrix) = imatrix {
        let sigma2 = sum_of_squares(x) / 256.0;
        let mut sums = [0f32; 16];
        for (j, (x, levels)) in subs.iter().zip(level_subs).enumerate() {
            let weights = importance(&imatrix[16 * j..], sigma2, x);
            sums[j] = weights.iter().sum();
            (scales[j], mins[j]) = affine(WEIGHTED, x, &weights, levels);
        }
        let (mut low, mut high) = ([0; 16], [0; 16]);
        d = positive(15, &scales, &sums, &mut low);
        dmin = positive(15, &mins, &sums, &mut high);
        packed = std::array::from_fn(|j| low[j] | high[j] << 4);
    } else {
        for (j, (x, levels)) in subs.iter().zip(level_subs).enumerate() {
            (scales[j], mins[j]) = affine(PLAIN, x, &x.map(f32::abs), levels);
        }
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

struct Layout;
impl Format<84, 256> for Layout {
    const ID: u32 = 10;
    const NAME: &'static str = "Q2_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<80>("d"), ScaleField::f16::<82>("dmin")];
    const QUANTIZE: Option<QuantizeFn> = Some(quantize);

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
