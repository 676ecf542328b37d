//! Products of weight matrices and activations.
//!
//! `y = W x` for the rows of a step: weights outermost, rows inside, so that one pass over the weights serves every row.
//! A row's bits depend neither on the other rows nor on the instruction set, nor on whether the matrix was packed:
//! see [`kernel`](self) for the chain of operations of quantized weights and the float module for that of floats.

mod activation;
mod call;
mod float;
mod format;
mod kernel;
mod lanes;
mod types;

use std::cell::RefCell;
use std::ops::Range;

pub use activation::{ActKind, ActLayout, Acts};
use call::Call;
pub use call::OutRows;
use float::Stored;
use format::{TileFormat, pack_tile, tile_parts};
use lanes::Portable;

use crate::isa::{Isa, Level};
use crate::quant::{DequantizeFn, QuantError, QuantType};

/// How products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Numerics {
    /// Integer dot products on activations of 8 bits where the type allows.
    #[default]
    Fast,
    /// Everything in f32.
    Reference,
}

/// How a weight matrix is multiplied, and how its bytes lie in memory for it.
#[derive(Clone, Copy)]
pub struct MatrixLayout {
    isa: Isa,
    ty: QuantType,
    n: usize,
    k: usize,
    row_bytes: usize,
    packed: bool,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    /// Tiles of levels and scales, times quantized activations.
    Tiles(Routines),
    /// The file's own floats, times f32.
    Floats(Stored),
    /// Any other type, turned into f32 row by row, times f32.
    Dequantized(DequantizeFn),
}

/// The routines of one tiled type.
#[derive(Clone, Copy)]
struct Routines {
    tile_bytes: fn(lanes: usize, k: usize) -> usize,
    pack: fn(lanes: usize, k: usize, first: usize, raw: &[u8], tile: &mut [u8]),
    multiply: unsafe fn(isa: Isa, call: &Call<'_>, scratch: &mut [u8]),
}

impl Routines {
    const fn of<F: TileFormat>() -> Self {
        Self { tile_bytes: |lanes, k| tile_parts::<F>(lanes, k).1, pack: pack_tile::<F>, multiply: multiply::<F> }
    }

    /// The registry of tiled types.
    fn for_type(ty: QuantType) -> Option<Self> {
        Some(match ty {
            QuantType::Q4_0 => Self::of::<types::Q4_0>(),
            QuantType::Q4_1 => Self::of::<types::Q4_1>(),
            QuantType::Q5_0 => Self::of::<types::Q5_0>(),
            QuantType::Q5_1 => Self::of::<types::Q5_1>(),
            QuantType::Q8_0 => Self::of::<types::Q8_0>(),
            QuantType::Q4K => Self::of::<types::Q4K>(),
            QuantType::Q5K => Self::of::<types::Q5K>(),
            QuantType::Q6K => Self::of::<types::Q6K>(),
            _ => return None,
        })
    }
}

impl MatrixLayout {
    /// The layout of a matrix `[n, k]` of type `ty`. With `pack`, quantized matrices are packed once at load; without,
    /// they stay as they are in the file and each tile is packed when it is read: slower, with the same bits.
    ///
    /// # Errors
    /// When `k` is zero or no multiple of the type's block, or the type does not hold weights.
    pub fn new(
        isa: Isa,
        numerics: Numerics,
        ty: QuantType,
        n: usize,
        k: usize,
        pack: bool,
    ) -> Result<Self, QuantError> {
        let error = QuantError::RowLength { ty, expected: ty.block_len(), found: k };
        let row_bytes = ty.row_bytes(k).filter(|&bytes| bytes > 0 && bytes.checked_mul(n).is_some()).ok_or(error)?;
        let form = match (ty, numerics, Routines::for_type(ty)) {
            (QuantType::F32, ..) => Form::Floats(Stored::F32),
            (QuantType::F16, ..) => Form::Floats(Stored::F16),
            (QuantType::BF16, ..) => Form::Floats(Stored::BF16),
            (_, Numerics::Fast, Some(routines)) => Form::Tiles(routines),
            _ => Form::Dequantized(ty.dequantizer().ok_or(QuantError::NoDequantizer { ty })?),
        };
        Ok(Self { isa, ty, n, k, row_bytes, packed: pack && matches!(form, Form::Tiles(_)), form })
    }

    /// The type in the file.
    #[must_use]
    pub fn ty(&self) -> QuantType {
        self.ty
    }

