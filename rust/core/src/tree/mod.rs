//! Draft trees: what a verify pass runs and what acceptance walks.

use crate::error::{Error, Evidence, Result};

/// A validated tree of drafted tokens. Node 0 is the anchor, and parents come before their children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftTree {
    tokens: Vec<u32>,
    parents: Vec<i32>,
    depths: Vec<u32>,
    // Children as linked lists, -1 at the end: verification looks up a handful of siblings.
    first_child: Vec<i32>,
    next_sibling: Vec<i32>,
}

impl DraftTree {
    /// Builds a tree from the token and the parent of each node.
    ///
    /// # Errors
    /// `Error::Tree` when there is no anchor, the lengths differ, `parents[0]` is not -1, a parent does not come before
    /// its child, or two siblings carry the same token.
    pub fn new(tokens: &[u32], parents: &[i32]) -> Result<Self> {
        if tokens.is_empty() {
            return Err(Error::tree(Evidence::new("a draft tree needs an anchor").expected("1 node or more").found(0)));
        }
        if tokens.len() != parents.len() || i32::try_from(tokens.len()).is_err() {
            return Err(Error::tree(
                Evidence::new("a draft tree needs one parent a token").expected(tokens.len()).found(parents.len()),
            ));
        }
        if parents[0] != -1 {
            return Err(Error::tree(
                Evidence::new("the anchor has no parent").key("node 0").expected(-1).found(parents[0]),
            ));
        }
        let mut depths = vec![0_u32; tokens.len()];
        let mut edges = Vec::with_capacity(tokens.len());
        for (node, &parent) in parents.iter().enumerate().skip(1) {
            if parent < 0 || parent as usize >= node {
                return Err(Error::tree(
                    Evidence::new("a parent must come before its child")
                        .key(format!("node {node}"))
                        .expected(format!("0 to {}", node - 1))
                        .found(parent),
                ));
            }
            depths[node] = depths[parent as usize] + 1;
            edges.push((parent, tokens[node], node));
        }
        edges.sort_unstable();
        if let Some(pair) = edges.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 == pair[1].1) {
            return Err(Error::tree(
                Evidence::new("siblings must carry different tokens")
                    .key(format!("nodes {} and {}", pair[0].2, pair[1].2))
                    .found(format!("token {} twice", pair[0].1)),
            ));
        }
        let mut first_child = vec![-1; tokens.len()];
        let mut next_sibling = vec![-1; tokens.len()];
        for node in (1..tokens.len()).rev() {
            let parent = parents[node] as usize;
            next_sibling[node] = first_child[parent];
            first_child[parent] = node as i32;
        }
        Ok(Self { tokens: tokens.to_vec(), parents: parents.to_vec(), depths, first_child, next_sibling })
    }

    /// A chain: `tokens[0]` is the anchor, each token the child of the one before it.
    ///
    /// # Errors
    /// `Error::Tree` without a token.
    pub fn chain(tokens: &[u32]) -> Result<Self> {
        let parents: Vec<i32> = (0..tokens.len() as i32).map(|node| node - 1).collect();
        Self::new(tokens, &parents)
    }

    /// Number of nodes, the anchor included.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Never true: the anchor is always there.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Token of each node.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Parent of each node, -1 for the anchor.
    pub fn parents(&self) -> &[i32] {
        &self.parents
    }

    /// Depth of each node, 0 for the anchor.
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// Whether every node but the last has exactly the next node as its child.
    pub fn is_chain(&self) -> bool {
        self.parents.iter().enumerate().all(|(node, &parent)| parent == node as i32 - 1)
    }

    /// Children of a node, in ascending order.
    pub fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let mut child = self.first_child[node];
        std::iter::from_fn(move || {
            let node = usize::try_from(child).ok()?;
            child = self.next_sibling[node];
            Some(node)
        })
    }

    /// The child of a node that carries a token.
    pub fn child(&self, node: usize, token: u32) -> Option<usize> {
        self.children(node).find(|&child| self.tokens[child] == token)
    }

    /// The nodes from the anchor's child down to `node`; empty for the anchor.
    pub fn path_to(&self, node: usize) -> Vec<usize> {
        let mut path = Vec::with_capacity(self.depths[node] as usize);
        let mut node = node;
        while node != 0 {
            path.push(node);
            node = self.parents[node] as usize;
        }
        path.reverse();
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(tokens: &[u32], parents: &[i32]) -> String {
        DraftTree::new(tokens, parents).unwrap_err().to_string()
    }

    #[test]
    fn rejects_no_anchor() {
        assert!(message(&[], &[]).contains("anchor"));
    }

    #[test]
    fn rejects_unequal_lengths() {
        assert_eq!(message(&[1, 2], &[-1]), "a draft tree needs one parent a token: expected 2, found 1");
    }

    #[test]
    fn rejects_an_anchor_with_a_parent() {
        assert!(message(&[1, 2], &[0, 0]).contains("the anchor has no parent"));
    }

    #[test]
    fn rejects_a_child_before_its_parent() {
        assert_eq!(
            message(&[1, 2, 3], &[-1, 2, 0]),
            "a parent must come before its child: node 1: expected 0 to 0, found 2"
        );
        assert!(message(&[1, 2, 3], &[-1, 0, -1]).contains("node 2"));
        assert!(message(&[1, 2], &[-1, 1]).contains("node 1"));
    }

    #[test]
    fn rejects_equal_siblings() {
        assert_eq!(
            message(&[1, 5, 6, 5], &[-1, 0, 0, 0]),
            "siblings must carry different tokens: nodes 1 and 3: found token 5 twice"
        );
        assert!(DraftTree::new(&[1, 5, 5, 5], &[-1, 0, 1, 2]).is_ok());
    }

    proptest! {
        /// Properties 26 and 28: depths, children and paths agree with the parents they were made from.
        #[test]
        fn children_and_paths_invert_parents(shape in prop::collection::vec((0_u32..4, 0_usize..100), 0..30)) {
            let mut tokens = vec![0];
            let mut parents = vec![-1];
            for (token, pick) in shape {
                let parent = (pick % tokens.len()) as i32;
                if !(1..tokens.len()).any(|n| parents[n] == parent && tokens[n] == token) {
                    tokens.push(token);
                    parents.push(parent);
                }
            }
            let tree = DraftTree::new(&tokens, &parents).unwrap();
            for node in 0..tree.len() {
                let want: Vec<usize> = (1..tree.len()).filter(|&n| parents[n] == node as i32).collect();
                prop_assert_eq!(tree.children(node).collect::<Vec<_>>(), want.clone());
                for child in want {
                    prop_assert_eq!(tree.child(node, tokens[child]), Some(child));
                    prop_assert_eq!(tree.depths()[child], tree.depths()[node] + 1);
                }
                let path = tree.path_to(node);
                prop_assert_eq!(path.len(), tree.depths()[node] as usize);
                prop_assert!(path.windows(2).all(|w| parents[w[1]] == w[0] as i32));
                prop_assert_eq!(path.last().copied().unwrap_or(0), node);
            }
        }
    }
}
