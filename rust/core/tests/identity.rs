//! The first law on a real model: speculation never changes a token, whoever drafts, at any temperature.
//!
//! `DRAFTGAUGE_IDENTITY=full` (`make identity`) runs more than a thousand generations of 128 tokens; otherwise a small
//! part of the same matrix runs.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use common::drafter_files::write_random_drafter;
use draftgauge_core::cpu::{Cpu, CpuOptions};
use draftgauge_core::decode::{Counters, DraftStatus, GenerateOptions, Generation, Silent};
use draftgauge_core::drafters::block::BlockOptions;
use draftgauge_core::drafters::{BlockDrafter, Drafter, Ngram, NgramConfig};
use draftgauge_core::sampling::SamplingParams;
use draftgauge_core::session::{Session, SessionModel};
use draftgauge_core::target::{Target, TargetOptions};
use draftgauge_core::testing::Scripted;

/// Text that repeats, code, prose, a list: what each drafter finds easy and hard.
const PROMPTS: [&str; 6] = [
    "Copy this list, then copy it once more: red apple, green pear, blue plum, yellow lemon. Copy: red apple, green pear,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\ndef factorial(n):\n",
    "The history of the lighthouse begins long before the first lamp was lit on its tower. Sailors who came from the north",
    // F07: a tool call, whose JSON is nearly forced in some places and open in others.
    "<|im_start|>system\nTools: {\"name\": \"weather\", \"parameters\": {\"city\": \"string\", \"day\": \"string\"}}<|im_end|>\n\
     <|im_start|>user\nWill it rain in Oslo on Monday?<|im_end|>\n\
     <|im_start|>assistant\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "Q",
];

/// What a part of the matrix covers.
struct Matrix {
    prompts: Vec<usize>,
    samplings: Vec<SamplingParams>,
    draft_lens: Vec<usize>,
    tokens: usize,
    long_context: usize,
}

fn sampling(temperature: f64) -> SamplingParams {
    SamplingParams { temperature, seed: 20, ..SamplingParams::default() }
}

fn truncated(temperature: f64) -> SamplingParams {
    SamplingParams { top_k: 40, top_p: 0.95, min_p: 0.02, ..sampling(temperature) }
}

fn penalised(temperature: f64) -> SamplingParams {
    SamplingParams {
        repeat_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        top_p: 0.98,
        ..sampling(temperature)
    }
}

impl Matrix {
    fn full() -> Self {
        let samplings =
            [0.0, 0.3, 1.0, 2.0].into_iter().flat_map(|t| [sampling(t), truncated(t), penalised(t)]).collect();
        Self { prompts: (0..6).collect(), samplings, draft_lens: vec![1, 4, 8], tokens: 128, long_context: 2100 }
    }

    fn part() -> Self {
        let samplings = vec![sampling(0.0), truncated(1.0), penalised(0.3)];
        Self { prompts: vec![0, 3], samplings, draft_lens: vec![6], tokens: 28, long_context: 0 }
    }
}

/// One model with one and with two threads; two slots, of which the sessions use either.
struct Engines(Vec<(SessionModel, Target)>);

impl Engines {
    fn load() -> Self {
        let load = |threads| {
            let cpu = Cpu::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
            let target = Target::load(&common::smollm2(), cpu, TargetOptions::default(), &mut |_| Ok(())).unwrap();
            let mut model = SessionModel::from(&target);
            model.state.slots = 2;
            // Without stop tokens every generation has its full length.
            model.eog.clear();
            (model, target)
        };
        Self(vec![load(1), load(2)])
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.0[0].1.tokenizer().encode(text, true, true).unwrap()
    }

    fn session(&self, number: usize, drafter: Option<Arc<dyn Drafter>>) -> Session {
        Session::on_slot(self.0[number % 2].0.clone(), drafter, number / 2 % 2).unwrap()
    }
}

