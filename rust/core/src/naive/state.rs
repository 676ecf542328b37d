//! Caches of the plain backend: one row of keys and one of values a position, in order.

use crate::backend::{CacheType, Forest, StateOptions};
use crate::error::{Error, Evidence, Result};
use crate::program::CacheSpec;
use draftgauge_kernels::float::{f16_to_f32, f32_to_f16};

/// Keys and values of one layer and slot, committed rows first, then the pending ones.
#[derive(Debug, Clone, Default)]
struct Rows {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// What sequences have written so far.
#[derive(Debug)]
pub struct State {
    options: StateOptions,
    specs: Vec<CacheSpec>,
    rows: Vec<Vec<Rows>>, // [slots][caches]
    committed: Vec<usize>,
    pending: Vec<Vec<i32>>, // [slots][rows]: parents among the slot's own rows
}

/// The rows that one row of a batch may see, in order of position.
pub struct Visible<'a> {
    rows: &'a Rows,
    order: Vec<usize>,
    pub num_kv_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl Visible<'_> {
    /// Key and value rows in order of position.
    pub fn positions(&self) -> impl Iterator<Item = (&[f32], &[f32])> {
        self.order.iter().map(|&index| (&self.rows.keys[index][..], &self.rows.values[index][..]))
    }
}

impl State {
    /// An empty state.
    pub fn new(specs: &[CacheSpec], options: StateOptions) -> Self {
        Self {
            options,
            specs: specs.to_vec(),
            rows: vec![vec![Rows::default(); specs.len()]; options.slots],
            committed: vec![0; options.slots],
            pending: vec![Vec::new(); options.slots],
        }
    }

    /// Drops what is pending in the forest's slots and takes its rows as the new pending ones.
    pub fn begin(&mut self, forest: &Forest, vocab_size: usize) -> Result<()> {
        forest.check(vocab_size, self.options, |slot| self.committed[slot])?;
        for (slot, range) in forest.slot_rows() {
            self.drop_pending(slot);
            self.pending[slot] = forest.pending_parents(range).collect();
        }
        Ok(())
    }

    /// Forgets the pending rows of a run that failed: some layers never wrote theirs.
    pub fn abandon(&mut self, forest: &Forest) {
        for (slot, _) in forest.slot_rows() {
            self.drop_pending(slot);
        }
    }

    /// Stores the rows of one layer as the cache's type keeps them.
    pub fn append(&mut self, cache: usize, forest: &Forest, keys: &[f32], values: &[f32]) {
        let CacheSpec::Attention { num_kv_heads, key_dim, value_dim, .. } = self.specs[cache];
        let stored = |x: &[f32], ty: CacheType| match ty {
            CacheType::F32 => x.to_vec(),
            CacheType::F16 => x.iter().map(|&x| f16_to_f32(f32_to_f16(x))).collect(),
        };
        for (row, &slot) in forest.slots().iter().enumerate() {
            let (k, v) = (num_kv_heads * key_dim, num_kv_heads * value_dim);
            let rows = &mut self.rows[slot as usize][cache];
            rows.keys.push(stored(&keys[row * k..][..k], self.options.key));
            rows.values.push(stored(&values[row * v..][..v], self.options.value));
        }
    }

    /// What a row may see: committed positions, its ancestors in the batch, itself; inside the window.
    pub fn visible(&self, cache: usize, forest: &Forest, row: usize) -> Visible<'_> {
        let CacheSpec::Attention { num_kv_heads, key_dim, value_dim, window } = self.specs[cache];
        let slot = forest.slots()[row] as usize;
        let first_row = forest.slots().iter().position(|&s| s as usize == slot).expect("the row has a slot");
        let committed = self.committed[slot];
        let stored = |row: usize| committed + row - first_row;
        let mut order: Vec<usize> = match forest.block_rows(row) {
            Some(block) => {
                let before = forest.positions()[block.start] as usize;
                (0..before).chain(block.map(stored)).collect()
            }
            None => {
                let mut path = Vec::new();
                let mut node = row as i32;
                while node >= 0 {
                    path.push(stored(node as usize));
                    node = forest.parents()[node as usize];
                }
                path.reverse();
                (0..committed).chain(path).collect()
            }
        };
        if let Some(window) = window {
            // Places in this order are positions.
            order.drain(..(forest.positions()[row] as usize + 1).saturating_sub(window));
        }
        Visible { rows: &self.rows[slot][cache], order, num_kv_heads, key_dim, value_dim }
    }

    /// Keeps the rows of a root path and drops the other pending ones.
    pub fn commit(&mut self, slot: usize, path: &[usize]) -> Result<()> {
        self.require_slot(slot)?;
        let mut parent = -1;
        for &row in path {
            if self.pending[slot].get(row) != Some(&parent) {
                return Err(Error::tree(
                    Evidence::new("path to commit is not a root path of the pending rows")
                        .key(format!("slot {slot}"))
                        .expected(format!("a child of row {parent}"))
                        .found(format!("row {row}")),
                ));
            }
            parent = row as i32;
        }
        let committed = self.committed[slot];
        for rows in &mut self.rows[slot] {
            for stored in [&mut rows.keys, &mut rows.values] {
                let kept: Vec<_> = path.iter().map(|&row| stored[committed + row].clone()).collect();
                stored.truncate(committed);
                stored.extend(kept);
            }
        }
        self.committed[slot] += path.len();
        self.pending[slot].clear();
        Ok(())
    }

    /// Drops pending rows and positions from `len` on.
    pub fn truncate(&mut self, slot: usize, len: usize) -> Result<()> {
        self.require_slot(slot)?;
        if len > self.committed[slot] {
            return Err(Error::tree(
                Evidence::new("cannot truncate to more than is there")
                    .key(format!("slot {slot}"))
                    .expected(format!("at most {}", self.committed[slot]))
                    .found(len),
            ));
        }
        self.committed[slot] = len;
        self.drop_pending(slot);
        Ok(())
    }

    /// Number of committed positions.
    pub fn len(&self, slot: usize) -> usize {
        self.committed[slot]
    }

    fn drop_pending(&mut self, slot: usize) {
        self.pending[slot].clear();
        for rows in &mut self.rows[slot] {
            rows.keys.truncate(self.committed[slot]);
            rows.values.truncate(self.committed[slot]);
        }
    }

    fn require_slot(&self, slot: usize) -> Result<()> {
        if slot < self.options.slots {
            return Ok(());
        }
        Err(Error::tree(
            Evidence::new("slot does not exist").expected(format!("less than {}", self.options.slots)).found(slot),
        ))
    }
}
