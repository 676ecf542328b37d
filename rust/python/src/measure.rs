//! Measurements whose loops run in Rust: speeds, the verify-cost curve, perplexity and divergence.

use draftgauge_core::bench::{self, BenchOptions};
use draftgauge_core::evaluate::{self, EvaluateOptions};
use pyo3::prelude::*;

use crate::drafter::PyDrafter;
use crate::errors::Result;
use crate::gguf::to_json;
use crate::signals::Signals;
use crate::target::PyTarget;

/// Speeds, the verify-cost curve and the share of memory bandwidth, as JSON.
#[pyfunction]
#[pyo3(signature = (target, prefill, decode, depth, rows, repeats, on_progress=None))]
#[expect(clippy::too_many_arguments, reason = "the options of the command")]
fn measure_speed(
    py: Python<'_>,
    target: &PyTarget,
    prefill: Vec<usize>,
    decode: usize,
    depth: usize,
    rows: Vec<usize>,
    repeats: usize,
    on_progress: Option<Py<PyAny>>,
) -> Result<String> {
    let options = BenchOptions { prefill, decode, depth, rows, repeats, threads: target.threads() };
    let mut signals = Signals::new();
    let outcome =
        py.detach(|| bench::bench(&target.target, &options, &mut |share| signals.tell(on_progress.as_ref(), share)));
    to_json(&signals.finish(outcome)?)
}

/// What a drafter costs in one step, as JSON.
#[pyfunction]
fn measure_draft(
    py: Python<'_>,
    target: &PyTarget,
    drafter: &PyDrafter,
    depth: usize,
    repeats: usize,
) -> Result<String> {
    let mut signals = Signals::new();
    let outcome =
        py.detach(|| bench::draft_cost(&target.target, &*drafter.drafter, depth, repeats, &mut || signals.check()));
    to_json(&signals.finish(outcome)?)
}

/// Perplexity of ids, and the divergence from a second target, as JSON.
#[pyfunction]
#[pyo3(signature = (base, other, tokens, window, limit, bos, on_progress=None))]
#[expect(clippy::too_many_arguments, reason = "the options of the command")]
fn measure_text(
    py: Python<'_>,
    base: &PyTarget,
    other: Option<&PyTarget>,
    tokens: Vec<u32>,
    window: usize,
    limit: Option<usize>,
    bos: Option<u32>,
    on_progress: Option<Py<PyAny>>,
) -> Result<String> {
    let side = |target: &'_ PyTarget| (target.target.engine().clone(), target.target.state_options());
    let (base, other) = (side(base), other.map(side));
    let options = EvaluateOptions { ctx: window, windows: limit, bos };
    let mut signals = Signals::new();
    let outcome = py.detach(|| {
        evaluate::evaluate(
            (base.0.as_ref(), base.1),
            other.as_ref().map(|(engine, state)| (engine.as_ref(), *state)),
            &tokens,
            options,
            &mut |share| signals.tell(on_progress.as_ref(), share),
        )
    });
    to_json(&signals.finish(outcome)?)
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(measure_draft, m)?)?;
    m.add_function(wrap_pyfunction!(measure_speed, m)?)?;
    m.add_function(wrap_pyfunction!(measure_text, m)?)?;
    Ok(())
}
