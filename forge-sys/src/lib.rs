//! Raw bindings to the pinned and patched llama.cpp, and nothing else. `forge-core` is the safe wrapper.
//!
//! Functions named `forge_*` are ours (`native/forge_ext.h`): they return a status and never throw. What
//! forge-core calls of llama.cpp and ggml directly is what cannot throw; the few functions beyond that are for
//! `examples/direct.rs`.
#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_qualifications, unsafe_op_in_unsafe_fn)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
include!(concat!(env!("OUT_DIR"), "/origin.rs"));
