//! Logits and hidden states of tiny llama models against transformers: 1, 7, 65 and 300 tokens, every layer.

mod common;

use common::golden::{self, Expected, NAMES};
use draftgauge_core::backend::{CacheType, Forest, Head, Outputs, Request, StateOptions};
use draftgauge_core::cpu::{Cpu, CpuOptions, Numerics};
use draftgauge_core::gguf::{GgufFile, Override};
use draftgauge_core::naive::Naive;
use draftgauge_core::targets;

/// The bound of the design, as a share of the range of the values.
const BOUND: f32 = 2e-4;

#[test]
fn the_plain_reading_agrees_with_transformers() {
    let (logits, features) = golden::worst(|| Naive);
    assert!(logits <= BOUND && features <= BOUND, "logits {logits:e}, features {features:e}");
}

#[test]
fn reference_numerics_agree_with_transformers() {
    let options = CpuOptions { threads: Some(2), numerics: Numerics::Reference, ..CpuOptions::default() };
    let (logits, features) = golden::worst(|| Cpu::new(options).unwrap());
    assert!(logits <= BOUND && features <= BOUND, "logits {logits:e}, features {features:e}");
}

#[test]
fn a_wrong_rotation_does_not_pass_for_a_right_one() {
    // The bound is worth something only if the oracle notices a position that is off by one.
    for name in NAMES {
        let engine = golden::load(name, Naive);
        let expected = Expected::open(name);
        let tokens = expected.tokens();
        let options = StateOptions { ctx: 512, slots: 1, key: CacheType::F32, value: CacheType::F32 };
        let mut state = engine.open(options).unwrap();
        let mut shifted = vec![tokens[6]];
        shifted.extend_from_slice(&tokens[..7]);
        let mut outputs = Outputs::default();
        let request = Request { rows: &(1..8).collect::<Vec<_>>(), head: Head::Logits, taps: &[], features: None };
        state.run(&Forest::chain(&shifted, 0, 0), &request, &mut outputs).unwrap();
        let off = golden::off(&outputs.logits, &expected.logits(7).0);
        assert!(off > 10.0 * BOUND, "{name}: {off:e}");
    }
}

#[test]
fn fused_projections_and_scales_beside_matrices_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = golden::rewritten(name, folder.path());
        for numerics in [Numerics::Fast, Numerics::Reference] {
            let cpu = || Cpu::new(CpuOptions { threads: Some(2), numerics, ..CpuOptions::default() }).unwrap();
            let (plain, other) = (golden::load(name, cpu()), golden::load_file(&path, cpu()));
            assert_eq!(golden::logits_of(name, &other, 40), golden::logits_of(name, &plain, 40), "{name} {numerics:?}");
        }
        let (plain, other) = (golden::load(name, Naive), golden::load_file(&path, Naive));
        assert_eq!(golden::logits_of(name, &other, 7), golden::logits_of(name, &plain, 7), "{name} naive");
    }
}

#[test]
fn a_fused_projection_of_the_wrong_height_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = GgufFile::open(golden::rewritten("gqa3", folder.path())).unwrap();
    let mut metadata = file.metadata().clone();
    "llama.attention.head_count_kv=int:3".parse::<Override>().unwrap().apply(&mut metadata).unwrap();
    let message = targets::build(&file, &metadata).unwrap_err().to_string();
    assert!(message.contains("blk.0.attn_qkv.weight") && message.contains("found [80, 48]"), "{message}");
}
