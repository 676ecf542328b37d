//! Types without scales: one value a block.

use super::format::{Format, Importance, QuantizeBlock, ScaleField, TypeInfo};
use crate::float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// 32-bit floats.
pub(super) const F32: TypeInfo = TypeInfo::of::<F32Format, _, _>().quantized_by::<F32Format, _, _>();
/// Half precision.
pub(super) const F16: TypeInfo = TypeInfo::of::<F16Format, _, _>().quantized_by::<F16Format, _, _>();
/// The upper half of a 32-bit float.
pub(super) const BF16: TypeInfo = TypeInfo::of::<Bf16Format, _, _>().quantized_by::<Bf16Format, _, _>();
/// 64-bit floats.
pub(super) const F64: TypeInfo = TypeInfo::storage(28, "F64", 1, 8).with_scales(&[ScaleField {
    name: "value",
    read: |block| {
        // A double beyond f32's range is finite all the same, so only the class of the number is passed on.
        let value = f64::from_le_bytes(*block.first_chunk().expect("a block is 8 bytes"));
        if value.is_finite() { 0.0 } else { value as f32 }
    },
}]);
/// 8-bit integers.
pub(super) const I8: TypeInfo = TypeInfo::storage(24, "I8", 1, 1);
/// 16-bit integers.
pub(super) const I16: TypeInfo = TypeInfo::storage(25, "I16", 1, 2);
/// 32-bit integers.
pub(super) const I32: TypeInfo = TypeInfo::storage(26, "I32", 1, 4);
/// 64-bit integers.
pub(super) const I64: TypeInfo = TypeInfo::storage(27, "I64", 1, 8);

struct F32Format;
impl Format<4, 1> for F32Format {
    const ID: u32 = 0;
    const NAME: &'static str = "F32";
    const SCALES: &'static [ScaleField] =
        &[ScaleField { name: "value", read: |block| f32::from_le_bytes([block[0], block[1], block[2], block[3]]) }];

    #[inline(always)]
    fn dequantize(block: &[u8; 4], out: &mut [f32; 1]) {
        out[0] = f32::from_le_bytes(*block);
    }
}

struct F16Format;
impl Format<2, 1> for F16Format {
    const ID: u32 = 1;
    const NAME: &'static str = "F16";
    const SCALES: &'static [ScaleField] = &[ScaleField::f16::<0>("value")];

    #[inline(always)]
    fn dequantize(block: &[u8; 2], out: &mut [f32; 1]) {
        out[0] = f16_to_f32(u16::from_le_bytes(*block));
    }
}

struct Bf16Format;
impl Format<2, 1> for Bf16Format {
    const ID: u32 = 30;
    const NAME: &'static str = "BF16";
    const SCALES: &'static [ScaleField] =
        &[ScaleField { name: "value", read: |block| bf16_to_f32(u16::from_le_bytes([block[0], block[1]])) }];

    #[inline(always)]
    fn dequantize(block: &[u8; 2], out: &mut [f32; 1]) {
        out[0] = bf16_to_f32(u16::from_le_bytes(*block));
    }
}

impl QuantizeBlock<4, 1> for F32Format {
    #[inline(always)]
    fn quantize(x: &[f32; 1], _importance: Option<Importance<'_, 1>>, out: &mut [u8; 4]) {
        *out = x[0].to_le_bytes();
    }
}

impl QuantizeBlock<2, 1> for F16Format {
    #[inline(always)]
    fn quantize(x: &[f32; 1], _importance: Option<Importance<'_, 1>>, out: &mut [u8; 2]) {
        *out = f32_to_f16(x[0]).to_le_bytes();
    }
}

impl QuantizeBlock<2, 1> for Bf16Format {
    #[inline(always)]
    fn quantize(x: &[f32; 1], _importance: Option<Importance<'_, 1>>, out: &mut [u8; 2]) {
        *out = f32_to_bf16(x[0]).to_le_bytes();
    }
}
