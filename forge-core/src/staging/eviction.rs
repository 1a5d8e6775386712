//! Whether memory leaves the processor's caches before it is read to again.
//!
//! The disk of a virtual machine is a processor of the host, which writes to the memory, and has to take from another
//! one's cache every line that the computation has left there. Whether that costs more than to evict the lines before
//! depends on where the host lets it work, and changes within minutes: reads of 2 MiB to a pool of 8 MiB were measured
//! at 1.7 and at 3.1 GB/s without, and at 2.5 GB/s with eviction. So both are tried now and then, and what was faster
//! is done.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::reader::{ReadAt, Target};

/// Bytes read before a new choice.
const WINDOW_BYTES: u64 = 128 << 20;

/// Both ways are tried once in so many windows,
const TRIED_EVERY: u64 = 32;

/// in this one and the next: not in the first, whose reads also find memory for the pool.
const TRIED_IN: u64 = 4;

/// Whether there is an instruction for it.
const CAN_EVICT: bool = cfg!(target_arch = "x86_64");

/// A reader that evicts what it reads to when that is faster.
pub(super) struct Evicting {
    reader: Arc<dyn ReadAt>,
    choice: Mutex<Choice>,
    bytes_evicted: Arc<AtomicU64>,
}

impl Evicting {
    pub(super) fn new(reader: Arc<dyn ReadAt>) -> Self {
        Self { reader, choice: Mutex::default(), bytes_evicted: Arc::default() }
    }

    /// Bytes that were evicted, as they are counted.
    pub(super) fn bytes_evicted(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes_evicted)
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadAt for Evicting {
    unsafe fn read(&self, file: usize, offset: u64, targets: &[Target]) -> io::Result<()> {
        let bytes = targets.iter().map(|target| target.bytes as u64).sum();
        let evicts = self.choice().before_read_of(bytes);
        let started = Instant::now();
        if evicts {
            // SAFETY: the caller's promise.
            unsafe { evict(targets) };
            self.bytes_evicted.fetch_add(bytes, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { self.reader.read(file, offset, targets) }?;
        self.choice().measured(evicts, bytes, started.elapsed());
        Ok(())
    }

    fn is_direct(&self) -> bool {
        self.reader.is_direct()
    }
}

#[derive(Debug, Default)]
struct Choice {
    window: u64,
    /// Bytes read for it.
    bytes: u64,
    evicts: bool,
    /// The reads of the last window without and with eviction.
    reads: [Reads; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    bytes: u64,
    time: Duration,
}

impl Reads {
    /// Whether a byte took less time than one of `others`; nothing is faster than nothing.
    const fn are_faster_than(&self, others: &Self) -> bool {
        self.time.as_nanos() * (others.bytes as u128) < others.time.as_nanos() * (self.bytes as u128)
    }
}

impl Choice {
    /// Whether to evict before a read of so many bytes.
    fn before_read_of(&mut self, bytes: u64) -> bool {
        if self.bytes >= WINDOW_BYTES {
            self.bytes = 0;
            self.window += 1;
            self.evicts = CAN_EVICT
                && match self.window % TRIED_EVERY {
                    TRIED_IN => false,
                    window if window == TRIED_IN + 1 => true,
                    _ => self.reads[1].are_faster_than(&self.reads[0]),
                };
            self.reads[usize::from(self.evicts)] = Reads::default();
        }
        self.bytes += bytes;
        self.evicts
    }

    /// A read took so long, eviction included.
    fn measured(&mut self, evicted: bool, bytes: u64, time: Duration) {
        let reads = &mut self.reads[usize::from(evicted)];
        reads.bytes += bytes;
        reads.time += time;
    }
}

/// Takes `targets` out of all caches.
///
/// # Safety
/// They are mapped.
#[cfg(target_arch = "x86_64")]
unsafe fn evict(targets: &[Target]) {
    const LINE_BYTES: usize = 64;
    for target in targets {
        for line in (target.address..target.address + target.bytes).step_by(LINE_BYTES) {
            // SAFETY: the caller's promise; the instruction changes no content, and every x86-64 processor has it.
            unsafe { std::arch::x86_64::_mm_clflush(std::ptr::with_exposed_provenance(line)) };
        }
    }
}

/// Does nothing: see [`CAN_EVICT`].
///
/// # Safety
/// They are mapped.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn evict(_: &[Target]) {}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Fills windows with reads that take so long without and with eviction, and returns what was chosen.
    fn choices(choice: &mut Choice, windows: usize, ms: [u64; 2]) -> Vec<bool> {
        let window = |_| {
            let mut evicts = false;
            for _ in 0..2 {
                evicts = choice.before_read_of(WINDOW_BYTES / 2);
                let time = Duration::from_millis(ms[usize::from(evicts)]);
                choice.measured(evicts, WINDOW_BYTES / 2, time);
            }
            evicts
        };
        (0..windows).map(window).collect()
    }

    #[test]
    fn the_faster_way_is_chosen_and_both_are_tried_again() {
        let mut choice = Choice::default();
        assert_eq!(choices(&mut choice, 5, [3, 2]), [false; 5]);
        assert_eq!(choices(&mut choice, 3, [3, 2]), [true; 3]);
        // A window that is slow for another reason is forgotten with the next one.
        assert_eq!(choices(&mut choice, 2, [3, 9]), [true, false]);
        assert_eq!(choices(&mut choice, 26, [2, 3]), [false; 26]);
        assert_eq!(choices(&mut choice, 4, [5, 4]), [false, true, true, true]);
    }

    #[test]
    fn evicted_memory_keeps_its_content() {
        let memory: Vec<u8> = (0..10_000_u32).map(|index| index as u8).collect();
        let copy = memory.clone();
        let target = Target { address: memory.as_ptr().expose_provenance(), bytes: memory.len() };
        // SAFETY: the vector is mapped.
        unsafe { evict(&[target]) };
        assert_eq!(memory, copy);
    }
}
