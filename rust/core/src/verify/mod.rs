//! Acceptance as pure functions: no model, device, clock or random state inside.

mod greedy;

pub use greedy::accept_greedy;

/// What a verification decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Accepted nodes in order of depth, the anchor excluded.
    pub path: Vec<usize>,
    /// Number of accepted drafts: the length of `path`.
    pub accepted: usize,
    /// The target's own token after the last accepted draft.
    pub bonus: u32,
}
