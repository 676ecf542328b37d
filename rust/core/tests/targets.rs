//! The programs that architectures make of real files, and what they refuse.

mod common;

use draftgauge_core::gguf::{GgufFile, Override};
use draftgauge_core::program::{CacheSpec, Op, TapPoint, WeightUse};
use draftgauge_core::targets;

#[test]
fn smollm2_becomes_thirty_layers_of_grouped_query_attention() {
    let file = GgufFile::open(common::smollm2()).unwrap();
    let program = targets::build(&file, file.metadata()).unwrap();
    assert_eq!(
        (program.num_layers, program.hidden_size, program.vocab_size, program.train_ctx),
        (30, 576, 49152, 8192)
    );
    assert_eq!(program.weights.len(), file.tensors().len(), "every tensor of the file is used once");
    assert_eq!(program.caches.len(), 30);
    assert_eq!(program.caches[0], CacheSpec::Attention { num_kv_heads: 3, key_dim: 64, value_dim: 64, window: None });
    let tied = program.weights.iter().find(|w| w.name == "token_embd.weight").unwrap();
    assert_eq!(tied.usage, WeightUse::TableAndMatmul, "the head is the embedding table");
    let taps: Vec<_> =
        program.ops.iter().filter_map(|op| if let Op::Tap { point, .. } = op { Some(*point) } else { None }).collect();
    assert_eq!(taps[0], TapPoint::Embeddings);
    assert_eq!(taps[1..], (0..30).map(TapPoint::Layer).collect::<Vec<_>>());
    assert_eq!(program.ropes.len(), 1);
    assert!((program.ropes[0].frequencies[1] - 1e5_f64.powf(-2.0 / 64.0)).abs() < 1e-15);
}

#[test]
fn another_architecture_is_refused_by_name() {
    let file = GgufFile::open(common::gemma3()).unwrap();
    let message = targets::build(&file, file.metadata()).unwrap_err().to_string();
    assert!(message.contains("general.architecture") && message.contains("found gemma3"), "{message}");
}

#[test]
fn a_wrong_hyperparameter_names_key_or_tensor() {
    let file = GgufFile::open(common::smollm2()).unwrap();
    for (change, expect) in [
        ("llama.block_count=int:29", "tensor is not part of the architecture"),
        ("llama.block_count=int:31", "blk.30.attn_q.weight"),
        ("llama.block_count=int:0", "llama.block_count"),
        ("llama.block_count=int:100000", "at most 512"),
        ("llama.attention.head_count=int:6", "blk.0.attn_k.weight"),
        ("llama.attention.head_count_kv=int:2", "llama.attention.head_count_kv"),
        ("llama.embedding_length=int:577", "577"),
        ("llama.rope.dimension_count=int:65", "llama.rope.dimension_count"),
        ("llama.rope.scaling.type=str:longrope", "none, linear or yarn"),
        ("llama.expert_count=int:8", "experts come in a later release"),
        // D13: an online transform changes what the weights mean.
        ("llama.attention.kv_rotation=bool:true", "llama.attention.kv_rotation"),
        ("turboquant.hadamard_size=int:128", "no transform that this release does not know"),
    ] {
        let mut metadata = file.metadata().clone();
        change.parse::<Override>().unwrap().apply(&mut metadata).unwrap();
        let message = targets::build(&file, &metadata).unwrap_err().to_string();
        assert!(message.contains(expect), "{change}: {message}");
    }
}
