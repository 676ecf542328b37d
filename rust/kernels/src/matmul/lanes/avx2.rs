//! Eight lanes in AVX2, with or without AVX-VNNI.

use std::arch::x86_64::*;

use super::Lanes;
use crate::isa::{Isa, Level};

/// AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

/// The same with AVX-VNNI.
#[derive(Debug, Clone, Copy)]
pub struct Avx2Vnni(());

impl Avx2 {
    /// The proof, from the one that an [`Isa`] is.
    pub fn new(isa: Isa) -> Option<Self> {
        (isa.level() == Level::Avx2).then_some(Self(()))
    }
}

impl Avx2Vnni {
    /// The proof, from the one that an [`Isa`] is.
    pub fn new(isa: Isa) -> Option<Self> {
        (isa.level() == Level::Avx2 && isa.has_vnni()).then_some(Self(()))
    }
}

/// Reads four bytes.
#[inline(always)]
unsafe fn word(from: *const u8) -> i32 {
    // SAFETY: the caller's address has four bytes.
    unsafe { from.cast::<i32>().read_unaligned() }
}

/// What does not depend on how bytes are multiplied.
macro_rules! common {
    () => {
        const N: usize = 8;
        type Int = __m256i;
        type Float = __m256;

        #[inline(always)]
        unsafe fn load(self, from: *const u8) -> __m256i {
            // SAFETY: the token is the proof of AVX2, and the caller's address has 32 bytes.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }

        #[inline(always)]
        unsafe fn splat(self, from: *const u8) -> __m256i {
            // SAFETY: the token is the proof of AVX2, and the caller's address has 4 bytes.
            unsafe { _mm256_set1_epi32(word(from)) }
        }

        #[inline(always)]
        fn left(self, a: __m256i, by: u32, mask: u8) -> __m256i {
            // SAFETY: the token is the proof of AVX2.
            unsafe { _mm256_and_si256(_mm256_sll_epi16(a, _mm_cvtsi32_si128(by as i32)), _mm256_set1_epi8(mask as i8)) }
        }

        #[inline(always)]
        fn right(self, a: __m256i, by: u32, mask: u8) -> __m256i {
            // SAFETY: the token is the proof of AVX2.
            unsafe { _mm256_and_si256(_mm256_srl_epi16(a, _mm_cvtsi32_si128(by as i32)), _mm256_set1_epi8(mask as i8)) }
        }

        #[inline(always)]
        fn or(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: the token is the proof of AVX2.
            unsafe { _mm256_or_si256(a, b) }
        }

        #[inline(always)]
        unsafe fn sub_shifted(self, a: __m256i, total: *const u8, shift: u32) -> __m256i {
            // SAFETY: the token is the proof of AVX2, and the caller's address has 4 bytes.
            unsafe {
                _mm256_sub_epi32(a, _mm256_sll_epi32(_mm256_set1_epi32(word(total)), _mm_cvtsi32_si128(shift as i32)))
            }
        }

        #[inline(always)]
        fn to_float(self, a: __m256i) -> __m256 {
            // SAFETY: the token is the proof of AVX.
            unsafe { _mm256_cvtepi32_ps(a) }
        }

        #[inline(always)]
        fn zero(self) -> __m256 {
            // SAFETY: the token is the proof of AVX.
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn load_f32(self, from: *const u8) -> __m256 {
            // SAFETY: the token is the proof of AVX, and the caller's address has 32 bytes.
            unsafe { _mm256_loadu_ps(from.cast()) }
        }

        #[inline(always)]
        unsafe fn load_f16(self, from: *const u8) -> __m256 {
            // SAFETY: the token is the proof of F16C, and the caller's address has 16 bytes.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }

        #[inline(always)]
        unsafe fn load_bf16(self, from: *const u8) -> __m256 {
            // SAFETY: the token is the proof of AVX2, and the caller's address has 16 bytes.
            unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))) }
        }

        #[inline(always)]
        unsafe fn load_u8(self, from: *const u8) -> __m256 {
            // SAFETY: the token is the proof of AVX2, and the caller's address has 8 bytes.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
        }

        #[inline(always)]
        unsafe fn load_i8(self, from: *const u8) -> __m256 {
            // SAFETY: the token is the proof of AVX2, and the caller's address has 8 bytes.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
        }

        #[inline(always)]
        unsafe fn splat_f32(self, from: *const u8) -> __m256 {
            // SAFETY: the token is the proof of AVX, and the caller's address has 4 bytes.
            unsafe { _mm256_set1_ps(f32::from_bits(word(from) as u32)) }
        }

        #[inline(always)]
        unsafe fn store(self, a: __m256, to: *mut f32) {
            // SAFETY: the token is the proof of AVX, and the caller's address takes 8 values.
            unsafe { _mm256_storeu_ps(to, a) }
        }

        #[inline(always)]
        fn add(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: the token is the proof of AVX.
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: the token is the proof of AVX.
            unsafe { _mm256_mul_ps(a, b) }
        }

        #[inline(always)]
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: the token is the proof of FMA.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
    };
}

