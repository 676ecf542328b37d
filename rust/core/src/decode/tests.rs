use std::sync::Arc;

use super::*;
use crate::drafters::{Drafter, Ngram, NgramConfig};
use crate::program::TapPoint;
use crate::sampling::SamplingParams;
use crate::session::SessionModel;
use crate::testing::{Fault, Scripted, fake_model, mix};
use proptest::prelude::*;

const VOCAB: usize = 61;

fn model(seed: u64) -> SessionModel {
    fake_model(VOCAB, seed, 512, 1, &[])
}

fn run(
    model: SessionModel,
    drafter: Option<Arc<dyn Drafter>>,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Generation {
    Session::new(model, drafter).unwrap().generate(prompt, options, &mut Silent, None).unwrap()
}

fn prompt(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u64).map(|i| (mix(seed ^ i << 8) % VOCAB as u64) as u32).collect()
}

fn script(prompt: &[u32], plain: &Generation) -> Vec<u32> {
    prompt.iter().chain(&plain.tokens).copied().collect()
}

fn sampled(temperature: f64, seed: u64) -> GenerateOptions {
    let sampling = SamplingParams { temperature, seed, ..SamplingParams::default() };
    GenerateOptions { sampling, max_tokens: Some(40), ..GenerateOptions::default() }
}

/// Plain, truncated, penalised and biased variants of one temperature.
fn variants(temperature: f64, seed: u64) -> Vec<SamplingParams> {
    let plain = SamplingParams { temperature, seed, ..SamplingParams::default() };
    vec![
        plain.clone(),
        SamplingParams { top_k: 12, top_p: 0.9, min_p: 0.02, ..plain.clone() },
        SamplingParams {
            repeat_penalty: 1.3,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            repeat_last_n: 16,
            ..plain.clone()
        },
        SamplingParams {
            top_p: 0.95,
            repeat_penalty: 1.1,
            repeat_last_n: -1,
            logit_bias: vec![(3, 1.5), (5, -2.0)],
            ..plain
        },
    ]
}

/// Counts how many drafts each step kept, by how many it proposed.
#[derive(Default)]
struct Lengths(Vec<u64>);

impl Lengths {
    fn take(&mut self, counters: &Counters) {
        // Steps that kept exactly n = steps that kept position n - 1 less those that kept position n.
        self.0.resize(self.0.len().max(counters.accepted_at.len() + 1), 0);
        let mut kept = counters.steps;
        for (n, &more) in counters.accepted_at.iter().enumerate() {
            self.0[n] += kept - more;
            kept = more;
        }
        self.0[counters.accepted_at.len()] += kept;
    }
}

