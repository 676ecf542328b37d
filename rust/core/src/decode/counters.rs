//! Raw counts of a generation, and its identity.

use sha2::{Digest, Sha256};

use crate::trace::Step;

/// Integers of one generation. Rates are left to the reader, who names their denominators.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counters {
    /// Verify passes after the prompt.
    pub steps: u64,
    /// Drafted tokens that were verified.
    pub drafted: u64,
    /// Drafts that were kept; never the bonus.
    pub accepted: u64,
    /// Tokens that the target added itself after the last kept draft.
    pub bonus: u64,
    /// Steps that proposed a draft at each position.
    pub proposed_at: Vec<u64>,
    /// Steps whose draft at each position was kept, and so all before it.
    pub accepted_at: Vec<u64>,
    /// For trees: nodes proposed at each depth. Empty for chains.
    pub nodes_at: Vec<u64>,
    /// Seconds spent drafting.
    pub draft_s: f64,
    /// Seconds spent in verify passes.
    pub verify_s: f64,
    /// Seconds spent accepting and committing.
    pub commit_s: f64,
}

impl Counters {
    /// Counters that show at least this many positions.
    pub fn with_positions(positions: usize) -> Self {
        Self { proposed_at: vec![0; positions], accepted_at: vec![0; positions], ..Self::default() }
    }

    /// Takes a step in.
    pub fn record(&mut self, step: &Step) {
        let reached = match &step.parents {
            None => step.proposed.len(),
            Some(parents) => {
                let mut depths = vec![0_usize];
                for &parent in parents {
                    depths.push(depths[parent as usize] + 1);
                }
                for &depth in &depths[1..] {
                    grow(&mut self.nodes_at, depth);
                    self.nodes_at[depth - 1] += 1;
                }
                depths.into_iter().max().unwrap_or(0)
            }
        };
        grow(&mut self.proposed_at, reached);
        grow(&mut self.accepted_at, reached);
        self.proposed_at[..reached].iter_mut().for_each(|count| *count += 1);
        self.accepted_at[..step.accepted].iter_mut().for_each(|count| *count += 1);
        self.steps += 1;
        self.drafted += step.proposed.len() as u64;
        self.accepted += step.accepted as u64;
        self.bonus += u64::from(step.bonus.is_some());
        self.draft_s += step.draft_s;
        self.verify_s += step.verify_s;
        self.commit_s += step.commit_s;
    }
}

fn grow(counts: &mut Vec<u64>, len: usize) {
    if counts.len() < len {
        counts.resize(len, 0);
    }
}

/// SHA-256 of token ids as little-endian u32, in hexadecimal.
pub fn identity(tokens: &[u32]) -> String {
    let mut hash = Sha256::new();
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
