use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ErrorKind;

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RunResult {
    /// As asked.
    Ok,
    /// The fit guard said no.
    Refused,
    /// It took longer than it was allowed.
    Timeout,
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// The kernel killed the worker for memory.
    OomKilled,
    /// Native code aborted the worker.
    NativeAbort,
    /// Anything else that went wrong.
    #[default]
    Error,
}

impl From<ErrorKind> for RunResult {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Failed | ErrorKind::Usage => Self::Error,
            ErrorKind::Refused => Self::Refused,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::NativeAbort => Self::NativeAbort,
            ErrorKind::OomKilled => Self::OomKilled,
        }
    }
}

impl fmt::Display for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
            Self::OomKilled => "oom-killed",
            Self::NativeAbort => "native-abort",
            Self::Error => "error",
        })
    }
}

/// How the run ended, and what was said about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// How it ended.
    pub result: RunResult,
    /// The exit code of the command.
    pub exit_code: u8,
    /// The number of the signal that ended the worker, if one did.
    pub signal: Option<i32>,
    /// What was said about an end other than `ok`.
    pub message: Option<String>,
}

/// A run that has not ended: what stands in a report if nobody ever finishes it.
impl Default for Outcome {
    fn default() -> Self {
        Self {
            result: RunResult::Error,
            exit_code: ErrorKind::Failed.exit_code(),
            signal: None,
            message: Some("the run did not end".to_owned()),
        }
    }
}
