//! Prompt lookup: what followed the last tokens when they occurred before.
//!
//! The longest suffix of up to `max_n` tokens that occurred earlier decides. Where it occurred several times, the
//! continuations are merged: each draft is the token that most of the occurrences still in agreement continue with,
//! the most recent one on a tie. An occurrence that reaches the end of the text goes on into the draft itself, so that
//! a loop is drafted whole.

use std::collections::HashMap;

use super::{Anchor, Budget, DraftState, Drafter, Observation, Proposal, Setting};
use crate::error::{Error, Evidence, Result};

/// Occurrences that take part in a vote: the most recent ones.
const MAX_OCCURRENCES: usize = 32;
/// "No position" in the chains.
const NONE: u32 = u32::MAX;

/// Settings of the n-gram drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramConfig {
    /// Longest suffix that is looked up.
    pub max_n: usize,
    /// Shortest suffix that is looked up. A single token recurs everywhere and says little, hence 2.
    pub min_n: usize,
    /// Most tokens in a draft.
    pub draft_len: usize,
}

impl Default for NgramConfig {
    fn default() -> Self {
        Self { max_n: 4, min_n: 2, draft_len: 8 }
    }
}

/// The n-gram drafter.
#[derive(Debug, Clone)]
pub struct Ngram {
    config: NgramConfig,
}

impl Ngram {
    /// Validates the settings; `min_n` is lowered to `max_n` where it is larger.
    ///
    /// # Errors
    /// `Error::Argument` naming the setting that is out of range.
    pub fn new(config: NgramConfig) -> Result<Self> {
        for (name, value, most) in
            [("max_n", config.max_n, 64), ("min_n", config.min_n, 64), ("draft_len", config.draft_len, 512)]
        {
            if !(1..=most).contains(&value) {
                return Err(Error::argument(
                    Evidence::new("option out of range").key(name).expected(format!("1 to {most}")).found(value),
                ));
            }
        }
        Ok(Self { config: NgramConfig { min_n: config.min_n.min(config.max_n), ..config } })
    }
}

impl Drafter for Ngram {
    fn kind(&self) -> &'static str {
        "ngram"
    }

    fn draft_len(&self) -> usize {
        self.config.draft_len
    }

    fn config(&self) -> Vec<Setting> {
        let default = NgramConfig::default();
        [
            ("max_n", self.config.max_n, default.max_n),
            ("min_n", self.config.min_n, default.min_n.min(self.config.max_n)),
            ("draft_len", self.config.draft_len, default.draft_len),
        ]
        .into_iter()
        .map(|(name, value, default)| Setting {
            name,
            value: value.to_string(),
            provenance: if value == default { "default" } else { "override" }.to_owned(),
        })
        .collect()
    }

    fn open(&self) -> Result<Box<dyn DraftState>> {
        Ok(Box::new(NgramState {
            config: self.config,
            index: (self.config.min_n..=self.config.max_n).map(Chain::new).collect(),
            tokens: Vec::new(),
        }))
    }
}

/// Positions where an n-gram of one length ended, each linked to the one before it.
struct Chain {
    n: usize,
    // Hash of the n-gram -> where it ended last.
    last: HashMap<u64, u32>,
    // Where the n-gram that ends here ended before, NONE at the first time. [tokens]
    previous: Vec<u32>,
}

impl Chain {
    fn new(n: usize) -> Self {
        Self { n, last: HashMap::new(), previous: Vec::new() }
    }

