//! What the kernel shows of a worker that has ended, in the report's terms.

use std::collections::BTreeMap;

use crate::observe::cgroup::Memory;
use crate::observe::process::Process;
use crate::report::{Enforcement, Io, Timing};

/// The counters of `memory.stat` that explain a run under a limit.
const STAT_V2: [&str; 14] = [
    "anon",
    "file",
    "file_mapped",
    "kernel",
    "pagetables",
    "pgfault",
    "pgmajfault",
    "pgscan",
    "pgsteal",
    "shmem",
    "slab",
    "workingset_activate_file",
    "workingset_refault_anon",
    "workingset_refault_file",
];
const STAT_V1: [&str; 10] = [
    "cache",
    "mapped_file",
    "pgfault",
    "pgmajfault",
    "pgpgin",
    "rss",
    "shmem",
    "swap",
    "workingset_refault_anon",
    "workingset_refault_file",
];

/// Fills in what the group's files say, and why what they do not say is absent.
pub(super) fn record_group(enforcement: &mut Enforcement, memory: &Memory) {
    enforcement.oom_kills = memory.oom_kills();
    let (peak, events, kills, swap_peak) = match memory {
        Memory::V2(v2) => {
            enforcement.limit_bytes = v2.max.and_then(|limit| limit.bytes());
            enforcement.peak_bytes = v2.peak;
            enforcement.limit_events = v2.events.as_ref().and_then(|events| events.max);
            enforcement.swap_peak_bytes = v2.swap_peak;
            enforcement.stat = selected(v2.stat.as_ref(), &STAT_V2);
            (
                "this kernel has no memory.peak",
                "this kernel has no max in memory.events",
                "this kernel has no oom_kill in memory.events",
                "this kernel has no memory.swap.peak",
            )
        }
        Memory::V1(v1) => {
            enforcement.limit_bytes = v1.limit.and_then(|limit| limit.bytes());
            enforcement.peak_bytes = v1.max_usage;
            enforcement.limit_events = v1.failcnt.map(|count| count + v1.memsw_failcnt.unwrap_or(0));
            enforcement.swap_peak_bytes = None;
            enforcement.stat = selected(v1.stat.as_ref(), &STAT_V1);
            (
                "this kernel has no memory.max_usage_in_bytes",
                "this kernel has no memory.failcnt",
                "this kernel has no oom_kill in memory.oom_control",
                "version 1 keeps no peak of swap alone",
            )
        }
    };
    let absent = [
        ("limit_bytes", enforcement.limit_bytes, "the kernel shows no limit on the group"),
        ("peak_bytes", enforcement.peak_bytes, peak),
        ("limit_events", enforcement.limit_events, events),
        ("oom_kills", enforcement.oom_kills, kills),
        ("swap_peak_bytes", enforcement.swap_peak_bytes, swap_peak),
    ];
    let absent = absent.into_iter().filter(|(_, value, _)| value.is_none());
    enforcement.reasons = absent.map(|(name, _, reason)| (name.to_owned(), reason.to_owned())).collect();
}

fn selected(stat: Option<&BTreeMap<String, u64>>, names: &[&str]) -> BTreeMap<String, u64> {
    let counters = stat.into_iter().flatten();
    let counters = counters.filter(|(name, _)| names.contains(&name.as_str()));
    counters.map(|(name, value)| (name.clone(), *value)).collect()
}

/// Fills in what the process's counters say.
pub(super) fn record_process(timing: &mut Timing, io: &mut Io, process: &Process) {
    timing.user_ms = Some(process.user_ms as f64);
    timing.system_ms = Some(process.system_ms as f64);
    io.read_bytes = process.read_bytes;
    io.major_faults = Some(process.major_faults);
    io.minor_faults = Some(process.minor_faults);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::cgroup::{Events, Limit, MemoryV1, MemoryV2};

    #[test]
    fn v2_files_become_report_fields() {
        let stat = [("anon", 5), ("zswap", 6)].map(|(name, value)| (name.to_owned(), value));
        let memory = Memory::V2(MemoryV2 {
            peak: Some(9),
            max: Some(Limit::Bytes(10)),
            events: Some(Events { max: Some(7), oom_kill: Some(1), ..Events::default() }),
            stat: Some(stat.into()),
            ..MemoryV2::default()
        });
        let mut enforcement = Enforcement::default();
        record_group(&mut enforcement, &memory);
        assert_eq!(enforcement.limit_bytes, Some(10));
        assert_eq!((enforcement.peak_bytes, enforcement.limit_events), (Some(9), Some(7)));
        assert_eq!((enforcement.oom_kills, enforcement.swap_peak_bytes), (Some(1), None));
        assert_eq!(enforcement.stat, BTreeMap::from([("anon".to_owned(), 5)]));
    }

    #[test]
    fn v1_counts_both_kinds_of_failed_charges() {
        let events = |failcnt, memsw_failcnt| {
            let mut enforcement = Enforcement::default();
            let memory = MemoryV1 { failcnt, memsw_failcnt, ..MemoryV1::default() };
            record_group(&mut enforcement, &Memory::V1(memory));
            enforcement.limit_events
        };
        assert_eq!(events(Some(3), Some(4)), Some(7));
        assert_eq!(events(Some(3), None), Some(3));
        assert_eq!(events(None, None), None);
    }

    #[test]
    fn exactly_what_is_absent_has_a_reason() {
        let mut enforcement = Enforcement::default();
        let memory = MemoryV1 { max_usage: Some(5), failcnt: Some(0), ..MemoryV1::default() };
        record_group(&mut enforcement, &Memory::V1(memory));
        let named: Vec<_> = enforcement.reasons.keys().map(String::as_str).collect();
        assert_eq!(named, ["limit_bytes", "oom_kills", "swap_peak_bytes"]);
    }
}