/// The lossless law on a fake target: thousands of generations, no token different, every accept length seen.
#[test]
fn speculation_never_changes_a_token() {
    let (mut generations, mut lengths) = (0, vec![Lengths::default(), Lengths::default(), Lengths::default()]);
    for (trial, temperature) in [0.0, 0.3, 1.0, 2.0].into_iter().cycle().take(64).enumerate() {
        let seed = mix(trial as u64);
        let prompt = prompt(seed, 1 + trial % 23);
        for (variant, sampling) in variants(temperature, seed).into_iter().enumerate() {
            let options = GenerateOptions { sampling, max_tokens: Some(48), ..GenerateOptions::default() };
            let eog = [(trial % 60) as u32, 17];
            let model = |slots| fake_model(VOCAB, seed, 90, slots, if variant % 2 == 0 { &[] } else { &eog });
            let plain = run(model(1), None, &prompt, &options);
            assert_eq!(plain.draft.status, DraftStatus::None);
            let script = script(&prompt, &plain);
            for (which, draft_len) in [1, 4, 8].into_iter().enumerate() {
                let scripted = |rate: f64| Scripted::new(&script, &vec![rate; draft_len], VOCAB, seed);
                let drafters: Vec<Arc<dyn Drafter>> = vec![
                    Arc::new(Ngram::new(NgramConfig { draft_len, min_n: 1, ..NgramConfig::default() }).unwrap()),
                    Arc::new(scripted(1.0)),
                    Arc::new(scripted(0.5).with_skip(5)),
                    Arc::new(scripted(0.8)),
                    Arc::new(scripted(0.0)),
                    Arc::new(scripted(0.9).with_taps(&[TapPoint::Layer(1), TapPoint::Final])),
                ];
                for (kind, drafter) in drafters.into_iter().enumerate() {
                    let rows = [None, Some(1), Some(3), Some(7)][(trial + kind) % 4];
                    let options = GenerateOptions { prefill_rows: rows, ..options.clone() };
                    let slots = 1 + (trial + kind) % 3;
                    let mut session = Session::on_slot(model(slots), Some(drafter), slots - 1).unwrap();
                    let told = session.generate(&prompt, &options, &mut Silent, None).unwrap();
                    assert_eq!(told.tokens, plain.tokens, "drafter {kind}, draft_len {draft_len}, {options:?}");
                    assert_eq!(told.text, plain.text);
                    assert_eq!(told.finish_reason, plain.finish_reason);
                    assert_eq!(told.identity, plain.identity);
                    let counters = &told.draft.counters;
                    assert_eq!(counters.accepted + counters.bonus + 1, told.tokens.len() as u64);
                    assert_eq!(counters.proposed_at.iter().sum::<u64>(), counters.drafted);
                    assert_eq!(counters.accepted_at.iter().sum::<u64>(), counters.accepted);
                    match kind {
                        1 if draft_len < 8 || counters.drafted > 0 => {
                            let ended_early = told.finish_reason == FinishReason::Stop;
                            assert!(ended_early || counters.accepted == counters.drafted, "{counters:?}");
                        }
                        4 => assert_eq!(counters.accepted, 0),
                        _ => {}
                    }
                    // The session holds what it told, and the cache no row beyond it.
                    assert_eq!(session.tokens()[prompt.len()..], told.tokens);
                    assert!(
                        session.cached() <= session.tokens().len() && session.cached() + 1 >= session.tokens().len()
                    );
                    lengths[which].take(counters);
                    generations += 1;
                }
            }
        }
    }
    assert!(generations >= 4000, "{generations}");
    for (lengths, draft_len) in lengths.iter().zip([1, 4, 8]) {
        assert_eq!(lengths.0.len(), draft_len + 1);
        assert!(lengths.0.iter().all(|&count| count >= 20), "{:?}", lengths.0);
    }
}

#[test]
fn a_cheating_drafter_is_always_accepted() {
    for temperature in [0.0, 0.3, 1.0, 2.0] {
        let prompt = prompt(3, 9);
        let options = GenerateOptions { max_tokens: Some(200), ..sampled(temperature, 5) };
        let plain = run(model(2), None, &prompt, &options);
        let cheat = Scripted::new(&script(&prompt, &plain), &[1.0; 7], VOCAB, 0);
        let told = run(model(2), Some(Arc::new(cheat)), &prompt, &options);
        assert_eq!(told.tokens, plain.tokens);
        assert_eq!(told.draft.counters.accepted, told.draft.counters.drafted);
        assert_eq!(told.draft.counters.steps, 25); // 199 tokens after the first, eight a step.
    }
}

