//! The one error type, and the one place that turns native status codes into it.

use std::ffi::CStr;
use std::fmt;

use forge_sys as sys;

use crate::native_log;

/// What a call returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller must tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The native library refused or failed.
    Native,
    /// The native library threw an exception.
    Exception,
    /// An argument breaks a rule that the native library would enforce by aborting the process.
    Limit,
    /// The context has no free cell for the batch.
    ContextFull,
    /// The caller's callback or cancel flag stopped the operation.
    Cancelled,
    /// A path or text that C cannot take: it holds a NUL byte.
    NulByte,
    /// The operating system refused a call; the message carries its error.
    System,
}

/// An error: its kind, what was attempted, and what the native library said.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    kind: ErrorKind,
    attempted: String,
    native: Option<String>,
}

impl Error {
    /// An error of `kind`; `attempted` says what was tried and why it is wrong.
    pub(crate) fn new(kind: ErrorKind, attempted: impl Into<String>) -> Self {
        Self { kind, attempted: attempted.into(), native: None }
    }

    /// A broken limit, found before the native library could abort over it.
    pub(crate) fn limit(attempted: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, attempted)
    }

    /// What went wrong.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The native library's own words, when it said any.
    pub fn native_message(&self) -> Option<&str> {
        self.native.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.attempted)?;
        match &self.native {
            Some(native) => write!(f, ": {native}"),
            None => Ok(()),
        }
    }
}

/// Calls a `forge_*` function: resumes a panic that a callback stored, then turns the status into a result
/// whose error carries what was attempted and what the native library threw or logged.
pub(crate) fn native_call(
    attempted: impl FnOnce() -> String,
    call: impl FnOnce(*mut sys::forge_error) -> sys::forge_status,
) -> Result<()> {
    let mark = native_log::mark();
    let mut error = sys::forge_error { size: size_of::<sys::forge_error>(), message: [0; 1024] };
    let status = call(&raw mut error);
    crate::callback::resume_panic();
    if status == sys::FORGE_OK {
        return Ok(());
    }
    // SAFETY: the message was all zeros, and the barrier keeps it NUL-terminated.
    let said = unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_string_lossy();
    let kind = match status {
        sys::FORGE_EXCEPTION => ErrorKind::Exception,
        sys::FORGE_INVALID => ErrorKind::Limit,
        _ => ErrorKind::Native,
    };
    let native = if said.is_empty() { native_log::errors_since(mark) } else { Some(said.into_owned()) };
    Err(Error { kind, attempted: attempted(), native })
}

/// The error of a native call that reports failure in its own way, with what the library logged since `mark`.
pub(crate) fn logged_since(mark: native_log::Mark, kind: ErrorKind, attempted: impl Into<String>) -> Error {
    Error { kind, attempted: attempted.into(), native: native_log::errors_since(mark) }
}
