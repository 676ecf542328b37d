//! The loop: propose, verify pass, accept, commit; then record.

mod counters;
mod options;
mod text;

pub use counters::{Counters, identity};
pub use options::{Chunk, DraftReport, DraftStatus, FinishReason, GenerateOptions, Generation, Observer, Silent};

use std::time::Instant;

use crate::backend::{Head, Top2};
use crate::drafters::{Budget, Proposal};
use crate::error::{Error, Evidence, Result};
use crate::sampling::{Choice, History, Sampler};
use crate::session::Session;
use crate::trace::{Kind, SequenceTrace, Step};
use crate::tree::DraftTree;
use crate::verify::{Outcome, accept_greedy};
use text::TextStream;

/// What one generation keeps beside the session.
struct Run<'a> {
    options: &'a GenerateOptions,
    sampler: Sampler,
    text: TextStream,
    // Text that was released already.
    released: String,
    // Generated tokens, stop token included.
    tokens: Vec<u32>,
    finish: Option<FinishReason>,
    counters: Counters,
    // Most drafts along a path; 0 without a drafter.
    draft_limit: usize,
    // Tokens that end the output; none when they are banned.
    stop_tokens: Vec<u32>,
    prompt_len: usize,
    ctx: usize,
    notices: Vec<String>,
}

/// The part of an outcome that counts: nothing after a stop.
struct Kept {
    // Accepted nodes up to the stop.
    path: Vec<usize>,
    bonus: Option<u32>,
    text: String,
    // Bytes of `text` that accepted drafts brought out.
    accepted_bytes: usize,
}

