//! The file a report is written to.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::{Builder, NamedTempFile};

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
    /// Makes and removes a temporary file beside `target`, so that a bad path fails before the run. `inputs` are
    /// the files that the run reads.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written, or `target` is not a regular file. A usage error when it
    /// is one of `inputs`, or what standard input, output or error is redirected to.
    pub fn prepare(target: &Path, inputs: &[PathBuf]) -> Result<Self> {
        if in_use(target, inputs) {
            let message = format!("{} is in use by this command, which would replace it", target.display());
            return Err(Error::usage(message).hint("name another file to write to"));
        }
        let file = Self::locate(target).and_then(|file| file.temporary().map(|_| file));
        file.map_err(|error| {
            cannot_write(target, error).hint("name a file in a folder that exists and that you may write")
        })
    }

    fn locate(target: &Path) -> io::Result<Self> {
        // A pipe that /dev/stdout leads to is there, and has no path of its own.
        let target = match fs::metadata(target) {
            Ok(existing) if existing.is_file() => target.canonicalize()?,
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

    /// A temporary file with the permissions a plain new file would have. Errors are about the report and do not
    /// name it, as those of tempfile's own way to create it do.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        Builder::new()
            .prefix(".ramforge-report-")
            .make_in(&self.folder, |path| File::options().write(true).create_new(true).open(path))
    }

    /// Writes `report` as JSON and puts it in the target's place in one step.
    ///
    /// # Errors
    /// The disk is full, or the folder has changed since; the target is then as it was.
    pub fn write(self, report: &impl Serialize) -> Result<()> {
        let write = || -> io::Result<()> {
            let mut file = self.temporary()?;
            let mut text = serde_json::to_vec_pretty(report)?;
            text.push(b'\n');
            // tempfile's own way to write to it puts its name into the errors, too.
            file.as_file_mut().write_all(&text)?;
            file.as_file().sync_all()?;
            file.persist(&self.target)?;
            Ok(())
        };
        write().map_err(|error| cannot_write(&self.target, error))
    }
}

/// Whether `target` is a file that the run reads, or that one of its standard streams is redirected to.
fn in_use(target: &Path, inputs: &[PathBuf]) -> bool {
    let identity = |path: &Path| {
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((metadata.dev(), metadata.ino()))
    };
    let Some(own) = identity(target) else { return false };
    let streams = ["/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"].map(Path::new);
    inputs.iter().map(PathBuf::as_path).chain(streams).any(|used| identity(used) == Some(own))
}

fn cannot_write(target: &Path, error: io::Error) -> Error {
    Error::failed(format!("cannot write {}", target.display())).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind::Usage;
    use crate::report::{Model, Report, Request, Tool};

    fn report() -> Report {
        Report::new(Tool::default(), Model::default(), Request::default())
    }

    #[test]
    fn the_target_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("report.json");
        fs::write(&target, "old").unwrap();
        let file = ReportFile::prepare(&target, &[]).unwrap();
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
            let error = ReportFile::prepare(&target, &[]).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(target.to_str().unwrap()), "{error}");
            assert!(!error.contains(".ramforge-report"), "{error}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_failed_write_is_an_error_and_leaves_the_target() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let file = ReportFile::prepare(&inner.join("report.json"), &[]).unwrap();
        fs::remove_dir(&inner).unwrap();
        let error = file.write(&report()).unwrap_err().to_string();
        assert!(error.contains("report.json") && !error.contains(".ramforge-report"), "{error}");
    }

    #[test]
    fn what_the_run_reads_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [model, other, link] = ["model.gguf", "other.json", "link"].map(|name| folder.path().join(name));
        fs::write(&model, "weights").unwrap();
        fs::write(&other, "old").unwrap();
        std::os::unix::fs::symlink(&model, &link).unwrap();
        let inputs = [folder.path().join("missing"), model.clone()];
        for target in [&model, &link] {
            assert_eq!(ReportFile::prepare(target, &inputs).unwrap_err().kind(), Usage);
        }
        ReportFile::prepare(&other, &inputs).unwrap();
    }
}
