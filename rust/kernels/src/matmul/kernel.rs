//! The product of packed tiles and quantized activations, written once for every vector unit.
//!
//! An output is one chain of operations over the sub-blocks of its row, in order:
//! `acc = fma(f32(dot), scale * x_scale, acc)` with an exact integer dot product, then, with minimums, `acc = fma(min, x_sum, acc)`.
//! Lanes are weight rows, so neither the vector unit nor the number of activation rows changes the chain.

// Rows are counted, not iterated over: a closure would be compiled without the vector unit wherever it is not inlined.
#![allow(clippy::needless_range_loop)]

use super::activation::{GROUP, LINE, at};
use super::call::Call;
use super::format::{TileFormat, head, level_pair, pack_tile, scale_and_min, tile_parts};
use super::lanes::{Lanes, prefetch};

/// Bytes of activations that a pass over the weights should keep near: more rows than that come in several passes.
const NEAR: usize = 192 << 10;

/// How far before the levels of a block the processor is asked for them. Tiles follow each other, so the scales and the first levels
/// of the next one are asked for as well, which a processor by itself would notice late: its streams end with each tile.
const AHEAD: usize = 1536;

/// Computes the tiles of a call.
///
/// # Safety
/// `call` was checked against the layout of its matrix, and its outputs in these tiles are the caller's alone.
#[inline(always)]
pub(super) unsafe fn drive<V: Lanes, F: TileFormat>(v: V, call: &Call<'_>, scratch: &mut [u8]) {
    let (_, tile_bytes) = tile_parts::<F>(V::N, call.k);
    let blocks = call.k / 32;
    let rows = call.acts.rows();
    let pass = (NEAR / (blocks * LINE) / GROUP * GROUP).max(2 * GROUP);
    // Passes of about the same size, in whole groups.
    let passes = rows.div_ceil(pass);
    let pass = rows.div_ceil(passes.max(1)).next_multiple_of(GROUP);
    let mut first = 0;
    while first < rows {
        let last = rows.min(first + pass);
        for tile in call.tiles.clone() {
            let data: &[u8] = if call.packed {
                &call.data[tile * tile_bytes..(tile + 1) * tile_bytes]
            } else {
                pack_tile::<F>(V::N, call.k, tile * V::N, call.data, &mut scratch[..tile_bytes]);
                &scratch[..tile_bytes]
            };
            let mut row = first;
            while row < last {
                let left = (last - row).min(GROUP - row % GROUP);
                let widest = if F::BITS == 8 { V::WIDE_ROWS } else { V::ROWS };
                // SAFETY: the rows lie in one group of the activations, and the tile's data is whole.
                row += unsafe {
                    match left.min(widest) {
                        8.. => rows_of::<V, F, 8>(v, call, tile, data, row),
                        4..8 => rows_of::<V, F, 4>(v, call, tile, data, row),
                        3 => rows_of::<V, F, 3>(v, call, tile, data, row),
                        2 => rows_of::<V, F, 2>(v, call, tile, data, row),
                        _ => rows_of::<V, F, 1>(v, call, tile, data, row),
                    }
                };
            }
        }
        first = last;
    }
}

/// Computes one tile for `M` rows from `row` on, all of one group. Returns `M`.
///
/// # Safety
/// As for [`drive`].
#[inline(always)]
unsafe fn rows_of<V: Lanes, F: TileFormat, const M: usize>(
    v: V,
    call: &Call<'_>,
    tile: usize,
    data: &[u8],
    row: usize,
) -> usize {
    let (start, step) = call.acts.place(row);
    let (scale_bytes, _) = tile_parts::<F>(V::N, call.k);
    // SAFETY: the layout of the activations has these blocks, and the tile has those of its own.
    unsafe {
        let x = call.x.as_ptr().add(start);
        let levels = data.as_ptr().add(scale_bytes);
        let acc = tile_rows::<V, F, M>(v, data.as_ptr(), levels, call.k / 32 / F::BLOCKS, x, step);
        for (m, &acc) in acc.iter().enumerate() {
            call.put(v, acc, row + m, tile * V::N);
        }
    }
    M
}

