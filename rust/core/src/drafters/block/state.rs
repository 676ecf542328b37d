//! What a block drafter keeps of one sequence: keys and values of every committed position.

use std::sync::Arc;

use super::Parts;
use super::config::BlockConfig;
use super::features;
use crate::backend::{DraftBlocks, EngineState, Forest, Head, Outputs, Request, Top2};
use crate::drafters::{Anchor, Budget, DraftState, Observation, Proposal};
use crate::error::{Error, Evidence, Result};
use crate::program::TapPoint;

/// Candidates among which a draft's probability is taken when there is no confidence head, as llama.cpp does.
const CANDIDATES: usize = 10;
/// Rows of one pass over many anchors.
const ROWS_OF_A_PASS: usize = 512;

/// The state of a block drafter.
pub(super) struct BlockState {
    config: Arc<BlockConfig>,
    parts: Arc<Parts>,
    state: Box<dyn EngineState>,
    outputs: Outputs,
    joined: Vec<f32>, // [rows, taps * hidden]
}

impl BlockState {
    pub(super) fn new(config: Arc<BlockConfig>, parts: Arc<Parts>, state: Box<dyn EngineState>) -> Self {
        Self { config, parts, state, outputs: Outputs::default(), joined: Vec::new() }
    }

    /// Drafts after each of `anchors`, (token, position), every one with a block of `width` rows.
    fn draft(&mut self, anchors: &[(u32, usize)], width: usize, budget: &Budget) -> Result<Vec<Proposal>> {
        let first = self.config.first_slot();
        let depth = self.config.draft_len(width).min(budget.depth).min(budget.nodes);
        if depth == 0 {
            return Ok(vec![Proposal::default(); anchors.len()]);
        }
        let mut tokens = vec![self.config.mask_token.value; anchors.len() * width];
        for (block, &(token, _)) in tokens.chunks_exact_mut(width).zip(anchors) {
            block[0] = token;
        }
        let starts: Vec<usize> = anchors.iter().map(|&(_, position)| position).collect();
        let blocks = DraftBlocks { width, bidirectional: !self.config.causal.value };
        let forest = Forest::blocks(&tokens, &starts, 0, blocks)?;
        let rows: Vec<usize> =
            (0..anchors.len()).flat_map(|block| (0..depth).map(move |i| block * width + first + i)).collect();
        let by_probability = budget.confidence > 0.0 && self.parts.confidence.is_none();
        let head = if by_probability { Head::Logits } else { Head::Top2 };
        let taps: &[TapPoint] = if self.parts.confidence.is_some() { &[TapPoint::Final] } else { &[] };
        self.state.run(&forest, &Request { rows: &rows, head, taps, features: None }, &mut self.outputs)?;
        Ok((0..anchors.len()).map(|block| self.proposal(block, anchors[block].0, (width, depth), budget)).collect())
    }

    /// The drafts of one block of the last run, cut where their confidence falls below the budget's.
    fn proposal(&self, block: usize, anchor: u32, (width, depth): (usize, usize), budget: &Budget) -> Proposal {
        let mut tokens: Vec<u32> = Vec::with_capacity(depth);
        let mut confidence = self.parts.confidence.is_some().then(Vec::new);
        for draft in 0..depth {
            let place = block * depth + draft;
            let row = match self.outputs.top2.get(place) {
                Some(top) => top.token,
                None => Top2::of(self.logits(place)).token,
            };
            let mut chance = None;
            if let Some(head) = &self.parts.confidence {
                let hidden = self.config.geometry.hidden_size;
                let state = block * width + self.config.first_slot() + draft;
                let state = &self.outputs.taps[state * hidden..][..hidden];
                chance = Some(head.confidence(state, tokens.last().copied().unwrap_or(anchor)));
            } else if budget.confidence > 0.0 {
                chance = Some(probability(self.logits(place)));
            }
            if chance.is_some_and(|chance| chance < budget.confidence) {
                break;
            }
            tokens.push(self.parts.ids.as_ref().map_or(row, |ids| ids[row as usize]));
            if let (Some(all), Some(chance)) = (&mut confidence, chance) {
                all.push(chance);
            }
        }
        Proposal { tokens, confidence, ..Proposal::default() }
    }

    fn logits(&self, place: usize) -> &[f32] {
        let rows = self.config.geometry.draft_vocab_size;
        &self.outputs.logits[place * rows..][..rows]
    }
}

impl DraftState for BlockState {
    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        let (rows, taps) = (observation.tokens.len(), self.config.taps.value.len());
        let held = self.state.len(0);
        if observation.start != held || observation.features.is_empty() {
            return Err(Error::pairing(
                Evidence::new("the drafter lacks features of the target")
                    .key(format!("position {held}"))
                    .expected(format!("features from position {held} on"))
                    .found(if observation.features.is_empty() {
                        "none".to_owned()
                    } else {
                        format!("features from position {} on", observation.start)
                    }),
            ));
        }
        features::join(observation.features, taps, rows, self.config.features.value, &mut self.joined);
        let request = Request { features: Some(&self.joined), ..Request::default() };
        self.state.run(&Forest::chain(observation.tokens, held, 0), &request, &mut self.outputs)?;
        self.state.commit(0, &(0..rows).collect::<Vec<_>>())
    }

    fn propose(&mut self, anchor: &Anchor<'_>, budget: &Budget) -> Result<Proposal> {
        let (position, held) = (anchor.position(), self.state.len(0));
        if held != position {
            return Err(Error::pairing(
                Evidence::new("the drafter lacks features of the target")
                    .key(format!("position {held}"))
                    .expected(format!("features of {position} positions"))
                    .found(held),
            ));
        }
        let width = budget.block.unwrap_or(self.config.block_size.value);
        let token = anchor.tokens[position];
        Ok(self.draft(&[(token, position)], width, budget)?.pop().unwrap_or_default())
    }

    fn propose_each(&mut self, tokens: &[u32], positions: &[usize], budget: &Budget) -> Result<Vec<Proposal>> {
        let width = budget.block.unwrap_or(self.config.block_size.value);
        let mut proposals = Vec::with_capacity(positions.len());
        for positions in positions.chunks((ROWS_OF_A_PASS / width).max(1)) {
            let anchors: Vec<_> = positions.iter().map(|&position| (tokens[position], position)).collect();
            proposals.extend(self.draft(&anchors, width, budget)?);
        }
        Ok(proposals)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.state.truncate(0, len.min(self.state.len(0)))
    }
}

/// Share of the largest logit among the largest ten, as llama.cpp compares it with its `p_min`.
fn probability(logits: &[f32]) -> f32 {
    let mut largest: Vec<f32> = Vec::with_capacity(CANDIDATES + 1);
    for &logit in logits {
        if largest.len() < CANDIDATES || logit > largest[largest.len() - 1] {
            let place = largest.partition_point(|&other| other >= logit);
            largest.insert(place, logit);
            largest.truncate(CANDIDATES);
        }
    }
    let total: f64 = largest.iter().map(|&logit| crate::exact::exp(f64::from(logit - largest[0]))).sum();
    (1.0 / total) as f32
}
