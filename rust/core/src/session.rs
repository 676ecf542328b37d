//! A session: what changes while a sequence grows (target cache, drafter state, tokens), truncated together.

use std::sync::Arc;
use std::time::Instant;

use crate::backend::{Engine, EngineState, Forest, Head, Outputs, Request, StateOptions};
use crate::decode::Observer;
use crate::drafters::{Anchor, Budget, DraftState, Drafter, Observation, Proposal};
use crate::error::{Error, Evidence, Result};
use crate::program::TapPoint;
use crate::target::{PREFILL_ROWS, Target};
use crate::text::Tokenizer;
use crate::tree::DraftTree;

/// Fewest and most rows of a prompt pass whose length the session chooses.
const PREFILL_RANGE: (usize, usize) = (8, 512);
/// A prompt pass may take this long, so that an interruption is noticed in time.
const PREFILL_SECONDS: f64 = 0.25;

/// Turns a token into the bytes it stands for in the output; control tokens stand for nothing.
pub trait Detokenize: Send + Sync {
    /// Bytes of one token.
    fn bytes(&self, token: u32) -> Vec<u8>;
}

impl Detokenize for Tokenizer {
    fn bytes(&self, token: u32) -> Vec<u8> {
        if self.is_control(token) { Vec::new() } else { self.token_bytes(token).into_owned() }
    }
}

/// What a session needs of a target.
#[derive(Clone)]
pub struct SessionModel {
    /// The loaded model.
    pub engine: Arc<dyn Engine>,
    /// Tokens to text.
    pub detokenizer: Arc<dyn Detokenize>,
    /// Tokens that end a generation.
    pub eog: Vec<u32>,
    /// Tokens that are never generated.
    pub suppressed: Vec<u32>,
    /// What an empty prompt begins with.
    pub bos: Option<u32>,
    /// What the state is opened with.
    pub state: StateOptions,
}

impl From<&Target> for SessionModel {
    fn from(target: &Target) -> Self {
        let tokenizer = target.tokenizer();
        Self {
            engine: Arc::clone(target.engine()),
            detokenizer: Arc::clone(tokenizer) as Arc<dyn Detokenize>,
            eog: tokenizer.eog().to_vec(),
            suppressed: tokenizer.suppressed().to_vec(),
            bos: tokenizer.bos(),
            state: target.state_options(),
        }
    }
}

/// A drafter and its state in this session.
struct Drafting {
    drafter: Arc<dyn Drafter>,
    // None after a failure, until the drafter can begin again.
    state: Option<Box<dyn DraftState>>,
    taps: Vec<TapPoint>,
}

/// One sequence on one slot of a state.
pub struct Session {
    model: SessionModel,
    state: Box<dyn EngineState>,
    slot: usize,
    outputs: Outputs,
    drafting: Option<Drafting>,
    // Prompt and output. The cache holds all of them, or all but the last, which is the anchor.
    tokens: Vec<u32>,
}

impl Session {
    /// Opens a session on the first slot.
    ///
    /// # Errors
    /// `Error::Pairing` when the drafter taps a layer that the target does not have; what opening the states gives.
    pub fn new(model: SessionModel, drafter: Option<Arc<dyn Drafter>>) -> Result<Self> {
        Self::on_slot(model, drafter, 0)
    }

