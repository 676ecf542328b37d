//! GGUF: what is read, what is refused and in which words, what is written, and what a million damaged files do.

mod accepts;
mod allocation;
mod build;
mod fuzz;
mod inspects;
mod rejects;
mod shards;
mod speed;
mod writes;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;
