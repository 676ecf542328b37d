//! The trace: JSON lines of raw facts, one a step. Only the lab divides.
//!
//! Each line is written whole in one call, so a process that dies leaves whole lines and at most one torn end, which
//! [`load`] leaves out.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decode::Counters;
use crate::error::{Error, Evidence, Result};

/// The version that this file writes and reads.
pub const VERSION: u64 = 1;

/// What a run was made with: the first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Always `draftgauge`.
    pub trace: String,
    /// Version of the format.
    pub version: u64,
    /// The target.
    pub target: Value,
    /// The drafter, or null.
    pub drafter: Value,
    /// Every effective setting.
    pub settings: Value,
    /// The machine.
    pub machine: Value,
    /// Device and kernel path.
    pub kernels: String,
    /// The verify-cost curve, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_curve: Option<Value>,
    /// What was said once: ignored fields, clamps, fallbacks.
    pub notices: Vec<String>,
}

impl Header {
    /// A header of this version.
    pub fn new(target: Value, drafter: Value, settings: Value, machine: Value, kernels: String) -> Self {
        Self {
            trace: "draftgauge".to_owned(),
            version: VERSION,
            target,
            drafter,
            settings,
            machine,
            kernels,
            cost_curve: None,
            notices: Vec::new(),
        }
    }
}

/// Whether a sequence drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Without a drafter.
    Plain,
    /// With one.
    Speculative,
}

/// The beginning of a sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// Number of the sequence within the trace.
    pub seq: u64,
    /// Whether it drafts.
    pub begin: Kind,
    /// Name of the prompt, where it has one.
    pub id: Option<String>,
    /// Category of the prompt, where it has one.
    pub category: Option<String>,
    /// The prompt.
    pub prompt_tokens: Vec<u32>,
    /// The token that the prompt pass chose; none when no token was asked for.
    pub first: Option<u32>,
    /// Seconds of the prompt pass.
    pub prefill_s: f64,
}

/// One draft, verify and commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Number of the sequence.
    pub seq: u64,
    /// Number of the step within its sequence, from 0.
    pub step: u64,
    /// Position of the anchor.
    pub anchor_pos: usize,
    /// The anchor.
    pub anchor: u32,
    /// The drafts; `proposed[j]` is node j + 1.
    pub proposed: Vec<u32>,
    /// Parent node of each draft, for trees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parents: Option<Vec<i32>>,
    /// Confidence of each draft, if the drafter has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Vec<f32>>,
    /// Number of drafts that were kept.
    pub accepted: usize,
    /// The nodes that were kept, for trees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Vec<usize>>,
    /// The budget, if one was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<usize>,
    /// The target's own token; none when the sequence ended at an accepted draft.
    pub bonus: Option<u32>,
    /// Top-1 minus top-2 logit at the row of the bonus.
    pub margin: Option<f32>,
    /// Seconds spent drafting.
    pub draft_s: f64,
    /// Seconds spent in the verify pass.
    pub verify_s: f64,
    /// Seconds spent accepting and committing.
    pub commit_s: f64,
}

/// The end of a sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Number of the sequence.
    pub seq: u64,
    /// Why it ended.
    pub end: String,
    /// Number of tokens.
    pub tokens: usize,
    /// SHA-256 of the ids as little-endian u32.
    pub identity: String,
}

/// Writes a trace; every line is flushed.
#[derive(Debug)]
pub struct TraceWriter {
    path: PathBuf,
    file: File,
    next_seq: u64,
}

impl TraceWriter {
    /// Creates the file and writes the header.
    ///
    /// # Errors
    /// `Error::Io` when the file cannot be written.
    pub fn create(path: impl AsRef<Path>, header: &Header) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let file = File::create(&path).map_err(|error| Error::io(&path, error))?;
        let mut writer = Self { path, file, next_seq: 0 };
        writer.line(header)?;
        Ok(writer)
    }

    /// Opens an existing trace to add sequences to it, the first of them numbered `next_seq`.
    ///
    /// # Errors
    /// `Error::Io` when the file is not there or cannot be written.
    pub fn append(path: impl AsRef<Path>, next_seq: u64) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let file = File::options().append(true).open(&path).map_err(|error| Error::io(&path, error))?;
        Ok(Self { path, file, next_seq })
    }

    /// The next sequence of this trace.
    pub fn sequence(&mut self, id: Option<String>, category: Option<String>) -> SequenceTrace<'_> {
        let seq = self.next_seq;
        self.next_seq += 1;
        SequenceTrace { writer: self, seq, id, category }
    }

    fn line(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value)
            .map_err(|error| Error::argument(Evidence::new("trace line cannot be written as JSON").found(error)))?;
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.flush()).map_err(|error| Error::io(&self.path, error))
    }
}

