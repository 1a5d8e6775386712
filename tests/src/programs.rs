//! The built programs, and what a run of them gives.

use std::env;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::schema::check_report;

/// A command that starts `ramforge`, the one beside the running test.
///
/// # Errors
/// If it is not built.
pub fn ramforge() -> io::Result<Command> {
    built("ramforge").map(Command::new)
}

/// Runs `ramforge` with `arguments` and a report; returns what it wrote, and the report.
///
/// # Errors
/// If it is not built or cannot be started, or the report is no JSON.
///
/// # Panics
/// If the report does not keep to its schema.
pub fn ramforge_with_report(arguments: &[&str]) -> io::Result<(Output, Value)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("report.json");
    let output = ramforge()?.args(arguments).arg("--residency-report-json").arg(&path).output()?;
    let report = File::open(&path).map_err(|error| {
        io::Error::other(format!("no report ({error}): {}", String::from_utf8_lossy(&output.stderr)))
    })?;
    let report = serde_json::from_reader(report)?;
    check_report(&report);
    Ok((output, report))
}

/// What `forge-sys/examples/direct.rs` computed with llama.cpp alone.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Direct {
    /// Tokens in the prompt.
    pub prompt_tokens: u64,
    /// The tokens that follow, without one that ends the text.
    pub tokens: Vec<i32>,
    /// Their text; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// Time for the prompt, in milliseconds.
    pub prompt_ms: f64,
    /// Tokens a second after the first; absent below two tokens.
    pub decode_tokens_per_second: Option<f64>,
}

/// Runs the direct loop with `arguments`.
///
/// # Errors
/// If it is not built, cannot be started or fails.
pub fn direct(arguments: &[&str]) -> io::Result<Direct> {
    let mut command = Command::new(built("examples/direct")?);
    // An abort would start a debugger first, to print where it was.
    let output = command.args(arguments).env("GGML_NO_BACKTRACE", "1").output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("direct ended with {}: {said}", output.status)));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// 64-bit FNV-1a over the tokens as little-endian integers, as reports write it.
pub fn fingerprint(tokens: &[i32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    format!("{:016x}", crate::weights::fnv1a(&bytes))
}

/// The program at `path` in the folder of the profile that the running program was built with.
fn built(path: &str) -> io::Result<PathBuf> {
    let own = env::current_exe()?;
    let mut folder = own.parent().ok_or_else(|| io::Error::other("this program has no folder"))?;
    // Tests lie one folder deeper than programs.
    if folder.ends_with("deps") {
        folder = folder.parent().ok_or_else(|| io::Error::other("this program has no profile folder"))?;
    }
    let program = folder.join(path);
    if !program.is_file() {
        return Err(io::Error::other(format!(
            "{} is missing; build it first: cargo build --release --workspace --all-targets",
            program.display()
        )));
    }
    Ok(program)
}
