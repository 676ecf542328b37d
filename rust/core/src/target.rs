//! A target: a loaded GGUF model with its text, immutable and shared between threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::backend::{
    Backend, CacheType, Engine, EngineState, Forest, Head, Loaded, Outputs, Request, StateOptions, WeightSource,
};
use crate::error::{Error, Evidence, Result};
use crate::gguf::{GgufFile, Metadata, Override};
use crate::memory::MemoryPlan;
use crate::program::TapPoint;
use crate::targets;
use crate::text::Tokenizer;

/// The context length is the model's own, but not more than this unless asked for.
pub const DEFAULT_CTX_CAP: usize = 8192;

/// Rows of one prefill call: long enough to be efficient, short enough to stop within half a second.
pub const PREFILL_ROWS: usize = 128;

/// What loading has to tell while it goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loading {
    /// What it will need of memory, before anything is loaded.
    Plan(MemoryPlan),
    /// Share of the weights that is loaded.
    Share(f32),
}

/// How a target is loaded.
#[derive(Debug, Clone, Default)]
pub struct TargetOptions {
    /// Context length; the model's own, capped at [`DEFAULT_CTX_CAP`], where `None`.
    pub ctx: Option<usize>,
    /// Type of cached keys.
    pub key: CacheType,
    /// Type of cached values.
    pub value: CacheType,
    /// Metadata that replaces the file's.
    pub overrides: Vec<Override>,
    /// Chat template that replaces the file's.
    pub chat_template: Option<String>,
}

/// A loaded model.
pub struct Target {
    engine: Arc<dyn Engine>,
    file: Arc<GgufFile>,
    metadata: Metadata,
    tokenizer: Arc<Tokenizer>,
    chat_template: Option<String>,
    state: StateOptions,
    memory: MemoryPlan,
    notices: Vec<String>,
    load_seconds: f64,
}

