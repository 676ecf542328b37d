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
    let (first, last) = (call.tiles.start * V::N, call.n.min(call.tiles.end * V::N));
    let weights = |i: usize| &call.data[i * row_bytes..(i + 1) * row_bytes];
    let mut i = first;
    while V::FLOAT_WEIGHTS == 2 && i + 1 < last {
        // SAFETY: the caller's.
        unsafe { weight_rows::<V, 2>(v, call, i, stored, [weights(i), weights(i + 1)]) }
        i += 2;
    }
    while i < last {
        // SAFETY: the caller's.
        unsafe { weight_rows::<V, 1>(v, call, i, stored, [weights(i)]) }
        i += 1;
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
            weight_rows::<V, 1>(v, call, i, Stored::F32, [bytes]);
        }
    }
}

/// The products of `R` weight rows from `i` on with every row of activations.
///
/// Several rows of either keep enough chains going that none waits for another; none of that changes a chain.
#[inline(always)]
unsafe fn weight_rows<V: Lanes, const R: usize>(v: V, call: &Call<'_>, i: usize, stored: Stored, weights: [&[u8]; R]) {
    let rows = call.acts.rows();
    let mut row = 0;
    while row < rows {
        // SAFETY: the caller's; the rows are there.
        row += unsafe {
            match (rows - row).min(V::FLOAT_ROWS) {
                8.. => rows_of::<V, R, 8>(v, call, i, stored, weights, row),
                4..8 => rows_of::<V, R, 4>(v, call, i, stored, weights, row),
                2..4 => rows_of::<V, R, 2>(v, call, i, stored, weights, row),
                _ => rows_of::<V, R, 1>(v, call, i, stored, weights, row),
            }
        };
    }
}

#[inline(always)]
unsafe fn rows_of<V: Lanes, const R: usize, const M: usize>(
    v: V,
    call: &Call<'_>,
    i: usize,
    stored: Stored,
    weights: [&[u8]; R],
    row: usize,
) -> usize {
    // SAFETY: activations are padded to whole sixteens; whole sixteens of weights are read from the row, the rest from a copy.
    unsafe {
        let stride = call.acts.place(1).0;
        let x = call.x.as_ptr().add(call.acts.place(row).0);
        let sums = match stored {
            Stored::F32 => dots::<V, R, M>(v, Stored::F32, weights, x, stride),
            Stored::F16 => dots::<V, R, M>(v, Stored::F16, weights, x, stride),
            Stored::BF16 => dots::<V, R, M>(v, Stored::BF16, weights, x, stride),
        };
        for r in 0..R {
            for m in 0..M {
                call.put_one(sums[r][m], row + m, i + r);
            }
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

/// The dot products of weight rows with `M` rows of activations, `stride` bytes apart.
#[inline(always)]
unsafe fn dots<V: Lanes, const R: usize, const M: usize>(
    v: V,
    stored: Stored,
    weights: [&[u8]; R],
    x: *const u8,
    stride: usize,
) -> [[f32; M]; R] {
    let parts = WIDTH / V::N;
    let whole = weights[0].len() / stored.bytes() / WIDTH;
    let mut acc = [[[v.zero(); 2]; M]; R];
    // SAFETY: see the caller.
    unsafe {
        for at in 0..whole {
            for part in 0..parts {
                let place = at * WIDTH + part * V::N;
                let mut w = [v.zero(); R];
                for r in 0..R {
                    w[r] = load(v, stored, weights[r].as_ptr().add(place * stored.bytes()));
                }
                for m in 0..M {
                    let x = v.load_f32(x.add(m * stride + place * 4));
                    for r in 0..R {
                        acc[r][m][part] = v.fma(w[r], x, acc[r][m][part]);
                    }
                }
            }
        }
        if weights[0].len() > whole * WIDTH * stored.bytes() {
            for r in 0..R {
                let tail = stored.tail(&weights[r][whole * WIDTH * stored.bytes()..]);
                for part in 0..parts {
                    let w = v.load_f32(tail.as_ptr().add(part * V::N).cast());
                    for m in 0..M {
                        let x = v.load_f32(x.add(m * stride + (whole * WIDTH + part * V::N) * 4));
                        acc[r][m][part] = v.fma(w, x, acc[r][m][part]);
                    }
                }
            }
        }
        let mut sums = [[0.0; M]; R];
        for r in 0..R {
            for m in 0..M {
                sums[r][m] = v.sum_sixteen(acc[r][m]);
            }
        }
        sums
    }
}

/// Adds sixteen partial sums, each lane to the one half the width away, until one is left.
#[inline(always)]
pub(super) fn reduce(mut lanes: [f32; WIDTH]) -> f32 {
    let mut width = WIDTH / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
