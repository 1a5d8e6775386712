//! The tripwire: swap in use is sampled while the worker runs, and a run that makes the machine swap is stopped
//! before the machine freezes.

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use super::Event;
use crate::observe::host::{Host, Pressure};
use crate::report::Swap;

/// How often swap is sampled, and how often once something has been swapped out.
const CALM: Duration = Duration::from_secs(2);
const ALERT: Duration = Duration::from_millis(250);

/// One look at the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Bytes of swap in use on the machine.
    used_bytes: u64,
    pressure: Option<Pressure>,
}

impl Sample {
    fn take(proc: &std::path::Path) -> Option<Self> {
        let host = Host::sample(proc).ok()?;
        let used_bytes = host.swap_bytes.saturating_sub(host.swap_free_bytes);
        Some(Self { used_bytes, pressure: Pressure::sample(proc) })
    }
}

/// Starts to sample, for a run that may add `limit_bytes` to the swap in use, and says so in a report: or why
/// there is nothing to watch.
pub(super) fn watch(proc: PathBuf, limit_bytes: Option<u64>, sender: Sender<Event>) -> Swap {
    let idle = |reason: &str| Swap { idle_reason: Some(reason.to_owned()), ..Swap::default() };
    if limit_bytes.is_none() {
        return idle("it was switched off");
    }
    let Some(start) = Sample::take(&proc) else { return idle("the kernel does not show the swap in use") };
    if Host::sample(&proc).is_ok_and(|host| host.swap_bytes == 0) {
        return idle("this machine has no swap");
    }
    thread::spawn(move || {
        let mut last = start;
        loop {
            thread::sleep(if last.used_bytes > start.used_bytes { ALERT } else { CALM });
            let Some(sample) = Sample::take(&proc) else { continue };
            last = sample;
            // Ends with the run.
            if sender.send(Event::Swap(sample)).is_err() {
                return;
            }
        }
    });
    Swap { limit_bytes, start_bytes: Some(start.used_bytes), growth_bytes: Some(0), ..Swap::default() }
}

/// Takes a sample into the report. Returns the growth that is more than the run may cause.
pub(super) fn trips(swap: &mut Swap, sample: Sample) -> Option<u64> {
    let growth = sample.used_bytes.saturating_sub(swap.start_bytes?);
    swap.growth_bytes = swap.growth_bytes.max(Some(growth));
    if let Some(pressure) = sample.pressure {
        let most = |before: Option<f32>, now: f32| Some(before.map_or(now, |before| before.max(now)));
        swap.pressure_some_percent = most(swap.pressure_some_percent, pressure.some_avg10);
        swap.pressure_full_percent = most(swap.pressure_full_percent, pressure.full_avg10);
    }
    (growth > swap.limit_bytes?).then_some(growth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::mpsc;

    const MIB: u64 = 1 << 20;

    fn sample(used_mib: u64) -> Sample {
        Sample { used_bytes: used_mib * MIB, pressure: None }
    }

    fn watched() -> Swap {
        Swap { limit_bytes: Some(512 * MIB), start_bytes: Some(100 * MIB), ..Swap::default() }
    }

    #[test]
    fn it_trips_on_growth_and_not_on_what_was_there() {
        let mut swap = watched();
        assert_eq!(trips(&mut swap, sample(50)), None);
        assert_eq!(trips(&mut swap, sample(612)), None);
        assert_eq!(trips(&mut swap, sample(300)), None);
        assert_eq!(swap.growth_bytes, Some(512 * MIB));
        assert_eq!(trips(&mut swap, sample(613)), Some(513 * MIB));
    }

    #[test]
    fn the_worst_pressure_is_kept() {
        let mut swap = watched();
        for (some_avg10, full_avg10) in [(1.0, 0.5), (9.0, 3.0), (2.0, 4.0)] {
            let pressure = Some(Pressure { some_avg10, full_avg10 });
            trips(&mut swap, Sample { pressure, ..sample(100) });
        }
        assert_eq!((swap.pressure_some_percent, swap.pressure_full_percent), (Some(9.0), Some(4.0)));
    }

    #[test]
    fn a_machine_without_swap_has_an_idle_tripwire_and_its_reason() {
        let proc = tempfile::tempdir().unwrap();
        let (sender, _events) = mpsc::channel();
        let swap = watch(proc.path().to_owned(), Some(1), sender.clone());
        assert!(swap.idle_reason.unwrap().contains("does not show"));
        let text = "MemTotal: 100 kB\nMemFree: 1 kB\nBuffers: 0 kB\nCached: 0 kB\nSwapCached: 0 kB\n\
            Active: 0 kB\nInactive: 0 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nDirty: 0 kB\nWriteback: 0 kB\n\
            Mapped: 0 kB\nSlab: 0 kB\nCommitted_AS: 0 kB\nVmallocTotal: 0 kB\nVmallocUsed: 0 kB\n\
            VmallocChunk: 0 kB\n";
        fs::write(proc.path().join("meminfo"), text).unwrap();
        let swap = watch(proc.path().to_owned(), Some(1), sender.clone());
        assert_eq!(swap.idle_reason.as_deref(), Some("this machine has no swap"));
        let swap = watch(proc.path().to_owned(), None, sender);
        assert_eq!(swap.idle_reason.as_deref(), Some("it was switched off"));
    }
}
