//! The arithmetic of each operation on tensors of f32.

use candle_core::{D, Device, Result, Tensor};
use draftgauge_core::program::{RopeLayout, RopeSpec};

use crate::state::Visible;

/// `x * rsqrt(mean(x^2) + eps) * weight` over the last dimension.
pub fn rms_norm(x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    let x = x.broadcast_div(&(mean + f64::from(eps))?.sqrt()?)?;
    match weight {
        Some(weight) => x.broadcast_mul(weight),
        None => Ok(x),
    }
}

/// Cosines and sines of the rows' positions. `[rows, 1, dims / 2]` each
pub struct Rotation {
    cos: Tensor,
    sin: Tensor,
}

impl Rotation {
    /// Angles are taken on the host in double precision: far positions turn by thousands of radians.
    pub fn new(rope: &RopeSpec, factors: Option<&[f32]>, positions: &[u32], device: &Device) -> Result<Self> {
        let frequencies: Vec<f64> = rope
            .frequencies
            .iter()
            .enumerate()
            .map(|(pair, frequency)| frequency / factors.map_or(1.0, |factors| f64::from(factors[pair])))
            .collect();
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = positions
                .iter()
                .flat_map(|&position| frequencies.iter().map(move |frequency| f64::from(position) * frequency))
                .map(|angle| f(angle) as f32 * rope.magnitude)
                .collect();
            Tensor::from_vec(values, (positions.len(), 1, frequencies.len()), device)
        };
        Ok(Self { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    /// Rotates the first dimensions of each head. `[rows, num_heads, head_dim]`
    pub fn apply(&self, x: &Tensor, rope: &RopeSpec) -> Result<Tensor> {
        let (rows, num_heads, head_dim) = x.dims3()?;
        let pairs = rope.dims / 2;
        let turned = x.narrow(2, 0, rope.dims)?;
        // Pairs side by side along one more dimension: the last one or the one before it.
        let (shape, dim) = match rope.layout {
            RopeLayout::Adjacent => ((rows, num_heads, pairs, 2), 3),
            RopeLayout::Half => ((rows, num_heads, 2, pairs), 2),
        };
        let turned = turned.contiguous()?.reshape(shape)?;
        let first = turned.narrow(dim, 0, 1)?.squeeze(dim)?;
        let second = turned.narrow(dim, 1, 1)?.squeeze(dim)?;
        let turned = Tensor::stack(
            &[
                (first.broadcast_mul(&self.cos)? - second.broadcast_mul(&self.sin)?)?,
                (first.broadcast_mul(&self.sin)? + second.broadcast_mul(&self.cos)?)?,
            ],
            dim,
        )?
        .reshape((rows, num_heads, rope.dims))?;
        if rope.dims == head_dim {
            return Ok(turned);
        }
        Tensor::cat(&[turned, x.narrow(2, rope.dims, head_dim - rope.dims)?], 2)
    }
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

/// `cap * tanh(x / cap)` where set.
pub fn soft_capped(x: Tensor, cap: Option<f32>) -> Result<Tensor> {
    match cap {
        Some(cap) => (x / f64::from(cap))?.tanh()? * f64::from(cap),
        None => Ok(x),
    }
}

/// Attention of the rows of one slot. `query`: `[rows, num_heads * key_dim]`; result `[rows, num_heads * value_dim]`
pub fn attend(
    query: &Tensor,
    visible: &Visible,
    num_heads: usize,
    scale: f32,
    softcap: Option<f32>,
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    let (num_kv_heads, len, key_dim) = visible.keys.dims3()?;
    let value_dim = visible.values.dim(2)?;
    let (rows, group) = (query.dim(0)?, num_heads / num_kv_heads);
    // The query heads of a key head become rows of one product.
    let query = query.reshape((rows, num_kv_heads, group, key_dim))?.permute((1, 2, 0, 3))?.contiguous()?;
    let query = query.reshape((num_kv_heads, group * rows, key_dim))?;
    let scores = (query.matmul(&visible.keys.t()?)? * f64::from(scale))?;
    let scores = soft_capped(scores, softcap)?.reshape((num_kv_heads, group, rows, len))?;
    let scores = scores.broadcast_add(&visible.mask)?;
    let mut max = scores.max_keepdim(3)?; // [num_kv_heads, group, rows, 1]
    let sinks = sinks.map(|sinks| sinks.reshape((num_kv_heads, group, 1, 1))).transpose()?;
    if let Some(sinks) = &sinks {
        max = max.broadcast_maximum(sinks)?;
    }
    let weights = scores.broadcast_sub(&max)?.exp()?;
    let mut total = weights.sum_keepdim(3)?;
    if let Some(sinks) = &sinks {
        total = (total + sinks.broadcast_sub(&max)?.exp()?)?;
    }
    let weights = weights.broadcast_div(&total)?.reshape((num_kv_heads, group * rows, len))?;
    let out = weights.matmul(&visible.values)?.reshape((num_kv_heads, group, rows, value_dim))?;
    out.permute((2, 0, 1, 3))?.contiguous()?.reshape((rows, num_heads * value_dim))
}
