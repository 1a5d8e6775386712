//! The `ramforge` command.
#![forbid(unsafe_code)]
fn main() {}
