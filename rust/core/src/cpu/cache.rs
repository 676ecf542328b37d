//! Keys and values of one sequence: committed rows at the index of their position, pending rows after them.

use std::ops::Range;

use draftgauge_kernels::attention::{Stored, Visible};
use draftgauge_kernels::float::f32s_to_f16s;
use draftgauge_kernels::shared::Shared;

use crate::backend::{CacheType, Forest, StateOptions};
use crate::error::{Error, Evidence, Result};
use crate::program::CacheSpec;

/// The first growth: short conversations never grow again.
const FIRST_CAPACITY: usize = 256;

/// Keys or values of one layer, `[heads, capacity, width]`.
#[derive(Debug, Clone)]
enum Plane {
    F16(Vec<u16>),
    F32(Vec<f32>),
}

/// A plane whose rows several threads write, each its own.
#[derive(Clone, Copy)]
enum SharedPlane<'a> {
    F16(Shared<'a, u16>),
    F32(Shared<'a, f32>),
}

impl Plane {
    fn new(ty: CacheType) -> Self {
        match ty {
            CacheType::F16 => Self::F16(Vec::new()),
            CacheType::F32 => Self::F32(Vec::new()),
        }
    }

    fn grow(&mut self, heads: usize, width: usize, old: usize, new: usize) {
        fn moved<T: Copy + Default>(data: &[T], heads: usize, old: usize, new: usize) -> Vec<T> {
            let mut grown = vec![T::default(); heads * new];
            for head in 0..heads {
                grown[head * new..][..old].copy_from_slice(&data[head * old..][..old]);
            }
            grown
        }
        match self {
            Self::F16(data) => *data = moved(data, heads, old * width, new * width),
            Self::F32(data) => *data = moved(data, heads, old * width, new * width),
        }
    }

    /// Copies row `from` to row `to` in every head.
    fn copy(&mut self, heads: usize, width: usize, capacity: usize, from: usize, to: usize) {
        for head in 0..heads {
            let start = (head * capacity + from) * width;
            let target = (head * capacity + to) * width;
            match self {
                Self::F16(data) => data.copy_within(start..start + width, target),
                Self::F32(data) => data.copy_within(start..start + width, target),
            }
        }
    }

    fn share(&mut self) -> SharedPlane<'_> {
        match self {
            Self::F16(data) => SharedPlane::F16(Shared::new(data)),
            Self::F32(data) => SharedPlane::F32(Shared::new(data)),
        }
    }
}

impl<'a> SharedPlane<'a> {
    /// Stores the heads of one row.
    ///
    /// # Safety
    /// Nobody else touches this row meanwhile.
    unsafe fn write(self, capacity: usize, row: usize, width: usize, x: &[f32]) {
        for (head, x) in x.chunks_exact(width).enumerate() {
            let start = (head * capacity + row) * width;
            // SAFETY: the row is the caller's.
            unsafe {
                match self {
                    Self::F16(data) => f32s_to_f16s(x, data.slice_mut(start..start + width)),
                    Self::F32(data) => data.slice_mut(start..start + width).copy_from_slice(x),
                }
            }
        }
    }

    /// The rows of one head.
    ///
    /// # Safety
    /// Nobody writes to the plane while the result lives.
    unsafe fn head(self, head: usize, rows: usize, width: usize) -> Stored<'a> {
        let range = head * rows * width..(head + 1) * rows * width;
        // SAFETY: the caller keeps writers away.
        unsafe {
            match self {
                Self::F16(data) => Stored::F16(data.slice(range)),
                Self::F32(data) => Stored::F32(data.slice(range)),
            }
        }
    }
}

/// The planes of one layer of one sequence, shared out among the threads of a step.
#[derive(Clone, Copy)]
pub struct Layer<'a> {
    keys: SharedPlane<'a>,
    values: SharedPlane<'a>,
    spec: CacheSpec,
    capacity: usize,
}

impl<'a> Layer<'a> {
    /// Stores keys and values of a row.
    ///
    /// # Safety
    /// Nobody else touches the row meanwhile.
    pub unsafe fn write(&self, row: usize, key: &[f32], value: &[f32]) {
        let CacheSpec::Attention { key_dim, value_dim, .. } = self.spec;
        // SAFETY: the caller's.
        unsafe {
            self.keys.write(self.capacity, row, key_dim, key);
            self.values.write(self.capacity, row, value_dim, value);
        }
    }