    /// Opens a session on a slot of its own state; the other slots stay empty.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn on_slot(model: SessionModel, drafter: Option<Arc<dyn Drafter>>, slot: usize) -> Result<Self> {
        let drafting = match drafter {
            Some(drafter) => Some(Drafting::new(drafter, model.engine.program().num_layers)?),
            None => None,
        };
        let state = model.engine.open(model.state)?;
        Ok(Self { model, state, slot, outputs: Outputs::default(), drafting, tokens: Vec::new() })
    }

    /// Prompt and output so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Most tokens that a sequence may have.
    pub fn ctx(&self) -> usize {
        self.model.state.ctx
    }

    /// Rows of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.model.engine.program().vocab_size
    }

    /// Tokens that end a generation.
    pub fn eog(&self) -> &[u32] {
        &self.model.eog
    }

    /// Whether a drafter was given.
    pub fn has_drafter(&self) -> bool {
        self.drafting.is_some()
    }

    /// Kind of the drafter.
    pub fn drafter_kind(&self) -> Option<&'static str> {
        self.drafting.as_ref().map(|drafting| drafting.drafter.kind())
    }

    /// Most drafts of one step, with a block of the given width or the drafter's own; 0 without a drafter.
    ///
    /// # Errors
    /// `Error::Argument` for a width that the drafter does not have.
    pub fn draft_len(&self, block: Option<usize>) -> Result<usize> {
        let drafter = self.drafting.as_ref().map(|drafting| &drafting.drafter);
        let Some(width) = block else { return Ok(drafter.map_or(0, |drafter| drafter.draft_len())) };
        let trained = drafter.and_then(|drafter| drafter.block_size());
        match (drafter, trained) {
            (Some(drafter), Some(trained)) if (1..=trained).contains(&width) => Ok(drafter.draft_len_of_block(width)),
            (_, trained) => Err(Error::argument(
                Evidence::new("width of the draft block cannot be used")
                    .key("draft_block")
                    .expected(match trained {
                        Some(trained) => format!("1 to {trained}, the trained width"),
                        None => "a drafter with a block".to_owned(),
                    })
                    .found(width),
            )),
        }
    }

    /// Refuses a confidence cut that the drafter cannot make.
    pub(crate) fn check_confidence(&self, least: f32) -> Result<()> {
        let has_block = self.drafting.as_ref().is_some_and(|drafting| drafting.drafter.block_size().is_some());
        if least == 0.0 || has_block {
            return Ok(());
        }
        Err(Error::argument(
            Evidence::new("option without effect")
                .key("draft_p_min")
                .expected("a drafter that tells how sure it is")
                .found(self.drafter_kind().unwrap_or("no drafter")),
        ))
    }

    /// Number of tokens whose rows the target's cache holds.
    pub fn cached(&self) -> usize {
        self.state.len(self.slot)
    }

    pub(crate) fn suppressed(&self) -> &[u32] {
        &self.model.suppressed
    }

    pub(crate) fn detokenizer(&self) -> Arc<dyn Detokenize> {
        Arc::clone(&self.model.detokenizer)
    }

    /// Forgets every token from `len` on, in the target and in the drafter.
    ///
    /// # Errors
    /// `Error::Argument` when there are fewer tokens.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.tokens.len() {
            return Err(Error::argument(
                Evidence::new("a session cannot be truncated to more than it holds")
                    .key("length")
                    .expected(format!("at most {}", self.tokens.len()))
                    .found(len),
            ));
        }
        if self.cached() > len {
            self.state.truncate(self.slot, len)?;
        }
        if let Some(drafting) = &mut self.drafting
            && let Some(state) = &mut drafting.state
            && state.truncate(len).is_err()
        {
            drafting.state = None;
        }
        self.tokens.truncate(len);
        Ok(())
    }

    /// The prompt that runs: an empty one begins with the model's BOS token.
    pub(crate) fn check_prompt(&self, prompt: &[u32]) -> Result<Vec<u32>> {
        let prompt = match (prompt, self.model.bos) {
            ([], Some(bos)) => vec![bos],
            ([], None) => {
                return Err(Error::argument(
                    Evidence::new("the prompt is empty and the model has no BOS token")
                        .key("prompt")
                        .expected("1 token or more")
                        .found(0),
                ));
            }
            (tokens, _) => tokens.to_vec(),
        };
        if prompt.len() > self.ctx() {
            return Err(Error::argument(
                Evidence::new("the prompt is longer than the context")
                    .key("prompt")
                    .expected(format!("at most {} tokens", self.ctx()))
                    .found(prompt.len()),
            ));
        }
        if let Some(token) = prompt.iter().find(|&&token| token as usize >= self.vocab_size()) {
            return Err(Error::argument(
                Evidence::new("a token of the prompt is not in the vocabulary")
                    .key("prompt")
                    .expected(format!("less than {}", self.vocab_size()))
                    .found(token),
            ));
        }
        Ok(prompt)
    }

    /// Computes the prompt from where it leaves the tokens that are already there. With a head, the outputs of its last
    /// row are left in [`Session::outputs`].
    pub(crate) fn prefill(
        &mut self,
        prompt: &[u32],
        rows: Option<usize>,
        head: Option<Head>,
        observer: &mut dyn Observer,
        notices: &mut Vec<String>,
    ) -> Result<()> {
        // At least one row must run: the last one gives the logits.
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let mut keep = common.min(self.cached()).min(prompt.len() - 1);
        if let Some(drafting) = &self.drafting
            && drafting.state.is_none()
            && !drafting.taps.is_empty()
        {
            // A drafter that begins again must see the features of every position.
            keep = 0;
        }
        self.truncate(keep)?;
        self.reopen_drafter(notices);
        let mut take = rows.unwrap_or(PREFILL_ROWS);
        while self.tokens.len() < prompt.len() {
            observer.prefill(self.tokens.len(), prompt.len())?;
            let start = self.tokens.len();
            let end = prompt.len().min(start + take);
            let clock = Instant::now();
            self.extend(&prompt[start..end], head.filter(|_| end == prompt.len()), notices)?;
            if rows.is_none() {
                take = next_rows(take, clock.elapsed().as_secs_f64());
            }
        }
        observer.prefill(prompt.len(), prompt.len())
    }

    /// Commits a chain of known tokens, and asks for the outputs of its last row where there is a head.
    fn extend(&mut self, tokens: &[u32], head: Option<Head>, notices: &mut Vec<String>) -> Result<()> {
        let start = self.tokens.len();
        let taps = self.drafting.as_ref().map_or(&[][..], Drafting::taps);
        let last = [tokens.len() - 1];
        let rows = if head.is_some() { &last[..] } else { &[] };
        let request = Request { rows, head: head.unwrap_or_default(), taps, features: None };
        self.state.run(&Forest::chain(tokens, start, self.slot), &request, &mut self.outputs)?;
        self.state.commit(self.slot, &(0..tokens.len()).collect::<Vec<_>>())?;
        self.tokens.extend_from_slice(tokens);
        if let Some(drafting) = &mut self.drafting {
            drafting.observe(&Observation { start, tokens, features: &self.outputs.taps }, notices);
        }
        Ok(())
    }

    /// What the last run gave back.
    pub(crate) fn outputs(&self) -> &Outputs {
        &self.outputs
    }

    /// Adds the first token after the prompt: the first anchor.
    pub(crate) fn push_anchor(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// A valid proposal within the budget; an empty one when there is none, with a notice when the drafter failed.
    pub(crate) fn draft(&mut self, budget: Budget, notices: &mut Vec<String>) -> Proposal {
        let vocab = self.vocab_size();
        match &mut self.drafting {
            Some(drafting) if budget.depth > 0 => drafting.propose(&self.tokens, &budget, vocab, notices),
            _ => Proposal::default(),
        }
    }

    /// Runs a tree after the committed tokens; its rows stay pending.
    pub(crate) fn run_tree(&mut self, tree: &DraftTree, head: Head) -> Result<()> {
        let start = self.tokens.len() - 1;
        let forest = Forest::tree(tree.tokens(), tree.parents(), start, self.slot)?;
        let rows: Vec<usize> = (0..tree.len()).collect();
        let taps = self.drafting.as_ref().map_or(&[][..], Drafting::taps);
        self.state.run(&forest, &Request { rows: &rows, head, taps, features: None }, &mut self.outputs)
    }

    /// Makes the anchor and the kept drafts permanent, adds the bonus token, and returns the new tokens.
    pub(crate) fn commit(
        &mut self,
        tree: &DraftTree,
        path: &[usize],
        bonus: Option<u32>,
        notices: &mut Vec<String>,
    ) -> Result<Vec<u32>> {
        let start = self.tokens.len() - 1;
        let rows: Vec<usize> = std::iter::once(0).chain(path.iter().copied()).collect();
        self.state.commit(self.slot, &rows)?;
        let committed: Vec<u32> = path.iter().map(|&node| tree.tokens()[node]).chain(bonus).collect();
        self.tokens.extend_from_slice(&committed);
        if let Some(drafting) = &mut self.drafting {
            let features = gather(&self.outputs.taps, drafting.taps.len(), tree.len(), &rows);
            let tokens = &self.tokens[start..start + rows.len()];
            drafting.observe(&Observation { start, tokens, features: &features }, notices);
        }
        Ok(committed)
    }

    /// Lets a drafter that failed earlier begin again.
    fn reopen_drafter(&mut self, notices: &mut Vec<String>) {
        if let Some(drafting) = &mut self.drafting
            && drafting.state.is_none()
        {
            match drafting.drafter.open() {
                Ok(state) => {
                    drafting.state = Some(state);
                    drafting.observe(&Observation { start: 0, tokens: &self.tokens, features: &[] }, notices);
                }
                Err(error) => drafting.fail(&error, notices),
            }
        }
    }
}

