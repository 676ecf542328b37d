//! MXFP4: 4-bit floats that share a power of two (OCP Microscaling formats 1.0).

use super::format::{Format, ScaleField, TypeInfo};

/// 32 values in 17 bytes: `e` (E8M0), `qs` 16 bytes. Value `j` is the low nibble of byte `j`, value `j + 16` the high one; `2^(e - 128) * E2M1_DOUBLED[q]`.
pub(super) const MXFP4: TypeInfo = TypeInfo::of::<Layout, _, _>();

/// Twice the values of E2M1, so that they are integers. Code 8 is minus zero and reads as zero.
pub(super) const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that an E8M0 byte stands for; the two smallest are subnormal in f32.
#[inline(always)]
pub(super) fn e8m0_half(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

struct Layout;
impl Format<17, 32> for Layout {
    const ID: u32 = 39;
    const NAME: &'static str = "MXFP4";
    // The byte 0xFF is E8M0's NaN, though arithmetic would take it for 2^127.
    const SCALES: &'static [ScaleField] =
        &[ScaleField { name: "e", read: |block| if block[0] == 0xff { f32::NAN } else { e8m0_half(block[0]) } }];

    #[inline(always)]
    fn dequantize(block: &[u8; 17], out: &mut [f32; 32]) {
        let d = e8m0_half(block[0]);
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &q) in low.iter_mut().zip(high).zip(&block[1..]) {
            *low = d * f32::from(E2M1_DOUBLED[usize::from(q & 0xf)]);
            *high = d * f32::from(E2M1_DOUBLED[usize::from(q >> 4)]);
        }
    }
}