    /// Keys and values of a head.
    ///
    /// # Safety
    /// Nobody writes to the layer while the results live.
    pub unsafe fn head(&self, head: usize) -> (Stored<'a>, Stored<'a>) {
        let CacheSpec::Attention { key_dim, value_dim, .. } = self.spec;
        // SAFETY: the caller's.
        unsafe { (self.keys.head(head, self.capacity, key_dim), self.values.head(head, self.capacity, value_dim)) }
    }
}

/// One sequence.
#[derive(Debug)]
pub struct Slot {
    planes: Vec<(Plane, Plane)>,
    capacity: usize,
    /// Most positions that it may come to hold.
    ctx: usize,
    committed: usize,
    /// Parent of each pending row, among the pending rows; -1 for the last committed position.
    pending: Vec<i32>,
}

impl Slot {
    /// An empty sequence, which holds no memory yet.
    pub fn new(specs: &[CacheSpec], options: StateOptions) -> Self {
        let planes = specs.iter().map(|_| (Plane::new(options.key), Plane::new(options.value))).collect();
        Self { planes, capacity: 0, ctx: options.ctx, committed: 0, pending: Vec::new() }
    }

    /// Number of committed positions.
    pub fn len(&self) -> usize {
        self.committed
    }

    /// Drops what is pending and makes room for the rows of these parents.
    pub fn begin(&mut self, specs: &[CacheSpec], parents: impl Iterator<Item = i32>) {
        self.pending.clear();
        self.pending.extend(parents);
        let needed = self.committed + self.pending.len();
        if needed > self.capacity {
            // Only a tree, whose rows share positions, may need more rows than the context has positions.
            let capacity = needed.max((2 * self.capacity).max(FIRST_CAPACITY).min(self.ctx));
            for ((keys, values), spec) in self.planes.iter_mut().zip(specs) {
                let CacheSpec::Attention { num_kv_heads, key_dim, value_dim, .. } = *spec;
                keys.grow(num_kv_heads, key_dim, self.capacity, capacity);
                values.grow(num_kv_heads, value_dim, self.capacity, capacity);
            }
            self.capacity = capacity;
        }
    }

    /// Drops what is pending: rows of a run that failed.
    pub fn abandon(&mut self) {
        self.pending.clear();
    }

    /// Shares the planes out for a step.
    pub fn share<'a>(&'a mut self, specs: &[CacheSpec]) -> impl Iterator<Item = Layer<'a>> {
        let capacity = self.capacity;
        self.planes.iter_mut().zip(specs.to_vec()).map(move |((keys, values), spec)| Layer {
            keys: keys.share(),
            values: values.share(),
            spec,
            capacity,
        })
    }

    /// Keeps the pending rows of a root path, in order, and drops the others.
    ///
    /// # Errors
    /// `Error::Tree` when `path` is no root path of the pending rows; nothing has changed then.
    pub fn commit(&mut self, specs: &[CacheSpec], path: &[usize]) -> Result<()> {
        let mut parent = -1;
        for &row in path {
            if self.pending.get(row) != Some(&parent) {
                return Err(Error::tree(
                    Evidence::new("path to commit is not a root path of the pending rows")
                        .expected(format!("a child of row {parent}"))
                        .found(format!("row {row}")),
                ));
            }
            parent = row as i32;
        }
        // A path's rows never lie before their target, so that copying forward overwrites nothing that is still needed.
        for (depth, &row) in path.iter().enumerate().filter(|&(depth, &row)| depth != row) {
            for ((keys, values), spec) in self.planes.iter_mut().zip(specs) {
                let CacheSpec::Attention { num_kv_heads, key_dim, value_dim, .. } = *spec;
                let (from, to) = (self.committed + row, self.committed + depth);
                keys.copy(num_kv_heads, key_dim, self.capacity, from, to);
                values.copy(num_kv_heads, value_dim, self.capacity, from, to);
            }
        }
        self.committed += path.len();
        self.pending.clear();
        Ok(())
    }

    /// Drops what is pending and positions from `len` on.
    ///
    /// # Errors
    /// `Error::Tree` when fewer positions are there.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.committed {
            return Err(Error::tree(
                Evidence::new("cannot truncate to more than is there")
                    .expected(format!("at most {}", self.committed))
                    .found(len),
            ));
        }
        self.committed = len;
        self.pending.clear();
        Ok(())
    }
}

/// Where the root paths of a slot's pending rows lie in storage.
#[derive(Debug, Default)]
pub struct Paths {
    rows: Vec<Path>,
    rest: Vec<u32>,
}

