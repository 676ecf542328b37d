mod pool;
pub use pool::{Pool, Region, default_threads};
