//! A folder of files with any names and bytes: which of them are a model, and what they make together.
//!
//! The input is the name that the user gives, where an empty one means the folder, and the files, each behind
//! a byte 0x1e: a name to the end of its line, and the bytes.
#![no_main]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};
use ramforge::gguf::{Model, ShardFile, resolve};
use ramforge_fuzz::{assert_printable, bounded};
use tempfile::TempDir;

/// What the files may cost whatever their sizes, a read buffer included, and for each of their bytes.
const FIXED_BYTES: usize = 256 << 10;
const BYTES_PER_BYTE: usize = 64;

/// Between files: the record separator of ASCII.
const SEPARATOR: u8 = 0x1e;
const MOST_FILES: usize = 8;

fuzz_target!(|input: &[u8]| -> Corpus {
    let mut parts = input.split(|&byte| byte == SEPARATOR);
    let given = parts.next().unwrap_or_default();
    let files: Vec<_> = parts.filter_map(|part| part.split_once_line()).collect();
    if files.len() > MOST_FILES || !files.iter().all(|(name, _)| is_name(name)) {
        return Corpus::Reject;
    }
    if !given.is_empty() && !is_name(given) {
        return Corpus::Reject;
    }
    // In memory, where the system has such a folder.
    let folder = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder for the files");
    for (name, bytes) in files {
        fs::write(folder.path().join(OsStr::from_bytes(name)), bytes).expect("the file is written");
    }
    let path = folder.path().join(OsStr::from_bytes(given));
    bounded(FIXED_BYTES + BYTES_PER_BYTE * input.len(), || check(folder.path(), &path));
    Corpus::Keep
});

trait SplitLine {
    /// What is before and after the first line feed.
    fn split_once_line(&self) -> Option<(&[u8], &[u8])>;
}

impl SplitLine for [u8] {
    fn split_once_line(&self) -> Option<(&[u8], &[u8])> {
        let at = self.iter().position(|&byte| byte == b'\n')?;
        Some((&self[..at], &self[at + 1..]))
    }
}

/// Whether `name` can be a file in a folder.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && name.len() < 100 && !name.iter().any(|byte| b"/\0".contains(byte))
}

fn check(folder: &Path, path: &Path) {
    let files = match resolve(path) {
        Ok(files) => files,
        Err(error) => return assert_printable(&error.to_string()),
    };
    let paths = |files: &[ShardFile]| -> Vec<_> { files.iter().map(|file| file.path.clone()).collect() };
    let found = paths(&files);
    assert!(!found.is_empty());
    for (number, file) in files.iter().enumerate() {
        assert_eq!(file.path.parent(), Some(folder), "outside of the folder");
        assert!(!found[..number].contains(&file.path), "{found:?}");
        // Whichever shard is given, the model is the same.
        let again = resolve(&file.path).expect("a shard of a model that was found");
        assert_eq!(paths(&again), found);
    }
    let tensors: usize = files.iter().map(|file| file.header.tensors.len()).sum();
    match Model::new(files) {
        Ok(model) => {
            let names: std::collections::HashSet<_> =
                model.tensors().map(|(_, tensor)| &tensor.name).collect();
            assert_eq!((names.len(), model.tensor_count()), (tensors, tensors));
        }
        Err(error) => assert_printable(&error.to_string()),
    }
}
