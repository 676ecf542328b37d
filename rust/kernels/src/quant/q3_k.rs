//! Q3_K: super-blocks of 16 sub-blocks with signed 6-bit scales.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::lanes::symmetric_groups;
use super::pack::{high_bits, pairs, unpack_pairs};
use super::search::{extreme, nearest, sum_of_squares, symmetric, symmetric_by_descent, weigh};
use crate::float::{f16_to_f32, f32_to_f16};

/// 256 values in 110 bytes: `hmask` 32 bytes, `qs` 64 bytes, `scales` 12 bytes, `d` f16.
///
/// Low bits as in Q2_K; bit `j / 32` of byte `j % 32` of `hmask` says that 4 is **not** taken off value `j`; `d * (scale - 32) * q`.
pub(super) const Q3_K: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

/// The sixteen 6-bit scales, 32 taken off: low nibbles in bytes 0 to 7, the two high bits in bytes 8 to 11.
#[inline(always)]
fn unpack_scales(scales: &[u8]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = scales[j % 8] >> (j / 8 * 4) & 0xf;
        let high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

impl QuantizeBlock<110, 256> for Layout {
    #[inline(always)]
    fn quantize(x: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 110]) {
        let imatrix = importance.map(|importance| importance.columns);
        let (mut levels, mut scales, mut sums) = ([0i8; 256], [0f32; 16], [0f32; 16]);
        let subs = x.as_chunks::<16>().0;
        let sigma2 = 2.0 * sum_of_squares(x) / 256.0;
        let level_subs = levels.as_chunks_mut::<16>().0;
        if let Some(imatrix) = imatrix {
            let weights: [[f32; 16]; 16] = std::array::from_fn(|j| weigh(&imatrix[16 * j..], sigma2, &subs[j]));
            sums = weights.map(|weights| weights.iter().sum());
            symmetric_groups(4, subs, &weights, level_subs, &mut scales);
        } else {
            for ((x, levels), scale) in subs.iter().zip(level_subs).zip(&mut scales) {
                *scale = symmetric_by_descent(4, x, levels);
            }
        }
        // Scales are stored with 32 added.
        let mut stored = [0i8; 16];
        let d = if imatrix.is_some() {
            symmetric(32, &scales, &sums, &mut stored)
        } else {
            match extreme(&scales) {
                0.0 => 0.0,
                extreme => {
                    let inverse = -32.0 / extreme;
                    stored = scales.map(|scale| (nearest(inverse * scale) as i8).clamp(-32, 31) + 32);
                    1.0 / inverse
                }
            }
        };
        let d = f32_to_f16(d);
        out[96..108].copy_from_slice(&pack_scales(&stored));
        // The levels are chosen again for the scales as they are stored; a scale of zero keeps those of the search.
        for (j, (x, levels)) in subs.iter().zip(levels.as_chunks_mut::<16>().0).enumerate() {
            let scale = f16_to_f32(d) * f32::from(stored[j] - 32);
            if scale != 0.0 {
                *levels = x.map(|x| (nearest(x / scale).clamp(-4, 3) + 4) as i8);
            }
        }
        let levels = levels.map(|level| level as u8);
        high_bits(&levels, 2, &mut out[..32]);
        pairs(&levels, &mut out[32..96]);
        out[108..].copy_from_slice(&d.to_le_bytes());
    }
}

/// The inverse of [`unpack_scales`], before 32 is taken off.
fn pack_scales(scales: &[i8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (j, &scale) in scales.iter().enumerate() {
        packed[j % 8] |= (scale as u8 & 0xf) << (j / 8 * 4);
        packed[8 + j % 4] |= (scale as u8 >> 4) << (j / 4 * 2);
    }
    packed
}

struct Layout;
impl Format<110, 256> for Layout {
    const ID: u32 = 11;
    const NAME: &'static str = "Q3_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<108>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 110], out: &mut [f32; 256]) {
        let (hmask, qs) = (&block[..32], &block[32..96]);
        let scales = unpack_scales(&block[96..108]);
        let d = f16_to_f32(u16::from_le_bytes([block[108], block[109]]));
        let mut levels = [0; 256];
        unpack_pairs(qs, &mut levels);
        for (group, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (level, &h) in levels.iter_mut().zip(hmask) {
                // A set bit keeps the level, a clear one takes 4 off.
                *level |= (h >> group & 1) << 2;
            }
        }
        let subs = out.as_chunks_mut::<16>().0.iter_mut().zip(levels.as_chunks::<16>().0);
        for ((out, levels), scale) in subs.zip(scales) {
            let dl = d * f32::from(scale);
            for (out, &q) in out.iter_mut().zip(levels) {
                *out = dl * f32::from(q as i8 - 4);
            }
        }
    }
}
