//! What the kernel shows of a worker that has ended, in the report's terms.

use std::collections::BTreeMap;

use crate::observe::cgroup::{Memory, MemoryV1};
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

/// Fills in what the group's files say.
pub(super) fn record_group(enforcement: &mut Enforcement, memory: &Memory) {
    enforcement.oom_kills = memory.oom_kills();
    match memory {
        Memory::V2(v2) => {
            enforcement.limit_bytes = v2.max.and_then(|limit| limit.bytes());
            enforcement.peak_bytes = v2.peak;
            enforcement.limit_events = v2.events.as_ref().and_then(|events| events.max);
            enforcement.swap_peak_bytes = v2.swap_peak;
            enforcement.stat = selected(v2.stat.as_ref(), &STAT_V2);
        }
        Memory::V1(v1) => {
            enforcement.limit_bytes = v1.limit.and_then(|limit| limit.bytes());
            enforcement.peak_bytes = v1.max_usage;
            enforcement.limit_events = limit_events_v1(v1);
            enforcement.swap_peak_bytes = None;
            enforcement.stat = selected(v1.stat.as_ref(), &STAT_V1);
        }
    }
}

/// A charge that fails counts in the file of the limit it met first. Where memory and swap together have the
/// same limit as memory alone, that is `memory.memsw.failcnt`, and some kernels never write it: nothing
/// counted is then nothing known.
fn limit_events_v1(memory: &MemoryV1) -> Option<u64> {
    let failures = memory.failcnt? + memory.memsw_failcnt.unwrap_or(0);
    let always_memsw = memory.memsw_limit.is_some() && memory.memsw_limit == memory.limit;
    (failures > 0 || !always_memsw).then_some(failures)
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
    *io = Io {
        read_bytes: process.read_bytes,
        major_faults: Some(process.major_faults),
        minor_faults: Some(process.minor_faults),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::cgroup::{Events, Limit, MemoryV2};

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
        let failures = |failcnt, memsw_failcnt| {
            limit_events_v1(&MemoryV1 { failcnt, memsw_failcnt, ..MemoryV1::default() })
        };
        assert_eq!(failures(Some(3), Some(4)), Some(7));
        assert_eq!(failures(Some(3), None), Some(3));
        assert_eq!(failures(None, None), None);
    }

    #[test]
    fn v1_counts_that_some_kernels_never_make_are_not_taken_for_zero() {
        let limit = Some(Limit::Bytes(64));
        let same = MemoryV1 {
            failcnt: Some(0),
            memsw_failcnt: Some(0),
            limit,
            memsw_limit: limit,
            ..MemoryV1::default()
        };
        assert_eq!(limit_events_v1(&same), None);
        assert_eq!(limit_events_v1(&MemoryV1 { memsw_failcnt: Some(2), ..same.clone() }), Some(2));
        assert_eq!(limit_events_v1(&MemoryV1 { memsw_limit: None, ..same }), Some(0));
    }
}
