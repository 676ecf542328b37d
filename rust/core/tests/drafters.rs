//! Block drafters: the same proposals on every path to them, and never another token of the target's.

mod common;

use std::sync::Arc;

use common::drafter_files::{Folder, HIDDEN, LAYERS, Shape, VOCAB};
use common::programs::Noise;
use draftgauge_core::backend::{Forest, Outputs, Request};
use draftgauge_core::cpu::{Cpu, CpuOptions, Numerics};
use draftgauge_core::decode::{GenerateOptions, Silent};
use draftgauge_core::drafters::block::{BlockDrafter, BlockKind, BlockOptions};
use draftgauge_core::drafters::{Anchor, Budget, DraftState, Drafter, Observation, Proposal};
use draftgauge_core::naive::Naive;
use draftgauge_core::sampling::SamplingParams;
use draftgauge_core::score::{ScoreOptions, score};
use draftgauge_core::session::{Session, SessionModel};
use draftgauge_core::target::{Target, TargetOptions};
use draftgauge_kernels::isa::Isa;
use draftgauge_kernels::quant::QuantType;
use serde_json::json;

fn cpu(threads: usize, numerics: Numerics, isa: Option<Isa>) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(threads), numerics, isa, ..CpuOptions::default() }).unwrap()
}

fn fast(folder: &Folder) -> Target {
    folder.target(cpu(2, Numerics::Fast, None), TargetOptions::default())
}

fn text(len: usize, seed: u64) -> Vec<u32> {
    let mut noise = Noise::new(seed);
    (0..len).map(|_| noise.below(VOCAB - 1) as u32).collect()
}

/// A drafter's state that has seen `tokens`, in passes that end at `splits` as well.
fn observed(target: &Target, drafter: &dyn Drafter, tokens: &[u32], splits: &[usize]) -> Box<dyn DraftState> {
    let taps = drafter.capabilities().taps;
    let (mut state, mut drafting) = (target.open().unwrap(), drafter.open().unwrap());
    let mut outputs = Outputs::default();
    let mut start = 0;
    for &end in splits.iter().chain(&[tokens.len()]) {
        let part = &tokens[start..end];
        let request = Request { taps: &taps, ..Request::default() };
        state.run(&Forest::chain(part, start, 0), &request, &mut outputs).unwrap();
        state.commit(0, &(0..part.len()).collect::<Vec<_>>()).unwrap();
        drafting.observe(&Observation { start, tokens: part, features: &outputs.taps }).unwrap();
        start = end;
    }
    drafting
}

fn propose(state: &mut dyn DraftState, tokens: &[u32], budget: &Budget) -> Proposal {
    state.propose(&Anchor { tokens }, budget).unwrap()
}

#[test]
fn drafts_depend_on_nothing_but_the_text() {
    for (name, shape) in Shape::all() {
        let folder = Folder::new(3, QuantType::Q8_0);
        let target = fast(&folder);
        let drafter = folder.drafter(&target, &shape);
        let tokens = text(41, 9);
        let budget = Budget::chain(drafter.draft_len());
        let mut whole = observed(&target, &*drafter, &tokens[..40], &[]);
        let want = propose(&mut *whole, &tokens, &budget);
        assert_eq!(want.tokens.len(), drafter.draft_len(), "{name}");
        assert_eq!(want.confidence.is_some(), shape.confidence && shape.markov, "{name}");

        let mut pieces = observed(&target, &*drafter, &tokens[..40], &[1, 2, 9, 30]);
        assert_eq!(propose(&mut *pieces, &tokens, &budget), want, "{name}: observed in pieces");
        // A detour leaves nothing behind.
        pieces.truncate(12).unwrap();
        let mut detour = tokens[..12].to_vec();
        detour.extend(text(9, 77));
        let before = propose(&mut *pieces, &detour[..13], &budget);
        let mut fresh = observed(&target, &*drafter, &tokens[..12], &[]);
        assert_eq!(before, propose(&mut *fresh, &detour[..13], &budget), "{name}: truncated");

        for (threads, isa) in [(1, None), (3, Some(Isa::SCALAR))] {
            let other = folder.target(cpu(threads, Numerics::Fast, isa), TargetOptions::default());
            let drafter = folder.drafter(&other, &shape);
            let mut state = observed(&other, &*drafter, &tokens[..40], &[17]);
            assert_eq!(propose(&mut *state, &tokens, &budget), want, "{name}: {threads} threads, {isa:?}");
        }
    }
}

