//! Which instruction set the kernels use, decided once at run time.

/// A kernel path. Every path gives the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust: the twin of every other path.
    Scalar,
    /// AVX2, FMA and F16C; AVX-VNNI where present.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
}
