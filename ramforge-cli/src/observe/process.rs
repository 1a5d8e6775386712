//! What `/proc/PID` says about one process: memory, faults, processor time, bytes read.

use std::fmt;
use std::path::Path;

use procfs::process::{Io, Stat, Status};
use procfs::{FromRead, ProcError};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The calling process.
    Own,
    /// The process with this id.
    Pid(u32),
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("self"),
            Self::Pid(pid) => pid.fmt(f),
        }
    }
}

/// One sample. A process that has ended and is not yet reaped has no memory any more, and keeps its
/// counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Resident bytes.
    pub rss_bytes: Option<u64>,
    /// Resident anonymous bytes.
    pub rss_anonymous_bytes: Option<u64>,
    /// Resident bytes of file mappings.
    pub rss_file_bytes: Option<u64>,
    /// Resident bytes of shared memory.
    pub rss_shared_bytes: Option<u64>,
    /// The largest `rss_bytes` there was.
    pub peak_rss_bytes: Option<u64>,
    /// Bytes swapped out.
    pub swap_bytes: Option<u64>,
    /// Faults that had to read from a device.
    pub major_faults: u64,
    /// Faults that did not.
    pub minor_faults: u64,
    /// Processor time in user mode, in milliseconds; the kernel counts it in ticks of (usually) 10 ms.
    pub user_ms: u64,
    /// Processor time in the kernel, in milliseconds.
    pub system_ms: u64,
    /// Bytes the process had the storage layer read; `None` where the kernel does not count or show them.
    pub read_bytes: Option<u64>,
}

impl Process {
    /// Samples `which` below the proc file system mounted at `proc`.
    ///
    /// # Errors
    /// No such process, or a file of another form than the kernel's.
    pub fn sample(proc: &Path, which: Which) -> Result<Self> {
        let dir = proc.join(which.to_string());
        let unreadable = |error: ProcError| Error::failed("cannot sample a process").caused_by(error);
        let status = Status::from_file(dir.join("status")).map_err(unreadable)?;
        let stat = Stat::from_file(dir.join("stat")).map_err(unreadable)?;
        let tick_ms = 1000 / procfs::ticks_per_second();
        let bytes = |kib: Option<u64>| kib.map(|kib| kib * 1024);
        Ok(Self {
            rss_bytes: bytes(status.vmrss),
            rss_anonymous_bytes: bytes(status.rssanon),
            rss_file_bytes: bytes(status.rssfile),
            rss_shared_bytes: bytes(status.rssshmem),
            peak_rss_bytes: bytes(status.vmhwm),
            swap_bytes: bytes(status.vmswap),
            major_faults: stat.majflt,
            minor_faults: stat.minflt,
            user_ms: stat.utime * tick_ms,
            system_ms: stat.stime * tick_ms,
            // Absent without CONFIG_TASK_IO_ACCOUNTING, unreadable in some containers.
            read_bytes: Io::from_file(dir.join("io")).ok().map(|io| io.read_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process() {
        let sample = Process::sample(Path::new("/proc"), Which::Own).unwrap();
        assert!(sample.rss_bytes.unwrap() > 0);
        assert!(sample.peak_rss_bytes.unwrap() >= sample.rss_anonymous_bytes.unwrap());
        assert!(sample.minor_faults > 0);
    }

    #[test]
    fn a_process_that_ended_keeps_its_counters() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let which = Which::Pid(child.id());
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let sample = Process::sample(Path::new("/proc"), which).unwrap();
        child.wait().unwrap();
        assert_eq!(sample.rss_bytes, None);
        assert!(sample.minor_faults > 0 && sample.read_bytes.is_some());
        assert!(Process::sample(Path::new("/proc"), which).is_err(), "it has been reaped");
    }
}
