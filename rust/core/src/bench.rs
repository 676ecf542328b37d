//! Timing loops: prompt and decode speed, the verify-cost curve, and what the memory can deliver.

use std::hint::black_box;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::backend::{EngineState, Forest, Head, Outputs, Request, StateOptions};
use crate::drafters::{Anchor, Budget, Drafter, Observation};
use crate::error::{Error, Evidence, Result};
use crate::memory::cache_bytes;
use crate::program::WeightUse;
use crate::target::{PREFILL_ROWS, Target};

/// Bytes of the read test, far beyond any cache of the machines this runs on.
const READ_BYTES: usize = 256 << 20;

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchOptions {
    /// Prompt lengths.
    pub prefill: Vec<usize>,
    /// Tokens of a decode run.
    pub decode: usize,
    /// Tokens of context before decode and verify runs.
    pub depth: usize,
    /// Row counts of the verify-cost curve.
    pub rows: Vec<usize>,
    /// Runs of each figure.
    pub repeats: usize,
    /// Threads of the read test: those of the engine.
    pub threads: usize,
}

/// Speed of one kind of run.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Speed {
    /// Tokens of a run.
    pub n: usize,
    /// Median over the runs.
    pub tok_s: f64,
    /// Every run.
    pub runs: Vec<f64>,
    /// SHA-256 of the ids that a run chose.
    pub identity: String,
    /// Whether every run chose the same ids.
    pub equal: bool,
}

/// One point of the verify-cost curve.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct VerifyCost {
    /// Rows of the pass, each with the target's choice.
    pub rows: usize,
    /// Median seconds of a pass.
    pub seconds: f64,
    /// Seconds over those of a single row.
    pub ratio: f64,
    /// SHA-256 of the choices.
    pub identity: String,
    /// Whether the choices are those of the widest pass, as far as they go.
    pub equal: bool,
}

/// Everything that was measured.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct BenchReport {
    /// Prompt speed by length.
    pub prefill: Vec<Speed>,
    /// Decode speed.
    pub decode: Option<Speed>,
    /// The verify-cost curve.
    pub verify: Vec<VerifyCost>,
    /// Bytes a second of the best read, in units of 10^9.
    pub bandwidth_gb_s: f64,
    /// Bytes that one decode step reads, at the mean context of the decode run.
    pub bytes_per_token: u64,
    /// Share of the bandwidth that decoding reaches.
    pub bandwidth_share: Option<f64>,
}

