//! The text half against its oracles: llama.cpp's ids, the published pre-tokenizer expressions, transformers' templates.

#[path = "../common/mod.rs"]
mod common;
mod templates;
mod tokenizers_on_real_models;
mod tokenizers_on_tiny_vocabularies;
