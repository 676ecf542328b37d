//! Drafters: loading, settings with their provenance, pairing, and teacher-forced scores.

use std::path::PathBuf;
use std::sync::Arc;

use draftgauge_core::drafters::block::pairing::{self, Check, TargetFacts};
use draftgauge_core::drafters::block::{BlockDrafter, BlockFile, BlockKind, BlockOptions, OverrideValue, tap_layers};
use draftgauge_core::drafters::{Drafter, Ngram, NgramConfig};
use draftgauge_core::gguf::Override;
use draftgauge_core::score::{ScoreOptions, Scores, score};
use draftgauge_core::{Error, Evidence, targets};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::{Failure, Result};
use crate::gguf::{PyGgufFile, to_json};
use crate::signals::Signals;
use crate::target::PyTarget;

/// A drafter.
#[pyclass(frozen, name = "Drafter", module = "draftgauge._core")]
pub struct PyDrafter {
    pub drafter: Arc<dyn Drafter>,
    block: Option<Arc<BlockDrafter>>,
}

impl From<BlockDrafter> for PyDrafter {
    fn from(drafter: BlockDrafter) -> Self {
        let block = Arc::new(drafter);
        Self { drafter: Arc::clone(&block) as Arc<dyn Drafter>, block: Some(block) }
    }
}

/// Settings as a JSON object.
fn settings(json: &str) -> Result<Vec<(String, OverrideValue)>> {
    let object: serde_json::Map<String, OverrideValue> =
        serde_json::from_str(json).map_err(|error| PyValueError::new_err(format!("overrides: {error}")))?;
    Ok(object.into_iter().collect())
}

fn options(kind: Option<&str>, metadata: &[String], overrides: &str) -> Result<BlockOptions> {
    let kind = match kind {
        None => None,
        Some("dflash") => Some(BlockKind::Dflash),
        Some("dspark") => Some(BlockKind::Dspark),
        Some(other) => {
            let evidence = Evidence::new("invalid value").key("kind").expected("dflash or dspark").found(other);
            return Err(Error::argument(evidence).into());
        }
    };
    let metadata = metadata.iter().map(|text| text.parse::<Override>()).collect::<draftgauge_core::Result<_>>()?;
    Ok(BlockOptions { kind, metadata, settings: settings(overrides)? })
}

#[pymethods]
impl PyDrafter {
    /// Prompt lookup over suffixes of up to `max_n` tokens.
    #[staticmethod]
    fn ngram(max_n: usize, draft_len: usize) -> Result<Self> {
        let drafter = Ngram::new(NgramConfig { max_n, draft_len, ..NgramConfig::default() })?;
        Ok(Self { drafter: Arc::new(drafter), block: None })
    }

    /// A drafter from a file, for a target. `overrides` is a JSON object of settings.
    #[staticmethod]
    #[pyo3(signature = (path, target, *, kind, metadata, overrides))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        target: &PyTarget,
        kind: Option<&str>,
        metadata: Vec<String>,
        overrides: &str,
    ) -> Result<Self> {
        let options = options(kind, &metadata, overrides)?;
        Ok(py.detach(|| BlockDrafter::load(&path, &target.target, &options))?.into())
    }

    /// The same drafter with settings replaced, its weights shared.
    fn with_overrides(&self, py: Python<'_>, overrides: &str) -> Result<Self> {
        let settings = settings(overrides)?;
        match &self.block {
            Some(block) => Ok(py.detach(|| block.with_overrides(&settings))?.into()),
            None => Err(Failure::Python(PyValueError::new_err(format!(
                "drafter has no settings to override: expected a block drafter, found {}",
                self.drafter.kind()
            )))),
        }
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.drafter.kind()
    }

    #[getter]
    fn draft_len(&self) -> usize {
        self.drafter.draft_len()
    }

    #[getter]
    fn block_size(&self) -> Option<usize> {
        self.drafter.block_size()
    }

    #[getter]
    fn tap_layers(&self) -> Vec<i64> {
        tap_layers(&self.drafter.capabilities().taps)
    }

    #[getter]
    fn notices(&self) -> Vec<String> {
        self.drafter.notices().to_vec()
    }

    /// Name, value and provenance of each setting.
    #[getter]
    fn config(&self) -> Vec<(&'static str, String, String)> {
        self.drafter.config().into_iter().map(|setting| (setting.name, setting.value, setting.provenance)).collect()
    }

    /// How it fits its target, as JSON.
    #[getter]
    fn checks(&self) -> Result<String> {
        to_json(&self.block.as_ref().map_or(&[][..], |block| block.checks()))
    }
}

/// How a drafter's file fits a target's, as JSON. No weight is loaded.
#[pyfunction]
fn pairing_checks(py: Python<'_>, target: &PyGgufFile, drafter: PathBuf) -> Result<String> {
    let checks = py.detach(|| -> draftgauge_core::Result<Vec<Check>> {
        let program = targets::build(&target.0, target.0.metadata())?;
        let facts = TargetFacts::new(&target.0, target.0.metadata(), &program);
        let file = BlockFile::open(&drafter, &[])?;
        let (config, _, _) = file.config(&BlockOptions::default(), facts.vocab_size)?;
        pairing::check(&file, &config, &facts)
    })?;
    to_json(&checks)
}

type ScoreArrays<'py> = (
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray2<i64>>,
    Option<Bound<'py, PyArray2<f32>>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<f32>>,
);

/// Anchors, drafts (padded with -1), confidence, choices and margins.
#[pyfunction]
#[pyo3(signature = (target, drafter, tokens, start, draft_n_max, draft_block))]
fn score_tokens<'py>(
    py: Python<'py>,
    target: &PyTarget,
    drafter: &PyDrafter,
    tokens: Vec<u32>,
    start: usize,
    draft_n_max: Option<usize>,
    draft_block: Option<usize>,
) -> Result<ScoreArrays<'py>> {
    let options = ScoreOptions { start, draft_n_max, draft_block };
    let mut signals = Signals::new();
    let outcome = py.detach(|| score(&target.target, &*drafter.drafter, &tokens, &options, &mut || signals.check()));
    let Scores { anchors, draft_len, drafts, confidence, choices, margins } = signals.finish(outcome)?;
    let rows = anchors.len();
    let mut padded = vec![-1_i64; rows * draft_len];
    for (row, drafts) in drafts.iter().enumerate() {
        for (place, &token) in drafts.iter().enumerate() {
            padded[row * draft_len + place] = i64::from(token);
        }
    }
    let confidence = confidence
        .map(|confidence| {
            let mut padded = vec![f32::NAN; rows * draft_len];
            for (row, values) in confidence.iter().enumerate() {
                padded[row * draft_len..][..values.len()].copy_from_slice(values);
            }
            PyArray1::from_vec(py, padded).reshape([rows, draft_len])
        })
        .transpose()?;
    Ok((
        PyArray1::from_iter(py, anchors.iter().map(|&anchor| anchor as u64)),
        PyArray1::from_vec(py, padded).reshape([rows, draft_len])?,
        confidence,
        PyArray1::from_vec(py, choices),
        PyArray1::from_vec(py, margins),
    ))
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDrafter>()?;
    m.add_function(wrap_pyfunction!(pairing_checks, m)?)?;
    m.add_function(wrap_pyfunction!(score_tokens, m)?)?;
    Ok(())
}
