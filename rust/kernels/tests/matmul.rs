//! Products against twins that anyone can check, bit for bit, on every instruction set of this machine.

use draftgauge_kernels::float::{bf16_to_f32, f16_to_f32, f32_to_f16};
use draftgauge_kernels::isa::Isa;
use draftgauge_kernels::matmul::{ActKind, ActLayout, Acts, Matrix, MatrixLayout, Numerics};
use draftgauge_kernels::quant::{QuantType, dequantize};

/// Types whose fast numerics are integer dot products.
const TILED: [QuantType; 8] = [
    QuantType::Q4_0,
    QuantType::Q4_1,
    QuantType::Q5_0,
    QuantType::Q5_1,
    QuantType::Q8_0,
    QuantType::Q4K,
    QuantType::Q5K,
    QuantType::Q6K,
];

/// Numbers to test with: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Between -1 and 1, denser near zero, as activations are.
    fn value(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..4 {
            sum += (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        }
        sum / 2.0
    }

    fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.value()).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Offsets of the f16 fields of a block that scale others.
fn scale_fields(ty: QuantType) -> &'static [usize] {
    match ty {
        QuantType::Q4_0 | QuantType::Q5_0 | QuantType::Q8_0 => &[0],
        QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4K | QuantType::Q5K => &[0, 2],
        QuantType::Q6K => &[208],
        _ => &[],
    }
}

/// A matrix of random bits; the scales of types that the tests know are of ordinary size.
fn matrix(random: &mut Random, ty: QuantType, n: usize, k: usize) -> Vec<u8> {
    match ty {
        QuantType::F32 => random.values(n * k).iter().flat_map(|w| w.to_le_bytes()).collect(),
        QuantType::F16 => random.values(n * k).iter().flat_map(|&w| f32_to_f16(w).to_le_bytes()).collect(),
        QuantType::BF16 => {
            random.values(n * k).iter().flat_map(|w| (w.to_bits() >> 16).to_le_bytes()[..2].to_vec()).collect()
        }
        _ => {
            let mut data = random.bytes(n * ty.row_bytes(k).unwrap());
            for block in data.chunks_exact_mut(ty.block_bytes()) {
                for &at in scale_fields(ty) {
                    block[at..at + 2].copy_from_slice(&f32_to_f16(random.value() / 16.0).to_le_bytes());
                }
            }
            data
        }
    }
}

/// A sub-block of weights as the products see it: `scale * level + min`.
struct Sub {
    levels: Vec<i64>,
    scale: f32,
    min: Option<f32>,
}

