//! Candle's CPU device against the plain reading: random programs, trees, caches, slots, and a real model.

#[path = "../../core/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::programs::{Model, Noise, Shape, options};
use draftgauge_candle::Candle;
use draftgauge_core::backend::{Backend, CacheType, Engine, EngineState, Forest, Head, Outputs, Request, Top2};
use draftgauge_core::error::Error;
use draftgauge_core::naive::Naive;
use draftgauge_core::program::TapPoint;
use draftgauge_core::target::{Loading, Target, TargetOptions};
use draftgauge_kernels::quant::QuantType;
use proptest::prelude::*;

/// Difference of float weights that is let pass, as a share of the range of the values: sums run in another order.
const FLOAT_BOUND: f32 = 1e-3;
/// The same for quantized weights, whose products candle's CPU device takes with 8-bit activations.
const QUANT_BOUND: f32 = 3e-2;
/// The same over the 30 layers of the real model, where this backend and the fast `cpu` one are up to 3.2e-2 off alike.
const DEEP_QUANT_BOUND: f32 = 5e-2;

fn candle() -> Candle {
    Candle::new("cpu").unwrap()
}

/// Every shape with float weights in place of quantized ones.
fn float_shapes() -> Vec<Shape> {
    let types = [QuantType::F32, QuantType::F16, QuantType::BF16];
    let shapes = Shape::all().into_iter().enumerate();
    shapes.map(|(i, shape)| Shape { ty: types[i % 3], head_ty: types[(i + 1) % 3], ..shape }).collect()
}

fn text(shape: &Shape, len: usize, seed: u64) -> Vec<u32> {
    let mut noise = Noise::new(seed);
    (0..len).map(|_| noise.below(shape.vocab) as u32).collect()
}

/// Runs and commits `tokens` in chunks of at most `chunk` rows; logits of every row.
fn chunked(state: &mut dyn EngineState, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut outputs = Outputs::default();
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let forest = Forest::chain(tokens, state.len(0), 0);
        let rows: Vec<usize> = (0..tokens.len()).collect();
        state
            .run(&forest, &Request { rows: &rows, head: Head::Logits, taps: &[], features: None }, &mut outputs)
            .unwrap();
        all.extend_from_slice(&outputs.logits);
        state.commit(0, &rows).unwrap();
    }
    all
}

fn logits(engine: &Arc<dyn Engine>, cache: CacheType, tokens: &[u32], chunk: usize) -> Vec<f32> {
    chunked(&mut *engine.open(options(cache, 1)).unwrap(), tokens, chunk)
}

fn off(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let (low, high) = want.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / (high - low)
}

#[test]
fn tiny_llama_models_agree_with_transformers() {
    let (logits, features) = common::golden::worst(candle);
    assert!(logits <= 2e-4 && features <= 2e-4, "logits {logits:e}, features {features:e}");
}

#[test]
fn fused_projections_and_scales_beside_matrices_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in common::golden::NAMES {
        let path = common::golden::rewritten(name, folder.path());
        let (plain, other) = (common::golden::load(name, candle()), common::golden::load_file(&path, candle()));
        let worst = off(&common::golden::logits_of(name, &other, 9), &common::golden::logits_of(name, &plain, 9));
        assert!(worst <= 1e-6, "{name}: {worst:e}");
    }
}

#[test]
fn float_weights_agree_with_the_plain_reading() {
    for shape in float_shapes() {
        let model = Model::new(shape);
        let tokens = text(&shape, 70, 9);
        for cache in [CacheType::F32, CacheType::F16] {
            let want = logits(&model.load(Naive), cache, &tokens, 70);
            for chunk in [70, 8, 1] {
                let off = off(&logits(&model.load(candle()), cache, &tokens, chunk), &want);
                assert!(off <= FLOAT_BOUND, "{off:e} in chunks of {chunk}, {cache:?}: {shape:?}");
            }
        }
    }
}

