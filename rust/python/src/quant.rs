//! Quantized types: names, dequantization, quantization.

use pyo3::prelude::*;

/// Registers this file's names.
pub fn register(_m: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
