//! What can go wrong with quantized data.

use super::QuantType;

/// Data, a shape or a request that does not fit a tensor type.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// The data has not the number of bytes that the values need.
    #[error("{ty} data: expected {expected} bytes, found {found}")]
    ByteCount {
        /// Type of the data.
        ty: QuantType,
        /// Bytes that the values need.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A row does not consist of whole blocks, or its bytes cannot be counted.
    #[error("{ty} row: expected a multiple of {expected} values, found {found}")]
    RowLength {
        /// Type of the row.
        ty: QuantType,
        /// Values in one block.
        expected: usize,
        /// Values in the row.
        found: usize,
    },
    /// The importance matrix has not one weight for each column.
    #[error("{ty} importance matrix: expected {expected} weights, found {found}")]
    ImatrixLength {
        /// Type to quantize to.
        ty: QuantType,
        /// Columns of the tensor.
        expected: usize,
        /// Weights given.
        found: usize,
    },
    /// A weight of the importance matrix is negative or not finite.
    #[error("{ty} importance matrix: expected finite weights that are not negative, found {found} for column {index}")]
    ImatrixWeight {
        /// Type to quantize to.
        ty: QuantType,
        /// Column of the weight.
        index: usize,
        /// The weight.
        found: f32,
    },
    /// A value that is to be quantized is NaN or infinite.
    #[error("quantization to {ty}: expected finite values, found {found} at index {index}")]
    NotFinite {
        /// Type to quantize to.
        ty: QuantType,
        /// Index of the value.
        index: usize,
        /// The value.
        found: f32,
    },
    /// The type holds no weights that can be turned into f32.
    #[error("{ty} data cannot be dequantized")]
    NoDequantizer {
        /// The type asked for.
        ty: QuantType,
    },
    /// There is no quantizer for the type.
    #[error("quantization to {ty} is not supported")]
    NoQuantizer {
        /// The type asked for.
        ty: QuantType,
    },
}
