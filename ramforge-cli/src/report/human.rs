//! The report's memory side for people: an aligned table.

use std::io::{self, Write};

use super::{Backend, Report};
use crate::size::exact;

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
    row("wall time", known(timing.wall_ms.map(milliseconds), "the worker did not start"));
    row("user time", known(timing.user_ms.map(milliseconds), not_counted));
    row("system time", known(timing.system_ms.map(milliseconds), not_counted));
    row("major faults", known(io.major_faults, not_counted));
    row("minor faults", known(io.minor_faults, not_counted));
    row("bytes read", known(io.read_bytes.map(exact), not_counted));
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
    let no_file = "this kernel does not show it";
    row("limit", known(enforcement.limit_bytes.map(exact), no_file));
    row("peak", known(enforcement.peak_bytes.map(exact), no_file));
    row("limit events", known(enforcement.limit_events, no_file));
    row("OOM kills", known(enforcement.oom_kills, no_file));
    row("swap peak", known(enforcement.swap_peak_bytes.map(exact), no_file));
    if let Some(cache) = &enforcement.page_cache {
        let reason = cache.reason.as_deref().unwrap_or(no_file);
        row("model cached before the drop", known(cache.before_bytes.map(exact), reason));
        row("model cached after the drop", known(cache.after_bytes.map(exact), reason));
    }
    for (name, value) in &enforcement.stat {
        row(&format!("memory.stat {name}"), value.to_string());
    }
    rows
}

fn end(report: &Report) -> String {
    let outcome = &report.outcome;
    let signal = outcome.signal.map(|signal| format!(", signal {signal}")).unwrap_or_default();
    format!("{}{signal}, exit code {}", outcome.result, outcome.exit_code)
}

fn known<T: ToString>(value: Option<T>, reason: &str) -> String {
    value.map_or_else(|| format!("not available ({reason})"), |value| value.to_string())
}

fn milliseconds(ms: f64) -> String {
    format!("{ms:.0} ms")
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
            stat: [("cache".to_owned(), 4096)].into(),
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
        let expected = "\
enforcement                   cgroup-v1
                              cgroup-v2 was not used: reason
limit                         64 MiB (67108864 bytes)
peak                          63.90 MiB (67000000 bytes)
limit events                  12
OOM kills                     1
swap peak                     not available (this kernel does not show it)
model cached before the drop  93.81 MiB (98362432 bytes)
model cached after the drop   not available (why)
memory.stat cache             4096
wall time                     not available (the worker did not start)
user time                     not available (the kernel did not count or show it)
system time                   not available (the kernel did not count or show it)
major faults                  not available (the kernel did not count or show it)
minor faults                  not available (the kernel did not count or show it)
bytes read                    not available (the kernel did not count or show it)
worker's end                  oom-killed, signal 9, exit code 137
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
