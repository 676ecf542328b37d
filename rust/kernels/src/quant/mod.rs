//! ggml's tensor types: names, sizes, dequantization, quantization, validation.
//!
//! Sources: `GGML_QUANT_SIZES` and `quants.py` of gguf-py 0.19 for layouts and values, llama.cpp b11434 for what it has beyond.
//! A type is one file and one line in the registry below.

mod error;
mod format;
mod grids;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod lanes;
mod mxfp4;
mod nvfp4;
mod pack;
mod plain;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_activation;
mod search;
mod tq1_0;
mod tq2_0;
mod validate;

use std::fmt;

use crate::isa::{Isa, Level};

pub use error::QuantError;
use format::TypeInfo;
pub use format::{DequantizeFn, QuantizeFn};
pub use q4_k::unpack_scales_mins;
pub use validate::{BadBlock, validate};

/// Declares [`QuantType`] and its table from one line a type.
macro_rules! quant_types {
    ($($(#[$doc:meta])* $variant:ident = $module:ident::$info:ident,)*) => {
        /// A ggml tensor type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum QuantType {
            $($(#[$doc])* $variant,)*
        }

        impl QuantType {
            /// Every type, by id.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }

        static TABLE: &[TypeInfo] = &[$($module::$info,)*];
    };
}

quant_types! {
    /// 32-bit floats.
    F32 = plain::F32,
    /// Half precision.
    F16 = plain::F16,
    /// 4 bits and a scale for 32 values.
    Q4_0 = q4_0::Q4_0,
    /// 4 bits, a scale and a minimum for 32 values.
    Q4_1 = q4_1::Q4_1,
    /// 5 bits and a scale for 32 values.
    Q5_0 = q5_0::Q5_0,
    /// 5 bits, a scale and a minimum for 32 values.
    Q5_1 = q5_1::Q5_1,
    /// 8 bits and a scale for 32 values.
    Q8_0 = q8_0::Q8_0,
    /// 8 bits, a scale and a sum for 32 activations.
    Q8_1 = q8_activation::Q8_1,
    /// K-quant of 2 bits.
    Q2K = q2_k::Q2_K,
    /// K-quant of 3 bits.
    Q3K = q3_k::Q3_K,
    /// K-quant of 4 bits.
    Q4K = q4_k::Q4_K,
    /// K-quant of 5 bits.
    Q5K = q5_k::Q5_K,
    /// K-quant of 6 bits.
    Q6K = q6_k::Q6_K,
    /// 8 bits, a scale and sums for 256 activations.
    Q8K = q8_activation::Q8_K,
    /// I-quant of 2.0625 bits.
    IQ2XXS = iq2_xxs::IQ2_XXS,
    /// I-quant of 2.3125 bits.
    IQ2XS = iq2_xs::IQ2_XS,
    /// I-quant of 3.0625 bits.
    IQ3XXS = iq3_xxs::IQ3_XXS,
    /// I-quant of 1.5625 bits.
    IQ1S = iq1_s::IQ1_S,
    /// 4-bit indices into a table of values that lie denser near zero, for 32 values.
    IQ4NL = iq4_nl::IQ4_NL,
    /// I-quant of 3.4375 bits.
    IQ3S = iq3_s::IQ3_S,
    /// I-quant of 2.5625 bits.
    IQ2S = iq2_s::IQ2_S,
    /// The values of IQ4_NL in super-blocks with 6-bit scales.
    IQ4XS = iq4_xs::IQ4_XS,
    /// 8-bit integers.
    I8 = plain::I8,
    /// 16-bit integers.
    I16 = plain::I16,
    /// 32-bit integers.
    I32 = plain::I32,
    /// 64-bit integers.
    I64 = plain::I64,
    /// 64-bit floats.
    F64 = plain::F64,
    /// I-quant of 1.75 bits.
    IQ1M = iq1_m::IQ1_M,
    /// The upper half of 32-bit floats.
    BF16 = plain::BF16,
    /// Ternary, five values a byte.
    TQ1_0 = tq1_0::TQ1_0,
    /// Ternary, four values a byte.
    TQ2_0 = tq2_0::TQ2_0,
    /// 4-bit floats with a power of two for 32 values (OCP Microscaling).
    MXFP4 = mxfp4::MXFP4,
    /// 4-bit floats with an 8-bit float scale for 16 values (NVIDIA).
    NVFP4 = nvfp4::NVFP4,
    /// A sign bit and a scale for 128 values.
    Q1_0 = q1_0::Q1_0,
    /// 2 bits and a scale for 64 values.
    Q2_0 = q2_0::Q2_0,
}

impl QuantType {
    fn info(self) -> &'static TypeInfo {
        &TABLE[self as usize]
    }

    /// The type with ggml's number `id`; `None` for a number that is unknown or was given up, never a neighbour.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id() == id)
    }

    /// The type with ggml's name, in any case of letters.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// ggml's number for the type.
    #[must_use]
    pub fn id(self) -> u32 {
        self.info().id
    }

    /// ggml's name for the type, such as `Q4_K`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Values in a block.
    #[must_use]
    pub fn block_len(self) -> usize {
        self.info().block_len
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        self.info().block_bytes
    }

    /// Bytes of a row of `k` values; `None` when `k` is not a multiple of the block or the count overflows.
    #[must_use]
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        let info = self.info();
        if !k.is_multiple_of(info.block_len) {
            return None;
        }
        (k / info.block_len).checked_mul(info.block_bytes)
    }

    /// Whether values share a scale. Plain floats and integers do not.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        self.info().quantized
    }

    /// Whether the type holds weights that can be turned into f32.
    #[must_use]
    pub fn dequantizes(self) -> bool {
        self.info().dequantize.is_some()
    }

    /// Whether there is a quantizer for the type.
    #[must_use]
    pub fn quantizes(self) -> bool {
        self.info().quantize.is_some()
    }

    /// The routine that turns a row into blocks as the build's baseline compiles it: the twin of what [`quantize`] uses.
    #[must_use]
    pub fn portable_quantizer(self) -> Option<QuantizeFn> {
        self.info().quantize.map(|[portable, _]| portable)
    }

    /// The routine that turns whole blocks into f32, fastest for this machine; every choice gives the same bits.
    #[must_use]
    pub fn dequantizer(self) -> Option<DequantizeFn> {
        self.info().dequantize.map(|[_, wide]| wide)
    }

    /// The routine for a kernel path: the same bits on every one.
    #[must_use]
    pub fn dequantizer_on(self, isa: Isa) -> Option<DequantizeFn> {
        match isa.level() {
            Level::Scalar => self.portable_dequantizer(),
            Level::Avx2 | Level::Avx512 => self.dequantizer(),
        }
    }

    /// The routine as the build's baseline compiles it: the twin of [`QuantType::dequantizer`].
    #[must_use]
    pub fn portable_dequantizer(self) -> Option<DequantizeFn> {
        self.info().dequantize.map(|[portable, _]| portable)
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Turns `data` of type `ty` into `out.len()` values, bit for bit as gguf-py does.
///
/// `out` holds any number of whole blocks, so a range of rows can be given.
///
/// # Errors
/// When the type has no f32 form, `out` is no whole number of blocks, or `data` has not exactly their bytes.
pub fn dequantize(ty: QuantType, data: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let routine = ty.dequantizer().ok_or(QuantError::NoDequantizer { ty })?;
    let expected =
        ty.row_bytes(out.len()).ok_or(QuantError::RowLength { ty, expected: ty.block_len(), found: out.len() })?;
    if data.len() != expected {
        return Err(QuantError::ByteCount { ty, expected, found: data.len() });
    }
    routine(data, out);
    Ok(())
}

/// Says which value cannot be quantized to `ty`: plain floats carry infinities and NaN over, a scale cannot.
///
/// # Errors
/// Names the first such value.
pub fn check_finite(ty: QuantType, x: &[f32]) -> Result<(), QuantError> {
    match x.iter().position(|x| ty.is_quantized() && !x.is_finite()) {
        Some(index) => Err(QuantError::NotFinite { ty, index, found: x[index] }),
        None => Ok(()),
    }
}

/// Turns rows of `columns` values into blocks of type `ty`, byte for byte as ggml does.
///
/// `imatrix` weighs the columns, one weight for each, none negative. `out` takes any number of rows, so a range of rows can be given.
///
/// # Errors
/// When there is no quantizer for the type, `columns` is no whole number of blocks, `x` or `out` has not the size that the other implies,
/// `imatrix` has not one weight a column, or a value or weight is not finite.
pub fn quantize(
    ty: QuantType,
    x: &[f32],
    columns: usize,
    imatrix: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantError> {
    let [_, routine] = ty.info().quantize.ok_or(QuantError::NoQuantizer { ty })?;
    let row_length = |found| QuantError::RowLength { ty, expected: ty.block_len(), found };
    let row_bytes = ty.row_bytes(columns).filter(|&bytes| bytes > 0).ok_or(row_length(columns))?;
    if !x.len().is_multiple_of(columns) {
        return Err(row_length(x.len() % columns));
    }
    let expected = (x.len() / columns).checked_mul(row_bytes).ok_or(row_length(x.len()))?;
    if out.len() != expected {
        return Err(QuantError::ByteCount { ty, expected, found: out.len() });
    }
    if let Some(imatrix) = imatrix {
        if imatrix.len() != columns {
            return Err(QuantError::ImatrixLength { ty, expected: columns, found: imatrix.len() });
        }
        if let Some(index) = imatrix.iter().position(|w| !w.is_finite() || *w < 0.0) {
            return Err(QuantError::ImatrixWeight { ty, index, found: imatrix[index] });
        }
    }
    check_finite(ty, x)?;
    for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(row_bytes)) {
        routine(x, imatrix, out);
    }
    Ok(())
}
