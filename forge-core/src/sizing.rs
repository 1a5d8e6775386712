//! How much memory a model and a context take, by the native library's own account.

use std::ffi::CStr;

use forge_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result, native_call};

/// Bytes in one kind of buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferMemory {
    /// The buffer type's native name: `CPU`, `CPU_REPACK`, ...
    pub buffer: String,
    /// Weights.
    pub model_bytes: u64,
    /// KV cache or recurrent state.
    pub context_bytes: u64,
    /// Buffers of the compute graph.
    pub compute_bytes: u64,
    /// Whether it is ordinary memory of this machine.
    pub host: bool,
}

/// Memory by kind of buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBreakdown {
    /// One entry a kind of buffer.
    pub buffers: Vec<BufferMemory>,
}

impl MemoryBreakdown {
    /// Bytes of weights, mapped or not.
    pub fn model_bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.model_bytes).sum()
    }

    /// Bytes of KV cache or recurrent state.
    pub fn context_bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.context_bytes).sum()
    }

    /// Bytes of compute buffers.
    pub fn compute_bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.compute_bytes).sum()
    }
}

impl Context<'_> {
    /// Bytes of scratch memory that the compute threads take for the largest batch. They are allocated by the
    /// computation itself, so they are in no buffer of [`Context::memory_breakdown`].
    ///
    /// # Errors
    /// When the native library throws.
    pub fn work_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        native_call(
            || "cannot ask for the scratch memory".into(),
            // SAFETY: the context is alive and has reserved its largest graph when it was made.
            |error| unsafe {
                sys::forge_work_bytes(self.as_ptr(), self.most_threads(), &raw mut bytes, error)
            },
        )?;
        Ok(bytes)
    }

    /// The bytes the native library allocated for this context, or, with a model loaded with `no_alloc`,
    /// would allocate.
    ///
    /// # Errors
    /// When the native library throws.
    pub fn memory_breakdown(&self) -> Result<MemoryBreakdown> {
        const CAPACITY: usize = 64;
        let empty =
            sys::forge_memory { size: size_of::<sys::forge_memory>(), ..sys::forge_memory::default() };
        let mut entries = vec![empty; CAPACITY];
        let mut count = 0;
        native_call(
            || "cannot ask for the memory breakdown".into(),
            // SAFETY: the context is alive, and `entries` has room for CAPACITY entries.
            |error| unsafe {
                sys::forge_memory_breakdown(
                    self.as_ptr(),
                    entries.as_mut_ptr(),
                    CAPACITY,
                    &raw mut count,
                    error,
                )
            },
        )?;
        if count > CAPACITY {
            return Err(Error::limit(format!("{count} kinds of buffer are more than expected")));
        }
        let buffers = entries[..count]
            .iter()
            .map(|entry| BufferMemory {
                // SAFETY: filled by the call: a static NUL-terminated name.
                buffer: unsafe { CStr::from_ptr(entry.buffer_name) }.to_string_lossy().into_owned(),
                model_bytes: entry.model,
                context_bytes: entry.context,
                compute_bytes: entry.compute,
                host: entry.host,
            })
            .collect();
        Ok(MemoryBreakdown { buffers })
    }
}
