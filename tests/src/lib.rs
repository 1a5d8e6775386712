//! Generated models, and what the end-to-end tests share.
#![forbid(unsafe_code)]

pub mod cache;
pub mod dequantize;
pub mod fuzz_seeds;
pub mod gguf_reader;
pub mod gguf_writer;
pub mod oracle;
pub mod programs;
pub mod real;
pub mod schema;
pub mod shapes;
pub mod tokenizer;
pub mod weights;