impl Session {
    /// Continues a prompt. What the prompt has in common with the tokens of earlier calls is not computed again.
    ///
    /// An interruption by the observer ends the generation with [`FinishReason::Interrupted`] and what there is so far.
    ///
    /// # Errors
    /// `Error::Argument` for options out of range, an empty prompt of a model without a BOS token, or a prompt that the
    /// context does not hold; `Error::Model` when a logit is not finite; `Error::Io` when the trace cannot be written.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        observer: &mut dyn Observer,
        mut trace: Option<&mut SequenceTrace<'_>>,
    ) -> Result<Generation> {
        let prompt = self.check_prompt(prompt)?;
        let mut run = Run::new(self, options, prompt.len())?;
        let start = Instant::now();
        let head = run.first_head();
        let prefill = self.prefill(&prompt, options.prefill_rows, head, observer, &mut run.notices);
        let first = match (run.interruptible(prefill)?, head) {
            (Some(()), Some(head)) => {
                Some(self.choose(&DraftTree::chain(&prompt[prompt.len() - 1..])?, head, &mut run)?[0].token)
            }
            _ => None,
        };
        let prefill_s = start.elapsed().as_secs_f64();
        if let Some(trace) = trace.as_deref_mut() {
            let kind = if self.has_drafter() { Kind::Speculative } else { Kind::Plain };
            trace.begin(kind, &prompt, first, prefill_s)?;
        }

        let start = Instant::now();
        if let Some(token) = first {
            let kept = run.keep(&[], Some(token), Vec::new());
            self.push_anchor(token);
            run.tell(observer, &[token], 0, &kept)?;
        }
        while run.finish.is_none() {
            if run.interruptible(observer.pause())?.is_none() {
                break;
            }
            let clock = Instant::now();
            let (tree, proposal) = self.propose(&mut run);
            let draft_s = clock.elapsed().as_secs_f64();
            let clock = Instant::now();
            let choices = self.verify_pass(&tree, &mut run)?;
            let verify_s = clock.elapsed().as_secs_f64();
            let clock = Instant::now();
            let outcome = accept_greedy(&tree, &choices.iter().map(|choice| choice.token).collect::<Vec<_>>())?;
            let (anchor_pos, anchor) = (self.tokens().len() - 1, tree.tokens()[0]);
            let kept = run.keep_outcome(&tree, outcome);
            let committed = self.commit(&tree, &kept.path, kept.bonus, &mut run.notices)?;
            let commit_s = clock.elapsed().as_secs_f64();
            let last = kept.path.last().copied().unwrap_or(0);
            let is_tree = proposal.parents.is_some();
            let step = Step {
                seq: trace.as_ref().map_or(0, |trace| trace.seq()),
                step: run.counters.steps,
                anchor_pos,
                anchor,
                proposed: proposal.tokens,
                parents: proposal.parents,
                confidence: proposal.confidence,
                accepted: kept.path.len(),
                path: is_tree.then(|| kept.path.clone()),
                budget: None,
                bonus: kept.bonus,
                margin: kept.bonus.map(|_| choices[last].margin),
                draft_s,
                verify_s,
                commit_s,
            };
            run.counters.record(&step);
            if let Some(trace) = trace.as_deref_mut() {
                trace.step(&step)?;
            }
            run.tell(observer, &committed, step.accepted, &kept)?;
        }
        let decode_s = start.elapsed().as_secs_f64();
        let generation = run.finish(self, prompt, prefill_s, decode_s);
        if let Some(trace) = trace {
            trace.end(generation.finish_reason.as_str(), &generation.tokens)?;
        }
        Ok(generation)
    }

    /// The drafts of one step; none when the drafter has nothing, is not there, or failed.
    fn propose(&mut self, run: &mut Run<'_>) -> (DraftTree, Proposal) {
        // The bonus token takes one place of what is left of the output and of the context.
        let left = run.options.max_tokens.map_or(usize::MAX, |most| most - run.tokens.len());
        let room = (self.ctx() - self.tokens().len()).min(left) - 1;
        let depth = run.draft_limit.min(room);
        let budget =
            Budget { block: run.options.draft_block, confidence: run.options.draft_p_min, ..Budget::chain(depth) };
        let proposal = self.draft(budget, &mut run.notices);
        let anchor = *self.tokens().last().expect("a step has an anchor");
        match proposal.tree(anchor) {
            Ok(tree) => (tree, proposal),
            // `draft` checked the proposal, so this is the anchor alone.
            Err(_) => (DraftTree::chain(&[anchor]).expect("one node"), Proposal::default()),
        }
    }

    /// The target's own token at every node, by the function that plain decoding uses.
    fn verify_pass(&mut self, tree: &DraftTree, run: &mut Run<'_>) -> Result<Vec<Choice>> {
        let head = run.head();
        self.run_tree(tree, head)?;
        self.choose(tree, head, run)
    }

    /// The choice at each node of the tree that ran last; its root is the last token.
    fn choose(&self, tree: &DraftTree, head: Head, run: &mut Run<'_>) -> Result<Vec<Choice>> {
        let (tokens, outputs) = (self.tokens(), self.outputs());
        if head == Head::Top2 {
            return outputs.top2.iter().enumerate().map(|(row, top)| greedy_choice(top, row)).collect();
        }
        let rows = outputs.logits.chunks_exact(self.vocab_size());
        rows.enumerate()
            .map(|(node, logits)| {
                let path: Vec<u32> = tree.path_to(node).iter().map(|&n| tree.tokens()[n]).collect();
                let position = (tokens.len() + path.len()) as u32;
                run.sampler.choose(logits, node, position, History { committed: tokens, path: &path })
            })
            .collect()
    }
}

/// The choice that the two largest logits make.
fn greedy_choice(top: &Top2, row: usize) -> Result<Choice> {
    if !top.first.is_finite() {
        return Err(Error::model(
            Evidence::new("a logit is not finite")
                .key(format!("logits row {row}, token {}", top.token))
                .expected("a finite number")
                .found(top.first),
        ));
    }
    Ok(Choice { token: top.token, margin: top.first - top.second })
}

impl<'a> Run<'a> {
    fn new(session: &Session, options: &'a GenerateOptions, prompt_len: usize) -> Result<Self> {
        options.validate()?;
        let mut sampling = options.sampling.clone();
        sampling.banned.extend_from_slice(session.suppressed());
        if options.ignore_eos {
            sampling.banned.extend_from_slice(session.eog());
        }
        let mut notices = Vec::new();
        let longest = session.draft_len(options.draft_block)?;
        session.check_confidence(options.draft_p_min)?;
        let draft_limit = options.draft_n_max.map_or(longest, |most| most.min(longest));
        if let (true, Some(asked)) = (longest > 0, options.draft_n_max.filter(|&most| most > longest)) {
            notices.push(format!("draft_n_max {asked} is more than the drafter's draft length: {longest} is used"));
        }
        Ok(Self {
            options,
            sampler: Sampler::new(sampling, session.vocab_size())?,
            text: TextStream::new(session.detokenizer(), options.stop.clone()),
            released: String::new(),
            tokens: Vec::new(),
            finish: None,
            counters: Counters::with_positions(draft_limit),
            draft_limit,
            stop_tokens: if options.ignore_eos { Vec::new() } else { session.eog().to_vec() },
            prompt_len,
            ctx: session.ctx(),
            notices,
        })
    }

