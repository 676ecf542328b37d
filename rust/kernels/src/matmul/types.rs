//! The types that are packed into tiles.

use super::format::{Scaling, TileFormat, Unpacked};
use crate::quant::unpack_scales_mins;

fn half(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// Nibbles of the legacy types: value `i` low and value `i + 16` high in byte `i`.
fn legacy_nibbles(qs: &[u8], levels: &mut [u8]) {
    for (i, q) in qs[..16].iter().enumerate() {
        levels[i] = q & 0xf;
        levels[i + 16] = q >> 4;
    }
}

/// The fifth bits of the legacy types: bit `i` of a little-endian number belongs to value `i`.
fn legacy_fifth(qh: &[u8], levels: &mut [u8]) {
    for (i, level) in levels[..32].iter_mut().enumerate() {
        *level |= (qh[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// Nibbles of Q4_K and Q5_K: in each quarter, value `l` low and value `l + 32` high in byte `l`.
fn quarter_nibbles(qs: &[u8], levels: &mut [u8; 256]) {
    for (levels, qs) in levels.as_chunks_mut::<64>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for (l, q) in qs.iter().enumerate() {
            levels[l] = q & 0xf;
            levels[l + 32] = q >> 4;
        }
    }
}

/// `d`, `dmin` and `scales` of Q4_K and Q5_K.
fn affine_header(header: &[u8], out: &mut Unpacked) {
    out.d = half(header);
    // The minimum is taken away.
    out.m = half(&header[2..]) ^ 0x8000;
    let (scales, mins) = unpack_scales_mins(header[4..16].first_chunk().expect("the range is 12 bytes"));
    out.scales[..8].copy_from_slice(&scales);
    out.mins = mins;
}

pub(super) struct Q4_0;
impl TileFormat for Q4_0 {
    const BYTES: usize = 18;
    const BLOCKS: usize = 1;
    const BITS: usize = 4;
    const OFFSET: Option<u32> = Some(3);
    const SCALING: Scaling = Scaling::Plain;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = half(block);
        legacy_nibbles(&block[2..], &mut out.levels);
    }
}

pub(super) struct Q4_1;
impl TileFormat for Q4_1 {
    const BYTES: usize = 20;
    const BLOCKS: usize = 1;
    const BITS: usize = 4;
    const OFFSET: Option<u32> = None;
    const SCALING: Scaling = Scaling::Affine;

    fn read(block: &[u8], out: &mut Unpacked) {
        (out.d, out.m) = (half(block), half(&block[2..]));
        legacy_nibbles(&block[4..], &mut out.levels);
    }
}

pub(super) struct Q5_0;
impl TileFormat for Q5_0 {
    const BYTES: usize = 22;
    const BLOCKS: usize = 1;
    const BITS: usize = 5;
    const OFFSET: Option<u32> = Some(4);
    const SCALING: Scaling = Scaling::Plain;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = half(block);
        legacy_nibbles(&block[6..], &mut out.levels);
        legacy_fifth(&block[2..6], &mut out.levels);
    }
}

pub(super) struct Q5_1;
impl TileFormat for Q5_1 {
    const BYTES: usize = 24;
    const BLOCKS: usize = 1;
    const BITS: usize = 5;
    const OFFSET: Option<u32> = None;
    const SCALING: Scaling = Scaling::Affine;

    fn read(block: &[u8], out: &mut Unpacked) {
        (out.d, out.m) = (half(block), half(&block[2..]));
        legacy_nibbles(&block[8..], &mut out.levels);
        legacy_fifth(&block[4..8], &mut out.levels);
    }
}

pub(super) struct Q8_0;
impl TileFormat for Q8_0 {
    const BYTES: usize = 34;
    const BLOCKS: usize = 1;
    const BITS: usize = 8;
    const OFFSET: Option<u32> = Some(7);
    const SCALING: Scaling = Scaling::Plain;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = half(block);
        for (level, q) in out.levels.iter_mut().zip(&block[2..]) {
            *level = q ^ 0x80;
        }
    }
}

pub(super) struct Q4K;
impl TileFormat for Q4K {
    const BYTES: usize = 144;
    const BLOCKS: usize = 8;
    const BITS: usize = 4;
    const OFFSET: Option<u32> = None;
    const SCALING: Scaling = Scaling::SubAffine;

    fn read(block: &[u8], out: &mut Unpacked) {
        affine_header(block, out);
        quarter_nibbles(&block[16..], &mut out.levels);
    }
}

pub(super) struct Q5K;
impl TileFormat for Q5K {
    const BYTES: usize = 176;
    const BLOCKS: usize = 8;
    const BITS: usize = 5;
    const OFFSET: Option<u32> = None;
    const SCALING: Scaling = Scaling::SubAffine;

    fn read(block: &[u8], out: &mut Unpacked) {
        affine_header(block, out);
        quarter_nibbles(&block[48..], &mut out.levels);
        for (sub, levels) in out.levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (level, h) in levels.iter_mut().zip(&block[16..48]) {
                *level |= (h >> sub & 1) << 4;
            }
        }
    }
}

pub(super) struct Q6K;
impl TileFormat for Q6K {
    const BYTES: usize = 210;
    const BLOCKS: usize = 8;
    const BITS: usize = 6;
    const OFFSET: Option<u32> = Some(5);
    const SCALING: Scaling = Scaling::SubPlain;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = half(&block[208..]);
        out.scales.copy_from_slice(&block[192..208]);
        for (half, levels) in out.levels.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let (ql, qh) = (&block[half * 64..][..64], &block[128 + half * 32..][..32]);
            for (l, &h) in qh.iter().enumerate() {
                levels[l] = ql[l] & 0xf | (h & 3) << 4;
                levels[l + 32] = ql[l + 32] & 0xf | (h >> 2 & 3) << 4;
                levels[l + 64] = ql[l] >> 4 | (h >> 4 & 3) << 4;
                levels[l + 96] = ql[l + 32] >> 4 | (h >> 6) << 4;
            }
        }
    }
}
