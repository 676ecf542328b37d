//! What a file says of one tensor, and how much room that takes.

use draftgauge_kernels::quant::QuantType;

/// One tensor: name, type, shape and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Unique within the file set.
    pub name: String,
    /// The type's id as the file has it.
    pub type_id: u32,
    /// The type, if the id is known.
    pub ty: Option<QuantType>,
    /// Row-major shape: the reverse of the order in the file. Empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, from the start of the shard's data section.
    pub offset: u64,
    /// Bytes of data. For an unknown type: the room up to the next tensor or the end of the file.
    pub nbytes: u64,
    /// Index of the shard that holds the data.
    pub shard: usize,
}

impl TensorInfo {
    /// The type as messages and reports name it: `Q4_K`, or `unknown (id 99)`.
    pub fn type_name(&self) -> String {
        self.ty.map_or_else(|| format!("unknown (id {})", self.type_id), |ty| ty.name().to_string())
    }

    /// Number of elements; a scalar has one.
    pub fn num_elements(&self) -> u64 {
        // The reader has refused shapes whose product does not fit.
        self.shape.iter().product()
    }
}

/// Number of elements counting an empty dimension as one, or `None` where it would not stay below 2^63.
///
/// Empty dimensions are left out as llama.cpp does it, so that one zero cannot hide two sizes that overflow.
pub(super) fn checked_elements(shape: &[u64]) -> Option<u64> {
    shape
        .iter()
        .filter(|&&size| size > 1)
        .try_fold(1u64, |product, &size| product.checked_mul(size).filter(|&p| p < 1 << 63))
}

/// Bytes of a tensor, or `None` where a row is no whole number of blocks or the size overflows.
pub(super) fn checked_bytes(ty: QuantType, shape: &[u64]) -> Option<u64> {
    checked_elements(shape)?;
    let (block_len, block_bytes) = (ty.block_len() as u64, ty.block_bytes() as u64);
    let row = shape.last().copied().unwrap_or(1);
    if row % block_len != 0 {
        return None;
    }
    let rows: u64 = shape[..shape.len().saturating_sub(1)].iter().product();
    (row / block_len).checked_mul(block_bytes)?.checked_mul(rows)
}

/// `value` rounded up to a multiple of `alignment`, a power of two.
pub(super) fn align_up(value: u64, alignment: u64) -> Option<u64> {
    Some(value.checked_add(alignment - 1)? & !(alignment - 1))
}
