//! Q6_K: super-blocks of 16 sub-blocks with signed 8-bit scales.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use super::lanes::symmetric_groups;
use super::pack::pairs;
use super::search::{extreme, nearest};
use crate::float::{f16_to_f32, f32_to_f16};

/// 256 values in 210 bytes: `ql` 128 bytes, `qh` 64 bytes, `scales` 16 signed bytes, `d` f16.
///
/// In each half of 128 values, values 0 to 63 are the low nibbles of its 64 bytes of `ql`, the others the high ones;
/// bits `2s` of byte `l` of its 32 bytes of `qh` are the upper bits of value `32 s + l`; `d * scale * (q - 32)`.
pub(super) const Q6_K: TypeInfo = TypeInfo::of::<Layout, _, _>().quantized_by::<Layout, _, _>();

impl QuantizeBlock<210, 256> for Layout {
    #[inline(always)]
    fn quantize(x: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 210]) {
        let imatrix = importance.map(|importance| importance.columns);
        let (mut levels, mut scales) = ([0i8; 256], [0f32; 16]);
        let subs = x.as_chunks::<16>().0;
        // Here the importance counts as it is, not by the size of the values.
        let weights: [[f32; 16]; 16] = std::array::from_fn(|j| match imatrix {
            None => subs[j].map(|x| x * x),
            Some(imatrix) => std::array::from_fn(|i| imatrix[16 * j + i]),
        });
        symmetric_groups(32, subs, &weights, levels.as_chunks_mut::<16>().0, &mut scales);
        let extreme = extreme(&scales);
        if extreme.abs() < 1e-15 {
            out.fill(0);
            return;
        }
        let inverse = -128.0 / extreme;
        let d = f32_to_f16(1.0 / inverse);
        let stored = scales.map(|scale| nearest(inverse * scale).min(127) as i8);
        // The levels are chosen again for the scales as they are stored; a scale of zero keeps those of the search.
        for (j, (x, levels)) in subs.iter().zip(levels.as_chunks_mut::<16>().0).enumerate() {
            let scale = f16_to_f32(d) * f32::from(stored[j]);
            if scale != 0.0 {
                *levels = x.map(|x| (nearest(x / scale).clamp(-32, 31) + 32) as i8);
            }
        }
        let levels = levels.map(|level| level as u8);
        for (half, levels) in levels.as_chunks::<128>().0.iter().enumerate() {
            for l in 0..64 {
                out[half * 64 + l] = levels[l] & 0xf | levels[l + 64] << 4;
            }
        }
        pairs(&levels.map(|level| level >> 4), &mut out[128..192]);
        out[192..208].copy_from_slice(&stored.map(|scale| scale as u8));
        out[208..].copy_from_slice(&d.to_le_bytes());
    }
}

struct Layout;
impl Format<210, 256> for Layout {
    const ID: u32 = 14;
    const NAME: &'static str = "Q6_K";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<208>("d")];

    #[inline(always)]
    fn dequantize(block: &[u8; 210], out: &mut [f32; 256]) {
        let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = f16_to_f32(u16::from_le_bytes([block[208], block[209]]));
        let mut levels = [0; 256];
        let halves = levels.as_chunks_mut::<128>().0.iter_mut();
        for (levels, (ql, qh)) in halves.zip(ql.as_chunks::<64>().0.iter().zip(qh.as_chunks::<32>().0)) {
            for l in 0..32 {
                levels[l] = (ql[l] & 0xf | (qh[l] & 3) << 4) as i8 - 32;
                levels[l + 32] = (ql[l + 32] & 0xf | (qh[l] >> 2 & 3) << 4) as i8 - 32;
                levels[l + 64] = (ql[l] >> 4 | (qh[l] >> 4 & 3) << 4) as i8 - 32;
                levels[l + 96] = (ql[l + 32] >> 4 | (qh[l] >> 6) << 4) as i8 - 32;
            }
        }
        let subs = out.as_chunks_mut::<16>().0.iter_mut().zip(levels.as_chunks::<16>().0);
        for ((out, levels), &scale) in subs.zip(scales) {
            let dl = d * f32::from(scale as i8);
            for (out, &q) in out.iter_mut().zip(levels) {
                *out = dl * f32::from(q);
            }
        }
    }
}
