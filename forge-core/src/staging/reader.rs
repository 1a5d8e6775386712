//! Reading pages of files: straight from the disk, or through the page cache where that is not possible.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plan::PAGE_BYTES;

/// Where to read to: the address and length of a piece of memory that only the reader uses now.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The first byte.
    pub(super) address: usize,
    /// Bytes.
    pub(super) bytes: usize,
}

/// Reads from the files of a model. Calls come from several threads at once.
pub trait ReadAt: Send + Sync {
    /// Fills `targets`, one after the other, with the bytes of `file` from `offset` on. Bytes past the end of
    /// the file become zero, if they are less than a page.
    ///
    /// # Errors
    /// What the read failed with; [`io::ErrorKind::UnexpectedEof`] when the file is shorter than it was.
    ///
    /// # Safety
    /// The targets are mapped, writable, and used by nobody else until this returns.
    unsafe fn read(&self, file: usize, offset: u64, targets: &[Target]) -> io::Result<()>;

    /// Whether the page cache is passed by.
    fn is_direct(&self) -> bool;
}

/// Reads of open files with `preadv`.
struct Files {
    files: Vec<OpenFile>,
    direct: bool,
}

struct OpenFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// A reader that passes the page cache by (O_DIRECT).
///
/// # Errors
/// When a file cannot be opened, or its file system has no direct reads.
pub fn direct_reader(paths: &[PathBuf]) -> io::Result<Arc<dyn ReadAt>> {
    let files = open(paths, libc::O_DIRECT)?;
    for file in &files {
        probe(file)?;
    }
    Ok(Arc::new(Files { files, direct: true }))
}

/// A reader through the page cache, which drops behind it what it has read.
///
/// # Errors
/// When a file cannot be opened.
pub fn buffered_reader(paths: &[PathBuf]) -> io::Result<Arc<dyn ReadAt>> {
    Ok(Arc::new(Files { files: open(paths, 0)?, direct: false }))
}

/// What is called with the file and the offset of a read before it is made.
type Before = dyn Fn(usize, u64) -> io::Result<()> + Send + Sync;

struct Preceded {
    reader: Arc<dyn ReadAt>,
    before: Box<Before>,
}

/// `reader`, with `before` called ahead of each read, on the thread that reads. What it fails with, the read fails
/// with. For tests: a disk that is slow, or breaks.
pub fn preceded_reader(
    reader: Arc<dyn ReadAt>,
    before: impl Fn(usize, u64) -> io::Result<()> + Send + Sync + 'static,
) -> Arc<dyn ReadAt> {
    Arc::new(Preceded { reader, before: Box::new(before) })
}

impl ReadAt for Preceded {
    unsafe fn read(&self, file: usize, offset: u64, targets: &[Target]) -> io::Result<()> {
        (self.before)(file, offset)?;
        // SAFETY: the caller's promise.
        unsafe { self.reader.read(file, offset, targets) }
    }

    fn is_direct(&self) -> bool {
        self.reader.is_direct()
    }
}

fn open(paths: &[PathBuf], flags: libc::c_int) -> io::Result<Vec<OpenFile>> {
    let open = |path: &Path| {
        let file = File::options().read(true).custom_flags(flags | libc::O_CLOEXEC).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(OpenFile { path: path.to_owned(), file, bytes })
    };
    paths.iter().map(|path| open(path)).collect()
}

/// Some file systems take the flag and refuse the read.
fn probe(file: &OpenFile) -> io::Result<()> {
    let memory = super::memory::Anonymous::map(PAGE_BYTES, 0, PAGE_BYTES)?;
    let target = Target { address: memory.address(), bytes: PAGE_BYTES };
    // SAFETY: the page was just mapped, and is used by nobody else.
    unsafe { read_fully(file, 0, &[target]) }
}

impl ReadAt for Files {
    unsafe fn read(&self, file: usize, offset: u64, targets: &[Target]) -> io::Result<()> {
        let file = self.files.get(file).ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: the caller's promise.
        unsafe { read_fully(file, offset, targets) }
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.path.display())))?;
        if !self.direct {
            let bytes: usize = targets.iter().map(|target| target.bytes).sum();
            drop_behind(&file.file, offset, bytes);
        }
        Ok(())
    }

    fn is_direct(&self) -> bool {
        self.direct
    }
}

