//! Greedy and match verification: one walk down the tree.

use super::Outcome;
use crate::error::{Error, Evidence, Result};
use crate::tree::DraftTree;

/// Follows the target's own tokens down the tree until no child carries one.
///
/// `choices[node]` is the target's token at that node: its argmax for greedy verification, its keyed draw for match.
/// The accepted path is the longest one on which every draft equals the choice at its parent, and the bonus is the
/// choice at its end.
///
/// # Errors
/// `Error::Tree` when there is not one choice a node.
pub fn accept_greedy(tree: &DraftTree, choices: &[u32]) -> Result<Outcome> {
    if choices.len() != tree.len() {
        return Err(Error::tree(
            Evidence::new("verification needs one choice a node").expected(tree.len()).found(choices.len()),
        ));
    }
    let mut path = Vec::new();
    let mut node = 0;
    while let Some(child) = tree.child(node, choices[node]) {
        path.push(child);
        node = child;
    }
    Ok(Outcome { accepted: path.len(), path, bonus: choices[node] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wrong_number_of_choices_is_an_error() {
        let tree = DraftTree::chain(&[1, 2]).unwrap();
        assert_eq!(
            accept_greedy(&tree, &[2]).unwrap_err().to_string(),
            "verification needs one choice a node: expected 2, found 1"
        );
    }

    /// Random trees over a small vocabulary with a choice at each node.
    fn trees() -> impl Strategy<Value = (DraftTree, Vec<u32>)> {
        prop::collection::vec((0_u32..3, 0_usize..100, 0_u32..3), 1..14).prop_map(|shape| {
            let (mut tokens, mut parents, mut choices) = (vec![0], vec![-1_i32], vec![shape[0].2]);
            for &(token, pick, choice) in &shape[1..] {
                let parent = (pick % tokens.len()) as i32;
                if !(1..tokens.len()).any(|n| parents[n] == parent && tokens[n] == token) {
                    tokens.push(token);
                    parents.push(parent);
                    choices.push(choice);
                }
            }
            (DraftTree::new(&tokens, &parents).unwrap(), choices)
        })
    }

    proptest! {
        /// Properties 4, 32 and 33, against the definition: the deepest node whose whole path is what was chosen.
        #[test]
        fn walk_is_the_longest_chosen_path((tree, choices) in trees()) {
            let outcome = accept_greedy(&tree, &choices).unwrap();
            let chosen = |node: usize| {
                tree.path_to(node).iter().all(|&n| tree.tokens()[n] == choices[tree.parents()[n] as usize])
            };
            let best = (0..tree.len()).filter(|&n| chosen(n)).max_by_key(|&n| tree.depths()[n]).unwrap();
            prop_assert_eq!(&outcome.path, &tree.path_to(best));
            prop_assert_eq!(outcome.accepted, outcome.path.len());
            prop_assert_eq!(outcome.bonus, choices[best]);
            prop_assert!(tree.child(best, outcome.bonus).is_none());
            prop_assert!(outcome.path.iter().enumerate().all(|(d, &n)| n > d));
        }

        /// Property 34: a smaller tree accepts a prefix of what a larger one does.
        #[test]
        fn pruning_shortens_the_path((tree, choices) in trees(), keep in 1_usize..14) {
            let keep = keep.min(tree.len());
            let small = DraftTree::new(&tree.tokens()[..keep], &tree.parents()[..keep]).unwrap();
            let less = accept_greedy(&small, &choices[..keep]).unwrap();
            let more = accept_greedy(&tree, &choices).unwrap();
            prop_assert!(more.path.starts_with(&less.path));
        }

        /// Property 21: a draft cut to j tokens keeps min(accepted, j) of them.
        #[test]
        fn a_shorter_chain_keeps_the_minimum(
            drafts in prop::collection::vec(0_u32..2, 0..9), choices in prop::collection::vec(0_u32..2, 10), cut in 0_usize..9,
        ) {
            let tokens: Vec<u32> = std::iter::once(9).chain(drafts).collect();
            let cut = cut.min(tokens.len() - 1);
            let full = accept_greedy(&DraftTree::chain(&tokens).unwrap(), &choices[..tokens.len()]).unwrap();
            let short = accept_greedy(&DraftTree::chain(&tokens[..=cut]).unwrap(), &choices[..=cut]).unwrap();
            prop_assert_eq!(short.accepted, full.accepted.min(cut));
        }
    }
}
