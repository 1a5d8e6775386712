//! What a model takes, and whether and how it fits: arithmetic on facts that others have gathered.
//!
//! Nothing here asks the native library or the operating system.

mod kv_type;
mod native;

pub use kv_type::KvType;
pub use native::{ContextRequest, NativeSizes};
