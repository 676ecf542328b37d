//! Caches on a device: keys and values of each layer and slot, committed positions first, then the pending rows.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use draftgauge_core::backend::{CacheType, Forest, StateOptions};
use draftgauge_core::error::{Error, Evidence, Result};
use draftgauge_core::program::CacheSpec;

use crate::failed;

/// Positions that a cache begins with; it doubles from there.
const FIRST_CAPACITY: usize = 64;

/// Keys or values of one layer and slot.
struct Rows {
    tensor: Tensor, // [num_kv_heads, capacity, dim]
}

impl Rows {
    fn new(num_kv_heads: usize, dim: usize, ty: CacheType, device: &Device) -> candle_core::Result<Self> {
        let dtype = match ty {
            CacheType::F16 => DType::F16,
            CacheType::F32 => DType::F32,
        };
        Ok(Self { tensor: Tensor::zeros((num_kv_heads, 0, dim), dtype, device)? })
    }

    /// Makes room for `len` positions without losing the first `kept`.
    fn reserve(&mut self, len: usize, kept: usize) -> candle_core::Result<()> {
        let (heads, capacity, dim) = self.tensor.dims3()?;
        if len <= capacity {
            return Ok(());
        }
        let grown = len.max(2 * capacity).max(FIRST_CAPACITY);
        let tensor = Tensor::zeros((heads, grown, dim), self.tensor.dtype(), self.tensor.device())?;
        if kept > 0 {
            tensor.slice_set(&self.tensor.narrow(1, 0, kept)?.contiguous()?, 1, 0)?;
        }
        self.tensor = tensor;
        Ok(())
    }

    /// Stores rows after the first `start` positions. `rows`: `[rows, num_kv_heads * dim]`
    fn write(&mut self, rows: &Tensor, start: usize) -> candle_core::Result<()> {
        let num_rows = rows.dim(0)?;
        self.reserve(start + num_rows, start)?;
        let (heads, _, dim) = self.tensor.dims3()?;
        let rows = rows.reshape((num_rows, heads, dim))?.transpose(0, 1)?;
        self.tensor.slice_set(&rows.to_dtype(self.tensor.dtype())?.contiguous()?, 1, start)
    }

    /// Moves the chosen pending rows to just after the committed positions.
    fn keep(&mut self, start: usize, path: &[u32]) -> candle_core::Result<()> {
        let indices: Vec<u32> = path.iter().map(|row| start as u32 + row).collect();
        let indices = Tensor::from_vec(indices, path.len(), self.tensor.device())?;
        let kept = self.tensor.index_select(&indices, 1)?;
        self.tensor.slice_set(&kept.contiguous()?, 1, start)
    }

    /// The given positions as f32. `[num_kv_heads, len, dim]`
    fn read(&self, range: Range<usize>) -> candle_core::Result<Tensor> {
        self.tensor.narrow(1, range.start, range.len())?.to_dtype(DType::F32)?.contiguous()
    }
}

/// Keys and values of one layer and slot.
struct Cache {
    keys: Rows,
    values: Rows,
}

/// One sequence.
struct Slot {
    caches: Vec<Cache>,
    committed: usize,
    pending: Vec<i32>, // parents among the slot's own rows
}

/// What sequences have written so far.
pub struct State {
    options: StateOptions,
    slots: Vec<Slot>,
}

/// Keys, values and who may see them, for the rows of one slot in a batch.
pub struct Visible {
    /// `[num_kv_heads, len, key_dim]`
    pub keys: Tensor,
    /// `[num_kv_heads, len, value_dim]`
    pub values: Tensor,
    /// Zero where a row may look, minus infinity elsewhere. `[rows, len]`
    pub mask: Tensor,
}