    /// Number of weight rows, which is the width of the output.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Values in a weight row, which is the width of the input.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Weight rows of a tile, the unit in which work is split.
    #[must_use]
    pub fn tile_rows(&self) -> usize {
        if self.isa.level() == Level::Avx512 { 16 } else { 8 }
    }

    /// Number of tiles; the last one may be part empty.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.n.div_ceil(self.tile_rows())
    }

    /// Bytes that one product reads of the matrix: packed ones, or the file's.
    #[must_use]
    pub fn bytes(&self) -> usize {
        if self.packed { self.packed_bytes() } else { self.n * self.row_bytes }
    }

    /// Whether [`MatrixLayout::pack`] makes the bytes that products read. If not, they read the file's own.
    #[must_use]
    pub fn needs_pack(&self) -> bool {
        self.packed
    }

    /// Bytes of one packed tile: a multiple of 64; a buffer for them is fastest at such an address. Zero when nothing is packed.
    #[must_use]
    pub fn tile_bytes(&self) -> usize {
        match self.form {
            Form::Tiles(routines) if self.packed => (routines.tile_bytes)(self.tile_rows(), self.k),
            _ => 0,
        }
    }

    /// Bytes of all packed tiles. Zero when nothing is packed.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        self.tiles() * self.tile_bytes()
    }

    /// The form of activations that the matrix reads.
    #[must_use]
    pub fn act_kind(&self) -> ActKind {
        if matches!(self.form, Form::Tiles(_)) { ActKind::Q8 } else { ActKind::F32 }
    }

    /// The layout of the activations of `rows` rows.
    #[must_use]
    pub fn act_layout(&self, rows: usize) -> ActLayout {
        ActLayout::new(self.act_kind(), self.k, rows)
    }

    /// Packs a range of tiles from the whole matrix `raw` into `packed`, which holds those tiles alone: ranges can be packed in parallel.
    ///
    /// # Panics
    /// When nothing is to be packed, the range is not within the tiles, or a slice has not its size.
    pub fn pack(&self, tiles: Range<usize>, raw: &[u8], packed: &mut [u8]) {
        let Form::Tiles(routines) = self.form else { panic!("{} matrices are not packed", self.ty) };
        assert!(self.packed, "a matrix that was to stay as it is");
        assert_eq!(raw.len(), self.n * self.row_bytes, "bytes of the matrix");
        assert!(tiles.end <= self.tiles(), "{tiles:?} of {} tiles", self.tiles());
        assert_eq!(packed.len(), tiles.len() * self.tile_bytes(), "bytes of the packed tiles");
        for (tile, packed) in tiles.zip(packed.chunks_exact_mut(self.tile_bytes())) {
            (routines.pack)(self.tile_rows(), self.k, tile * self.tile_rows(), raw, packed);
        }
    }
}

/// A matrix to multiply with.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    layout: &'a MatrixLayout,
    data: &'a [u8],
    scale: f32,
}

impl<'a> Matrix<'a> {
    /// A matrix over its packed bytes, or over the file's when nothing was packed.
    ///
    /// # Panics
    /// When `data` has not the bytes of the layout.
    #[must_use]
    pub fn new(layout: &'a MatrixLayout, data: &'a [u8]) -> Self {
        assert_eq!(data.len(), layout.bytes(), "bytes of a {} matrix [{}, {}]", layout.ty, layout.n, layout.k);
        Self { layout, data, scale: 1.0 }
    }

