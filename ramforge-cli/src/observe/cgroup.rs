//! The files of one memory control group, version 1 or 2.
//!
//! Which files exist depends on the kernel's version and configuration (no swap accounting, no
//! `memory.peak` before 5.19, …), so every file is optional; one that exists must be readable and sound.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::observe::host::{Group, Groups};

/// A limit file's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// No limit at this level.
    Unlimited,
    /// A limit in bytes.
    Bytes(u64),
}

/// What version 1 writes for "no limit": the largest whole number of pages in a signed 64-bit integer,
/// for the largest page size there is.
const V1_UNLIMITED: u64 = i64::MAX as u64 - (64 << 10);

impl Limit {
    /// The limit in bytes, if there is one.
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl FromStr for Limit {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "max" => Ok(Self::Unlimited),
            number => number
                .parse()
                .map(|bytes| if bytes >= V1_UNLIMITED { Self::Unlimited } else { Self::Bytes(bytes) }),
        }
    }
}

/// `memory.events` (v2): how often each thing happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Reclaim because of `memory.high`.
    pub high: Option<u64>,
    /// An allocation met `memory.max`.
    pub max: Option<u64>,
    /// An allocation was about to fail.
    pub oom: Option<u64>,
    /// Processes of the group that any OOM killer killed.
    pub oom_kill: Option<u64>,
    /// Times the group was killed as a whole.
    pub oom_group_kill: Option<u64>,
}

/// A version 2 group's memory files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryV2 {
    /// `memory.current`, bytes.
    pub current: Option<u64>,
    /// `memory.peak`, bytes.
    pub peak: Option<u64>,
    /// `memory.max`.
    pub max: Option<Limit>,
    /// `memory.high`: above it, the kernel slows the group down and takes its pages back.
    pub high: Option<Limit>,
    /// `memory.events`.
    pub events: Option<Events>,
    /// `memory.swap.current`, bytes.
    pub swap_current: Option<u64>,
    /// `memory.swap.peak`, bytes.
    pub swap_peak: Option<u64>,
    /// `memory.swap.max`.
    pub swap_max: Option<Limit>,
    /// `memory.stat`.
    pub stat: Option<BTreeMap<String, u64>>,
}

/// A version 1 group's memory files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryV1 {
    /// `memory.usage_in_bytes`.
    pub usage: Option<u64>,
    /// `memory.max_usage_in_bytes`.
    pub max_usage: Option<u64>,
    /// `memory.limit_in_bytes`.
    pub limit: Option<Limit>,
    /// `memory.failcnt`: charges that met `limit`.
    pub failcnt: Option<u64>,
    /// `memory.memsw.limit_in_bytes`: memory and swap together.
    pub memsw_limit: Option<Limit>,
    /// `memory.memsw.max_usage_in_bytes`.
    pub memsw_max_usage: Option<u64>,
    /// `memory.memsw.failcnt`: charges that met `memsw_limit`, which the kernel tries first.
    pub memsw_failcnt: Option<u64>,
    /// `oom_kill` in `memory.oom_control`: processes of the group that any OOM killer killed.
    pub oom_kill: Option<u64>,
    /// `memory.stat`, this group's own values and, as `total_…`, its subtree's.
    pub stat: Option<BTreeMap<String, u64>>,
}

/// The memory files of a group, of the version its hierarchy has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// A group of the unified hierarchy.
    V2(MemoryV2),
    /// A group of the version 1 memory controller.
    V1(MemoryV1),
}

impl MemoryV2 {
    /// Samples the group at `dir`.
    ///
    /// # Errors
    /// A file that exists and cannot be read or understood, with its path.
    pub fn sample(dir: &Path) -> io::Result<Self> {
        let group = Files(dir);
        let events = group.counters("memory.events")?.map(|counters| {
            let get = |name| counters.get(name).copied();
            Events {
                high: get("high"),
                max: get("max"),
                oom: get("oom"),
                oom_kill: get("oom_kill"),
                oom_group_kill: get("oom_group_kill"),
            }
        });
        Ok(Self {
            current: group.value("memory.current")?,
            peak: group.value("memory.peak")?,
            max: group.value("memory.max")?,
            high: group.value("memory.high")?,
            events,
            swap_current: group.value("memory.swap.current")?,
            swap_peak: group.value("memory.swap.peak")?,
            swap_max: group.value("memory.swap.max")?,
            stat: group.counters("memory.stat")?,
        })
    }
}

