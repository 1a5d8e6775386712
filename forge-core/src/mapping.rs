//! The tensors of a loaded model, as the native library holds them.

use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use forge_sys as sys;
use procfs::process::{MemoryMap, Process};

use crate::capability::TensorType;
use crate::error::{Error, ErrorKind, Result, native_call};
use crate::model::Model;
use crate::staging::Region;

/// One tensor of a loaded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeTensor {
    /// Its name.
    pub name: String,
    /// Its type.
    pub tensor_type: TensorType,
    /// Elements in each dimension, innermost first; unused dimensions are 1.
    pub shape: [u64; 4],
    /// Bytes of its data.
    pub bytes: u64,
    /// Address of its first byte; `None` while nothing is allocated.
    pub address: Option<usize>,
    /// The native name of its buffer type.
    pub buffer: Option<String>,
    /// Whether the buffer wraps the mapping of a model file. Otherwise the data is in memory of its own.
    pub file_backed: bool,
}

impl Model {
    /// The tensors, in the order in which the native library made them.
    ///
    /// # Errors
    /// When the native library throws.
    pub fn tensors(&self) -> Result<Vec<NativeTensor>> {
        let mut count = 0;
        native_call(
            || "cannot count the tensors".into(),
            // SAFETY: the model is alive; `count` outlives the call.
            |error| unsafe { sys::forge_model_tensor_count(self.as_ptr(), &raw mut count, error) },
        )?;
        (0..count).map(|index| self.tensor(index)).collect()
    }

    fn tensor(&self, index: usize) -> Result<NativeTensor> {
        let mut native = sys::forge_tensor { size: size_of::<sys::forge_tensor>(), ..Default::default() };
        native_call(
            || format!("cannot describe tensor {index}"),
            // SAFETY: the model is alive; the function checks the index, and `native` carries its size.
            |error| unsafe { sys::forge_model_tensor_at(self.as_ptr(), index, &raw mut native, error) },
        )?;
        // SAFETY: the name belongs to the model; the buffer's name is a static string or null.
        let (name, buffer) = unsafe {
            let buffer = (!native.buffer_name.is_null()).then(|| CStr::from_ptr(native.buffer_name));
            (CStr::from_ptr(native.name), buffer)
        };
        Ok(NativeTensor {
            name: name.to_string_lossy().into_owned(),
            tensor_type: TensorType(native.type_.cast_unsigned()),
            shape: native.ne.map(i64::cast_unsigned),
            bytes: native.bytes,
            address: (!native.data.is_null()).then(|| native.data.addr()),
            buffer: buffer.map(|name| name.to_string_lossy().into_owned()),
            file_backed: native.host_ptr,
        })
    }
}

/// Checks that the kernel has each region mapped from the file and offset it names.
///
/// # Errors
/// [`ErrorKind::Limit`] when it has not, [`ErrorKind::System`] when the list of mappings cannot be read.
pub(crate) fn require_mapped(regions: &[Region], files: &[File]) -> Result<()> {
    let system = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::System, format!("cannot read the list of mappings: {error}"))
    };
    let inodes: Vec<u64> = files
        .iter()
        .map(|file| file.metadata().map(|metadata| metadata.ino()))
        .collect::<std::io::Result<_>>()
        .map_err(|error| system(&error))?;
    let maps = Process::myself().and_then(|process| process.maps()).map_err(|error| system(&error))?;
    for region in regions {
        let mut next = region.address as u64;
        let end = next + region.bytes as u64;
        // The list is sorted by address; a region may span mappings that advice has split.
        for map in maps.iter().filter(|map| map.address.1 > region.address as u64) {
            if next >= end || map.address.0 > next || !shows(map, next, region, inodes[region.file]) {
                break;
            }
            next = map.address.1;
        }
        if next < end {
            return Err(Error::limit(format!(
                "the pages at {:#x} are not the mapping of file {} from byte {} on",
                region.address, region.file, region.offset
            )));
        }
    }
    Ok(())
}

/// Whether the mapping shows, at `address`, the byte of the file that belongs there.
fn shows(map: &MemoryMap, address: u64, region: &Region, inode: u64) -> bool {
    let in_file = region.offset + (address - region.address as u64);
    map.inode == inode && map.offset + (address - map.address.0) == in_file
}
