//! Where the tests find the real models.
#![allow(dead_code)] // Every test file uses a part of this.

pub mod drafter_files;
pub mod golden;
pub mod programs;

use std::path::{Path, PathBuf};

/// A real model: from `$DRAFTGAUGE_MODELS`, else `target/models`, which `make models` fills from PyPI packages.
///
/// # Panics
/// When it is not there: a test that needs a model never passes without it.
pub fn model(name: &str) -> PathBuf {
    let folder = std::env::var_os("DRAFTGAUGE_MODELS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/models"), PathBuf::from);
    let path = folder.join(name);
    assert!(path.exists(), "{} is missing: run `make models`", path.display());
    path
}

/// SmolLM2-135M-Instruct Q4_1.
pub fn smollm2() -> PathBuf {
    model("smollm2-135m-q4_1.gguf")
}

/// Gemma 3 270M Q4_K_M.
pub fn gemma3() -> PathBuf {
    model("gemma3-270m-q4_k_m.gguf")
}
