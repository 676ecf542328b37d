//! Tests of the text half: the tokenizer on small vocabularies, and on hostile ones.

use super::{StreamDecoder, TokenKind, Tokenizer};
use crate::gguf::{Array, Metadata, Strings, Value};

/// A byte-level vocabulary: the 256 letters of bytes, some merges, two control tokens and one user-defined.
pub(super) fn byte_level(pre: &str) -> Metadata {
    let letters: Vec<String> = super::bpe::BYTE_TO_CHAR.iter().map(|c| c.to_string()).collect();
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "r l", "Ġ Ġ"];
    let mut tokens = letters;
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    tokens.extend(["<|im_end|>", "<|im_start|>", "<tag>"].map(String::from));
    let mut types = vec![1i32; tokens.len()];
    let size = types.len();
    types[size - 3..].copy_from_slice(&[3, 3, 4]);
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    metadata.set("tokenizer.ggml.pre", Value::String(pre.into()));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens.iter().collect())));
    metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(merges.iter().collect())));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(size as u32 - 3));
    metadata
}

fn strings(texts: &[&str]) -> Value {
    Value::Array(Array::String(texts.iter().collect::<Strings>()))
}

/// A scored vocabulary with byte tokens.
pub(super) fn scored() -> Metadata {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "a", "b", "ab", "▁a", "▁ab", "é"].map(String::from));
    let mut types = vec![6i32; tokens.len()];
    types[..3].copy_from_slice(&[2, 3, 3]);
    types[259..].fill(1);
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", Value::String("llama".into()));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens.iter().collect())));
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata
}

fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.token_text(id).unwrap_or_default().into_owned()).collect()
}

#[test]
fn merges_apply_in_rank_order() {
    let tokenizer = Tokenizer::from_metadata(&byte_level("gpt-2")).unwrap();
    let ids = tokenizer.encode("hello  world", true, true).unwrap();
    assert_eq!(texts(&tokenizer, &ids), ["hello", "Ġ", "Ġwo", "rl", "d"]);
    assert_eq!(tokenizer.decode(&ids, false), "hello  world");
}

#[test]
fn control_tokens_are_text_unless_asked_for_and_user_defined_ones_never() {
    let tokenizer = Tokenizer::from_metadata(&byte_level("qwen2")).unwrap();
    let parsed = tokenizer.encode("<|im_end|><tag>", true, true).unwrap();
    assert_eq!(texts(&tokenizer, &parsed), ["<|im_end|>", "<tag>"]);
    let plain = tokenizer.encode("<|im_end|><tag>", true, false).unwrap();
    assert_eq!(plain.len(), 11);
    assert_eq!(texts(&tokenizer, &plain[10..]), ["<tag>"]);
    assert_eq!(tokenizer.decode(&parsed, true), "<tag>");
    assert_eq!(tokenizer.decode(&plain, true), "<|im_end|><tag>");
}

#[test]
fn the_set_that_ends_generation_is_found_by_key_and_by_text() {
    let metadata = byte_level("qwen2");
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let end = tokenizer.token_id("<|im_end|>").unwrap().unwrap();
    assert_eq!(tokenizer.eog(), [end]);
    assert_eq!((tokenizer.eos(), tokenizer.eot()), (Some(end), Some(end)));
    assert!(tokenizer.is_eog(end) && !tokenizer.is_eog(end + 1));
}

#[test]
fn suppressed_tokens_out_of_range_are_dropped() {
    let mut metadata = byte_level("qwen2");
    metadata.set("tokenizer.ggml.suppress_tokens", Value::Array(Array::I32(vec![5, -1, 1 << 20, 7])));
    assert_eq!(Tokenizer::from_metadata(&metadata).unwrap().suppressed(), [5, 7]);
}

#[test]
fn f02_an_unknown_or_missing_pre_tokenizer_lists_the_known_ones_and_can_be_overridden() {
    let mut metadata = byte_level("no-such-thing");
    let message = Tokenizer::from_metadata(&metadata).unwrap_err().to_string();
    for part in ["tokenizer.ggml.pre", "llama-bpe", "qwen35", "smollm", "found no-such-thing"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    assert_eq!(Tokenizer::with_pre(&metadata, Some("qwen2")).unwrap().pre_tokenizer(), "qwen2");
    metadata.remove("tokenizer.ggml.pre");
    let message = Tokenizer::from_metadata(&metadata).unwrap_err().to_string();
    assert!(message.contains("not named") && message.contains("found nothing"), "{message}");
    let tokenizer = Tokenizer::from_metadata(&byte_level("default")).unwrap();
    assert!(tokenizer.notices()[0].contains("default"), "{:?}", tokenizer.notices());
}

#[test]
fn scores_decide_and_bytes_spell_the_rest() {
    let tokenizer = Tokenizer::from_metadata(&scored()).unwrap();
    let ids = tokenizer.encode("ab aé漢", true, true).unwrap();
    assert_eq!(texts(&tokenizer, &ids), ["<s>", "▁ab", "▁a", "é", "<0xE6>", "<0xBC>", "<0xA2>"]);
    assert_eq!(tokenizer.decode(&ids, true), "ab aé漢");
    assert_eq!(tokenizer.encode("", true, true).unwrap(), [1]);
    assert!(tokenizer.encode("", false, true).unwrap().is_empty());
}

#[test]
fn streaming_never_shows_half_a_character() {
    let tokenizer = Tokenizer::from_metadata(&scored()).unwrap();
    let mut stream = StreamDecoder::new(true);
    let ids = tokenizer.encode("漢", false, true).unwrap();
    let pieces: Vec<String> = ids.iter().map(|&id| stream.push(&tokenizer, &[id])).collect();
    assert_eq!(pieces.concat(), " 漢");
    assert!(pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)));
    // A character cut off by the end, and one cut off by the next.
    let byte = |value: u32| 3 + value;
    assert_eq!(stream.push(&tokenizer, &[byte(0xe6), byte(0xbc)]), "");
    assert_eq!(stream.push(&tokenizer, &[byte(0x41)]), "\u{fffd}A");
    assert_eq!(stream.push(&tokenizer, &[byte(0xf0)]), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");
}

