//! What the native library holds in memory, joined with where the model's files have it.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use forge_core::NativeTensor;
use forge_core::staging::Region;

use super::page_sets::{around, bytes};
use super::policy::exclusive_pages;
use super::resident::Resident;
use super::snapshot::PagedTensor;
use super::stream::Pages;
use crate::gguf::{self, printable};
use crate::report;
use crate::{Error, Result};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The tensors of a loaded model and the mappings they lie in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// Counts the inventories of a process; what was planned on another one is refused.
    pub generation: u64,
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
    /// The native name of its buffer.
    pub buffer: Option<String>,
    /// Bytes of another copy of it, in memory of its own: a matrix that is the embedding and the output can be
    /// read from the file as the one, and repacked as the other.
    pub copy_bytes: u64,
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
        if forge_core::pages::page_bytes() as u64 != PAGE {
            let found = forge_core::pages::page_bytes();
            return Err(Error::failed(format!("pages of {found} bytes are not supported, only of {PAGE}")));
        }
        let mut by_name: HashMap<&str, Vec<&NativeTensor>> = HashMap::new();
        for tensor in native {
            by_name.entry(&tensor.name).or_default().push(tensor);
        }
        let mut mappings: Vec<Mapping> = model
            .files()
            .iter()
            .map(|file| Mapping { path: file.path.clone(), bytes: file.bytes, address: None })
            .collect();
        let mut tensors = Vec::with_capacity(model.tensor_count());
        for (file, info) in model.tensors() {
            // A tensor that the architecture does not use is not loaded.
            let copies = by_name.get(&*info.name).map_or(&[][..], Vec::as_slice);
            if let Some(native) = copies.iter().find(|native| native.bytes != info.bytes) {
                return Err(Error::failed(format!(
                    "the tensor {} has {} bytes in the file and {} in memory",
                    printable(&*info.name),
                    info.bytes,
                    native.bytes
                )));
            }
            let in_file = copies.iter().find(|native| native.file_backed);
            let native = in_file.or(copies.first());
            let backing = match native {
                Some(native) => backing(native, &mut mappings[file], info.offset)?,
                None => Backing::Unknown,
            };
            let own = copies.iter().filter(|copy| !copy.file_backed && copy.address.is_some());
            let copy_bytes = if in_file.is_some() { own.map(|copy| copy.bytes).sum() } else { 0 };
            tensors.push(Tensor {
                layer: info.layer(),
                tensor_type: info.tensor_type.name(),
                shape: info.shape,
                bytes: info.bytes,
                file,
                offset: info.offset,
                backing,
                buffer: native.and_then(|native| native.buffer.clone()),
                copy_bytes,
                name: info.name.to_string(),
            });
        }
        tensors.sort_by_key(|tensor| (tensor.file, tensor.offset));
        Ok(Self { generation: 1, mappings, tensors })
    }

    /// The tensors whose pages are mapped, as policies see them: those that are read from there, and between
    /// them those that are not. The native library keeps a mapping from its first such tensor to its last.
    pub fn paged(&self) -> Vec<PagedTensor> {
        let mapped: Vec<Option<Pages>> = (0..self.mappings.len()).map(|file| self.mapped(file)).collect();
        let paged = |tensor: &Tensor| PagedTensor {
            name: tensor.name.clone(),
            layer: tensor.layer,
            file: tensor.file,
            offset: tensor.offset,
            bytes: tensor.bytes,
            read: matches!(tensor.backing, Backing::File(_)),
        };
        let is_mapped = |tensor: &&Tensor| {
            let pages = around(tensor.file, tensor.offset, tensor.bytes);
            let all = mapped[tensor.file];
            pages.zip(all).is_some_and(|(pages, all)| all.start <= pages.start && pages.end <= all.end)
        };
        self.tensors.iter().filter(is_mapped).map(paged).collect()
    }

    /// The pages of a file from the first to the last that a tensor is read from; `None` when there is none.
    pub fn mapped(&self, file: usize) -> Option<Pages> {
        let read = |tensor: &&Tensor| tensor.file == file && matches!(tensor.backing, Backing::File(_));
        let pages = self.tensors.iter().filter(read).filter_map(|t| around(file, t.offset, t.bytes));
        pages.reduce(|all, pages| Pages {
            end: all.end.max(pages.end),
            start: all.start.min(pages.start),
            ..all
        })
    }

    /// Where pages are in this process; `None` when their file is not mapped.
    pub fn region(&self, pages: &Pages) -> Option<Region> {
        let address = self.mappings.get(pages.file)?.address? + usize::try_from(pages.start).ok()?;
        let bytes = usize::try_from(pages.bytes()).ok()?;
        Some(Region { file: pages.file, offset: pages.start, address, bytes })
    }

    /// The inventory for the report, with the resident bytes of `resident` where there is one.
    pub fn report(&self, resident: Option<&Resident>) -> report::Inventory {
        let of = |is: fn(&Backing) -> bool| {
            self.tensors.iter().filter(|tensor| is(&tensor.backing)).map(|tensor| tensor.bytes).sum()
        };
        let paged = self.paged();
        let mappings = (0..self.mappings.len()).map(|file| {
            let mapped = self.mapped(file);
            report::Mapping {
                path: self.mappings[file].path.display().to_string(),
                file_bytes: self.mappings[file].bytes,
                mapped_offset: mapped.map(|pages| pages.start),
                mapped_bytes: mapped.map_or(0, |pages| pages.bytes()),
                resident_bytes: resident.map(|resident| mapped.map_or(0, |pages| resident.bytes_of(&pages))),
            }
        });
        report::Inventory {
            generation: self.generation,
            file_backed_bytes: of(|backing| matches!(backing, Backing::File(_))),
            anonymous_bytes: of(|backing| matches!(backing, Backing::Anonymous(_))),
            unknown_bytes: of(|backing| matches!(backing, Backing::Unknown)),
            copy_bytes: self.tensors.iter().map(|tensor| tensor.copy_bytes).sum(),
            mappings: mappings.collect(),
            layers: self.layers(&paged, resident),
            tensors: self.tensors.iter().map(|tensor| tensor_report(tensor, &paged, resident)).collect(),
        }
    }

    fn layers(&self, paged: &[PagedTensor], resident: Option<&Resident>) -> Vec<report::Layer> {
        let indices: BTreeSet<u32> = self.tensors.iter().filter_map(|tensor| tensor.layer).collect();
        let layer = |index: u32| {
            let own: BTreeSet<usize> =
                (0..paged.len()).filter(|&at| paged[at].layer == Some(index) && paged[at].read).collect();
            let (exclusive, shared) = exclusive_pages(paged, &own);
            let tensors = self.tensors.iter().filter(|tensor| tensor.layer == Some(index));
            let both = exclusive.iter().chain(&shared);
            report::Layer {
                index,
                tensors: tensors.clone().count() as u64,
                bytes: tensors.map(|tensor| tensor.bytes).sum(),
                exclusive_page_bytes: bytes(&exclusive),
                shared_page_bytes: bytes(&shared),
                resident_bytes: resident.map(|resident| both.map(|pages| resident.bytes_of(pages)).sum()),
            }
        };
        indices.into_iter().map(layer).collect()
    }
}

