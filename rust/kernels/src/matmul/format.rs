//! What a quantized type must say to be packed into tiles, and the packing.
//!
//! A tile is `N` weight rows, one for each lane. It holds the scales of all its blocks, then the levels of all its blocks.
//! The levels of a block of 32 lie in vectors of four bytes a row, so that four activations, the same for every row, meet one vector:
//!
//! - 4 bits: vector `j` of four has values `8j + t` in the low and `8j + 4 + t` in the high nibble of byte `t` of each row;
//! - 5 bits: a fifth vector follows, whose bit `c` is the fifth bit of value `4c + t`;
//! - 6 bits: two vectors follow, one for each half of the block, whose bits `2c` and `2c + 1` are the upper bits of the half's value `4c + t`;
//! - 8 bits: vector `c` of eight has values `4c + t`.

use super::activation::BLOCK;
use super::lanes::Lanes;

/// Most values in a block of a file's type.
const SUPER: usize = 256;

/// A block of the file, read: levels as unsigned numbers, scales in their stored form.
pub(super) struct Unpacked {
    /// Unsigned levels.
    pub levels: [u8; SUPER],
    /// Scale of the block, f16.
    pub d: u16,
    /// What is added to each value, or the scale of the sub-minimums (negated), f16.
    pub m: u16,
    /// Sub-scales, of 32 or 16 values.
    pub scales: [u8; 16],
    /// Sub-minimums of 32 values.
    pub mins: [u8; 8],
}

/// How the scales of a file's block are stored and become f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scaling {
    /// `d` for 32 values: `d * q`.
    Plain,
    /// `d` and `m` for 32 values: `d * q + m`.
    Affine,
    /// `d`, `-dmin` and 6-bit sub-scales and sub-minimums of 32 values: `(d * scale) * q + (-dmin * min)`.
    SubAffine,
    /// `d` and signed sub-scales of 16 values: `(d * scale) * q`.
    SubPlain,
}

/// A file's type as packed into tiles.
///
/// The value of weight `i` is `scale * (level - OFFSET) + min`.
pub(super) trait TileFormat: 'static {
    /// Bytes of a block in the file.
    const BYTES: usize;
    /// Blocks of 32 values in a block of the file.
    const BLOCKS: usize;
    /// Bits of a level: 4, 5, 6 or 8.
    const BITS: usize;
    /// Base-2 logarithm of what is taken from every level; `None` for levels that stand for themselves.
    const OFFSET: Option<u32>;
    /// The scales.
    const SCALING: Scaling;

    /// Reads a block of the file.
    fn read(block: &[u8], out: &mut Unpacked);

    /// Values that share a scale.
    const SUB: usize = if matches!(Self::SCALING, Scaling::SubPlain) { 16 } else { 32 };
    /// Whether a minimum is added.
    const MIN: bool = matches!(Self::SCALING, Scaling::Affine | Scaling::SubAffine);
    /// Bytes of the scales of one block of the file, for one weight row.
    const SCALE_BYTES: usize = match Self::SCALING {
        Scaling::Plain => 2,
        Scaling::Affine => 4,
        Scaling::SubAffine => 4 + 2 * Self::BLOCKS,
        Scaling::SubPlain => 2 + 2 * Self::BLOCKS,
    };
    /// Bytes of the levels of 32 values.
    const LEVEL_BYTES: usize = Self::BITS * BLOCK / 8;
}

/// Where the scales of a tile end and its levels begin; and where the levels end. Both are multiples of 64.
pub(super) fn tile_parts<F: TileFormat>(lanes: usize, k: usize) -> (usize, usize) {
    let blocks = k / BLOCK;
    let scales = (blocks / F::BLOCKS * F::SCALE_BYTES * lanes).next_multiple_of(64);
    (scales, scales + blocks * F::LEVEL_BYTES * lanes)
}

/// Packs weight rows `first..first + lanes` of `raw` (rows of `k` values; those past its end are zeros) into one tile.
pub(super) fn pack_tile<F: TileFormat>(lanes: usize, k: usize, first: usize, raw: &[u8], tile: &mut [u8]) {
    let supers = k / BLOCK / F::BLOCKS;
    let (scale_bytes, _) = tile_parts::<F>(lanes, k);
    let (scales, levels) = tile.split_at_mut(scale_bytes);
    let mut block = Unpacked { levels: [0; SUPER], d: 0, m: 0, scales: [0; 16], mins: [0; 8] };
    for lane in 0..lanes {
        let row = raw.chunks_exact(supers * F::BYTES).nth(first + lane);
        for at in 0..supers {
            match row {
                Some(row) => F::read(&row[at * F::BYTES..(at + 1) * F::BYTES], &mut block),
                None => block = Unpacked { levels: [0; SUPER], d: 0, m: 0, scales: [0; 16], mins: [0; 8] },
            }
            put_scales::<F>(&block, lane, lanes, &mut scales[at * F::SCALE_BYTES * lanes..][..F::SCALE_BYTES * lanes]);
            for (within, values) in block.levels.as_chunks::<BLOCK>().0.iter().take(F::BLOCKS).enumerate() {
                let start = (at * F::BLOCKS + within) * F::LEVEL_BYTES * lanes;
                put_levels(F::BITS, values, lane, 4 * lanes, &mut levels[start..start + F::LEVEL_BYTES * lanes]);
            }
        }
    }
    scales[supers * F::SCALE_BYTES * lanes..].fill(0);
}

