//! What a matrix reads: activations as f32, or quantized to 8 bits in blocks of 32.

use crate::isa::{Isa, for_isa};
use crate::shared::Shared;

/// Values that share a scale.
pub(super) const BLOCK: usize = 32;
/// Bytes of a quantized block: one cache line.
pub(super) const LINE: usize = 64;
/// Rows whose blocks lie next to each other.
pub(super) const GROUP: usize = 8;
/// Lanes along K of the float products, which rows of f32 are padded to.
pub(super) const WIDTH: usize = 16;

/// Where the parts of a quantized block lie within its line. After the 32 signed bytes come, in the order of these constants,
/// the scale, the sum of the block's values (scale times integer sum) and the negated integer sums that formats with an offset start from:
/// for 16-bit accumulators as pairs (bytes 0 and 1, bytes 2 and 3 of each four), for 32-bit ones as one; of the block and of each half.
pub(super) mod at {
    pub const SCALE: usize = 32;
    pub const SUM: usize = 36;
    pub const PAIRS: usize = 40;
    pub const HALF_PAIRS: usize = 44;
    pub const TOTAL: usize = 52;
    pub const HALF_TOTALS: usize = 56;
}

/// The form in which a matrix reads its activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActKind {
    /// Signed bytes with one f32 scale for 32 values.
    Q8,
    /// Single precision.
    F32,
}

/// How the activations of one product lie in memory.
///
/// Rows of `Q8` lie in groups of eight, block by block: the rows of a group follow each other within each block, so that a kernel walks all of them with one pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActLayout {
    kind: ActKind,
    k: usize,
    rows: usize,
}

impl ActLayout {
    /// Activations `[rows, k]`.
    ///
    /// # Panics
    /// When the kind is `Q8` and `k` is no multiple of 32.
    #[must_use]
    pub fn new(kind: ActKind, k: usize, rows: usize) -> Self {
        assert!(kind == ActKind::F32 || k.is_multiple_of(BLOCK), "{k} activations in blocks of {BLOCK}");
        Self { kind, k, rows }
    }

    /// Bytes that one row needs.
    #[must_use]
    pub fn row_bytes(kind: ActKind, k: usize) -> usize {
        match kind {
            ActKind::Q8 => k.div_ceil(BLOCK) * LINE,
            ActKind::F32 => k.next_multiple_of(WIDTH) * size_of::<f32>(),
        }
    }

    /// Bytes of all rows. A buffer for them is fastest at a multiple of 64.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows * Self::row_bytes(self.kind, self.k)
    }

    /// The form.
    #[must_use]
    pub fn kind(&self) -> ActKind {
        self.kind
    }

    /// Values in a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Byte offset of a row's first block, and the bytes from one block to the next.
    pub(super) fn place(&self, row: usize) -> (usize, usize) {
        match self.kind {
            ActKind::Q8 => {
                let (group, within) = (row / GROUP, row % GROUP);
                let size = GROUP.min(self.rows - group * GROUP);
                ((group * GROUP * (self.k / BLOCK) + within) * LINE, size * LINE)
            }
            ActKind::F32 => (row * Self::row_bytes(self.kind, self.k), WIDTH * size_of::<f32>()),
        }
    }

    /// Block `block` of quantized row `row`: values, scale, and scale times the sum of the values.
    ///
    /// # Panics
    /// When there is no such block or `acts` has not the size of the layout.
    #[must_use]
    pub fn read_block(&self, row: usize, block: usize, acts: &[u8]) -> ([i8; BLOCK], f32, f32) {
        assert!(self.kind == ActKind::Q8 && row < self.rows && block < self.k / BLOCK, "block {block} of row {row}");
        let (start, step) = self.place(row);
        let line = &acts[start + block * step..][..LINE];
        let float = |at: usize| f32::from_le_bytes(*line[at..].first_chunk().expect("a line is 64 bytes"));
        (std::array::from_fn(|i| line[i] as i8), float(at::SCALE), float(at::SUM))
    }

    /// Writes one row.
    ///
    /// A block with a value that is not finite gets the scale NaN, so that every product with it is NaN.
    ///
    /// # Panics
    /// When `row`, `x` or `acts` has not the size of the layout.
    pub fn write_row(&self, isa: Isa, row: usize, x: &[f32], acts: &mut [u8]) {
        // SAFETY: the slice is borrowed mutably, so nobody else is there.
        unsafe { self.write_row_shared(isa, row, x, Shared::new(acts)) }
    }

    /// Writes one row, while other threads may write others.
    ///
    /// # Panics
    /// When `row`, `x` or `acts` has not the size of the layout.
    ///
    /// # Safety
    /// Nobody else reads or writes this row of `acts` during the call.
    pub unsafe fn write_row_shared(&self, isa: Isa, row: usize, x: &[f32], acts: Shared<'_, u8>) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(x.len(), self.k, "activations of a row");
        assert!(acts.len() >= self.bytes(), "{} bytes for {} of activations", acts.len(), self.bytes());
        let (start, step) = self.place(row);
        match self.kind {
            ActKind::Q8 => {
                for_isa!(isa, quantize_row, (x: &[f32], acts: Shared<'_, u8>, start: usize, step: usize));
            }
            ActKind::F32 => {
                // SAFETY: the row's bytes are the caller's for this call.
                let out = unsafe { acts.slice_mut(start..start + Self::row_bytes(self.kind, self.k)) };
                let (values, padding) = out.split_at_mut(size_of_val(x));
                for (out, x) in values.as_chunks_mut::<4>().0.iter_mut().zip(x) {
                    *out = x.to_ne_bytes();
                }
                padding.fill(0);
            }
        }
    }
}

/// The activations of one product.
#[derive(Debug, Clone, Copy)]
pub struct Acts<'a> {
    pub(super) layout: ActLayout,
    pub(super) data: &'a [u8],
}

