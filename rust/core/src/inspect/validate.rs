//! `inspect --validate`: reads the data and finds scales and values that are not finite.

use draftgauge_kernels::quant;

use crate::error::{Evidence, Result};
use crate::gguf::{GgufFile, TensorInfo};
use crate::parallel::map_parts;

/// Bytes that one thread looks through at a time.
const GRAIN_BYTES: usize = 1 << 22;

/// One problem line for each tensor with a block that is not finite, in the order of the file.
///
/// Tensors whose data cannot be had are among the file's own problems already and are passed over.
pub fn validate(file: &GgufFile) -> Vec<String> {
    file.tensors()
        .iter()
        .filter_map(|info| validate_tensor(file, info).ok().flatten())
        .map(|evidence| evidence.to_string())
        .collect()
}

/// The first block of a tensor with a scale or value that is not finite.
///
/// # Errors
/// As [`GgufFile::data`].
pub fn validate_tensor(file: &GgufFile, info: &TensorInfo) -> Result<Option<Evidence>> {
    let data = file.data(info)?;
    let Some(ty) = info.ty else { return Ok(None) };
    let block = ty.block_bytes();
    let grain = (GRAIN_BYTES / block).max(1);
    let parts = map_parts(data.len() / block, grain, |blocks| {
        quant::validate(ty, &data[blocks.start * block..blocks.end * block])
            .map(|bad| bad.map(|bad| quant::BadBlock { index: bad.index + blocks.start, ..bad }))
    });
    for part in parts {
        if let Some(bad) = part? {
            return Ok(Some(
                Evidence::new("tensor holds a number that is not finite")
                    .tensor(&info.name)
                    .expected("finite scales and values")
                    .found(bad),
            ));
        }
    }
    Ok(None)
}
