//! Teacher-forced scores: what a drafter proposes after every position of a given text, beside the target's own choices.
//!
//! One pass of the target over the text gives features and choices; then the drafter runs after all anchors in batches.
//! On a text that the target generated greedily, the leading matches at an anchor are what a step there would accept.

use crate::backend::{Forest, Head, Outputs, Request};
use crate::drafters::{Budget, Drafter, Observation, Proposal};
use crate::error::{Error, Evidence, Result};
use crate::target::{PREFILL_ROWS, Target};

/// Scores of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// Position of each anchor. `[anchors]`
    pub anchors: Vec<usize>,
    /// Most drafts at an anchor.
    pub draft_len: usize,
    /// Drafts at each anchor, as many as there were. `[anchors][drafts]`
    pub drafts: Vec<Vec<u32>>,
    /// Confidence of each draft, where the drafter has one. `[anchors][drafts]`
    pub confidence: Option<Vec<Vec<f32>>>,
    /// The target's choice after each position of the text, its largest logit. `[tokens]`
    pub choices: Vec<u32>,
    /// By how much the largest logit leads. `[tokens]`
    pub margins: Vec<f32>,
}

impl Scores {
    /// Whether draft `i` at anchor number `anchor` is the target's choice there; `None` past the end of the text.
    pub fn matches(&self, anchor: usize, draft: usize) -> Option<bool> {
        let choice = self.choices.get(self.anchors[anchor] + draft)?;
        Some(self.drafts[anchor].get(draft)? == choice)
    }

    /// Leading matches at an anchor.
    pub fn accepted(&self, anchor: usize) -> usize {
        (0..self.drafts[anchor].len()).take_while(|&draft| self.matches(anchor, draft) == Some(true)).count()
    }
}

/// What a score is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScoreOptions {
    /// Position of the first anchor.
    pub start: usize,
    /// Most drafts at an anchor; the drafter's own where `None`.
    pub draft_n_max: Option<usize>,
    /// Width of the block; the trained one where `None`.
    pub draft_block: Option<usize>,
}

/// Scores a drafter on a text. `pause` is called between passes; its error ends the run.
///
/// # Errors
/// `Error::Argument` for a text that the target cannot run, or a start without an anchor after it; what the drafter's
/// own passes give.
pub fn score(
    target: &Target,
    drafter: &dyn Drafter,
    tokens: &[u32],
    options: &ScoreOptions,
    pause: &mut dyn FnMut() -> Result<()>,
) -> Result<Scores> {
    target.check_tokens(tokens)?;
    if options.start >= tokens.len() {
        return Err(Error::argument(
            Evidence::new("no anchor is left to score")
                .key("start")
                .expected(format!("less than {}", tokens.len()))
                .found(options.start),
        ));
    }
    let trained = drafter.block_size();
    if let Some(width) = options.draft_block
        && trained.is_none_or(|trained| !(1..=trained).contains(&width))
    {
        return Err(Error::argument(
            Evidence::new("width of the draft block cannot be used")
                .key("draft_block")
                .expected(trained.map_or("a drafter with a block".to_owned(), |trained| format!("1 to {trained}")))
                .found(width),
        ));
    }
    let longest = options.draft_block.map_or(drafter.draft_len(), |width| drafter.draft_len_of_block(width));
    let draft_len = options.draft_n_max.map_or(longest, |most| most.min(longest));

    let taps = drafter.capabilities().taps;
    let mut drafting = drafter.open()?;
    let mut state = target.open()?;
    let mut outputs = Outputs::default();
    let (mut choices, mut margins) = (Vec::with_capacity(tokens.len()), Vec::with_capacity(tokens.len()));
    for (chunk, range) in tokens.chunks(PREFILL_ROWS).zip((0..).step_by(PREFILL_ROWS)) {
        pause()?;
        let rows: Vec<usize> = (0..chunk.len()).collect();
        let request = Request { rows: &rows, head: Head::Top2, taps: &taps, features: None };
        state.run(&Forest::chain(chunk, range, 0), &request, &mut outputs)?;
        state.commit(0, &rows)?;
        choices.extend(outputs.top2.iter().map(|top| top.token));
        margins.extend(outputs.top2.iter().map(|top| top.first - top.second));
        drafting.observe(&Observation { start: range, tokens: chunk, features: &outputs.taps })?;
    }

    let anchors: Vec<usize> = (options.start..tokens.len()).collect();
    let budget = Budget { block: options.draft_block, ..Budget::chain(draft_len) };
    let mut proposals: Vec<Proposal> = Vec::with_capacity(anchors.len());
    // From the end, since a drafter may forget what follows an anchor.
    for anchors in anchors.rchunks(ANCHORS_OF_A_PASS) {
        pause()?;
        let mut part = drafting.propose_each(tokens, anchors, &budget)?;
        part.append(&mut proposals);
        proposals = part;
    }
    let confident = proposals.iter().any(|proposal| proposal.confidence.is_some());
    let confidence =
        confident.then(|| proposals.iter().map(|proposal| proposal.confidence.clone().unwrap_or_default()).collect());
    let drafts = proposals.into_iter().map(|proposal| proposal.tokens).collect();
    Ok(Scores { anchors, draft_len, drafts, confidence, choices, margins })
}

/// Anchors between two looks at whether to go on.
const ANCHORS_OF_A_PASS: usize = 256;
