//! The native library itself: initialised once, and what it was built from.

use std::ffi::CStr;
use std::sync::Once;

use forge_sys as sys;

use crate::native_log;

/// Proof that the native library is initialised. Free to copy; models and device lists ask for it.
#[derive(Clone, Copy, Debug)]
pub struct Backend(());

impl Backend {
    /// Initialises the native library on the first call and takes over its log; later calls only return the
    /// token.
    pub fn init() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            native_log::install();
            // SAFETY: called once; what may run before it, setting the log and asking for versions, needs no
            // initialised library.
            unsafe { sys::llama_backend_init() };
        });
        Self(())
    }
}

/// What the native library in this binary was built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The package that carried the source, or `checkout`.
    pub source: &'static str,
    /// The package's version, or `unknown`.
    pub source_version: &'static str,
    /// llama.cpp's own version.
    pub llama_cpp: &'static str,
    /// ggml's own version.
    pub ggml: &'static str,
    /// The names of the patches that were applied, in order.
    pub patches: &'static [&'static str],
    /// Whether the build runs on machines other than the one that built it.
    pub portable: bool,
}

/// What the native library in this binary was built from.
pub fn origin() -> Origin {
    // SAFETY: both return static NUL-terminated strings.
    let (llama_cpp, ggml) =
        unsafe { (CStr::from_ptr(sys::llama_version()), CStr::from_ptr(sys::ggml_version())) };
    Origin {
        source: sys::SOURCE,
        source_version: sys::SOURCE_VERSION,
        llama_cpp: llama_cpp.to_str().unwrap_or("unknown"),
        ggml: ggml.to_str().unwrap_or("unknown"),
        patches: sys::PATCHES,
        portable: sys::PORTABLE,
    }
}
