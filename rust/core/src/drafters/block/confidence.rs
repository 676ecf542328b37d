//! The confidence head: the chance that a draft is kept, given that those before it were.
//!
//! `sigmoid(w . [h; W1[previous]] + b)`, with h the final state of the draft's row (DeepSpec's order: hidden first).

use draftgauge_kernels::quant::DequantizeFn;

use crate::backend::Bytes;
use crate::error::{Error, Evidence, Result};
use crate::gguf::GgufFile;
use crate::targets::ModelFile;

/// The weights of a confidence head.
pub struct ConfidenceHead {
    hidden: Vec<f32>, // [hidden_size]
    markov: Vec<f32>, // [markov_rank], or none for a head that reads the state alone
    bias: f32,
    table: Table,
}

/// Rows of the Markov head's embedding.
struct Table {
    data: Bytes,
    row_bytes: usize,
    dequantize: DequantizeFn,
}

impl ConfidenceHead {
    /// Reads the head, where the file has one with a Markov head.
    ///
    /// # Errors
    /// `Error::Model` for a head of another width.
    pub fn read(model: &mut ModelFile<'_>, file: &GgufFile, hidden_size: usize, rank: usize) -> Result<Option<Self>> {
        let Some(weight) = model.values("conf_proj.weight")? else { return Ok(None) };
        let bias = model.scalar("conf_proj.bias")?.unwrap_or(0.0);
        if weight.len() != hidden_size && weight.len() != hidden_size + rank {
            return Err(model.bad_tensor(
                "conf_proj.weight",
                "tensor has the wrong shape",
                format!("{} or {hidden_size} values", hidden_size + rank),
                weight.len(),
            ));
        }
        let info = file.required_tensor("markov_w1.weight")?;
        let unreadable =
            || Error::model(Evidence::new("tensor cannot be read as numbers").path(file.path()).tensor(&info.name));
        let ty = info.ty.ok_or_else(unreadable)?;
        let table = Table {
            data: file.bytes(info)?,
            row_bytes: ty.row_bytes(rank).ok_or_else(unreadable)?,
            dequantize: ty.dequantizer().ok_or_else(unreadable)?,
        };
        let (hidden, markov) = weight.split_at(hidden_size);
        Ok(Some(Self { hidden: hidden.to_vec(), markov: markov.to_vec(), bias, table }))
    }

    /// Confidence of the draft that follows `previous`, from the final state of its row.
    pub fn confidence(&self, state: &[f32], previous: u32) -> f32 {
        let mut sum = f64::from(self.bias);
        let mut add =
            |a: &[f32], b: &[f32]| sum += a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        add(&self.hidden, state);
        if !self.markov.is_empty() {
            let mut row = vec![0.0; self.markov.len()];
            let start = previous as usize * self.table.row_bytes;
            (self.table.dequantize)(&self.table.data[start..start + self.table.row_bytes], &mut row);
            add(&self.markov, &row);
        }
        (1.0 / (1.0 + crate::exact::exp(-sum))) as f32
    }
}