#[test]
fn ids_beyond_the_vocabulary_have_no_text() {
    let tokenizer = Tokenizer::from_metadata(&scored()).unwrap();
    assert_eq!(tokenizer.decode(&[u32::MAX, 5_000], false), "");
    assert_eq!(tokenizer.kind(u32::MAX), None);
    assert_eq!(tokenizer.kind(0), Some(TokenKind::Unknown));
}

#[test]
fn rejects_what_makes_no_sense_and_says_where() {
    let cases: &[(&str, Option<Value>, &str)] = &[
        ("tokenizer.ggml.model", None, "tokenizer.ggml.model"),
        ("tokenizer.ggml.model", Some(Value::String("bert".into())), "gpt2, gemma4 or llama, found bert"),
        ("tokenizer.ggml.model", Some(Value::U32(3)), "tokenizer.ggml.model"),
        ("tokenizer.ggml.tokens", None, "tokenizer.ggml.tokens"),
        ("tokenizer.ggml.tokens", Some(strings(&[])), "found 0"),
        ("tokenizer.ggml.token_type", Some(Value::Array(Array::I32(vec![1; 9]))), "267 elements or more, found 9"),
        ("tokenizer.ggml.merges", None, "tokenizer.ggml.merges"),
        ("tokenizer.ggml.add_bos_token", Some(Value::Bool(true)), "tokenizer.ggml.bos_token_id"),
        ("tokenizer.ggml.suppress_tokens", Some(Value::U32(1)), "tokenizer.ggml.suppress_tokens"),
    ];
    for (key, value, part) in cases {
        let mut metadata = byte_level("qwen2");
        match value {
            Some(value) => drop(metadata.set(*key, value.clone())),
            None => drop(metadata.remove(key)),
        }
        let message = Tokenizer::from_metadata(&metadata).expect_err(key).to_string();
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    // What only encoding looks at.
    let cases: &[(&str, Value, &str)] = &[
        ("tokenizer.ggml.merges", strings(&["h e", "hello"]), "tokenizer.ggml.merges[1]"),
        ("tokenizer.ggml.tokens", strings(&vec!["a"; 267]), "tokenizer.ggml.tokens[1]"),
    ];
    for (key, value, part) in cases {
        let mut metadata = byte_level("qwen2");
        metadata.set(*key, value.clone());
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        let message = tokenizer.encode("hello", true, true).expect_err(key).to_string();
        assert!(message.contains(part), "{part:?} is not in {message:?}");
        assert!(tokenizer.encode("hello", true, true).is_err());
    }
}

#[test]
fn merges_longer_than_any_token_and_texts_outside_the_vocabulary_are_survived() {
    let mut metadata = byte_level("qwen2");
    metadata
        .set("tokenizer.ggml.merges", strings(&["h e", "l l", "ll o", "he llo", "helloooooooo ooooo", "  a", "a "]));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    // "llo" and "hello" are merges; only "hello" is a token as well.
    let ids = tokenizer.encode("hello llo", true, true).unwrap();
    assert_eq!(texts(&tokenizer, &ids), ["hello", "Ġ", "l", "l", "o"]);
}

#[test]
fn special_ids_out_of_range_are_ignored_with_a_notice() {
    let mut metadata = byte_level("qwen2");
    metadata.set("tokenizer.ggml.padding_token_id", Value::U32(9_999));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.padding(), None);
    assert!(tokenizer.notices()[0].contains("padding_token_id is 9999"), "{:?}", tokenizer.notices());
}

#[test]
fn long_runs_take_linear_time() {
    let tokenizer = Tokenizer::from_metadata(&byte_level("qwen35")).unwrap();
    let spaces = " ".repeat(1 << 20);
    for text in [spaces.clone() + "x", "a".repeat(1 << 20), "\n ".repeat(1 << 19), "<|im_".repeat(1 << 17), spaces] {
        let ids = tokenizer.encode(&text, true, true).unwrap();
        assert!(tokenizer.decode(&ids, false) == text);
    }
}
