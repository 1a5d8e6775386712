//! The machine's memory, and where the calling process stands in the trees of control groups.

use std::path::{Path, PathBuf};

use procfs::process::MountInfos;
use procfs::{FromRead, Meminfo, MemoryPressure, ProcError, ProcessCGroups, VmStat};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The machine's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Physical memory in bytes.
    pub memory_bytes: u64,
    /// What the kernel thinks can be had without swapping, in bytes.
    pub available_bytes: Option<u64>,
    /// Swap space in bytes.
    pub swap_bytes: u64,
    /// Swap space not in use, in bytes.
    pub swap_free_bytes: u64,
    /// Processes killed for memory since the machine started, wherever they ran.
    pub oom_kills: Option<u64>,
}

impl Host {
    /// Samples the machine through the proc file system mounted at `proc`.
    ///
    /// # Errors
    /// `meminfo` cannot be read or understood.
    pub fn sample(proc: &Path) -> Result<Self> {
        let memory = Meminfo::from_file(proc.join("meminfo")).map_err(unreadable)?;
        let vmstat = VmStat::from_file(proc.join("vmstat")).ok();
        Ok(Self {
            memory_bytes: memory.mem_total,
            available_bytes: memory.mem_available,
            swap_bytes: memory.swap_total,
            swap_free_bytes: memory.swap_free,
            oom_kills: vmstat.and_then(|VmStat(counters)| u64::try_from(*counters.get("oom_kill")?).ok()),
        })
    }
}

/// How long tasks waited for memory, where the kernel counts it (PSI).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// Percent of the last 10 seconds in which some task waited.
    pub some_avg10: f32,
    /// Percent of the last 10 seconds in which every task that could run waited.
    pub full_avg10: f32,
}

impl Pressure {
    /// Samples the machine through the proc file system mounted at `proc`.
    pub fn sample(proc: &Path) -> Option<Self> {
        let pressure = MemoryPressure::from_file(proc.join("pressure/memory")).ok()?;
        Some(Self { some_avg10: pressure.some.avg10, full_avg10: pressure.full.avg10 })
    }
}

/// A control group as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its path inside the hierarchy, as `/proc/self/cgroup` prints it.
    pub path: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Where its hierarchy is mounted.
    pub mount_point: PathBuf,
    /// Whether that mount is read-only.
    pub read_only: bool,
}

/// The groups of the calling process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Its group in the unified hierarchy, where that is mounted.
    pub v2: Option<Group>,
    /// Its group of the version 1 memory controller, where that is mounted.
    pub v1_memory: Option<Group>,
}

impl Groups {
    /// Finds the groups through the proc file system mounted at `proc`.
    ///
    /// # Errors
    /// `self/cgroup` or `self/mountinfo` cannot be read or understood.
    pub fn own(proc: &Path) -> Result<Self> {
        let ProcessCGroups(groups) =
            ProcessCGroups::from_file(proc.join("self/cgroup")).map_err(unreadable)?;
        let mounts = MountInfos::from_file(proc.join("self/mountinfo")).map_err(unreadable)?;
        let find = |is_group: &dyn Fn(&[String]) -> bool, fs_type: &str, option: Option<&str>| {
            let group = groups.iter().find(|group| is_group(&group.controllers))?;
            let candidates = mounts.iter().filter(|mount| {
                mount.fs_type == fs_type
                    && option.is_none_or(|option| mount.super_options.contains_key(option))
            });
            candidates.into_iter().find_map(|mount| {
                // In a container, a mount may show a part of the hierarchy only.
                let below = Path::new(&group.pathname).strip_prefix(&mount.root).ok()?;
                Some(Group {
                    path: group.pathname.clone(),
                    // Joining nothing would add a slash.
                    dir: mount.mount_point.components().chain(below.components()).collect(),
                    mount_point: mount.mount_point.clone(),
                    read_only: mount.mount_options.contains_key("ro")
                        || mount.super_options.contains_key("ro"),
                })
            })
        };
        Ok(Self {
            v2: find(&|controllers| controllers.is_empty(), "cgroup2", None),
            v1_memory: find(
                &|controllers| controllers.iter().any(|c| c == "memory"),
                "cgroup",
                Some("memory"),
            ),
        })
    }
}

fn unreadable(error: ProcError) -> Error {
    Error::failed("cannot read what the kernel says about this machine").caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn own(cgroup: &str, mountinfo: &str) -> Groups {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("self")).unwrap();
        fs::write(proc.path().join("self/cgroup"), cgroup).unwrap();
        fs::write(proc.path().join("self/mountinfo"), mountinfo).unwrap();
        Groups::own(proc.path()).unwrap()
    }

    #[test]
    fn this_machine() {
        let host = Host::sample(Path::new("/proc")).unwrap();
        assert!(host.memory_bytes >= host.available_bytes.unwrap_or(0));
    }

    #[test]
    fn a_desktop_with_the_unified_hierarchy() {
        let groups = own(
            "0::/user.slice/user-1000.slice/session-2.scope\n",
            "26 23 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        let v2 = groups.v2.unwrap();
        assert_eq!(v2.dir, Path::new("/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"));
        assert!(!v2.read_only);
        assert_eq!(groups.v1_memory, None);
    }

    #[test]
    fn version_1_beside_a_unified_hierarchy_without_memory() {
        let groups = own(
            "4:cpu,memory:/jobs/7\n1:cpu:/\n0::/\n",
            "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        );
        assert_eq!(groups.v1_memory.unwrap().dir, Path::new("/sys/fs/cgroup/memory/jobs/7"));
        assert_eq!(groups.v2.unwrap().dir, Path::new("/sys/fs/cgroup/unified"));
    }

    #[test]
    fn a_container_that_is_shown_its_own_part_read_only() {
        let groups = own(
            "4:memory:/docker/abc\n",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n",
        );
        let v1 = groups.v1_memory.unwrap();
        assert_eq!(v1.dir, Path::new("/sys/fs/cgroup/memory"));
        assert!(v1.read_only);
    }

    #[test]
    fn a_group_outside_what_is_mounted_is_not_found() {
        let groups = own(
            "4:memory:/other\n",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        );
        assert_eq!(groups, Groups::default());
    }
}
