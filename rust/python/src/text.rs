//! Tokenizers and chat templates.

use std::path::PathBuf;
use std::sync::Arc;

use draftgauge_core::gguf::GgufFile;
use draftgauge_core::text::{ChatTemplate, Tokenizer};
use draftgauge_core::{Error, Evidence};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::Result;

/// A tokenizer of a file's metadata.
#[pyclass(frozen, name = "Tokenizer", module = "draftgauge._core")]
pub struct PyTokenizer(pub Arc<Tokenizer>);

#[pymethods]
impl PyTokenizer {
    #[staticmethod]
    fn from_gguf(py: Python<'_>, path: PathBuf) -> Result<Self> {
        let tokenizer = py.detach(|| Tokenizer::from_metadata(GgufFile::open(path)?.metadata()))?;
        Ok(Self(Arc::new(tokenizer)))
    }

    fn encode(&self, py: Python<'_>, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        Ok(py.detach(|| self.0.encode(text, add_special, parse_special))?)
    }

    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special: bool) -> String {
        py.detach(|| self.0.decode(&ids, skip_special))
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    #[getter]
    fn bos(&self) -> Option<u32> {
        self.0.bos()
    }

    #[getter]
    fn eos(&self) -> Option<u32> {
        self.0.eos()
    }

    #[getter]
    fn eog(&self) -> Vec<u32> {
        self.0.eog().to_vec()
    }

    #[getter]
    fn add_bos(&self) -> bool {
        self.0.add_bos()
    }

    #[getter]
    fn notices(&self) -> Vec<String> {
        self.0.notices().to_vec()
    }
}

/// A chat template of a file's metadata.
#[pyclass(frozen, name = "ChatTemplate", module = "draftgauge._core")]
pub struct PyChatTemplate(pub Arc<ChatTemplate>);

#[pymethods]
impl PyChatTemplate {
    #[staticmethod]
    fn from_gguf(py: Python<'_>, path: PathBuf) -> Result<Self> {
        let template = py.detach(|| {
            let file = GgufFile::open(&path)?;
            let tokenizer = Tokenizer::from_metadata(file.metadata())?;
            ChatTemplate::from_metadata(file.metadata(), &tokenizer)
        })?;
        match template {
            Some(template) => Ok(Self(Arc::new(template))),
            None => Err(Error::model(
                Evidence::new("the file has no chat template")
                    .path(path)
                    .key("tokenizer.chat_template")
                    .expected("a template")
                    .found("none"),
            )
            .into()),
        }
    }

    #[getter]
    fn source(&self) -> &str {
        self.0.source()
    }

    #[getter]
    fn hash(&self) -> String {
        self.0.hash()
    }

    /// The text of a conversation; `messages` and `tools` are JSON.
    fn render(
        &self,
        py: Python<'_>,
        messages: &str,
        add_generation_prompt: bool,
        tools: Option<&str>,
    ) -> Result<String> {
        let parse = |name: &str, text: &str| {
            serde_json::from_str::<serde_json::Value>(text)
                .map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
        };
        let messages = parse("messages", messages)?;
        let tools = tools.map(|tools| parse("tools", tools)).transpose()?;
        Ok(py.detach(|| self.0.render(&messages, tools.as_ref(), add_generation_prompt))?)
    }
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyChatTemplate>()?;
    m.add_class::<PyTokenizer>()?;
    Ok(())
}
