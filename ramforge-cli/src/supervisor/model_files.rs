//! The model's files as they were at the start. Reading a page that a mapped file no longer has is a SIGBUS,
//! which says nothing about the reason.

use std::fs::File;
use std::path::PathBuf;

use crate::size::exact;

/// Files that are held open: another file put in the place of one of them changes nothing for the worker.
pub(super) struct ModelFiles(Vec<ModelFile>);

struct ModelFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// A file that has become shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shrunk {
    path: PathBuf,
    before: u64,
    after: u64,
}

impl Shrunk {
    /// What happened, as a sentence.
    pub fn describe(&self) -> String {
        let Self { path, before, after } = self;
        let (before, after) = (exact(*before), exact(*after));
        format!("the file {} shrank from {before} to {after} while it was read", path.display())
    }
}

impl ModelFiles {
    /// Opens `paths`. Those that cannot be opened are left out: they fail where they are loaded.
    pub fn open(paths: &[PathBuf]) -> Self {
        let open = |path: &PathBuf| {
            let file = File::open(path).ok()?;
            let bytes = file.metadata().ok()?.len();
            Some(ModelFile { path: path.clone(), file, bytes })
        };
        Self(paths.iter().filter_map(open).collect())
    }

    /// The first that is shorter now.
    pub fn shrunk(&self) -> Option<Shrunk> {
        self.0.iter().find_map(|ModelFile { path, file, bytes }| {
            let after = file.metadata().ok()?.len();
            (after < *bytes).then(|| Shrunk { path: path.clone(), before: *bytes, after })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_shrinks_is_told_apart_from_one_that_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [kept, cut] = ["kept", "cut"].map(|name| folder.path().join(name));
        for path in [&kept, &cut] {
            std::fs::write(path, [0; 5000]).unwrap();
        }
        let files = ModelFiles::open(&[kept.clone(), folder.path().join("missing"), cut.clone()]);
        std::fs::rename(&cut, folder.path().join("old")).unwrap();
        std::fs::write(&cut, "short").unwrap();
        assert_eq!(files.shrunk(), None);
        File::options().write(true).open(folder.path().join("old")).unwrap().set_len(17).unwrap();
        let shrunk = files.shrunk().unwrap();
        let expected = format!(
            "the file {} shrank from 4.88 KiB (5000 bytes) to 17 bytes while it was read",
            cut.display()
        );
        assert_eq!(shrunk.describe(), expected);
    }
}
