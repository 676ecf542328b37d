//! NVFP4: 4-bit floats with a UE4M3 scale for 16 values.

use super::format::{Format, TypeInfo};
use super::mxfp4::E2M1_DOUBLED;

/// 64 values in 36 bytes: four scale bytes, then 8 bytes for each 16 values: byte `j` holds value `j` low, value `j + 8` high.
///
/// The tensor's own factor, stored beside it as `NAME.scale`, is not part of the type. Every scale byte is finite.
pub(super) const NVFP4: TypeInfo = TypeInfo::of::<Layout, _, _>();

/// Half of an unsigned E4M3 number. The NaN code 0x7F reads as zero; the top bit is ignored, so 0xFF is a number like its neighbours.
#[inline(always)]
fn ue4m3_half(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    if byte == 0 || byte == 0x7f {
        return 0.0;
    }
    // Every product below is exact: three mantissa bits and small exponents.
    if exponent == 0 {
        mantissa * (0.5 / 512.0)
    } else {
        (1.0 + mantissa / 8.0) * f32::from_bits(((exponent - 8 + 127) as u32) << 23)
    }
}

struct Layout;
impl Format<36, 64> for Layout {
    const ID: u32 = 40;
    const NAME: &'static str = "NVFP4";

    #[inline(always)]
    fn dequantize(block: &[u8; 36], out: &mut [f32; 64]) {
        let (scales, qs) = block.split_at(4);
        for ((out, qs), &scale) in out.as_chunks_mut::<16>().0.iter_mut().zip(qs.as_chunks::<8>().0).zip(scales) {
            let d = ue4m3_half(scale);
            let (low, high) = out.split_at_mut(8);
            for ((low, high), &q) in low.iter_mut().zip(high).zip(qs) {
                *low = d * f32::from(E2M1_DOUBLED[usize::from(q & 0xf)]);
                *high = d * f32::from(E2M1_DOUBLED[usize::from(q >> 4)]);
            }
        }
    }
}
