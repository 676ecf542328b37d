//! Lanes as arrays: the twin of every vector unit, of any width.

use super::Lanes;
use crate::float::{bf16_to_f32, f16_to_f32};

/// `N` lanes in plain Rust.
#[derive(Debug, Clone, Copy)]
pub struct Portable<const N: usize>;

/// Reads an array of values of plain bytes.
#[inline(always)]
unsafe fn read<T: Copy, const N: usize>(from: *const u8) -> [T; N] {
    // SAFETY: the caller gives an address with that many bytes; T is an integer or a float.
    unsafe { from.cast::<[T; N]>().read_unaligned() }
}

/// Four products of an unsigned and a signed byte.
#[inline(always)]
fn dot4(levels: u32, x: u32) -> i32 {
    let mut sum = 0;
    for byte in 0..4 {
        sum += (levels >> (8 * byte) & 0xff) as i32 * i32::from((x >> (8 * byte)) as i8);
    }
    sum
}

macro_rules! each {
    (|$lane:ident| $value:expr) => {{
        let mut out = [Default::default(); N];
        let mut $lane = 0;
        while $lane < N {
            out[$lane] = $value;
            $lane += 1;
        }
        out
    }};
}

impl<const N: usize> Lanes for Portable<N>
where
    [u32; N]: Copy,
{
    const N: usize = N;
    const NARROW: bool = false;
    const ROWS: usize = 4;
    const WIDE_ROWS: usize = 4;
    const FLOAT_ROWS: usize = 4;
    const FLOAT_WEIGHTS: usize = 1;
    type Int = [u32; N];
    type Float = [f32; N];
    type Dot = [i32; N];
    type Wide = [i32; N];

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> [u32; N] {
        // SAFETY: the caller's address has 4 N bytes.
        unsafe { read(from) }
    }

    #[inline(always)]
    unsafe fn splat(self, from: *const u8) -> [u32; N] {
        // SAFETY: the caller's address has 4 bytes.
        let [four] = unsafe { read::<u32, 1>(from) };
        [four; N]
    }

    #[inline(always)]
    fn left(self, a: [u32; N], by: u32, mask: u8) -> [u32; N] {
        let mask = u32::from_ne_bytes([mask; 4]);
        each!(|lane| a[lane] << by & mask)
    }

    #[inline(always)]
    fn right(self, a: [u32; N], by: u32, mask: u8) -> [u32; N] {
        let mask = u32::from_ne_bytes([mask; 4]);
        each!(|lane| a[lane] >> by & mask)
    }

    #[inline(always)]
    fn or(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        each!(|lane| a[lane] | b[lane])
    }

    #[inline(always)]
    unsafe fn dot_offset(self, _pairs: *const u8, total: *const u8, shift: u32) -> [i32; N] {
        // SAFETY: the caller's address has 4 bytes.
        let [total] = unsafe { read::<i32, 1>(total) };
        [total << shift; N]
    }

    #[inline(always)]
    fn dot_zero(self) -> [i32; N] {
        [0; N]
    }

    #[inline(always)]
    fn mac(self, acc: [i32; N], levels: [u32; N], x: [u32; N]) -> [i32; N] {
        each!(|lane| acc[lane] + dot4(levels[lane], x[lane]))
    }

    #[inline(always)]
    fn finish(self, acc: [i32; N]) -> [u32; N] {
        each!(|lane| acc[lane] as u32)
    }

    #[inline(always)]
    unsafe fn sub_shifted(self, a: [u32; N], total: *const u8, shift: u32) -> [u32; N] {
        // SAFETY: the caller's address has 4 bytes.
        let [total] = unsafe { read::<i32, 1>(total) };
        each!(|lane| a[lane].wrapping_sub((total << shift) as u32))
    }

    #[inline(always)]
    unsafe fn wide_offset(self, pairs: *const u8, total: *const u8) -> [i32; N] {
        // SAFETY: the caller's.
        unsafe { self.dot_offset(pairs, total, 7) }
    }

    #[inline(always)]
    fn wide_mac(self, acc: [i32; N], levels: [u32; N], x: [u32; N]) -> [i32; N] {
        self.mac(acc, levels, x)
    }

    #[inline(always)]
    fn wide_finish(self, acc: [i32; N]) -> [u32; N] {
        self.finish(acc)
    }

    #[inline(always)]
    fn to_float(self, a: [u32; N]) -> [f32; N] {
        each!(|lane| a[lane] as i32 as f32)
    }

    #[inline(always)]
    fn zero(self) -> [f32; N] {
        [0.0; N]
    }

    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> [f32; N] {
        // SAFETY: the caller's address has 4 N bytes.
        unsafe { read(from) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> [f32; N] {
        // SAFETY: the caller's address has 2 N bytes.
        let halves: [u16; N] = unsafe { read(from) };
        each!(|lane| f16_to_f32(halves[lane]))
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> [f32; N] {
        // SAFETY: the caller's address has 2 N bytes.
        let halves: [u16; N] = unsafe { read(from) };
        each!(|lane| bf16_to_f32(halves[lane]))
    }

    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> [f32; N] {
        // SAFETY: the caller's address has N bytes.
        let bytes: [u8; N] = unsafe { read(from) };
        each!(|lane| f32::from(bytes[lane]))
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> [f32; N] {
        // SAFETY: the caller's address has N bytes.
        let bytes: [i8; N] = unsafe { read(from) };
        each!(|lane| f32::from(bytes[lane]))
    }

    #[inline(always)]
    unsafe fn splat_f32(self, from: *const u8) -> [f32; N] {
        // SAFETY: the caller's address has 4 bytes.
        let [value] = unsafe { read::<f32, 1>(from) };
        [value; N]
    }

    #[inline(always)]
    unsafe fn store(self, a: [f32; N], to: *mut f32) {
        // SAFETY: the caller's address takes N values.
        unsafe { to.cast::<[f32; N]>().write_unaligned(a) }
    }

    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        each!(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        each!(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn fma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        each!(|lane| a[lane].mul_add(b[lane], c[lane]))
    }
}
