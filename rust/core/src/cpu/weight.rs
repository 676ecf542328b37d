//! Weights as the CPU reads them: mapped, packed for its tiles, or turned into f32 when they are vectors.

use draftgauge_kernels::matmul::{Matrix, MatrixLayout};
use draftgauge_kernels::quant::{self, DequantizeFn, QuantType};
use draftgauge_kernels::shared::Shared;

use super::aligned::AlignedBytes;
use super::{Cpu, Region};
use crate::backend::{Bytes, WeightSource};
use crate::error::{Error, Evidence, Result};
use crate::program::{WeightSpec, WeightUse};

/// A weight.
pub struct Weight {
    name: String,
    ty: QuantType,
    data: Bytes,
    /// Rows that are looked up.
    table: Option<Table>,
    matrix: Option<Packed>,
    vector: Vec<f32>,
}

struct Table {
    dequantize: DequantizeFn,
    row_bytes: usize,
}

struct Packed {
    layout: MatrixLayout,
    tiles: Option<AlignedBytes>,
    scale: f32,
}

/// Bytes that a weight takes beside the mapped file.
pub fn bytes_beside(cpu: &Cpu, spec: &WeightSpec, ty: QuantType) -> u64 {
    match spec.usage {
        WeightUse::Table => 0,
        WeightUse::Vector => 4 * spec.shape.iter().product::<usize>() as u64,
        WeightUse::Matmul | WeightUse::TableAndMatmul => {
            layout(cpu, spec, ty).map_or(0, |layout| layout.packed_bytes() as u64)
        }
    }
}

fn layout(cpu: &Cpu, spec: &WeightSpec, ty: QuantType) -> Result<MatrixLayout> {
    let [n, k] = spec.shape[..] else {
        return Err(Error::model(
            Evidence::new("a matrix has two dimensions").tensor(&spec.name).found(format!("{:?}", spec.shape)),
        ));
    };
    MatrixLayout::new(cpu.isa, cpu.numerics, ty, n, k, cpu.pack).map_err(|error| quant_error(&spec.name, &error))
}

fn quant_error(name: &str, error: &quant::QuantError) -> Error {
    Error::quant(Evidence::new(error.to_string()).tensor(name))
}

impl Weight {
    pub(super) fn new(cpu: &Cpu, spec: &WeightSpec, source: WeightSource) -> Result<Self> {
        let mut weight = Self {
            name: spec.name.clone(),
            ty: source.ty,
            data: source.data.clone(),
            table: None,
            matrix: None,
            vector: Vec::new(),
        };
        let is_table = matches!(spec.usage, WeightUse::Table | WeightUse::TableAndMatmul);
        let is_matrix = matches!(spec.usage, WeightUse::Matmul | WeightUse::TableAndMatmul);
        if is_table {
            let k = spec.shape.last().copied().unwrap_or(0);
            let error = quant::QuantError::RowLength { ty: source.ty, expected: source.ty.block_len(), found: k };
            let row_bytes = source.ty.row_bytes(k).ok_or_else(|| quant_error(&spec.name, &error))?;
            let dequantize = source
                .ty
                .dequantizer()
                .ok_or_else(|| quant_error(&spec.name, &quant::QuantError::NoDequantizer { ty: source.ty }))?;
            weight.table = Some(Table { dequantize, row_bytes });
        }
        if is_matrix {
            let layout = layout(cpu, spec, source.ty)?;
            let tiles = layout.needs_pack().then(|| pack(cpu, &layout, &source.data)).transpose()?;
            weight.matrix = Some(Packed { layout, tiles, scale: spec.scale });
        }
        if spec.usage == WeightUse::Vector {
            weight.vector = vec![0.0; spec.shape.iter().product()];
            quant::dequantize(source.ty, &source.data, &mut weight.vector)
                .map_err(|error| quant_error(&spec.name, &error))?;
        }
        Ok(weight)
    }

    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The matrix; only for weights that were taken over as one.
    pub(super) fn matrix(&self) -> Matrix<'_> {
        let packed = self.matrix.as_ref().expect("the program multiplies by it");
        let data = packed.tiles.as_ref().map_or(&self.data[..], |tiles| tiles.as_slice());
        Matrix::new(&packed.layout, data).scaled(packed.scale)
    }

    pub(super) fn matrix_layout(&self) -> &MatrixLayout {
        &self.matrix.as_ref().expect("the program multiplies by it").layout
    }

    /// The largest Euclidean norm among the rows of each tile.
    pub(super) fn tile_norms(&self) -> Vec<f32> {
        let layout = self.matrix_layout();
        let (Some(dequantize), rows) = (self.ty.dequantizer(), layout.n()) else { return Vec::new() };
        let row_bytes = self.data.len() / rows.max(1);
        let mut values = vec![0.0; layout.k()];
        let mut norms = vec![0.0_f32; layout.tiles()];
        for (row, data) in self.data.chunks_exact(row_bytes.max(1)).enumerate().take(rows) {
            dequantize(data, &mut values);
            let norm = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
            let tile = &mut norms[row / layout.tile_rows()];
            *tile = tile.max(norm);
        }
        norms
    }

    /// The values of a vector.
    pub(super) fn vector(&self) -> &[f32] {
        &self.vector
    }

    /// Reads one row of a table.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        let table = self.table.as_ref().expect("the program looks rows up");
        (table.dequantize)(&self.data[row * table.row_bytes..][..table.row_bytes], out);
    }
}

/// Packs the tiles of a matrix on all threads.
fn pack(cpu: &Cpu, layout: &MatrixLayout, raw: &[u8]) -> Result<AlignedBytes> {
    struct Packing<'a> {
        layout: &'a MatrixLayout,
        raw: &'a [u8],
        packed: Shared<'a, u8>,
        pieces: usize,
    }
    impl Region for Packing<'_> {
        fn stages(&self) -> usize {
            1
        }
        fn pieces(&self, _: usize) -> usize {
            self.pieces
        }
        fn piece(&self, _: usize, piece: usize, _: usize) {
            let tiles = super::run::share_of(self.layout.tiles(), piece, self.pieces);
            let bytes = self.layout.tile_bytes();
            // SAFETY: pieces have disjoint ranges of tiles.
            let packed = unsafe { self.packed.slice_mut(tiles.start * bytes..tiles.end * bytes) };
            self.layout.pack(tiles, self.raw, packed);
        }
    }
    let mut packed = AlignedBytes::zeroed(layout.packed_bytes());
    let pieces = layout.tiles().min(8 * cpu.pool.threads());
    cpu.pool.run(&Packing { layout, raw, packed: Shared::new(packed.as_mut_slice()), pieces })?;
    Ok(packed)
}