impl Target {
    /// Loads a file on a backend. `progress` is told the memory plan, then how far it is; its error ends the loading.
    ///
    /// # Errors
    /// Whatever is wrong with the file, its architecture, its tokenizer or its template; `Error::Device` when it does
    /// not fit in memory; `Error::Argument` for a context length of zero or past the model's own.
    pub fn load<B: Backend>(
        path: &Path,
        backend: B,
        options: TargetOptions,
        progress: &mut dyn FnMut(Loading) -> Result<()>,
    ) -> Result<Self> {
        let start = Instant::now();
        let file = Arc::new(GgufFile::open(path)?);
        file.require_valid()?;
        let mut metadata = file.metadata().clone();
        for change in &options.overrides {
            change.apply(&mut metadata)?;
        }
        let mut notices = file.notices().to_vec();
        let program = targets::build(&file, &metadata)?;
        let ctx = context_length(options.ctx, program.train_ctx)?;
        let state = StateOptions { ctx, slots: 1, key: options.key, value: options.value };
        let memory = MemoryPlan::new(&backend, &program, &file, state, PREFILL_ROWS);
        progress(Loading::Plan(memory))?;
        memory.require_fit(&file)?;

        let tokenizer = Tokenizer::from_metadata(&metadata)?;
        if tokenizer.vocab_size() != program.vocab_size {
            return Err(Error::model(
                Evidence::new("vocabulary and embedding table differ in size")
                    .path(path)
                    .key("tokenizer.ggml.tokens")
                    .expected(program.vocab_size)
                    .found(tokenizer.vocab_size()),
            ));
        }
        notices.extend(tokenizer.notices().iter().cloned());
        let chat_template = match options.chat_template {
            Some(source) => Some(source),
            None => metadata.str("tokenizer.chat_template")?.map(str::to_owned),
        };

        let mut weights = Vec::with_capacity(program.weights.len());
        let total = memory.total().max(1);
        let mut done = 0;
        for spec in &program.weights {
            let source = WeightSource::read(spec, &file)?;
            done += source.data.len();
            weights.push(Arc::new(backend.weight(spec, source)?));
            progress(Loading::Share((done as f64 / total as f64).min(1.0) as f32))?;
        }
        notices.extend(backend.notices());
        let backend = Arc::new(backend);
        let plan = backend.plan(program, weights)?;
        progress(Loading::Share(1.0))?;
        let engine: Arc<dyn Engine> = Arc::new(Loaded::new(backend, plan));
        Ok(Self {
            engine,
            file,
            metadata,
            tokenizer: Arc::new(tokenizer),
            chat_template,
            state,
            memory,
            notices,
            load_seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// The model on its backend.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// The file it was loaded from.
    pub fn file(&self) -> &Arc<GgufFile> {
        &self.file
    }

    /// The path it was loaded from.
    pub fn path(&self) -> PathBuf {
        self.file.path().to_path_buf()
    }

    /// The file's metadata with overrides applied.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Source of the chat template, where the model has one.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// What a state of this target is opened with: one slot.
    pub fn state_options(&self) -> StateOptions {
        self.state
    }

    /// What it needs of memory.
    pub fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// What was noticed while loading.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Seconds that loading took.
    pub fn load_seconds(&self) -> f64 {
        self.load_seconds
    }

    /// Logits of the chosen rows of a sequence, `[rows, vocab]`. `pause` is called between chunks; its error ends the run.
    ///
    /// # Errors
    /// `Error::Argument` for an empty or too long sequence, an unknown token, or a row outside it.
    pub fn logits(&self, tokens: &[u32], rows: &[usize], pause: &mut dyn FnMut() -> Result<()>) -> Result<Vec<f32>> {
        if let Some(row) = rows.iter().find(|&&row| row >= tokens.len()) {
            return Err(Error::argument(
                Evidence::new("row lies outside the sequence")
                    .key("rows")
                    .expected(format!("less than {}", tokens.len()))
                    .found(row),
            ));
        }
        let vocab = self.engine.program().vocab_size;
        let mut logits = vec![0.0; rows.len() * vocab];
        self.forward(
            tokens,
            &[],
            |range, outputs, chunk_rows| {
                for (index, row) in chunk_rows.iter().enumerate() {
                    let from = &outputs.logits[index * vocab..][..vocab];
                    for (slot, _) in rows.iter().enumerate().filter(|&(_, &wanted)| wanted == range.start + row) {
                        logits[slot * vocab..][..vocab].copy_from_slice(from);
                    }
                }
            },
            rows,
            pause,
        )?;
        Ok(logits)
    }

    /// Values at the chosen points for every token, `[tokens, points, hidden]`.
    ///
    /// # Errors
    /// As [`Self::logits`], and `Error::Argument` for a layer that the model does not have.
    pub fn features(
        &self,
        tokens: &[u32],
        points: &[TapPoint],
        pause: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<f32>> {
        let program = self.engine.program();
        let (hidden, num_layers) = (program.hidden_size, program.num_layers);
        if let Some(layer) = points.iter().find_map(|p| match p {
            TapPoint::Layer(layer) if *layer >= num_layers => Some(layer),
            _ => None,
        }) {
            return Err(Error::argument(
                Evidence::new("layer does not exist")
                    .key("layers")
                    .expected(format!("less than {num_layers}"))
                    .found(layer),
            ));
        }
        let mut features = vec![0.0; tokens.len() * points.len() * hidden];
        self.forward(
            tokens,
            points,
            |range, outputs, _| {
                for point in 0..points.len() {
                    for row in 0..range.len() {
                        let from = &outputs.taps[(point * range.len() + row) * hidden..][..hidden];
                        features[((range.start + row) * points.len() + point) * hidden..][..hidden]
                            .copy_from_slice(from);
                    }
                }
            },
            &[],
            pause,
        )?;
        Ok(features)
    }

    /// Runs a whole sequence in chunks on a state of its own and hands each chunk's outputs over.
    fn forward(
        &self,
        tokens: &[u32],
        taps: &[TapPoint],
        mut visit: impl FnMut(std::ops::Range<usize>, &Outputs, &[usize]),
        rows: &[usize],
        pause: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.check_tokens(tokens)?;
        let mut state = self.open()?;
        let mut outputs = Outputs::default();
        for start in (0..tokens.len()).step_by(PREFILL_ROWS) {
            pause()?;
            let range = start..tokens.len().min(start + PREFILL_ROWS);
            let mut chunk_rows: Vec<_> = rows.iter().filter(|row| range.contains(row)).map(|row| row - start).collect();
            chunk_rows.sort_unstable();
            chunk_rows.dedup();
            let forest = Forest::chain(&tokens[range.clone()], start, 0);
            state.run(
                &forest,
                &Request { rows: &chunk_rows, head: Head::Logits, taps, features: None },
                &mut outputs,
            )?;
            visit(range.clone(), &outputs, &chunk_rows);
            state.commit(0, &(0..range.len()).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Opens a state of one slot.
    pub fn open(&self) -> Result<Box<dyn EngineState>> {
        self.engine.open(self.state)
    }

    /// Refuses sequences that the model cannot run.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.engine.program().vocab_size;
        if tokens.is_empty() {
            return Err(Error::argument(
                Evidence::new("sequence is empty").key("tokens").expected("at least one token").found(0),
            ));
        }
        if tokens.len() > self.state.ctx {
            return Err(Error::argument(
                Evidence::new("sequence is longer than the context")
                    .key("tokens")
                    .expected(format!("at most {}", self.state.ctx))
                    .found(tokens.len()),
            ));
        }
        match tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(token) => Err(Error::argument(
                Evidence::new("token is not in the vocabulary")
                    .key("tokens")
                    .expected(format!("less than {vocab}"))
                    .found(token),
            )),
            None => Ok(()),
        }
    }
}

fn context_length(asked: Option<usize>, trained: usize) -> Result<usize> {
    match asked {
        None => Ok(trained.min(DEFAULT_CTX_CAP)),
        Some(ctx) if ctx == 0 || ctx > trained => Err(Error::argument(
            Evidence::new("context length cannot be used")
                .key("ctx_size")
                .expected(format!("1 to {trained}, the model's own"))
                .found(ctx),
        )),
        Some(ctx) => Ok(ctx),
    }
}
