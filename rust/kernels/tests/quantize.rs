//! Quantization against ggml's own bytes, by way of libgguf (`tests/golden/make_quantized.py`).

use std::path::PathBuf;

use draftgauge_kernels::quant::{QuantError, QuantType, dequantize, quantize};
use proptest::prelude::*;

const COLUMNS: usize = 512;
const TYPES: [QuantType; 12] = [
    QuantType::F16,
    QuantType::BF16,
    QuantType::Q4_0,
    QuantType::Q4_1,
    QuantType::Q5_0,
    QuantType::Q5_1,
    QuantType::Q8_0,
    QuantType::Q2K,
    QuantType::Q3K,
    QuantType::Q4K,
    QuantType::Q5K,
    QuantType::Q6K,
];

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/golden/quantized/{name}.bin"));
    std::fs::read(path).unwrap()
}

#[test]
fn every_quantizer_equals_ggml_byte_for_byte() {
    let input: Vec<f32> = golden("input").as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let (importance, x) = input.split_at(COLUMNS);
    for ty in TYPES {
        let expected = golden(ty.name());
        let (plain, weighted) = expected.split_at(expected.len() / 2);
        for (what, imatrix, expected) in [("plain", None, plain), ("weighted", Some(importance), weighted)] {
            let mut found = vec![0xaa; expected.len()];
            quantize(ty, x, COLUMNS, imatrix, &mut found).unwrap();
            let (bytes, row) = (ty.block_bytes(), ty.row_bytes(COLUMNS).unwrap());
            let portable = ty.portable_quantizer().unwrap();
            let mut twin = vec![0x55; expected.len()];
            for (x, out) in x.chunks_exact(COLUMNS).zip(twin.chunks_exact_mut(row)) {
                portable(x, imatrix, out);
            }
            assert!(twin == found, "{ty} {what}: the portable and the AVX2 compilation differ");
            let wrong: Vec<_> = (0..found.len() / bytes)
                .filter(|b| found[b * bytes..][..bytes] != expected[b * bytes..][..bytes])
                .map(|b| (b * bytes / row, b * bytes % row / bytes))
                .collect();
            assert!(
                wrong.is_empty(),
                "{ty} {what}: {} blocks differ, at (row, block) {:?}",
                wrong.len(),
                &wrong[..wrong.len().min(20)]
            );
        }
    }
}

#[test]
fn rejects_what_does_not_fit() {
    let (x, mut out) = ([1.0f32; 64], [0u8; 36]);
    let error = quantize(QuantType::Q4_0, &x, 32, None, &mut out[..35]).unwrap_err();
    assert_eq!(error, QuantError::ByteCount { ty: QuantType::Q4_0, expected: 36, found: 35 });
    let error = quantize(QuantType::Q4_0, &x, 48, None, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "Q4_0 row: expected a multiple of 32 values, found 48");
    assert!(quantize(QuantType::Q4_0, &x, 0, None, &mut out).is_err());
    assert!(quantize(QuantType::Q4_0, &x[1..], 32, None, &mut out).is_err());
    let error = quantize(QuantType::Q4_0, &x, 32, Some(&x), &mut out).unwrap_err();
    assert_eq!(error, QuantError::ImatrixLength { ty: QuantType::Q4_0, expected: 32, found: 64 });
    let mut imatrix = [1.0; 32];
    imatrix[5] = -1.0;
    let error = quantize(QuantType::Q4_0, &x, 32, Some(&imatrix), &mut out).unwrap_err();
    assert_eq!(error, QuantError::ImatrixWeight { ty: QuantType::Q4_0, index: 5, found: -1.0 });
    let error = quantize(QuantType::IQ2XXS, &x, 32, None, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "quantization to IQ2_XXS is not supported");
    assert_eq!(out, [0; 36], "nothing is written before everything is checked");
}

#[test]
fn values_that_are_not_finite_are_refused_where_they_would_poison_a_scale() {
    let mut x = [1.0f32; 32];
    x[7] = f32::NEG_INFINITY;
    let error = quantize(QuantType::Q8_0, &x, 32, None, &mut [0; 34]).unwrap_err();
    assert_eq!(error.to_string(), "quantization to Q8_0: expected finite values, found -inf at index 7");
    let mut halves = [0; 64];
    quantize(QuantType::F16, &x, 32, None, &mut halves).unwrap();
    assert_eq!(halves[14..16], [0x00, 0xfc]);
}

proptest! {
    /// No value that is finite makes a quantizer panic, and what it writes reads back finite unless the scale overflows f16.
    #[test]
    fn any_finite_values_are_quantized(bits in prop::collection::vec(any::<u32>(), 256), which in 0..TYPES.len(), weigh: bool) {
        let ty = TYPES[which];
        let x: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).map(|v| if v.is_finite() { v } else { 0.0 }).collect();
        let imatrix: Vec<f32> = x.iter().map(|v| v.abs().min(1e6)).collect();
        let mut out = vec![0; ty.row_bytes(256).unwrap()];
        quantize(ty, &x, 256, weigh.then_some(&imatrix[..]), &mut out).unwrap();
    }

    /// The error of a value is at most one step of its block, as the types promise for values without outliers.
    #[test]
    fn what_is_read_back_is_near(seed in any::<u64>(), which in 2..TYPES.len()) {
        let ty = TYPES[which];
        let mut state = seed;
        let x: Vec<f32> = (0..256).map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        }).collect();
        let mut out = vec![0; ty.row_bytes(256).unwrap()];
        quantize(ty, &x, 256, None, &mut out).unwrap();
        let mut back = [0.0; 256];
        dequantize(ty, &out, &mut back).unwrap();
        let bits = ty.name().as_bytes()[1] - b'0';
        let step = 2.0 / f32::from((1u16 << bits) - 1);
        for (x, back) in x.iter().zip(back) {
            prop_assert!((x - back).abs() <= 1.2 * step, "{ty}: {x} reads back as {back}");
        }
    }
}
