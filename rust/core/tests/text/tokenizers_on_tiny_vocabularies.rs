//! Ids equal llama.cpp's for every pre-tokenizer of our families, on vocabularies small enough to be kept here.

use std::path::{Path, PathBuf};

use draftgauge_core::gguf::GgufFile;
use draftgauge_core::text::{Tokenizer, VocabularyModel};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/vocabularies")
}

fn assert_equals_llama_cpp(name: &str) -> Tokenizer {
    let golden: Value = serde_json::from_slice(&std::fs::read(folder().join(format!("{name}.json"))).unwrap()).unwrap();
    let path = folder().join(format!("{}.gguf", golden["vocabulary"].as_str().unwrap()));
    let tokenizer = Tokenizer::with_pre(GgufFile::open(path).unwrap().metadata(), golden["pre"].as_str()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 300);
    let mut wrong = Vec::new();
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let found = tokenizer.encode(text, true, true).unwrap();
        if found != ids {
            wrong.push(format!("{text:?}: expected {ids:?}, found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    tokenizer
}

#[test]
fn byte_level_ids_are_those_of_llama_cpp_under_every_pre_tokenizer() {
    for name in ["llama-bpe", "qwen2", "qwen35", "smollm", "gpt-2", "falcon", "default"] {
        let tokenizer = assert_equals_llama_cpp(name);
        assert_eq!(tokenizer.pre_tokenizer(), name);
    }
}

#[test]
fn plain_ids_are_those_of_llama_cpp() {
    let tokenizer = assert_equals_llama_cpp("plain");
    assert_eq!(tokenizer.model(), VocabularyModel::Gemma4);
}

#[test]
fn scored_ids_are_those_of_llama_cpp_with_equal_scores_and_a_space_before() {
    let tokenizer = assert_equals_llama_cpp("scored");
    assert_eq!(tokenizer.model(), VocabularyModel::Llama);
}
