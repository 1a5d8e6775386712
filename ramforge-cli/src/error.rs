//! One error type: what kind it is (which decides the exit code), what was attempted, what caused it,
//! and what the user can type next.

use std::fmt::{self, Write};
use std::path::Path;

use crate::gguf::steers;

/// What a command returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as the caller must tell it apart: each kind is one exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// A bad file, an unsupported model, a failed read or write: exit code 1.
    Failed,
    /// The command line makes no sense: exit code 2.
    Usage,
    /// The fit guard said no before anything was loaded: exit code 3.
    Refused,
    /// The run took longer than it was allowed: exit code 124.
    Timeout,
    /// Ctrl-C or SIGTERM: exit code 130.
    Interrupted,
    /// Native code aborted the worker: exit code 134.
    NativeAbort,
    /// The kernel killed the worker for memory: exit code 137.
    OomKilled,
}

impl ErrorKind {
    /// The documented exit code of this kind.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Timeout => 124,
            Self::Interrupted => 130,
            Self::NativeAbort => 134,
            Self::OomKilled => 137,
        }
    }
}

/// An error with its kind, its chain of causes and its hints.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    hints: Vec<String>,
    said: bool,
}

impl Error {
    /// An error of `kind`; `message` says what was attempted and what is wrong, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, hints: Vec::new(), said: false }
    }

    /// A failure, the kind with exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// A command line that makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// The error below this one; its own sources are printed after it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says that this is about the file at `path`.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        self.message = format!("{}: {}", path.display(), self.message);
        self
    }

    /// One thing the user can do or type next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        let mut escaped = Escaped(String::new());
        // Writing to a String cannot fail.
        let _ = escaped.write_str(&hint.into());
        self.hints.push(escaped.0);
        self
    }

    /// Says that somebody else tells the user.
    #[must_use]
    pub fn already_said(mut self) -> Self {
        self.said = true;
        self
    }

    /// Whether somebody else tells the user.
    pub const fn is_said(&self) -> bool {
        self.said
    }

    /// The kind, which decides the exit code.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do or type next, in the order to try it.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }
}

/// The message and its causes on one line, `message: cause: cause`. They quote file names, files and templates:
/// what would steer a terminal is escaped.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = Escaped(f);
        line.write_str(&self.message)?;
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            write!(line, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// Writes on, and escapes what would steer a terminal; a message may have lines.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| match steers(character) && character != '\n' {
            true => write!(self.0, "{}", character.escape_default()),
            false => self.0.write_char(character),
        })
    }
}

impl From<forge_core::Error> for Error {
    fn from(error: forge_core::Error) -> Self {
        let said = error.native_message().unwrap_or_default();
        let hint = match error.kind() {
            forge_core::ErrorKind::ContextFull => Some("use a larger --ctx"),
            // Keys and values are stored in blocks that must fill a head.
            forge_core::ErrorKind::Native if said.contains("cache type") => Some("use --kv-type f16"),
            _ => None,
        };
        let failed = Self::failed(error.to_string());
        match hint {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_the_chain_of_causes_on_one_line() {
        let io = std::io::Error::other("disk on fire");
        let error = Error::failed("cannot read model.gguf").caused_by(io).hint("put it out");
        assert_eq!(error.to_string(), "cannot read model.gguf: disk on fire");
        assert_eq!(error.kind().exit_code(), 1);
        assert_eq!(error.hints(), ["put it out"]);
    }

    #[test]
    fn neither_messages_nor_hints_can_steer_a_terminal() {
        let error = Error::failed("a\x1b[2Jb\nc").caused_by("\u{202e}d").hint("e\x07");
        assert_eq!(error.to_string(), "a\\u{1b}[2Jb\nc: \\u{202e}d");
        assert_eq!(error.hints(), ["e\\u{7}"]);
    }
}
