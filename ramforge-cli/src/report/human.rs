//! The report's memory side for people: an aligned table.

use std::io::{self, Write};

use super::{Backend, Report};
use crate::size::readable;

/// Writes what the kernel showed of the run.
///
/// # Errors
/// What the writer fails with.
pub fn memory(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let rows = rows(report);
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in rows {
        writeln!(out, "{name:width$}  {value}")?;
    }
    Ok(())
}

fn rows(report: &Report) -> Vec<(String, String)> {
    let mut rows = enforcement_rows(report);
    let timing = &report.timing;
    let io = &report.io;
    let not_counted = "the kernel did not count or show it";
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("wall time", known(timing.wall_ms.map(duration), "the worker did not start"));
    row("user time", known(timing.user_ms.map(duration), not_counted));
    row("system time", known(timing.system_ms.map(duration), not_counted));
    row("major faults", known(io.major_faults, not_counted));
    row("minor faults", known(io.minor_faults, not_counted));
    row("bytes read", known(io.read_bytes.map(size), not_counted));
    row("worker's end", end(report));
    rows
}

fn enforcement_rows(report: &Report) -> Vec<(String, String)> {
    let enforcement = &report.enforcement;
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("enforcement", enforcement.backend.to_string());
    for note in &enforcement.notes {
        row("", note.clone());
    }
    if enforcement.backend == Backend::None {
        return rows;
    }
    let reason =
        |field: &str| enforcement.reasons.get(field).map_or("the group is not readable", String::as_str);
    row("limit", known(enforcement.limit_bytes.map(size), reason("limit_bytes")));
    row("peak", known(enforcement.peak_bytes.map(size), reason("peak_bytes")));
    row("limit events", known(enforcement.limit_events, reason("limit_events")));
    row("OOM kills", known(enforcement.oom_kills, reason("oom_kills")));
    row("swap peak", known(enforcement.swap_peak_bytes.map(size), reason("swap_peak_bytes")));
    if let Some(cache) = &enforcement.page_cache {
        let reason = cache.reason.as_deref().unwrap_or_default();
        row("model in page cache", known(cache.before_bytes.map(size), reason));
        row("after dropping it", known(cache.after_bytes.map(size), reason));
    }
    for (name, value) in enforcement.stat.iter().filter(|(_, value)| **value > 0) {
        let value = if COUNTS.contains(&name.as_str()) { value.to_string() } else { size(*value) };
        row(&format!("memory.stat {name}"), value);
    }
    rows
}

/// The counters of `memory.stat` in a report that are no bytes.
const COUNTS: [&str; 9] = [
    "pgfault",
    "pgmajfault",
    "pgpgin",
    "pgscan",
    "pgsteal",
    "workingset_activate_anon",
    "workingset_activate_file",
    "workingset_refault_anon",
    "workingset_refault_file",
];

fn end(report: &Report) -> String {
    let outcome = &report.outcome;
    let signal = outcome.signal.map(|signal| format!(", signal {signal}")).unwrap_or_default();
    format!("{}{signal}, exit code {}", outcome.result, outcome.exit_code)
}

fn known<T: ToString>(value: Option<T>, reason: &str) -> String {
    value.map_or_else(|| format!("not known: {reason}"), |value| value.to_string())
}

/// Readable and exact, in columns of their own.
fn size(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{:10} ({bytes} bytes)", readable(bytes)) }
}

fn duration(ms: f64) -> String {
    if ms < 1000.0 { format!("{ms:.0} ms") } else { format!("{:.2} s", ms / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Enforcement, Model, Outcome, PageCache, Request, RunResult, Tool};

    fn shown(report: &Report) -> String {
        let mut out = Vec::new();
        memory(report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_absent_has_a_reason_and_nothing_is_zero_by_default() {
        let mut report = Report::new(Tool::default(), Model::default(), Request::default());
        report.enforcement = Enforcement {
            backend: Backend::CgroupV1,
            limit_bytes: Some(64 << 20),
            peak_bytes: Some(67_000_000),
            limit_events: Some(12),
            oom_kills: Some(1),
            stat: [("cache", 4096), ("pgfault", 4097), ("swap", 0)].map(|(n, v)| (n.to_owned(), v)).into(),
            reasons: [("swap_peak_bytes".to_owned(), "no file".to_owned())].into(),
            page_cache: Some(PageCache {
                before_bytes: Some(98_362_432),
                after_bytes: None,
                reason: Some("why".to_owned()),
            }),
            notes: vec!["cgroup-v2 was not used: reason".to_owned()],
            ..Enforcement::default()
        };
        report.outcome =
            Outcome { result: RunResult::OomKilled, exit_code: 137, signal: Some(9), message: None };
        report.timing.wall_ms = Some(1234.6);
        report.timing.user_ms = Some(70.0);
        let expected = "\
enforcement          cgroup-v1
                     cgroup-v2 was not used: reason
limit                64 MiB     (67108864 bytes)
peak                 63.90 MiB  (67000000 bytes)
limit events         12
OOM kills            1
swap peak            not known: no file
model in page cache  93.81 MiB  (98362432 bytes)
after dropping it    not known: why
memory.stat cache    4 KiB      (4096 bytes)
memory.stat pgfault  4097
wall time            1.23 s
user time            70 ms
system time          not known: the kernel did not count or show it
major faults         not known: the kernel did not count or show it
minor faults         not known: the kernel did not count or show it
bytes read           not known: the kernel did not count or show it
worker's end         oom-killed, signal 9, exit code 137
";
        assert_eq!(shown(&report), expected);
    }

    #[test]
    fn a_free_run_has_no_limit_to_speak_of() {
        let report = Report::new(Tool::default(), Model::default(), Request::default());
        let shown = shown(&report);
        assert!(shown.starts_with("enforcement   none\nwall time "), "{shown}");
    }
}