#[test]
fn narrower_blocks_and_shorter_budgets_cut_as_they_say() {
    for (name, shape) in Shape::all() {
        let folder = Folder::new(4, QuantType::F32);
        let target = fast(&folder);
        let drafter = folder.drafter(&target, &shape);
        let tokens = text(30, 5);
        let mut state = observed(&target, &*drafter, &tokens[..29], &[]);
        let whole = propose(&mut *state, &tokens, &Budget::chain(drafter.draft_len()));
        for depth in 0..=drafter.draft_len() {
            let cut = propose(&mut *state, &tokens, &Budget::chain(depth));
            assert_eq!(cut.tokens, whole.tokens[..depth], "{name}: a budget cuts the draft, not the block");
        }
        for width in 1..=drafter.block_size().unwrap() {
            let budget = Budget { block: Some(width), ..Budget::chain(usize::MAX) };
            let narrow = propose(&mut *state, &tokens, &budget);
            assert_eq!(narrow.tokens.len(), drafter.draft_len_of_block(width), "{name}: width {width}");
            if width == drafter.block_size().unwrap() {
                assert_eq!(narrow, whole, "{name}");
            }
        }
    }
}

#[test]
fn reference_numerics_agree_with_the_plain_reading() {
    for (name, shape) in Shape::all() {
        let folder = Folder::new(5, QuantType::F32);
        let tokens = text(61, 6);
        let options = || TargetOptions {
            key: draftgauge_core::backend::CacheType::F32,
            value: draftgauge_core::backend::CacheType::F32,
            ..TargetOptions::default()
        };
        let reference = folder.target(cpu(2, Numerics::Reference, None), options());
        let naive = folder.target(Naive, options());
        let mut proposals = Vec::new();
        for target in [&reference, &naive] {
            let drafter = folder.drafter(target, &shape);
            let mut state = observed(target, &*drafter, &tokens[..60], &[33]);
            let positions: Vec<usize> = (1..60).step_by(3).collect();
            let budget = Budget::chain(drafter.draft_len());
            proposals.push(state.propose_each(&tokens, &positions, &budget).unwrap());
        }
        let (a, b) = (&proposals[0], &proposals[1]);
        let drafts = |all: &[Proposal]| -> Vec<u32> { all.iter().flat_map(|p| p.tokens.clone()).collect() };
        // Random rows have near ties now and then: two orders of summation may settle one of them differently.
        let (first, second) = (drafts(a), drafts(b));
        let differing = first.iter().zip(&second).filter(|(a, b)| a != b).count();
        assert!(differing <= 1, "{name}: {differing} of {} drafts differ", first.len());
        for (a, b) in a.iter().zip(b).filter(|(a, b)| a.tokens == b.tokens) {
            for (a, b) in a.confidence.iter().flatten().zip(b.confidence.iter().flatten()) {
                assert!((a - b).abs() < 1e-4, "{name}: confidence {a} and {b}");
            }
        }
    }
}

#[test]
fn every_anchor_at_once_drafts_as_one_after_the_other() {
    for (name, shape) in Shape::all() {
        let folder = Folder::new(6, QuantType::Q4_1);
        let target = fast(&folder);
        let drafter = folder.drafter(&target, &shape);
        let tokens = text(140, 11);
        let budget = Budget::chain(drafter.draft_len());
        let positions: Vec<usize> = (0..140).collect();
        let mut state = observed(&target, &*drafter, &tokens, &[]);
        let all = state.propose_each(&tokens, &positions, &budget).unwrap();
        for position in [0, 1, 7, 8, 64, 100, 139] {
            state.truncate(position).unwrap();
            let alone = if position == 0 {
                propose(&mut *drafter.open().unwrap(), &tokens[..1], &budget)
            } else {
                let mut state = observed(&target, &*drafter, &tokens[..position], &[]);
                propose(&mut *state, &tokens[..=position], &budget)
            };
            assert_eq!(all[position], alone, "{name}: anchor at {position}");
        }
    }
}

fn generate(target: &Target, drafter: Option<Arc<BlockDrafter>>, options: &GenerateOptions) -> (Vec<u32>, Vec<u64>) {
    let drafter = drafter.map(|drafter| drafter as Arc<dyn Drafter>);
    let mut session = Session::new(SessionModel::from(target), drafter).unwrap();
    let generation = session.generate(&text(20, 1), options, &mut Silent, None).unwrap();
    assert!(generation.notices.iter().all(|notice| !notice.contains("failed")), "{:?}", generation.notices);
    (generation.tokens, generation.draft.counters.accepted_at.clone())
}

