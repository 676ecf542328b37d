//! Drafters that know what the target will say, and get it wrong as often as they are told to.

use std::sync::Arc;

use super::mix;
use crate::drafters::{Anchor, Budget, Capabilities, DraftState, Drafter, Observation, Proposal, Setting};
use crate::error::{Error, Evidence, Result};
use crate::program::TapPoint;

/// What goes wrong with a scripted drafter after some proposals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `propose` returns an error.
    Error,
    /// A draft lies outside every vocabulary.
    Token,
    /// The proposal is longer than its budget.
    Length,
    /// The parents are not those of a tree.
    Parents,
    /// `observe` returns an error.
    Observe,
}

/// Proposes what a script says comes next, each position right with a chance of its own.
#[derive(Debug, Clone)]
pub struct Scripted {
    script: Arc<[u32]>,
    rates: Vec<f64>,
    seed: u64,
    vocab_size: u32,
    fault: Option<(usize, Fault)>,
    taps: Vec<TapPoint>,
    // Every n-th step proposes nothing; 0 for never.
    skip: usize,
}

impl Scripted {
    /// `script` is prompt and output as the target makes them; `rates[i]` is how often position i of a draft is right.
    pub fn new(script: &[u32], rates: &[f64], vocab_size: usize, seed: u64) -> Self {
        let (script, rates, vocab_size) = (script.into(), rates.to_vec(), vocab_size as u32);
        Self { script, rates, seed, vocab_size, fault: None, taps: Vec::new(), skip: 0 }
    }

    /// Goes wrong at the proposal number `after`.
    #[must_use]
    pub fn with_fault(mut self, after: usize, fault: Fault) -> Self {
        self.fault = Some((after, fault));
        self
    }

    /// Asks for features, and fails when positions are missing.
    #[must_use]
    pub fn with_taps(mut self, taps: &[TapPoint]) -> Self {
        self.taps = taps.to_vec();
        self
    }

    /// Proposes nothing at every n-th step.
    #[must_use]
    pub fn with_skip(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }
}

impl Drafter for Scripted {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn draft_len(&self) -> usize {
        self.rates.len()
    }

    fn config(&self) -> Vec<Setting> {
        Vec::new()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { taps: self.taps.clone(), ..Capabilities::default() }
    }

    fn open(&self) -> Result<Box<dyn DraftState>> {
        Ok(Box::new(ScriptedState { drafter: self.clone(), proposals: 0, observed: 0 }))
    }
}

struct ScriptedState {
    drafter: Scripted,
    proposals: usize,
    observed: usize,
}

impl DraftState for ScriptedState {
    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        if observation.start != self.observed {
            return Err(Error::tree(
                Evidence::new("the drafter missed committed positions")
                    .expected(self.observed)
                    .found(observation.start),
            ));
        }
        let wanted = self.drafter.taps.len() * observation.tokens.len() * 2;
        if !self.drafter.taps.is_empty() && observation.features.len() != wanted {
            return Err(Error::tree(
                Evidence::new("features are missing").expected(wanted).found(observation.features.len()),
            ));
        }
        if self.drafter.fault == Some((self.proposals, Fault::Observe)) && self.proposals > 0 {
            return Err(Error::tree(Evidence::new("the script is torn")));
        }
        self.observed += observation.tokens.len();
        Ok(())
    }

    fn propose(&mut self, anchor: &Anchor<'_>, budget: &Budget) -> Result<Proposal> {
        let position = anchor.position();
        if self.observed != position {
            return Err(Error::tree(
                Evidence::new("the drafter missed committed positions").expected(position).found(self.observed),
            ));
        }
        self.proposals += 1;
        if self.drafter.skip > 0 && self.proposals.is_multiple_of(self.drafter.skip) {
            return Ok(Proposal::default());
        }
        let mut tokens = Vec::new();
        for (index, &rate) in self.drafter.rates.iter().enumerate().take(budget.depth) {
            let Some(&right) = self.drafter.script.get(position + 1 + index) else { break };
            let key = self.drafter.seed ^ ((position as u64) << 16 | index as u64);
            let hit = (mix(key) >> 11) as f64 / (1_u64 << 53) as f64 <= rate;
            tokens.push(if hit && rate > 0.0 { right } else { (right + 1) % self.drafter.vocab_size });
        }
        if let Some((_, fault)) = self.drafter.fault.filter(|&(after, _)| self.proposals == after) {
            match fault {
                Fault::Error => return Err(Error::tree(Evidence::new("the script is torn"))),
                Fault::Token => tokens.push(u32::MAX),
                Fault::Length => tokens.resize(budget.nodes + 1, 0),
                Fault::Parents => {
                    return Ok(Proposal { tokens: vec![0, 0], parents: Some(vec![0, 7]), ..Proposal::default() });
                }
                Fault::Observe => {}
            }
        }
        Ok(Proposal::chain(tokens))
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.observed = self.observed.min(len);
        Ok(())
    }
}
