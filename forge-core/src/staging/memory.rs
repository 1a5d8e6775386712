//! Address space: the one place that maps, moves and unmaps pages.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use super::plan::{PAGE_BYTES, Region};

/// Alignment that lets pages move in whole page tables, and be huge.
pub(super) const ALIGNMENT: usize = 2 << 20;

/// Anonymous memory of this process, mapped at an address that is congruent to a wanted one.
#[derive(Debug)]
pub(super) struct Anonymous {
    address: usize,
    bytes: usize,
}

impl Anonymous {
    /// Maps `bytes` (whole pages) at an address congruent to `like` modulo `alignment`, a power of two.
    pub(super) fn map(bytes: usize, like: usize, alignment: usize) -> io::Result<Self> {
        let room = bytes + alignment;
        // SAFETY: a new private anonymous mapping at an address the kernel picks.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                room,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.addr();
        let address = start + (like.wrapping_sub(start) & (alignment - 1));
        // SAFETY: both parts lie in the mapping just made, outside what is kept.
        unsafe {
            unmap(start, address - start);
            unmap(address + bytes, start + room - address - bytes);
        }
        Ok(Self { address, bytes })
    }

    pub(super) const fn address(&self) -> usize {
        self.address
    }

    /// Asks for huge pages where the kernel has them; without them everything works the same.
    pub(super) fn advise_huge(&self) {
        // SAFETY: the range is this mapping; the advice changes no content.
        unsafe { libc::madvise(at(self.address), self.bytes, libc::MADV_HUGEPAGE) };
    }

    /// Gives every page memory now, so that none is missing later.
    pub(super) fn populate(&self) {
        for page in (self.address..self.address + self.bytes).step_by(PAGE_BYTES) {
            // SAFETY: the page belongs to this mapping, which is writable and referred to by nobody else.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(page).write_volatile(0) };
        }
    }

    /// Lays the pages over `target`, and gives this mapping up.
    ///
    /// # Safety
    /// As for [`lay_over`].
    pub(super) unsafe fn become_region(self, target: usize) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { lay_over(self.address, target, self.bytes) }
        // Dropping unmaps what is left of the source: empty pages.
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and belongs to nobody else; parts that were moved away have
        // left empty pages behind.
        unsafe { unmap(self.address, self.bytes) };
    }
}

/// Moves the pages of an anonymous mapping from `source` over whatever is mapped at `target`. The source stays
/// mapped, with empty pages. When it fails, nothing may be mapped at some of `target`.
///
/// # Safety
/// `source` is private anonymous memory of ours that no reference points into. `target` is mapped, and whoever
/// reads it finds the same bytes before and after.
pub(super) unsafe fn lay_over(source: usize, target: usize, bytes: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller's promise; with DONTUNMAP no hole appears that another thread's mmap could take.
    let moved = unsafe { libc::mremap(at(source), bytes, bytes, flags, at(target)) };
    if moved != libc::MAP_FAILED {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EFAULT) && bytes > PAGE_BYTES {
        // The source consists of several mappings that the kernel did not merge: move them one by one.
        let half = (bytes / 2).next_multiple_of(PAGE_BYTES);
        // SAFETY: parts of the ranges that the caller vouches for.
        unsafe {
            lay_over(source, target, half)?;
            return lay_over(source + half, target + half, bytes - half);
        }
    }
    Err(error)
}

/// Maps the pages of `file` at the region's address again, as the native library mapped them.
///
/// # Safety
/// The region's address range is part of the model's mapping of `file`, and nothing reads it now.
pub(super) unsafe fn map_file(region: &Region, file: &File) -> io::Result<()> {
    let offset = libc::off_t::try_from(region.offset).map_err(io::Error::other)?;
    // SAFETY: the caller's promise; MAP_FIXED replaces the range in one step.
    let mapped = unsafe {
        libc::mmap(
            at(region.address),
            region.bytes,
            libc::PROT_READ,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            offset,
        )
    };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Tells the kernel that single pages of the region are read in no order.
pub(super) fn advise_random(region: &Region) {
    // SAFETY: advice on a mapped range changes no content.
    unsafe { libc::madvise(at(region.address), region.bytes, libc::MADV_RANDOM) };
}

/// Drops the region's pages from this process and from the page cache; the next read fetches them again.
pub(super) fn drop_pages(region: &Region, file: &File) {
    // SAFETY: the region is a clean shared file mapping, which yields the same bytes after the advice.
    unsafe { libc::madvise(at(region.address), region.bytes, libc::MADV_DONTNEED) };
    if let (Ok(offset), Ok(bytes)) =
        (libc::off_t::try_from(region.offset), libc::off_t::try_from(region.bytes))
    {
        // SAFETY: an open descriptor; the advice changes no content.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, bytes, libc::POSIX_FADV_DONTNEED) };
    }
}

/// # Safety
/// The range is a mapping of ours, or empty.
unsafe fn unmap(address: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(at(address), bytes) };
    }
}

/// The address as the pointer that system calls take.
fn at(address: usize) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn byte(address: usize) -> u8 {
        // SAFETY: the tests read what they have mapped.
        unsafe { ptr::with_exposed_provenance::<u8>(address).read_volatile() }
    }

    fn fill(address: usize, bytes: usize, value: u8) {
        // SAFETY: the tests write what they have mapped.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(value, bytes) };
    }

    #[test]
    fn pages_go_over_a_file_and_back_again_and_again() {
        const BYTES: usize = 8 * PAGE_BYTES;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; BYTES]).unwrap();
        // Stands for the model's mapping.
        let model = Anonymous::map(BYTES, 0, PAGE_BYTES).unwrap();
        let whole = Region { file: 0, offset: 0, address: model.address(), bytes: BYTES };
        // SAFETY: the range is the test's own.
        unsafe { map_file(&whole, &file).unwrap() };
        let pool = Anonymous::map(BYTES, 0, 1 << 21).unwrap();
        pool.populate();
        assert!(pool.address().is_multiple_of(1 << 21));
        for (round, pages) in [(1, 3), (2, 8), (3, 1), (4, 5), (5, 8)] {
            let bytes = pages * PAGE_BYTES;
            fill(pool.address(), bytes, round);
            let target = whole.part(0, bytes);
            // SAFETY: both ranges are the test's own.
            unsafe { lay_over(pool.address(), target.address, bytes).unwrap() };
            assert_eq!(byte(whole.address + bytes - 1), round);
            if pages < 8 {
                assert_eq!(byte(whole.address + bytes), 7);
            }
            // SAFETY: as above.
            unsafe {
                lay_over(target.address, pool.address(), bytes).unwrap();
                map_file(&target, &file).unwrap();
            }
            assert_eq!(byte(whole.address), 7);
            assert_eq!(byte(pool.address() + bytes - 1), round);
        }
    }

    #[test]
    fn anonymous_memory_is_congruent_to_what_it_will_replace() {
        let like = 0x7000_0000_3000;
        let memory = Anonymous::map(5 * PAGE_BYTES, like, 1 << 21).unwrap();
        assert_eq!(memory.address() % (1 << 21), like % (1 << 21));
        memory.advise_huge();
        memory.populate();
        assert_eq!(byte(memory.address() + 5 * PAGE_BYTES - 1), 0);
    }
}
