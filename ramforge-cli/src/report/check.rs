//! Bounds that a report must keep: what a CI job asks.

use super::{Backend, LedgerTerm, Report, RunResult};
use crate::ledger;
use crate::size::exact;

/// What is required; an absent bound is not checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Most bytes the run may have held: the group's peak, or without a group the process's.
    pub max_peak_bytes: Option<u64>,
    /// Fewest tokens a second.
    pub min_decode_rate: Option<f64>,
    /// Most bytes read from storage.
    pub max_read_bytes: Option<u64>,
    /// Longest time to the first token, in milliseconds.
    pub max_first_token_ms: Option<f64>,
    /// How the run must have ended.
    pub outcome: Option<RunResult>,
    /// What the hash over the generated tokens must be.
    pub fingerprint: Option<String>,
}

/// One bound, and whether it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What is bounded.
    pub name: &'static str,
    /// What the report says.
    pub found: String,
    /// The bound.
    pub bound: String,
    /// Whether it is kept. What the report does not know keeps no bound.
    pub kept: bool,
}

/// Checks every bound there is.
pub fn check(report: &Report, bounds: &Bounds) -> Vec<Checked> {
    let mut checked = Vec::new();
    let mut add = |name, found: Option<String>, bound: String, kept: bool| {
        let found = found.unwrap_or_else(|| "not known".to_owned());
        checked.push(Checked { name, found, bound, kept });
    };
    if let Some(bound) = bounds.outcome {
        let found = report.outcome.result;
        add("outcome", Some(found.to_string()), format!("must be {bound}"), found == bound);
    }
    if let Some(bound) = bounds.max_peak_bytes {
        // What a group held besides the process counts, so the process's peak stands in for no group's.
        let found = match report.enforcement.backend {
            Backend::None => ledger::bytes(&report.ledger, LedgerTerm::ProcessPeakRss),
            _ => report.enforcement.peak_bytes,
        };
        let kept = found.is_some_and(|found| found <= bound);
        add("peak", found.map(exact), format!("at most {}", exact(bound)), kept);
    }
    if let Some(bound) = bounds.max_read_bytes {
        let found = report.io.read_bytes;
        let kept = found.is_some_and(|found| found <= bound);
        add("bytes read", found.map(exact), format!("at most {}", exact(bound)), kept);
    }
    if let Some(bound) = bounds.min_decode_rate {
        let found = report.timing.decode_tokens_per_second;
        let kept = found.is_some_and(|found| found >= bound);
        let rate = |rate: f64| format!("{rate:.2} tokens/s");
        add("decode rate", found.map(rate), format!("at least {}", rate(bound)), kept);
    }
    if let Some(bound) = bounds.max_first_token_ms {
        let found = report.timing.time_to_first_token_ms;
        let kept = found.is_some_and(|found| found <= bound);
        let time = |ms: f64| format!("{ms:.1} ms");
        add("time to first token", found.map(time), format!("at most {}", time(bound)), kept);
    }
    if let Some(bound) = &bounds.fingerprint {
        let found = report.output.as_ref().and_then(|output| output.token_fingerprint.clone());
        let kept = found.as_ref() == Some(bound);
        add("token fingerprint", found, format!("must be {bound}"), kept);
    }
    checked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{LedgerEntry, Model, Output, Provenance, Request, Tool};

    fn bounds() -> Bounds {
        Bounds {
            max_peak_bytes: Some(100),
            min_decode_rate: Some(5.0),
            max_read_bytes: Some(1000),
            max_first_token_ms: Some(10.0),
            outcome: Some(RunResult::Ok),
            fingerprint: Some("abc".to_owned()),
        }
    }

    #[test]
    fn what_is_not_known_keeps_no_bound() {
        let report = Report::new(Tool::default(), Model::default(), Request::default());
        let checked = check(&report, &bounds());
        assert_eq!(checked.len(), 6);
        assert!(checked.iter().all(|checked| !checked.kept), "{checked:?}");
        assert!(check(&report, &Bounds::default()).is_empty());
    }

    #[test]
    fn bounds_are_kept_at_their_edge_and_broken_beyond_it() {
        let mut report = Report::new(Tool::default(), Model::default(), Request::default());
        report.enforcement.backend = Backend::CgroupV2;
        report.enforcement.peak_bytes = Some(100);
        report.io.read_bytes = Some(1000);
        report.timing.decode_tokens_per_second = Some(5.0);
        report.timing.time_to_first_token_ms = Some(10.0);
        report.outcome.result = RunResult::Ok;
        report.output = Some(Output { token_fingerprint: Some("abc".to_owned()), ..Output::default() });
        assert!(check(&report, &bounds()).iter().all(|checked| checked.kept));
        report.enforcement.peak_bytes = Some(101);
        report.timing.decode_tokens_per_second = Some(4.9);
        let broken: Vec<_> =
            check(&report, &bounds()).into_iter().filter(|c| !c.kept).map(|c| c.name).collect();
        assert_eq!(broken, ["peak", "decode rate"]);
    }

    #[test]
    fn the_peak_of_the_process_counts_only_where_there_is_no_group() {
        let mut report = Report::new(Tool::default(), Model::default(), Request::default());
        report.ledger.push(LedgerEntry {
            category: LedgerTerm::ProcessPeakRss,
            bytes: Some(50),
            provenance: Some(Provenance::Kernel),
            reason: None,
        });
        let bounds = Bounds { max_peak_bytes: Some(100), ..Bounds::default() };
        assert!(check(&report, &bounds)[0].kept);
        report.enforcement.backend = Backend::CgroupV2;
        assert!(!check(&report, &bounds)[0].kept);
    }
}
