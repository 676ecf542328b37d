//! The plain reading by itself: definitions worked out by hand, and the laws of trees and caches.

mod common;

use common::programs::{Model, Noise, Shape, options};
use draftgauge_core::backend::{CacheType, EngineState, Forest, Head, Outputs, Request};
use draftgauge_core::naive::Naive;
use draftgauge_core::program::TapPoint;

fn text(len: usize, seed: u64) -> Vec<u32> {
    let mut noise = Noise::new(seed);
    (0..len).map(|_| noise.below(Shape::plain().vocab) as u32).collect()
}

fn run(state: &mut dyn EngineState, forest: &Forest) -> Vec<f32> {
    let rows: Vec<usize> = (0..forest.len()).collect();
    let mut outputs = Outputs::default();
    state.run(forest, &Request { rows: &rows, head: Head::Logits, taps: &[], features: None }, &mut outputs).unwrap();
    outputs.logits
}

#[test]
fn a_tree_node_sees_its_ancestors_and_a_commit_keeps_one_path() {
    for shape in Shape::all() {
        let engine = Model::new(shape).load(Naive);
        let prompt = text(20, 1);
        let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
        run(&mut *state, &Forest::chain(&prompt, 0, 0));
        state.commit(0, &(0..20).collect::<Vec<_>>()).unwrap();
        let tokens = text(5, 2);
        let forest = Forest::tree(&tokens, &[-1, 0, 0, 2, 1], 20, 0).unwrap();
        let tree = run(&mut *state, &forest);
        for path in [vec![0, 1, 4], vec![0, 2, 3]] {
            let mut alone = prompt.clone();
            alone.extend(path.iter().map(|&node| tokens[node]));
            let mut fresh = engine.open(options(CacheType::F16, 1)).unwrap();
            let want = run(&mut *fresh, &Forest::chain(&alone, 0, 0));
            for (depth, node) in path.iter().enumerate() {
                let got = &tree[node * shape.vocab..][..shape.vocab];
                assert_eq!(got, &want[(20 + depth) * shape.vocab..][..shape.vocab], "node {node}: {shape:?}");
            }
        }
        state.commit(0, &[0, 2, 3]).unwrap();
        assert_eq!(state.len(0), 23);
        let next = run(&mut *state, &Forest::chain(&[9], 23, 0));
        let mut whole = prompt.clone();
        whole.extend([tokens[0], tokens[2], tokens[3], 9]);
        let mut fresh = engine.open(options(CacheType::F16, 1)).unwrap();
        let want = run(&mut *fresh, &Forest::chain(&whole, 0, 0));
        assert_eq!(next, want[23 * shape.vocab..], "{shape:?}");
        // Truncation forgets: the same rows again give the same logits.
        state.truncate(0, 20).unwrap();
        assert_eq!(run(&mut *state, &forest), tree);
    }
}

#[test]
fn a_window_hides_what_lies_further_back() {
    // One layer, so that nothing reaches a row through another.
    let shape = Shape { layers: 1, window: Some(5), ..Shape::plain() };
    let engine = Model::new(shape).load(Naive);
    let logits = |tokens: &[u32]| {
        let mut state = engine.open(options(CacheType::F32, 1)).unwrap();
        let all = run(&mut *state, &Forest::chain(tokens, 0, 0));
        all[all.len() - shape.vocab..].to_vec()
    };
    let tokens = text(12, 3);
    let mut far = tokens.clone();
    far[6] = (far[6] + 1) % shape.vocab as u32;
    let mut near = tokens.clone();
    near[7] = (near[7] + 1) % shape.vocab as u32;
    assert_eq!(logits(&tokens), logits(&far), "distance 5 is outside a window of 5");
    assert_ne!(logits(&tokens), logits(&near), "distance 4 is inside");
}

#[test]
fn slots_do_not_see_each_other() {
    let shape = Shape::plain();
    let engine = Model::new(shape).load(Naive);
    let (a, b) = (text(9, 4), text(6, 5));
    let mut state = engine.open(options(CacheType::F16, 2)).unwrap();
    let mut forest = Forest::chain(&a, 0, 1);
    forest.push(&b, &[-1, 0, 1, 2, 3, 4], 0, 0).unwrap();
    let together = run(&mut *state, &forest);
    for (tokens, from) in [(&a, 0), (&b, 9)] {
        let mut fresh = engine.open(options(CacheType::F16, 1)).unwrap();
        let alone = run(&mut *fresh, &Forest::chain(tokens, 0, 0));
        assert_eq!(alone, together[from * shape.vocab..(from + tokens.len()) * shape.vocab]);
    }
}

#[test]
fn a_failed_run_leaves_what_was_committed() {
    let shape = Shape::plain();
    let engine = Model::new(shape).load(Naive);
    let tokens = text(8, 6);
    let mut state = engine.open(options(CacheType::F16, 1)).unwrap();
    run(&mut *state, &Forest::chain(&tokens, 0, 0));
    state.commit(0, &[0, 1, 2, 3]).unwrap();
    let request = Request { rows: &[1], head: Head::Top2, taps: &[TapPoint::Final], features: None };
    let mut outputs = Outputs::default();
    let error = state.run(&Forest::chain(&[1], 4, 0), &request, &mut outputs).unwrap_err().to_string();
    assert!(error.contains("row is not in the forest"), "{error}");
    assert!(state.commit(0, &[0]).is_err(), "nothing is pending");
    assert_eq!(state.len(0), 4);
    let next = run(&mut *state, &Forest::chain(&tokens[4..], 4, 0));
    let mut fresh = engine.open(options(CacheType::F16, 1)).unwrap();
    assert_eq!(next, run(&mut *fresh, &Forest::chain(&tokens, 0, 0))[4 * shape.vocab..]);
}
