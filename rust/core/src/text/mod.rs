//! Text in and out: the tokenizer of a GGUF file, streaming decoding, chat templates.
//!
//! Ids are those of llama.cpp for the same file. The merge loops are ours rather than the `tokenizers` crate's: they run
//! on the mapped strings of the file, so that loading copies no vocabulary, they follow llama.cpp where a merge names
//! text outside the vocabulary, and no file can make them panic. The crate is the oracle of the tests.

mod bpe;
mod lookup;
mod pre;
mod special;
mod split;
mod spm;
mod stream;
mod template;
mod tokenizer;
mod unicode;
mod vocabulary;

#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod tests;

pub use pre::pre_tokenizer_names;
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, RenderInput};
pub use tokenizer::Tokenizer;
pub use vocabulary::{TokenKind, VocabularyModel};