/// Block drafters of random weights for each of the engines: one whose Markov head has seen what the target writes,
/// one whose drafts stay near a frequent token.
struct Blocks {
    folder: tempfile::TempDir,
    drafters: Vec<Vec<(&'static str, Arc<dyn Drafter>)>>, // [engines]
}

impl Blocks {
    fn write(engines: &Engines, matrix: &Matrix) -> Self {
        let mut bigrams = Vec::new();
        for &prompt in &matrix.prompts {
            let options = GenerateOptions {
                sampling: sampling(0.0),
                max_tokens: Some(matrix.tokens),
                ..GenerateOptions::default()
            };
            let tokens = engines.encode(PROMPTS[prompt]);
            let plain = engines.session(1, None).generate(&tokens, &options, &mut Silent, None).unwrap();
            bigrams.extend(plain.tokens.windows(2).map(|pair| (pair[0], pair[1])));
        }
        let folder = tempfile::tempdir().unwrap();
        let comma = engines.encode(",")[0];
        let longest = matrix.draft_lens.iter().copied().max().unwrap() as u32;
        let target = &engines.0[0].1;
        let files = [("dflash", None), ("dspark", Some(&bigrams[..]))];
        for (name, bigrams) in files {
            write_random_drafter(&folder.path().join(name), target, longest, comma, bigrams);
        }
        let load = |target: &Target| -> Vec<(&'static str, Arc<dyn Drafter>)> {
            files
                .iter()
                .map(|&(name, _)| {
                    let path = folder.path().join(name);
                    let drafter = BlockDrafter::load(&path, target, &BlockOptions::default()).unwrap();
                    assert_eq!((drafter.kind(), drafter.draft_len()), (name, longest as usize));
                    (name, Arc::new(drafter) as Arc<dyn Drafter>)
                })
                .collect()
        };
        let drafters = engines.0.iter().map(|(_, target)| load(target)).collect();
        Self { folder, drafters }
    }

    /// The drafters for the engine of a run.
    fn of(&self, number: usize) -> Vec<(&'static str, Arc<dyn Drafter>)> {
        assert!(self.folder.path().exists(), "the files are mapped");
        self.drafters[number % self.drafters.len()].clone()
    }
}

/// What the matrix has seen.
#[derive(Default)]
struct Report {
    generations: usize,
    tokens: usize,
    // (draft length, kept drafts) of steps that proposed a whole draft -> steps.
    lengths: BTreeMap<(usize, usize), u64>,
    // Drafts and kept drafts of each kind of drafter.
    kinds: BTreeMap<&'static str, (u64, u64)>,
}

impl Report {
    fn kept_by(&mut self, kind: &'static str, counters: &Counters) {
        let (drafted, accepted) = self.kinds.entry(kind).or_default();
        *drafted += counters.drafted;
        *accepted += counters.accepted;
    }

