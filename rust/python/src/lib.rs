//! The Python door: conversions and errors only.
//!
//! This file is the export list; each submodule registers what it wraps.

mod drafter;
mod errors;
mod generate;
mod gguf;
mod info;
mod measure;
mod quant;
mod quantize;
mod signals;
mod target;
mod text;
mod verify;

use pyo3::prelude::*;

/// The compiled half of `draftgauge`: import it through `draftgauge._door` alone.
#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    drafter::register(m)?;
    generate::register(m)?;
    gguf::register(m)?;
    info::register(m)?;
    measure::register(m)?;
    quant::register(m)?;
    quantize::register(m)?;
    target::register(m)?;
    text::register(m)?;
    verify::register(m)?;
    Ok(())
}
