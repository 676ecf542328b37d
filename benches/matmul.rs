//! Products of one thread by type, shape and number of rows: bytes of weights and multiply-accumulates a second.
//!
//! The weights are copies of one matrix that together exceed the caches, read in turn as the layers of a model are.
//! `cargo bench -p draftgauge-kernels --bench matmul -- 'Q4_1/576x1536'` runs a part.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use draftgauge_kernels::isa::Isa;
use draftgauge_kernels::matmul::{Acts, Matrix, MatrixLayout, Numerics};
use draftgauge_kernels::quant::QuantType;

/// More than the last-level cache of the machines that this project has met.
const WORKING_SET: usize = 96 << 20;

/// `[n, k]`: SmolLM2-135M's projections and head, and the FFN of Qwen3-0.6B.
const SHAPES: [(usize, usize); 6] = [(576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576), (1024, 3072)];

const TYPES: [QuantType; 6] =
    [QuantType::Q4_1, QuantType::Q8_0, QuantType::Q4K, QuantType::Q5_0, QuantType::Q6K, QuantType::F16];

fn matmul(c: &mut Criterion) {
    let isa = Isa::from_env().expect("a kernel path of this machine");
    for ty in TYPES {
        for (n, k) in SHAPES {
            // Rows of 576 cannot hold K-quants; their shape is that of the larger model.
            let Ok(layout) = MatrixLayout::new(isa, Numerics::Fast, ty, n, k, true) else { continue };
            let mut group = c.benchmark_group(format!("{isa}/{ty}/{n}x{k}"));
            group.sample_size(20).warm_up_time(std::time::Duration::from_millis(200));
            group.measurement_time(std::time::Duration::from_millis(800));
            // A byte that is small both as a level and in a half-precision scale.
            let raw = vec![0x11u8; n * ty.row_bytes(k).expect("the layout has checked the shape")];
            let one = if layout.needs_pack() {
                let mut packed = vec![0; layout.packed_bytes()];
                layout.pack(0..layout.tiles(), &raw, &mut packed);
                packed
            } else {
                raw
            };
            let copies: Vec<Vec<u8>> = vec![one; WORKING_SET.div_ceil(layout.bytes()).min(512)];
            for rows in [1, 2, 4, 8, 16, 64] {
                let acts = layout.act_layout(rows);
                let x: Vec<f32> = (0..k).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
                let mut data = vec![0; acts.bytes()];
                for row in 0..rows {
                    acts.write_row(isa, row, &x, &mut data);
                }
                let mut out = vec![0.0; rows * n];
                group.throughput(Throughput::ElementsAndBytes {
                    elements: (rows * n * k) as u64,
                    bytes: layout.bytes() as u64,
                });
                let mut turn = 0;
                group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                    b.iter(|| {
                        turn = (turn + 1) % copies.len();
                        let matrix = Matrix::new(&layout, &copies[turn]);
                        matrix.multiply(Acts::new(acts, &data), 0..layout.tiles(), &mut out, n, false, None);
                        black_box(&mut out);
                    });
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, matmul);
criterion_main!(benches);
