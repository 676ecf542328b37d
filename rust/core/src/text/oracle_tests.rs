//! Splitters and merging against the `tokenizers` crate, run on the published expressions.

use proptest::prelude::*;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

use super::bpe::BYTE_TO_CHAR;
use super::pre::pre_tokenizer;
use super::split::split;
use super::tests::byte_level;
use super::{StreamDecoder, Tokenizer};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

// The expressions of each family's tokenizer.json (llama.cpp's for `default`, which no family has).
const PUBLISHED: &[(&str, &[&str])] = &[
    (
        "llama-bpe",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        "qwen2",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        "qwen35",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    ("smollm", &[r"\p{N}", GPT2]),
    ("gpt-2", &[GPT2]),
    ("falcon", &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    ("gemma4", &[r"\n+"]),
    ("default", &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
];

fn published_pieces(expressions: &[Split], text: &str) -> Vec<String> {
    let mut pieces = PreTokenizedString::from(text);
    for expression in expressions {
        expression.pre_tokenize(&mut pieces).unwrap();
    }
    let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
    splits.into_iter().map(|(piece, _, _)| piece.to_string()).collect()
}

// Text of what the expressions tell apart, with any other character now and then.
fn text() -> impl Strategy<Value = String> {
    let telling = prop::sample::select(vec![
        " ", "  ", "\n", "\r", "\r\n", "\t", "\u{a0}", "\u{3000}", "\u{85}", "\u{1c}", "'", "'s", "'S", "'ll", "'Re",
        "'d", "a", "Zz", "é", "e\u{301}", "\u{301}", "ß", "漢", "ا", "ก", "ा", "1", "22", "٣", "½", "Ⅳ", "!", "...",
        "$", "+", "`", "^", "_", "🎉", "\u{200d}", "\u{fe0f}", "©", "\u{2581}", "\0", "\u{7f}", "\u{fffd}", "<|",
        "the", " The",
    ]);
    // The long s folds to s in the published expressions; llama.cpp, whose ids count here, does not fold it.
    let any = any::<char>().prop_filter("no long s", |&c| c != 'ſ').prop_map(String::from);
    prop::collection::vec(prop_oneof![9 => telling.prop_map(String::from), 1 => any], 0..24)
        .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn splitters_cut_where_the_published_expressions_do(texts in prop::collection::vec(text(), 1..3)) {
        thread_local! {
            static EXPRESSIONS: Vec<(&'static str, Vec<Split>)> = PUBLISHED.iter().map(|(name, expressions)| {
                let isolate = |expression: &&str| {
                    let pattern = SplitPattern::Regex((*expression).to_string());
                    Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap()
                };
                (*name, expressions.iter().map(isolate).collect())
            }).collect();
        }
        EXPRESSIONS.with(|families| {
            for (name, expressions) in families {
                for text in &texts {
                    let found = split(text, pre_tokenizer(name).unwrap().splitters);
                    prop_assert_eq!(found, published_pieces(expressions, text), "{} on {:?}", name, text);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn merging_gives_the_ids_of_the_tokenizers_crate(
        merges in prop::collection::vec((0usize..40, 0usize..40), 0..60),
        word in "[a-d ]{0,30}",
    ) {
        // A vocabulary grown by random merges of what is there already.
        let mut tokens: Vec<String> = BYTE_TO_CHAR.iter().map(char::to_string).collect();
        let mut grown: Vec<String> = ["a", "b", "c", "d", "Ġ"].map(String::from).into();
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (left, right) in merges {
            let pair = (grown[left % grown.len()].clone(), grown[right % grown.len()].clone());
            let whole = format!("{}{}", pair.0, pair.1);
            if pairs.contains(&pair) {
                continue;
            }
            if !tokens.contains(&whole) {
                tokens.push(whole.clone());
                grown.push(whole);
            }
            pairs.push(pair);
        }
        let vocabulary = tokens.iter().enumerate().map(|(id, token)| (token.clone(), id as u32));
        let oracle = BPE::builder().vocab_and_merges(vocabulary.collect::<tokenizers::models::bpe::Vocab>(), pairs.clone()).build().unwrap();

        let mut metadata = byte_level("gpt-2");
        metadata.remove("tokenizer.ggml.eos_token_id");
        metadata.remove("tokenizer.ggml.token_type");
        let array = |texts: Vec<String>| crate::gguf::Value::Array(crate::gguf::Array::String(texts.iter().collect()));
        metadata.set("tokenizer.ggml.tokens", array(tokens));
        metadata.set("tokenizer.ggml.merges", array(pairs.iter().map(|(left, right)| format!("{left} {right}")).collect()));
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();

        let mut expected = Vec::new();
        for piece in split(&word, pre_tokenizer("gpt-2").unwrap().splitters) {
            let letters: String = piece.bytes().map(|byte| BYTE_TO_CHAR[byte as usize]).collect();
            expected.extend(oracle.tokenize(&letters).unwrap().iter().map(|token| token.id));
        }
        prop_assert_eq!(tokenizer.encode(&word, true, true).unwrap(), expected);
    }

    #[test]
    fn encoding_loses_nothing(text in text(), pre in prop::sample::select(vec!["llama-bpe", "qwen2", "qwen35", "smollm", "gpt-2", "default"])) {
        let mut metadata = byte_level(pre);
        metadata.set("tokenizer.ggml.add_bos_token", crate::gguf::Value::Bool(false));
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        let ids = tokenizer.encode(&text, true, false).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids, false), text);
    }

    #[test]
    fn streamed_text_is_the_lossy_reading_of_all_bytes(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..12)) {
        let mut stream = StreamDecoder::new(false);
        let mut text = String::new();
        for chunk in &chunks {
            text += &stream.push_bytes(chunk);
        }
        text += &stream.finish();
        prop_assert_eq!(text, String::from_utf8_lossy(&chunks.concat()).into_owned());
    }
}
