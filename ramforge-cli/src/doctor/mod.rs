//! Whether this machine is ready, and a model fits it: checks that only look.

mod checks;
mod human;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use checks::{ModelFacts, examine};

/// The version of [`Examination`]: within it fields and checks are added, never renamed or retyped.
pub const SCHEMA_VERSION: u32 = 1;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Examination {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// One finding a check, in the order they were made.
    pub findings: Vec<Finding>,
    /// How many are failures.
    pub failures: usize,
    /// How many are warnings.
    pub warnings: usize,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The check's name, which does not change.
    pub id: String,
    /// How it is.
    pub status: Status,
    /// What was found.
    pub message: String,
    /// What to do about it; null where nothing needs to be done.
    pub remedy: Option<String>,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Worth knowing, and no reason to do anything.
    Note,
    /// Runs are slower or less safe than they could be.
    Warning,
    /// Runs do not work.
    Failure,
    /// Not looked at.
    Skipped,
}

impl Finding {
    fn new(id: &str, status: Status, message: impl Into<String>) -> Self {
        Self { id: id.to_owned(), status, message: message.into(), remedy: None }
    }

    fn ok(id: &str, message: impl Into<String>) -> Self {
        Self::new(id, Status::Ok, message)
    }

    fn note(id: &str, message: impl Into<String>) -> Self {
        Self::new(id, Status::Note, message)
    }

    fn warning(id: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(id, Status::Warning, message) }
    }

    fn failure(id: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(id, Status::Failure, message) }
    }
}

impl Examination {
    fn new(findings: Vec<Finding>) -> Self {
        let count = |status| findings.iter().filter(|finding| finding.status == status).count();
        let (failures, warnings) = (count(Status::Failure), count(Status::Warning));
        Self { schema_version: SCHEMA_VERSION, findings, failures, warnings }
    }
}
