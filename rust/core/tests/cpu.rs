//! The laws of the CPU backend: row, ISA and cache invariance bit for bit, and agreement with the plain reading.

mod common;

use std::sync::Arc;

use common::programs::{Model, Noise, Shape, options};
use draftgauge_core::backend::{CacheType, Engine, EngineState, Forest, Head, Outputs, Request};
use draftgauge_core::cpu::{Cpu, CpuOptions, Numerics};
use draftgauge_core::naive::Naive;
use draftgauge_core::program::TapPoint;
use draftgauge_kernels::isa::Isa;
use proptest::prelude::*;

fn cpu(threads: usize, isa: Isa, numerics: Numerics, no_pack: bool) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(threads), numerics, no_pack, isa: Some(isa) }).unwrap()
}

fn fast(threads: usize) -> Cpu {
    cpu(threads, Isa::best(), Numerics::Fast, false)
}

fn text(shape: &Shape, len: usize, seed: u64) -> Vec<u32> {
    let mut noise = Noise::new(seed);
    (0..len).map(|_| noise.below(shape.vocab) as u32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `tokens` in chunks of the given sizes and returns logits of every row.
fn logits(engine: &Arc<dyn Engine>, cache: CacheType, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
    let mut state = engine.open(options(cache, 1)).unwrap();
    chunked(&mut *state, tokens, chunks)
}

fn chunked(state: &mut dyn EngineState, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
    let mut outputs = Outputs::default();
    let mut all = Vec::new();
    let (mut start, mut chunk) = (0, 0);
    while start < tokens.len() {
        let rows = chunks[chunk % chunks.len()].min(tokens.len() - start);
        let forest = Forest::chain(&tokens[start..start + rows], state.len(0), 0);
        let wanted: Vec<usize> = (0..rows).collect();
        state
            .run(&forest, &Request { rows: &wanted, head: Head::Logits, taps: &[], features: None }, &mut outputs)
            .unwrap();
        all.extend_from_slice(&outputs.logits);
        state.commit(0, &wanted).unwrap();
        start += rows;
        chunk += 1;
    }
    all
}

#[test]
fn reference_numerics_agree_with_the_plain_reading() {
    for shape in Shape::all() {
        let model = Model::new(shape);
        let tokens = text(&shape, 70, 9);
        let plain = logits(&model.load(Naive), CacheType::F32, &tokens, &[70]);
        let range = plain.iter().copied().fold(f32::MIN, f32::max) - plain.iter().copied().fold(f32::MAX, f32::min);
        for (numerics, bound) in [(Numerics::Reference, 2e-5), (Numerics::Fast, 3e-2)] {
            let got = logits(&model.load(cpu(2, Isa::best(), numerics, false)), CacheType::F32, &tokens, &[70]);
            let worst = got.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= bound * range, "{numerics:?} is {worst} off in a range of {range}: {shape:?}");
        }
    }
}

#[test]
fn e01_d12_a_rows_bits_do_not_depend_on_other_rows_threads_or_splits() {
    for shape in Shape::all() {
        let model = Model::new(shape);
        let tokens = text(&shape, 150, 11);
        let single = bits(&logits(&model.load(fast(1)), CacheType::F16, &tokens, &[1]));
        for (threads, chunks) in
            [(1, &[150][..]), (2, &[2]), (3, &[3, 5, 8]), (2, &[64]), (4, &[17, 1, 65]), (2, &[16, 7, 33])]
        {
            let got = bits(&logits(&model.load(fast(threads)), CacheType::F16, &tokens, chunks));
            assert!(got == single, "{threads} threads, chunks of {chunks:?}: {shape:?}");
        }
    }
}

#[test]
fn a_rows_bits_are_the_same_among_1_to_64_and_513_rows() {
    let shape = Shape::plain();
    let engine = Model::new(shape).load(fast(2));
    let tokens = text(&shape, 513, 5);
    let all = bits(&logits(&engine, CacheType::F16, &tokens, &[513]));
    for rows in 1..=64 {
        let got = bits(&logits(&engine, CacheType::F16, &tokens[..rows], &[rows]));
        assert!(got == all[..got.len()], "{rows} rows");
    }
}

#[test]
fn every_kernel_path_gives_the_same_bits_packed_or_not() {
    for shape in Shape::all() {
        let model = Model::new(shape);
        let tokens = text(&shape, 40, 3);
        for numerics in [Numerics::Fast, Numerics::Reference] {
            let twin = bits(&logits(&model.load(cpu(1, Isa::SCALAR, numerics, false)), CacheType::F16, &tokens, &[40]));
            for isa in Isa::available() {
                for no_pack in [false, true] {
                    let got =
                        bits(&logits(&model.load(cpu(2, isa, numerics, no_pack)), CacheType::F16, &tokens, &[8, 1, 3]));
                    assert!(got == twin, "{isa} {numerics:?} no_pack {no_pack}: {shape:?}");
                }
            }
        }
    }
}

#[test]
fn e10_a_tree_node_has_the_bits_of_its_root_path_alone() {
    for shape in Shape::all() {
        let engine = Model::new(shape).load(fast(2));
        let prompt = text(&shape, 21, 4);
        let tokens = text(&shape, 12, 8);
        let parents = [-1, 0, 0, 1, 1, 2, 3, 3, 6, 0, 9, 5];
        let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
        chunked(&mut *state, &prompt, &[21]);
        let rows: Vec<usize> = (0..tokens.len()).collect();
        let mut outputs = Outputs::default();
        let forest = Forest::tree(&tokens, &parents, 21, 0).unwrap();
        state
            .run(&forest, &Request { rows: &rows, head: Head::Logits, taps: &[], features: None }, &mut outputs)
            .unwrap();
        for node in rows {
            let mut path = vec![node];
            while parents[path[path.len() - 1]] >= 0 {
                path.push(parents[path[path.len() - 1]] as usize);
            }
            path.reverse();
            let mut alone = prompt.clone();
            alone.extend(path.iter().map(|&node| tokens[node]));
            let want = logits(&engine, CacheType::F16, &alone, &[33]);
            let want = &want[want.len() - shape.vocab..];
            assert_eq!(
                bits(&outputs.logits[node * shape.vocab..][..shape.vocab]),
                bits(want),
                "node {node}: {shape:?}"
            );
        }
    }
}

#[test]
fn slots_do_not_see_each_other() {
    let shape = Shape::plain();
    let engine = Model::new(shape).load(fast(2));
    let texts = [text(&shape, 30, 1), text(&shape, 30, 2), text(&shape, 30, 3)];
    let mut state = engine.open(options(CacheType::F16, 3)).unwrap();
    let mut outputs = Outputs::default();
    let mut got = vec![Vec::new(); 3];
    for (start, sizes) in [(0, [7, 7, 7]), (7, [23, 1, 0]), (8, [0, 22, 22])] {
        let mut forest = Forest::default();
        for slot in [2, 0, 1] {
            let from = state.len(slot);
            let rows = sizes[slot].min(30 - from);
            if rows > 0 {
                let parents: Vec<i32> = (0..rows as i32).map(|row| row - 1).collect();
                forest.push(&texts[slot][from..from + rows], &parents, from, slot).unwrap();
            }
        }
        let rows: Vec<usize> = (0..forest.len()).collect();
        state
            .run(&forest, &Request { rows: &rows, head: Head::Logits, taps: &[], features: None }, &mut outputs)
            .unwrap();
        for (slot, range) in forest.slot_rows() {
            got[slot].extend_from_slice(&outputs.logits[range.start * shape.vocab..range.end * shape.vocab]);
            state.commit(slot, &(0..range.len()).collect::<Vec<_>>()).unwrap();
        }
        assert!(start < 30);
    }
    for (slot, tokens) in texts.iter().enumerate() {
        let len = state.len(slot);
        let want = logits(&engine, CacheType::F16, &tokens[..len], &[30]);
        assert_eq!(bits(&got[slot]), bits(&want), "slot {slot}");
    }
}

#[test]
fn taps_are_the_residual_stream_of_the_plain_reading() {
    let shape = Shape::plain();
    let model = Model::new(shape);
    let tokens = text(&shape, 70, 6);
    let taps = [TapPoint::Layer(2), TapPoint::Embeddings, TapPoint::Final, TapPoint::Layer(0)];
    let run = |engine: Arc<dyn Engine>| {
        let mut state = engine.open(options(CacheType::F32, 1)).unwrap();
        let mut outputs = Outputs::default();
        state
            .run(
                &Forest::chain(&tokens, 0, 0),
                &Request { rows: &[69], head: Head::Top2, taps: &taps, features: None },
                &mut outputs,
            )
            .unwrap();
        outputs
    };
    let plain = run(model.load(Naive));
    let got = run(model.load(cpu(2, Isa::best(), Numerics::Reference, false)));
    assert_eq!(got.taps.len(), 4 * 70 * 64);
    for (got, want) in got.taps.iter().zip(&plain.taps) {
        assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{got} {want}");
    }
    assert_eq!(got.top2[0].token, plain.top2[0].token);
}

#[test]
fn top2_is_what_the_logits_say() {
    let shape = Shape::plain();
    let engine = Model::new(shape).load(fast(2));
    let tokens = text(&shape, 20, 2);
    let all = logits(&engine, CacheType::F16, &tokens, &[20]);
    let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
    let mut outputs = Outputs::default();
    let rows = [19, 3, 3, 0];
    state
        .run(
            &Forest::chain(&tokens, 0, 0),
            &Request { rows: &rows, head: Head::Top2, taps: &[], features: None },
            &mut outputs,
        )
        .unwrap();
    for (top2, row) in outputs.top2.iter().zip(rows) {
        let logits = &all[row * shape.vocab..][..shape.vocab];
        let mut order: Vec<usize> = (0..shape.vocab).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        assert_eq!((top2.token as usize, top2.first, top2.second), (order[0], logits[order[0]], logits[order[1]]));
    }
}

#[test]
fn what_cannot_run_is_refused_and_changes_nothing() {
    let shape = Shape::plain();
    let engine = Model::new(shape).load(fast(2));
    let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
    let tokens = text(&shape, 10, 2);
    chunked(&mut *state, &tokens, &[10]);
    let mut outputs = Outputs::default();
    let request = Request { rows: &[0], head: Head::Top2, taps: &[], features: None };
    let mut refuse = |forest: Forest, rows: &[usize], expect: &str| {
        let error = state.run(&forest, &Request { rows, ..request }, &mut outputs).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
        assert_eq!(state.len(0), 10);
    };
    refuse(Forest::chain(&[203], 10, 0), &[0], "token is not in the vocabulary");
    refuse(Forest::chain(&[1], 9, 0), &[0], "do not follow");
    refuse(Forest::chain(&[1], 10, 1), &[0], "slot does not exist");
    refuse(Forest::chain(&[1; 2039], 10, 0), &[0], "context is full");
    refuse(Forest::chain(&[1], 10, 0), &[1], "row is not in the forest");
    assert!(state.commit(0, &[0]).is_err(), "nothing is pending");
    assert!(state.truncate(0, 11).is_err());
    let next = chunked(&mut *state, &tokens[..3], &[3]);
    let whole: Vec<u32> = tokens.iter().chain(&tokens[..3]).copied().collect();
    let want = logits(&engine, CacheType::F16, &whole, &[13]);
    assert_eq!(bits(&next), bits(&want[10 * shape.vocab..]));
}

#[test]
fn a_weight_that_is_not_finite_is_an_error_naming_layer_and_row() {
    let shape = Shape { ty: draftgauge_kernels::quant::QuantType::F32, ..Shape::plain() };
    let mut model = Model::new(shape);
    let index = model.program.weights.iter().position(|w| w.name == "1.down").unwrap();
    let mut data = model.sources[index].data.to_vec();
    data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    model.sources[index].data = draftgauge_core::backend::Bytes::from_vec(data);
    let engine = model.load(fast(2));
    let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
    let error = state
        .run(
            &Forest::chain(&[1, 2], 0, 0),
            &Request { rows: &[1], head: Head::Top2, taps: &[], features: None },
            &mut Outputs::default(),
        )
        .unwrap_err()
        .to_string();
    assert!(error.contains("not finite") && error.contains("layer 2, row 0"), "{error}");
    assert!(state.commit(0, &[0]).is_err(), "rows of a failed run are not pending");
    assert_eq!(state.len(0), 0);
}

#[test]
fn d07_fast_numerics_stay_near_the_reference_and_say_which_they_are() {
    let shape = Shape::plain();
    let model = Model::new(shape);
    let tokens = text(&shape, 120, 21);
    let all = |numerics| {
        let engine = model.load(cpu(2, Isa::best(), numerics, false));
        let name = if numerics == Numerics::Fast { "fast" } else { "reference" };
        assert!(engine.kernels().ends_with(name), "{}", engine.kernels());
        logits(&engine, CacheType::F16, &tokens, &[120])
    };
    let (fast, reference) = (all(Numerics::Fast), all(Numerics::Reference));
    assert_ne!(bits(&fast), bits(&reference), "integer products round activations");
    let argmax = |row: &[f32]| row.iter().enumerate().fold(0, |best, (i, &x)| if x > row[best] { i } else { best });
    let rows = || fast.chunks_exact(shape.vocab).zip(reference.chunks_exact(shape.vocab));
    // Where they choose differently, the reference's two best are closer than the two numerics are.
    let mut agree = 0;
    for (fast, reference) in rows() {
        let (a, b) = (argmax(fast), argmax(reference));
        let error = fast.iter().zip(reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(reference[b] - reference[a] <= 2.0 * error);
        agree += usize::from(a == b);
    }
    assert!(agree >= 108, "{agree} of 120 rows choose the same token");
}

#[test]
fn g07_a_tied_embedding_is_held_once_beside_the_file() {
    let model = Model::new(Shape::plain());
    let index = model.program.weights.iter().position(|w| w.name == "embedding").unwrap();
    let (spec, source) = (&model.program.weights[index], &model.sources[index]);
    use draftgauge_core::backend::Backend;
    let packed = fast(1).weight_bytes(spec, source.ty);
    let file = source.data.len() as u64;
    assert!(packed >= file && packed < file + file / 4, "{packed} bytes beside {file}");
    assert_eq!(cpu(1, Isa::best(), Numerics::Fast, true).weight_bytes(spec, source.ty), 0, "unpacked");
}

/// One change of a sequence.
#[derive(Debug, Clone)]
enum Change {
    /// Appends a tree and keeps one of its root paths (or nothing).
    Tree { choices: Vec<usize>, keep: Option<usize> },
    /// Drops positions from a share of the length on.
    Truncate(usize),
    /// Appends rows that are never committed.
    Leave(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (proptest::collection::vec(0_usize..100, 1..10), proptest::option::weighted(0.9, 0_usize..100))
            .prop_map(|(choices, keep)| Change::Tree { choices, keep }),
        1 => (0_usize..101).prop_map(Change::Truncate),
        1 => (1_usize..20).prop_map(Change::Leave),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn e04_e05_the_cache_is_that_of_a_run_that_never_saw_the_dropped_rows(
        which in 0_usize..6, seed: u64, changes in proptest::collection::vec(change(), 1..12),
    ) {
        let shape = Shape::all()[which];
        let engine = Model::new(shape).load(fast(2));
        let mut noise = Noise::new(seed);
        let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
        let mut kept: Vec<u32> = Vec::new();
        let mut outputs = Outputs::default();
        for change in changes {
            match change {
                Change::Tree { choices, keep } => {
                    let tokens: Vec<u32> = choices.iter().map(|_| noise.below(shape.vocab) as u32).collect();
                    let parents: Vec<i32> = choices.iter().enumerate().map(|(row, choice)| (choice % (row + 1)) as i32 - 1).collect();
                    let forest = Forest::tree(&tokens, &parents, kept.len(), 0).unwrap();
                    state.run(&forest, &Request::default(), &mut outputs).unwrap();
                    let mut path = Vec::new();
                    let mut node = keep.map_or(-1, |keep| (keep % tokens.len()) as i32);
                    while node >= 0 {
                        path.push(node as usize);
                        node = parents[node as usize];
                    }
                    path.reverse();
                    state.commit(0, &path).unwrap();
                    kept.extend(path.iter().map(|&node| tokens[node]));
                }
                Change::Truncate(share) => {
                    kept.truncate(kept.len() * share / 100);
                    state.truncate(0, kept.len()).unwrap();
                }
                Change::Leave(rows) => {
                    let forest = Forest::chain(&vec![1; rows], kept.len(), 0);
                    state.run(&forest, &Request::default(), &mut outputs).unwrap();
                }
            }
            prop_assert_eq!(state.len(0), kept.len());
        }
        let next = text(&shape, 3, seed);
        let got = chunked(&mut *state, &next, &[3]);
        let whole: Vec<u32> = kept.iter().chain(&next).copied().collect();
        let want = logits(&engine, CacheType::F16, &whole, &[64]);
        prop_assert_eq!(bits(&got), bits(&want[kept.len() * shape.vocab..]));
    }
}
