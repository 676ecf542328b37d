//! Block drafters (DFlash and DSpark): one pass over `[anchor, mask, mask, ...]` proposes a whole block.
//!
//! The target's features at the tap layers become keys and values of the drafter's own cache (injection), one position
//! for every committed token; the block attends to those and to itself. Slots, formats and maths follow llama.cpp b11434.

mod confidence;
mod config;
mod features;
mod file;
pub mod pairing;
mod program;
mod state;

use std::path::Path;
use std::sync::Arc;

pub use config::{BlockConfig, FeatureControl, Field, Geometry, OverrideValue, Source};
pub use program::Lender;

use super::{Capabilities, DraftState, Drafter, Setting};
use crate::backend::{Engine, Origin, StateOptions, WeightSource};
use crate::error::{Error, Evidence, Result};
use crate::gguf::{GgufFile, Metadata, Override};
use crate::program::{Program, TapPoint};
use crate::target::Target;
use crate::targets::ModelFile;
use confidence::ConfidenceHead;
use pairing::{Check, TargetFacts, Verdict};
use program::BORROWED;
use state::BlockState;

/// How a block drafter is loaded.
#[derive(Debug, Clone, Default)]
pub struct BlockOptions {
    /// Kind that the user asked for; what the file holds where `None`.
    pub kind: Option<BlockKind>,
    /// Metadata that replaces the file's.
    pub metadata: Vec<Override>,
    /// Settings that replace what the file says, by name.
    pub settings: Vec<(String, OverrideValue)>,
}

/// The two kinds of block drafters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Independent drafts; z-lab's slots unless the file says otherwise.
    Dflash,
    /// Drafts from the anchor's row on, usually with a Markov head.
    Dspark,
}

impl BlockKind {
    /// The name that `--spec-type` uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dflash => "dflash",
            Self::Dspark => "dspark",
        }
    }
}

/// A file as a drafter reads it, before any weight is loaded.
pub struct BlockFile {
    file: Arc<GgufFile>,
    metadata: Metadata,
    architecture: &'static str,
}

/// A block drafter with its weights: immutable, shared between sessions.
pub struct BlockDrafter {
    source: Arc<BlockFile>,
    lender: Lender,
    config: Arc<BlockConfig>,
    kind: BlockKind,
    engine: Arc<dyn Engine>,
    parts: Arc<Parts>,
    state: StateOptions,
    checks: Vec<Check>,
    notices: Vec<String>,
}

/// What the drafter reads itself, beside its program.
struct Parts {
    /// Target token of each row of the head; `None` where they are the same.
    ids: Option<Arc<[u32]>>,
    confidence: Option<ConfidenceHead>,
}

impl BlockFile {
    /// Opens a drafter's file.
    ///
    /// # Errors
    /// Whatever is wrong with the file; `Error::Model` when it holds no block drafter or no tensors.
    pub fn open(path: &Path, overrides: &[Override]) -> Result<Self> {
        let file = Arc::new(GgufFile::open(path)?);
        file.require_valid()?;
        let mut metadata = file.metadata().clone();
        for change in overrides {
            change.apply(&mut metadata)?;
        }
        let architecture = file::architecture(&file, &metadata)?;
        if file.tensors().is_empty() {
            return Err(Error::model(Evidence::new("drafter has no tensors").path(path).expected("weights").found(0)));
        }
        Ok(Self { file, metadata, architecture })
    }

    fn model(&self) -> ModelFile<'_> {
        ModelFile::new(&self.file, &self.metadata, self.architecture)
    }

    /// Its configuration for a target of this vocabulary, and what is worth telling.
    ///
    /// # Errors
    /// `Error::Model` for what cannot be used; `Error::Pairing` for a kind that the file does not hold.
    pub fn config(&self, options: &BlockOptions, vocab_size: usize) -> Result<(BlockConfig, BlockKind, Vec<String>)> {
        let (mut config, notices) = file::read(&self.model(), vocab_size)?;
        let has_markov = config.geometry.markov_rank > 0;
        match options.kind {
            Some(BlockKind::Dflash) if has_markov => {
                return Err(Error::pairing(
                    Evidence::new("the file holds another kind of drafter")
                        .path(self.file.path())
                        .tensor("markov_w1.weight")
                        .expected("dspark")
                        .found("dflash"),
                ));
            }
            // DeepSpec's own "dflash" checkpoints have DSpark's slots and no tensor that would tell.
            Some(BlockKind::Dspark) if matches!(config.sample_from_anchor.source, Source::Default(_)) => {
                config.sample_from_anchor = Field { value: true, source: Source::Override };
            }
            _ => {}
        }
        let settings = options.settings.iter().map(|(name, value)| (name.as_str(), value));
        let config = config.with_overrides(settings)?;
        let kind = match has_markov || config.sample_from_anchor.value || options.kind == Some(BlockKind::Dspark) {
            true => BlockKind::Dspark,
            false => BlockKind::Dflash,
        };
        Ok((config, kind, notices))
    }

    /// Target tokens of the head's rows, checked.
    fn ids(&self, model: &mut ModelFile<'_>, vocab_size: usize) -> Result<Option<Arc<[u32]>>> {
        let Some(ids) = model.integers("d2t")? else { return Ok(None) };
        let mut seen = vec![false; vocab_size];
        let checked = ids.iter().enumerate().map(|(row, &id)| {
            match usize::try_from(id).ok().filter(|&id| id < vocab_size && !std::mem::replace(&mut seen[id], true)) {
                Some(id) => Ok(id as u32),
                None => Err(model.bad_tensor(
                    "d2t",
                    "draft vocabulary names a token that cannot be",
                    format!("tokens below {vocab_size}, each once"),
                    format!("{id} in row {row}"),
                )),
            }
        });
        checked.collect::<Result<Arc<[u32]>>>().map(Some)
    }

    /// The program of a configuration, and what the drafter reads beside it.
    fn build(&self, config: &BlockConfig, lender: &Lender) -> Result<(Program, Parts)> {
        let mut model = self.model();
        let ids = self.ids(&mut model, lender.vocab_size)?;
        let program = program::build(&mut model, config, lender, ids.clone())?;
        let g = config.geometry;
        let confidence = match g.markov_rank {
            0 => None,
            rank => ConfidenceHead::read(&mut model, &self.file, g.hidden_size, rank)?,
        };
        model.refuse_unused()?;
        Ok((program, Parts { ids, confidence: confidence.filter(|_| config.confidence.value) }))
    }
}

