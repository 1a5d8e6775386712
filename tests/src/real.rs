//! The real models, as `build-scripts/fetch-model` finds or fetches them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// SmolLM2-135M-Instruct: llama, Q4_1 with a Q8_0 embedding, 98,362,432 bytes.
///
/// # Errors
/// If it is not in the cache and cannot be fetched.
pub fn smollm2() -> io::Result<PathBuf> {
    fetch("smollm2")
}

/// Gemma 3 270M: K-quants, 253,113,024 bytes.
///
/// # Errors
/// If it is not in the cache and cannot be fetched.
pub fn gemma3() -> io::Result<PathBuf> {
    fetch("gemma3")
}

fn fetch(name: &str) -> io::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build-scripts/fetch-model");
    let output = Command::new(script).arg(name).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()));
    }
    Ok(PathBuf::from(OsStr::from_bytes(output.stdout.trim_ascii_end())))
}