#[test]
fn quantized_weights_agree_with_the_plain_reading() {
    let plain = Shape { ff: 256, ..Shape::plain() };
    let types = [
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
    // Rows of the output and down projections are whole super-blocks; the others stay F16 where a K-quant does not fit.
    let with_types = types.map(|ty| Shape { ty, heads: 8, kv_heads: 2, ..plain });
    for shape in Shape::all().into_iter().chain(with_types) {
        let model = Model::new(shape);
        let tokens = text(&shape, 40, 9);
        let want = logits(&model.load(Naive), CacheType::F32, &tokens, 40);
        for chunk in [40, 1] {
            let off = off(&logits(&model.load(candle()), CacheType::F32, &tokens, chunk), &want);
            assert!(off <= QUANT_BOUND, "{off:e} in chunks of {chunk}: {shape:?}");
        }
    }
}

#[test]
fn taps_agree_with_the_plain_reading() {
    for shape in float_shapes() {
        let model = Model::new(shape);
        let tokens = text(&shape, 20, 2);
        let points = [TapPoint::Final, TapPoint::Layer(1), TapPoint::Embeddings, TapPoint::Layer(0)];
        let run = |engine: &Arc<dyn Engine>| {
            let mut outputs = Outputs::default();
            let request = Request { rows: &[19, 3], head: Head::Top2, taps: &points, features: None };
            let mut state = engine.open(options(CacheType::F32, 1)).unwrap();
            state.run(&Forest::chain(&tokens, 0, 0), &request, &mut outputs).unwrap();
            outputs
        };
        let (got, want) = (run(&model.load(candle())), run(&model.load(Naive)));
        assert!(got.logits.is_empty());
        for (got, want) in got.top2.iter().zip(&want.top2) {
            assert_eq!(got.token, want.token);
            assert!((got.first - want.first).abs() < 1e-3 && (got.second - want.second).abs() < 1e-3);
        }
        assert_eq!(got.top2.len(), 2);
        for (got, want) in got.taps.chunks(20 * 64).zip(want.taps.chunks(20 * 64)) {
            assert!(off(got, want) <= FLOAT_BOUND, "{shape:?}");
        }
    }
}

#[test]
fn e10_a_tree_node_equals_its_root_path_alone() {
    for shape in float_shapes() {
        let engine = Model::new(shape).load(candle());
        let prompt = text(&shape, 21, 4);
        let tokens = text(&shape, 12, 8);
        let parents = [-1, 0, 0, 1, 1, 2, 3, 3, 6, 0, 9, 5];
        let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
        chunked(&mut *state, &prompt, 21);
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
            let want = logits(&engine, CacheType::F16, &alone, 64);
            let off = off(&outputs.logits[node * shape.vocab..][..shape.vocab], &want[want.len() - shape.vocab..]);
            assert!(off <= FLOAT_BOUND, "node {node} is {off:e} off: {shape:?}");
        }
    }
}

#[test]
fn slots_of_one_batch_do_not_see_each_other() {
    for shape in float_shapes() {
        let engine = Model::new(shape).load(candle());
        let (first, second) = (text(&shape, 9, 1), text(&shape, 14, 2));
        let mut state = engine.open(options(CacheType::F32, 3)).unwrap();
        let mut outputs = Outputs::default();
        let mut forest = Forest::chain(&first, 0, 2);
        let parents: Vec<i32> = (0..14).map(|row| row - 1).collect();
        forest.push(&second, &parents, 0, 0).unwrap();
        let rows: Vec<usize> = (0..forest.len()).collect();
        state
            .run(&forest, &Request { rows: &rows, head: Head::Logits, taps: &[], features: None }, &mut outputs)
            .unwrap();
        let mut want = logits(&engine, CacheType::F32, &first, 9);
        want.extend(logits(&engine, CacheType::F32, &second, 14));
        let off = off(&outputs.logits, &want);
        assert!(off <= FLOAT_BOUND, "{off:e}: {shape:?}");
    }
}

