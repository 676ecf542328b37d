//! The search for blocks that poison a tensor: scales, or plain values, that are not finite.

use std::fmt;

use super::{QuantError, QuantType};

/// A block with a field that is not finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BadBlock {
    /// Index of the block, counted from the start of the data.
    pub index: usize,
    /// ggml's name for the field, `value` for plain floats.
    pub field: &'static str,
    /// What the field reads as.
    pub value: f32,
}

impl fmt::Display for BadBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}: {} is {}", self.index, self.field, self.value)
    }
}

/// Finds the first block of `data` whose scale is NaN or infinite, as `ggml_validate_row_data` does; subnormal scales are fine.
///
/// # Errors
/// When `data` is no whole number of blocks.
pub fn validate(ty: QuantType, data: &[u8]) -> Result<Option<BadBlock>, QuantError> {
    let block_bytes = ty.block_bytes();
    if !data.len().is_multiple_of(block_bytes) {
        let expected = data.len() / block_bytes * block_bytes;
        return Err(QuantError::ByteCount { ty, expected, found: data.len() });
    }
    let scales = ty.info().scales;
    if scales.is_empty() {
        return Ok(None);
    }
    for (index, block) in data.chunks_exact(block_bytes).enumerate() {
        for scale in scales {
            let value = (scale.read)(block);
            if !value.is_finite() {
                return Ok(Some(BadBlock { index, field: scale.name, value }));
            }
        }
    }
    Ok(None)
}
