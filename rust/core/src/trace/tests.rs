use std::sync::Arc;

use super::*;
use crate::decode::{GenerateOptions, Silent};
use crate::sampling::SamplingParams;
use crate::session::Session;
use crate::testing::{Scripted, fake_model};
use serde_json::json;

fn header() -> Header {
    Header::new(json!({"path": "t.gguf"}), json!(null), json!({"seed": 0}), json!({"cores": 2}), "scalar".to_owned())
}

/// Two speculative sequences and a plain one, written by the loop itself.
fn written(path: &Path) -> Vec<crate::decode::Generation> {
    let mut writer = TraceWriter::create(path, &header()).unwrap();
    let sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let options = GenerateOptions { sampling, max_tokens: Some(30), ..GenerateOptions::default() };
    let model = || fake_model(61, 5, 256, 1, &[]);
    let prompt = [4, 9, 2];
    let mut sequence = writer.sequence(Some("a".to_owned()), None);
    let plain =
        Session::new(model(), None).unwrap().generate(&prompt, &options, &mut Silent, Some(&mut sequence)).unwrap();
    let script: Vec<u32> = prompt.iter().chain(&plain.tokens).copied().collect();
    let mut all = vec![plain];
    for rate in [0.6, 1.0] {
        let drafter = Arc::new(Scripted::new(&script, &[rate; 5], 61, 3));
        let mut session = Session::new(model(), Some(drafter)).unwrap();
        let mut sequence = writer.sequence(None, Some("code".to_owned()));
        all.push(session.generate(&prompt, &options, &mut Silent, Some(&mut sequence)).unwrap());
    }
    all
}

#[test]
fn counters_and_tokens_are_recomputed_from_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let generations = written(&path);
    let trace = load(&path).unwrap();
    assert_eq!(trace.header, Some(header()));
    assert_eq!(trace.sequences.len(), 3);
    for (sequence, generation) in trace.sequences.iter().zip(&generations) {
        assert_eq!(sequence.tokens(), generation.tokens);
        assert_eq!(sequence.begin.prompt_tokens, generation.prompt_tokens);
        let counters = sequence.counters();
        let told = &generation.draft.counters;
        assert_eq!((counters.steps, counters.drafted, counters.accepted), (told.steps, told.drafted, told.accepted));
        assert_eq!(counters.accepted_at, told.accepted_at);
        assert_eq!(counters.proposed_at, told.proposed_at);
        assert_eq!(counters.verify_s.to_bits(), told.verify_s.to_bits());
        let end = sequence.end.as_ref().unwrap();
        assert_eq!((end.tokens, &end.identity, end.end.as_str()), (30, &generation.identity, "length"));
    }
    assert_eq!(trace.sequences[0].begin.begin, Kind::Plain);
    assert_eq!(trace.sequences[1].begin.begin, Kind::Speculative);
}

/// A kill leaves a prefix of the bytes: every prefix loads up to its last whole line.
#[test]
fn a_trace_cut_at_any_byte_loads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    written(&path);
    let bytes = std::fs::read(&path).unwrap();
    let lines = |trace: &Trace| {
        usize::from(trace.header.is_some())
            + trace.sequences.iter().map(|s| 1 + s.steps.len() + usize::from(s.end.is_some())).sum::<usize>()
    };
    for cut in 0..=bytes.len() {
        let whole = bytes[..cut].iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(lines(&parse(&bytes[..cut], &path).unwrap()), whole, "cut at {cut}");
    }
}

#[test]
fn lines_have_the_fields_of_the_interface() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    written(&path);
    let text = std::fs::read_to_string(&path).unwrap();
    let keys = |line: &str| -> Vec<String> {
        serde_json::from_str::<serde_json::Map<String, Value>>(line).unwrap().keys().cloned().collect()
    };
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(keys(lines[0]), ["trace", "version", "target", "drafter", "settings", "machine", "kernels", "notices"]);
    assert_eq!(keys(lines[1]), ["seq", "begin", "id", "category", "prompt_tokens", "first", "prefill_s"]);
    let step = [
        "seq",
        "step",
        "anchor_pos",
        "anchor",
        "proposed",
        "accepted",
        "bonus",
        "margin",
        "draft_s",
        "verify_s",
        "commit_s",
    ];
    assert_eq!(keys(lines[2]), step);
    assert_eq!(keys(lines[lines.len() - 1]), ["seq", "end", "tokens", "identity"]);
}

#[test]
fn wrong_files_are_named() {
    let path = Path::new("x.jsonl");
    let message = |text: &str| parse(text.as_bytes(), path).unwrap_err().to_string();
    assert!(
        message("{\"trace\": \"draftgauge\", \"version\": 2}\n").ends_with("x.jsonl, version: expected 1, found 2")
    );
    assert!(message("{\"trace\": \"draftgauge\"}\n").contains("expected 1, found no version"));
    assert!(message("{\"a\": 1}\n").starts_with("file is not a trace: x.jsonl, line 1"));
    assert!(message("nonsense\n").starts_with("trace line is not JSON: x.jsonl, line 1"));
    let good = serde_json::to_string(&header()).unwrap();
    assert!(message(&format!("{good}\n{{\"seq\": 0, \"step\": 1}}\n")).contains("line 2"));
    assert!(message(&format!("{good}\n{{\"seq\": 0, \"begin\": \"plain\"}}\n")).contains("wrong fields"));
}

#[test]
fn tree_steps_count_depths_and_nodes() {
    let step = |parents: Vec<i32>, path: Vec<usize>| Step {
        seq: 0,
        step: 0,
        anchor_pos: 3,
        anchor: 1,
        proposed: (10..10 + parents.len() as u32).collect(),
        parents: Some(parents),
        confidence: None,
        accepted: path.len(),
        path: Some(path),
        budget: None,
        bonus: Some(99),
        margin: Some(0.5),
        draft_s: 0.0,
        verify_s: 0.0,
        commit_s: 0.0,
    };
    let begin = Begin {
        seq: 0,
        begin: Kind::Speculative,
        id: None,
        category: None,
        prompt_tokens: vec![5],
        first: Some(1),
        prefill_s: 0.0,
    };
    let steps = vec![step(vec![0, 0, 1, 1, 3], vec![1, 4]), step(vec![0], vec![])];
    let sequence = Sequence { begin, steps, end: None };
    let counters = sequence.counters();
    assert_eq!(counters.proposed_at, [2, 1, 1]);
    assert_eq!(counters.nodes_at, [3, 2, 1]);
    assert_eq!(counters.accepted_at, [1, 1, 0]);
    assert_eq!(counters.drafted, 6);
    assert_eq!(sequence.tokens(), [1, 10, 13, 99, 99]);
}
