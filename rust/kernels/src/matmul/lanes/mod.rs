//! Vectors with one lane for each weight row of a tile: what the kernels are written in.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{Avx2, Avx2Vnni};
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

use super::activation::WIDTH;
use super::float::reduce;

/// Asks for the cache line at an address, which may lie outside anything.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and a prefetch reads nothing that the program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A vector unit with `N` lanes of 32 bits. A value of it is the proof that the machine has it.
///
/// Methods that take an address are unsafe for that reason alone; no address needs an alignment.
pub(super) trait Lanes: Copy {
    /// Lanes of a vector: weight rows of a tile.
    const N: usize;
    /// Whether [`Lanes::mac`] sums in 16 bits: the sum must then end within them, though it may wrap on the way.
    const NARROW: bool;
    /// Most activation rows for which the accumulators of [`Lanes::mac`] stay in registers.
    const ROWS: usize;
    /// The same for [`Lanes::wide_mac`].
    const WIDE_ROWS: usize;
    /// Activation rows and rows of float weights, 1 or 2, whose accumulators stay in registers together.
    const FLOAT_ROWS: usize;
    /// See [`Lanes::FLOAT_ROWS`].
    const FLOAT_WEIGHTS: usize;
    /// Lanes of 32 bits, or of four bytes.
    type Int: Copy;
    /// Lanes of f32.
    type Float: Copy;
    /// Accumulator of products with levels of at most six bits.
    type Dot: Copy;
    /// Accumulator of products with levels of eight bits.
    type Wide: Copy;

    /// `4 N` bytes.
    unsafe fn load(self, from: *const u8) -> Self::Int;
    /// The same four bytes in every lane.
    unsafe fn splat(self, from: *const u8) -> Self::Int;
    /// Each byte shifted left by `by` within 16 bits (what comes from the neighbour must be masked), then masked.
    fn left(self, a: Self::Int, by: u32, mask: u8) -> Self::Int;
    /// Each byte shifted right by `by` within 16 bits (what comes from the neighbour must be masked), then masked.
    fn right(self, a: Self::Int, by: u32, mask: u8) -> Self::Int;
    /// The union of bits.
    fn or(self, a: Self::Int, b: Self::Int) -> Self::Int;

    /// An accumulator that holds -2^`shift` times the sums of a block's values: `pairs` and `total` are the addresses of the negated sums.
    unsafe fn dot_offset(self, pairs: *const u8, total: *const u8, shift: u32) -> Self::Dot;
    /// An empty accumulator.
    fn dot_zero(self) -> Self::Dot;
    /// Adds the products of four unsigned levels of at most six bits and four signed bytes to each lane.
    fn mac(self, acc: Self::Dot, levels: Self::Int, x: Self::Int) -> Self::Dot;
    /// The sums.
    fn finish(self, acc: Self::Dot) -> Self::Int;
    /// Takes 2^`shift` times the four bytes at `total` from every lane.
    unsafe fn sub_shifted(self, a: Self::Int, total: *const u8, shift: u32) -> Self::Int;

    /// An accumulator for levels of eight bits that stand for themselves less 128.
    unsafe fn wide_offset(self, pairs: *const u8, total: *const u8) -> Self::Wide;
    /// Adds the products of four unsigned bytes and four signed bytes to each lane.
    fn wide_mac(self, acc: Self::Wide, levels: Self::Int, x: Self::Int) -> Self::Wide;
    /// The sums.
    fn wide_finish(self, acc: Self::Wide) -> Self::Int;

    /// Integers below 2^24 as f32.
    fn to_float(self, a: Self::Int) -> Self::Float;
    /// Zeros.
    fn zero(self) -> Self::Float;
    /// `N` f32.
    unsafe fn load_f32(self, from: *const u8) -> Self::Float;
    /// `N` halves.
    unsafe fn load_f16(self, from: *const u8) -> Self::Float;
    /// `N` bfloat16.
    unsafe fn load_bf16(self, from: *const u8) -> Self::Float;
    /// `N` unsigned bytes.
    unsafe fn load_u8(self, from: *const u8) -> Self::Float;
    /// `N` signed bytes.
    unsafe fn load_i8(self, from: *const u8) -> Self::Float;
    /// The same f32 in every lane.
    unsafe fn splat_f32(self, from: *const u8) -> Self::Float;
    /// The sum of sixteen lanes, which are the first or both vectors: each lane and the one half the width away, until
    /// one is left.
    #[inline(always)]
    fn sum_sixteen(self, parts: [Self::Float; 2]) -> f32 {
        let mut lanes = [0.0; WIDTH];
        for (lanes, part) in lanes.chunks_exact_mut(Self::N).zip(parts) {
            // SAFETY: the part of the array has N values.
            unsafe { self.store(part, lanes.as_mut_ptr()) };
        }
        reduce(lanes)
    }
    /// Writes `N` f32.
    unsafe fn store(self, a: Self::Float, to: *mut f32);
    /// `a + b`
    fn add(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b`
    fn mul(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
}
