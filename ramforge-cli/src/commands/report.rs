//! `ramforge report`.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use crate::cli::{CheckArgs, ReportArgs, ReportCommand};
use crate::commands::Terminal;
use crate::report::check::{Bounds, check};
use crate::report::{Report, SCHEMA_VERSION, diff, residency_view, schema};
use crate::{Error, Result};

pub fn report(args: &ReportArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    let mut text = Vec::new();
    match &args.command {
        ReportCommand::Show { file } => {
            residency_view::whole(&read(file)?, &mut text).map_err(Terminal::cannot_write)?;
        }
        ReportCommand::Diff { old, new } => {
            let changes = diff::changes(&read(old)?, &read(new)?);
            let changes = changes.map_err(|error| Error::failed("cannot compare").caused_by(error))?;
            diff::write(&changes, &mut text).map_err(Terminal::cannot_write)?;
        }
        ReportCommand::Check(args) => return check_bounds(args, terminal),
        ReportCommand::Schema => return terminal.print_json(&schema::schema()),
    }
    terminal.print(&text)
}

fn check_bounds(args: &CheckArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    let report = read(&args.file)?;
    let bounds = Bounds {
        max_peak_bytes: args.max_peak,
        min_decode_rate: args.min_decode_rate,
        max_read_bytes: args.max_read,
        max_first_token_ms: args.max_first_token,
        outcome: args.require_outcome,
        fingerprint: args.require_fingerprint.clone(),
    };
    let checked = check(&report, &bounds);
    let mut text = String::new();
    for checked in &checked {
        let verdict = if checked.kept { "kept" } else { "BROKEN" };
        text.push_str(&format!("{verdict:6}  {}: {}, {}\n", checked.name, checked.found, checked.bound));
    }
    terminal.print(text.as_bytes())?;
    let broken: Vec<&str> =
        checked.iter().filter(|checked| !checked.kept).map(|checked| checked.name).collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(Error::failed(format!("{} does not keep its bounds: {}", args.file.display(), broken.join(", "))))
}

/// Reads a report of this schema version; fields that a newer program has added are passed over.
fn read(path: &Path) -> Result<Report> {
    let cannot = || format!("cannot read the report {}", path.display());
    let file = File::open(path).map_err(|error| Error::failed(cannot()).caused_by(error))?;
    let value: serde_json::Value = serde_json::from_reader(BufReader::new(file))
        .map_err(|error| Error::failed(cannot()).caused_by(error))?;
    match value.get("schema_version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(SCHEMA_VERSION) => {}
        Some(version) => {
            return Err(Error::failed(format!(
                "{}: it has schema version {version}, this program knows version {SCHEMA_VERSION}",
                cannot()
            )));
        }
        None => {
            return Err(Error::failed(format!("{}: it has no schema_version", cannot()))
                .hint("reports are what --residency-report-json writes"));
        }
    }
    serde_json::from_value(value).map_err(|error| Error::failed(cannot()).caused_by(error))
}
