//! Safe wrapper over the patched llama.cpp that `forge-sys` builds.
//!
//! One module a native noun: [`backend`], [`model`], [`context`], [`batch`], [`logits`], [`vocab`],
//! [`sampler`], [`device`]. What borrows what makes misuse a compile error: a context borrows its model, logits
//! borrow their context. Limits on which the native library would abort are checked before it is called, its
//! exceptions become errors, and a panic in a callback continues after the native call has returned.
//!
//! ```no_run
#![doc = include_str!("../examples/generate.rs")]
//! ```

pub mod backend;
pub mod batch;
mod callback;
pub mod capability;
pub mod context;
pub mod device;
pub mod error;
pub mod graph;
pub mod logits;
pub mod mapping;
pub mod model;
pub mod native_log;
pub mod pages;
pub mod sampler;
pub mod sizing;
pub mod spawn;
pub mod staging;
mod state;
pub mod threads;
pub mod trace;
pub mod vocab;

pub use backend::Backend;
pub use batch::{Batch, SequenceId};
pub use context::{Context, ContextParams, ContextSizes, FlashAttention, KvType};
pub use device::{Device, DeviceKind, DeviceRegistry};
pub use error::{Error, ErrorKind, Result};
pub use graph::{ChosenExperts, Node, Observer, PlannedNode};
pub use logits::Logits;
pub use mapping::NativeTensor;
pub use model::{LoadMode, Model, ModelParams};
pub use pages::MappedPages;
pub use sampler::{Sampler, SamplerChain};
pub use threads::Threads;
pub use trace::{Trace, TraceHandle};
pub use vocab::{Token, Vocab};