impl State {
    /// An empty state.
    pub fn new(specs: &[CacheSpec], options: StateOptions, device: &Device) -> Result<Self> {
        let cache = |spec: &CacheSpec| -> candle_core::Result<Cache> {
            let CacheSpec::Attention { num_kv_heads, key_dim, value_dim, .. } = *spec;
            Ok(Cache {
                keys: Rows::new(num_kv_heads, key_dim, options.key, device)?,
                values: Rows::new(num_kv_heads, value_dim, options.value, device)?,
            })
        };
        let slots = (0..options.slots)
            .map(|_| {
                let caches = specs.iter().map(cache).collect::<candle_core::Result<_>>()?;
                Ok(Slot { caches, committed: 0, pending: Vec::new() })
            })
            .collect::<candle_core::Result<_>>()
            .map_err(failed("open"))?;
        Ok(Self { options, slots })
    }

    /// Drops what is pending in the forest's slots and takes its rows as the new pending ones.
    pub fn begin(&mut self, forest: &Forest, vocab_size: usize) -> Result<()> {
        forest.check(vocab_size, self.options, |slot| self.slots[slot].committed)?;
        for (slot, range) in forest.slot_rows() {
            self.slots[slot].pending = forest.pending_parents(range).collect();
        }
        Ok(())
    }

    /// Forgets the pending rows of a run that failed: some layers never wrote theirs.
    pub fn abandon(&mut self, forest: &Forest) {
        for (slot, _) in forest.slot_rows() {
            self.slots[slot].pending.clear();
        }
    }

    /// Stores the rows of one slot and layer. `keys`, `values`: `[rows, num_kv_heads * dim]`
    pub fn append(&mut self, cache: usize, slot: usize, keys: &Tensor, values: &Tensor) -> candle_core::Result<()> {
        let slot = &mut self.slots[slot];
        let cache = &mut slot.caches[cache];
        cache.keys.write(keys, slot.committed)?;
        cache.values.write(values, slot.committed)
    }

    /// What the pending rows of a slot, `rows` of the forest, may see in one layer.
    pub fn visible(
        &self,
        cache: usize,
        slot: usize,
        forest: &Forest,
        rows: Range<usize>,
        window: Option<usize>,
    ) -> candle_core::Result<Visible> {
        let slot = &self.slots[slot];
        let cache = &slot.caches[cache];
        let end = slot.committed + slot.pending.len();
        // No row looks further back than the first one does.
        let first = forest.positions()[rows.clone()].iter().min().map_or(0, |&position| position as usize);
        let start = window.map_or(0, |window| (first + 1).saturating_sub(window));
        let mask = match forest.draft_blocks() {
            Some(_) => block_mask(slot.committed, forest, rows, start, window),
            None => mask(slot.committed, &slot.pending, start, window),
        };
        Ok(Visible {
            keys: cache.keys.read(start..end)?,
            values: cache.values.read(start..end)?,
            mask: Tensor::from_vec(mask, (slot.pending.len(), end - start), cache.keys.tensor.device())?,
        })
    }

    /// Keeps the rows of a root path and drops the other pending ones.
    pub fn commit(&mut self, slot: usize, path: &[usize]) -> Result<()> {
        let slot_name = self.require_slot(slot)?;
        let slot = &mut self.slots[slot];
        let mut parent = -1;
        for &row in path {
            if slot.pending.get(row) != Some(&parent) {
                return Err(Error::tree(
                    Evidence::new("path to commit is not a root path of the pending rows")
                        .key(slot_name)
                        .expected(format!("a child of row {parent}"))
                        .found(format!("row {row}")),
                ));
            }
            parent = row as i32;
        }
        let in_place = path.iter().enumerate().all(|(place, &row)| place == row);
        if !in_place {
            let path: Vec<u32> = path.iter().map(|&row| row as u32).collect();
            for cache in &mut slot.caches {
                for rows in [&mut cache.keys, &mut cache.values] {
                    rows.keep(slot.committed, &path).map_err(failed("commit"))?;
                }
            }
        }
        slot.committed += path.len();
        slot.pending.clear();
        Ok(())
    }

