//! The findings for eyes.

use std::io::{self, Write};

use super::{Examination, Status};

impl Examination {
    /// Writes the findings as text.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.findings.iter().map(|finding| finding.id.len()).max().unwrap_or(0);
        for finding in &self.findings {
            let status = match finding.status {
                Status::Ok => "ok",
                Status::Note => "note",
                Status::Warning => "WARNING",
                Status::Failure => "FAILURE",
                Status::Skipped => "skipped",
            };
            writeln!(out, "{status:7}  {:width$}  {}", finding.id, finding.message)?;
            if let Some(remedy) = &finding.remedy {
                writeln!(out, "{:7}  {:width$}  → {remedy}", "", "")?;
            }
        }
        writeln!(out, "\nfailures: {}, warnings: {}", self.failures, self.warnings)
    }
}