impl<'a> Acts<'a> {
    /// Activations whose rows have all been written.
    ///
    /// # Panics
    /// When `data` is shorter than the layout.
    #[must_use]
    pub fn new(layout: ActLayout, data: &'a [u8]) -> Self {
        assert!(data.len() >= layout.bytes(), "{} bytes for {} of activations", data.len(), layout.bytes());
        Self { layout, data }
    }
}

/// Writes the blocks of a row, the first at `start` and then every `step` bytes; the caller of `write_row_shared` owns them.
#[inline(always)]
fn quantize_row(x: &[f32], acts: Shared<'_, u8>, start: usize, step: usize) {
    for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        let offset = start + block * step;
        // SAFETY: the blocks of a row belong to the caller, who has checked that they lie within the buffer.
        let line = unsafe { acts.slice_mut(offset..offset + LINE) };
        quantize_block(x, line.first_chunk_mut().expect("a line is 64 bytes"));
    }
}

/// 2^-100: below it 127 / amax would come near the end of f32's range, and what is lost is of no account.
const TINY: f32 = f32::from_bits((127 - 100) << 23);
/// Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
const ROUND: f32 = 12_582_912.0;

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], line: &mut [u8; LINE]) {
    // Compared as integers, magnitudes of finite values keep their order and NaN lies above infinity.
    let mut largest = 0;
    for x in x {
        let magnitude = (x.to_bits() & 0x7fff_ffff) as i32;
        largest = if magnitude > largest { magnitude } else { largest };
    }
    let amax = f32::from_bits(largest as u32);
    let finite = largest < 0x7f80_0000;
    let used = finite && amax >= TINY;
    let scale = if used { amax / 127.0 } else { 0.0 };
    let inverse = if used { 127.0 / amax } else { 0.0 };
    let mut q = [0i32; BLOCK];
    for (q, &x) in q.iter_mut().zip(x) {
        let x = if used { x } else { 0.0 };
        let rounded = ((x * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        *q = rounded.clamp(-127, 127);
    }
    for (out, q) in line[..BLOCK].iter_mut().zip(q) {
        *out = q as u8;
    }
    // Sums of the first and the second two of each four values, in each half.
    let mut pairs = [[0i32; 2]; 2];
    for (four, q) in q.as_chunks::<4>().0.iter().enumerate() {
        pairs[four / 4][0] += q[0] + q[1];
        pairs[four / 4][1] += q[2] + q[3];
    }
    let both = [pairs[0][0] + pairs[1][0], pairs[0][1] + pairs[1][1]];
    let totals = [pairs[0][0] + pairs[0][1], pairs[1][0] + pairs[1][1]];
    let total = totals[0] + totals[1];
    let scale = if finite { scale } else { f32::NAN };
    let mut put = |offset: usize, value: i32| line[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    let negated = |pair: [i32; 2]| -pair[0] & 0xffff | -pair[1] << 16;
    put(at::SCALE, scale.to_bits() as i32);
    put(at::SUM, (scale * total as f32).to_bits() as i32);
    put(at::PAIRS, negated(both));
    put(at::HALF_PAIRS, negated(pairs[0]));
    put(at::HALF_PAIRS + 4, negated(pairs[1]));
    put(at::TOTAL, -total);
    put(at::HALF_TOTALS, -totals[0]);
    put(at::HALF_TOTALS + 4, -totals[1]);
}