impl BlockDrafter {
    /// Loads a drafter for a target, on the target's backend. What does not fit the target is an error before any
    /// weight is loaded; what is suspicious becomes a notice.
    ///
    /// # Errors
    /// Whatever is wrong with the file; `Error::Pairing` when it does not fit; `Error::Argument` for a setting that does
    /// not exist or cannot have its value.
    pub fn load(path: &Path, target: &Target, options: &BlockOptions) -> Result<Self> {
        let source = Arc::new(BlockFile::open(path, &options.metadata)?);
        let facts = TargetFacts::new(target.file(), target.metadata(), target.engine().program());
        let (config, kind, mut notices) = source.config(options, facts.vocab_size)?;
        let checks = pairing::check(&source, &config, &facts)?;
        pairing::require(&checks, path)?;
        notices.extend(
            checks.iter().filter(|check| check.verdict == Verdict::Notice).map(|c| format!("{}: {}", c.name, c.detail)),
        );
        let lender = Lender::of(target.engine().program());
        let (program, parts) = source.build(&config, &lender)?;
        let engine = target.engine().attach(program, &mut |spec| {
            if let Some(name) = spec.name.strip_prefix(BORROWED) {
                return Ok(Origin::Shared(name.to_owned()));
            }
            WeightSource::read(spec, &source.file).map(Origin::File)
        })?;
        // The block stands after the last position that the target can hold.
        let state = target.state_options();
        let state = StateOptions { ctx: state.ctx + config.block_size.value, slots: 1, ..state };
        let parts = Arc::new(parts);
        Ok(Self { source, lender, config: Arc::new(config), kind, engine, parts, state, checks, notices })
    }

    /// The same drafter with settings replaced: its weights are shared, not loaded again.
    ///
    /// # Errors
    /// `Error::Argument` for a setting that does not exist or cannot have its value.
    pub fn with_overrides(&self, settings: &[(String, OverrideValue)]) -> Result<Self> {
        let settings = settings.iter().map(|(name, value)| (name.as_str(), value));
        let config = (*self.config).clone().with_overrides(settings)?;
        pairing::require(&pairing::check_taps(&config, self.lender.num_layers), self.source.file.path())?;
        let (program, parts) = self.source.build(&config, &self.lender)?;
        let engine = self.engine.attach(program, &mut |spec| Ok(Origin::Shared(spec.name.clone())))?;
        let longer = config.block_size.value.saturating_sub(self.config.block_size.value);
        Ok(Self {
            source: Arc::clone(&self.source),
            lender: self.lender.clone(),
            kind: self.kind,
            engine,
            parts: Arc::new(parts),
            state: StateOptions { ctx: self.state.ctx + longer, ..self.state },
            config: Arc::new(config),
            checks: self.checks.clone(),
            notices: self.notices.clone(),
        })
    }

    /// Its configuration.
    pub fn block_config(&self) -> &BlockConfig {
        &self.config
    }

    /// How it fits its target.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// What was noticed while loading.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }
}

impl Drafter for BlockDrafter {
    fn kind(&self) -> &'static str {
        self.kind.name()
    }

    fn draft_len(&self) -> usize {
        self.config.draft_len(self.config.block_size.value)
    }

    fn block_size(&self) -> Option<usize> {
        Some(self.config.block_size.value)
    }

    fn draft_len_of_block(&self, width: usize) -> usize {
        self.config.draft_len(width)
    }

    fn config(&self) -> Vec<Setting> {
        let fields = self.config.fields().into_iter();
        fields.map(|(name, value, provenance)| Setting { name, value, provenance }).collect()
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            taps: self.config.taps.value.clone(),
            probabilities: false,
            confidence: self.parts.confidence.is_some(),
        }
    }

    fn open(&self) -> Result<Box<dyn DraftState>> {
        let state = self.engine.open(self.state)?;
        Ok(Box::new(BlockState::new(Arc::clone(&self.config), Arc::clone(&self.parts), state)))
    }
}

/// The layers of a list of taps, as Python names them: the layer's number, -1 for the embeddings.
pub fn tap_layers(taps: &[TapPoint]) -> Vec<i64> {
    let layer = |tap: &TapPoint| match tap {
        TapPoint::Layer(layer) => *layer as i64,
        TapPoint::Embeddings | TapPoint::Final => -1,
    };
    taps.iter().map(layer).collect()
}
