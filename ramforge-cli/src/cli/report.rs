//! Options of `report`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::report::RunResult;
use crate::size;

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
    #[arg(long, value_name = "TOKENS", group = "bounds")]
    pub min_decode_rate: Option<f64>,
    /// Most bytes read from storage.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, group = "bounds")]
    pub max_read: Option<u64>,
    /// Longest time from the start of the worker to the first token, in milliseconds.
    #[arg(long, value_name = "MS", group = "bounds")]
    pub max_first_token: Option<f64>,
    /// How the run must have ended: ok, refused, timeout, interrupted, oom-killed, native-abort or error.
    #[arg(long, value_name = "RESULT", value_parser = outcome, group = "bounds")]
    pub require_outcome: Option<RunResult>,
    /// What the hash over the generated tokens must be.
    #[arg(long, value_name = "HASH", group = "bounds")]
    pub require_fingerprint: Option<String>,
}

fn outcome(text: &str) -> Result<RunResult, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        "expected ok, refused, timeout, interrupted, oom-killed, native-abort or error".to_owned()
    })
}
