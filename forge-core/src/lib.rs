//! Safe wrapper over the patched llama.cpp that `forge-sys` builds.

pub mod pages;
pub mod spawn;
