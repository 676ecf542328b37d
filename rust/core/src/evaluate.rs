//! Perplexity of a model on a text, and how far one model's distribution lies from another's.
//!
//! The convention is llama-perplexity's (llama.cpp b11434): the text is cut into windows of `ctx` tokens, each window
//! starts afresh with the beginning-of-sequence token where the tokenizer adds one, and the second half is scored.

use crate::backend::{Engine, EngineState, Forest, Head, Outputs, Request, StateOptions};
use crate::error::{Error, Evidence, Result};
use crate::exact;

/// Rows of one run: logits of a window are never all in memory.
const ROWS: usize = 64;

/// What is evaluated.
#[derive(Debug, Clone, Copy)]
pub struct EvaluateOptions {
    /// Tokens of a window.
    pub ctx: usize,
    /// Most windows to score; all where `None`.
    pub windows: Option<usize>,
    /// Put at the start of each window in place of its first token.
    pub bos: Option<u32>,
}

/// How well a model predicts a text.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Perplexity {
    /// Windows scored.
    pub windows: usize,
    /// Tokens scored.
    pub tokens: usize,
    /// Sum of negative log probabilities of the scored tokens.
    pub nll: f64,
    /// `exp(nll / tokens)`.
    pub perplexity: f64,
    /// Standard error of the perplexity.
    pub standard_error: f64,
}

/// How far one distribution lies from another over the scored tokens.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Divergence {
    /// Mean of KL(base || other) in nats.
    pub mean_kl: f64,
    /// Standard error of that mean.
    pub standard_error: f64,
    /// Median KL.
    pub median_kl: f64,
    /// KL that 99 % of the tokens do not exceed.
    pub p99_kl: f64,
    /// Largest KL.
    pub max_kl: f64,
    /// Share of tokens at which both models have the same most likely token.
    pub argmax_agreement: f64,
    /// Root mean square of the difference in probability of the text's token.
    pub rms_delta_p: f64,
}

/// One model's figures, or two models' and the divergence between them.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Evaluation {
    /// Figures of the model.
    pub base: Perplexity,
    /// Figures of the model it is compared with.
    pub other: Option<Perplexity>,
    /// KL(base || other) and agreement.
    pub divergence: Option<Divergence>,
}

/// Scores a text, and compares with a second model where there is one.
///
/// Each model comes with the options its state is opened with. `progress` is called between passes with the share that is
/// done; its error ends the evaluation.
///
/// # Errors
/// `Error::Argument` for a text shorter than two windows (as llama-perplexity), a window that a model cannot hold, or
/// models of different vocabularies; whatever `progress` fails with.
pub fn evaluate(
    (base, base_state): (&dyn Engine, StateOptions),
    other: Option<(&dyn Engine, StateOptions)>,
    tokens: &[u32],
    options: EvaluateOptions,
    progress: &mut dyn FnMut(f64) -> Result<()>,
) -> Result<Evaluation> {
    let ctx = options.ctx;
    let longest = other.map_or(usize::MAX, |(other, _)| other.program().train_ctx).min(base.program().train_ctx);
    if ctx < 4 || ctx > longest {
        return Err(Error::argument(
            Evidence::new("window cannot be scored").key("ctx_size").expected(format!("4 to {longest}")).found(ctx),
        ));
    }
    if options.windows == Some(0) {
        return Err(Error::argument(
            Evidence::new("no window is left to score").key("windows").expected("1 or more").found(0),
        ));
    }
    if tokens.len() < 2 * ctx {
        return Err(Error::argument(
            Evidence::new("text is too short to score")
                .expected(format!("at least {} tokens", 2 * ctx))
                .found(tokens.len()),
        ));
    }
    if let Some((other, _)) = other {
        let (a, b) = (base.program().vocab_size, other.program().vocab_size);
        if a != b {
            return Err(Error::argument(
                Evidence::new("models have different vocabularies").expected(format!("{a} tokens")).found(b),
            ));
        }
    }
    let windows = (tokens.len() / ctx).min(options.windows.unwrap_or(usize::MAX));
    let window_of = |state| StateOptions { ctx, slots: 1, ..state };
    let mut base = Scorer::new(base, window_of(base_state))?;
    let mut other = other.map(|(engine, state)| Scorer::new(engine, window_of(state))).transpose()?;
    let mut pairs = Pairs::default();
    for window in 0..windows {
        let mut text = tokens[window * ctx..(window + 1) * ctx].to_vec();
        if let Some(bos) = options.bos {
            text[0] = bos;
        }
        // The last chunk of rows would predict the token after the window: it is left out.
        for start in (0..ctx - 1).step_by(ROWS) {
            let rows = start..(start + ROWS).min(ctx - 1);
            let scored: Vec<usize> = rows.clone().filter(|&row| row >= ctx / 2).map(|row| row - start).collect();
            base.run(&text[rows.clone()], start, &scored)?;
            if let Some(other) = &mut other {
                other.run(&text[rows.clone()], start, &scored)?;
            }
            for (index, row) in scored.iter().enumerate() {
                let next = text[start + row + 1];
                let p = base.score(index, next);
                if let Some(other) = &mut other {
                    let q = other.score(index, next);
                    pairs.push(base.row(index), &p, other.row(index), &q);
                }
            }
            progress((window * ctx + rows.end) as f64 / (windows * ctx) as f64)?;
        }
        base.state.truncate(0, 0)?;
        if let Some(other) = &mut other {
            other.state.truncate(0, 0)?;
        }
    }
    Ok(Evaluation {
        base: base.perplexity(windows),
        divergence: other.is_some().then(|| pairs.divergence()),
        other: other.map(|other| other.perplexity(windows)),
    })
}

