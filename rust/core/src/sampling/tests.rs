use super::*;
use proptest::prelude::*;

fn sampler(params: SamplingParams, vocab: usize) -> Sampler {
    Sampler::new(params, vocab).unwrap()
}

/// The same by sorting everything and evaluating every logarithm.
fn slow_choice(params: &SamplingParams, logits: &[f32], position: u32, history: &[u32]) -> u32 {
    let mut row = logits.to_vec();
    for &token in &params.banned {
        row[token as usize] = f32::NEG_INFINITY;
    }
    for &(token, bias) in &params.logit_bias {
        row[token as usize] += bias;
    }
    let window = if params.repeat_last_n < 0 { history.len() } else { params.repeat_last_n as usize };
    let recent = &history[history.len() - window.min(history.len())..];
    for (token, value) in row.iter_mut().enumerate() {
        let count = recent.iter().filter(|&&t| t as usize == token).count();
        if count > 0 {
            *value = if *value <= 0.0 { *value * params.repeat_penalty } else { *value / params.repeat_penalty };
            *value -= count as f32 * params.frequency_penalty + params.presence_penalty;
        }
    }
    let mut order: Vec<usize> = (0..row.len()).filter(|&id| row[id] != f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
    if params.temperature == 0.0 {
        return order[0] as u32;
    }
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let max = f64::from(row[order[0]]);
    let weight = |id: usize| if f64::from(row[id]) - max < -700.0 { 0.0 } else { exact::exp(f64::from(row[id]) - max) };
    if params.top_p < 1.0 {
        let total: f64 = (0..row.len()).filter(|id| order.contains(id)).fold(0.0, |sum, id| sum + weight(id));
        let mut sum = 0.0;
        let keep = order.iter().take_while(|&&id| {
            let open = sum == 0.0 || sum < params.top_p * total;
            sum += weight(id);
            open
        });
        let keep = keep.count();
        order.truncate(keep.max(1));
    }
    if params.min_p > 0.0 {
        order.retain(|&id| f64::from(row[id]) - max >= exact::ln(params.min_p));
    }
    let noise = Noise::new(params.seed, params.stream);
    let score = |id: usize| (f64::from(row[id]) - max) / params.temperature + noise.gumbel(position, id as u32);
    order.into_iter().reduce(|a, b| if score(b) > score(a) || (score(b) == score(a) && b < a) { b } else { a }).unwrap()
        as u32
}

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -8.0_f32..8.0,
        2 => (-3_i8..4).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
        1 => prop_oneof![Just(80.0), Just(-80.0), Just(0.0), Just(-0.0)],
    ]
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let law = (
        prop_oneof![Just(0.0), Just(0.3), Just(1.0), Just(2.0), 1e-3..1e3],
        prop_oneof![Just(0_usize), 1_usize..12],
        prop_oneof![Just(1.0), 0.0..1.0],
        prop_oneof![Just(0.0), 0.0..=1.0],
    );
    let penalties = (
        prop_oneof![Just(1.0_f32), 0.5_f32..2.0],
        prop_oneof![Just(0.0_f32), -1.0_f32..2.0],
        prop_oneof![Just(0.0_f32), -1.0_f32..2.0],
        -1_i64..6,
    );
    let edits = (
        prop::collection::vec((0_u32..8, -5.0_f32..5.0), 0..3),
        prop::collection::vec(0_u32..4, 0..3),
        any::<u64>(),
        any::<u64>(),
    );
    (law, penalties, edits).prop_map(|(law, penalties, edits)| SamplingParams {
        temperature: law.0,
        top_k: law.1,
        top_p: law.2,
        min_p: law.3,
        repeat_penalty: penalties.0,
        presence_penalty: penalties.1,
        frequency_penalty: penalties.2,
        repeat_last_n: penalties.3,
        logit_bias: edits.0,
        banned: edits.1,
        seed: edits.2,
        stream: edits.3,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn choice_agrees_with_the_slow_twin(
        params in params(), logits in prop::collection::vec(logit(), 8..90), position: u32,
        history in prop::collection::vec(0_u32..12, 0..9), split in 0_usize..9,
    ) {
        let mut logits = logits;
        logits[7] = 0.5; // At least one token that is neither banned nor -inf.
        let split = split.min(history.len());
        let view = History { committed: &history[..split], path: &history[split..] };
        let choice = sampler(params.clone(), logits.len()).choose(&logits, 0, position, view).unwrap();
        prop_assert_eq!(choice.token, slow_choice(&params, &logits, position, &history));
    }

    /// Property 12: padding the vocabulary with -inf changes nothing.
    #[test]
    fn padding_changes_nothing(params in params(), logits in prop::collection::vec(-5.0_f32..5.0, 8..40), pad in 1_usize..40) {
        let mut padded = logits.clone();
        padded.resize(logits.len() + pad, f32::NEG_INFINITY);
        let plain = sampler(params.clone(), logits.len()).choose(&logits, 0, 5, History::default()).unwrap();
        let wide = sampler(params, padded.len()).choose(&padded, 0, 5, History::default()).unwrap();
        prop_assert_eq!(plain, wide);
    }

    /// Property 16: warping keeps a subset, and warping what is left with the same top-k keeps all of it.
    #[test]
    fn truncation_keeps_a_subset_and_top_k_is_idempotent(
        params in params(), logits in prop::collection::vec(-5.0_f32..5.0, 8..40),
    ) {
        let params = SamplingParams { temperature: 1.0, top_p: 1.0, min_p: 0.0, banned: vec![], logit_bias: vec![], ..params };
        let mut once = sampler(params.clone(), logits.len());
        let first = once.log_weights(&logits, History::default()).unwrap();
        let left: Vec<f32> =
            first.iter().zip(&logits).map(|(w, &l)| if w.is_finite() { l } else { f32::NEG_INFINITY }).collect();
        let second = once.log_weights(&left, History::default()).unwrap();
        prop_assert_eq!(first, second);
    }

    /// Property 15: a temperature that is small enough chooses a unique argmax.
    #[test]
    fn a_small_temperature_approaches_greedy(seed: u64, position: u32, best in 0_usize..20) {
        let mut logits = vec![0.0; 20];
        logits[best] = 0.1;
        let params = SamplingParams { temperature: 1e-3, seed, ..SamplingParams::default() };
        let choice = sampler(params, 20).choose(&logits, 0, position, History::default()).unwrap();
        prop_assert_eq!(choice.token as usize, best);
    }

    #[test]
    fn top2_agrees_with_sorting(values in prop::collection::vec(logit(), 2..70)) {
        let Top2 { token, first, second } = Top2::of(&values);
        let mut sorted = values.clone();
        sorted.sort_by(|a, b| b.partial_cmp(a).unwrap());
        prop_assert_eq!((first, second), (sorted[0], sorted[1]));
        prop_assert_eq!(token as usize, values.iter().position(|&v| v == sorted[0]).unwrap());
    }
}

#[test]
fn ties_go_to_the_lowest_id() {
    let logits = [1.0, 3.0, 3.0, -0.0, 0.0];
    let choice = sampler(SamplingParams::default(), 5).choose(&logits, 0, 0, History::default()).unwrap();
    assert_eq!(choice, Choice { token: 1, margin: 0.0 });
    // Top-k of two among {-0, 0} at the boundary keeps the lower id.
    let params = SamplingParams { temperature: 1.0, top_k: 4, ..SamplingParams::default() };
    let weights = sampler(params, 5).log_weights(&logits, History::default()).unwrap();
    assert_eq!(weights.iter().map(|w| w.is_finite()).collect::<Vec<_>>(), [true, true, true, true, false]);
}

#[test]
fn a_logit_that_is_not_finite_names_its_row() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut logits = vec![0.0; 33];
        logits[20] = bad;
        for temperature in [0.0, 1.0] {
            let params = SamplingParams { temperature, ..SamplingParams::default() };
            let error = sampler(params, 33).choose(&logits, 6, 0, History::default()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("a logit is not finite: logits row 6, token 20: expected a finite number, found {bad}")
            );
        }
    }
}