fn tensor_report(tensor: &Tensor, paged: &[PagedTensor], resident: Option<&Resident>) -> report::Tensor {
    let backing = match tensor.backing {
        Backing::File(_) => report::Backing::File,
        Backing::Anonymous(_) => report::Backing::Anonymous,
        Backing::Unknown => report::Backing::Unknown,
    };
    let place = paged.iter().position(|other| other.read && other.name == tensor.name);
    let pages = place.map(|place| {
        let (_, shared) = exclusive_pages(paged, &BTreeSet::from([place]));
        let own = around(tensor.file, tensor.offset, tensor.bytes);
        report::TensorPages {
            start: own.map_or(0, |pages| pages.start),
            bytes: own.map_or(0, |pages| pages.bytes()),
            shared_bytes: bytes(&shared),
            resident_bytes: resident.map(|resident| own.map_or(0, |pages| resident.bytes_of(&pages))),
        }
    });
    report::Tensor {
        name: printable(&*tensor.name).to_string(),
        layer: tensor.layer,
        tensor_type: tensor.tensor_type.to_owned(),
        shape: tensor.shape,
        bytes: tensor.bytes,
        buffer: tensor.buffer.clone(),
        backing,
        file: tensor.file as u64,
        offset: tensor.offset,
        pages,
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