    fn hash(&self, tokens: &[u32], end: usize) -> Option<u64> {
        let start = (end + 1).checked_sub(self.n)?;
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for &token in &tokens[start..=end] {
            hash = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        Some(hash)
    }

    fn push(&mut self, tokens: &[u32], end: usize) {
        let before = self.hash(tokens, end).and_then(|hash| self.last.insert(hash, end as u32));
        self.previous.push(before.unwrap_or(NONE));
    }

    fn pop(&mut self, tokens: &[u32]) {
        let Some(before) = self.previous.pop() else { return };
        if let Some(hash) = self.hash(tokens, self.previous.len()) {
            if before == NONE {
                self.last.remove(&hash);
            } else {
                self.last.insert(hash, before);
            }
        }
    }

    /// Ends of earlier occurrences of the n-gram that ends the text, most recent first.
    fn earlier(&self, tokens: &[u32]) -> Vec<usize> {
        let mut found = Vec::new();
        if tokens.len() < self.n {
            return found;
        }
        let suffix = &tokens[tokens.len() - self.n..];
        let mut end = self.previous[tokens.len() - 1];
        while end != NONE && found.len() < MAX_OCCURRENCES {
            // Equal hashes of different n-grams share a chain, so the tokens decide.
            if tokens[end as usize + 1 - self.n..=end as usize] == *suffix {
                found.push(end as usize);
            }
            end = self.previous[end as usize];
        }
        found
    }
}

struct NgramState {
    config: NgramConfig,
    // One index a length, ascending from min_n.
    index: Vec<Chain>,
    tokens: Vec<u32>,
}

impl NgramState {
    /// Brings the index up to the anchor. Committed tokens never change without a truncate, so only the end is new.
    fn catch_up(&mut self, tokens: &[u32]) {
        for &token in tokens.get(self.tokens.len()..).unwrap_or_default() {
            self.push(token);
        }
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        let end = self.tokens.len() - 1;
        self.index.iter_mut().for_each(|chain| chain.push(&self.tokens, end));
    }

    fn continuation(&self, occurrences: Vec<usize>, len: usize) -> Vec<u32> {
        let mut draft: Vec<u32> = Vec::with_capacity(len);
        let mut active = occurrences;
        while draft.len() < len {
            let next = |end: usize| {
                let at = end + 1 + draft.len();
                self.tokens.get(at).copied().unwrap_or_else(|| draft[at - self.tokens.len()])
            };
            // Most recent first, so the first token to reach the highest count wins its ties.
            let mut votes: Vec<(u32, usize)> = Vec::new();
            for &end in &active {
                let token = next(end);
                match votes.iter_mut().find(|vote| vote.0 == token) {
                    Some(vote) => vote.1 += 1,
                    None => votes.push((token, 1)),
                }
            }
            let most = votes.iter().map(|vote| vote.1).max().unwrap_or(0);
            let Some(&(token, _)) = votes.iter().find(|vote| vote.1 == most) else { break };
            active.retain(|&end| next(end) == token);
            draft.push(token);
        }
        draft
    }
}

impl DraftState for NgramState {
    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        if observation.start > self.tokens.len() {
            return Err(Error::tree(
                Evidence::new("the drafter missed committed positions")
                    .expected(self.tokens.len())
                    .found(observation.start),
            ));
        }
        let known = self.tokens.len() - observation.start;
        observation.tokens.iter().skip(known).for_each(|&token| self.push(token));
        Ok(())
    }