    fn head(&self) -> Head {
        if self.sampler.is_raw_argmax() { Head::Top2 } else { Head::Logits }
    }

    /// What the prompt pass is asked for; nothing when no token is to follow.
    fn first_head(&mut self) -> Option<Head> {
        if self.options.max_tokens == Some(0) {
            self.finish = Some(FinishReason::Length);
        } else if self.prompt_len >= self.ctx {
            self.stop_at_full_context();
        }
        self.finish.is_none().then(|| self.head())
    }

    /// Turns an interruption into the end of the generation.
    fn interruptible<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Interrupted) => {
                self.finish = Some(FinishReason::Interrupted);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn keep_outcome(&mut self, tree: &DraftTree, outcome: Outcome) -> Kept {
        let drafts: Vec<u32> = outcome.path.iter().map(|&node| tree.tokens()[node]).collect();
        self.keep(&drafts, Some(outcome.bonus), outcome.path)
    }

    /// Takes tokens in until one of them ends the output. Accepts after a stop do not count.
    fn keep(&mut self, drafts: &[u32], bonus: Option<u32>, mut path: Vec<usize>) -> Kept {
        let mut kept = Kept { path: Vec::new(), bonus: None, text: String::new(), accepted_bytes: 0 };
        let mut num_accepted = 0;
        for (index, &token) in drafts.iter().chain(&bonus).enumerate() {
            let is_draft = index < drafts.len();
            self.tokens.push(token);
            if is_draft {
                num_accepted += 1;
            } else {
                kept.bonus = Some(token);
            }
            if self.stop_tokens.contains(&token) {
                self.finish = Some(FinishReason::Stop);
            } else {
                let (text, stopped) = self.text.push(token);
                kept.text.push_str(&text);
                if stopped {
                    self.finish = Some(FinishReason::Stop);
                }
            }
            if is_draft {
                kept.accepted_bytes = kept.text.len();
            }
            if self.finish.is_some() {
                break;
            }
        }
        path.truncate(num_accepted);
        kept.path = path;
        kept
    }

    /// Decides whether the output ends here, releases its text and tells the observer.
    fn tell(&mut self, observer: &mut dyn Observer, tokens: &[u32], num_accepted: usize, kept: &Kept) -> Result<()> {
        if self.finish.is_none() && self.options.max_tokens.is_some_and(|most| self.tokens.len() >= most) {
            self.finish = Some(FinishReason::Length);
        }
        if self.finish.is_none() && self.prompt_len + self.tokens.len() >= self.ctx {
            self.stop_at_full_context();
        }
        let mut text = kept.text.clone();
        if self.finish.is_some() {
            text.push_str(&self.text.finish());
        }
        self.released.push_str(&text);
        let chunk = Chunk { text: &text, tokens, num_accepted, accepted_bytes: kept.accepted_bytes };
        let told = observer.chunk(&chunk);
        if self.finish.is_some() {
            // The output is whole; a late interruption does not change why it ended.
            return match told {
                Err(Error::Interrupted) => Ok(()),
                other => other,
            };
        }
        self.interruptible(told).map(drop)
    }

    fn stop_at_full_context(&mut self) {
        self.finish = Some(FinishReason::Length);
        self.notices.push(format!("the context of {} tokens is full", self.ctx));
    }

    fn finish(mut self, session: &Session, prompt_tokens: Vec<u32>, prefill_s: f64, decode_s: f64) -> Generation {
        self.released.push_str(&self.text.finish());
        let status = match session.drafter_kind() {
            None => DraftStatus::None,
            Some(_) if self.counters.drafted > 0 => DraftStatus::Active,
            Some(kind) => {
                self.notices.push(format!("the {kind} drafter proposed nothing in {} steps", self.counters.steps));
                DraftStatus::Inactive
            }
        };
        Generation {
            identity: identity(&self.tokens),
            text: self.released,
            tokens: self.tokens,
            prompt_tokens,
            finish_reason: self.finish.unwrap_or(FinishReason::Length),
            prefill_s,
            decode_s,
            draft: DraftReport { status, kind: session.drafter_kind(), counters: self.counters },
            notices: self.notices,
        }
    }
}

#[cfg(test)]
mod tests;
