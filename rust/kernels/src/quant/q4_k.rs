//! Q4_K: super-blocks of 8 sub-blocks with 6-bit scales and minimums.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::lanes::affine;
use super::pack::quarter_nibbles;
use super::search::{Search, nearest, positive, sum_of_squares, weigh};
use crate::float::{f16_to_f32, f32_to_f16};

/// 256 values in 144 bytes: `d` f16, `dmin` f16, `scales` 12 bytes, `qs` 128 bytes.
///
/// In each quarter of 64 values, value `l` is the low nibble of byte `l` of its 32 bytes, value `l + 32` the high one; `d * scale * q - dmin * min`.
pub(super) const Q4_K: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

/// The eight 6-bit scales and the eight 6-bit minimums of a Q4_K or Q5_K super-block.
///
/// The first four of each have bytes 0 to 3 and 4 to 7; the last four have nibbles in bytes 8 to 11 and their two high bits atop the first eight bytes.
#[inline(always)]
#[must_use]
pub fn unpack_scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let mut scales = [0; 8];
    let mut mins = [0; 8];
    for j in 0..4 {
        scales[j] = packed[j] & 0x3f;
        mins[j] = packed[j + 4] & 0x3f;
        scales[j + 4] = packed[j + 8] & 0xf | packed[j] >> 2 & 0x30;
        mins[j + 4] = packed[j + 8] >> 4 | packed[j + 4] >> 2 & 0x30;
    }
    (scales, mins)
}

const WEIGHTED: Search = Search { max: 15, first: -0.9, step: 0.05, steps: 36, absolute: false, cut_first: true };
const PLAIN: Search = Search { max: 15, first: -1.0, step: 0.1, steps: 20, absolute: false, cut_first: false };

impl QuantizeBlock<144, 256> for Layout {
    #[inline(always)]
    fn quantize(x: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 144]) {
        let imatrix = importance.map(|importance| importance.columns);
        let (header, levels) = quantize_levels(PLAIN, WEIGHTED, x, imatrix);
        out[..16].copy_from_slice(&header);
        quarter_nibbles(&levels, &mut out[16..]);
    }
}

/// The first 16 bytes (`d`, `dmin`, `scales`) and the levels of a Q4_K or Q5_K super-block.
#[inline(always)]
pub(super) fn quantize_levels(
    plain: Search,
    weighted: Search,
    x: &[f32; 256],
    imatrix: Option<&[f32; 256]>,
) -> ([u8; 16], [u8; 256]) {
    let (mut levels, mut sums) = ([0u8; 256], [0f32; 8]);
    let subs: &[[f32; 32]; 8] = x.as_chunks().0.first_chunk().expect("a super-block has 8 sub-blocks");
    let level_subs = levels.as_chunks_mut().0.first_chunk_mut().expect("a super-block has 8 sub-blocks");
    let (scales, mins) = match imatrix {
        None => {
            let weights = subs.map(|x| {
                let mean = (sum_of_squares(&x) / 32.0).sqrt();
                x.map(|x| mean + x.abs())
            });
            affine(plain, subs, &weights, level_subs)
        }
        Some(imatrix) => {
            let sigma2 = 2.0 * sum_of_squares(x) / 256.0;
            let weights = std::array::from_fn(|j| weigh(&imatrix[32 * j..], sigma2, &subs[j]));
            sums = weights.map(|weights: [f32; 32]| weights.iter().sum());
            affine(weighted, subs, &weights, level_subs)
        }
    };
    let (mut packed_scales, mut packed_mins) = ([0; 8], [0; 8]);
    let (d, dmin) = if imatrix.is_some() {
        let d = positive(63, &scales, &sums, &mut packed_scales);
        (d, positive(63, &mins, &sums, &mut packed_mins))
    } else {
        (six_bits(&scales, &mut packed_scales), six_bits(&mins, &mut packed_mins))
    };
    let (d, dmin) = (f32_to_f16(d), f32_to_f16(dmin));
    let mut header = [0; 16];
    header[..2].copy_from_slice(&d.to_le_bytes());
    header[2..4].copy_from_slice(&dmin.to_le_bytes());
    let packed = pack_scales_mins(&packed_scales, &packed_mins);
    header[4..].copy_from_slice(&packed);
    // The levels are chosen again for the scales as they are stored; a scale of zero keeps those of the search.
    let (packed_scales, packed_mins) = unpack_scales_mins(&packed);
    for (j, (x, levels)) in subs.iter().zip(levels.as_chunks_mut::<32>().0).enumerate() {
        let scale = f16_to_f32(d) * f32::from(packed_scales[j]);
        if scale != 0.0 {
            let min = f16_to_f32(dmin) * f32::from(packed_mins[j]);
            *levels = x.map(|x| nearest((x + min) / scale).clamp(0, plain.max) as u8);
        }
    }
    (header, levels)
}

/// Rounds scales or minimums to 6 bits, the largest to 63. Returns their common scale.
fn six_bits(values: &[f32; 8], stored: &mut [u8; 8]) -> f32 {
    let largest = values.iter().fold(0.0, |max, &v| if v > max { v } else { max });
    let inverse = if largest > 0.0 { 63.0 / largest } else { 0.0 };
    *stored = values.map(|value| (nearest(inverse * value) as u8).min(63));
    largest / 63.0
}

/// The inverse of [`unpack_scales_mins`]. Values beyond 6 bits spill as they do in ggml.
fn pack_scales_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 0xf | (mins[j + 4] & 0xf) << 4;
    }
    packed
}

struct Layout;
impl Format<144, 256> for Layout {
    const ID: u32 = 12;
    const NAME: &'static str = "Q4_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("d"), ScaleField::f16::<2>("dmin")];

    #[inline(always)]
    fn dequantize(block: &[u8; 144], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let dmin = f16_to_f32(u16::from_le_bytes([block[2], block[3]]));
        let (header, qs) = block.split_at(16);
        let (scales, mins) = unpack_scales_mins(header[4..].first_chunk().expect("the header is 16 bytes"));
        let quarters = out.as_chunks_mut::<64>().0.iter_mut();
        for (quarter, (out, qs)) in quarters.zip(qs.as_chunks::<32>().0).enumerate() {
            let sub = 2 * quarter;
            let (dl, ml) = (d * f32::from(scales[sub]), dmin * f32::from(mins[sub]));
            let (dh, mh) = (d * f32::from(scales[sub + 1]), dmin * f32::from(mins[sub + 1]));
            let (low, high) = out.split_at_mut(32);
            for ((low, high), &q) in low.iter_mut().zip(high).zip(qs) {
                *low = dl * f32::from(q & 0xf) - ml;
                *high = dh * f32::from(q >> 4) - mh;
            }
        }
    }
}
