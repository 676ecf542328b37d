//! Draft trees, acceptance, keyed choices and their noise: the pure half, for tests and the lab.

use draftgauge_core::noise::{self, Noise};
use draftgauge_core::sampling::{History, Sampler, SamplingParams};
use draftgauge_core::tree::DraftTree;
use draftgauge_core::verify;
use draftgauge_core::{Error, Evidence};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::errors::Result;

/// A validated tree of drafted tokens.
#[pyclass(frozen, name = "DraftTree", module = "draftgauge._core")]
pub struct PyDraftTree(DraftTree);

#[pymethods]
impl PyDraftTree {
    #[new]
    fn new(tokens: Vec<i64>, parents: Vec<i64>) -> Result<Self> {
        let parents = parents
            .into_iter()
            .enumerate()
            .map(|(node, parent)| i32::try_from(parent).map_err(|_| out_of_range("parent", node, parent)))
            .collect::<draftgauge_core::Result<Vec<i32>>>()?;
        Ok(Self(DraftTree::new(&ids(tokens)?, &parents)?))
    }

    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.0.tokens().to_vec()
    }

    #[getter]
    fn parents(&self) -> Vec<i32> {
        self.0.parents().to_vec()
    }

    #[getter]
    fn depths(&self) -> Vec<u32> {
        self.0.depths().to_vec()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("DraftTree(tokens={:?}, parents={:?})", self.0.tokens(), self.0.parents())
    }
}

fn out_of_range(what: &str, node: usize, value: i64) -> Error {
    Error::tree(Evidence::new(format!("{what} is out of range")).key(format!("node {node}")).found(value))
}

fn ids(tokens: Vec<i64>) -> draftgauge_core::Result<Vec<u32>> {
    let id = |(node, token)| u32::try_from(token).map_err(|_| out_of_range("token", node, token));
    tokens.into_iter().enumerate().map(id).collect()
}

/// The chain of some tokens, the anchor first.
#[pyfunction]
fn verify_chain(tokens: Vec<i64>) -> Result<PyDraftTree> {
    Ok(PyDraftTree(DraftTree::chain(&ids(tokens)?)?))
}

/// Path and bonus token of the walk that follows the choices.
#[pyfunction]
fn verify_accept_greedy(tree: &PyDraftTree, choices: Vec<i64>) -> Result<(Vec<usize>, u32)> {
    let outcome = verify::accept_greedy(&tree.0, &ids(choices)?)?;
    Ok((outcome.path, outcome.bonus))
}

/// What the sampling options of a Python call become.
#[derive(FromPyObject)]
struct Options {
    #[pyo3(item)]
    temperature: f64,
    #[pyo3(item)]
    top_k: usize,
    #[pyo3(item)]
    top_p: f64,
    #[pyo3(item)]
    min_p: f64,
    #[pyo3(item)]
    repeat_penalty: f32,
    #[pyo3(item)]
    presence_penalty: f32,
    #[pyo3(item)]
    frequency_penalty: f32,
    #[pyo3(item)]
    repeat_last_n: i64,
    #[pyo3(item)]
    logit_bias: Vec<(u32, f32)>,
    #[pyo3(item)]
    banned: Vec<u32>,
    #[pyo3(item)]
    seed: u64,
    #[pyo3(item)]
    stream: u64,
}

impl From<Options> for SamplingParams {
    fn from(options: Options) -> Self {
        Self {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: options.top_p,
            min_p: options.min_p,
            repeat_penalty: options.repeat_penalty,
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            repeat_last_n: options.repeat_last_n,
            logit_bias: options.logit_bias,
            banned: options.banned,
            seed: options.seed,
            stream: options.stream,
        }
    }
}

/// The token of each row of logits `[rows, vocab]` at the position where it would stand; `history` comes before all.
#[pyfunction]
fn verify_choose(
    py: Python<'_>,
    logits: PyReadonlyArray2<'_, f32>,
    positions: Vec<u32>,
    options: Options,
    history: Vec<u32>,
) -> Result<Vec<u32>> {
    let [rows, vocab] = [logits.shape()[0], logits.shape()[1]];
    if positions.len() != rows {
        let evidence = Evidence::new("a choice needs one position a row").key("positions");
        return Err(Error::argument(evidence.expected(rows).found(positions.len())).into());
    }
    let values = logits.as_slice().map_err(|error| Error::argument(Evidence::new(error.to_string()).key("logits")))?;
    let choose = || -> draftgauge_core::Result<Vec<u32>> {
        let mut sampler = Sampler::new(options.into(), vocab)?;
        let history = History { committed: &history, path: &[] };
        (0..rows)
            .map(|row| Ok(sampler.choose(&values[row * vocab..][..vocab], row, positions[row], history)?.token))
            .collect()
    };
    Ok(py.detach(choose)?)
}

/// The log-weights of one row after everything but the noise, -inf for what was removed. `[vocab]`
#[pyfunction]
fn verify_log_weights<'py>(
    py: Python<'py>,
    logits: Vec<f32>,
    options: Options,
    history: Vec<u32>,
) -> Result<Bound<'py, PyArray1<f64>>> {
    let mut sampler = Sampler::new(options.into(), logits.len())?;
    Ok(sampler.log_weights(&logits, History { committed: &history, path: &[] })?.into_pyarray(py))
}

/// Bits and Gumbel noise.
type NoiseRows<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<f64>>);

/// Bits and Gumbel noise of tokens `0 .. count` at a position.
#[pyfunction]
fn noise_rows<'py>(py: Python<'py>, seed: u64, stream: u64, position: u32, count: usize) -> NoiseRows<'py> {
    let mut bits = vec![0; count];
    Noise::new(seed, stream).fill_bits(position, &mut bits);
    let gumbel: Vec<f64> = bits.iter().map(|&bits| noise::gumbel(bits)).collect();
    (bits.into_pyarray(py), gumbel.into_pyarray(py))
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDraftTree>()?;
    m.add_function(wrap_pyfunction!(verify_chain, m)?)?;
    m.add_function(wrap_pyfunction!(verify_accept_greedy, m)?)?;
    m.add_function(wrap_pyfunction!(verify_choose, m)?)?;
    m.add_function(wrap_pyfunction!(verify_log_weights, m)?)?;
    m.add_function(wrap_pyfunction!(noise_rows, m)?)?;
    Ok(())
}
