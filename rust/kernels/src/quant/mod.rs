//! Quantized tensor types: names, ids, block sizes, dequantization.

/// A ggml tensor type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum QuantType {
    /// 32-bit floats, id 0.
    F32,
    /// Half precision, id 1.
    F16,
}
