//! The product of f32 activations and weights that are floats, or become f32 row by row.
//!
//! An output has sixteen partial sums along K, the one of lane `l` over values `l`, `l + 16`, ... in order with fused multiply-adds;
//! then lanes `l` and `l + 8` are added, `l` and `l + 4`, `l` and `l + 2`, `l` and `l + 1`. What is missing from the last sixteen counts as zeros.

// Rows are counted, not iterated over: a closure would be compiled without the vector unit wherever it is not inlined.
#![allow(clippy::needless_range_loop)]

use super::activation::WIDTH;
use super::call::Call;
use super::lanes::Lanes;
use crate::float::{bf16_to_f32, f16_to_f32};
use crate::quant::DequantizeFn;

/// How the weights of a row are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    F32,
    F16,
    BF16,
}

impl Stored {
    const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The first values of `row` as f32, zeros after its end.
    fn tail(self, row: &[u8]) -> [f32; WIDTH] {
        let mut out = [0.0; WIDTH];
        for (out, bytes) in out.iter_mut().zip(row.chunks_exact(self.bytes())) {
            *out = match (self, bytes) {
                (Self::F16, &[a, b]) => f16_to_f32(u16::from_le_bytes([a, b])),
                (Self::BF16, &[a, b]) => bf16_to_f32(u16::from_le_bytes([a, b])),
                (_, bytes) => f32::from_le_bytes(*bytes.first_chunk().expect("an f32 is 4 bytes")),
            };
        }
        out
    }
}

/// Computes the tiles of a call whose weights are floats.
///
/// # Safety
/// `call` was checked against the layout of its matrix, and its outputs in these tiles are the caller's alone.
#[inline(always)]
pub(super) unsafe fn drive<V: Lanes>(v: V, call: &Call<'_>, stored: Stored) {
    let row_bytes = call.k * stored.bytes();
    for i in call.tiles.start * V::N..call.n.min(call.tiles.end * V::N) {
        // SAFETY: the caller's.
        unsafe { weight_row(v, call, i, stored, &call.data[i * row_bytes..(i + 1) * row_bytes]) }
    }
}

/// Computes the tiles of a call whose weights become f32 one row at a time.
///
/// # Safety
/// As for [`drive`]; `scratch` has room for `k` values.
#[inline(always)]
pub(super) unsafe fn drive_dequantized<V: Lanes>(
    v: V,
    call: &Call<'_>,
    dequantize: DequantizeFn,
    row_bytes: usize,
    scratch: &mut [f32],
) {
    let values = &mut scratch[..call.k];
    for i in call.tiles.start * V::N..call.n.min(call.tiles.end * V::N) {
        dequantize(&call.data[i * row_bytes..(i + 1) * row_bytes], values);
        // SAFETY: the bytes of f32 may be read; the rest is the caller's.
        unsafe {
            let bytes = std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values));
            weight_row(v, call, i, Stored::F32, bytes);
        }
    }
}

/// The products of weight row `i` with every row of activations.
#[inline(always)]
unsafe fn weight_row<V: Lanes>(v: V, call: &Call<'_>, i: usize, stored: Stored, weights: &[u8]) {
    let rows = call.acts.rows();
    let mut row = 0;
    while row < rows {
        // SAFETY: the caller's; the rows are there.
        row += unsafe {
            match rows - row {
                4.. => rows_of::<V, 4>(v, call, i, stored, weights, row),
                2..4 => rows_of::<V, 2>(v, call, i, stored, weights, row),
                _ => rows_of::<V, 1>(v, call, i, stored, weights, row),
            }
        };
    }
}

#[inline(always)]
unsafe fn rows_of<V: Lanes, const M: usize>(
    v: V,
    call: &Call<'_>,
    i: usize,
    stored: Stored,
    weights: &[u8],
    row: usize,
) -> usize {
    // SAFETY: activations are padded to whole sixteens; whole sixteens of weights are read from the row, the rest from a copy.
    unsafe {
        let stride = call.acts.place(1).0;
        let x = call.x.as_ptr().add(call.acts.place(row).0);
        let sums = match stored {
            Stored::F32 => dots::<V, M>(v, Stored::F32, weights, x, stride),
            Stored::F16 => dots::<V, M>(v, Stored::F16, weights, x, stride),
            Stored::BF16 => dots::<V, M>(v, Stored::BF16, weights, x, stride),
        };
        for (m, &sum) in sums.iter().enumerate() {
            call.put_one(sum, row + m, i);
        }
    }
    M
}

/// `N` weights as f32.
#[inline(always)]
unsafe fn load<V: Lanes>(v: V, stored: Stored, from: *const u8) -> V::Float {
    // SAFETY: the caller's address has N weights.
    unsafe {
        match stored {
            Stored::F32 => v.load_f32(from),
            Stored::F16 => v.load_f16(from),
            Stored::BF16 => v.load_bf16(from),
        }
    }
}

/// The dot products of a weight row with `M` rows of activations, `stride` bytes apart.
#[inline(always)]
unsafe fn dots<V: Lanes, const M: usize>(
    v: V,
    stored: Stored,
    weights: &[u8],
    x: *const u8,
    stride: usize,
) -> [f32; M] {
    let parts = WIDTH / V::N;
    let whole = weights.len() / stored.bytes() / WIDTH;
    let mut acc = [[v.zero(); 2]; M];
    // SAFETY: see the caller.
    unsafe {
        for at in 0..whole {
            for part in 0..parts {
                let w = load(v, stored, weights.as_ptr().add((at * WIDTH + part * V::N) * stored.bytes()));
                for m in 0..M {
                    let x = v.load_f32(x.add(m * stride + (at * WIDTH + part * V::N) * 4));
                    acc[m][part] = v.fma(w, x, acc[m][part]);
                }
            }
        }
        let rest = &weights[whole * WIDTH * stored.bytes()..];
        if !rest.is_empty() {
            let tail = stored.tail(rest);
            for part in 0..parts {
                let w = v.load_f32(tail.as_ptr().add(part * V::N).cast());
                for m in 0..M {
                    let x = v.load_f32(x.add(m * stride + (whole * WIDTH + part * V::N) * 4));
                    acc[m][part] = v.fma(w, x, acc[m][part]);
                }
            }
        }
        let mut sums = [0.0; M];
        for m in 0..M {
            let mut lanes = [0f32; WIDTH];
            for part in 0..parts {
                v.store(acc[m][part], lanes.as_mut_ptr().add(part * V::N));
            }
            sums[m] = reduce(lanes);
        }
        sums
    }
}

/// Adds the partial sums, each lane to the one half the width away, until one is left.
#[inline(always)]
fn reduce(mut lanes: [f32; WIDTH]) -> f32 {
    let mut width = WIDTH / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