impl Drafting {
    fn new(drafter: Arc<dyn Drafter>, num_layers: usize) -> Result<Self> {
        let taps = drafter.capabilities().taps;
        if let Some(layer) = taps.iter().find_map(|tap| match tap {
            TapPoint::Layer(layer) if *layer >= num_layers => Some(layer),
            _ => None,
        }) {
            return Err(Error::pairing(
                Evidence::new("the drafter taps a layer that the target does not have")
                    .key("tap layers")
                    .expected(format!("less than {num_layers}"))
                    .found(layer),
            ));
        }
        Ok(Self { state: Some(drafter.open()?), drafter, taps })
    }

    /// Points to tap: none while the drafter cannot use them.
    fn taps(&self) -> &[TapPoint] {
        if self.state.is_some() { &self.taps } else { &[] }
    }

    fn fail(&mut self, error: &Error, notices: &mut Vec<String>) {
        self.state = None;
        notices.push(format!("the {} drafter failed and decoding goes on without it: {error}", self.drafter.kind()));
    }

    fn observe(&mut self, observation: &Observation<'_>, notices: &mut Vec<String>) {
        if let Some(state) = &mut self.state
            && !observation.tokens.is_empty()
            && let Err(error) = state.observe(observation)
        {
            self.fail(&error, notices);
        }
    }