    /// The same matrix whose products are multiplied by a factor.
    #[must_use]
    pub fn scaled(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// `out = scale * W x + bias`, or `out = out + (scale * W x + bias)` with `accumulate`, for the outputs of a range of tiles and every row of `acts`.
    ///
    /// # Panics
    /// When `acts` is not what the matrix reads, or a slice has not its size.
    pub fn multiply(
        &self,
        acts: Acts<'_>,
        tiles: Range<usize>,
        out: &mut [f32],
        stride: usize,
        accumulate: bool,
        bias: Option<&[f32]>,
    ) {
        // SAFETY: the outputs are borrowed mutably, so nobody else is there.
        unsafe { self.multiply_shared(acts, tiles, OutRows::new(out, stride), accumulate, bias) }
    }

    /// The same on outputs that other threads write to as well.
    ///
    /// # Panics
    /// When `acts` is not what the matrix reads, or a slice has not its size.
    ///
    /// # Safety
    /// Nobody else reads or writes the outputs of these tiles during the call. Calls with disjoint ranges of tiles may run at once.
    pub unsafe fn multiply_shared(
        &self,
        acts: Acts<'_>,
        tiles: Range<usize>,
        out: OutRows<'_>,
        accumulate: bool,
        bias: Option<&[f32]>,
    ) {
        let layout = self.layout;
        let Acts { layout: acts, data: x } = acts;
        assert_eq!((acts.kind(), acts.k()), (layout.act_kind(), layout.k), "activations of another matrix");
        assert!(tiles.end <= layout.tiles(), "{tiles:?} of {} tiles", layout.tiles());
        assert!(out.has_room(acts.rows(), layout.n), "no room for {} rows of {} outputs", acts.rows(), layout.n);
        assert!(bias.is_none_or(|bias| bias.len() == layout.n), "a bias needs {} values", layout.n);
        let call = Call {
            n: layout.n,
            k: layout.k,
            data: self.data,
            packed: layout.packed,
            x,
            acts,
            tiles,
            out,
            accumulate,
            scale: self.scale,
            bias,
        };
        match layout.form {
            // SAFETY: everything has just been checked; the outputs are the caller's.
            Form::Tiles(routines) => unsafe {
                if layout.packed {
                    (routines.multiply)(layout.isa, &call, &mut []);
                } else {
                    with_scratch((routines.tile_bytes)(layout.tile_rows(), layout.k).div_ceil(4), |scratch| {
                        let bytes = scratch.as_mut_ptr().cast::<u8>();
                        let scratch = std::slice::from_raw_parts_mut(bytes, size_of_val(scratch));
                        (routines.multiply)(layout.isa, &call, scratch);
                    });
                }
            },
            // SAFETY: as above.
            Form::Floats(stored) => unsafe { multiply_floats(layout.isa, &call, stored) },
            // SAFETY: as above.
            Form::Dequantized(dequantize) => with_scratch(layout.k, |scratch| unsafe {
                multiply_dequantized(layout.isa, &call, dequantize, layout.row_bytes, scratch);
            }),
        }
    }
}

/// Lends this thread's scratch of at least `len` values; it grows at first use and stays.
fn with_scratch<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        work(&mut scratch[..len])
    })
}

/// Defines a function that runs `$drive` with the lanes of an [`Isa`], compiled for it.
macro_rules! dispatch {
    ($(#[$doc:meta])* fn $name:ident $(<$format:ident>)? ($($arg:ident: $ty:ty),*) = $drive:expr;) => {
        $(#[$doc])*
        unsafe fn $name $(<$format: TileFormat>)? (isa: Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                use lanes::{Avx2, Avx2Vnni, Avx512};

                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,bmi1,bmi2")]
                unsafe fn avx512 $(<$format: TileFormat>)? (v: Avx512, $($arg: $ty),*) {
                    // SAFETY: the caller's.
                    unsafe { $drive(v, $($arg),*) }
                }
                #[target_feature(enable = "avxvnni,avx2,fma,f16c,bmi1,bmi2")]
                unsafe fn avx2_vnni $(<$format: TileFormat>)? (v: Avx2Vnni, $($arg: $ty),*) {
                    // SAFETY: the caller's.
                    unsafe { $drive(v, $($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
                unsafe fn avx2 $(<$format: TileFormat>)? (v: Avx2, $($arg: $ty),*) {
                    // SAFETY: the caller's.
                    unsafe { $drive(v, $($arg),*) }
                }
                // SAFETY: each token is the proof of the features that its function is compiled for; the rest is the caller's.
                unsafe {
                    if let Some(v) = Avx512::new(isa) {
                        return avx512 $(::<$format>)? (v, $($arg),*);
                    }
                    if let Some(v) = Avx2Vnni::new(isa) {
                        return avx2_vnni $(::<$format>)? (v, $($arg),*);
                    }
                    if let Some(v) = Avx2::new(isa) {
                        return avx2 $(::<$format>)? (v, $($arg),*);
                    }
                }
            }
            let _ = isa;
            // SAFETY: the caller's.
            unsafe { $drive(Portable::<8>, $($arg),*) }
        }
    };
}

dispatch! {
    /// # Safety
    /// As for [`kernel::drive`].
    fn multiply<F>(call: &Call<'_>, scratch: &mut [u8]) = kernel::drive::<_, F>;
}

dispatch! {
    /// # Safety
    /// As for [`float::drive`].
    fn multiply_floats(call: &Call<'_>, stored: Stored) = float::drive;
}

dispatch! {
    /// # Safety
    /// As for [`float::drive_dequantized`].
    fn multiply_dequantized(call: &Call<'_>, dequantize: DequantizeFn, row_bytes: usize, scratch: &mut [f32]) = float::drive_dequantized;
}

#[cfg(test)]
mod tests;
