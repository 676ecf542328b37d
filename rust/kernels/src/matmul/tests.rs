//! Lanes of another width than this machine may have: sixteen, as AVX-512 has, in plain Rust.

use super::*;

/// Packs and multiplies with `N` portable lanes: outputs `[rows, n]`.
fn product<F: TileFormat, const N: usize>(n: usize, k: usize, raw: &[u8], acts: Acts<'_>) -> Vec<f32> {
    let tiles = n.div_ceil(N);
    let (_, tile_bytes) = tile_parts::<F>(N, k);
    let mut data = vec![0; tiles * tile_bytes];
    for (tile, data) in data.chunks_exact_mut(tile_bytes).enumerate() {
        pack_tile::<F>(N, k, tile * N, raw, data);
    }
    let mut out = vec![f32::NAN; acts.layout.rows() * n];
    let call = Call {
        n,
        k,
        data: &data,
        packed: true,
        x: acts.data,
        acts: acts.layout,
        tiles: 0..tiles,
        out: OutRows::new(&mut out, n),
        accumulate: false,
        scale: 1.0,
        bias: None,
    };
    // SAFETY: the call has the sizes of its parts, and its outputs are here alone.
    unsafe { kernel::drive::<_, F>(Portable::<N>, &call, &mut []) };
    out
}

fn widths_agree<F: TileFormat>() {
    let (n, k, rows) = (21, 256, 11);
    // Bytes that differ from one to the next; halves among them are neither infinite nor NaN.
    let byte = |i: usize| ((i * 7919 + i / 13 * 31) % 251) as u8 & 0xbb;
    let raw: Vec<u8> = (0..n * k / 32 / F::BLOCKS * F::BYTES).map(byte).collect();
    let layout = ActLayout::new(ActKind::Q8, k, rows);
    let mut data = vec![0; layout.bytes()];
    for row in 0..rows {
        let x: Vec<f32> = (0..k).map(|i| ((i * 101 + row * 977) % 509) as f32 - 254.0).collect();
        layout.write_row(Isa::SCALAR, row, &x, &mut data);
    }
    let acts = Acts::new(layout, &data);
    let (eight, sixteen) = (product::<F, 8>(n, k, &raw, acts), product::<F, 16>(n, k, &raw, acts));
    assert!(eight.iter().all(|value| value.is_finite()) && eight.iter().any(|&value| value != 0.0));
    assert_eq!(eight, sixteen);
}

#[test]
fn sixteen_lanes_have_the_bits_of_eight() {
    widths_agree::<types::Q4_0>();
    widths_agree::<types::Q4_1>();
    widths_agree::<types::Q5_0>();
    widths_agree::<types::Q5_1>();
    widths_agree::<types::Q8_0>();
    widths_agree::<types::Q4K>();
    widths_agree::<types::Q5K>();
    widths_agree::<types::Q6K>();
}

#[test]
fn sixteen_lanes_of_floats_have_the_bits_of_eight() {
    let (n, k, rows) = (19, 87, 7);
    let weights: Vec<f32> = (0..n * k).map(|i| ((i * 61) % 97) as f32 / 7.0 - 6.0).collect();
    let raw: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    let layout = ActLayout::new(ActKind::F32, k, rows);
    let mut data = vec![0; layout.bytes()];
    for row in 0..rows {
        let x: Vec<f32> = (0..k).map(|i| ((i * 101 + row * 977) % 509) as f32 / 254.0).collect();
        layout.write_row(Isa::SCALAR, row, &x, &mut data);
    }
    let product = |wide: bool| {
        let mut out = vec![f32::NAN; rows * n];
        let call = Call {
            n,
            k,
            data: &raw,
            packed: false,
            x: &data,
            acts: layout,
            tiles: 0..n.div_ceil(if wide { 16 } else { 8 }),
            out: OutRows::new(&mut out, n),
            accumulate: false,
            scale: 1.0,
            bias: None,
        };
        // SAFETY: the call has the sizes of its parts, and its outputs are here alone.
        unsafe {
            if wide {
                float::drive(Portable::<16>, &call, Stored::F32);
            } else {
                float::drive(Portable::<8>, &call, Stored::F32);
            }
        }
        out
    };
    assert_eq!(product(true), product(false));
    assert!(product(true).iter().all(|value| value.is_finite()));
}
