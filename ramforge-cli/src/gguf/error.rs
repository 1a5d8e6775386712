//! What can be wrong with a file, in types.

use std::{io, path::Path};

/// What is wrong with a file: the field, where it is, and the values that do not fit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system could not read the file.
    #[error("cannot read {field} at byte {offset}")]
    Read {
        /// What was being read.
        field: String,
        /// Where in the file.
        offset: u64,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file of no bytes.
    #[error("the file is empty")]
    Empty,
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with \"{start}\"")]
    NotGguf {
        /// The first bytes, printable.
        start: String,
    },
    /// Written for the other byte order.
    #[error("the file is big-endian (version field {version:#010x}), only little-endian files are supported")]
    BigEndian {
        /// The version field, read as little-endian.
        version: u32,
    },
    /// A version of the format that is not read.
    #[error("GGUF version {version} is not supported, only 2 and 3 are")]
    Version {
        /// The version in the file.
        version: u32,
    },
    /// Something reaches past the end of the file.
    #[error("{field} at byte {offset} needs {needed} bytes, but only {available} are left in the file")]
    Truncated {
        /// What reaches past the end.
        field: String,
        /// Where it starts in the file.
        offset: u64,
        /// The bytes it needs at least.
        needed: u64,
        /// The bytes there are.
        available: u64,
    },
    /// A field of the header has a value that it must not have.
    #[error("{field} at byte {offset} is {value}: {rule}")]
    Field {
        /// Which field.
        field: String,
        /// Where it is in the file.
        offset: u64,
        /// Its value.
        value: String,
        /// What must hold.
        rule: String,
    },
    /// A metadata key that the native loader requires is not there.
    #[error("metadata key {key} is missing{why}")]
    MissingKey {
        /// The key.
        key: String,
        /// Why it is needed, starting with a separator, or empty.
        why: String,
    },
    /// A metadata value has a type that the native loader does not take.
    #[error("metadata key {key} is {found}, expected {expected}")]
    KeyType {
        /// The key.
        key: String,
        /// The type in the file.
        found: String,
        /// The types that are taken.
        expected: String,
    },
    /// A metadata value is outside what the native code supports.
    #[error("metadata key {key} is {value}: {rule}")]
    KeyValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What must hold.
        rule: String,
    },
    /// A tensor that the model needs is not there.
    #[error("tensor {name} is missing: {why}")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// What requires it.
        why: String,
    },
    /// A tensor's shape contradicts the metadata.
    #[error("tensor {name} has shape {found}, but the metadata asks for {expected}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape in the file.
        found: String,
        /// The shape that follows from the metadata; `?` where any size is allowed.
        expected: String,
    },
    /// A tensor breaks another rule.
    #[error("tensor {name} {problem}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

impl Error {
    /// As the error of a command that reads `path`, with what to do next.
    pub fn at(self, path: &Path) -> crate::Error {
        let hint = match &self {
            Self::Read { .. } => None,
            Self::Empty => Some("download or copy it again".to_owned()),
            Self::NotGguf { .. } => {
                Some("MODEL must be a GGUF file, a shard of one, or a folder with one".to_owned())
            }
            Self::BigEndian { .. } => Some("get a little-endian copy of the model".to_owned()),
            Self::Version { .. } => {
                Some("convert the original model again with a current converter".to_owned())
            }
            Self::Truncated { needed, available, .. } => Some(format!(
                "the file is truncated or damaged: at least {} bytes are missing; download it again",
                needed.saturating_sub(*available)
            )),
            _ => Some(
                "the file is damaged, incomplete or written by a faulty converter; get another copy"
                    .to_owned(),
            ),
        };
        let error = crate::Error::failed(format!("cannot use {}", path.display())).caused_by(self);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}
