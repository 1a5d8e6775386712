//! RAMforge runs GGUF models larger than the memory they are allowed, and says where every byte was.
//!
//! The library never touches the terminal, the environment or the exit code; `main` does.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod commands;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod gguf;
pub mod inspect;
pub mod ledger;
pub mod observe;
pub mod plan;
pub mod report;
pub mod residency;
pub mod size;
pub mod sizing;
pub mod supervisor;
pub mod support;

pub use error::{Error, ErrorKind, Result};
