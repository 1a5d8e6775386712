//! What a model takes, and whether and how it fits: arithmetic on facts that others have gathered.
//!
//! Nothing here asks the native library or the operating system. Whoever plans gives the headers' facts
//! ([`Model`]), what is free ([`Budget`]), and a function that answers a [`ContextRequest`] with the native
//! library's sizes.

mod admission;
mod document;
mod fit;
mod footprint;
mod free;
mod human;
mod kv_type;
mod native;
mod search;
mod streaming;
mod weights;

pub use admission::{Asked, Decision, refusal};
pub use document::{ModelSummary, Plan, SCHEMA_VERSION};
pub use fit::{Fit, Model, Verdict, Way, WayVerdict, reserve};
pub use footprint::{Footprint, Term};
pub use free::{Bound, Budget};
pub use kv_type::KvType;
pub use native::{ContextRequest, ContextTokens, NativeSizes};
pub use search::largest_context;
pub use streaming::Streaming;
pub use weights::{WeightClass, Weights};
