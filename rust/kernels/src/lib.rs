//! Quantized tensor types and CPU kernels.
//!
//! Every kernel gives the same bits on every instruction set: a scalar twin stands beside each vector path and a property binds them.

pub mod attention;
pub mod elementwise;
pub mod float;
pub mod isa;
pub mod math;
pub mod matmul;
pub mod norm;
pub mod quant;
pub mod rope;
pub mod shared;