fn put_scales<F: TileFormat>(block: &Unpacked, lane: usize, lanes: usize, out: &mut [u8]) {
    out[2 * lane..2 * lane + 2].copy_from_slice(&block.d.to_le_bytes());
    let mut rest = 2 * lanes;
    if F::MIN {
        out[rest + 2 * lane..rest + 2 * lane + 2].copy_from_slice(&block.m.to_le_bytes());
        rest += 2 * lanes;
    }
    for within in 0..F::BLOCKS {
        let out = &mut out[rest..];
        match F::SCALING {
            Scaling::Plain | Scaling::Affine => {}
            Scaling::SubAffine => {
                out[2 * within * lanes + lane] = block.scales[within];
                out[(2 * within + 1) * lanes + lane] = block.mins[within];
            }
            Scaling::SubPlain => {
                out[2 * within * lanes + lane] = block.scales[2 * within];
                out[(2 * within + 1) * lanes + lane] = block.scales[2 * within + 1];
            }
        }
    }
}

fn put_levels(bits: usize, values: &[u8; BLOCK], lane: usize, vector: usize, out: &mut [u8]) {
    for t in 0..4 {
        let at = 4 * lane + t;
        let value = |c: usize| values[4 * c + t];
        if bits == 8 {
            for c in 0..8 {
                out[c * vector + at] = value(c);
            }
            continue;
        }
        for j in 0..4 {
            out[j * vector + at] = value(2 * j) & 0xf | value(2 * j + 1) << 4;
        }
        if bits == 5 {
            out[4 * vector + at] = (0..8).fold(0, |bits, c| bits | (value(c) >> 4 & 1) << c);
        }
        if bits == 6 {
            for half in 0..2 {
                out[(4 + half) * vector + at] =
                    (0..4).fold(0, |bits, c| bits | (value(4 * half + c) >> 4 & 3) << (2 * c));
            }
        }
    }
}

/// The scales that hold for a whole block of the file.
#[derive(Clone, Copy)]
pub(super) struct Head<V: Lanes> {
    d: V::Float,
    m: V::Float,
}

/// Reads the scales of a block of the file.
///
/// # Safety
/// `scales` points to the `SCALE_BYTES * N` bytes of the block's scales.
#[inline(always)]
pub(super) unsafe fn head<V: Lanes, F: TileFormat>(v: V, scales: *const u8) -> Head<V> {
    // SAFETY: the first 2 N bytes are `d`, and with minimums the next 2 N are `m`.
    unsafe {
        let d = v.load_f16(scales);
        Head { d, m: if F::MIN { v.load_f16(scales.add(2 * V::N)) } else { d } }
    }
}

/// Scale and minimum of sub-block `sub` of the block of 32 values that is number `within` in the file's block.
///
/// # Safety
/// As for [`head`]; `within` is below `BLOCKS` and `sub` below `32 / SUB`.
#[inline(always)]
pub(super) unsafe fn scale_and_min<V: Lanes, F: TileFormat>(
    v: V,
    head: Head<V>,
    scales: *const u8,
    within: usize,
    sub: usize,
) -> (V::Float, V::Float) {
    // SAFETY: behind `d` and `m` come, for each 32 values, N sub-scales and N sub-minimums or twice N sub-scales.
    unsafe {
        match F::SCALING {
            Scaling::Plain | Scaling::Affine => (head.d, head.m),
            Scaling::SubAffine => {
                let at = scales.add((4 + 2 * within) * V::N);
                (v.mul(head.d, v.load_u8(at)), v.mul(head.m, v.load_u8(at.add(V::N))))
            }
            Scaling::SubPlain => {
                let scale = v.mul(head.d, v.load_i8(scales.add((2 + 2 * within + sub) * V::N)));
                (scale, scale)
            }
        }
    }
}

/// The levels of values `8 j + 0..4` and `8 j + 4..8` of a block.
///
/// # Safety
/// `levels` points to the `LEVEL_BYTES * N` bytes of the block's levels, and `j` is below 4.
#[inline(always)]
pub(super) unsafe fn level_pair<V: Lanes, F: TileFormat>(v: V, levels: *const u8, j: usize) -> (V::Int, V::Int) {
    let vector = 4 * V::N;
    // SAFETY: LEVEL_BYTES counts the vectors that each width has.
    unsafe {
        if F::BITS == 8 {
            return (v.load(levels.add(2 * j * vector)), v.load(levels.add((2 * j + 1) * vector)));
        }
        let nibbles = v.load(levels.add(j * vector));
        let (low, high) = (v.right(nibbles, 0, 0xf), v.right(nibbles, 4, 0xf));
        let (first, second) = (2 * j as u32, 2 * j as u32 + 1);
        match F::BITS {
            5 => {
                let plane = v.load(levels.add(4 * vector));
                (v.or(low, moved(v, plane, first, 4, 0x10)), v.or(high, moved(v, plane, second, 4, 0x10)))
            }
            6 => {
                let plane = v.load(levels.add((4 + j / 2) * vector));
                let (first, second) = (2 * (first % 4), 2 * (second % 4));
                (v.or(low, moved(v, plane, first, 4, 0x30)), v.or(high, moved(v, plane, second, 4, 0x30)))
            }
            _ => (low, high),
        }
    }
}

/// Brings bit `from` of every byte to place `to`, and masks.
#[inline(always)]
fn moved<V: Lanes>(v: V, a: V::Int, from: u32, to: u32, mask: u8) -> V::Int {
    if from <= to { v.left(a, to - from, mask) } else { v.right(a, from - to, mask) }
}