/// Writes one sequence of a trace.
#[derive(Debug)]
pub struct SequenceTrace<'a> {
    writer: &'a mut TraceWriter,
    seq: u64,
    id: Option<String>,
    category: Option<String>,
}

impl SequenceTrace<'_> {
    /// Number of the sequence.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Writes the beginning.
    ///
    /// # Errors
    /// `Error::Io` when the file cannot be written; so for the other lines.
    pub fn begin(&mut self, begin: Kind, prompt_tokens: &[u32], first: Option<u32>, prefill_s: f64) -> Result<()> {
        let line = Begin {
            seq: self.seq,
            begin,
            id: self.id.clone(),
            category: self.category.clone(),
            prompt_tokens: prompt_tokens.to_vec(),
            first,
            prefill_s,
        };
        self.writer.line(&line)
    }

    /// Writes a step.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.writer.line(step)
    }

    /// Writes the end.
    pub fn end(&mut self, reason: &str, tokens: &[u32]) -> Result<()> {
        let line = End {
            seq: self.seq,
            end: reason.to_owned(),
            tokens: tokens.len(),
            identity: crate::decode::identity(tokens),
        };
        self.writer.line(&line)
    }
}

/// One sequence as it was loaded; `end` is missing where the trace was cut.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// The beginning.
    pub begin: Begin,
    /// The steps.
    pub steps: Vec<Step>,
    /// The end.
    pub end: Option<End>,
}

impl Sequence {
    /// The tokens, put together from the first one and the steps.
    pub fn tokens(&self) -> Vec<u32> {
        let mut tokens: Vec<u32> = self.begin.first.into_iter().collect();
        for step in &self.steps {
            match &step.path {
                Some(path) => tokens.extend(path.iter().filter_map(|&node| step.proposed.get(node.checked_sub(1)?))),
                None => tokens.extend(step.proposed.iter().take(step.accepted)),
            }
            tokens.extend(step.bonus);
        }
        tokens
    }

    /// The counters, recomputed from the steps.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        self.steps.iter().for_each(|step| counters.record(step));
        counters
    }
}

/// A loaded trace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// The first line; none when the file was cut before its end.
    pub header: Option<Header>,
    /// The sequences in order.
    pub sequences: Vec<Sequence>,
}

/// Loads a trace up to its last whole line.
///
/// # Errors
/// `Error::Io` when the file cannot be read; `Error::Argument` naming the line when a whole line is not one of a trace,
/// and when the version is not [`VERSION`].
pub fn load(path: impl AsRef<Path>) -> Result<Trace> {
    let path = path.as_ref();
    let bytes = std::fs::read(path).map_err(|error| Error::io(path, error))?;
    parse(&bytes, path)
}

fn parse(bytes: &[u8], path: &Path) -> Result<Trace> {
    let mut trace = Trace::default();
    // What follows the last newline is a torn line.
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    for (number, line) in bytes[..whole].split_inclusive(|&byte| byte == b'\n').enumerate() {
        let wrong = |what: &str, found: String| {
            Error::argument(Evidence::new(what).path(path).key(format!("line {}", number + 1)).found(found))
        };
        let value: Value = serde_json::from_slice(line).map_err(|e| wrong("trace line is not JSON", e.to_string()))?;
        let not_a_line = |error: serde_json::Error| wrong("trace line has the wrong fields", error.to_string());
        if number == 0 {
            if value.get("trace").and_then(Value::as_str) != Some("draftgauge") {
                return Err(wrong("file is not a trace", "no \"trace\": \"draftgauge\"".to_owned()));
            }
            if value.get("version").and_then(Value::as_u64) != Some(VERSION) {
                let found = value.get("version").map_or_else(|| "no version".to_owned(), Value::to_string);
                return Err(Error::argument(
                    Evidence::new("trace has a version that this program does not read")
                        .path(path)
                        .key("version")
                        .expected(VERSION)
                        .found(found),
                ));
            }
            trace.header = Some(serde_json::from_value(value).map_err(not_a_line)?);
        } else if value.get("begin").is_some() {
            let begin = serde_json::from_value(value).map_err(not_a_line)?;
            trace.sequences.push(Sequence { begin, steps: Vec::new(), end: None });
        } else {
            let seq = value.get("seq").and_then(Value::as_u64);
            let open = trace.sequences.iter_mut().rev().find(|s| Some(s.begin.seq) == seq && s.end.is_none());
            let Some(open) = open else {
                return Err(wrong("trace line belongs to no open sequence", value.to_string()));
            };
            if value.get("end").is_some() {
                open.end = Some(serde_json::from_value(value).map_err(not_a_line)?);
            } else {
                open.steps.push(serde_json::from_value(value).map_err(not_a_line)?);
            }
        }
    }
    Ok(trace)
}

#[cfg(test)]
mod tests;
