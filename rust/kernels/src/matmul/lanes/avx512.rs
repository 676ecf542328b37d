//! Sixteen lanes in AVX-512 with VNNI: one instruction a method.

use std::arch::x86_64::*;

use super::Lanes;
use crate::isa::{Isa, Level};

/// AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// The proof, from the one that an [`Isa`] is.
    pub fn new(isa: Isa) -> Option<Self> {
        (isa.level() == Level::Avx512).then_some(Self(()))
    }
}

/// Reads four bytes.
#[inline(always)]
unsafe fn word(from: *const u8) -> i32 {
    // SAFETY: the caller's address has four bytes.
    unsafe { from.cast::<i32>().read_unaligned() }
}

impl Lanes for Avx512 {
    const N: usize = 16;
    const NARROW: bool = false;
    const ROWS: usize = 8;
    const WIDE_ROWS: usize = 8;
    const FLOAT_ROWS: usize = 8;
    const FLOAT_WEIGHTS: usize = 2;
    type Int = __m512i;
    type Float = __m512;
    type Dot = __m512i;
    type Wide = __m512i;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m512i {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 64 bytes.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn splat(self, from: *const u8) -> __m512i {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 4 bytes.
        unsafe { _mm512_set1_epi32(word(from)) }
    }

    #[inline(always)]
    fn left(self, a: __m512i, by: u32, mask: u8) -> __m512i {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_and_si512(_mm512_sll_epi16(a, _mm_cvtsi32_si128(by as i32)), _mm512_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    fn right(self, a: __m512i, by: u32, mask: u8) -> __m512i {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_and_si512(_mm512_srl_epi16(a, _mm_cvtsi32_si128(by as i32)), _mm512_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_offset(self, _pairs: *const u8, total: *const u8, shift: u32) -> __m512i {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 4 bytes.
        unsafe { _mm512_sll_epi32(_mm512_set1_epi32(word(total)), _mm_cvtsi32_si128(shift as i32)) }
    }

    #[inline(always)]
    fn dot_zero(self) -> __m512i {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn mac(self, acc: __m512i, levels: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the token is the proof of AVX-512 VNNI.
        unsafe { _mm512_dpbusd_epi32(acc, levels, x) }
    }

    #[inline(always)]
    fn finish(self, acc: __m512i) -> __m512i {
        acc
    }

    #[inline(always)]
    unsafe fn sub_shifted(self, a: __m512i, total: *const u8, shift: u32) -> __m512i {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 4 bytes.
        unsafe {
            _mm512_sub_epi32(a, _mm512_sll_epi32(_mm512_set1_epi32(word(total)), _mm_cvtsi32_si128(shift as i32)))
        }
    }

    #[inline(always)]
    unsafe fn wide_offset(self, pairs: *const u8, total: *const u8) -> __m512i {
        // SAFETY: the caller's.
        unsafe { self.dot_offset(pairs, total, 7) }
    }

    #[inline(always)]
    fn wide_mac(self, acc: __m512i, levels: __m512i, x: __m512i) -> __m512i {
        self.mac(acc, levels, x)
    }

    #[inline(always)]
    fn wide_finish(self, acc: __m512i) -> __m512i {
        acc
    }

    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn zero(self) -> __m512 {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> __m512 {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 64 bytes.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m512 {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m512 {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 32 bytes.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> __m512 {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 16 bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> __m512 {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 16 bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn splat_f32(self, from: *const u8) -> __m512 {
        // SAFETY: the token is the proof of AVX-512, and the caller's address has 4 bytes.
        unsafe { _mm512_set1_ps(f32::from_bits(word(from) as u32)) }
    }

    #[inline(always)]
    unsafe fn store(self, a: __m512, to: *mut f32) {
        // SAFETY: the token is the proof of AVX-512, and the caller's address takes 16 values.
        unsafe { _mm512_storeu_ps(to, a) }
    }

    #[inline(always)]
    fn sum_sixteen(self, [all, _]: [__m512; 2]) -> f32 {
        // SAFETY: the token is the proof of AVX-512.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps::<1>(all));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token is the proof of AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
}
