//! What the native library holds in memory, joined with where the model's files have it.

use std::collections::HashMap;
use std::path::PathBuf;

use forge_core::NativeTensor;

use crate::gguf;
use crate::{Error, Result};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The tensors of a loaded model and the mappings they lie in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// One mapping a file, in the order of the shards.
    pub mappings: Vec<Mapping>,
    /// The tensors, in the order of their files and offsets.
    pub tensors: Vec<Tensor>,
}

/// The mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The file.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// The address of the file's first byte; `None` when no tensor is read from the mapping. The native
    /// library unmaps what no tensor needs, so not every address of the file is mapped.
    pub address: Option<usize>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The layer it belongs to, from `blk.N.`.
    pub layer: Option<u32>,
    /// The native name of its type.
    pub tensor_type: &'static str,
    /// Elements in each dimension, innermost first.
    pub shape: [u64; 4],
    /// Its bytes, in the file and in memory.
    pub bytes: u64,
    /// The file that has it.
    pub file: usize,
    /// Where in the file it begins.
    pub offset: u64,
    /// Where it is in memory.
    pub backing: Backing,
}

/// Where a tensor is in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// In the file's mapping, at this address.
    File(usize),
    /// In memory of its own, in a buffer with this native name.
    Anonymous(String),
    /// Not known.
    Unknown,
}

impl Inventory {
    /// Joins what the files say with what the native library holds.
    ///
    /// # Errors
    /// When the two contradict each other: then nothing that follows could be trusted.
    pub fn new(model: &gguf::Model, native: &[NativeTensor]) -> Result<Self> {
        let by_name: HashMap<&str, &NativeTensor> =
            native.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut mappings: Vec<Mapping> = model
            .files()
            .iter()
            .map(|file| Mapping { path: file.path.clone(), bytes: file.bytes, address: None })
            .collect();
        let mut tensors = Vec::with_capacity(model.tensor_count());
        for (file, info) in model.tensors() {
            let name = info.name.to_string();
            let native = by_name.get(name.as_str());
            let backing = match native {
                Some(native) => backing(native, &mut mappings[file], info.offset)?,
                // A tensor that the architecture does not use is not loaded.
                None => Backing::Unknown,
            };
            if let Some(native) = native.filter(|native| native.bytes != info.bytes) {
                return Err(Error::failed(format!(
                    "the tensor {name} has {} bytes in the file and {} in memory",
                    info.bytes, native.bytes
                )));
            }
            tensors.push(Tensor {
                layer: info.layer(),
                tensor_type: info.tensor_type.name(),
                shape: info.shape,
                bytes: info.bytes,
                file,
                offset: info.offset,
                backing,
                name,
            });
        }
        tensors.sort_by_key(|tensor| (tensor.file, tensor.offset));
        Ok(Self { mappings, tensors })
    }
}

/// Every tensor read from a mapping must place the file's beginning at the same page-aligned address.
fn backing(native: &NativeTensor, mapping: &mut Mapping, offset: u64) -> Result<Backing> {
    let Some(address) = native.address else { return Ok(Backing::Unknown) };
    if !native.file_backed {
        return Ok(Backing::Anonymous(native.buffer.clone().unwrap_or_default()));
    }
    let base = usize::try_from(offset).ok().and_then(|offset| address.checked_sub(offset));
    match base {
        Some(base)
            if base.is_multiple_of(PAGE as usize) && mapping.address.is_none_or(|known| known == base) =>
        {
            mapping.address = Some(base);
            Ok(Backing::File(address))
        }
        _ => Err(Error::failed(format!(
            "the tensor {} lies at {address:#x}, which is not where the mapping of {} has it",
            native.name,
            mapping.path.display()
        ))),
    }
}