/// What happens to a state: rows appended and a path kept, or positions dropped.
#[derive(Debug, Clone)]
enum Change {
    Tree { choices: Vec<usize>, keep: Option<usize> },
    Truncate(usize),
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
        let shape = float_shapes()[which];
        let engine = Model::new(shape).load(candle());
        let mut noise = Noise::new(seed);
        let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
        let mut kept: Vec<u32> = Vec::new();
        let mut outputs = Outputs::default();
        for change in changes {
            match change {
                Change::Tree { choices, keep } => {
                    let tokens: Vec<u32> = choices.iter().map(|_| noise.below(shape.vocab) as u32).collect();
                    let parents: Vec<i32> =
                        choices.iter().enumerate().map(|(row, choice)| (choice % (row + 1)) as i32 - 1).collect();
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
        let got = chunked(&mut *state, &next, 3);
        let whole: Vec<u32> = kept.iter().chain(&next).copied().collect();
        let want = logits(&engine, CacheType::F16, &whole, 64);
        let off = off(&got, &want[kept.len() * shape.vocab..]);
        prop_assert!(off <= FLOAT_BOUND, "{off:e}");
    }
}

#[test]
fn wrong_calls_are_errors_and_leave_the_state_as_it_was() {
    let shape = float_shapes()[0];
    let engine = Model::new(shape).load(candle());
    let mut state = engine.open(options(CacheType::F32, 1)).unwrap();
    let prompt = text(&shape, 5, 1);
    chunked(&mut *state, &prompt, 5);
    let mut outputs = Outputs::default();
    let mut run = |state: &mut dyn EngineState, forest: &Forest, rows: &[usize]| {
        state.run(forest, &Request { rows, head: Head::Logits, taps: &[], features: None }, &mut outputs)
    };
    let vocab = shape.vocab as u32;
    assert!(matches!(run(&mut *state, &Forest::chain(&[vocab], 5, 0), &[]), Err(Error::Argument(_))));
    assert!(matches!(run(&mut *state, &Forest::chain(&[1], 4, 0), &[]), Err(Error::Tree(_))));
    assert!(matches!(run(&mut *state, &Forest::chain(&[1], 5, 1), &[]), Err(Error::Tree(_))));
    assert!(matches!(run(&mut *state, &Forest::chain(&[1], 5, 0), &[1]), Err(Error::Argument(_))));
    run(&mut *state, &Forest::tree(&[1, 2, 3], &[-1, 0, 0], 5, 0).unwrap(), &[]).unwrap();
    for path in [&[1][..], &[0, 0], &[0, 1, 2], &[3]] {
        assert!(matches!(state.commit(0, path), Err(Error::Tree(_))), "{path:?}");
    }
    assert!(matches!(state.commit(1, &[]), Err(Error::Tree(_))));
    assert!(matches!(state.truncate(0, 6), Err(Error::Tree(_))));
    assert!(matches!(state.truncate(1, 0), Err(Error::Tree(_))));
    assert_eq!(state.len(0), 5);
    let next = chunked(&mut *state, &[7], 1);
    let whole: Vec<u32> = prompt.into_iter().chain([7]).collect();
    assert!(off(&next, &logits(&engine, CacheType::F32, &whole, 6)[5 * shape.vocab..]) <= FLOAT_BOUND);
}

#[test]
fn a_value_that_is_not_finite_is_named_by_layer_and_row() {
    // A norm of infinite width lets the first layer's stream overflow.
    let shape = float_shapes()[0];
    let mut model = Model::new(shape);
    let index = model.program.weights.iter().position(|spec| spec.name == "1.ffn_norm").unwrap();
    let infinite: Vec<u8> = (0..64).flat_map(|_| f32::INFINITY.to_le_bytes()).collect();
    model.sources[index].data = draftgauge_core::backend::Bytes::from_vec(infinite);
    let mut state = model.load(candle()).open(options(CacheType::F32, 1)).unwrap();
    let mut outputs = Outputs::default();
    let error = state.run(&Forest::chain(&[1, 2], 0, 0), &Request::default(), &mut outputs).unwrap_err();
    assert!(matches!(error, Error::Model(_)));
    let message = error.to_string();
    assert!(message.starts_with("hidden state is not finite: after layer 1, row 0: found "), "{message}");
    // Nothing of the failed run can be committed.
    assert_eq!(state.len(0), 0);
    assert!(matches!(state.commit(0, &[0]), Err(Error::Tree(_))));
}

#[test]
fn a_type_that_candle_lacks_is_held_as_bf16_and_reported() {
    let shape = Shape { ty: QuantType::IQ4NL, head_ty: QuantType::F32, tied: false, ..Shape::plain() };
    let model = Model::new(shape);
    let backend = candle();
    let weights: Vec<_> = model
        .program
        .weights
        .iter()
        .zip(&model.sources)
        .map(|(spec, source)| backend.weight(spec, source.clone()).unwrap())
        .collect();
    let of_type = model.sources.iter().filter(|source| source.ty == QuantType::IQ4NL);
    let (count, elements) = of_type
        .fold((0, 0_u64), |(count, all), source| (count + 1, all + source.shape.iter().product::<usize>() as u64));
    assert_eq!(
        backend.notices(),
        [format!("candle cannot multiply by IQ4_NL here: {count} matrices are held as bf16")]
    );
    let held: u64 = model
        .program
        .weights
        .iter()
        .zip(&model.sources)
        .filter(|(_, source)| source.ty == QuantType::IQ4NL)
        .map(|(spec, source)| backend.weight_bytes(spec, source.ty))
        .sum();
    assert_eq!(held, 2 * elements);
    assert_eq!(weights.len(), model.sources.len());
    assert!(candle().notices().is_empty());
}

#[test]
fn rows_of_an_odd_number_of_sub_blocks_run_too() {
    for ty in [QuantType::Q4_0, QuantType::Q4_1, QuantType::Q5_0, QuantType::Q5_1, QuantType::Q8_0] {
        let model = Model::new(Shape { ty, ff: 96, ..Shape::plain() });
        let tokens = text(&Shape::plain(), 12, 9);
        let want = logits(&model.load(Naive), CacheType::F32, &tokens, 12);
        let off = off(&logits(&model.load(candle()), CacheType::F32, &tokens, 5), &want);
        assert!(off <= QUANT_BOUND, "{off:e}: {ty}");
    }
}

#[test]
fn greedy_text_of_smollm2_is_that_of_the_plain_reading() {
    let (candle, naive) = (open(candle()), open(Naive));
    assert_eq!(candle.engine().kernels(), "candle-cpu");
    let mut tokens = naive.tokenizer().encode("The capital of France is", true, false).unwrap();
    let prompt = tokens.len();
    for _ in 0..8 {
        let row = [tokens.len() - 1];
        let want = naive.logits(&tokens, &row, &mut || Ok(())).unwrap();
        let got = candle.logits(&tokens, &row, &mut || Ok(())).unwrap();
        let worst = off(&got, &want);
        assert!(worst <= DEEP_QUANT_BOUND, "{worst:e}");
        let Top2 { token: choice, first, second } = Top2::of(&want);
        // Another choice is right only where the two largest logits lie closer than the difference of the backends.
        if draftgauge_core::sampling::argmax(&got) != choice {
            let difference = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(first - second <= 2.0 * difference, "margin {}, difference {difference}", first - second);
        }
        tokens.push(choice);
    }
    let text = naive.tokenizer().decode(&tokens[prompt..], true);
    assert!(text.contains("Paris"), "{text}");
}

fn open<B: Backend>(backend: B) -> Target {
    let options = TargetOptions { ctx: Some(64), ..TargetOptions::default() };
    Target::load(&common::smollm2(), backend, options, &mut |_: Loading| Ok(())).unwrap()
}
