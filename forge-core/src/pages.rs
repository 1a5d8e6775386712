//! What the kernel says about pages, and what it is asked to do with those of a model.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::ptr;

use crate::error::{Error, ErrorKind, Result};
use crate::mapping::require_mapped;
use crate::model::Model;
use crate::staging::Region;

/// Bytes of a file covered by one mapping while its residency is read; a multiple of any page size.
/// One status byte a page: 32 KiB of them with pages of 4 KiB.
const WINDOW: u64 = 1 << 27;

/// How many bytes of `file` the page cache holds, in whole pages but never more than the file is long.
///
/// `None` when the kernel would not tell the truth: `mincore` reports every page of a file as resident
/// unless the caller owns the file or may write it.
///
/// # Errors
/// What `fstat`, `mmap` or `mincore` failed with.
pub fn cached_bytes(file: &File) -> io::Result<Option<u64>> {
    let metadata = file.metadata()?;
    if !may_see_residency(file, metadata.uid()) {
        return Ok(None);
    }
    let mut bytes = 0;
    let mut start = 0;
    while start < metadata.len() {
        let length = WINDOW.min(metadata.len() - start);
        bytes += resident_in_window(file, start, length)?;
        start += length;
    }
    Ok(Some(bytes))
}

/// The kernel's own condition for an honest answer: the file's owner, or someone who may write it.
fn may_see_residency(file: &File, owner: u32) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: geteuid has no preconditions; faccessat is given an open descriptor and a static string.
    unsafe {
        owner == libc::geteuid()
            || libc::faccessat(fd, c"".as_ptr(), libc::W_OK, libc::AT_EMPTY_PATH | libc::AT_EACCESS) == 0
    }
}

/// File systems whose files have their pages in the page cache under their own name. Stacked ones have them under
/// another file's.
const OWN_PAGES: [i64; 5] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x0102_1994, // tmpfs
];

/// Whether the page cache is known to hold none of the `length` bytes from `start`: far faster to find out than what
/// it holds of each page. Linux 6.5 and later say it.
fn nothing_cached(file: &File, start: u64, length: u64) -> bool {
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: an open descriptor, and room for the answer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it has filled it in.
    let kind = unsafe { system.assume_init() }.f_type;
    if !OWN_PAGES.contains(&kind) {
        return false;
    }
    // The number is the same on every architecture but MIPS, which has no call of that number.
    const CACHESTAT: libc::c_long = 451;
    let range = [start, length];
    // Pages that are cached, dirty, being written, evicted, and evicted of late.
    let mut counts = [u64::MAX; 5];
    // SAFETY: the arrays have the layout of `struct cachestat_range` and `struct cachestat`, 64-bit numbers only,
    // and outlive the call; a kernel without it touches neither.
    let status =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0_u32) };
    status == 0 && counts[0] == 0
}

/// Resident bytes among the `length` bytes from `start`, a multiple of the page size.
fn resident_in_window(file: &File, start: u64, length: u64) -> io::Result<u64> {
    if nothing_cached(file, start, length) {
        return Ok(0);
    }
    let page = page_bytes() as u64;
    let pages = status_in_window(file, start, length)?;
    let resident = pages.iter().enumerate().filter(|(_, status)| *status & 1 == 1);
    Ok(resident.map(|(index, _)| page.min(length - index as u64 * page)).sum())
}

/// What `mincore` says of the pages of the `length` bytes from `start`, whether anybody has them mapped or not.
fn status_in_window(file: &File, start: u64, length: u64) -> io::Result<Vec<u8>> {
    let length_bytes = usize::try_from(length).map_err(io::Error::other)?;
    let offset = libc::off_t::try_from(start).map_err(io::Error::other)?;
    let fd = file.as_raw_fd();
    // SAFETY: a new mapping at an address the kernel picks, of an open file; nothing reads through it
    // (PROT_NONE), so the file may shrink meanwhile.
    let address =
        unsafe { libc::mmap(ptr::null_mut(), length_bytes, libc::PROT_NONE, libc::MAP_SHARED, fd, offset) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut pages = vec![0_u8; length_bytes.div_ceil(page_bytes())];
    // SAFETY: the range is the mapping just made, and `pages` has one byte for each of its pages.
    let status = unsafe { libc::mincore(address, length_bytes, pages.as_mut_ptr()) };
    let result = if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: the mapping just made, in full, to which no reference exists.
    unsafe { libc::munmap(address, length_bytes) };
    result.map(|()| pages)
}

/// The pages of a model's files, as the model has them mapped.
#[derive(Debug)]
pub struct MappedPages<'model> {
    model: &'model Model,
    files: Vec<File>,
}

/// What to do with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give their memory back: unmap them from this process and drop them from the page cache. The next read
    /// fetches them from the file again.
    Release,
    /// Begin to read them into the page cache.
    Prefetch,
}

/// What the kernel answered.
#[derive(Debug, Default)]
pub struct Advised {
    /// Bytes of the regions for which every call succeeded. That is no promise: what has become of the pages
    /// is for [`MappedPages::resident`] to say.
    pub accepted_bytes: u64,
    /// The first answer that was an error.
    pub refused: Option<io::Error>,
}