/// Reads a block through the dequantizer, which is proven against gguf-py: with a scale of one, levels come out as they are.
fn subs(ty: QuantType, block: &[u8]) -> Vec<Sub> {
    let half = |at: usize| f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]));
    let with = |changes: &[(usize, &[u8])]| {
        let mut block = block.to_vec();
        for &(at, bytes) in changes {
            block[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let mut out = vec![0.0; ty.block_len()];
        dequantize(ty, &block, &mut out).unwrap();
        out
    };
    let integers = |values: &[f32]| -> Vec<i64> {
        values
            .iter()
            .map(|&v| {
                assert_eq!(v, v.round());
                v as i64
            })
            .collect()
    };
    const ONE: &[u8] = &[0x00, 0x3c];
    const NONE: &[u8] = &[0, 0];
    // Sub-scales of one and sub-minimums of zero, packed as in Q4_K.
    const UNIT: &[u8] = &[1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1];
    match ty {
        QuantType::Q4_0 | QuantType::Q5_0 | QuantType::Q8_0 => {
            vec![Sub { levels: integers(&with(&[(0, ONE)])), scale: half(0), min: None }]
        }
        QuantType::Q4_1 | QuantType::Q5_1 => {
            vec![Sub { levels: integers(&with(&[(0, ONE), (2, NONE)])), scale: half(0), min: Some(half(2)) }]
        }
        QuantType::Q4K | QuantType::Q5K => {
            let levels = integers(&with(&[(0, ONE), (2, NONE), (4, UNIT)]));
            let ones = [[0x11; 128].as_slice(), [0; 32].as_slice()];
            let scales = match ty {
                QuantType::Q4K => with(&[(0, ONE), (2, NONE), (16, ones[0])]),
                _ => with(&[(0, ONE), (2, NONE), (16, ones[1]), (48, ones[0])]),
            };
            let mins = with(&[(0, NONE), (2, ONE)]);
            let sub = |i: usize| Sub {
                levels: levels[32 * i..32 * i + 32].to_vec(),
                scale: half(0) * scales[32 * i],
                min: Some(-(half(2) * -mins[32 * i])),
            };
            (0..8).map(sub).collect()
        }
        QuantType::Q6K => {
            let levels = integers(&with(&[(192, &[1; 16]), (208, ONE)]));
            // Level 33 stands for one.
            let scales = with(&[(0, &[0x11; 128]), (128, &[0xaa; 64]), (208, ONE)]);
            let sub = |i: usize| Sub {
                levels: levels[16 * i..16 * i + 16].to_vec(),
                scale: half(208) * scales[16 * i],
                min: None,
            };
            (0..16).map(sub).collect()
        }
        _ => unreachable!(),
    }
}

/// A block of 32 activations: quantized values and scale.
fn quantized(x: &[f32]) -> (Vec<i64>, f32) {
    if x.iter().any(|x| !x.is_finite()) {
        return (vec![0; 32], f32::NAN);
    }
    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    if amax < 2f32.powi(-100) {
        return (vec![0; 32], 0.0);
    }
    let inverse = 127.0 / amax;
    (x.iter().map(|x| (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i64).collect(), amax / 127.0)
}

/// The twin of the products of integer dots.
fn tiled_twin(ty: QuantType, row: &[u8], x: &[f32]) -> f32 {
    let mut acc = 0f32;
    let mut at = 0;
    for block in row.chunks_exact(ty.block_bytes()) {
        for sub in subs(ty, block) {
            let (q, scale) = quantized(&x[at / 32 * 32..at / 32 * 32 + 32]);
            let q = &q[at % 32..at % 32 + sub.levels.len()];
            let dot: i64 = q.iter().zip(&sub.levels).map(|(q, level)| q * level).sum();
            acc = (dot as f32).mul_add(sub.scale * scale, acc);
            if let Some(min) = sub.min {
                acc = min.mul_add(scale * q.iter().sum::<i64>() as f32, acc);
            }
            at += sub.levels.len();
        }
    }
    acc
}

/// The twin of the products of floats.
fn float_twin(w: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let len = w.len().next_multiple_of(16);
    let or_zero = |values: &[f32], i: usize| values.get(i).copied().unwrap_or(0.0);
    for i in 0..len {
        lanes[i % 16] = or_zero(w, i).mul_add(or_zero(x, i), lanes[i % 16]);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

fn to_f32(ty: QuantType, row: &[u8], k: usize) -> Vec<f32> {
    let mut out = vec![0.0; k];
    match ty {
        QuantType::F16 => {
            row.chunks_exact(2).zip(&mut out).for_each(|(b, o)| *o = f16_to_f32(u16::from_le_bytes([b[0], b[1]])))
        }
        QuantType::BF16 => {
            row.chunks_exact(2).zip(&mut out).for_each(|(b, o)| *o = bf16_to_f32(u16::from_le_bytes([b[0], b[1]])))
        }
        _ => dequantize(ty, row, &mut out).unwrap(),
    }
    out
}

fn twin(ty: QuantType, numerics: Numerics, row: &[u8], x: &[f32]) -> f32 {
    if numerics == Numerics::Fast && TILED.contains(&ty) {
        tiled_twin(ty, row, x)
    } else {
        float_twin(&to_f32(ty, row, x.len()), x)
    }
}

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{what}: output {i} is {found:e}, expected {expected:e}");
    }
}

/// Multiplies rows of `x` with a whole matrix, in pieces of `step` tiles.
fn product(layout: &MatrixLayout, raw: &[u8], x: &[f32], step: usize) -> Vec<f32> {
    let rows = x.len() / layout.k();
    let mut packed = vec![0xa5; layout.packed_bytes()];
    if layout.needs_pack() {
        for (i, part) in packed.chunks_mut(step * layout.tile_bytes()).enumerate() {
            let first = i * step;
            layout.pack(first..layout.tiles().min(first + step), raw, part);
        }
    }
    let data = if layout.needs_pack() { &packed } else { raw };
    let acts = layout.act_layout(rows);
    let mut bytes = vec![0x5a; acts.bytes()];
    let isa = *Isa::available().last().unwrap();
    for (row, x) in x.chunks_exact(layout.k()).enumerate() {
        acts.write_row(isa, row, x, &mut bytes);
    }
    let mut out = vec![f32::INFINITY; rows * layout.n()];
    let matrix = Matrix::new(layout, data);
    for first in (0..layout.tiles()).step_by(step) {
        let tiles = first..layout.tiles().min(first + step);
        matrix.multiply(Acts::new(acts, &bytes), tiles, &mut out, layout.n(), false, None);
    }
    out
}

/// Every type, odd numbers of weight rows and of rows, every instruction set, packed and not, in one piece and in several.
#[test]
fn products_equal_their_twins_for_every_type_and_number_of_rows() {
    let mut random = Random(1);
    let mut checked = 0;
    for &ty in QuantType::ALL.iter().filter(|ty| ty.dequantizes()) {
        let block = ty.block_len();
        for (n, blocks) in [(1, 1), (7, 3), (8, 2), (17, 1), (33, 5)] {
            let k = if block == 1 { [1, 47, 64, 15, 200][blocks % 5] } else { block * blocks };
            let raw = matrix(&mut random, ty, n, k);
            let row_bytes = ty.row_bytes(k).unwrap();
            let x = random.values(64 * k);
            for numerics in [Numerics::Fast, Numerics::Reference] {
                let expected: Vec<f32> = x
                    .chunks_exact(k)
                    .flat_map(|x| raw.chunks_exact(row_bytes).map(|row| twin(ty, numerics, row, x)))
                    .collect();
                for isa in Isa::available() {
                    for pack in [true, false] {
                        let layout = MatrixLayout::new(isa, numerics, ty, n, k, pack).unwrap();
                        for rows in [1, 2, 3, 5, 8, 17, 64] {
                            let found = product(&layout, &raw, &x[..rows * k], 1 + rows % 2 * 3);
                            let what = format!("{ty} {numerics:?} {} pack {pack} [{n}, {k}] x {rows}", isa.describe());
                            assert_same(&found, &expected[..rows * n], &what);
                            checked += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(checked > 4000);
}

#[test]
fn activations_are_quantized_alike_everywhere() {
    let mut random = Random(2);
    let mut rows: Vec<Vec<f32>> = (0..40).map(|_| random.values(96)).collect();
    for row in &mut rows[..30] {
        let scale = f32::from_bits((random.next() % 0x7f00_0000) as u32);
        row.iter_mut().for_each(|x| *x *= scale);
    }
    rows[30].fill(0.0);
    rows[31].iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0x8000_0fff));
    rows[32][40] = f32::NAN;
    rows[33][40] = f32::NEG_INFINITY;
    rows[34][0] = f32::MAX;
    rows[35][95] = f32::MIN_POSITIVE;
    for (i, x) in rows[36].iter_mut().enumerate() {
        // Halves between levels.
        *x = if i % 32 == 0 { 127.0 } else { i as f32 - 30.5 };
    }
    rows[37].fill(f32::MAX);
    rows[38].fill(-f32::MAX);
    for isa in Isa::available() {
        let acts = ActLayout::new(ActKind::Q8, 96, rows.len());
        let mut bytes = vec![0xff; acts.bytes()];
        for (row, x) in rows.iter().enumerate() {
            acts.write_row(isa, row, x, &mut bytes);
        }
        for (row, x) in rows.iter().enumerate() {
            for (block, x) in x.chunks_exact(32).enumerate() {
                let (q, scale) = quantized(x);
                let (found, found_scale, found_sum) = acts.read_block(row, block, &bytes);
                assert_eq!(found.map(i64::from).to_vec(), q, "{isa} row {row}");
                let sum = scale * q.iter().sum::<i64>() as f32;
                assert_same(&[found_scale, found_sum], &[scale, sum], &format!("{isa} row {row}"));
            }
        }
    }
}

/// Levels and activations at their ends, of every sign: the sums that come nearest to what 16 bits hold.
#[test]
fn sums_at_the_ends_of_their_range_are_exact() {
    let mut random = Random(3);
    for ty in TILED {
        let k = 256;
        for fill in [0x00, 0xff, 0x0f, 0xf0, 0x80, 0x7f] {
            let mut raw = matrix(&mut random, ty, 9, k);
            for block in raw.chunks_exact_mut(ty.block_bytes()) {
                let kept: Vec<_> = scale_fields(ty).iter().map(|&at| (at, [block[at], block[at + 1]])).collect();
                block.fill(fill);
                for (at, bytes) in kept {
                    block[at..at + 2].copy_from_slice(&bytes);
                }
            }
            for signs in [0u64, u64::MAX, 0x5555_5555_5555_5555, 0x3333_3333_3333_3333, 0xff00_ff00_0f0f_f0f0] {
                let x: Vec<f32> = (0..3 * k).map(|i| if signs >> (i % 64) & 1 == 0 { 1.0 } else { -1.0 }).collect();
                let expected: Vec<f32> = x
                    .chunks_exact(k)
                    .flat_map(|x| {
                        raw.chunks_exact(ty.row_bytes(k).unwrap()).map(|row| twin(ty, Numerics::Fast, row, x))
                    })
                    .collect();
                for isa in Isa::available() {
                    let layout = MatrixLayout::new(isa, Numerics::Fast, ty, 9, k, true).unwrap();
                    let what = format!("{ty} {} filled with {fill:#x}, signs {signs:#x}", isa.describe());
                    assert_same(&product(&layout, &raw, &x, 9), &expected, &what);
                }
            }
        }
    }
}

/// `out + (dot + bias)`, in that order, also at the edge of the last tile.
#[test]
fn scale_bias_and_accumulation_keep_their_order() {
    let mut random = Random(4);
    for ty in [QuantType::Q4_1, QuantType::Q8_0, QuantType::F32, QuantType::F16, QuantType::Q2K] {
        let (n, k, rows, stride) = (21, 256, 5, 30);
        let raw = matrix(&mut random, ty, n, k);
        let x = random.values(rows * k);
        let bias = random.values(n);
        let before = random.values(rows * stride);
        for isa in Isa::available() {
            let layout = MatrixLayout::new(isa, Numerics::Fast, ty, n, k, false).unwrap();
            let dots = product(&layout, &raw, &x, 2);
            let acts = layout.act_layout(rows);
            let mut bytes = vec![0; acts.bytes()];
            for (row, x) in x.chunks_exact(k).enumerate() {
                acts.write_row(isa, row, x, &mut bytes);
            }
            for (accumulate, bias, scale) in
                [(false, Some(&bias), 1.0), (true, None, 1.0), (true, Some(&bias), 1.0), (true, Some(&bias), 0.3)]
            {
                let mut out = before.clone();
                let bias = bias.map(Vec::as_slice);
                Matrix::new(&layout, &raw).scaled(scale).multiply(
                    Acts::new(acts, &bytes),
                    0..layout.tiles(),
                    &mut out,
                    stride,
                    accumulate,
                    bias,
                );
                let mut expected = before.clone();
                for row in 0..rows {
                    for i in 0..n {
                        let product = dots[row * n + i] * scale;
                        let product = bias.map_or(product, |bias| product + bias[i]);
                        let out = &mut expected[row * stride + i];
                        *out = if accumulate { *out + product } else { product };
                    }
                }
                assert_same(
                    &out,
                    &expected,
                    &format!("{ty} {isa} accumulate {accumulate} scale {scale} bias {}", bias.is_some()),
                );
            }
        }
    }
}

/// Many rows come in several passes over the weights: the same bits as one row at a time.
#[test]
fn rows_of_a_long_prompt_equal_single_rows() {
    let mut random = Random(5);
    for ty in [QuantType::Q4_1, QuantType::Q6K, QuantType::BF16] {
        let (n, k, rows) = (24, 1536, 131);
        let raw = matrix(&mut random, ty, n, k);
        let x = random.values(rows * k);
        for isa in Isa::available() {
            let layout = MatrixLayout::new(isa, Numerics::Fast, ty, n, k, true).unwrap();
            let found = product(&layout, &raw, &x, 3);
            for (row, x) in x.chunks_exact(k).enumerate() {
                assert_same(&found[row * n..][..n], &product(&layout, &raw, x, 1), &format!("{ty} {isa} row {row}"));
            }
        }
    }
}

/// A value that is not finite reaches every output of its row and no other row.
#[test]
fn values_that_are_not_finite_stay_visible() {
    let mut random = Random(6);
    for &ty in TILED.iter().chain(&[QuantType::F32, QuantType::F16, QuantType::IQ4NL]) {
        let (n, k) = (9, 256);
        let raw = matrix(&mut random, ty, n, k);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.values(3 * k);
            x[k + 77] = bad;
            for isa in Isa::available() {
                let layout = MatrixLayout::new(isa, Numerics::Fast, ty, n, k, true).unwrap();
                let out = product(&layout, &raw, &x, 1);
                assert!(out[n..2 * n].iter().all(|out| !out.is_finite()), "{ty} {isa} {bad}");
                if ty != QuantType::IQ4NL {
                    assert!(out[..n].iter().chain(&out[2 * n..]).all(|out| out.is_finite()), "{ty} {isa} {bad}");
                }
            }
        }
    }
}

/// Fast products lie within what rounding activations to 8 bits allows; reference ones within f32's rounding.
#[test]
fn products_are_near_those_of_f64() {
    let mut random = Random(7);
    for ty in TILED {
        let (n, k, rows) = (16, 1024, 4);
        let raw = matrix(&mut random, ty, n, k);
        let x = random.values(rows * k);
        let isa = Isa::best();
        let product = |numerics| product(&MatrixLayout::new(isa, numerics, ty, n, k, true).unwrap(), &raw, &x, 1);
        let (fast, reference) = (product(Numerics::Fast), product(Numerics::Reference));
        for (row, x) in x.chunks_exact(k).enumerate() {
            for (i, w) in raw.chunks_exact(ty.row_bytes(k).unwrap()).enumerate() {
                let w = to_f32(ty, w, k);
                let (mut exact, mut magnitude, mut bound) = (0.0, 0.0, 0.0);
                for (w, x) in w.chunks_exact(32).zip(x.chunks_exact(32)) {
                    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
                    for (&w, &x) in w.iter().zip(x) {
                        let (w, x) = (f64::from(w), f64::from(x));
                        exact += w * x;
                        magnitude += (w * x).abs();
                        bound += w.abs() * f64::from(amax) / 254.0;
                    }
                }
                let at = row * n + i;
                let rounding = magnitude * 2f64.powi(-24) * 70.0;
                assert!((f64::from(reference[at]) - exact).abs() <= rounding, "{ty} reference {at}");
                // Levels are multiplied apart from the minimum, so rounding counts each for itself.
                assert!((f64::from(fast[at]) - exact).abs() <= bound * 1.01 + 20.0 * rounding, "{ty} fast {at}");
            }
        }
    }
}

#[test]
fn what_cannot_be_multiplied_is_refused() {
    let new = |ty, k| MatrixLayout::new(Isa::SCALAR, Numerics::Fast, ty, 4, k, true);
    assert!(new(QuantType::Q4_1, 48).is_err());
    assert!(new(QuantType::Q4K, 576).is_err());
    assert!(new(QuantType::F32, 0).is_err());
    assert!(new(QuantType::I32, 32).is_err());
    assert!(new(QuantType::Q8K, 256).is_err());
}
