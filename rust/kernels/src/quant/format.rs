//! What a type's file says about its type, and how a block routine becomes a row routine.

use super::search::sum_of_squares;
use crate::float::f16_to_f32;

/// Turns whole blocks into f32: `data` holds `n * block_bytes` bytes, `out` takes `n * block_len` values.
///
/// Any run of whole blocks can be given, so callers split rows between threads as they like. Blocks beyond the shorter of the two are left alone.
pub type DequantizeFn = fn(data: &[u8], out: &mut [f32]);

/// Turns a row of finite values into whole blocks. `imatrix` weighs the columns; types that know no better ignore it.
pub type QuantizeFn = fn(row: &[f32], imatrix: Option<&[f32]>, out: &mut [u8]);

/// A floating-point field of a block that scales others, and so must be finite.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScaleField {
    /// ggml's name for the field.
    pub name: &'static str,
    /// Reads the field from one block.
    pub read: fn(&[u8]) -> f32,
}

impl ScaleField {
    /// A half-precision field at byte `AT` of the block.
    pub const fn f16<const AT: usize>(name: &'static str) -> Self {
        Self { name, read: |block| f16_to_f32(u16::from_le_bytes([block[AT], block[AT + 1]])) }
    }
}

/// The facts about one tensor type: one constant in the type's own file.
#[derive(Debug, Clone, Copy)]
pub(super) struct TypeInfo {
    /// ggml's number for the type.
    pub id: u32,
    /// ggml's name for the type.
    pub name: &'static str,
    /// Values in a block.
    pub block_len: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Whether values share a scale.
    pub quantized: bool,
    /// Fields that must be finite.
    pub scales: &'static [ScaleField],
    /// To f32, if the type holds weights: the portable routine and the one for AVX2.
    pub dequantize: Option<[DequantizeFn; 2]>,
    /// From f32, if there is a quantizer: the portable routine and the one for AVX2.
    pub quantize: Option<[QuantizeFn; 2]>,
}

impl TypeInfo {
    /// A type whose values cannot be turned into f32 weights here.
    pub const fn storage(id: u32, name: &'static str, block_len: usize, block_bytes: usize) -> Self {
        Self {
            id,
            name,
            block_len,
            block_bytes,
            quantized: block_len > 1,
            scales: &[],
            dequantize: None,
            quantize: None,
        }
    }

    /// The same type with fields that must be finite.
    pub const fn with_scales(self, scales: &'static [ScaleField]) -> Self {
        Self { scales, ..self }
    }

    /// The same type with a quantizer.
    pub const fn quantized_by<Q: QuantizeBlock<BYTES, LEN>, const BYTES: usize, const LEN: usize>(self) -> Self {
        Self { quantize: Some([portable_row::<Q, BYTES, LEN>, wide_row::<Q, BYTES, LEN>]), ..self }
    }

    /// A type that can be turned into f32.
    pub const fn of<F: Format<BYTES, LEN>, const BYTES: usize, const LEN: usize>() -> Self {
        Self {
            id: F::ID,
            name: F::NAME,
            block_len: LEN,
            block_bytes: BYTES,
            quantized: LEN > 1,
            scales: F::SCALES,
            dequantize: Some([portable::<F, BYTES, LEN>, wide::<F, BYTES, LEN>]),
            quantize: None,
        }
    }
}

/// A block layout: `BYTES` bytes that hold `LEN` values.
pub(super) trait Format<const BYTES: usize, const LEN: usize> {
    /// ggml's number for the type.
    const ID: u32;
    /// ggml's name for the type.
    const NAME: &'static str;
    /// Fields that must be finite.
    const SCALES: &'static [ScaleField] = &[];

    /// Turns one block into f32, with the f32 operations in the order of gguf-py, so that the bits are the same.
    fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]);
}

/// How much the columns of a block count, and what else the weights of its values depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Importance<'a, const LEN: usize> {
    /// Importance of each column of the block.
    pub columns: &'a [f32; LEN],
    /// Mean square of the whole row.
    pub sigma2: f32,
}

