//! Quantized types: names, dequantization, quantization.

use draftgauge_core::{Error, Evidence};
use draftgauge_kernels::quant::{self, QuantError, QuantType};
use numpy::{PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArrayDyn};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::Result;

/// Values that one thread turns at a time: large enough to hide the start of a thread, small enough to share out.
const CHUNK_VALUES: usize = 1 << 20;

/// The type of a name, in any case of letters.
pub fn quant_type(name: &str) -> std::result::Result<QuantType, Error> {
    QuantType::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = dequantizable().map(QuantType::name).collect();
        Error::quant(Evidence::new("unknown quant type").expected(format!("one of {}", known.join(", "))).found(name))
    })
}

fn dequantizable() -> impl Iterator<Item = QuantType> {
    QuantType::ALL.iter().copied().filter(|ty| ty.dequantizes())
}

/// Names of the types that can be dequantized, by ggml id.
#[pyfunction]
fn quant_types() -> Vec<&'static str> {
    dequantizable().map(QuantType::name).collect()
}

/// Values in a block and bytes of a block.
#[pyfunction]
fn quant_block(name: &str) -> Result<(usize, usize)> {
    let ty = quant_type(name)?;
    Ok((ty.block_len(), ty.block_bytes()))
}

/// Values of `data`, read without a copy and with the GIL released.
#[pyfunction]
fn quant_dequantize<'py>(
    py: Python<'py>,
    data: PyReadonlyArrayDyn<'py, u8>,
    name: &str,
    shape: Vec<usize>,
) -> Result<Bound<'py, PyArrayDyn<f32>>> {
    let ty = quant_type(name)?;
    let bytes = data.as_slice().map_err(|_| PyValueError::new_err("data: expected a C-contiguous array"))?;
    let values = dequantize_rows(py, ty, bytes, &shape)?;
    Ok(PyArray1::from_vec(py, values).reshape(shape)?)
}

/// Dequantizes `bytes` as an array of `shape`, in as many threads as the machine has.
pub fn dequantize_rows(
    py: Python<'_>,
    ty: QuantType,
    bytes: &[u8],
    shape: &[usize],
) -> std::result::Result<Vec<f32>, Error> {
    let count = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent)).ok_or_else(|| {
        Error::quant(Evidence::new("the shape has too many values to count").found(format!("{shape:?}")))
    })?;
    let columns = shape.last().copied().unwrap_or(1);
    // Checked before anything is allocated: a shape that the bytes do not bear out costs nothing.
    let row_bytes =
        ty.row_bytes(columns).ok_or(QuantError::RowLength { ty, expected: ty.block_len(), found: columns })?;
    let expected = count.checked_div(columns).unwrap_or(0).saturating_mul(row_bytes);
    if bytes.len() != expected {
        return Err(QuantError::ByteCount { ty, expected, found: bytes.len() }.into());
    }
    let chunk = CHUNK_VALUES / ty.block_len() * ty.block_len();
    let chunk_bytes = chunk / ty.block_len() * ty.block_bytes();
    py.detach(|| {
        let mut values = vec![0f32; count];
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count.div_ceil(chunk).max(1));
        if threads == 1 {
            quant::dequantize(ty, bytes, &mut values)?;
            return Ok(values);
        }
        let work = std::sync::Mutex::new(bytes.chunks(chunk_bytes).zip(values.chunks_mut(chunk)));
        let run = || -> std::result::Result<(), QuantError> {
            loop {
                let next = work.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                let Some((input, output)) = next else { return Ok(()) };
                quant::dequantize(ty, input, output)?;
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
            let own = run();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .fold(own, std::result::Result::and)
        })?;
        Ok(values)
    })
}

/// Names of the types that can be quantized to, by ggml id.
#[pyfunction]
fn quant_quantizable() -> Vec<&'static str> {
    QuantType::ALL.iter().filter(|ty| ty.quantizes()).map(|ty| ty.name()).collect()
}

/// Rows of `x` as blocks, `[rows, bytes_per_row]`, made with the GIL released.
#[pyfunction]
#[pyo3(signature = (x, name, imatrix=None))]
fn quant_quantize<'py>(
    py: Python<'py>,
    x: PyReadonlyArray2<'py, f32>,
    name: &str,
    imatrix: Option<PyReadonlyArray1<'py, f32>>,
) -> Result<Bound<'py, PyArray2<u8>>> {
    let ty = quant_type(name)?;
    let contiguous = |_| PyValueError::new_err("expected a C-contiguous array");
    let (rows, columns) = x.as_array().dim();
    let values = x.as_slice().map_err(contiguous)?;
    let imatrix = imatrix.as_ref().map(|weights| weights.as_slice().map_err(contiguous)).transpose()?;
    let bytes = quantize_rows(py, ty, values, columns, imatrix)?;
    let row_bytes = bytes.len().checked_div(rows).unwrap_or(0);
    Ok(PyArray1::from_vec(py, bytes).reshape([rows, row_bytes])?)
}

/// Quantizes rows of `columns` values in as many threads as the machine has. Rows do not depend on each other.
fn quantize_rows(
    py: Python<'_>,
    ty: QuantType,
    values: &[f32],
    columns: usize,
    imatrix: Option<&[f32]>,
) -> std::result::Result<Vec<u8>, Error> {
    let row_bytes = ty.row_bytes(columns).filter(|&bytes| bytes > 0).ok_or(QuantError::RowLength {
        ty,
        expected: ty.block_len(),
        found: columns,
    })?;
    let rows = values.len() / columns;
    py.detach(|| {
        // The whole is searched first, so that the error names the same value whatever the threads do.
        quant::check_finite(ty, values)?;
        let mut bytes = vec![0u8; rows * row_bytes];
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(rows.max(1));
        // Shares of whole rows; small enough that a thread that is held up does not hold up the others.
        let share = rows.div_ceil(8 * threads).max(1);
        let work = std::sync::Mutex::new(values.chunks(share * columns).zip(bytes.chunks_mut(share * row_bytes)));
        let run = || -> std::result::Result<(), QuantError> {
            loop {
                let next = work.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                let Some((input, output)) = next else { return Ok(()) };
                quant::quantize(ty, input, columns, imatrix, output)?;
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
            let own = run();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .fold(own, std::result::Result::and)
        })?;
        Ok(bytes)
    })
}

/// The first block of `data` with a scale that is not finite: its index, the field's name and value.
#[pyfunction]
fn quant_validate(
    py: Python<'_>,
    data: PyReadonlyArrayDyn<'_, u8>,
    name: &str,
) -> Result<Option<(usize, &'static str, f32)>> {
    let ty = quant_type(name)?;
    let bytes = data.as_slice().map_err(|_| PyValueError::new_err("data: expected a C-contiguous array"))?;
    let bad = py.detach(|| quant::validate(ty, bytes)).map_err(Error::from)?;
    Ok(bad.map(|bad| (bad.index, bad.field, bad.value)))
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(quant_types, m)?)?;
    m.add_function(wrap_pyfunction!(quant_block, m)?)?;
    m.add_function(wrap_pyfunction!(quant_dequantize, m)?)?;
    m.add_function(wrap_pyfunction!(quant_quantizable, m)?)?;
    m.add_function(wrap_pyfunction!(quant_quantize, m)?)?;
    m.add_function(wrap_pyfunction!(quant_validate, m)?)?;
    Ok(())
}