/// Runs every measurement. `pause` is called between runs with the share that is done, and may stop the whole.
///
/// # Errors
/// `Error::Argument` for a run that does not fit the context; whatever `pause` or the engine fail with.
pub fn bench(target: &Target, options: &BenchOptions, pause: &mut dyn FnMut(f64) -> Result<()>) -> Result<BenchReport> {
    check(target, options)?;
    let repeats = options.repeats;
    let widest = options.rows.iter().copied().max();
    let total = (options.prefill.len() + 1) * (repeats + 1) + (options.rows.len() + 1) * repeats + 1;
    let mut done = 0;
    let mut tick = |pause: &mut dyn FnMut(f64) -> Result<()>| {
        done += 1;
        pause((done as f64 / total as f64).min(1.0))
    };

    let bandwidth_gb_s = read_bandwidth(options.threads, 5);
    tick(pause)?;

    let vocab = target.engine().program().vocab_size;
    let longest = options.prefill.iter().copied().chain([options.depth + widest.unwrap_or(0), 1]).max().unwrap_or(1);
    let tokens = sample_tokens(longest, vocab);
    let mut runner = Runner { state: target.open()?, outputs: Outputs::default() };

    let mut prefill = Vec::new();
    for &n in &options.prefill {
        let mut runs = Runs::new(n);
        for repeat in 0..=repeats {
            runner.state.truncate(0, 0)?;
            let start = Instant::now();
            let choice = runner.prefill(&tokens[..n], 0)?;
            // The first run pages the file in and warms the caches: it does not count.
            runs.add(repeat > 0, start.elapsed().as_secs_f64(), &[choice]);
            tick(pause)?;
        }
        prefill.push(runs.speed());
    }

    runner.state.truncate(0, 0)?;
    let mut anchor = tokens[options.depth];
    if options.depth > 0 {
        anchor = runner.prefill(&tokens[..options.depth], 0)?;
    }
    let decode = if options.decode == 0 {
        None
    } else {
        let mut runs = Runs::new(options.decode);
        for repeat in 0..=repeats {
            runner.state.truncate(0, options.depth)?;
            let start = Instant::now();
            let chosen = runner.decode(anchor, options.decode)?;
            runs.add(repeat > 0, start.elapsed().as_secs_f64(), &chosen);
            tick(pause)?;
        }
        Some(runs.speed())
    };

    runner.state.truncate(0, options.depth)?;
    let verify = match widest {
        Some(widest) => runner.verify_curve(&tokens[..widest], options, &mut || tick(pause))?,
        None => Vec::new(),
    };

    let bytes_per_token = bytes_per_token(target, options.depth + options.decode / 2);
    let bandwidth_share = decode.as_ref().map(|speed| bytes_per_token as f64 * speed.tok_s / (bandwidth_gb_s * 1e9));
    Ok(BenchReport { prefill, decode, verify, bandwidth_gb_s, bytes_per_token, bandwidth_share })
}

fn check(target: &Target, options: &BenchOptions) -> Result<()> {
    let ctx = target.state_options().ctx;
    let widest = options.rows.iter().copied().max().unwrap_or(0);
    let longest = options.prefill.iter().copied().max().unwrap_or(0);
    let needed = longest.max(options.depth.saturating_add(options.decode.max(widest)));
    if needed > ctx {
        return Err(Error::argument(
            Evidence::new("the runs do not fit the context")
                .key("ctx_size")
                .expected(format!("at least {needed}"))
                .found(ctx),
        ));
    }
    if options.repeats == 0 || options.rows.contains(&0) || options.prefill.contains(&0) {
        return Err(Error::argument(Evidence::new("a run needs a length").expected("at least 1").found(0)));
    }
    Ok(())
}

/// Ids that look like no text in particular: the cost of a pass does not depend on them.
fn sample_tokens(count: usize, vocab: usize) -> Vec<u32> {
    let mut seed = 0x9e37_79b9_u64;
    (0..=count)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % vocab as u64) as u32
        })
        .collect()
}

/// Bytes that one decode step reads with `ctx` positions in the cache: of an embedding table one row, unless it is the head too.
pub fn bytes_per_token(target: &Target, ctx: usize) -> u64 {
    let program = target.engine().program();
    let weights: u64 = program
        .weights
        .iter()
        .filter_map(|spec| {
            let bytes = spec.range(target.file().tensor(&spec.name)?.ty?)?.len() as u64;
            Some(match spec.usage {
                WeightUse::Table => bytes / spec.shape.first().copied().unwrap_or(1).max(1) as u64,
                _ => bytes,
            })
        })
        .sum();
    weights + cache_bytes(program, StateOptions { ctx, slots: 1, ..target.state_options() })
}

/// The best of several reads of a large buffer, in bytes a second over 10^9.
pub fn read_bandwidth(threads: usize, repeats: usize) -> f64 {
    let threads = threads.max(1);
    // Written once, so that every page is its own: reads of untouched memory would all hit one page of zeros.
    let data: Vec<u64> = (0..READ_BYTES as u64 / 8).collect();
    let share = data.len().div_ceil(threads);
    let best = (0..repeats.max(1))
        .map(|_| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for part in data.chunks(share) {
                    scope.spawn(move || black_box(sum(part)));
                }
            });
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    READ_BYTES as f64 / best / 1e9
}

