//! What this build holds.

use draftgauge_kernels::isa::Isa;
use pyo3::prelude::*;

/// Version, accelerator features of the build, and kernel paths that this CPU has.
#[pyfunction]
fn build_facts() -> (&'static str, Vec<&'static str>, Vec<&'static str>) {
    let features = [("cuda", cfg!(feature = "cuda")), ("metal", cfg!(feature = "metal"))];
    let features = features.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect();
    let kernels = Isa::available().into_iter().map(|isa| isa.level().name()).collect();
    (env!("CARGO_PKG_VERSION"), features, kernels)
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(build_facts, m)?)?;
    Ok(())
}
