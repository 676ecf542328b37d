//! Every tensor type against gguf-py's own reading of the same bytes (`tests/golden/make_quants.py`).

use std::path::PathBuf;

use draftgauge_kernels::quant::{QuantError, QuantType, dequantize, unpack_scales_mins, validate};
use proptest::prelude::*;

fn golden(ty: QuantType) -> Option<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/golden/quants/{ty}.bin"));
    path.exists().then(|| std::fs::read(&path).unwrap())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn d01_every_type_equals_gguf_py_bit_for_bit() {
    let mut types = 0;
    for &ty in QuantType::ALL {
        let Some(file) = golden(ty) else { continue };
        types += 1;
        let unit = ty.block_bytes() + 4 * ty.block_len();
        assert_eq!(file.len() % unit, 0, "{ty}");
        let (data, expected) = file.split_at(file.len() / unit * ty.block_bytes());
        let expected: Vec<u32> = expected.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let mut found = vec![0.0; expected.len()];
        dequantize(ty, data, &mut found).unwrap();
        for (i, (&expected, found)) in expected.iter().zip(bits(&found)).enumerate() {
            assert_eq!(
                found,
                expected,
                "{ty} block {} value {}: expected {:e}, found {:e}",
                i / ty.block_len(),
                i % ty.block_len(),
                f32::from_bits(expected),
                f32::from_bits(found),
            );
        }
    }
    // What `gguf` 0.19 reads: F32, F16, BF16, five legacy types, five K-quants, nine IQ types, two ternary and two 4-bit float types; and Q1_0, read by libgguf.
    assert_eq!(types, 27);
}

#[test]
fn portable_and_avx2_compilations_give_the_same_bits() {
    for &ty in QuantType::ALL {
        let (Some(portable), Some(wide)) = (ty.portable_dequantizer(), ty.dequantizer()) else { continue };
        let mut state = u64::from(ty.id());
        let data: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .take(ty.block_bytes() * 512)
        .collect();
        let mut outs = [vec![0.0; ty.block_len() * 512], vec![1.0; ty.block_len() * 512]];
        portable(&data, &mut outs[0]);
        wide(&data, &mut outs[1]);
        assert_eq!(bits(&outs[0]), bits(&outs[1]), "{ty}");
    }
}

#[test]
fn every_type_has_ggml_s_id_name_and_size() {
    // Source: GGML_QUANT_SIZES of gguf-py 0.19 and the type table of llama.cpp b11434; Q8_1 is 36 bytes there, 40 in gguf-py alone.
    let table = [
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    ];
    let found: Vec<_> =
        QuantType::ALL.iter().map(|ty| (ty.id(), ty.name(), ty.block_len(), ty.block_bytes())).collect();
    assert_eq!(found, table);
    for &ty in QuantType::ALL {
        assert_eq!(QuantType::from_id(ty.id()), Some(ty));
        assert_eq!(QuantType::from_name(ty.name()), Some(ty));
        assert_eq!(QuantType::from_name(&ty.name().to_lowercase()), Some(ty));
        assert_eq!(ty.to_string(), ty.name());
        assert_eq!(ty.is_quantized(), ty.block_len() > 1);
    }
    assert_eq!(QuantType::from_name("Q4_K_M"), None, "a mix of types is not a type");
}

#[test]
fn c11_ids_outside_the_table_are_unknown() {
    let known = [
        0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 34,
        35, 39, 40, 41, 42,
    ];
    for id in 0..1000 {
        assert_eq!(QuantType::from_id(id).is_some(), known.contains(&id), "{id}");
    }
    assert_eq!(QuantType::from_id(u32::MAX), None);
}

/// A Q4_K block whose sub-block 0 has the given scale and minimum, every value 3.
fn q4_k_block(d: u16, dmin: u16, scale: u8, min: u8) -> Vec<u8> {
    let mut block = [d.to_le_bytes(), dmin.to_le_bytes()].concat();
    block.extend([scale, 0, 0, 0, min, 0, 0, 0, 0, 0, 0, 0]);
    block.extend([0x33; 128]);
    block
}

#[test]
fn d03_q4_k_scales_and_mins_count() {
    const ONE: u16 = 0x3c00;
    let mut out = [0.0; 256];
    dequantize(QuantType::Q4K, &q4_k_block(ONE, 0, 2, 0), &mut out).unwrap();
    assert_eq!(out[..32], [6.0; 32]);
    assert_eq!(out[32..], [0.0; 224]);
    dequantize(QuantType::Q4K, &q4_k_block(ONE, ONE, 2, 5), &mut out).unwrap();
    assert_eq!(out[..32], [1.0; 32]);
}

#[test]
fn six_bit_scales_and_mins_unpack_to_what_was_packed() {
    let scales = [1, 2, 3, 63, 0b01_0101, 0b10_1010, 0b11_0000, 0b00_1111];
    let mins = [60, 0, 31, 32, 0b11_1100, 0b00_0011, 0b10_0001, 0b01_1110];
    let mut packed = [0u8; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 0xf | (mins[j + 4] & 0xf) << 4;
    }
    assert_eq!(unpack_scales_mins(&packed), (scales, mins));
}

#[test]
fn d06_subnormal_scales_are_kept() {
    let mut one = [0.0];
    dequantize(QuantType::F16, &[0x01, 0x00], &mut one).unwrap();
    assert_eq!(one, [5.960_464_5e-8]);
    let mut block = [0u8; 34];
    (block[0], block[2]) = (1, 3);
    let mut out = [0.0; 32];
    dequantize(QuantType::Q8_0, &block, &mut out).unwrap();
    assert_eq!(out[0], 3.0 * 5.960_464_5e-8);
    assert_eq!(validate(QuantType::Q8_0, &block), Ok(None));
}

