//! Where a command writes, and what it must know of the place.

use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::{Error, Result};

/// The process's surroundings, handed in by `main`.
pub struct Terminal<'terminal> {
    /// Standard output: data only.
    pub out: &'terminal mut dyn Write,
    /// Standard error: everything else.
    pub err: &'terminal mut dyn Write,
    /// Whether standard input is a terminal.
    pub input_is_terminal: bool,
    /// Whether standard error is a terminal.
    pub err_is_terminal: bool,
    /// This executable.
    pub exe: PathBuf,
}

impl Terminal<'_> {
    /// Writes data to standard output. A reader that has closed the pipe has seen what it wanted.
    pub(super) fn print(&mut self, bytes: &[u8]) -> Result<()> {
        match self.out.write_all(bytes).and_then(|()| self.out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Self::cannot_write(error)),
            _ => Ok(()),
        }
    }

    pub(super) fn print_json(&mut self, value: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(value).map_err(|error| Self::cannot_write(error.into()))?;
        text.push(b'\n');
        self.print(&text)
    }

    pub(super) fn cannot_write(error: io::Error) -> Error {
        Error::failed("cannot write to standard output").caused_by(error)
    }

    /// Writes what `write` writes to standard error.
    pub(super) fn note_all(&mut self, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> Result<()> {
        let mut text = Vec::new();
        write(&mut text).map_err(Self::cannot_write)?;
        self.note(String::from_utf8_lossy(&text).trim_end());
        Ok(())
    }

    /// Writes a line to standard error. When that fails there is no place left to say so.
    pub(super) fn note(&mut self, line: &str) {
        let _ = writeln!(self.err, "{line}");
    }
}
