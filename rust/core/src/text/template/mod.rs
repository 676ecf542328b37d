//! Chat templates: a model's own Jinja template, rendered as `transformers` renders it, in a sandbox.
//!
//! A template comes with the file and is code of a stranger. It runs in minijinja, where there is no Python to break out
//! to and no file or module to load; a budget of fuel bounds both its time and the memory it can make.

mod clock;
mod environment;
mod json;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::Tokenizer;
use crate::error::{Error, Evidence, Result};
use crate::gguf::Metadata;

const KEY: &str = "tokenizer.chat_template";
// Real templates have up to 20,000 bytes.
const MAX_SOURCE_BYTES: usize = 1 << 20;
// One unit pays for an instruction or 64 bytes: two million bound a render to a fraction of a second and 128 MB.
const FUEL: u64 = 2_000_000;

/// A compiled chat template with the special tokens that it may print.
pub struct ChatTemplate {
    source: String,
    program: environment::Program,
    // Hugging Face keeps a second template for requests with tools.
    tool_use: Option<Box<ChatTemplate>>,
}

/// What to render.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderInput<'a> {
    /// The conversation: an array of objects, mostly with `role` and `content`.
    pub messages: Option<&'a Value>,
    /// Functions that the model may call, as JSON schemas.
    pub tools: Option<&'a Value>,
    /// Whether the text ends where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables that some templates know, such as `enable_thinking`.
    pub variables: Option<&'a Map<String, Value>>,
    /// Seconds since 1970, for templates that print the date; `None` is now.
    pub unix_time: Option<i64>,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of those tokens, empty if there is none.
    ///
    /// # Errors
    /// `Error::Model` with the line when this is no template.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Error::model(
                Evidence::new("chat template is too long")
                    .key(KEY)
                    .expected(format!("{MAX_SOURCE_BYTES} bytes or fewer"))
                    .found(source.len()),
            ));
        }
        let program = environment::Program::new(source, bos, eos).map_err(|error| failure("cannot be read", &error))?;
        Ok(Self { source: source.to_string(), program, tool_use: None })
    }

    /// The template of a file, with the file's special tokens; `None` if it has none.
    ///
    /// A template named `tool_use` beside it serves requests with tools.
    ///
    /// # Errors
    /// `Error::Gguf` when a key is no text, `Error::Model` when it is no template.
    pub fn from_metadata(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let compile = |key: &str| -> Result<Option<Self>> {
            let Some(source) = metadata.str(key)? else { return Ok(None) };
            Self::new(source, &bos, &eos).map(Some).map_err(|error| with_path(error, metadata))
        };
        let Some(mut template) = compile(KEY)? else { return Ok(None) };
        template.tool_use = compile(&format!("{KEY}.tool_use"))?.map(Box::new);
        Ok(Some(template))
    }

    /// The template as the file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// SHA-256 of the template, in hex: reports carry it, so that two runs can be known to have asked alike.
    pub fn hash(&self) -> String {
        use std::fmt::Write;
        let mut hex = String::with_capacity(64);
        for byte in Sha256::digest(self.source.as_bytes()) {
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }

    /// The text of a conversation, as the model was trained to read it.
    ///
    /// # Errors
    /// `Error::Argument` when `messages` is not an array of objects, `Error::Model` when the template refuses the
    /// conversation (with its own words) or exceeds its budget.
    pub fn render(&self, messages: &Value, tools: Option<&Value>, add_generation_prompt: bool) -> Result<String> {
        self.render_with(&RenderInput { messages: Some(messages), tools, add_generation_prompt, ..Default::default() })
    }

    /// [`ChatTemplate::render`] with everything that can be given.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_with(&self, input: &RenderInput<'_>) -> Result<String> {
        if let (Some(template), Some(_)) = (&self.tool_use, input.tools) {
            return template.render_with(input);
        }
        let messages = conversation(input.messages.unwrap_or(&Value::Null))?;
        if let Some(tools) = input.tools.filter(|tools| !tools.is_array()) {
            return Err(argument("tools", "an array of JSON schemas", tools));
        }
        let time = input.unix_time.unwrap_or_else(clock::now);
        let mut context = input.variables.cloned().unwrap_or_default();
        context.insert("messages".into(), messages);
        context.insert("tools".into(), input.tools.cloned().unwrap_or_default());
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        context.insert(environment::TIME.into(), time.into());
        self.program.render(&context, FUEL).map_err(|error| failure("failed", &error))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("bytes", &self.source.len()).field("hash", &self.hash()).finish()
    }
}

// The messages as transformers hands them on: absent is absent, never null, and reasoning has its usual name.
fn conversation(messages: &Value) -> Result<Value> {
    let Value::Array(messages) = messages else {
        return Err(argument("messages", "an array of messages", messages));
    };
    let message = |(place, message): (usize, &Value)| {
        let Value::Object(fields) = message else {
            return Err(argument(&format!("messages[{place}]"), "an object with role and content", message));
        };
        let mut fields: Map<String, Value> =
            fields.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let reasoning =
            ["reasoning_content", "thinking", "reasoning"].iter().find_map(|name| fields.get(*name).cloned());
        if let Some(reasoning) = reasoning {
            fields.entry("thinking").or_insert_with(|| reasoning.clone());
            fields.insert("reasoning_content".into(), reasoning);
        }
        Ok(Value::Object(fields))
    };
    messages.iter().enumerate().map(message).collect::<Result<Vec<_>>>().map(Value::Array)
}

fn argument(key: &str, expected: &str, found: &Value) -> Error {
    let mut found = found.to_string();
    if found.len() > 80 {
        let end = (0..=77).rev().find(|&end| found.is_char_boundary(end)).unwrap_or(0);
        found.truncate(end);
        found.push_str("...");
    }
    Error::argument(Evidence::new("conversation cannot be rendered").key(key).expected(expected).found(found))
}

// The template's own words where it raised them, else what minijinja says, with the line.
fn failure(what: &str, error: &minijinja::Error) -> Error {
    use minijinja::ErrorKind;
    let text = match error.kind() {
        ErrorKind::OutOfFuel => "more work or text than a template may make".to_string(),
        _ => match error.detail() {
            Some(detail) if environment::was_raised(error) => detail.to_string(),
            Some(detail) => format!("{}: {detail}", error.kind()),
            None => error.kind().to_string(),
        },
    };
    let place = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    Error::model(Evidence::new(format!("chat template {what}")).key(KEY).found(format!("{text}{place}")))
}

fn with_path(error: Error, metadata: &Metadata) -> Error {
    match error {
        Error::Model(mut evidence) => {
            evidence.path = metadata.path().map(std::path::Path::to_path_buf);
            Error::Model(evidence)
        }
        other => other,
    }
}
