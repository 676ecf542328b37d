//! What one sampled row costs over a greedy one, by what truncates it: rows of SmolLM2's vocabulary, shaped like its logits.
//!
//! `cargo bench -p draftgauge-core --bench sampling`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use draftgauge_core::backend::Top2;
use draftgauge_core::sampling::{History, Sampler, SamplingParams};

const VOCAB: usize = 49152;

/// Rows as SmolLM2 gives them on prose: a bell of mean 0.5 and deviation 3.7, and a head of 200 tokens from 18.5 on that
/// falls by a power law, so that the likeliest token has about a third and 95 % need about a hundred tokens.
fn rows(count: usize) -> Vec<Vec<f32>> {
    let mut state = 9_u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let mut row = || -> Vec<f32> { (0..VOCAB).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 5.2 - 15.1).collect() };
    let mut rows: Vec<Vec<f32>> = (0..count).map(|_| row()).collect();
    for (index, row) in rows.iter_mut().enumerate() {
        for peak in 0..200 {
            row[(index * 7919 + peak * 4099) % VOCAB] = 18.5 - 1.25 * (1.0 + peak as f32).ln();
        }
    }
    rows
}

fn sampling(c: &mut Criterion) {
    let rows = rows(32);
    let base = SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() };
    let penalties = SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, ..base.clone() };
    let history: Vec<u32> = (0..64).map(|i| i * 701 % VOCAB as u32).collect();
    let cases = [
        ("temperature 1", base.clone()),
        ("top-k 40", SamplingParams { top_k: 40, ..base.clone() }),
        ("top-p 0.95", SamplingParams { top_p: 0.95, ..base.clone() }),
        ("top-k 40, top-p 0.95, min-p 0.05", SamplingParams { top_k: 40, top_p: 0.95, min_p: 0.05, ..base.clone() }),
        ("temperature 2, top-p 0.999", SamplingParams { temperature: 2.0, top_p: 0.999, ..base }),
        ("penalties, top-k 40, top-p 0.95", SamplingParams { top_k: 40, top_p: 0.95, ..penalties }),
    ];
    let mut group = c.benchmark_group("sampling");
    group.sample_size(20).measurement_time(std::time::Duration::from_secs(2));
    let mut turn = 0;
    group.bench_function("greedy", |b| {
        b.iter(|| {
            turn += 1;
            black_box(Top2::of(&rows[turn % rows.len()]))
        });
    });
    for (name, params) in cases {
        let mut sampler = Sampler::new(params, VOCAB).expect("the parameters are in range");
        group.bench_function(name, |b| {
            b.iter(|| {
                turn += 1;
                let history = History { committed: &history, path: &[] };
                black_box(sampler.choose(&rows[turn % rows.len()], 0, turn as u32, history)).expect("a finite row")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, sampling);
criterion_main!(benches);