/// The way from f32 into a block layout.
pub(super) trait QuantizeBlock<const BYTES: usize, const LEN: usize> {
    /// Turns one block's values into bytes, byte for byte as ggml does.
    fn quantize(x: &[f32; LEN], importance: Option<Importance<'_, LEN>>, out: &mut [u8; BYTES]);
}

/// Turns a row into blocks. No closure is involved: its body would not be compiled for the caller's instruction set.
#[inline(always)]
fn each_row_block<Q: QuantizeBlock<BYTES, LEN>, const BYTES: usize, const LEN: usize>(
    row: &[f32],
    imatrix: Option<&[f32]>,
    out: &mut [u8],
) {
    let blocks = row.as_chunks::<LEN>().0.iter().zip(out.as_chunks_mut::<BYTES>().0);
    let Some(imatrix) = imatrix else {
        for (x, out) in blocks {
            Q::quantize(x, None, out);
        }
        return;
    };
    let sigma2 = sum_of_squares(row) / row.len() as f32;
    for ((x, out), columns) in blocks.zip(imatrix.as_chunks::<LEN>().0) {
        Q::quantize(x, Some(Importance { columns, sigma2 }), out);
    }
}

#[inline(always)]
fn each_block<F: Format<BYTES, LEN>, const BYTES: usize, const LEN: usize>(data: &[u8], out: &mut [f32]) {
    let (blocks, _) = data.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<LEN>();
    for (block, out) in blocks.iter().zip(outs) {
        F::dequantize(block, out);
    }
}

/// The routine as the build's baseline compiles it.
fn portable<F: Format<BYTES, LEN>, const BYTES: usize, const LEN: usize>(data: &[u8], out: &mut [f32]) {
    each_block::<F, BYTES, LEN>(data, out);
}

/// The same routine compiled for AVX2 where the machine has it.
///
/// Rust never fuses or reorders floating-point operations, so both compilations give the same bits.
fn wide<F: Format<BYTES, LEN>, const BYTES: usize, const LEN: usize>(data: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        fn avx2<F: Format<BYTES, LEN>, const BYTES: usize, const LEN: usize>(data: &[u8], out: &mut [f32]) {
            each_block::<F, BYTES, LEN>(data, out);
        }
        if has_avx2() {
            // SAFETY: has_avx2 has just said that this machine runs every feature that avx2 is compiled for.
            return unsafe { avx2::<F, BYTES, LEN>(data, out) };
        }
    }
    each_block::<F, BYTES, LEN>(data, out);
}

/// A quantizer as the build's baseline compiles it.
fn portable_row<Q: QuantizeBlock<BYTES, LEN>, const BYTES: usize, const LEN: usize>(
    row: &[f32],
    imatrix: Option<&[f32]>,
    out: &mut [u8],
) {
    each_row_block::<Q, BYTES, LEN>(row, imatrix, out);
}

/// The same quantizer compiled for AVX2 where the machine has it: the same bytes.
fn wide_row<Q: QuantizeBlock<BYTES, LEN>, const BYTES: usize, const LEN: usize>(
    row: &[f32],
    imatrix: Option<&[f32]>,
    out: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        fn avx2<Q: QuantizeBlock<BYTES, LEN>, const BYTES: usize, const LEN: usize>(
            row: &[f32],
            imatrix: Option<&[f32]>,
            out: &mut [u8],
        ) {
            each_row_block::<Q, BYTES, LEN>(row, imatrix, out);
        }
        if has_avx2() {
            // SAFETY: has_avx2 has just said that this machine runs every feature that avx2 is compiled for.
            return unsafe { avx2::<Q, BYTES, LEN>(row, imatrix, out) };
        }
    }
    each_row_block::<Q, BYTES, LEN>(row, imatrix, out);
}

/// Whether routines compiled for AVX2 run here. The answer is cached by the standard library.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi2")
}
