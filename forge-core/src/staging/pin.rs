//! Pinning: pages that are read once and stay in anonymous memory.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::memory::{ALIGNMENT, Anonymous};
use super::plan::Region;
use super::reader::{ReadAt, Target};

/// Most bytes pinned in one piece: pages that are not laid over the mapping yet count double against nothing,
/// but a failed read gives this much back.
const PIECE_BYTES: usize = 16 << 20;

/// Reads `regions` into anonymous memory and lays it over the mapping, with `readers` threads. `progress` is
/// called on this thread with the bytes pinned so far; `false` gives up.
///
/// # Safety
/// The regions are the model's mapping of the reader's files, and nothing computes on them now.
pub(super) unsafe fn pin(
    regions: &[Region],
    readers: usize,
    reader: &dyn ReadAt,
    progress: &mut dyn FnMut(usize) -> bool,
) -> io::Result<()> {
    let pieces: Vec<Region> = regions
        .iter()
        .flat_map(|region| {
            (0..region.bytes)
                .step_by(PIECE_BYTES)
                .map(|skip| region.part(skip, PIECE_BYTES.min(region.bytes - skip)))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let gave_up = AtomicBool::new(false);
    let error: Mutex<Option<io::Error>> = Mutex::new(None);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..readers.max(1))
            .map(|_| {
                scope.spawn(|| {
                    while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if gave_up.load(Ordering::Relaxed) {
                            return;
                        }
                        // SAFETY: the caller's promise; each piece is taken by one thread.
                        if let Err(failed) = unsafe { pin_piece(piece, reader) } {
                            gave_up.store(true, Ordering::Relaxed);
                            error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failed);
                            return;
                        }
                        done.fetch_add(piece.bytes, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            if !progress(done.load(Ordering::Relaxed)) {
                gave_up.store(true, Ordering::Relaxed);
            }
            thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None if gave_up.load(Ordering::Relaxed) => Err(io::ErrorKind::Interrupted.into()),
        None => Ok(()),
    }
}

/// # Safety
/// As for [`pin`].
unsafe fn pin_piece(piece: &Region, reader: &dyn ReadAt) -> io::Result<()> {
    let memory = Anonymous::map(piece.bytes, piece.address, ALIGNMENT)?;
    memory.advise_huge();
    let target = Target { address: memory.address(), bytes: piece.bytes };
    // SAFETY: the memory was just mapped; nobody else knows of it. Once read, it holds what the mapping
    // shows at the piece's address, so replacing that changes nothing for who reads it.
    unsafe {
        reader.read(piece.file, piece.offset, &[target])?;
        memory.become_region(piece.address)
    }
}
