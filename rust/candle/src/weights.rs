//! Weights on a device: quantized where candle has the type, else as bf16.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use draftgauge_core::backend::WeightSource;
use draftgauge_core::error::{Error, Evidence, Result};
use draftgauge_core::program::{WeightSpec, WeightUse};
use draftgauge_kernels::float::f32_to_bf16;
use draftgauge_kernels::quant::{self, QuantType};

use crate::failed;

/// A weight in the forms that its uses need.
pub struct Weight {
    matrix: Option<Matrix>,
    scale: f64,
    table: Option<WeightSource>,
    vector: Option<Vector>,
}

/// A matrix that is multiplied by activations.
enum Matrix {
    /// A quantized type that candle multiplies with.
    Quantized(QMatMul),
    /// Floats as they are stored; products are taken in f32.
    Float(Tensor),
}

/// A vector on the device, and where the host needs it too.
struct Vector {
    tensor: Tensor,
    values: Vec<f32>,
}

/// How a type of matrix is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As it is in the file, by candle's own kernels.
    Quantized(GgmlDType),
    /// As it is in the file, as floats.
    Float(DType),
    /// Converted: candle cannot multiply by it here.
    Converted,
}

/// How candle holds a matrix of a type on a device.
pub fn form(spec: &WeightSpec, ty: QuantType, device: &Device) -> Form {
    // Candle's CPU products of these types take two sub-blocks at a time and refuse rows of an odd number.
    let in_pairs = matches!(ty, QuantType::Q4_1 | QuantType::Q5_0 | QuantType::Q5_1) && device.is_cpu();
    let k = spec.shape.last().copied().unwrap_or(0);
    match ty {
        _ if in_pairs && k % (2 * ty.block_len()) != 0 => Form::Converted,
        QuantType::F32 => Form::Float(DType::F32),
        QuantType::F16 => Form::Float(DType::F16),
        QuantType::BF16 => Form::Float(DType::BF16),
        QuantType::Q4_0 => Form::Quantized(GgmlDType::Q4_0),
        QuantType::Q4_1 => Form::Quantized(GgmlDType::Q4_1),
        QuantType::Q5_0 => Form::Quantized(GgmlDType::Q5_0),
        QuantType::Q5_1 => Form::Quantized(GgmlDType::Q5_1),
        QuantType::Q8_0 => Form::Quantized(GgmlDType::Q8_0),
        QuantType::Q2K => Form::Quantized(GgmlDType::Q2K),
        QuantType::Q3K => Form::Quantized(GgmlDType::Q3K),
        QuantType::Q4K => Form::Quantized(GgmlDType::Q4K),
        QuantType::Q5K => Form::Quantized(GgmlDType::Q5K),
        QuantType::Q6K => Form::Quantized(GgmlDType::Q6K),
        _ => Form::Converted,
    }
}

/// Bytes that a weight takes beside the mapped file.
pub fn held_bytes(spec: &WeightSpec, ty: QuantType, device: &Device) -> u64 {
    let elements = spec.shape.iter().fold(1_u64, |product, &dim| product.saturating_mul(dim as u64));
    match (spec.usage, form(spec, ty, device)) {
        (WeightUse::Table, _) => 0,
        // One copy on the device, one on the host.
        (WeightUse::Vector, _) => elements.saturating_mul(8),
        (_, Form::Converted) => elements.saturating_mul(2),
        _ => (elements / ty.block_len() as u64).saturating_mul(ty.block_bytes() as u64),
    }
}