#[test]
fn speculation_never_changes_a_token_and_accepts_every_length() {
    let mut lengths = [0_u64; 8];
    for (index, (name, shape)) in Shape::all().into_iter().enumerate() {
        let folder = Folder::new(20 + index as u64, QuantType::Q8_0);
        let target = fast(&folder);
        let drafter = folder.drafter(&target, &shape);
        for (temperature, n_max, block) in
            [(0.0, None, None), (0.3, None, None), (1.0, Some(2), None), (0.3, None, Some(3))]
        {
            let options = GenerateOptions {
                max_tokens: Some(160),
                ignore_eos: true,
                sampling: SamplingParams { temperature, seed: 5, ..SamplingParams::default() },
                ..GenerateOptions::default()
            };
            let (plain, _) = generate(&target, None, &options);
            let options = GenerateOptions { draft_n_max: n_max, draft_block: block, ..options };
            let (speculative, accepted_at) = generate(&target, Some(Arc::clone(&drafter)), &options);
            assert_eq!(plain, speculative, "{name} at {temperature}");
            for (length, pair) in accepted_at.windows(2).enumerate() {
                lengths[length + 1] += pair[0] - pair[1];
            }
            if let Some(&all) = accepted_at.last() {
                lengths[accepted_at.len()] += all;
            }
        }
    }
    assert!(lengths[1..=5].iter().all(|&count| count >= 3), "accepted lengths 1, 2, ...: {lengths:?}");
}

#[test]
fn a_session_that_is_truncated_or_reused_has_no_holes() {
    let folder = Folder::new(9, QuantType::Q8_0);
    let target = fast(&folder);
    let drafter = folder.drafter(&target, &Shape::dspark());
    let options = GenerateOptions { max_tokens: Some(40), ignore_eos: true, ..GenerateOptions::default() };
    let open = || Session::new(SessionModel::from(&target), Some(Arc::clone(&drafter) as Arc<dyn Drafter>)).unwrap();
    let run = |session: &mut Session, prompt: &[u32]| {
        let generation = session.generate(prompt, &options, &mut Silent, None).unwrap();
        (generation.tokens, generation.draft.counters.accepted_at)
    };
    let mut session = open();
    let first = run(&mut session, &text(100, 2));
    // B12: a prefix that is in the cache already, then a cold run of the same prompt.
    let mut prompt = session.tokens()[..110].to_vec();
    prompt.extend(text(7, 3));
    assert_eq!(run(&mut session, &prompt), run(&mut open(), &prompt), "a prefix is reused");
    session.truncate(50).unwrap();
    let shorter = session.tokens().to_vec();
    assert_eq!(run(&mut session, &shorter), run(&mut open(), &shorter), "truncated");
    assert_eq!(run(&mut session, &text(100, 2)), first, "and from the start again");
}

#[test]
fn a01_missing_features_are_named() {
    let folder = Folder::new(1, QuantType::F32);
    let target = fast(&folder);
    let drafter = folder.drafter(&target, &Shape::dflash());
    let tokens = text(10, 4);
    let mut state = observed(&target, &*drafter, &tokens[..8], &[]);
    let error = state.propose(&Anchor { tokens: &tokens }, &Budget::chain(3)).unwrap_err().to_string();
    assert_eq!(
        error,
        "the drafter lacks features of the target: position 8: expected features of 9 positions, found 8"
    );
    let error = state
        .observe(&Observation { start: 9, tokens: &tokens[9..], features: &[0.0; 3 * HIDDEN] })
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("position 8: expected features from position 8 on, found features from position 9 on"),
        "{error}"
    );
}

