//! How fast the disk is with the reads that streaming makes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::memory::{ALIGNMENT, Anonymous};
use super::plan::PAGE_BYTES;
use super::reader::{ReadAt, Target};

/// Bytes read, and how long that took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bytes.
    pub bytes: u64,
    /// Time.
    pub elapsed: Duration,
}

impl Bandwidth {
    /// Bytes a second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Reads the first `file_bytes` of each file, in order and over again, until `at_least` has passed: in reads of
/// `read_bytes`, whole pages, `readers` of them at once, and each at least once.
///
/// # Errors
/// What a read or the memory for it fails with; [`io::ErrorKind::InvalidInput`] when a read is not of whole pages, or
/// no file has a whole read.
pub fn measure_bandwidth(
    reader: &dyn ReadAt,
    file_bytes: &[u64],
    read_bytes: usize,
    readers: usize,
    at_least: Duration,
) -> io::Result<Bandwidth> {
    let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    if read_bytes == 0 || !read_bytes.is_multiple_of(PAGE_BYTES) {
        return invalid("a read is not of whole pages");
    }
    let reads: Vec<(usize, u64)> = file_bytes
        .iter()
        .enumerate()
        .flat_map(|(file, &bytes)| {
            (0..bytes / read_bytes as u64).map(move |at| (file, at * read_bytes as u64))
        })
        .collect();
    if reads.is_empty() {
        return invalid("no file has a whole read");
    }
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let error: Mutex<Option<io::Error>> = Mutex::new(None);
    let buffers = (0..readers.max(1))
        .map(|_| {
            // Huge pages, as the pool has them: a read into small ones is another read.
            let buffer = Anonymous::map(read_bytes, 0, ALIGNMENT)?;
            buffer.advise_huge();
            buffer.populate();
            Ok(buffer)
        })
        .collect::<io::Result<Vec<_>>>()?;
    let started = Instant::now();
    thread::scope(|scope| {
        for buffer in &buffers {
            scope.spawn(|| {
                let target = Target { address: buffer.address(), bytes: read_bytes };
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let (file, offset) = reads[(number % reads.len() as u64) as usize];
                    // SAFETY: each thread has a buffer of its own, which outlives it.
                    if let Err(failed) = unsafe { reader.read(file, offset, &[target]) } {
                        error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failed);
                        return;
                    }
                    done.fetch_add(read_bytes as u64, Ordering::Relaxed);
                    if started.elapsed() >= at_least {
                        return;
                    }
                }
            });
        }
    });
    let elapsed = started.elapsed();
    match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(Bandwidth { bytes: done.into_inner(), elapsed }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::buffered_reader;
    use std::io::Write;

    #[test]
    fn every_read_is_counted_and_a_file_too_short_for_one_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[1; 5 * PAGE_BYTES]).unwrap();
        let reader = buffered_reader(&[file.path().to_owned()]).unwrap();
        let bytes = [5 * PAGE_BYTES as u64];
        let at_least = Duration::from_millis(5);
        let measured = measure_bandwidth(&*reader, &bytes, 2 * PAGE_BYTES, 2, at_least).unwrap();
        assert!(
            measured.bytes >= 2 * PAGE_BYTES as u64 && measured.bytes.is_multiple_of(2 * PAGE_BYTES as u64)
        );
        assert!(measured.elapsed >= at_least && measured.bytes_per_second() > 0.0);
        for read_bytes in [8 * PAGE_BYTES, PAGE_BYTES / 2, 0] {
            let error = measure_bandwidth(&*reader, &bytes, read_bytes, 2, at_least).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
