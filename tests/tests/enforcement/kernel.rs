//! The kernel's side, read without the product's code: groups, their files, processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The place of this machine where groups with a limit are made.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The back end that a report names.
    pub backend: &'static str,
    /// The group of this process, below which runs make theirs.
    pub base: PathBuf,
}

impl Kernel {
    /// The memory controller, where this process may use it.
    ///
    /// # Errors
    /// Why it may not.
    pub fn here() -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let found = mounts.lines().filter_map(Mount::parse).find_map(|mount| mount.kernel(&groups));
        let kernel = found.ok_or("no hierarchy with the memory controller is mounted")?;
        let trial = kernel.base.join(format!("trial-{}", std::process::id()));
        fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial)).map_err(|error| {
            format!("this user may not make groups in {}: {error}", kernel.base.display())
        })?;
        Ok(kernel)
    }

    /// The groups that a supervisor has made.
    pub fn groups_of(&self, supervisor: u32) -> Vec<PathBuf> {
        let prefix = format!("ramforge-{supervisor}-");
        let entries = fs::read_dir(&self.base).expect("the base is there").filter_map(Result::ok);
        let paths = entries.map(|entry| entry.path());
        let named =
            |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix));
        paths.filter(named).collect()
    }

    /// What the files of a group say, under the report's names.
    pub fn facts(&self, group: &Path) -> BTreeMap<&'static str, u64> {
        let number = |file: &str| {
            let text = fs::read_to_string(group.join(file)).ok()?;
            Some(text.trim().parse::<u64>().unwrap_or_else(|error| panic!("{file}: {error}: {text}")))
        };
        let counter = |file: &str, name: &str| {
            let text = fs::read_to_string(group.join(file)).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            Some(line?.parse::<u64>().unwrap())
        };
        let facts = if self.backend == "cgroup-v1" {
            [
                ("limit_bytes", number("memory.limit_in_bytes")),
                ("peak_bytes", number("memory.max_usage_in_bytes")),
                ("limit_events", number("memory.failcnt")),
                ("oom_kills", counter("memory.oom_control", "oom_kill")),
            ]
        } else {
            [
                ("limit_bytes", number("memory.max")),
                ("peak_bytes", number("memory.peak")),
                ("limit_events", counter("memory.events", "max")),
                ("oom_kills", counter("memory.events", "oom_kill")),
            ]
        };
        facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// The processes in a group.
pub fn processes(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The processes that have `text` in their environment, the calling one left out.
pub fn processes_with(text: &str) -> Vec<u32> {
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let holds = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(text.len()).any(|part| part == text.as_bytes())
    };
    pids.filter(|pid| *pid != std::process::id() && holds(pid)).collect()
}

/// One line of `mountinfo`.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        Some(Self { root: left.next()?, point: left.next()?, kind: right.next()?, options: right.nth(1)? })
    }

    /// The kernel's memory controller, if this is where it is mounted.
    fn kernel(&self, groups: &str) -> Option<Kernel> {
        let own = |is_it: &dyn Fn(&str) -> bool| {
            let line = groups.lines().find(|line| line.split(':').nth(1).is_some_and(is_it))?;
            let below = Path::new(line.splitn(3, ':').nth(2)?).strip_prefix(self.root).ok()?;
            Some(Path::new(self.point).join(below))
        };
        let has_memory = |text: &str| text.split([' ', ',', '\n']).any(|word| word == "memory");
        match self.kind {
            "cgroup" if has_memory(self.options) => {
                Some(Kernel { backend: "cgroup-v1", base: own(&has_memory)? })
            }
            "cgroup2" => {
                let base = own(&str::is_empty)?;
                let controllers = fs::read_to_string(base.join("cgroup.controllers")).ok()?;
                has_memory(&controllers).then_some(Kernel { backend: "cgroup-v2", base })
            }
            _ => None,
        }
    }
}
