//! Q8_1 and Q8_K: what ggml's kernels turn activations into. Tensors of files do not have these types.

use super::format::{ScaleField, TypeInfo};

/// 32 values in 36 bytes: `d` f16, `s` f16 (`d` times the sum of the values), `qs` 32 signed bytes.
pub(super) const Q8_1: TypeInfo =
    TypeInfo::storage(9, "Q8_1", 32, 36).with_scales(&[ScaleField::f16::<0>("d"), ScaleField::f16::<2>("s")]);

/// 256 values in 292 bytes: `d` f32, `qs` 256 signed bytes, `bsums` 16 sums of 16 values each, i16.
pub(super) const Q8_K: TypeInfo = TypeInfo::storage(15, "Q8_K", 256, 292).with_scales(&[ScaleField {
    name: "d",
    read: |block| f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
}]);