/// Eight chains, so that the additions keep up with the memory.
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0_u64; 8];
    for chunk in part.chunks_exact(8) {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().fold(0, |total, sum| total.wrapping_add(*sum))
}

/// What a drafter costs in one step.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DraftCost {
    /// Median seconds of one proposal of the drafter's own length.
    pub seconds: f64,
    /// Median seconds in which the features of one committed position are taken in.
    pub observe_seconds: f64,
    /// Drafts of a proposal.
    pub drafts: usize,
    /// Tokens of context before it.
    pub context: usize,
}

/// Times a drafter after `depth` tokens of context, and at least 64 of them.
///
/// # Errors
/// As the passes themselves.
pub fn draft_cost(
    target: &Target,
    drafter: &dyn Drafter,
    depth: usize,
    repeats: usize,
    pause: &mut dyn FnMut() -> Result<()>,
) -> Result<DraftCost> {
    let context = depth.max(LEAST_DRAFT_CONTEXT).min(target.state_options().ctx - 1);
    let tokens = sample_tokens(context + 1, target.engine().program().vocab_size);
    let taps = drafter.capabilities().taps;
    let (mut state, mut drafting) = (target.open()?, drafter.open()?);
    let mut outputs = Outputs::default();
    for (index, chunk) in tokens[..context].chunks(PREFILL_ROWS).enumerate() {
        pause()?;
        let start = index * PREFILL_ROWS;
        let request = Request { taps: &taps, ..Request::default() };
        state.run(&Forest::chain(chunk, start, 0), &request, &mut outputs)?;
        state.commit(0, &(0..chunk.len()).collect::<Vec<_>>())?;
        drafting.observe(&Observation { start, tokens: chunk, features: &outputs.taps })?;
    }
    let hidden = target.engine().program().hidden_size;
    let rows = outputs.taps.len() / (taps.len() * hidden).max(1);
    // Features of the last position, [taps, 1, hidden].
    let last: Vec<f32> =
        (0..taps.len()).flat_map(|tap| outputs.taps[((tap + 1) * rows - 1) * hidden..][..hidden].to_vec()).collect();
    let (mut propose, mut observe) = (Vec::new(), Vec::new());
    let budget = Budget::chain(drafter.draft_len());
    let mut drafts = 0;
    for repeat in 0..=DRAFTS_A_RUN * repeats {
        pause()?;
        let start = Instant::now();
        drafts = drafting.propose(&Anchor { tokens: &tokens[..=context] }, &budget)?.tokens.len();
        let proposed = start.elapsed().as_secs_f64();
        drafting.truncate(context - 1)?;
        let start = Instant::now();
        let tokens = &tokens[context - 1..context];
        drafting.observe(&Observation { start: context - 1, tokens, features: &last })?;
        // The first run may allocate: it does not count.
        if repeat > 0 {
            propose.push(proposed);
            observe.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(DraftCost { seconds: median(&propose), observe_seconds: median(&observe), drafts, context })
}

/// Context of a drafter's timing where less was asked for: a drafter without context does not draft as in use.
const LEAST_DRAFT_CONTEXT: usize = 64;
/// Proposals that are timed for each repetition: one is short.
const DRAFTS_A_RUN: usize = 8;

struct Runner {
    state: Box<dyn EngineState>,
    outputs: Outputs,
}

impl Runner {
    /// Appends a prompt in chunks and gives the choice at its last row.
    fn prefill(&mut self, tokens: &[u32], start: usize) -> Result<u32> {
        for (index, chunk) in tokens.chunks(PREFILL_ROWS).enumerate() {
            let begin = start + index * PREFILL_ROWS;
            let last = begin - start + chunk.len() == tokens.len();
            let rows = if last { &[chunk.len() - 1][..] } else { &[] };
            let request = Request { rows, head: Head::Top2, taps: &[], features: None };
            self.state.run(&Forest::chain(chunk, begin, 0), &request, &mut self.outputs)?;
            self.state.commit(0, &(0..chunk.len()).collect::<Vec<_>>())?;
        }
        Ok(self.outputs.top2[0].token)
    }

    /// Decodes greedily from `anchor`.
    fn decode(&mut self, mut anchor: u32, count: usize) -> Result<Vec<u32>> {
        let mut chosen = Vec::with_capacity(count);
        let request = Request { rows: &[0], head: Head::Top2, taps: &[], features: None };
        for _ in 0..count {
            let position = self.state.len(0);
            self.state.run(&Forest::chain(&[anchor], position, 0), &request, &mut self.outputs)?;
            self.state.commit(0, &[0])?;
            anchor = self.outputs.top2[0].token;
            chosen.push(anchor);
        }
        Ok(chosen)
    }

    /// Times passes of each row count in turn, so that a drift of the machine touches all of them alike.
    fn verify_curve(
        &mut self,
        tokens: &[u32],
        options: &BenchOptions,
        tick: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<VerifyCost>> {
        let position = self.state.len(0);
        let mut counts = options.rows.clone();
        if !counts.contains(&1) {
            counts.insert(0, 1);
        }
        let mut seconds = vec![Vec::new(); counts.len()];
        let mut choices = vec![Vec::new(); counts.len()];
        for _ in 0..options.repeats {
            for (index, &count) in counts.iter().enumerate() {
                let rows: Vec<usize> = (0..count).collect();
                let request = Request { rows: &rows, head: Head::Top2, taps: &[], features: None };
                let forest = Forest::chain(&tokens[..count], position, 0);
                // Pending rows are dropped by the next run. The first pass of a shape may allocate and is not timed.
                self.state.run(&forest, &request, &mut self.outputs)?;
                let start = Instant::now();
                self.state.run(&forest, &request, &mut self.outputs)?;
                seconds[index].push(start.elapsed().as_secs_f64());
                choices[index] = self.outputs.top2.iter().map(|top| top.token).collect();
                tick()?;
            }
        }
        let single = counts.iter().position(|&count| count == 1).map_or(f64::NAN, |index| median(&seconds[index]));
        let widest = choices.iter().max_by_key(|choices| choices.len()).cloned().unwrap_or_default();
        let curve = counts.iter().zip(seconds.iter().zip(&choices)).map(|(&rows, (seconds, choices))| VerifyCost {
            rows,
            seconds: median(seconds),
            ratio: median(seconds) / single,
            identity: identity(choices),
            equal: widest.starts_with(choices),
        });
        Ok(curve.filter(|cost| options.rows.contains(&cost.rows)).collect())
    }
}

struct Runs {
    n: usize,
    tok_s: Vec<f64>,
    identities: Vec<String>,
}

impl Runs {
    fn new(n: usize) -> Self {
        Self { n, tok_s: Vec::new(), identities: Vec::new() }
    }

    fn add(&mut self, counts: bool, seconds: f64, chosen: &[u32]) {
        self.identities.push(identity(chosen));
        if counts {
            self.tok_s.push(self.n as f64 / seconds);
        }
    }

    fn speed(self) -> Speed {
        let equal = self.identities.windows(2).all(|pair| pair[0] == pair[1]);
        let identity = self.identities.into_iter().next().unwrap_or_default();
        Speed { n: self.n, tok_s: median(&self.tok_s), runs: self.tok_s, identity, equal }
    }
}

fn identity(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn identity_is_that_of_little_endian_ids() {
        assert_eq!(identity(&[]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(identity(&[1, 2]), identity(&[1, 2]));
        assert_ne!(identity(&[1, 2]), identity(&[2, 1]));
    }

    #[test]
    fn sampled_tokens_are_in_the_vocabulary() {
        let tokens = sample_tokens(1000, 37);
        assert_eq!(tokens.len(), 1001);
        assert!(tokens.iter().all(|&token| token < 37));
    }
}
