//! Q4_K: super-blocks of 8 sub-blocks with 6-bit scales and minimums.

use super::format::{Format, ScaleField, TypeInfo};
use crate::float::f16_to_f32;

/// 256 values in 144 bytes: `d` f16, `dmin` f16, `scales` 12 bytes, `qs` 128 bytes.
///
/// In each quarter of 64 values, value `l` is the low nibble of byte `l` of its 32 bytes, value `l + 32` the high one; `d * scale * q - dmin * min`.
pub(super) const Q4_K: TypeInfo = TypeInfo::of::<Layout, _, _>();

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
