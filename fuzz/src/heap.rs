//! A bound on the heap: every allocation is counted, and one too many ends the process.
//!
//! libFuzzer's own limits see single allocations and the whole process; this one knows how much an input may
//! cost, and an input of a hundred bytes must not cost a megabyte.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// What `work` returns; no more than `bytes` bytes may be allocated in it at any time.
pub fn bounded<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    MOST.store(LIVE.load(Relaxed).saturating_add(bytes), Relaxed);
    let result = work();
    MOST.store(usize::MAX, Relaxed);
    result
}

fn take(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    let most = MOST.load(Relaxed);
    if live > most {
        MOST.store(usize::MAX, Relaxed);
        eprintln!("an allocation of {bytes} bytes is {} bytes more than the input may cost", live - most);
        std::process::abort();
    }
}

fn give(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

// SAFETY: every call goes on to the system's allocator with the same arguments; counting changes none of them.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller keeps to what `GlobalAlloc` asks, which is what `System` asks.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both exist while one is copied to the other.
        take(bytes);
        // SAFETY: as in `alloc`.
        let moved = unsafe { System.realloc(pointer, layout, bytes) };
        give(layout.size());
        moved
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