    fn take(&mut self, told: &Generation, plain: &Generation, draft_len: usize, what: &str) {
        let fork = told.tokens.iter().zip(&plain.tokens).position(|(a, b)| a != b);
        assert_eq!(fork, None, "a token differs: {what}");
        assert_eq!(told.tokens.len(), plain.tokens.len(), "{what}");
        assert_eq!((&told.identity, &told.text), (&plain.identity, &plain.text), "{what}");
        self.generations += 1;
        self.tokens += told.tokens.len();
        let counters = &told.draft.counters;
        let mut kept = counters.proposed_at.first().copied().unwrap_or(0);
        for (length, &more) in counters.accepted_at.iter().enumerate() {
            *self.lengths.entry((draft_len, length)).or_default() += kept - more;
            kept = more;
        }
        *self.lengths.entry((draft_len, draft_len)).or_default() += kept;
    }
}

fn drafters(script: &[u32], vocab: usize, draft_len: usize, seed: u64) -> Vec<(&'static str, Arc<dyn Drafter>)> {
    let ngram = Ngram::new(NgramConfig { draft_len, min_n: 1, ..NgramConfig::default() }).unwrap();
    let scripted = |rate: f64| Arc::new(Scripted::new(script, &vec![rate; draft_len], vocab, seed)) as Arc<dyn Drafter>;
    // Half of all drafts right ends a long draft early, so the mostly right one reaches the long lengths.
    vec![
        ("ngram", Arc::new(ngram)),
        ("cheating", scripted(1.0)),
        ("half right", scripted(0.5)),
        ("mostly right", scripted(0.85)),
        ("always wrong", scripted(0.0)),
    ]
}

fn check_drafter(kind: &str, counters: &Counters, what: &str) {
    match kind {
        "cheating" => assert!(counters.accepted == counters.drafted && counters.drafted > 0, "{what}: {counters:?}"),
        "always wrong" => assert!(counters.accepted == 0 && counters.drafted > 0, "{what}: {counters:?}"),
        _ => {}
    }
}

fn run(matrix: &Matrix) -> Report {
    let engines = Engines::load();
    let vocab = engines.0[0].0.engine.program().vocab_size;
    let blocks = Blocks::write(&engines, matrix);
    let mut report = Report::default();
    let mut number = 0;
    for &prompt in &matrix.prompts {
        let tokens = engines.encode(PROMPTS[prompt]);
        for sampling in &matrix.samplings {
            let options = GenerateOptions {
                sampling: SamplingParams { stream: prompt as u64, ..sampling.clone() },
                max_tokens: Some(matrix.tokens),
                ..GenerateOptions::default()
            };
            let plain = engines.session(1, None).generate(&tokens, &options, &mut Silent, None).unwrap();
            assert_eq!((plain.tokens.len(), plain.draft.status), (matrix.tokens, DraftStatus::None));
            let script = [&tokens[..], &plain.tokens].concat();
            for &draft_len in &matrix.draft_lens {
                let scripted = drafters(&script, vocab, draft_len, number as u64);
                for index in 0..scripted.len() + 2 {
                    // A block drafter belongs to the engine whose turn it is.
                    let (kind, drafter) = match scripted.get(index) {
                        Some(drafter) => drafter.clone(),
                        None => blocks.of(number)[index - scripted.len()].clone(),
                    };
                    let prefill_rows = [None, Some(1), Some(5), Some(17)][number / 3 % 4];
                    let options = GenerateOptions { prefill_rows, draft_n_max: Some(draft_len), ..options.clone() };
                    let what = format!("{kind}, prompt {prompt}, draft length {draft_len}, run {number}, {options:?}");
                    let mut session = engines.session(number, Some(drafter));
                    let told = session.generate(&tokens, &options, &mut Silent, None).unwrap();
                    report.take(&told, &plain, draft_len, &what);
                    check_drafter(kind, &told.draft.counters, &what);
                    report.kept_by(kind, &told.draft.counters);
                    number += 1;
                }
            }
        }
        println!("prompt {prompt}: {} generations, {} tokens", report.generations, report.tokens);
    }
    if matrix.long_context > 0 {
        long_contexts(&engines, &blocks, matrix, &mut report);
    }
    report
}

/// Contexts beyond two thousand tokens. Each session keeps its prompt between generations, so prefixes are reused too.
fn long_contexts(engines: &Engines, blocks: &Blocks, matrix: &Matrix, report: &mut Report) {
    let vocab = engines.0[0].0.engine.program().vocab_size;
    let text: String = (0..).take(200).map(|i| format!("{} {}\n", PROMPTS[2], i * 7919 % 1000)).collect();
    let mut tokens = engines.encode(&text);
    tokens.truncate(matrix.long_context);
    assert_eq!(tokens.len(), matrix.long_context);
    let options: Vec<GenerateOptions> = [sampling(0.0), penalised(0.3), truncated(1.0), sampling(2.0)]
        .into_iter()
        .map(|sampling| GenerateOptions { sampling, max_tokens: Some(matrix.tokens), ..GenerateOptions::default() })
        .collect();
    let mut plain_session = engines.session(1, None);
    let plain: Vec<Generation> =
        options.iter().map(|o| plain_session.generate(&tokens, o, &mut Silent, None).unwrap()).collect();
    for (number, rows) in [None, Some(64)].into_iter().enumerate() {
        for (options, plain) in options.iter().zip(&plain) {
            let script = [&tokens[..], &plain.tokens].concat();
            let scripted = drafters(&script, vocab, 8, 3).into_iter().skip(number).step_by(2);
            // The session's number decides on which engine it runs.
            for (kind, drafter) in scripted.chain(blocks.of(2 + number)) {
                let options = GenerateOptions { prefill_rows: rows, draft_n_max: Some(8), ..options.clone() };
                let what = format!("{kind} after {} tokens, {options:?}", tokens.len());
                let mut session = engines.session(2 + number, Some(drafter));
                let told = session.generate(&tokens, &options, &mut Silent, None).unwrap();
                report.take(&told, plain, 8, &what);
                check_drafter(kind, &told.draft.counters, &what);
                // Again on the same session: everything but the last token of the prompt is reused.
                let again = session.generate(&tokens, &options, &mut Silent, None).unwrap();
                report.take(&again, plain, 8, &format!("again: {what}"));
            }
        }
        println!("long contexts: {} generations, {} tokens", report.generations, report.tokens);
    }
}

#[test]
fn speculation_never_changes_a_token_of_a_real_model() {
    let full = std::env::var("DRAFTGAUGE_IDENTITY").is_ok_and(|value| value == "full");
    let matrix = if full { Matrix::full() } else { Matrix::part() };
    let start = Instant::now();
    let report = run(&matrix);
    let mut lengths: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    report.lengths.iter().for_each(|(&(draft_len, _), &steps)| lengths.entry(draft_len).or_default().push(steps));
    println!(
        "{} generations, {} tokens, none different, in {:.0} s; steps by draft length and kept drafts: {lengths:?}",
        report.generations,
        report.tokens,
        start.elapsed().as_secs_f64()
    );
    println!("drafted and kept by each kind: {:?}", report.kinds);
    for kind in ["dflash", "dspark"] {
        let (drafted, accepted) = report.kinds[kind];
        assert!(0 < accepted && accepted < drafted, "{kind}: {accepted} of {drafted}");
    }
    if full {
        assert!(report.generations >= 1000, "{}", report.generations);
        for ((draft_len, kept), steps) in report.lengths {
            assert!(steps >= 20, "{kept} of {draft_len} drafts were kept in {steps} steps only");
        }
    }
}

/// E11 on the real model: its own stop token ends the output at the same place with any drafter.
#[test]
fn e11_the_models_stop_token_ends_every_output_at_the_same_place() {
    let engines = Engines::load();
    let (mut model, target) = (engines.0[1].0.clone(), &engines.0[1].1);
    model.eog = target.tokenizer().eog().to_vec();
    let prompt = engines.encode("<|im_start|>user\nSay only the word yes.<|im_end|>\n<|im_start|>assistant\n");
    let options = GenerateOptions { max_tokens: Some(60), ..GenerateOptions::default() };
    let free = engines.session(1, None).generate(&prompt, &options, &mut Silent, None).unwrap();
    let plain = Session::new(model.clone(), None).unwrap().generate(&prompt, &options, &mut Silent, None).unwrap();
    assert_eq!(plain.finish_reason.as_str(), "stop", "{}", plain.text);
    assert!(model.eog.contains(plain.tokens.last().unwrap()));
    let script = [&prompt[..], &free.tokens].concat();
    for draft_len in [3, 8] {
        for (kind, drafter) in drafters(&script, target.tokenizer().vocab_size(), draft_len, 0) {
            let mut session = Session::new(model.clone(), Some(drafter)).unwrap();
            let told = session.generate(&prompt, &options, &mut Silent, None).unwrap();
            assert_eq!((&told.tokens, &told.text), (&plain.tokens, &plain.text), "{kind}");
        }
    }
}