impl Weight {
    /// Takes a weight over, on a device.
    pub fn new(spec: &WeightSpec, source: WeightSource, device: &Device) -> Result<Self> {
        let mut weight = Self { matrix: None, scale: f64::from(spec.scale), table: None, vector: None };
        if spec.usage == WeightUse::Vector {
            let values = dequantized(spec, source.ty, &source.data)?;
            let tensor = Tensor::from_slice(&values, values.len(), device).map_err(failed(&spec.name))?;
            weight.vector = Some(Vector { tensor, values });
            return Ok(weight);
        }
        if spec.usage != WeightUse::Table {
            weight.matrix = Some(Matrix::new(spec, &source, device)?);
        }
        if spec.usage != WeightUse::Matmul {
            weight.table = Some(source);
        }
        Ok(weight)
    }

    /// The vector on the device.
    pub fn vector(&self) -> &Tensor {
        &self.vector.as_ref().expect("the program reads this weight as a vector").tensor
    }

    /// The vector on the host.
    pub fn values(&self) -> &[f32] {
        &self.vector.as_ref().expect("the program reads this weight as a vector").values
    }

    /// Rows of the table as f32. `[tokens, width]`
    pub fn rows(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let table = self.table.as_ref().expect("the program reads this weight as a table");
        let width = table.shape[1];
        let bytes = table.data.len() / table.shape[0];
        let mut rows = vec![0.0; tokens.len() * width];
        for (&token, row) in tokens.iter().zip(rows.chunks_exact_mut(width)) {
            quant::dequantize(table.ty, &table.data[token as usize * bytes..][..bytes], row)?;
        }
        Ok(rows)
    }

    /// `W x` for every row of `x`. `[rows, k]` to `[rows, n]`
    pub fn product(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let product = match self.matrix.as_ref().expect("the program multiplies by this weight") {
            Matrix::Quantized(matrix) => matrix.forward(&x.contiguous()?)?,
            // Products of half-precision activations overflow in real models, so the weight is widened for the moment.
            Matrix::Float(matrix) => x.matmul(&matrix.to_dtype(DType::F32)?.t()?)?,
        };
        if self.scale == 1.0 { Ok(product) } else { product * self.scale }
    }
}

impl Matrix {
    fn new(spec: &WeightSpec, source: &WeightSource, device: &Device) -> Result<Self> {
        let at = failed(&spec.name);
        let shape = (spec.shape[0], spec.shape[1]);
        let (dtype, floats) = match form(spec, source.ty, device) {
            Form::Quantized(dtype) => {
                let mut copy = Vec::new();
                let data = aligned(&source.data, &mut copy);
                let storage = QStorage::from_data(Cow::Borrowed(data), device, dtype).map_err(&at)?;
                let tensor = QTensor::new(storage, shape).map_err(&at)?;
                return Ok(Self::Quantized(QMatMul::from_arc(Arc::new(tensor)).map_err(&at)?));
            }
            Form::Float(dtype) => (dtype, Cow::Borrowed(&source.data[..])),
            Form::Converted => {
                let halves: Vec<u16> =
                    dequantized(spec, source.ty, &source.data)?.into_iter().map(f32_to_bf16).collect();
                (DType::BF16, Cow::Owned(bytemuck::cast_slice(&halves).to_vec()))
            }
        };
        Ok(Self::Float(Tensor::from_raw_buffer(&floats, dtype, &[shape.0, shape.1], device).map_err(at)?))
    }
}

/// The bytes at an address that suits every block type of candle's, which panics at others.
fn aligned<'a>(data: &'a [u8], copy: &'a mut Vec<u64>) -> &'a [u8] {
    if data.as_ptr().addr().is_multiple_of(align_of::<u64>()) {
        return data;
    }
    copy.resize(data.len().div_ceil(size_of::<u64>()), 0);
    let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(copy)[..data.len()];
    bytes.copy_from_slice(data);
    bytes
}

fn dequantized(spec: &WeightSpec, ty: QuantType, data: &[u8]) -> Result<Vec<f32>> {
    let mut values = vec![0.0; spec.shape.iter().product()];
    quant::dequantize(ty, data, &mut values)
        .map_err(|error| Error::quant(Evidence::new(error.to_string()).tensor(&spec.name)))?;
    Ok(values)
}