#[test]
fn nothing_left_is_an_error() {
    let params = SamplingParams { banned: vec![0, 1], ..SamplingParams::default() };
    let error = sampler(params, 2).choose(&[1.0, 2.0], 3, 0, History::default()).unwrap_err();
    assert!(error.to_string().contains("logits row 3"));
    let params =
        SamplingParams { temperature: 1.0, logit_bias: vec![(0, f32::NEG_INFINITY)], ..SamplingParams::default() };
    assert!(sampler(params, 2).choose(&[1.0, f32::NEG_INFINITY], 0, 0, History::default()).is_err());
}

/// E16: an option that cannot be honoured is an error that names it, never silently greedy.
#[test]
fn e16_options_out_of_range_are_named() {
    let default = SamplingParams::default;
    let cases = [
        ("temperature", SamplingParams { temperature: -0.1, ..default() }),
        ("temperature", SamplingParams { temperature: f64::NAN, ..default() }),
        ("temperature", SamplingParams { temperature: f64::INFINITY, ..default() }),
        ("top_p", SamplingParams { top_p: 1.5, ..default() }),
        ("top_p", SamplingParams { top_p: f64::NAN, ..default() }),
        ("min_p", SamplingParams { min_p: -0.5, ..default() }),
        ("repeat_penalty", SamplingParams { repeat_penalty: 0.0, ..default() }),
        ("presence_penalty", SamplingParams { presence_penalty: f32::NAN, ..default() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: f32::INFINITY, ..default() }),
        ("repeat_last_n", SamplingParams { repeat_last_n: -2, ..default() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(10, 1.0)], ..default() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(1, f32::NAN)], ..default() }),
        ("banned", SamplingParams { banned: vec![10], ..default() }),
    ];
    for (option, params) in cases {
        let error = Sampler::new(params, 10).unwrap_err();
        assert!(matches!(error, Error::Argument(_)));
        assert!(error.to_string().contains(option), "{error}");
    }
}