#[test]
fn a01_zeroed_or_shuffled_features_and_shifted_taps_draft_otherwise() {
    let folder = Folder::new(12, QuantType::F32);
    let target = fast(&folder);
    let drafter = folder.drafter(&target, &Shape { target_layers: vec![2, 4], ..Shape::dflash() });
    let tokens = text(120, 8);
    let drafts = |drafter: &BlockDrafter| {
        score(&target, drafter, &tokens, &ScoreOptions::default(), &mut || Ok(())).unwrap().drafts
    };
    let real = drafts(&drafter);
    let changed = |name: &str, value: serde_json::Value| {
        let other = drafter.with_overrides(&[(name.to_owned(), value)]).unwrap();
        let other = drafts(&other);
        other.iter().flatten().zip(real.iter().flatten()).filter(|(a, b)| a != b).count()
    };
    assert_eq!(changed("features", json!("real")), 0);
    for (name, value) in [
        ("features", json!("zero")),
        ("features", json!("shuffle")),
        ("tap_offset", json!(1)),
        ("tap_offset", json!(-1)),
        ("target_layer_ids", json!([0, "embeddings"])),
        ("rope_theta", json!(100.0)),
        ("causal", json!(true)),
        ("mask_token_id", json!(5)),
        ("sliding_window", json!(2)),
    ] {
        let count = changed(name, value.clone());
        assert!(count > 60, "{name} {value}: {count} drafts changed");
    }
}

#[test]
fn a02_a_files_layers_are_one_more_than_the_layers_whose_output_is_read() {
    let folder = Folder::new(1, QuantType::F32);
    let target = fast(&folder);
    let drafter = folder.drafter(&target, &Shape { target_layers: vec![0, 2, 5], ..Shape::dflash() });
    let config = drafter.config();
    let taps = config.iter().find(|setting| setting.name == "target_layer_ids").unwrap();
    assert_eq!((taps.value.as_str(), taps.provenance.as_str()), ("[embeddings, 1, 4]", "dflash.target_layers"));
}

#[test]
fn a15_drafts_of_a_block_follow_the_rule_that_fired() {
    let folder = Folder::new(1, QuantType::F32);
    let target = fast(&folder);
    for (shape, kind, drafts, rule) in [
        (Shape::dflash(), "dflash", 5, "default (z-lab's slots: the anchor's row predicts nothing)"),
        (Shape::dspark(), "dspark", 5, "tensor markov_w1.weight"),
        (Shape { sample_from_anchor: Some(false), ..Shape::dspark() }, "dspark", 4, "dflash.sample_from_anchor"),
        (Shape { sample_from_anchor: Some(true), ..Shape::dflash() }, "dspark", 6, "dflash.sample_from_anchor"),
    ] {
        let drafter = folder.drafter(&target, &shape);
        let config = drafter.config();
        let setting = config.iter().find(|setting| setting.name == "sample_from_anchor").unwrap();
        assert_eq!((drafter.kind(), drafter.draft_len(), setting.provenance.as_str()), (kind, drafts, rule));
    }
    // DeepSpec's own "dflash" checkpoints: the file does not tell, the user does.
    let path = folder.write("deepspec", &Shape::dflash());
    let options = BlockOptions { kind: Some(BlockKind::Dspark), ..BlockOptions::default() };
    let drafter = BlockDrafter::load(&path, &target, &options).unwrap();
    assert_eq!((drafter.kind(), drafter.draft_len()), ("dspark", 6));
}

#[test]
fn confidence_cuts_before_the_verify_pass() {
    let folder = Folder::new(2, QuantType::F32);
    let target = fast(&folder);
    for shape in [Shape::dspark(), Shape::dflash()] {
        let drafter = folder.drafter(&target, &shape);
        let tokens = text(90, 3);
        let mut state = observed(&target, &*drafter, &tokens, &[]);
        let positions: Vec<usize> = (2..90).collect();
        let whole = state.propose_each(&tokens, &positions, &Budget::chain(drafter.draft_len())).unwrap();
        let budget = Budget { confidence: 0.5, ..Budget::chain(drafter.draft_len()) };
        let cut = state.propose_each(&tokens, &positions, &budget).unwrap();
        let mut lengths = std::collections::BTreeSet::new();
        for (whole, cut) in whole.iter().zip(&cut) {
            assert_eq!(cut.tokens, whole.tokens[..cut.tokens.len()]);
            if let Some(confidence) = &whole.confidence {
                let sure = confidence.iter().take_while(|&&confidence| confidence >= 0.5).count();
                assert_eq!(cut.tokens.len(), sure);
            }
            lengths.insert(cut.tokens.len());
        }
        assert!(lengths.len() > 2, "the cut falls at several places: {lengths:?}");
    }
}