    fn propose(&mut self, tokens: &[u32], budget: &Budget, vocab: usize, notices: &mut Vec<String>) -> Proposal {
        let Some(state) = &mut self.state else { return Proposal::default() };
        let proposal = state.propose(&Anchor { tokens }, budget).and_then(|proposal| {
            check_proposal(&proposal, budget, vocab)?;
            Ok(proposal)
        });
        proposal.unwrap_or_else(|error| {
            self.fail(&error, notices);
            Proposal::default()
        })
    }
}

/// Refuses a proposal that the verify pass could not run or that is larger than what was asked for.
fn check_proposal(proposal: &Proposal, budget: &Budget, vocab: usize) -> Result<()> {
    if let Some(token) = proposal.tokens.iter().find(|&&token| token as usize >= vocab) {
        return Err(Error::tree(
            Evidence::new("a draft is not in the vocabulary").expected(format!("less than {vocab}")).found(token),
        ));
    }
    let tree = proposal.tree(0)?;
    let depth = tree.depths().iter().max().map_or(0, |&depth| depth as usize);
    if depth > budget.depth || proposal.tokens.len() > budget.nodes {
        return Err(Error::tree(
            Evidence::new("a proposal is larger than its budget")
                .expected(format!("at most {} drafts, {} deep", budget.nodes, budget.depth))
                .found(format!("{} drafts, {depth} deep", proposal.tokens.len())),
        ));
    }
    if proposal.confidence.as_ref().is_some_and(|confidence| confidence.len() != proposal.tokens.len()) {
        return Err(Error::tree(
            Evidence::new("a proposal needs one confidence a draft").expected(proposal.tokens.len()),
        ));
    }
    Ok(())
}

/// The features of chosen rows: `[taps, rows, hidden]` to `[taps, path, hidden]`.
fn gather(features: &[f32], num_taps: usize, num_rows: usize, path: &[usize]) -> Vec<f32> {
    if num_taps == 0 || features.is_empty() {
        return Vec::new();
    }
    let hidden = features.len() / (num_taps * num_rows);
    let mut out = Vec::with_capacity(num_taps * path.len() * hidden);
    for tap in 0..num_taps {
        for &row in path {
            out.extend_from_slice(&features[(tap * num_rows + row) * hidden..][..hidden]);
        }
    }
    out
}

/// Rows of the next prompt pass, so that one takes about [`PREFILL_SECONDS`].
fn next_rows(rows: usize, seconds: f64) -> usize {
    let wanted = if seconds > PREFILL_SECONDS {
        rows / 2
    } else if seconds < PREFILL_SECONDS / 3.0 {
        rows * 2
    } else {
        rows
    };
    wanted.clamp(PREFILL_RANGE.0, PREFILL_RANGE.1)
}