impl<'model> MappedPages<'model> {
    /// The pages of `model`, whose shards are `files`, in the order in which it was loaded.
    ///
    /// # Errors
    /// [`ErrorKind::System`] when a file cannot be opened.
    pub fn open(model: &'model Model, files: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| {
            File::open(path).map_err(|error| {
                Error::new(ErrorKind::System, format!("cannot open {}: {error}", path.display()))
            })
        };
        Ok(Self { model, files: files.iter().map(open).collect::<Result<_>>()? })
    }

    /// Which of the file's pages that `region` names are in memory, mapped by this process or not: one bit a
    /// page, the lowest bit of the first word first. What is laid over the mapping while the model is streamed
    /// is not the file's and does not count. `None` when the kernel would not tell the truth, as for [`cached_bytes`].
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when the region names no file of the model, [`ErrorKind::System`] when it is not
    /// mapped.
    pub fn resident(&self, region: &Region) -> Result<Option<Vec<u64>>> {
        let file = self.files.get(region.file).ok_or_else(|| Error::limit("a region of no file"))?;
        let failed = |error: io::Error| {
            let address = region.address;
            Error::new(ErrorKind::System, format!("cannot ask for the pages at {address:#x}: {error}"))
        };
        let owner = file.metadata().map_err(failed)?.uid();
        if !may_see_residency(file, owner) {
            return Ok(None);
        }
        let page = page_bytes();
        let mut words = vec![0_u64; region.bytes.div_ceil(page).div_ceil(64)];
        let unclaimed = self.model.unclaimed().ok();
        for start in (0..region.bytes).step_by(WINDOW as usize) {
            let length = (WINDOW as usize).min(region.bytes - start);
            let offset = region.offset + start as u64;
            if nothing_cached(file, offset, length as u64) {
                continue;
            }
            let status = match unclaimed {
                // The model's own mapping answers several times faster than a fresh one.
                Some(_) => mapped_status(region.address.wrapping_add(start), length),
                None => status_in_window(file, offset, length as u64),
            };
            let status = status.map_err(failed)?;
            let first = start / page;
            for (index, _) in status.iter().enumerate().filter(|(_, status)| *status & 1 == 1) {
                words[(first + index) / 64] |= 1 << ((first + index) % 64);
            }
        }
        Ok(Some(words))
    }

    /// Asks the kernel for `action` on each region. Nothing is asked unless all of them are the model's own
    /// file mapping.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when a region is something else, or the model is being streamed;
    /// [`ErrorKind::System`] when the list of mappings cannot be read.
    pub fn advise(&self, regions: &[Region], action: Action) -> Result<Advised> {
        let page = page_bytes();
        if regions.iter().any(|region| {
            region.file >= self.files.len()
                || !region.address.is_multiple_of(page)
                || !region.bytes.is_multiple_of(page)
        }) {
            return Err(Error::limit("a region is not whole pages of one of the model's files"));
        }
        // Held to the end, so that nothing is laid over the mapping meanwhile.
        let _unclaimed = self.model.unclaimed()?;
        require_mapped(regions, &self.files)?;
        let mut advised = Advised::default();
        for region in regions {
            match self.advise_mapped(region, action) {
                Ok(()) => advised.accepted_bytes += region.bytes as u64,
                Err(error) => advised.refused = advised.refused.or(Some(error)),
            }
        }
        Ok(advised)
    }

    /// The one place that gives the kernel advice between operations. The region is a mapped part of a model
    /// file, and stays that during the call.
    fn advise_mapped(&self, region: &Region, action: Action) -> io::Result<()> {
        let advise = |advice| {
            // SAFETY: the range is a shared, read-only mapping of a file (checked by the caller, and nobody
            // may change it while the model is not claimed), so that whatever is dropped is read again from
            // the file: no advice used here changes what the addresses yield.
            match unsafe { libc::madvise(at(region.address), region.bytes, advice) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        match action {
            Action::Prefetch => advise(libc::MADV_WILLNEED),
            Action::Release => {
                // Cached pages come in blocks of up to 2 MiB, and the last call drops whole blocks only. This
                // one splits those that the region's ends cut; where it cannot, they stay, as will be seen.
                let _ = advise(libc::MADV_PAGEOUT);
                advise(libc::MADV_DONTNEED)?;
                let offset = libc::off_t::try_from(region.offset).map_err(io::Error::other)?;
                let bytes = libc::off_t::try_from(region.bytes).map_err(io::Error::other)?;
                let fd = self.files[region.file].as_raw_fd();
                // SAFETY: an open file; the advice changes no content.
                match unsafe { libc::posix_fadvise(fd, offset, bytes, libc::POSIX_FADV_DONTNEED) } {
                    0 => Ok(()),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            }
        }
    }
}

/// What `mincore` says of the pages of a mapping.
fn mapped_status(address: usize, length: usize) -> io::Result<Vec<u8>> {
    let mut status = vec![0_u8; length.div_ceil(page_bytes())];
    // SAFETY: mincore only reads page tables, whatever the address, and `status` has one byte for each page.
    match unsafe { libc::mincore(at(address), length, status.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(status),
    }
}

fn at(address: usize) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// The size of a page in bytes.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("every Linux system has a page size")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_just_written_is_cached_to_the_byte() {
        let mut file = tempfile::tempfile().unwrap();
        let length = 10 * page_bytes() + 17;
        file.write_all(&vec![7; length]).unwrap();
        assert_eq!(cached_bytes(&file).unwrap(), Some(length as u64));
    }

    #[test]
    fn a_hole_is_not_cached_and_an_empty_file_has_nothing() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(cached_bytes(&file).unwrap(), Some(0));
        file.set_len(WINDOW + 3 * page_bytes() as u64).unwrap();
        assert_eq!(cached_bytes(&file).unwrap(), Some(0));
    }
}