#[test]
fn scores_are_what_free_running_accepts() {
    let folder = Folder::new(31, QuantType::Q8_0);
    let target = fast(&folder);
    let drafter = folder.drafter(&target, &Shape::dspark());
    let options = GenerateOptions { max_tokens: Some(200), ignore_eos: true, ..GenerateOptions::default() };
    let mut session =
        Session::new(SessionModel::from(&target), Some(Arc::clone(&drafter) as Arc<dyn Drafter>)).unwrap();
    let prompt = text(16, 2);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let header = serde_json::from_value(json!({
        "trace": "draftgauge", "version": 1, "target": null, "drafter": null, "settings": {}, "machine": null,
        "kernels": "cpu", "notices": [],
    }))
    .unwrap();
    let mut writer = draftgauge_core::trace::TraceWriter::create(file.path(), &header).unwrap();
    let mut sequence = writer.sequence(None, None);
    session.generate(&prompt, &options, &mut Silent, Some(&mut sequence)).unwrap();
    let trace = draftgauge_core::trace::load(file.path()).unwrap();
    let tokens = session.tokens();
    let scores =
        score(&target, &*drafter, tokens, &ScoreOptions { start: 16, ..ScoreOptions::default() }, &mut || Ok(()))
            .unwrap();
    let mut steps = 0;
    for step in &trace.sequences[0].steps {
        let anchor = step.anchor_pos - 16;
        // Near the end a draft is shorter than the drafter's own.
        let drafts = &scores.drafts[anchor][..step.proposed.len()];
        assert_eq!(drafts, step.proposed, "step {}", step.step);
        assert_eq!(scores.accepted(anchor).min(step.proposed.len()), step.accepted, "step {}", step.step);
        steps += 1;
    }
    assert!(steps > 40);
    let _ = file.as_file_mut();
}