#[test]
fn a_row_of_the_wrong_length_is_an_error() {
    assert!(sampler(SamplingParams::default(), 4).choose(&[0.0; 3], 0, 0, History::default()).is_err());
}

/// The window ends at the row, drafts included: the same token is chosen whether it was drafted or committed.
#[test]
fn penalties_follow_the_path() {
    let params = SamplingParams { frequency_penalty: 10.0, repeat_last_n: 2, ..SamplingParams::default() };
    let mut sampler = sampler(params, 3);
    let logits = [2.0, 1.9, 0.0];
    let choose = |sampler: &mut Sampler, committed: &[u32], path: &[u32]| {
        sampler.choose(&logits, 0, 0, History { committed, path }).unwrap().token
    };
    assert_eq!(choose(&mut sampler, &[0], &[]), 1);
    assert_eq!(choose(&mut sampler, &[], &[0]), 1);
    assert_eq!(choose(&mut sampler, &[0], &[1]), 2);
    assert_eq!(choose(&mut sampler, &[0, 1], &[2]), 0);
}

/// E14: with a deterministic draft, matching the keyed draw accepts with the target's own probability, and what is
/// emitted after a rejection follows the rest of the law: p = (.5, .3, .2), draft 1, over 1e6 positions.
#[test]
fn e14_matching_a_greedy_draft_keeps_the_law() {
    let logits: Vec<f32> = [0.5_f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
    let mut sampler = sampler(SamplingParams { temperature: 1.0, seed: 11, ..SamplingParams::default() }, 3);
    let trials = 1_000_000_u32;
    let mut counts = [0_u32; 3];
    for position in 0..trials {
        let choice = sampler.choose(&logits, 0, position, History::default()).unwrap().token;
        counts[choice as usize] += 1;
    }
    let near = |count: u32, of: f64, p: f64| {
        let deviation = (of * p * (1.0 - p)).sqrt();
        assert!((f64::from(count) - of * p).abs() < 3.0 * deviation, "{counts:?}");
    };
    near(counts[1], f64::from(trials), 0.3); // accepted
    near(counts[0], f64::from(trials - counts[1]), 5.0 / 7.0); // emitted after a rejection
    near(counts[2], f64::from(trials - counts[1]), 2.0 / 7.0);
}

/// Rows of a vocabulary's width, peaked and flat: the shortcut to the heaviest tokens and both ways around it.
#[test]
fn top_p_of_a_wide_row_keeps_the_sorted_prefix() {
    let noise = Noise::new(11, 0);
    let (mut shortest, mut longest) = (usize::MAX, 0);
    for (shape, slope) in [9.0_f32, 1.2, 0.02].into_iter().enumerate() {
        let logits: Vec<f32> = (0..20_000)
            .map(|id| slope * noise.gumbel(shape as u32, id) as f32 + (id % 3) as f32)
            .map(|value| (value * 64.0).round() / 64.0)
            .collect();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
        let max = f64::from(logits[order[0]]);
        let weight = |id: usize| exact::exp(f64::from(logits[id]) - max);
        let total = (0..logits.len()).fold(0.0, |sum, id| sum + weight(id));
        for top_p in [0.001, 0.5, 0.95, 0.9999, 1.0 - f64::EPSILON / 2.0] {
            let params = SamplingParams { temperature: 1.0, top_p, ..SamplingParams::default() };
            let kept = sampler(params, logits.len()).log_weights(&logits, History::default()).unwrap();
            let mut sum = 0.0;
            let open = |id: &usize| {
                let open = sum < top_p * total;
                sum += weight(*id);
                open
            };
            let expected: Vec<usize> = order.iter().copied().take_while(open).collect();
            let mut found: Vec<usize> = (0..logits.len()).filter(|&id| kept[id] != f64::NEG_INFINITY).collect();
            found.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
            assert!(
                found == expected,
                "slope {slope}, top-p {top_p}: {} kept, {} expected",
                found.len(),
                expected.len()
            );
            (shortest, longest) = (shortest.min(found.len()), longest.max(found.len()));
        }
    }
    assert!(shortest < 50 && longest > 16_384, "prefixes of {shortest} to {longest} tokens");
}
