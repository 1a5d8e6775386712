use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::observe::cgroup::{Memory, MemoryV1, MemoryV2, processes};

/// How long the kernel is given to end the processes of a group, and to let go of it: processes in the
/// middle of a read from a slow disk end only after it.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_millis(2);

/// A memory group that one run has to itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::supervisor) struct Group {
    pub(super) hierarchy: Hierarchy,
    pub(super) dir: PathBuf,
    /// What must be undone after the group is gone.
    pub(super) around: Around,
}

/// The version of a group's hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Hierarchy {
    V1,
    V2,
}

/// What a group lies in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Around {
    /// A group that was there before and is left as it was.
    Existing,
    /// The caller's own group, which could have limited children only after the caller had moved from
    /// it into the leaf.
    Home { own: PathBuf, leaf: PathBuf },
    /// A transient scope, which systemd removes when its last process has ended.
    Scope(PathBuf),
}

impl Group {
    /// Makes an empty group below `parent` with a name of its own.
    pub(super) fn create_below(parent: &Path, hierarchy: Hierarchy) -> io::Result<Self> {
        remove_abandoned(parent);
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let dir = parent.join(format!("ramforge-{}-{number}", std::process::id()));
            match fs::create_dir(&dir) {
                Ok(()) => return Ok(Self { hierarchy, dir, around: Around::Existing }),
                // Another PID namespace has a process of our number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes one of its files; where the kernel has no such file, says so with `false`.
    pub(super) fn set(&self, name: &str, value: impl ToString) -> io::Result<bool> {
        let path = self.dir.join(name);
        if !path.exists() {
            return Ok(false);
        }
        fs::write(path, value.to_string())
            .map(|()| true)
            .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
    }

    /// Samples its memory files.
    ///
    /// # Errors
    /// A file that cannot be read or understood.
    pub fn memory(&self) -> io::Result<Memory> {
        match self.hierarchy {
            Hierarchy::V1 => MemoryV1::sample(&self.dir).map(Memory::V1),
            Hierarchy::V2 => MemoryV2::sample(&self.dir).map(Memory::V2),
        }
    }

    /// Kills every process in it, now and those forked meanwhile, and waits until none is left.
    ///
    /// # Errors
    /// The group cannot be read, or something in it does not end.
    pub fn kill(&self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let pids = match processes(&self.dir) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                pids => pids?,
            };
            if pids.is_empty() {
                return Ok(());
            }
            if !self.set("cgroup.kill", 1).unwrap_or(false) {
                for pid in pids.into_iter().filter_map(Pid::from_raw) {
                    // One that has ended meanwhile is what was wanted.
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            wait_until(deadline, "its processes do not end")?;
        }
    }

    /// Kills what is left in it and removes it.
    ///
    /// # Errors
    /// It cannot be emptied, or the kernel does not let go of it.
    pub fn remove(&self) -> io::Result<()> {
        self.kill()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match fs::remove_dir(&self.dir) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    wait_until(deadline, "it stays busy")?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Undoes what was done around a group that is removed now.
    pub fn leave_home(&self) {
        if let Around::Home { own, leaf } = &self.around {
            // What fails here fails because somebody else has begun to use the place: it is theirs now.
            let _ = leave_leaf(own, leaf);
        }
    }

    /// Waits until systemd has removed the scope around a removed group, whose last process has ended.
    pub fn await_scope_end(&self) {
        if let Around::Scope(scope) = &self.around {
            let deadline = Instant::now() + PATIENCE;
            while scope.exists() && wait_until(deadline, "").is_ok() {}
        }
    }
}

/// Removes the groups below `parent` whose supervisor is gone: somebody has killed the guardian too. The kernel
/// keeps a group that still holds a process.
fn remove_abandoned(parent: &Path) {
    // A folder that cannot be read is one in which no group can be made, and that fails next.
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if supervisor_of(&entry.file_name()).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that gave a group its `name`.
fn supervisor_of(name: &OsStr) -> Option<Pid> {
    let (pid, number) = name.to_str()?.strip_prefix("ramforge-")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    Pid::from_raw(pid.parse().ok()?)
}

/// Moves the calling process from `leaf` back to `own`, unless other groups have appeared beside it:
/// switching the controller off would free them of their limits.
pub(super) fn leave_leaf(own: &Path, leaf: &Path) -> io::Result<()> {
    let mut siblings = fs::read_dir(own)?.filter_map(Result::ok).filter(|entry| entry.path() != leaf);
    if siblings.any(|entry| entry.path().is_dir()) {
        return Ok(());
    }
    fs::write(own.join("cgroup.subtree_control"), "-memory")?;
    fs::write(own.join("cgroup.procs"), "0")?;
    fs::remove_dir(leaf)
}

fn wait_until(deadline: Instant, problem: &str) -> io::Result<()> {
    if Instant::now() >= deadline {
        return Err(io::Error::new(ErrorKind::TimedOut, problem.to_owned()));
    }
    thread::sleep(PAUSE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_runs_that_are_gone_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let group = |name: String| parent.path().join(name);
        let abandoned = group(format!("ramforge-{}-0", gone.id()));
        let kept = [
            group(format!("ramforge-{}-1/busy", gone.id())),
            group(format!("ramforge-{}-0.scope", gone.id())),
            group(format!("ramforge-{}-1000", std::process::id())),
            group("other".to_owned()),
        ];
        for dir in kept.iter().chain([&abandoned]) {
            fs::create_dir_all(dir).unwrap();
        }
        let made = Group::create_below(parent.path(), Hierarchy::V2).unwrap();
        assert!(made.dir().exists() && !abandoned.exists());
        assert!(kept.iter().all(|dir| dir.exists()));
    }
}
