//! One product as the kernels see it.

use std::ops::Range;

use super::activation::ActLayout;
use super::lanes::Lanes;
use crate::shared::Shared;

/// Rows of outputs, `stride` values apart.
#[derive(Debug, Clone, Copy)]
pub struct OutRows<'a> {
    data: Shared<'a, f32>,
    stride: usize,
}

impl<'a> OutRows<'a> {
    /// Output `i` of row `r` is `data[r * stride + i]`.
    #[must_use]
    pub fn new(data: &'a mut [f32], stride: usize) -> Self {
        Self { data: Shared::new(data), stride }
    }

    /// The same over values that are already shared out.
    #[must_use]
    pub fn shared(data: Shared<'a, f32>, stride: usize) -> Self {
        Self { data, stride }
    }

    /// Whether `rows` rows of `n` outputs have room.
    pub(super) fn has_room(&self, rows: usize, n: usize) -> bool {
        rows == 0
            || n <= self.stride
                && (rows - 1)
                    .checked_mul(self.stride)
                    .and_then(|start| start.checked_add(n))
                    .is_some_and(|end| end <= self.data.len())
    }

    /// The address of output `i` of row `r`.
    ///
    /// # Safety
    /// The output lies within the rows.
    #[inline(always)]
    pub(super) unsafe fn at(&self, r: usize, i: usize) -> *mut f32 {
        // SAFETY: the caller's.
        unsafe { self.data.as_ptr().add(r * self.stride + i) }
    }
}

/// A checked product.
pub(super) struct Call<'a> {
    pub n: usize,
    pub k: usize,
    /// Packed tiles, or the file's rows.
    pub data: &'a [u8],
    /// Whether `data` is packed.
    pub packed: bool,
    /// Activations in the layout `acts`.
    pub x: &'a [u8],
    pub acts: ActLayout,
    pub tiles: Range<usize>,
    pub out: OutRows<'a>,
    pub accumulate: bool,
    /// Factor of the products, before the bias.
    pub scale: f32,
    pub bias: Option<&'a [f32]>,
}

impl Call<'_> {
    /// Writes the products of row `r` with weight rows `first..first + N`, those that there are.
    ///
    /// # Safety
    /// The outputs are the caller's alone, and `first < n`.
    #[inline(always)]
    pub unsafe fn put<V: Lanes>(&self, v: V, products: V::Float, r: usize, first: usize) {
        let lanes = V::N.min(self.n - first);
        // SAFETY: outputs up to n have room; N of them from `first` on are there in the first branch.
        unsafe {
            if lanes == V::N {
                let mut value = products;
                if self.scale != 1.0 {
                    value = v.mul(value, v.splat_f32((&raw const self.scale).cast()));
                }
                if let Some(bias) = self.bias {
                    value = v.add(value, v.load_f32(bias.as_ptr().add(first).cast()));
                }
                let out = self.out.at(r, first);
                if self.accumulate {
                    value = v.add(v.load_f32(out.cast()), value);
                }
                v.store(value, out);
            } else {
                let mut values = [0.0; 64];
                v.store(products, values.as_mut_ptr());
                for (lane, &value) in values[..lanes].iter().enumerate() {
                    self.put_one(value, r, first + lane);
                }
            }
        }
    }

    /// Writes the product of row `r` with weight row `i`.
    ///
    /// # Safety
    /// The output is the caller's alone, and `i < n`.
    #[inline(always)]
    pub unsafe fn put_one(&self, product: f32, r: usize, i: usize) {
        // A product by one keeps its bits, so both ways agree.
        let mut value = product * self.scale;
        if let Some(bias) = self.bias {
            value += bias[i];
        }
        // SAFETY: the caller's.
        unsafe {
            let out = self.out.at(r, i);
            if self.accumulate {
                value += *out;
            }
            *out = value;
        }
    }
}