    /// Drops pending rows and positions from `len` on.
    pub fn truncate(&mut self, slot: usize, len: usize) -> Result<()> {
        let slot_name = self.require_slot(slot)?;
        let slot = &mut self.slots[slot];
        if len > slot.committed {
            return Err(Error::tree(
                Evidence::new("cannot truncate to more than is there")
                    .key(slot_name)
                    .expected(format!("at most {}", slot.committed))
                    .found(len),
            ));
        }
        slot.committed = len;
        slot.pending.clear();
        Ok(())
    }

    /// Number of committed positions.
    pub fn len(&self, slot: usize) -> usize {
        self.slots[slot].committed
    }

    /// Whether a slot holds nothing.
    pub fn is_empty(&self, slot: usize) -> bool {
        self.len(slot) == 0
    }

    fn require_slot(&self, slot: usize) -> Result<String> {
        if slot < self.slots.len() {
            return Ok(format!("slot {slot}"));
        }
        Err(Error::tree(
            Evidence::new("slot does not exist").expected(format!("less than {}", self.slots.len())).found(slot),
        ))
    }
}

/// Who sees whom: committed positions from `start` on, then the pending rows. `[rows, committed - start + rows]`
fn mask(committed: usize, parents: &[i32], start: usize, window: Option<usize>) -> Vec<f32> {
    let width = committed - start + parents.len();
    let window = window.unwrap_or(usize::MAX);
    let mut mask = vec![f32::NEG_INFINITY; parents.len() * width];
    for (row, seen) in mask.chunks_exact_mut(width).enumerate() {
        let mut distance = 0;
        let mut node = row as i32;
        while node >= 0 {
            if distance < window {
                seen[committed - start + node as usize] = 0.0;
            }
            distance += 1;
            node = parents[node as usize];
        }
        // The last committed position lies `distance` before the row.
        let reach = window.saturating_sub(distance).min(committed - start);
        seen[committed - start - reach..committed - start].fill(0.0);
    }
    mask
}

/// The same for draft blocks: committed positions before the block, then rows of it.
fn block_mask(committed: usize, forest: &Forest, rows: Range<usize>, start: usize, window: Option<usize>) -> Vec<f32> {
    let width = committed - start + rows.len();
    let position = |row: usize| forest.positions()[row] as usize;
    let mut mask = vec![f32::NEG_INFINITY; rows.len() * width];
    for (row, seen) in rows.clone().zip(mask.chunks_exact_mut(width)) {
        let block = forest.block_rows(row).expect("the forest has draft blocks");
        let hidden = window.map_or(0, |window| (position(row) + 1).saturating_sub(window));
        let before = position(block.start);
        seen[hidden.clamp(start, before) - start..before - start].fill(0.0);
        for other in block.filter(|&other| position(other) >= hidden) {
            seen[committed - start + other - rows.start] = 0.0;
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::mask;

    const X: f32 = f32::NEG_INFINITY;

    #[test]
    fn a_chain_sees_everything_before_it() {
        assert_eq!(mask(2, &[-1, 0], 0, None), [0.0, 0.0, 0.0, X, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_sibling_is_not_seen() {
        assert_eq!(mask(1, &[-1, 0, 0], 0, None), [0.0, 0.0, X, X, 0.0, 0.0, 0.0, X, 0.0, 0.0, X, 0.0]);
    }

    #[test]
    fn a_window_counts_the_row_itself_and_moves_with_it() {
        // Three committed positions of which the first is out of everyone's reach.
        assert_eq!(mask(3, &[-1, 0], 1, Some(3)), [0.0, 0.0, 0.0, X, X, 0.0, 0.0, 0.0]);
        assert_eq!(mask(1, &[-1, 0, 1], 1, Some(1)), [0.0, X, X, X, 0.0, X, X, X, 0.0]);
    }
}
