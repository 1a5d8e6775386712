//! What the kernel says about pages.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr;

/// Bytes of a file covered by one mapping while its residency is read; a multiple of any page size.
/// One status byte a page: 256 KiB of them with pages of 4 KiB.
const WINDOW: u64 = 1 << 30;

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

/// Resident bytes among the `length` bytes from `start`, a multiple of the page size.
fn resident_in_window(file: &File, start: u64, length: u64) -> io::Result<u64> {
    let page = page_bytes();
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
    let mut pages = vec![0_u8; length_bytes.div_ceil(page)];
    // SAFETY: the range is the mapping just made, and `pages` has one byte for each of its pages.
    let status = unsafe { libc::mincore(address, length_bytes, pages.as_mut_ptr()) };
    let result = if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: the mapping just made, in full, to which no reference exists.
    unsafe { libc::munmap(address, length_bytes) };
    result?;
    let page = page as u64;
    let resident = pages.iter().enumerate().filter(|(_, status)| *status & 1 == 1);
    Ok(resident.map(|(index, _)| page.min(length - index as u64 * page)).sum())
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
