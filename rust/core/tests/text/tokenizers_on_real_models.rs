//! Ids of hard strings equal llama.cpp's, for both real models.

use std::path::Path;
use std::time::Instant;

use draftgauge_core::gguf::GgufFile;
use draftgauge_core::text::{StreamDecoder, Tokenizer};
use serde_json::Value;

use crate::common;

struct Case {
    text: String,
    parse_special: bool,
    ids: Vec<u32>,
}

fn golden(name: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer").join(name);
    let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let case = |case: &Value| Case {
        text: case["text"].as_str().unwrap().to_string(),
        parse_special: case["parse_special"].as_bool().unwrap(),
        ids: case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect(),
    };
    json["cases"].as_array().unwrap().iter().map(case).collect()
}

fn tokenizer(path: &Path) -> Tokenizer {
    Tokenizer::from_metadata(GgufFile::open(path).unwrap().metadata()).unwrap()
}

fn assert_equals_llama_cpp(tokenizer: &Tokenizer, file: &str) {
    let cases = golden(file);
    assert!(cases.len() >= 300, "{} cases in {file}", cases.len());
    let mut wrong = Vec::new();
    for Case { text, parse_special, ids } in &cases {
        let found = tokenizer.encode(text, true, *parse_special).unwrap();
        if found != *ids {
            wrong.push(format!("{text:?} (special: {parse_special}): expected {ids:?}, found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

// Decoding gives the text back, and so does decoding token by token.
fn assert_decodes_back(tokenizer: &Tokenizer, file: &str) {
    for Case { text, parse_special, ids } in golden(file) {
        let begin = usize::from(tokenizer.add_bos());
        if tokenizer.decode(&ids[begin..], false) != text {
            // Only a byte that the vocabulary lacks, or that it spells like another token, may be lost.
            assert!(!parse_special || text.contains('\u{2581}') || spelled_only_in_part(tokenizer, &text), "{text:?}");
            continue;
        }
        let mut stream = StreamDecoder::new(false);
        let mut pieces: Vec<String> = ids[begin..].iter().map(|&id| stream.push(tokenizer, &[id])).collect();
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}') || text.contains('\u{fffd}')), "{pieces:?}");
        pieces.push(stream.finish());
        assert_eq!(pieces.concat(), text);
    }
}

fn spelled_only_in_part(tokenizer: &Tokenizer, text: &str) -> bool {
    text.bytes().any(|byte| (0..tokenizer.vocab_size() as u32).all(|id| *tokenizer.token_bytes(id) != [byte]))
}

#[test]
fn smollm2_ids_are_those_of_llama_cpp() {
    assert_equals_llama_cpp(&tokenizer(&common::smollm2()), "smollm2.json");
}

#[test]
fn gemma3_ids_are_those_of_llama_cpp() {
    assert_equals_llama_cpp(&tokenizer(&common::gemma3()), "gemma3.json");
}

#[test]
fn decoding_gives_the_text_back_and_never_half_a_character() {
    assert_decodes_back(&tokenizer(&common::smollm2()), "smollm2.json");
    assert_decodes_back(&tokenizer(&common::gemma3()), "gemma3.json");
}

#[test]
fn special_tokens_and_flags_of_the_real_models() {
    let smollm2 = tokenizer(&common::smollm2());
    assert_eq!((smollm2.bos(), smollm2.eos(), smollm2.add_bos()), (Some(1), Some(2), false));
    // <|endoftext|>, <|im_end|>, <repo_name> is none, <reponame> is one by llama.cpp's list.
    assert_eq!(smollm2.eog(), [0, 2, 4]);
    assert!(smollm2.is_control(1) && !smollm2.is_control(100));
    let gemma3 = tokenizer(&common::gemma3());
    assert_eq!((gemma3.bos(), gemma3.eos(), gemma3.eot(), gemma3.add_bos()), (Some(2), Some(1), Some(106), true));
    assert_eq!(gemma3.eog(), [1, 106, 212]);
    assert_eq!(gemma3.decode(&[2, 9259, 106], true), "Hello");
}

#[test]
fn loading_is_quick() {
    let path = common::smollm2();
    let metadata = GgufFile::open(&path).unwrap().metadata().clone();
    // The best of several: other tests share the machine.
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            Tokenizer::from_metadata(&metadata).unwrap().encode("warm", true, true).unwrap();
            start.elapsed()
        })
        .min()
        .unwrap();
    assert!(best.as_millis() < 150, "{best:?}");
}