impl MemoryV1 {
    /// Samples the group at `dir`.
    ///
    /// # Errors
    /// A file that exists and cannot be read or understood, with its path.
    pub fn sample(dir: &Path) -> io::Result<Self> {
        let group = Files(dir);
        Ok(Self {
            usage: group.value("memory.usage_in_bytes")?,
            max_usage: group.value("memory.max_usage_in_bytes")?,
            limit: group.value("memory.limit_in_bytes")?,
            failcnt: group.value("memory.failcnt")?,
            memsw_limit: group.value("memory.memsw.limit_in_bytes")?,
            memsw_max_usage: group.value("memory.memsw.max_usage_in_bytes")?,
            memsw_failcnt: group.value("memory.memsw.failcnt")?,
            oom_kill: group.counters("memory.oom_control")?.and_then(|c| c.get("oom_kill").copied()),
            stat: group.counters("memory.stat")?,
        })
    }
}

impl Memory {
    /// OOM kills of the group's processes.
    pub fn oom_kills(&self) -> Option<u64> {
        match self {
            Self::V2(memory) => memory.events.as_ref()?.oom_kill,
            Self::V1(memory) => memory.oom_kill,
        }
    }

    /// The least that any limit of this group allows, in bytes: none when it has no limit.
    pub fn tightest_limit(&self) -> Option<u64> {
        let limits = match self {
            Self::V2(memory) => [memory.max, memory.high],
            Self::V1(memory) => [memory.limit, None],
        };
        limits.into_iter().flatten().filter_map(Limit::bytes).min()
    }

    /// The limit and the usage of this group, in bytes.
    pub fn limit_and_usage(&self) -> (Option<Limit>, Option<u64>) {
        match self {
            Self::V2(memory) => (memory.max, memory.current),
            Self::V1(memory) => (memory.limit, memory.usage),
        }
    }
}

/// A group on the way from a process's own group up to the root of what is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Its directory.
    pub dir: PathBuf,
    /// Its memory files.
    pub memory: Memory,
}

impl Level {
    /// Samples the groups around the calling process, its own first, in every hierarchy that counts memory.
    /// In a container, a group's own directory may not be shown: the levels that are shown are sampled.
    ///
    /// # Errors
    /// A file that exists and cannot be read or understood, with its path.
    pub fn sample_all(groups: &Groups) -> io::Result<Vec<Self>> {
        let mut levels = Vec::new();
        for dir in groups.v2.iter().flat_map(ancestry) {
            let memory = Memory::V2(MemoryV2::sample(&dir)?);
            levels.push(Self { dir, memory });
        }
        for dir in groups.v1_memory.iter().flat_map(ancestry) {
            let memory = Memory::V1(MemoryV1::sample(&dir)?);
            levels.push(Self { dir, memory });
        }
        Ok(levels)
    }
}

fn ancestry(group: &Group) -> impl Iterator<Item = PathBuf> {
    let levels = group.dir.ancestors().take_while(|dir| dir.starts_with(&group.mount_point));
    levels.map(Path::to_owned)
}

/// The processes in the group at `dir`. Processes of another PID namespace, which the kernel shows as 0,
/// are left out.
///
/// # Errors
/// A `cgroup.procs` that cannot be read or understood, with its path.
pub fn processes(dir: &Path) -> io::Result<Vec<i32>> {
    let path = dir.join("cgroup.procs");
    let text = fs::read_to_string(&path).map_err(|error| at(&path, error))?;
    let pids: Result<Vec<i32>, _> = text.lines().map(str::parse).collect();
    let pids = pids.map_err(|error| at(&path, io::Error::new(ErrorKind::InvalidData, error)))?;
    Ok(pids.into_iter().filter(|&pid| pid > 0).collect())
}

/// The files in a group's directory.
struct Files<'a>(&'a Path);

impl Files<'_> {
    fn text(&self, name: &str) -> io::Result<Option<(PathBuf, String)>> {
        let path = self.0.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some((path, text))),
            // EOPNOTSUPP: the file is listed, and this configuration of the kernel does not serve it.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported) => Ok(None),
            Err(error) => Err(at(&path, error)),
        }
    }

    /// A file of one value.
    fn value<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
        &self,
        name: &str,
    ) -> io::Result<Option<T>> {
        let Some((path, text)) = self.text(name)? else { return Ok(None) };
        let value = text.trim().parse();
        value.map(Some).map_err(|error| at(&path, io::Error::new(ErrorKind::InvalidData, error)))
    }

    /// A file of `name number` lines.
    fn counters(&self, name: &str) -> io::Result<Option<BTreeMap<String, u64>>> {
        let Some((path, text)) = self.text(name)? else { return Ok(None) };
        let counters = parse_counters(&text).map_err(|error| at(&path, error))?;
        Ok(Some(counters))
    }
}