/// One row's normalization and the log probability of the text's token.
#[derive(Debug, Clone, Copy)]
struct Scored {
    argmax: usize,
    /// Log of the sum of exponentials.
    log_sum: f64,
    log_p: f64,
}

/// A model, its state, and the negative log probabilities so far.
struct Scorer {
    state: Box<dyn EngineState>,
    vocab: usize,
    outputs: Outputs,
    nll: Vec<f64>,
}

impl Scorer {
    fn new(engine: &dyn Engine, state: StateOptions) -> Result<Self> {
        Ok(Self {
            state: engine.open(state)?,
            vocab: engine.program().vocab_size,
            outputs: Outputs::default(),
            nll: Vec::new(),
        })
    }

    fn run(&mut self, tokens: &[u32], start: usize, rows: &[usize]) -> Result<()> {
        let forest = Forest::chain(tokens, start, 0);
        self.state.run(&forest, &Request { rows, head: Head::Logits, taps: &[], features: None }, &mut self.outputs)?;
        self.state.commit(0, &(0..tokens.len()).collect::<Vec<_>>())
    }

    fn row(&self, index: usize) -> &[f32] {
        &self.outputs.logits[index * self.vocab..][..self.vocab]
    }

    fn score(&mut self, index: usize, next: u32) -> Scored {
        let row = self.row(index);
        let mut argmax = 0;
        for (id, &logit) in row.iter().enumerate() {
            if logit > row[argmax] {
                argmax = id;
            }
        }
        let max = f64::from(row[argmax]);
        let sum: f64 = row.iter().map(|&logit| exponential(f64::from(logit) - max)).sum();
        let log_sum = max + exact::ln(sum);
        let log_p = f64::from(row[next as usize]) - log_sum;
        self.nll.push(-log_p);
        Scored { argmax, log_sum, log_p }
    }

    fn perplexity(&self, windows: usize) -> Perplexity {
        let (mean, standard_error) = mean_and_error(&self.nll);
        let perplexity = mean.exp();
        Perplexity {
            windows,
            tokens: self.nll.len(),
            nll: self.nll.iter().sum(),
            perplexity,
            standard_error: perplexity * standard_error,
        }
    }
}

/// What two models said at each scored token.
#[derive(Default)]
struct Pairs {
    kl: Vec<f64>,
    same: usize,
    squared_delta_p: f64,
}

impl Pairs {
    fn push(&mut self, base: &[f32], p: &Scored, other: &[f32], q: &Scored) {
        let kl = base
            .iter()
            .zip(other)
            .map(|(&a, &b)| {
                let log_p = f64::from(a) - p.log_sum;
                exponential(log_p) * (log_p - (f64::from(b) - q.log_sum))
            })
            .sum::<f64>();
        // Rounding alone can bring an exact zero below it.
        self.kl.push(kl.max(0.0));
        self.same += usize::from(p.argmax == q.argmax);
        self.squared_delta_p += (exponential(p.log_p) - exponential(q.log_p)).powi(2);
    }

    fn divergence(mut self) -> Divergence {
        let count = self.kl.len() as f64;
        let (mean_kl, standard_error) = mean_and_error(&self.kl);
        self.kl.sort_by(f64::total_cmp);
        let quantile = |share: f64| self.kl[((self.kl.len() - 1) as f64 * share).round() as usize];
        Divergence {
            mean_kl,
            standard_error,
            median_kl: quantile(0.5),
            p99_kl: quantile(0.99),
            max_kl: quantile(1.0),
            argmax_agreement: self.same as f64 / count,
            rms_delta_p: (self.squared_delta_p / count).sqrt(),
        }
    }
}

/// Exponential that underflows to zero instead of leaving its range.
fn exponential(x: f64) -> f64 {
    if x < -700.0 { 0.0 } else { exact::exp(x) }
}

/// Mean and its standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_a_model_cannot_score_are_refused() {
        let engine = crate::testing::FakeEngine::new(50, 1);
        let state = crate::testing::fake_model(50, 1, 64, 1, &[]).state;
        let refused = |ctx, windows| {
            let options = EvaluateOptions { ctx, windows, bos: None };
            evaluate((&engine, state), None, &[1; 64], options, &mut |_| Ok(())).unwrap_err().to_string()
        };
        assert!(refused(3, None).contains("window cannot be scored: ctx_size: expected 4 to"), "{}", refused(3, None));
        assert_eq!(refused(8, Some(0)), "no window is left to score: windows: expected 1 or more, found 0");
        assert!(refused(40, None).contains("text is too short to score: expected at least 80 tokens, found 64"));
    }

    #[test]
    fn divergence_of_two_hand_made_rows() {
        // p = (1/2, 1/2), q = (1/4, 3/4): KL = ln 2 - (ln 3) / 2 + ... computed by hand as 0.14384103622589042.
        let p = [0.0_f32, 0.0];
        let q = [0.0_f32, 3.0_f32.ln()];
        let scored = |argmax, sum: f64, log_p| Scored { argmax, log_sum: sum.ln(), log_p };
        let mut pairs = Pairs::default();
        pairs.push(&p, &scored(0, 2.0, 0.5_f64.ln()), &q, &scored(1, 4.0, 0.25_f64.ln()));
        let divergence = pairs.divergence();
        assert!((divergence.mean_kl - 0.143_841_036_225_890_42).abs() < 1e-7);
        assert_eq!(divergence.argmax_agreement, 0.0);
        assert!((divergence.rms_delta_p - 0.25).abs() < 1e-12);
    }
}