#[test]
fn d06_validation_names_the_first_block_that_is_not_finite() {
    let good = q4_k_block(0x3c00, 0x3c00, 2, 5);
    let data = [good.clone(), good.clone(), q4_k_block(0x3c00, 0x7c00, 2, 5), q4_k_block(0x7e00, 0, 0, 0)].concat();
    let bad = validate(QuantType::Q4K, &data).unwrap().unwrap();
    assert_eq!((bad.index, bad.field, bad.value), (2, "dmin", f32::INFINITY));
    assert_eq!(bad.to_string(), "block 2: dmin is inf");
    assert_eq!(validate(QuantType::Q4K, &good), Ok(None));

    let mut mxfp4 = [0x22u8; 34];
    assert_eq!(validate(QuantType::MXFP4, &mxfp4), Ok(None));
    mxfp4[17] = 0xff;
    let bad = validate(QuantType::MXFP4, &mxfp4).unwrap().unwrap();
    assert_eq!((bad.index, bad.field), (1, "e"));
    assert!(bad.value.is_nan());
}

#[test]
fn d06_every_type_with_a_scale_is_validated() {
    for &ty in QuantType::ALL {
        let data = vec![0xff; 3 * ty.block_bytes()];
        let bad = validate(ty, &data).unwrap();
        // Integers are always fine, and so is every byte that NVFP4 takes for a scale.
        let fine = ty.name().starts_with('I') && !ty.is_quantized() || ty == QuantType::NVFP4;
        assert_eq!(bad.map(|bad| bad.index), (!fine).then_some(0), "{ty}");
        assert_eq!(validate(ty, &vec![0; 3 * ty.block_bytes()]), Ok(None), "{ty}");
        assert_eq!(validate(ty, &[]), Ok(None), "{ty}");
        if ty.block_bytes() > 1 {
            let error = validate(ty, &data[1..]).unwrap_err();
            assert!(matches!(error, QuantError::ByteCount { .. }), "{ty}: {error}");
        }
    }
}

#[test]
fn d08_bf16_is_not_f16() {
    let mut one = [0.0];
    dequantize(QuantType::BF16, &0x3f80u16.to_le_bytes(), &mut one).unwrap();
    assert_eq!(one, [1.0]);
}

#[test]
fn rejects_data_that_does_not_fit() {
    let mut out = [0.0; 64];
    let error = dequantize(QuantType::Q4_0, &[0; 35], &mut out).unwrap_err();
    assert_eq!(error, QuantError::ByteCount { ty: QuantType::Q4_0, expected: 36, found: 35 });
    assert_eq!(error.to_string(), "Q4_0 data: expected 36 bytes, found 35");
    let error = dequantize(QuantType::Q4K, &[0; 36], &mut out).unwrap_err();
    assert_eq!(error.to_string(), "Q4_K row: expected a multiple of 256 values, found 64");
    let error = dequantize(QuantType::I32, &[0; 256], &mut out).unwrap_err();
    assert_eq!(error, QuantError::NoDequantizer { ty: QuantType::I32 });
}

#[test]
fn row_bytes_are_checked() {
    assert_eq!(QuantType::Q4K.row_bytes(512), Some(288));
    assert_eq!(QuantType::Q4K.row_bytes(0), Some(0));
    assert_eq!(QuantType::Q4K.row_bytes(511), None);
    assert_eq!(QuantType::F64.row_bytes(usize::MAX), None);
    assert_eq!(QuantType::Q8_0.row_bytes(usize::MAX - 31), None);
}

proptest! {
    /// Rows can be split between threads: any run of whole blocks gives what the whole gives.
    #[test]
    fn ranges_give_what_the_whole_gives(which in 0..QuantType::ALL.len(), seed: u64, cut in 0usize..=7) {
        let ty = QuantType::ALL[which];
        prop_assume!(ty.dequantizes());
        let mut state = seed;
        let data: Vec<u8> = (0..7 * ty.block_bytes()).map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        }).collect();
        let mut whole = vec![0.0; 7 * ty.block_len()];
        dequantize(ty, &data, &mut whole).unwrap();
        let mut parts = vec![0.0; 7 * ty.block_len()];
        let (first, second) = parts.split_at_mut(cut * ty.block_len());
        dequantize(ty, &data[..cut * ty.block_bytes()], first).unwrap();
        dequantize(ty, &data[cut * ty.block_bytes()..], second).unwrap();
        prop_assert_eq!(bits(&whole), bits(&parts));
    }
}

#[test]
fn q2_0_and_q1_0_read_as_llama_cpp_b11434_defines_them() {
    let mut block = [0u8; 18];
    block[..2].copy_from_slice(&0x4000u16.to_le_bytes());
    block[2] = 0b11_10_01_00;
    block[17] = 0b10_00_00_01;
    let mut out = [0.0; 64];
    dequantize(QuantType::Q2_0, &block, &mut out).unwrap();
    assert_eq!(out[..5], [-2.0, 0.0, 2.0, 4.0, -2.0]);
    assert_eq!(out[59..], [-2.0, 0.0, -2.0, -2.0, 2.0]);
    let mut out = [0.0; 128];
    dequantize(QuantType::Q1_0, &block, &mut out).unwrap();
    assert_eq!(out[..8], [-2.0, -2.0, 2.0, -2.0, -2.0, 2.0, 2.0, 2.0]);
}