    fn propose(&mut self, anchor: &Anchor<'_>, budget: &Budget) -> Result<Proposal> {
        self.catch_up(anchor.tokens);
        let len = self.config.draft_len.min(budget.depth).min(budget.nodes);
        if len == 0 || self.tokens.is_empty() {
            return Ok(Proposal::default());
        }
        let occurrences =
            self.index.iter().rev().map(|chain| chain.earlier(&self.tokens)).find(|found| !found.is_empty());
        Ok(Proposal::chain(occurrences.map_or_else(Vec::new, |found| self.continuation(found, len))))
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        while self.tokens.len() > len {
            self.index.iter_mut().for_each(|chain| chain.pop(&self.tokens));
            self.tokens.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: Budget = Budget { depth: 8, nodes: 8, block: None, confidence: 0.0 };

    fn propose(config: NgramConfig, tokens: &[u32]) -> Vec<u32> {
        let mut state = Ngram::new(config).unwrap().open().unwrap();
        state.propose(&Anchor { tokens }, &BUDGET).unwrap().tokens
    }

    #[test]
    fn i03_repeated_text_drafts_the_known_continuation() {
        let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4];
        assert_eq!(propose(NgramConfig::default(), &tokens), [5, 6, 7, 8, 9, 10, 11, 12]);
    }

    #[test]
    fn a_loop_is_drafted_past_the_end_of_the_text() {
        assert_eq!(propose(NgramConfig::default(), &[9, 1, 2, 3, 1, 2, 3, 1, 2]), [3, 1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(propose(NgramConfig::default(), &[5, 5, 5]), [5; 8]);
    }

    #[test]
    fn the_longest_suffix_decides() {
        // [2, 3] was followed by 7 last, but [1, 2, 3] by 4.
        let tokens = [1, 2, 3, 4, 9, 8, 2, 3, 7, 0, 1, 2, 3];
        assert_eq!(propose(NgramConfig::default(), &tokens)[0], 4);
    }

    #[test]
    fn continuations_are_merged_by_count_and_then_by_recency() {
        let config = NgramConfig { max_n: 2, ..NgramConfig::default() };
        // 1 2 -> 5 twice, then 6 once: the majority wins although 6 is more recent.
        assert_eq!(propose(config, &[1, 2, 5, 7, 1, 2, 5, 8, 1, 2, 6, 3, 1, 2])[..2], [5, 8]);
        // One of each: the recent one.
        assert_eq!(propose(config, &[1, 2, 5, 7, 1, 2, 6, 3, 1, 2])[0], 6);
    }

    #[test]
    fn nothing_known_is_an_empty_proposal() {
        assert!(propose(NgramConfig::default(), &[1]).is_empty());
        assert!(propose(NgramConfig::default(), &[1, 2, 3, 4, 5]).is_empty());
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let error = Ngram::new(NgramConfig { draft_len: 0, ..NgramConfig::default() }).err().unwrap();
        assert_eq!(error.to_string(), "option out of range: draft_len: expected 1 to 512, found 0");
        assert!(Ngram::new(NgramConfig { max_n: 0, ..NgramConfig::default() }).is_err());
    }

    /// The same by searching the whole text.
    fn naive(config: NgramConfig, tokens: &[u32], len: usize) -> Vec<u32> {
        for n in (config.min_n.min(config.max_n)..=config.max_n).rev() {
            if tokens.len() <= n {
                continue;
            }
            let suffix = &tokens[tokens.len() - n..];
            let mut ends: Vec<usize> =
                (n - 1..tokens.len() - 1).rev().filter(|&end| tokens[end + 1 - n..=end] == *suffix).collect();
            ends.truncate(MAX_OCCURRENCES);
            let mut text = tokens.to_vec();
            while !ends.is_empty() && text.len() < tokens.len() + len {
                let i = text.len() - tokens.len();
                let count = |token: u32| ends.iter().filter(|&&end| text[end + 1 + i] == token).count();
                let most = ends.iter().map(|&end| count(text[end + 1 + i])).max().unwrap();
                let winner = ends.iter().map(|&end| text[end + 1 + i]).find(|&token| count(token) == most).unwrap();
                ends.retain(|&end| text[end + 1 + i] == winner);
                text.push(winner);
            }
            if text.len() > tokens.len() {
                return text[tokens.len()..].to_vec();
            }
        }
        Vec::new()
    }

    proptest! {
        /// The incremental index, whatever was truncated on the way, finds what a search of the whole text finds.
        #[test]
        fn index_agrees_with_a_full_search(
            steps in prop::collection::vec((prop::collection::vec(0_u32..3, 0..6), 0_usize..8), 1..30),
            max_n in 1_usize..5, min_n in 1_usize..4, draft_len in 1_usize..10,
        ) {
            let config = NgramConfig { max_n, min_n, draft_len };
            let mut state = Ngram::new(config).unwrap().open().unwrap();
            let mut tokens: Vec<u32> = vec![0];
            for (new, drop) in steps {
                tokens.extend(new);
                let draft = state.propose(&Anchor { tokens: &tokens }, &BUDGET).unwrap();
                prop_assert_eq!(&draft.tokens, &naive(config, &tokens, draft_len.min(BUDGET.depth)));
                tokens.truncate(tokens.len().saturating_sub(drop).max(1));
                state.truncate(tokens.len()).unwrap();
            }
        }
    }

    /// A draft at the end of a very long text must not search it: a hundred times the text takes about the same time.
    #[test]
    fn a_long_context_costs_no_rescan() {
        let fastest = |len: u32| {
            let mut tokens: Vec<u32> = (0..len).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
            let mut state = Ngram::new(NgramConfig::default()).unwrap().open().unwrap();
            state.propose(&Anchor { tokens: &tokens }, &BUDGET).unwrap();
            let round = |round: u32| {
                let start = std::time::Instant::now();
                for step in 0..300 {
                    tokens.push((round + step) % 7);
                    state.propose(&Anchor { tokens: &tokens }, &BUDGET).unwrap();
                }
                start.elapsed()
            };
            // The fastest of several rounds, because other work on the machine only ever slows one down.
            (0..7).map(round).min().unwrap()
        };
        let (short, long) = (fastest(2_000), fastest(200_000));
        assert!(long < 10 * short + std::time::Duration::from_millis(5), "{short:?} {long:?}");
    }
}
