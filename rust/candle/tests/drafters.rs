//! Block drafters on candle's CPU device against the plain reading.

#[path = "../../core/tests/common/mod.rs"]
mod common;

use common::drafter_files::{Folder, Shape, VOCAB};
use common::programs::Noise;
use draftgauge_candle::Candle;
use draftgauge_core::backend::CacheType;
use draftgauge_core::decode::{GenerateOptions, Silent};
use draftgauge_core::drafters::Drafter;
use draftgauge_core::naive::Naive;
use draftgauge_core::score::{ScoreOptions, Scores, score};
use draftgauge_core::session::{Session, SessionModel};
use draftgauge_core::target::{Target, TargetOptions};
use draftgauge_kernels::quant::QuantType;
use std::sync::Arc;

fn options() -> TargetOptions {
    TargetOptions { key: CacheType::F32, value: CacheType::F32, ..TargetOptions::default() }
}

fn scored(folder: &Folder, target: &Target, shape: &Shape, tokens: &[u32]) -> Scores {
    let drafter = folder.drafter(target, shape);
    score(target, &*drafter, tokens, &ScoreOptions { start: 1, ..ScoreOptions::default() }, &mut || Ok(())).unwrap()
}

#[test]
fn drafts_agree_with_the_plain_reading() {
    let mut noise = Noise::new(2);
    let tokens: Vec<u32> = (0..50).map(|_| noise.below(VOCAB - 1) as u32).collect();
    for (name, shape) in Shape::all() {
        let folder = Folder::new(5, QuantType::F32);
        let candle = folder.target(Candle::new("cpu").unwrap(), options());
        let naive = folder.target(Naive, options());
        let (a, b) = (scored(&folder, &candle, &shape, &tokens), scored(&folder, &naive, &shape, &tokens));
        assert_eq!(a.choices, b.choices, "{name}: the targets agree");
        let differing = a.drafts.iter().flatten().zip(b.drafts.iter().flatten()).filter(|(a, b)| a != b).count();
        let all = a.drafts.iter().flatten().count();
        // Candle multiplies Q8_0 by quantized activations, and near ties may fall either way.
        let few = if shape.ty == QuantType::F32 { 1 } else { all / 25 };
        assert!(differing <= few, "{name}: {differing} of {all} drafts differ");
    }
}

#[test]
fn speculation_goes_on_with_drafts_that_are_kept() {
    let folder = Folder::new(6, QuantType::F32);
    let target = folder.target(Candle::new("cpu").unwrap(), options());
    let drafter = folder.drafter(&target, &Shape::dspark());
    let mut session = Session::new(SessionModel::from(&target), Some(drafter as Arc<dyn Drafter>)).unwrap();
    let options = GenerateOptions { max_tokens: Some(60), ignore_eos: true, ..GenerateOptions::default() };
    let told = session.generate(&[1, 40, 50, 60], &options, &mut Silent, None).unwrap();
    assert!(told.notices.iter().all(|notice| !notice.contains("failed")), "{:?}", told.notices);
    assert!(told.draft.counters.accepted > 5, "{:?}", told.draft.counters);
}
