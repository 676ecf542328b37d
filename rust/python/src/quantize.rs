//! Quantizing files.

use std::path::PathBuf;

use draftgauge_core::quantize::{FILE_TYPES, FileType, Imatrix, Options, quantize_file};
use pyo3::prelude::*;

use crate::errors::Result;
use crate::gguf::to_json;
use crate::quant::quant_type;
use crate::signals::Signals;

/// Names of the types that files are quantized to.
#[pyfunction]
fn quantize_types() -> Vec<&'static str> {
    FILE_TYPES.iter().map(|known| known.name).collect()
}

/// Quantizes a file with the GIL released, and tells as JSON what was written.
#[pyfunction]
#[pyo3(signature = (input, output, file_type, *, imatrix, pure, output_type, embedding_type, tensor_types, allow_requantize, leave_output, threads, on_progress=None))]
#[expect(clippy::too_many_arguments, reason = "Python's keywords, each with its own meaning")]
fn quantize_gguf(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    file_type: &str,
    imatrix: Option<PathBuf>,
    pure: bool,
    output_type: Option<&str>,
    embedding_type: Option<&str>,
    tensor_types: Vec<(String, String)>,
    allow_requantize: bool,
    leave_output: bool,
    threads: Option<usize>,
    on_progress: Option<Py<PyAny>>,
) -> Result<String> {
    let file_type = FileType::parse(file_type)?;
    let options = Options {
        imatrix: imatrix.map(|path| Imatrix::open(&path)).transpose()?,
        pure,
        output_type: output_type.map(quant_type).transpose()?,
        embedding_type: embedding_type.map(quant_type).transpose()?,
        tensor_types: tensor_types.into_iter().map(|(name, ty)| Ok((name, quant_type(&ty)?))).collect::<Result<_>>()?,
        allow_requantize,
        leave_output,
        threads,
    };
    let mut signals = Signals::new();
    let outcome = py.detach(|| {
        quantize_file(&input, &output, file_type, &options, &mut |share| signals.tell(on_progress.as_ref(), share))
    });
    to_json(&signals.finish(outcome)?)
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(quantize_gguf, m)?)?;
    m.add_function(wrap_pyfunction!(quantize_types, m)?)?;
    Ok(())
}