/// Parses `name number` lines, the form of `memory.events`, `memory.stat` and `memory.oom_control`.
///
/// # Errors
/// A line of another form.
pub fn parse_counters(text: &str) -> io::Result<BTreeMap<String, u64>> {
    let parse = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    text.lines()
        .map(|line| {
            parse(line).ok_or_else(|| {
                io::Error::new(ErrorKind::InvalidData, format!("{line:?} is not a name and a number"))
            })
        })
        .collect()
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_full_v2_group() {
        let dir = group(&[
            ("memory.current", "1048576\n"),
            ("memory.peak", "67108864\n"),
            ("memory.max", "67108864\n"),
            ("memory.events", "low 0\nhigh 1\nmax 1234\noom 2\noom_kill 3\noom_group_kill 1\n"),
            ("memory.swap.current", "0\n"),
            ("memory.swap.peak", "4096\n"),
            ("memory.swap.max", "max\n"),
            ("memory.stat", "anon 4096\nfile 8192\npgmajfault 7\n"),
        ]);
        let memory = MemoryV2::sample(dir.path()).unwrap();
        assert_eq!(memory.peak, Some(64 << 20));
        assert_eq!(memory.max, Some(Limit::Bytes(64 << 20)));
        assert_eq!(memory.swap_max, Some(Limit::Unlimited));
        assert_eq!(memory.swap_peak, Some(4096));
        let events = memory.events.clone().unwrap();
        assert_eq!((events.max, events.oom_kill, events.oom_group_kill), (Some(1234), Some(3), Some(1)));
        assert_eq!(memory.stat.as_ref().unwrap()["pgmajfault"], 7);
        assert_eq!(Memory::V2(memory).oom_kills(), Some(3));
    }

    #[test]
    fn files_an_older_kernel_lacks_are_none_and_not_zero() {
        let dir = group(&[("memory.current", "5\n"), ("memory.events", "low 0\nmax 9\n")]);
        let memory = MemoryV2::sample(dir.path()).unwrap();
        assert_eq!(memory.current, Some(5));
        assert_eq!((memory.peak, memory.swap_peak, memory.stat.clone()), (None, None, None));
        let events = memory.events.unwrap();
        assert_eq!((events.max, events.oom_kill, events.oom_group_kill), (Some(9), None, None));
    }

    #[test]
    fn a_full_v1_group() {
        let dir = group(&[
            ("memory.usage_in_bytes", "100\n"),
            ("memory.max_usage_in_bytes", "16777216\n"),
            ("memory.limit_in_bytes", "16777216\n"),
            ("memory.failcnt", "0\n"),
            ("memory.memsw.limit_in_bytes", "9223372036854771712\n"),
            ("memory.memsw.failcnt", "77\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            ("memory.stat", "cache 1\nrss 2\ntotal_cache 1\n"),
        ]);
        let memory = MemoryV1::sample(dir.path()).unwrap();
        assert_eq!(memory.max_usage, Some(16 << 20));
        assert_eq!(memory.limit, Some(Limit::Bytes(16 << 20)));
        assert_eq!(memory.memsw_limit, Some(Limit::Unlimited));
        assert_eq!((memory.failcnt, memory.memsw_failcnt), (Some(0), Some(77)));
        assert_eq!(memory.memsw_max_usage, None);
        assert_eq!(Memory::V1(memory).oom_kills(), Some(2));
    }

    #[test]
    fn v1_of_an_old_kernel_has_no_kill_counter() {
        let dir = group(&[("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")]);
        assert_eq!(MemoryV1::sample(dir.path()).unwrap().oom_kill, None);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_an_error_with_its_path() {
        let dir = group(&[("memory.peak", "lots\n")]);
        let error = MemoryV2::sample(dir.path()).unwrap_err().to_string();
        assert!(error.contains("memory.peak"), "{error}");
        let dir = group(&[("memory.stat", "anon\n")]);
        let error = MemoryV2::sample(dir.path()).unwrap_err().to_string();
        assert!(error.contains("memory.stat") && error.contains("\"anon\""), "{error}");
    }

    #[test]
    fn processes_of_other_namespaces_are_left_out() {
        let dir = group(&[("cgroup.procs", "12\n0\n345\n")]);
        assert_eq!(processes(dir.path()).unwrap(), [12, 345]);
    }
}
