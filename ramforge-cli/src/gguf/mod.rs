//! GGUF files as they are on disk: headers, shards and what must hold before native code opens them.
//!
//! Only headers are read. Every count, length, offset and dimension is checked against the file's real
//! size before anything is allocated for it, so a file of N bytes never costs more than a small multiple
//! of N. [`Model::open`] is the way in for every command, so that they agree on what is wrong with a file.

mod error;
mod header;
mod hyperparameters;
mod model;
mod shards;
mod tensor_type;
mod text;
mod validate;
mod value;

#[cfg(test)]
pub(crate) mod builder;

pub use error::Error;
pub use header::{Header, Metadata, TensorInfo};
pub use hyperparameters::Hyperparameters;
pub use model::Model;
pub use shards::{ShardFile, resolve};
pub use tensor_type::TensorType;
pub use text::{harmless, printable, steers};
pub use value::{Array, Strings, Value, ValueType};