/// A step by hand, with the verifier given: the harness that E03 breaks on purpose.
fn generate_with(
    verifier: impl Fn(&DraftTree, &[u32]) -> Outcome,
    drafter: Arc<dyn Drafter>,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Vec<u32> {
    let mut session = Session::new(model(4), Some(drafter)).unwrap();
    let mut run = Run::new(&session, options, prompt.len()).unwrap();
    let head = run.first_head();
    session.prefill(prompt, None, head, &mut Silent, &mut Vec::new()).unwrap();
    let root = DraftTree::chain(&prompt[prompt.len() - 1..]).unwrap();
    let first = session.choose(&root, head.unwrap(), &mut run).unwrap()[0].token;
    session.push_anchor(first);
    run.tokens.push(first);
    while run.tokens.len() < options.max_tokens.unwrap() {
        let (tree, _) = session.propose(&mut run);
        let choices: Vec<u32> = session.verify_pass(&tree, &mut run).unwrap().iter().map(|c| c.token).collect();
        let kept = run.keep_outcome(&tree, verifier(&tree, &choices));
        session.commit(&tree, &kept.path, kept.bonus, &mut Vec::new()).unwrap();
    }
    run.tokens
}

#[test]
fn e03_a_verifier_that_accepts_always_is_caught() {
    let prompt = prompt(8, 12);
    for temperature in [0.0, 1.0] {
        let options = GenerateOptions { max_tokens: Some(60), ..sampled(temperature, 1) };
        let plain = run(model(4), None, &prompt, &options);
        let drafter: Arc<dyn Drafter> = Arc::new(Scripted::new(&script(&prompt, &plain), &[0.7; 5], VOCAB, 9));
        let right = generate_with(|t, c| accept_greedy(t, c).unwrap(), Arc::clone(&drafter), &prompt, &options);
        assert_eq!(right, plain.tokens, "the harness itself must be right");
        let always = |tree: &DraftTree, choices: &[u32]| Outcome {
            path: (1..tree.len()).collect(),
            accepted: tree.len() - 1,
            bonus: choices[tree.len() - 1],
        };
        assert_ne!(generate_with(always, Arc::clone(&drafter), &prompt, &options), plain.tokens);
        // Accepting one draft more than is right is enough.
        let one_more = |tree: &DraftTree, choices: &[u32]| {
            let outcome = accept_greedy(tree, choices).unwrap();
            let next = outcome.accepted + 1;
            if next < tree.len() {
                Outcome { path: (1..=next).collect(), accepted: next, bonus: choices[next] }
            } else {
                outcome
            }
        };
        assert_ne!(generate_with(one_more, drafter, &prompt, &options), plain.tokens);
    }
}

#[test]
fn e11_nothing_follows_a_stop_token_in_an_accepted_draft() {
    let prompt = prompt(1, 6);
    for temperature in [0.0, 1.0] {
        let free = run(model(7), None, &prompt, &sampled(temperature, 2));
        for stop_at in 0..12 {
            // Two stop tokens; the first one to appear ends the output, whichever it is.
            let eog = [free.tokens[stop_at], free.tokens[stop_at + 9]];
            let end = free.tokens.iter().position(|token| eog.contains(token)).unwrap();
            let with_eog = || fake_model(VOCAB, 7, 512, 1, &eog);
            let plain = run(with_eog(), None, &prompt, &sampled(temperature, 2));
            assert_eq!(plain.tokens, free.tokens[..=end]);
            assert_eq!(plain.finish_reason, FinishReason::Stop);
            // A drafter that knows the unstopped text drafts past the stop.
            for draft_len in 1..9 {
                let cheat = Scripted::new(&script(&prompt, &free), &vec![1.0; draft_len], VOCAB, 0);
                let told = run(with_eog(), Some(Arc::new(cheat)), &prompt, &sampled(temperature, 2));
                assert_eq!((&told.tokens, &told.text), (&plain.tokens, &plain.text));
                let counters = &told.draft.counters;
                assert_eq!(1 + counters.accepted + counters.bonus, told.tokens.len() as u64);
            }
        }
    }
}

#[test]
fn e11_a_rejected_stop_token_does_not_stop() {
    let prompt = prompt(2, 6);
    let free = run(model(7), None, &prompt, &sampled(0.0, 0));
    let eog = (0..VOCAB as u32).find(|token| !free.tokens.contains(token)).unwrap();
    let model = fake_model(VOCAB, 7, 512, 1, &[eog]);
    let drafter = Scripted::new(&vec![eog; 100], &[1.0; 4], VOCAB, 0);
    let told = run(model, Some(Arc::new(drafter)), &prompt, &sampled(0.0, 0));
    assert_eq!(told.tokens, free.tokens);
}

#[test]
fn e11_a_stop_token_at_once_gives_no_text() {
    let prompt = prompt(2, 6);
    let free = run(model(7), None, &prompt, &sampled(0.0, 0));
    let told = run(fake_model(VOCAB, 7, 512, 1, &free.tokens[..1]), None, &prompt, &sampled(0.0, 0));
    assert_eq!((told.tokens.len(), told.text.as_str(), told.finish_reason), (1, "", FinishReason::Stop));
    assert_eq!(told.draft.counters.steps, 0);
}

#[test]
fn ignore_eos_bans_the_stop_tokens() {
    let prompt = prompt(2, 6);
    let free = run(model(7), None, &prompt, &sampled(0.0, 0));
    let model = || fake_model(VOCAB, 7, 512, 1, &free.tokens[1..3]);
    let options = GenerateOptions { ignore_eos: true, ..sampled(0.0, 0) };
    let plain = run(model(), None, &prompt, &options);
    assert_eq!((plain.tokens.len(), plain.finish_reason), (40, FinishReason::Length));
    assert!(!plain.tokens.iter().any(|token| free.tokens[1..3].contains(token)));
    let ngram = Arc::new(Ngram::new(NgramConfig::default()).unwrap());
    assert_eq!(run(model(), Some(ngram), &prompt, &options).tokens, plain.tokens);
}

/// Chunks joined are the text, whatever the step borders, and a stop string ends it before itself.
#[test]
fn stop_strings_end_the_same_text_with_any_draft() {
    struct Joined(String, Vec<u32>);
    impl Observer for Joined {
        fn chunk(&mut self, chunk: &Chunk<'_>) -> Result<()> {
            self.0.push_str(chunk.text);
            self.1.extend_from_slice(chunk.tokens);
            assert!(chunk.accepted_bytes <= chunk.text.len() && chunk.num_accepted <= chunk.tokens.len());
            Ok(())
        }
    }
    for seed in 0..40 {
        let prompt = prompt(seed, 5);
        let free = run(model(seed), None, &prompt, &sampled(1.0, seed));
        let chars: Vec<char> = free.text.chars().collect();
        let from = (seed as usize * 3) % (chars.len() - 4);
        let stop: String = chars[from..from + 3].iter().collect();
        let options = GenerateOptions { stop: vec![stop.clone(), "never".to_owned()], ..sampled(1.0, seed) };
        let plain = run(model(seed), None, &prompt, &options);
        assert_eq!(plain.text, free.text[..free.text.find(&stop).unwrap()]);
        assert_eq!(plain.finish_reason, FinishReason::Stop);
        assert!(free.tokens.starts_with(&plain.tokens));
        for draft_len in [1, 3, 8] {
            let cheat = Scripted::new(&script(&prompt, &free), &vec![1.0; draft_len], VOCAB, 0);
            let mut joined = Joined(String::new(), Vec::new());
            let mut session = Session::new(model(seed), Some(Arc::new(cheat))).unwrap();
            let told = session.generate(&prompt, &options, &mut joined, None).unwrap();
            assert_eq!((&told.tokens, &told.text), (&plain.tokens, &plain.text));
            assert_eq!((&joined.0, &joined.1), (&told.text, &told.tokens));
        }
    }
}

#[test]
fn lengths_at_the_edges() {
    let prompt = prompt(5, 4);
    let cheat = |len| -> Option<Arc<dyn Drafter>> {
        let free = run(model(1), None, &prompt, &sampled(0.0, 0));
        Some(Arc::new(Scripted::new(&script(&prompt, &free), &vec![1.0; len], VOCAB, 0)))
    };
    for max_tokens in 0..20 {
        let options = GenerateOptions { max_tokens: Some(max_tokens), ..sampled(0.0, 0) };
        for drafter in [None, cheat(3), cheat(8)] {
            let told = run(model(1), drafter, &prompt, &options);
            assert_eq!((told.tokens.len(), told.finish_reason), (max_tokens, FinishReason::Length));
            // A draft is never longer than what is left, less the bonus, so nothing is thrown away.
            let counters = &told.draft.counters;
            assert_eq!(counters.accepted, counters.drafted);
        }
    }
}

#[test]
fn an_empty_prompt_begins_with_bos() {
    let told = run(model(1), None, &[], &sampled(0.0, 0));
    assert_eq!(told.prompt_tokens, [1]);
    assert_eq!(told.tokens, run(model(1), None, &[1], &sampled(0.0, 0)).tokens);
    let without = SessionModel { bos: None, ..model(1) };
    let error = Session::new(without, None).unwrap().generate(&[], &sampled(0.0, 0), &mut Silent, None).unwrap_err();
    assert!(matches!(error, Error::Argument(_)) && error.to_string().contains("prompt"), "{error}");
}

#[test]
fn a_full_context_ends_with_length_and_a_notice() {
    for drafter_len in [0, 1, 5, 8] {
        for prompt_len in [1, 7, 19, 20] {
            let prompt = prompt(4, prompt_len);
            let model = || fake_model(VOCAB, 3, 20, 1, &[]);
            let options = GenerateOptions { max_tokens: None, ..sampled(0.0, 0) };
            let plain = run(model(), None, &prompt, &options);
            assert_eq!(plain.tokens.len() + prompt_len, 20);
            assert_eq!(plain.finish_reason, FinishReason::Length);
            assert_eq!(plain.notices, ["the context of 20 tokens is full"]);
            if drafter_len > 0 {
                let cheat = Scripted::new(&script(&prompt, &plain), &vec![1.0; drafter_len], VOCAB, 0);
                assert_eq!(run(model(), Some(Arc::new(cheat)), &prompt, &options).tokens, plain.tokens);
            }
        }
    }
    let mut session = Session::new(fake_model(VOCAB, 3, 20, 1, &[]), None).unwrap();
    let error = session.generate(&prompt(4, 21), &sampled(0.0, 0), &mut Silent, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the prompt is longer than the context: prompt: expected at most 20 tokens, found 21"
    );
}

#[test]
fn a_token_outside_the_vocabulary_is_an_error() {
    let mut session = Session::new(model(1), None).unwrap();
    let error = session.generate(&[1, 61], &sampled(0.0, 0), &mut Silent, None).unwrap_err();
    assert!(matches!(error, Error::Argument(_)) && error.to_string().contains("found 61"), "{error}");
}

#[test]
fn a_drafter_that_fails_halfway_leaves_plain_decoding() {
    let prompt = prompt(6, 10);
    for fault in [Fault::Error, Fault::Token, Fault::Length, Fault::Parents, Fault::Observe] {
        for temperature in [0.0, 1.0] {
            let options = sampled(temperature, 3);
            let plain = run(model(9), None, &prompt, &options);
            let drafter = Scripted::new(&script(&prompt, &plain), &[0.6; 4], VOCAB, 1).with_fault(4, fault);
            let mut session = Session::new(model(9), Some(Arc::new(drafter))).unwrap();
            let told = session.generate(&prompt, &options, &mut Silent, None).unwrap();
            assert_eq!(told.tokens, plain.tokens, "{fault:?}");
            assert_eq!(told.notices.len(), 1, "{fault:?}: {:?}", told.notices);
            assert!(told.notices[0].starts_with("the scripted drafter failed and decoding goes on without it: "));
            assert_eq!(told.draft.status, DraftStatus::Active);
            // The next turn gives it another chance.
            let again: Vec<u32> = session.tokens().to_vec();
            let next = session.generate(&again, &options, &mut Silent, None).unwrap();
            assert_eq!(next.tokens, run(model(9), None, &again, &options).tokens);
        }
    }
}

#[test]
fn a_drafter_without_proposals_is_inactive() {
    let prompt = prompt(6, 10);
    let drafter = Scripted::new(&[], &[1.0; 4], VOCAB, 1);
    let told = run(model(9), Some(Arc::new(drafter)), &prompt, &sampled(0.0, 3));
    assert_eq!(told.draft.status, DraftStatus::Inactive);
    assert_eq!(told.notices, ["the scripted drafter proposed nothing in 39 steps"]);
    assert_eq!(told.draft.counters.proposed_at, [0; 4]);
}

#[test]
fn a_draft_limit_above_the_drafters_is_said() {
    let prompt = prompt(6, 10);
    let ngram = || -> Option<Arc<dyn Drafter>> { Some(Arc::new(Ngram::new(NgramConfig::default()).unwrap())) };
    let options = GenerateOptions { draft_n_max: Some(12), ..sampled(0.0, 0) };
    let told = run(model(9), ngram(), &prompt, &options);
    assert_eq!(told.notices[0], "draft_n_max 12 is more than the drafter's draft length: 8 is used");
    let options = GenerateOptions { draft_n_max: Some(3), ..sampled(0.0, 0) };
    assert_eq!(run(model(9), ngram(), &prompt, &options).draft.counters.proposed_at.len(), 3);
}

#[test]
fn an_interruption_keeps_what_there_is() {
    struct After(usize);
    impl Observer for After {
        fn pause(&mut self) -> Result<()> {
            self.0 = self.0.checked_sub(1).ok_or(Error::Interrupted)?;
            Ok(())
        }
    }
    let prompt = prompt(6, 10);
    let plain = run(model(9), None, &prompt, &sampled(0.0, 0));
    for steps in 0..5 {
        let mut session = Session::new(model(9), None).unwrap();
        let told = session.generate(&prompt, &sampled(0.0, 0), &mut After(steps), None).unwrap();
        assert_eq!(told.finish_reason, FinishReason::Interrupted);
        assert_eq!(told.tokens, plain.tokens[..=steps]);
        // The session goes on from there.
        let so_far = session.tokens().to_vec();
        let rest = session.generate(&so_far, &sampled(0.0, 0), &mut Silent, None).unwrap();
        assert_eq!(rest.tokens[..10], plain.tokens[steps + 1..steps + 11]);
    }
}

#[test]
fn an_interrupted_prompt_gives_nothing_and_is_taken_up_again() {
    struct At(usize);
    impl Observer for At {
        fn prefill(&mut self, done: usize, total: usize) -> Result<()> {
            assert_eq!(total, 30);
            if done >= self.0 { Err(Error::Interrupted) } else { Ok(()) }
        }
    }
    let prompt = prompt(6, 30);
    let options = GenerateOptions { prefill_rows: Some(4), ..sampled(0.0, 0) };
    let mut session = Session::new(model(9), None).unwrap();
    let told = session.generate(&prompt, &options, &mut At(13), None).unwrap();
    assert_eq!((told.finish_reason, told.tokens.len(), session.cached()), (FinishReason::Interrupted, 0, 16));
    let told = session.generate(&prompt, &options, &mut Silent, None).unwrap();
    assert_eq!(told.tokens, run(model(9), None, &prompt, &options).tokens);
}

#[test]
fn a_zero_length_only_runs_the_prompt() {
    let prompt = prompt(6, 30);
    let options = GenerateOptions { max_tokens: Some(0), ..sampled(0.0, 0) };
    let mut session = Session::new(model(9), None).unwrap();
    let told = session.generate(&prompt, &options, &mut Silent, None).unwrap();
    assert_eq!((told.finish_reason, told.tokens.len(), session.cached()), (FinishReason::Length, 0, 30));
}

#[test]
fn an_empty_stop_string_is_an_error() {
    let options = GenerateOptions { stop: vec![String::new()], ..GenerateOptions::default() };
    let error = Session::new(model(1), None).unwrap().generate(&[1], &options, &mut Silent, None).unwrap_err();
    assert!(matches!(error, Error::Argument(_)));
}

proptest! {
    /// Turns of a conversation on one session, cut and continued at random, equal fresh sessions every time.
    #[test]
    fn turns_on_one_session_equal_fresh_sessions(
        seed in 0_u64..1000, cuts in prop::collection::vec((0_usize..60, prop::collection::vec(0_u32..61, 0..6)), 1..6),
        temperature in prop_oneof![Just(0.0), Just(1.0)], taps: bool,
    ) {
        let options = GenerateOptions { max_tokens: Some(20), ..sampled(temperature, seed) };
        let ngram: Arc<dyn Drafter> = Arc::new(Ngram::new(NgramConfig::default()).unwrap());
        let wrong: Arc<dyn Drafter> =
            Arc::new(Scripted::new(&vec![3; 500], &[1.0; 3], VOCAB, 0).with_taps(&[TapPoint::Embeddings]));
        let mut session = Session::new(model(seed), Some(if taps { wrong } else { ngram })).unwrap();
        let mut text = prompt(seed, 8);
        for (cut, more) in cuts {
            let told = session.generate(&text, &options, &mut Silent, None).unwrap();
            prop_assert!(told.notices.iter().all(|notice| !notice.contains("failed")), "{:?}", told.notices);
            let fresh = run(model(seed), None, &text, &options);
            prop_assert_eq!(&told.tokens, &fresh.tokens);
            text.extend(told.tokens);
            text.truncate(text.len().saturating_sub(cut).max(1));
            if cut % 2 == 0 {
                session.truncate(text.len().min(session.tokens().len())).unwrap();
            }
            text.extend(more);
        }
    }

    /// Property 13: any schedule of draft lengths, nothing included, emits the plain stream.
    #[test]
    fn any_schedule_emits_the_plain_stream(
        seed in 0_u64..1000, rates in prop::collection::vec(0.0_f64..1.0, 1..10), skip in 0_usize..4, n_max in 0_usize..10,
        temperature in prop_oneof![Just(0.0), 0.1_f64..3.0],
    ) {
        let prompt = prompt(seed, 1 + seed as usize % 9);
        let options = sampled(temperature, seed);
        let plain = run(model(seed), None, &prompt, &options);
        let drafter = Scripted::new(&script(&prompt, &plain), &rates, VOCAB, seed).with_skip(skip);
        let options = GenerateOptions { draft_n_max: Some(n_max), ..options };
        prop_assert_eq!(run(model(seed), Some(Arc::new(drafter)), &prompt, &options).tokens, plain.tokens);
    }
}

/// Property 14: streams differ from one another, and each is what it is alone.
#[test]
fn streams_are_different_and_reproducible() {
    let prompt = prompt(1, 5);
    let of = |stream| {
        let sampling = SamplingParams { temperature: 1.0, stream, ..SamplingParams::default() };
        run(model(1), None, &prompt, &GenerateOptions { sampling, max_tokens: Some(30), ..GenerateOptions::default() })
            .tokens
    };
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
}

#[test]
fn identity_is_the_sha256_of_little_endian_ids() {
    // printf '\x01\x00\x00\x00\x00\x01\x00\x00' | sha256sum
    assert_eq!(identity(&[1, 256]), "242045e2f1bb37769b514f182fd91b3d215324cb57f187cced1e9c62921dbac3");
    assert_eq!(identity(&[]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}
