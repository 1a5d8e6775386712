//! The compute threads of a context.

use std::ffi::c_int;
use std::ptr::NonNull;

use forge_sys as sys;

use crate::error::{Error, ErrorKind, Result};

/// How many threads compute, and how they wait for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// Threads for generating one token at a time.
    pub decode: u32,
    /// Threads for batches, such as a prompt.
    pub prompt: u32,
    /// How long a thread spins before it sleeps: 0 sleeps at once, 100 spins longest. Spinning threads answer
    /// faster and take the processor from everybody else.
    pub polling: u32,
}

impl Default for Threads {
    /// One thread for each processor this process may use, with the native library's own polling.
    fn default() -> Self {
        let available = std::thread::available_parallelism().map_or(1, |count| count.get());
        let available = u32::try_from(available).unwrap_or(u32::MAX).min(sys::GGML_MAX_N_THREADS);
        Self { decode: available, prompt: available, polling: 50 }
    }
}

/// A native thread pool; its threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    raw: NonNull<sys::ggml_threadpool>,
    threads: Threads,
}

// SAFETY: the pool's functions lock its own mutex; it has no tie to the thread that made it.
unsafe impl Send for ThreadPool {}

impl ThreadPool {
    pub(crate) fn new(threads: Threads) -> Result<Self> {
        for count in [threads.decode, threads.prompt] {
            if count == 0 || count > sys::GGML_MAX_N_THREADS {
                return Err(Error::limit(format!(
                    "{count} threads: there must be 1 to {}",
                    sys::GGML_MAX_N_THREADS
                )));
            }
        }
        let mut params = sys::ggml_threadpool_params::default();
        let most = threads.decode.max(threads.prompt).cast_signed();
        // SAFETY: `params` is a structure the function fills; the pool copies it.
        let raw = unsafe {
            sys::ggml_threadpool_params_init(&raw mut params, most);
            params.poll = threads.polling.min(100);
            sys::ggml_threadpool_new(&raw mut params)
        };
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::new(ErrorKind::Native, format!("cannot start {most} threads")))?;
        Ok(Self { raw, threads })
    }

    pub(crate) const fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.raw.as_ptr()
    }

    pub(crate) const fn decode(&self) -> c_int {
        self.threads.decode.cast_signed()
    }

    pub(crate) const fn prompt(&self) -> c_int {
        self.threads.prompt.cast_signed()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: freed once, after the context that used it.
        unsafe { sys::ggml_threadpool_free(self.as_ptr()) };
    }
}
