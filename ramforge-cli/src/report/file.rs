//! The file a report is written to.

use std::fs::Permissions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use super::Report;
use crate::{Error, Result};

/// A report file that can be written, as far as can be known before the run, and that readers see only
/// when it is whole.
///
/// Nothing lies on disk between [`ReportFile::prepare`] and [`ReportFile::write`], so a command that is
/// killed meanwhile leaves nothing.
#[derive(Debug)]
pub struct ReportFile {
    target: PathBuf,
    folder: PathBuf,
}

impl ReportFile {
    /// Makes and removes a temporary file beside `target`, so that a bad path fails before the run.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written, or `target` is not a regular file.
    pub fn prepare(target: &Path) -> Result<Self> {
        let file = Self::locate(target).and_then(|file| file.temporary().map(|_| file));
        file.map_err(|error| {
            cannot_write(target, error).hint("name a file in a folder that exists and that you may write")
        })
    }

    fn locate(target: &Path) -> io::Result<Self> {
        let target = match target.canonicalize() {
            Ok(existing) if existing.is_file() => existing,
            Ok(_) => return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
            Err(error) if error.kind() == ErrorKind::NotFound => target.to_owned(),
            Err(error) => return Err(error),
        };
        let folder = match target.parent() {
            Some(folder) if folder != "" => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        Ok(Self { target, folder })
    }

    /// A temporary file with the permissions a plain new file would have.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        let permissions = Permissions::from_mode(0o666);
        Builder::new().prefix(".ramforge-report-").permissions(permissions).tempfile_in(&self.folder)
    }

    /// Writes the report and puts it in the target's place in one step.
    ///
    /// # Errors
    /// The disk is full, or the folder has changed since; the target is then as it was.
    pub fn write(self, report: &Report) -> Result<()> {
        let write = || -> io::Result<()> {
            let mut file = self.temporary()?;
            serde_json::to_writer_pretty(&mut file, report)?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(&self.target)?;
            Ok(())
        };
        write().map_err(|error| cannot_write(&self.target, error))
    }
}

fn cannot_write(target: &Path, error: io::Error) -> Error {
    Error::failed(format!("cannot write the report {}", target.display())).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Model, Request, Tool};
    use std::fs;

    fn report() -> Report {
        Report::new(Tool::default(), Model::default(), Request::default())
    }

    #[test]
    fn the_target_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("report.json");
        fs::write(&target, "old").unwrap();
        let file = ReportFile::prepare(&target).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        file.write(&report()).unwrap();
        let read: Report = serde_json::from_str(&fs::read_to_string(&target).unwrap()).unwrap();
        assert_eq!(read, report());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_bad_path_fails_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        for (target, reason) in [
            (folder.path().join("missing/report.json"), "No such file"),
            (folder.path().to_owned(), "not a regular file"),
            (PathBuf::from("/dev/null"), "not a regular file"),
            (PathBuf::from("/proc/report.json"), "No such file"),
        ] {
            let error = ReportFile::prepare(&target).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(target.to_str().unwrap()), "{error}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_failed_write_is_an_error_and_leaves_the_target() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let file = ReportFile::prepare(&inner.join("report.json")).unwrap();
        fs::remove_dir(&inner).unwrap();
        assert!(file.write(&report()).unwrap_err().to_string().contains("report.json"));
    }
}
