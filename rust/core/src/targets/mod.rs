//! Target architectures: hyperparameters of a GGUF file become a [`Program`].
//!
//! Adding an architecture is one file and one line of [`ARCHITECTURES`].

mod llama;
mod model_file;

pub use model_file::ModelFile;

use crate::error::{Error, Evidence, Result};
use crate::gguf::{GgufFile, Metadata};
use crate::program::Program;

/// One architecture.
#[derive(Debug, Clone, Copy)]
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Turns hyperparameters into a program.
    pub build: fn(&mut ModelFile<'_>) -> Result<Program>,
}

/// Every architecture that runs.
pub const ARCHITECTURES: &[Architecture] = &[llama::ARCHITECTURE];

/// The program of a file.
///
/// # Errors
/// `Error::Model` for an architecture that does not run here, a missing key, a tensor that is missing, has another
/// shape or an unknown type, or is not part of the architecture.
pub fn build(file: &GgufFile, metadata: &Metadata) -> Result<Program> {
    let name = metadata.required_str("general.architecture")?;
    let Some(architecture) = ARCHITECTURES.iter().find(|a| a.name == name) else {
        let known: Vec<_> = ARCHITECTURES.iter().map(|a| a.name).collect();
        return Err(Error::model(
            Evidence::new("architecture does not run here")
                .path(file.path())
                .key("general.architecture")
                .expected(known.join(", "))
                .found(name),
        ));
    };
    let mut model = ModelFile::new(file, metadata, architecture.name);
    let program = (architecture.build)(&mut model)?;
    model.refuse_unused()?;
    Ok(program)
}
