//! Dropping the model's pages from the page cache before an enforced load, and measuring what is left.
//!
//! Pages that were read on another group's account stay charged to it: the limit would not see them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use forge_core::pages::cached_bytes;
use rustix::fs::{Advice, fadvise};

use crate::report::PageCache;

/// Drops the pages of `files`. What cannot be done or measured is said in the result: a model that cannot
/// be opened fails where it is loaded.
pub(super) fn drop_pages(files: &[PathBuf]) -> PageCache {
    let mut total = PageCache { before_bytes: Some(0), after_bytes: Some(0), reason: None };
    for path in files {
        match drop_file(path) {
            Ok((Some(before), Some(after))) => {
                total.before_bytes = total.before_bytes.map(|bytes| bytes + before);
                total.after_bytes = total.after_bytes.map(|bytes| bytes + after);
            }
            Ok(_) => {
                let reason = "the kernel shows what is cached only to those who own or may write the file";
                return unknown(format!("{}: {reason}", path.display()));
            }
            Err(error) => return unknown(format!("{}: {error}", path.display())),
        }
    }
    total
}

fn unknown(reason: String) -> PageCache {
    PageCache { before_bytes: None, after_bytes: None, reason: Some(reason) }
}

fn drop_file(path: &Path) -> io::Result<(Option<u64>, Option<u64>)> {
    let file = File::open(path)?;
    let before = cached_bytes(&file)?;
    // Pages not yet written cannot be dropped. A file system that cannot sync has none.
    let _ = file.sync_data();
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok((before, cached_bytes(&file)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_cached_and_what_is_left_are_measured() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![1; 3 << 20]).unwrap();
        let seen = drop_pages(&[file.path().to_owned()]);
        assert_eq!(seen.before_bytes, Some(3 << 20), "{seen:?}");
        let left = cached_bytes(file.as_file()).unwrap();
        assert_eq!(seen.after_bytes, left);
        assert_eq!(seen.reason, None);
    }

    #[test]
    fn what_cannot_be_measured_is_null_with_the_reason() {
        let seen = drop_pages(&[PathBuf::from("/nonexistent/model.gguf")]);
        assert_eq!((seen.before_bytes, seen.after_bytes), (None, None));
        assert!(seen.reason.unwrap().contains("/nonexistent/model.gguf"));
    }
}
