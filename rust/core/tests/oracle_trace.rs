//! A trace of drafters that are right as often as they are told to, for the lab's tests to measure.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use draftgauge_core::decode::{GenerateOptions, Silent};
use draftgauge_core::drafters::Drafter;
use draftgauge_core::session::Session;
use draftgauge_core::testing::{Scripted, fake_model};
use draftgauge_core::trace::{self, Header, TraceWriter};
use serde_json::{Value, json};

/// How often draft i is right when those before it were.
const RATES: [f64; 4] = [0.9, 0.7, 0.8, 0.5];
const PROMPTS: u32 = 30;
const VOCAB: usize = 97;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/measure/oracle.jsonl")
}

/// Runs every prompt plainly and with a drafter, as a measurement does.
fn write(path: &Path) {
    let settings = json!({ "rates": RATES });
    let drafter = json!({ "kind": "scripted", "draft_len": RATES.len(), "block_size": null });
    let header = Header::new(json!({}), drafter, settings, Value::Null, "fake".to_owned());
    let mut writer = TraceWriter::create(path, &header).unwrap();
    let options = GenerateOptions { max_tokens: Some(60), ..GenerateOptions::default() };
    for prompt in 0..PROMPTS {
        let tokens = [2 + prompt, 11, 40 + prompt % 7];
        let category = ["even", "odd"][prompt as usize % 2];
        let model = fake_model(VOCAB, 5, 400, 1, &[]);
        let mut script = Vec::new();
        for speculative in [false, true] {
            let drafter = speculative.then(|| {
                Arc::new(Scripted::new(&script, &RATES, VOCAB, u64::from(prompt + 7) << 40)) as Arc<dyn Drafter>
            });
            let mut session = Session::new(model.clone(), drafter).unwrap();
            let mut place = writer.sequence(Some(prompt.to_string()), Some(category.to_owned()));
            session.generate(&tokens, &options, &mut Silent, Some(&mut place)).unwrap();
            script = session.tokens().to_vec();
        }
    }
}

#[test]
#[ignore = "writes the file that the lab's tests read"]
fn write_golden() {
    std::fs::create_dir_all(golden().parent().unwrap()).unwrap();
    write(&golden());
}

#[test]
fn the_committed_trace_is_what_the_loop_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    write(&path);
    let (fresh, committed) = (trace::load(&path).unwrap(), trace::load(golden()).unwrap());
    assert_eq!(fresh.header, committed.header);
    assert_eq!(fresh.sequences.len(), committed.sequences.len());
    for (fresh, committed) in fresh.sequences.iter().zip(&committed.sequences) {
        // Times differ, nothing else does.
        assert_eq!(fresh.tokens(), committed.tokens());
        let counts = |sequence: &trace::Sequence| {
            let counters = sequence.counters();
            (counters.steps, counters.proposed_at, counters.accepted_at)
        };
        assert_eq!(counts(fresh), counts(committed));
    }
}