/// What one row sees: stored rows before `end`, then others; their positions follow each other from 0 on.
#[derive(Debug, Clone)]
struct Path {
    /// The row's own position.
    position: usize,
    end: usize,
    /// Where the numbers of the other stored rows are kept.
    rest: Range<usize>,
}

impl Paths {
    /// Finds the paths of pending rows `parents`, which follow `committed` positions.
    pub fn find(&mut self, committed: usize, parents: &[i32]) {
        self.rows.clear();
        self.rest.clear();
        for (row, &parent) in parents.iter().enumerate() {
            let stored = committed + row;
            let (position, end, rest) = match usize::try_from(parent) {
                Ok(parent) => {
                    let Path { position, end, rest } = self.rows[parent].clone();
                    (position + 1, end, rest)
                }
                Err(_) => (committed, committed, 0..0),
            };
            if rest.is_empty() && end == stored {
                self.rows.push(Path { position, end: end + 1, rest: 0..0 });
            } else {
                let start = self.rest.len();
                self.rest.extend_from_within(rest);
                self.rest.push(stored as u32);
                self.rows.push(Path { position, end, rest: start..self.rest.len() });
            }
        }
    }

    /// Finds what the rows of draft blocks see: committed positions before their block, then rows of it.
    pub fn find_blocks(&mut self, committed: usize, forest: &Forest, range: Range<usize>) {
        self.rows.clear();
        self.rest.clear();
        for row in range.clone() {
            let block = forest.block_rows(row).expect("the forest has draft blocks");
            let start = self.rest.len();
            self.rest.extend(block.clone().map(|other| (committed + other - range.start) as u32));
            let position = forest.positions()[row] as usize;
            let before = forest.positions()[block.start] as usize;
            self.rows.push(Path { position, end: before, rest: start..self.rest.len() });
        }
    }

    /// What a row may see through a window.
    pub fn visible(&self, row: usize, window: Option<usize>) -> Visible<'_> {
        let Path { position, end, ref rest } = self.rows[row];
        let rest = &self.rest[rest.clone()];
        let hidden = window.map_or(0, |window| (position + 1).saturating_sub(window));
        Visible { position: hidden, start: hidden.min(end), end, rest: &rest[hidden.saturating_sub(end)..] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn storage_doubles_up_to_the_context() {
        let specs = [CacheSpec::Attention { num_kv_heads: 2, key_dim: 4, value_dim: 4, window: None }];
        let options = StateOptions { ctx: 700, slots: 1, key: CacheType::F16, value: CacheType::F16 };
        let mut slot = Slot::new(&specs, options);
        assert_eq!(slot.capacity, 0, "nothing is held before the first row");
        for (rows, capacity) in [(1, 256), (255, 256), (1, 512), (255, 512), (1, 700), (187, 700)] {
            slot.begin(&specs, (0..rows).map(|row| row - 1));
            assert_eq!(slot.capacity, capacity);
            slot.commit(&specs, &(0..rows as usize).collect::<Vec<_>>()).unwrap();
        }
        assert_eq!(slot.len(), 700);
        slot.truncate(690).unwrap();
        // Twenty siblings at one position.
        slot.begin(&specs, (0..20).map(|_| -1));
        assert_eq!(slot.capacity, 710);
    }

    proptest! {
        #[test]
        fn paths_agree_with_a_walk_to_the_root(
            committed in 0_usize..10,
            choices in proptest::collection::vec(0_usize..100, 1..20),
            window in proptest::option::of(1_usize..12),
        ) {
            let parents: Vec<i32> = choices.iter().enumerate().map(|(row, choice)| (choice % (row + 1)) as i32 - 1).collect();
            let mut paths = Paths::default();
            paths.find(committed, &parents);
            for row in 0..parents.len() {
                let mut walk = Vec::new();
                let mut node = row as i32;
                while node >= 0 {
                    walk.push(committed + node as usize);
                    node = parents[node as usize];
                }
                walk.reverse();
                let mut want: Vec<usize> = (0..committed).chain(walk).collect();
                let position = want.len().saturating_sub(window.unwrap_or(usize::MAX));
                want.drain(..position);
                let visible = paths.visible(row, window);
                let got: Vec<usize> = (visible.start..visible.end).chain(visible.rest.iter().map(|&r| r as usize)).collect();
                prop_assert_eq!(got, want);
                prop_assert_eq!(visible.position, position);
            }
        }
    }
}
