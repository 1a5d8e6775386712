//! Options of `report`.

use std::path::PathBuf;

use clap::Subcommand;

use super::run::at_least_zero;
use crate::report::RunResult;
use crate::{Error, size};

/// Options of `report`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ReportArgs {
    /// What to do with reports.
    #[command(subcommand)]
    pub command: ReportCommand,
}

const EXAMPLES: &str = "\
Examples:
  See what a run did:
    ramforge report show report.json
  Fail a CI job when memory or speed are out of bounds:
    ramforge report check report.json --require-outcome ok --max-peak 512M --min-decode-rate 5
  See what changed since the last one:
    ramforge report diff last.json report.json";

/// The subcommands of `report`.
#[derive(Debug, Subcommand)]
pub enum ReportCommand {
    /// Print a report for people.
    Show {
        /// A report that --residency-report-json wrote.
        file: PathBuf,
    },
    /// Print what changed between two reports.
    Diff {
        /// The report to compare with.
        old: PathBuf,
        /// The report of interest.
        new: PathBuf,
    },
    /// Check bounds; the exit code is 1 when one is broken, and a bound on what the report does not know is.
    Check(CheckArgs),
    /// Print the JSON Schema of reports.
    Schema,
}

/// Options of `report check`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("bounds").required(true).multiple(true))]
pub struct CheckArgs {
    /// A report that --residency-report-json wrote.
    pub file: PathBuf,
    /// Most memory: the peak of the group, or without --enforce-ram of the process.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, group = "bounds")]
    pub max_peak: Option<u64>,
    /// Fewest tokens a second after the first.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_zero::<f64>, group = "bounds")]
    pub min_decode_rate: Option<f64>,
    /// Most bytes read from storage.
    #[arg(long, value_name = "SIZE", value_parser = zero_or_size, group = "bounds")]
    pub max_read: Option<u64>,
    /// Longest time from the start of the worker to the first token, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = at_least_zero::<f64>, group = "bounds")]
    pub max_first_token: Option<f64>,
    /// How the run must have ended: ok, refused, timeout, interrupted, oom-killed, native-abort or error.
    #[arg(long, value_name = "RESULT", value_parser = outcome, group = "bounds")]
    pub require_outcome: Option<RunResult>,
    /// What the hash over the generated tokens must be.
    #[arg(long, value_name = "HASH", group = "bounds")]
    pub require_fingerprint: Option<String>,
}

/// A run may be bound to read nothing.
fn zero_or_size(text: &str) -> Result<u64, Error> {
    if text.trim() == "0" { Ok(0) } else { size::parse(text) }
}

fn outcome(text: &str) -> Result<RunResult, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        "expected ok, refused, timeout, interrupted, oom-killed, native-abort or error".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Cli;

    #[test]
    fn only_bounds_that_can_be_kept_are_taken() {
        for (bound, taken) in [
            (["--max-read", "0"], true),
            (["--min-decode-rate", "2.5"], true),
            (["--max-peak", "0"], false),
            (["--min-decode-rate", "-1"], false),
            (["--min-decode-rate", "nan"], false),
            (["--max-first-token", "inf"], false),
        ] {
            let arguments = ["ramforge", "report", "check", "report.json"].into_iter().chain(bound);
            assert_eq!(Cli::try_parse_from(arguments).is_ok(), taken, "{bound:?}");
        }
    }
}
