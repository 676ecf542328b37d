//! Logits and hidden states of tiny llama models against transformers: 1, 7, 65 and 300 tokens, every layer.

mod common;

use common::golden::{self, Expected, NAMES};
use draftgauge_core::backend::{CacheType, Forest, Head, Outputs, Request, StateOptions};
use draftgauge_core::cpu::{Cpu, CpuOptions, Numerics};
use draftgauge_core::naive::Naive;

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