/// The chains of one tile for `M` rows of activations whose blocks lie one line apart.
///
/// # Safety
/// `scales` and `levels` hold `supers` blocks of the file for each lane; `x` has as many blocks for each row, `step` bytes from one to the next.
#[inline(always)]
unsafe fn tile_rows<V: Lanes, F: TileFormat, const M: usize>(
    v: V,
    mut scales: *const u8,
    mut levels: *const u8,
    supers: usize,
    mut x: *const u8,
    step: usize,
) -> [V::Float; M] {
    let mut acc = [v.zero(); M];
    // SAFETY: the pointers advance by what one block has, as often as there are blocks.
    unsafe {
        for _ in 0..supers {
            let head = head::<V, F>(v, scales);
            for within in 0..F::BLOCKS {
                for line in 0..F::LEVEL_BYTES * V::N / 64 {
                    prefetch(levels.wrapping_add(AHEAD + line * 64));
                }
                for sub in 0..32 / F::SUB {
                    let (scale, min) = scale_and_min::<V, F>(v, head, scales, within, sub);
                    let dots = if F::BITS == 8 {
                        wide_dots::<V, F, M>(v, levels, x)
                    } else {
                        dots::<V, F, M>(v, levels, x, sub)
                    };
                    for m in 0..M {
                        let x = x.add(m * LINE);
                        let factor = v.mul(scale, v.splat_f32(x.add(at::SCALE)));
                        acc[m] = v.fma(v.to_float(dots[m]), factor, acc[m]);
                        if F::MIN {
                            acc[m] = v.fma(min, v.splat_f32(x.add(at::SUM)), acc[m]);
                        }
                    }
                }
                levels = levels.add(F::LEVEL_BYTES * V::N);
                x = x.add(step);
            }
            scales = scales.add(F::SCALE_BYTES * V::N);
        }
    }
    acc
}

/// Integer dot products of sub-block `sub` of a block, levels of at most six bits.
///
/// # Safety
/// `levels` and `x` point to a block.
#[inline(always)]
unsafe fn dots<V: Lanes, F: TileFormat, const M: usize>(
    v: V,
    levels: *const u8,
    x: *const u8,
    sub: usize,
) -> [V::Int; M] {
    // Sums of 32 unsigned levels of five bits do not fit into 16 bits: there they are taken as signed, and mended at the end.
    let mend = F::OFFSET.is_none() && F::BITS > 4 && V::NARROW;
    let (pairs, total) =
        if F::SUB == 32 { (at::PAIRS, at::TOTAL) } else { (at::HALF_PAIRS + 4 * sub, at::HALF_TOTALS + 4 * sub) };
    // SAFETY: all addresses lie within the block.
    unsafe {
        let mut acc = [v.dot_zero(); M];
        if let Some(shift) = F::OFFSET.or(if mend { Some(F::BITS as u32 - 1) } else { None }) {
            for m in 0..M {
                acc[m] = v.dot_offset(x.add(m * LINE + pairs), x.add(m * LINE + total), shift);
            }
        }
        let pairs = F::SUB / 8;
        for j in sub * pairs..(sub + 1) * pairs {
            let (first, second) = level_pair::<V, F>(v, levels, j);
            for m in 0..M {
                let x = x.add(m * LINE + 8 * j);
                acc[m] = v.mac(acc[m], first, v.splat(x));
                acc[m] = v.mac(acc[m], second, v.splat(x.add(4)));
            }
        }
        let mut sums = [v.finish(acc[0]); M];
        for m in 0..M {
            sums[m] = v.finish(acc[m]);
            if mend {
                sums[m] = v.sub_shifted(sums[m], x.add(m * LINE + total), F::BITS as u32 - 1);
            }
        }
        sums
    }
}

/// Integer dot products of a block, levels of eight bits less 128.
///
/// # Safety
/// `levels` and `x` point to a block.
#[inline(always)]
unsafe fn wide_dots<V: Lanes, F: TileFormat, const M: usize>(v: V, levels: *const u8, x: *const u8) -> [V::Int; M] {
    // SAFETY: all addresses lie within the block.
    unsafe {
        let mut acc = [v.wide_offset(x.add(at::PAIRS), x.add(at::TOTAL)); M];
        for m in 0..M {
            acc[m] = v.wide_offset(x.add(m * LINE + at::PAIRS), x.add(m * LINE + at::TOTAL));
        }
        for j in 0..4 {
            let (first, second) = level_pair::<V, F>(v, levels, j);
            for m in 0..M {
                let x = x.add(m * LINE + 8 * j);
                acc[m] = v.wide_mac(acc[m], first, v.splat(x));
                acc[m] = v.wide_mac(acc[m], second, v.splat(x.add(4)));
            }
        }
        let mut sums = [v.wide_finish(acc[0]); M];
        for m in 0..M {
            sums[m] = v.wide_finish(acc[m]);
        }
        sums
    }
}
