//! What the worker does: load the model, process the prompt, generate.
//!
//! Everything a run needs is in [`Settings`], which the supervisor validates and the worker reads. The
//! model's text goes to the writer the caller passes; everything else is a record or progress.

mod chat;
mod device;
mod fit;
mod generate;
pub(crate) mod prompt;
pub mod rendering;
mod session;
mod settings;
mod text;

pub use chat::{Message, Role, Template};
pub use device::require_cpu;
pub use generate::{Generated, StopReason};
pub(crate) use session::{BATCH_TOKENS, context_params};
pub use session::{Progress, Surroundings, run};
pub use settings::{DeviceChoice, Policy, PromptSource, Sampling, Settings};
