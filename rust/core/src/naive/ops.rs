//! The arithmetic of each operation on one row.

use super::state::Visible;
use crate::program::{RopeLayout, RopeSpec};

/// Sum of products, in eight partial sums so that the compiler can vectorize.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + tail
}

/// `x * rsqrt(mean(x^2) + eps) * weight`, in place.
pub fn rms_norm(x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    for (index, x) in x.iter_mut().enumerate() {
        *x = *x * factor * weight.map_or(1.0, |weight| weight[index]);
    }
}

/// Rotates the pairs of one head, in place.
pub fn rotate(x: &mut [f32], rope: &RopeSpec, factors: Option<&[f32]>, position: u32) {
    for (pair, frequency) in rope.frequencies.iter().enumerate() {
        let angle = f64::from(position) * frequency / factors.map_or(1.0, |factors| f64::from(factors[pair]));
        let (sin, cos) = (angle.sin() as f32 * rope.magnitude, angle.cos() as f32 * rope.magnitude);
        let (first, second) = match rope.layout {
            RopeLayout::Adjacent => (2 * pair, 2 * pair + 1),
            RopeLayout::Half => (pair, pair + rope.dims / 2),
        };
        let (a, b) = (x[first], x[second]);
        x[first] = a * cos - b * sin;
        x[second] = a * sin + b * cos;
    }
}

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// The tanh form of GELU.
pub fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + ((2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
}

/// Attention of one query head over the positions its row may see.
pub fn attend(
    q: &[f32],
    visible: &Visible<'_>,
    head: usize,
    num_heads: usize,
    scale: f32,
    softcap: Option<f32>,
    sink: Option<f32>,
) -> Vec<f32> {
    let kv_head = head * visible.num_kv_heads / num_heads;
    let scores: Vec<f32> = visible
        .positions()
        .map(|(key, _)| {
            let score = scale * dot(q, &key[kv_head * visible.key_dim..][..visible.key_dim]);
            softcap.map_or(score, |cap| cap * (score / cap).tanh())
        })
        .collect();
    let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
    let total = weights.iter().sum::<f32>() + sink.map_or(0.0, |sink| (sink - max).exp());
    let mut out = vec![0.0; visible.value_dim];
    for (weight, (_, value)) in weights.iter().zip(visible.positions()) {
        for (out, value) in out.iter_mut().zip(&value[kv_head * visible.value_dim..][..visible.value_dim]) {
            *out += weight * value;
        }
    }
    out.iter_mut().for_each(|out| *out /= total);
    out
}