impl Lanes for Avx2 {
    const NARROW: bool = true;
    const ROWS: usize = 8;
    const WIDE_ROWS: usize = 4;
    const FLOAT_ROWS: usize = 4;
    const FLOAT_WEIGHTS: usize = 1;
    /// Sixteen sums of two products each.
    type Dot = __m256i;
    /// The same for the high and the low nibbles of the levels: a product of two bytes would not fit with another into 16 bits.
    type Wide = (__m256i, __m256i);

    common!();

    #[inline(always)]
    unsafe fn dot_offset(self, pairs: *const u8, _total: *const u8, shift: u32) -> __m256i {
        // SAFETY: the token is the proof of AVX2, and the caller's address has 4 bytes.
        unsafe { _mm256_sll_epi16(_mm256_set1_epi32(word(pairs)), _mm_cvtsi32_si128(shift as i32)) }
    }

    #[inline(always)]
    fn dot_zero(self) -> __m256i {
        // SAFETY: the token is the proof of AVX.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn mac(self, acc: __m256i, levels: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the token is the proof of AVX2.
        unsafe { _mm256_add_epi16(acc, _mm256_maddubs_epi16(levels, x)) }
    }

    #[inline(always)]
    fn finish(self, acc: __m256i) -> __m256i {
        // SAFETY: the token is the proof of AVX2.
        unsafe { _mm256_madd_epi16(acc, _mm256_set1_epi16(1)) }
    }

    #[inline(always)]
    unsafe fn wide_offset(self, pairs: *const u8, total: *const u8) -> (__m256i, __m256i) {
        // SAFETY: the caller's. Less 128 is less 8 for the high nibbles.
        (unsafe { self.dot_offset(pairs, total, 3) }, self.dot_zero())
    }

    #[inline(always)]
    fn wide_mac(self, (high, low): Self::Wide, levels: __m256i, x: __m256i) -> Self::Wide {
        (self.mac(high, self.right(levels, 4, 0xf), x), self.mac(low, self.right(levels, 0, 0xf), x))
    }

    #[inline(always)]
    fn wide_finish(self, (high, low): Self::Wide) -> __m256i {
        // SAFETY: the token is the proof of AVX2.
        unsafe { _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(16)), self.finish(low)) }
    }
}

impl Lanes for Avx2Vnni {
    const NARROW: bool = false;
    const ROWS: usize = 8;
    const WIDE_ROWS: usize = 8;
    const FLOAT_ROWS: usize = 4;
    const FLOAT_WEIGHTS: usize = 1;
    type Dot = __m256i;
    type Wide = __m256i;

    common!();

    #[inline(always)]
    unsafe fn dot_offset(self, _pairs: *const u8, total: *const u8, shift: u32) -> __m256i {
        // SAFETY: the token is the proof of AVX2, and the caller's address has 4 bytes.
        unsafe { _mm256_sll_epi32(_mm256_set1_epi32(word(total)), _mm_cvtsi32_si128(shift as i32)) }
    }

    #[inline(always)]
    fn dot_zero(self) -> __m256i {
        // SAFETY: the token is the proof of AVX.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn mac(self, acc: __m256i, levels: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the token is the proof of AVX-VNNI.
        unsafe { _mm256_dpbusd_avx_epi32(acc, levels, x) }
    }

    #[inline(always)]
    fn finish(self, acc: __m256i) -> __m256i {
        acc
    }

    #[inline(always)]
    unsafe fn wide_offset(self, pairs: *const u8, total: *const u8) -> __m256i {
        // SAFETY: the caller's.
        unsafe { self.dot_offset(pairs, total, 7) }
    }

    #[inline(always)]
    fn wide_mac(self, acc: __m256i, levels: __m256i, x: __m256i) -> __m256i {
        self.mac(acc, levels, x)
    }

    #[inline(always)]
    fn wide_finish(self, acc: __m256i) -> __m256i {
        acc
    }
}
