//! Drafters: what proposes the tokens that a verify pass checks.
//!
//! A [`Drafter`] is immutable and shared like a target; a [`DraftState`] is what one session owns of it.
//! A new drafter is one file here and one line in [`KINDS`].

pub mod block;
mod ngram;

pub use block::BlockDrafter;
pub use ngram::{Ngram, NgramConfig};

use crate::error::Result;
use crate::program::TapPoint;
use crate::tree::DraftTree;

/// Names of the drafters that exist, as `--spec-type` spells them, with llama.cpp's names for the same.
pub const KINDS: &[(&str, &[&str])] =
    &[("ngram", &["ngram-simple"]), ("dflash", &["draft-dflash"]), ("dspark", &["draft-dspark"])];

/// What a drafter needs and gives, asked for before the loop begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Points of the target whose values it observes for every committed position.
    pub taps: Vec<TapPoint>,
    /// Whether proposals carry the law that each draft was drawn from.
    pub probabilities: bool,
    /// Whether proposals carry a confidence for each draft.
    pub confidence: bool,
}

/// A setting of a drafter and where its value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Name of the setting.
    pub name: &'static str,
    /// Value, written out.
    pub value: String,
    /// `default`, `override`, or the file's key.
    pub provenance: String,
}

/// A drafter's weights and configuration: immutable, shared between sessions.
pub trait Drafter: Send + Sync {
    /// Name of the kind, as `--spec-type` spells it.
    fn kind(&self) -> &'static str;
    /// Most tokens that one proposal may hold along a path.
    fn draft_len(&self) -> usize;
    /// Width of the block that it fills in one pass, for drafters that have one.
    fn block_size(&self) -> Option<usize> {
        None
    }
    /// Most drafts of a block of another width, for drafters that have one.
    fn draft_len_of_block(&self, _width: usize) -> usize {
        self.draft_len()
    }
    /// What was noticed while it was loaded.
    fn notices(&self) -> &[String] {
        &[]
    }
    /// The configuration, each field with its provenance.
    fn config(&self) -> Vec<Setting>;
    /// What it needs and gives.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    /// Opens the state of a new sequence.
    ///
    /// # Errors
    /// As the drafter's own loading does.
    fn open(&self) -> Result<Box<dyn DraftState>>;
}

/// Positions that entered the target's cache.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// Position of the first token.
    pub start: usize,
    /// The tokens that were committed. `[rows]`
    pub tokens: &'a [u32],
    /// Values at the tap points that the capabilities ask for. `[taps, rows, hidden]`
    pub features: &'a [f32],
}

/// The point after which tokens are proposed.
#[derive(Debug, Clone, Copy)]
pub struct Anchor<'a> {
    /// Prompt and output so far; the last one is the anchor, which is not in the target's cache yet.
    pub tokens: &'a [u32],
}

impl Anchor<'_> {
    /// The anchor's position.
    pub fn position(&self) -> usize {
        self.tokens.len() - 1
    }
}

/// What a proposal may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Most drafts along a path.
    pub depth: usize,
    /// Most drafts in all.
    pub nodes: usize,
    /// Width of the block, for drafters that have one; the trained one where `None`.
    pub block: Option<usize>,
    /// Drafts end before the first whose confidence is below this; 0 keeps all.
    pub confidence: f32,
}

impl Budget {
    /// A chain of at most `depth` drafts, with everything else as the drafter has it.
    pub fn chain(depth: usize) -> Self {
        Self { depth, nodes: depth, block: None, confidence: 0.0 }
    }
}

/// Tokens to verify.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposal {
    /// The drafts, the anchor excluded: `tokens[j]` becomes node j + 1.
    pub tokens: Vec<u32>,
    /// Parent node of each draft; `None` for a chain.
    pub parents: Option<Vec<i32>>,
    /// Confidence of each draft, where the drafter has one.
    pub confidence: Option<Vec<f32>>,
    /// The law that each draft was drawn from, where it was drawn. `[drafts, vocab]`
    pub probabilities: Option<Vec<f32>>,
}

impl Proposal {
    /// A chain of drafts.
    pub fn chain(tokens: Vec<u32>) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// The tree of this proposal under its anchor.
    ///
    /// # Errors
    /// `Error::Tree` when the parents are not those of a tree.
    pub fn tree(&self, anchor: u32) -> Result<DraftTree> {
        let tokens: Vec<u32> = std::iter::once(anchor).chain(self.tokens.iter().copied()).collect();
        match &self.parents {
            None => DraftTree::chain(&tokens),
            Some(parents) => {
                let parents: Vec<i32> = std::iter::once(-1).chain(parents.iter().copied()).collect();
                DraftTree::new(&tokens, &parents)
            }
        }
    }
}

/// What a drafter keeps of one sequence; truncated together with the target's cache.
pub trait DraftState: Send {
    /// Takes in positions that entered the target's cache.
    ///
    /// # Errors
    /// Whatever keeps the drafter from going on; the session then decodes without it.
    fn observe(&mut self, observation: &Observation<'_>) -> Result<()>;
    /// Proposes what follows the anchor, within the budget.
    ///
    /// # Errors
    /// Whatever keeps the drafter from going on; the session then decodes without it.
    fn propose(&mut self, anchor: &Anchor<'_>, budget: &Budget) -> Result<Proposal>;
    /// Proposes after each of several positions of the observed tokens, each as if the sequence ended there.
    /// `positions` ascend; positions may be forgotten on the way.
    ///
    /// # Errors
    /// As [`DraftState::propose`].
    fn propose_each(&mut self, tokens: &[u32], positions: &[usize], budget: &Budget) -> Result<Vec<Proposal>> {
        let mut proposals = Vec::with_capacity(positions.len());
        for &position in positions.iter().rev() {
            self.truncate(position)?;
            proposals.push(self.propose(&Anchor { tokens: &tokens[..=position] }, budget)?);
        }
        proposals.reverse();
        Ok(proposals)
    }
    /// Forgets every position from `len` on.
    ///
    /// # Errors
    /// Whatever keeps the drafter from going on; the session then decodes without it.
    fn truncate(&mut self, len: usize) -> Result<()>;
}