fn refused(folder: &Folder, target: &Target, shape: &Shape, options: &BlockOptions) -> String {
    let path = folder.write("refused", shape);
    match BlockDrafter::load(&path, target, options) {
        Ok(_) => panic!("was loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_does_not_fit_says_what_differs() {
    let folder = Folder::new(1, QuantType::F32);
    let target = fast(&folder);
    let keys = |text: &str| BlockOptions { metadata: vec![text.parse().unwrap()], ..BlockOptions::default() };
    for (shape, options, expect) in [
        (
            Shape { target_layers: vec![1, LAYERS as u32 + 1], ..Shape::dflash() },
            BlockOptions::default(),
            "tap layers: found layer 5 is tapped, the target has layers 0 to 4",
        ),
        (Shape::dflash(), keys("tokenizer.ggml.mask_token_id=int:300"), "a token below 300"),
        (Shape::dflash(), keys("dflash.attention.head_count_kv=int:3"), "a divisor of 4"),
        (Shape::dflash(), keys("dflash.hidden_activation=str:relu"), "silu, gelu or gelu_pytorch_tanh, found relu"),
        (Shape::dflash(), keys("dflash.rope.dimension_count=int:17"), "an even number of at most 16"),
        (Shape::dflash(), keys("general.architecture=str:eagle3"), "expected dflash, dflash-draft, found eagle3"),
        (Shape { draft_vocab: Some(50), ..Shape::dflash() }, BlockOptions::default(), "without a head of its own"),
        (
            Shape::dspark(),
            BlockOptions { kind: Some(BlockKind::Dflash), ..BlockOptions::default() },
            "another kind of drafter",
        ),
        (
            Shape::dflash(),
            BlockOptions { settings: vec![("block_width".to_owned(), json!(3))], ..BlockOptions::default() },
            "drafter has no such setting: block_width: expected block_size, mask_token_id",
        ),
        (
            Shape::dflash(),
            BlockOptions { settings: vec![("causal".to_owned(), json!(3))], ..BlockOptions::default() },
            "causal: expected true or false, found 3",
        ),
        (
            Shape::dflash(),
            BlockOptions { settings: vec![("target_layer_ids".to_owned(), json!([1, 2]))], ..BlockOptions::default() },
            "target_layer_ids: expected 3 layers",
        ),
    ] {
        let message = refused(&folder, &target, &shape, &options);
        assert!(message.contains(expect), "{expect}: {message}");
    }
}

/// Seed of the target whose runs are recorded.
const RECORDED_TARGET: u64 = 3;

/// Writes the files of `tests/golden/make_drafters.py`.
#[test]
#[ignore = "writes files for an outside oracle"]
fn write_files() {
    let folder = std::path::PathBuf::from(std::env::var_os("DRAFTGAUGE_DRAFTER_FILES").expect("a folder"));
    let target = folder.join("target.gguf");
    common::drafter_files::write_target(&target, RECORDED_TARGET, QuantType::F32);
    for (name, shape) in Shape::all() {
        common::drafter_files::write_drafter(&folder.join(format!("{name}.gguf")), &target, &shape);
    }
}

/// The outside oracle: on the same files and tokens, the drafts are those of llama-server b11434.
#[test]
fn drafts_are_those_of_llama_server() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/drafters/llama_server.json");
    let golden: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let f32 = draftgauge_core::backend::CacheType::F32;
    let folder = Folder::new(RECORDED_TARGET, QuantType::F32);
    let options = TargetOptions { key: f32, value: f32, ..TargetOptions::default() };
    let target = folder.target(cpu(2, Numerics::Reference, None), options);
    let shapes: std::collections::BTreeMap<_, _> = Shape::all().into_iter().collect();
    let (mut steps, mut drafts, mut ties, mut kept) = (0, 0, 0, 0);
    for run in golden["runs"].as_array().unwrap() {
        let name = run["name"].as_str().unwrap();
        let tokens = [ids(&golden["prompt"]), ids(&run["tokens"])].concat();
        // A file of DeepSpec's "dflash" says by its key what llama-server is told by the type of the run.
        let drafter = folder.drafter(&target, &shapes[name]);
        let scores = score(&target, &*drafter, &tokens, &ScoreOptions::default(), &mut || Ok(())).unwrap();
        let prompt = ids(&golden["prompt"]).len();
        assert_eq!(scores.choices[prompt - 1..tokens.len() - 1], tokens[prompt..], "{name}: the targets agree");
        for step in run["steps"].as_array().unwrap() {
            let anchor = step["anchor_pos"].as_u64().unwrap() as usize;
            assert_eq!(u64::from(tokens[anchor]), step["anchor"].as_u64().unwrap(), "{name}: anchor at {anchor}");
            let theirs = step["drafts"].as_array().unwrap();
            for (place, candidates) in theirs.iter().enumerate() {
                let candidate = |rank: usize| -> (u32, f64) {
                    let pair = &candidates[rank];
                    (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap())
                };
                let (first, second) = (candidate(0), candidate(1));
                let ours = scores.drafts[anchor][place];
                drafts += 1;
                if ours != first.0 {
                    // Logged to three digits: nothing but a tie within them may fall the other way.
                    assert!(
                        ours == second.0 && first.1 - second.1 < 0.0011,
                        "{name}: draft {place} at {anchor} is {ours}, llama-server has {first:?} and {second:?}"
                    );
                    ties += 1;
                    // Later drafts of a chain follow another path from here on.
                    break;
                }
            }
            steps += 1;
            kept += scores.accepted(anchor);
        }
    }
    println!("{steps} steps, {drafts} drafts, {ties} near ties, {kept} kept");
    assert!(steps >= 200 && drafts >= 1000 && kept >= 50, "{steps} steps, {drafts} drafts, {kept} kept");
    assert!(ties * 200 <= drafts, "{ties} of {drafts}");
}

#[test]
fn a_markov_chain_without_its_hopeless_tiles_is_the_chain() {
    for (name, shape) in Shape::all().into_iter().filter(|(_, shape)| shape.markov) {
        let folder = Folder::new(13, QuantType::Q8_0);
        let target = fast(&folder);
        let drafter = folder.drafter(&target, &shape);
        let settings = [("confidence_head".to_owned(), json!(false))];
        let drafter = if shape.confidence { drafter.with_overrides(&settings).unwrap().into() } else { drafter };
        let tokens = text(120, 15);
        let mut state = observed(&target, &*drafter, &tokens, &[]);
        let positions: Vec<usize> = (1..120).collect();
        let few = Budget::chain(drafter.draft_len());
        // A cut that cuts nothing asks for whole rows of logits.
        let whole = Budget { confidence: f32::MIN_POSITIVE, ..few };
        let few = state.propose_each(&tokens, &positions, &few).unwrap();
        let whole = state.propose_each(&tokens, &positions, &whole).unwrap();
        for (few, whole) in few.iter().zip(&whole) {
            assert_eq!(few.tokens, whole.tokens, "{name}");
        }
    }
}