/// # Safety
/// As for [`ReadAt::read`].
unsafe fn read_fully(file: &OpenFile, mut offset: u64, targets: &[Target]) -> io::Result<()> {
    let mut vectors: Vec<libc::iovec> = targets
        .iter()
        .map(|target| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(target.address),
            iov_len: target.bytes,
        })
        .collect();
    let mut rest = vectors.as_mut_slice();
    let end = offset + targets.iter().map(|target| target.bytes as u64).sum::<u64>();
    // What the file had when it was opened, and so must have now.
    let last = end.min(file.bytes);
    while offset < last {
        let at = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let count = libc::c_int::try_from(rest.len()).map_err(io::Error::other)?;
        // SAFETY: the vectors describe memory that the caller gave to this call alone.
        let read = unsafe { libc::preadv(file.file.as_raw_fd(), rest.as_ptr(), count, at) };
        let read = match usize::try_from(read) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!(
                        "the file ends at byte {offset}; it had {} when the model was loaded",
                        file.bytes
                    ),
                ));
            }
            Ok(read) => read,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
        };
        offset += read as u64;
        rest = advance(rest, read);
    }
    Ok(())
}

/// The vectors without their first `done` bytes.
fn advance(mut vectors: &mut [libc::iovec], mut done: usize) -> &mut [libc::iovec] {
    while let Some(first) = vectors.first_mut() {
        if done < first.iov_len {
            // SAFETY: still inside the memory that the vector describes.
            first.iov_base = unsafe { first.iov_base.byte_add(done) };
            first.iov_len -= done;
            break;
        }
        done -= first.iov_len;
        vectors = &mut vectors[1..];
    }
    vectors
}

fn drop_behind(file: &File, offset: u64, bytes: usize) {
    if let (Ok(offset), Ok(bytes)) = (libc::off_t::try_from(offset), libc::off_t::try_from(bytes)) {
        // SAFETY: an open descriptor; the advice changes no content.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, bytes, libc::POSIX_FADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Anonymous;
    use super::*;
    use std::io::Write;

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index / 7 + index / PAGE_BYTES) as u8).collect()
    }

    fn read(reader: &dyn ReadAt, offset: u64, targets: &[usize]) -> io::Result<Vec<u8>> {
        let total: usize = targets.iter().sum();
        let memory = Anonymous::map(total, 0, PAGE_BYTES)?;
        let mut address = memory.address();
        let targets: Vec<Target> = targets
            .iter()
            .map(|&bytes| {
                let target = Target { address, bytes };
                address += bytes;
                target
            })
            .collect();
        // SAFETY: the memory is the test's own.
        unsafe {
            reader.read(0, offset, &targets)?;
            Ok(std::slice::from_raw_parts(std::ptr::with_exposed_provenance(memory.address()), total)
                .to_vec())
        }
    }

    #[test]
    fn scattered_reads_give_the_files_bytes_and_zeroes_past_its_end() {
        let bytes = 10 * PAGE_BYTES + 100;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content(bytes)).unwrap();
        file.as_file().sync_all().unwrap();
        let reader = buffered_reader(&[file.path().to_owned()]).unwrap();
        let mut expected = content(bytes)[2 * PAGE_BYTES..].to_vec();
        expected.resize(9 * PAGE_BYTES, 0);
        let targets = [3 * PAGE_BYTES, PAGE_BYTES, 5 * PAGE_BYTES];
        assert_eq!(read(&*reader, 2 * PAGE_BYTES as u64, &targets).unwrap(), expected);
        if let Ok(direct) = direct_reader(&[file.path().to_owned()]) {
            assert!(direct.is_direct());
            assert_eq!(read(&*direct, 2 * PAGE_BYTES as u64, &targets).unwrap(), expected);
        }
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content(4 * PAGE_BYTES)).unwrap();
        let reader = buffered_reader(&[file.path().to_owned()]).unwrap();
        file.as_file().set_len(PAGE_BYTES as u64).unwrap();
        let error = read(&*reader, 0, &[4 * PAGE_BYTES]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("ends at byte 4096"), "{error}");
    }
}
