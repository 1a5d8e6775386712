//! The back ends that make a budget the kernel's business, in the order they are tried.
//!
//! Each one either starts the worker inside a memory group of its own, from its first instruction, or
//! refuses with the reason and what would remove it. Nothing is ever run without the limit instead.

mod cgroup_v1;
mod cgroup_v2;
mod group;
pub(super) mod guardian;
pub(super) mod systemd;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use forge_core::spawn::{Setup, spawn};

pub(super) use group::Group;
use guardian::Guardian;

use crate::observe::host::{Groups, Host};
use crate::report::Backend;
use crate::{Error, Result};

/// The back ends in the order they are tried.
pub const ORDER: [Backend; 3] = [Backend::CgroupV2, Backend::SystemdScope, Backend::CgroupV1];

/// The budget the kernel is to enforce.
#[derive(Clone, Debug)]
pub struct EnforceRequest {
    /// The limit in bytes; the kernel rounds it down to whole pages.
    pub limit_bytes: u64,
    /// One back end only, instead of the first of [`ORDER`] that can.
    pub backend: Option<Backend>,
}

/// Why a back end cannot hold the run, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Refusal {
    reason: String,
    remedy: String,
}

impl Refusal {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

/// Whether a back end could hold a run, as far as that can be told without starting one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The back end.
    pub backend: Backend,
    /// Why it cannot, and what would change that.
    pub obstacle: Option<(String, String)>,
}

/// Looks at every back end in the order of [`ORDER`], and changes nothing.
///
/// # Errors
/// The calling process's groups cannot be found out.
pub fn readiness() -> Result<Vec<Readiness>> {
    let surroundings = Surroundings::default();
    let groups = Groups::own(&surroundings.proc)?;
    let readiness = |backend| {
        let result = match backend {
            Backend::CgroupV2 => cgroup_v2::place(groups.v2.as_ref(), &surroundings).map(drop),
            Backend::SystemdScope => systemd::reachable(&surroundings),
            Backend::CgroupV1 => cgroup_v1::place(groups.v1_memory.as_ref()).map(drop),
            Backend::None => Ok(()),
        };
        let obstacle = result.err().map(|refusal| (refusal.reason, refusal.remedy));
        Readiness { backend, obstacle }
    };
    Ok(ORDER.into_iter().map(readiness).collect())
}

/// Where the kernel's file systems are: the real ones, or a test's.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// The proc file system.
    pub proc: PathBuf,
    /// The folder that exists while systemd manages the machine.
    pub systemd: PathBuf,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc"), systemd: PathBuf::from("/run/systemd/system") }
    }
}

/// How to start the worker and the hidden commands.
pub(super) struct Launch<'a> {
    /// The program that has the hidden commands.
    pub exe: &'a Path,
    /// The worker's program and arguments.
    pub worker: &'a [std::ffi::OsString],
    /// What the worker keeps open.
    pub inherit: &'a [std::os::fd::BorrowedFd<'a>],
}

impl Launch<'_> {
    pub fn worker_command(&self) -> Command {
        let mut command = Command::new(&self.worker[0]);
        command.args(&self.worker[1..]);
        command
    }
}

/// A worker inside its group.
pub(super) struct Enforced {
    /// The worker. Its parent is the calling process.
    pub worker: Child,
    /// Its group, which is gone when this is dropped.
    pub group: HeldGroup,
    /// What holds it.
    pub backend: Backend,
    /// What the kernel could not be asked to hold, and why earlier back ends were not used.
    pub notes: Vec<String>,
}

/// A group that somebody outside it watches: it goes when this is dropped, and also when the calling
/// process is killed.
pub(super) struct HeldGroup {
    group: Group,
    guardian: Option<Guardian>,
}

impl HeldGroup {
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Kills what is left in the group and removes it.
    ///
    /// # Errors
    /// The group cannot be emptied or removed.
    pub fn close(mut self) -> io::Result<()> {
        self.release()
    }

    fn release(&mut self) -> io::Result<()> {
        let Some(guardian) = self.guardian.take() else { return Ok(()) };
        let removed = self.group.remove();
        guardian.dismiss();
        self.group.leave_home();
        self.group.await_scope_end();
        removed
    }
}

impl Drop for HeldGroup {
    fn drop(&mut self) {
        // The error has nowhere to go: whoever wants it calls `close`.
        let _ = self.release();
    }
}

/// Starts the worker in a group of its own, by the first back end that can.
///
/// # Errors
/// No back end can: the reason of each, and as hints their remedies.
pub(super) fn start(
    request: &EnforceRequest,
    launch: &Launch<'_>,
    surroundings: &Surroundings,
) -> Result<Enforced> {
    let groups = Groups::own(&surroundings.proc)?;
    let order = request.backend.map_or(ORDER.to_vec(), |backend| vec![backend]);
    let mut refusals = Vec::new();
    for backend in order {
        let started = match backend {
            Backend::None => continue,
            Backend::CgroupV2 => cgroup_v2::create(groups.v2.as_ref(), request.limit_bytes, surroundings)
                .and_then(|created| start_inside(created, launch)),
            Backend::SystemdScope => systemd::start(request.limit_bytes, launch, surroundings),
            Backend::CgroupV1 => cgroup_v1::create(groups.v1_memory.as_ref(), request.limit_bytes)
                .and_then(|created| start_inside(created, launch)),
        };
        match started {
            Ok(started) => {
                let mut notes = skipped(&refusals);
                if !started.swap_limited && Host::sample(&surroundings.proc)?.swap_bytes > 0 {
                    notes.push("this kernel does not limit a group's swap".to_owned());
                }
                let Started { worker, group, guardian, .. } = started;
                let group = HeldGroup { group, guardian: Some(guardian) };
                return Ok(Enforced { worker, group, backend, notes });
            }
            Err(refusal) => refusals.push((backend, refusal)),
        }
    }
    Err(no_backend(request.limit_bytes, &refusals))
}

/// What one back end has started.
struct Started {
    worker: Child,
    group: Group,
    guardian: Guardian,
    swap_limited: bool,
}

/// A group that is ready and empty. Dropping it removes it.
struct Created {
    group: Option<Group>,
    swap_limited: bool,
}

impl Drop for Created {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            // It is empty, so this fails only when it is gone already.
            let _ = group.remove();
            group.leave_home();
        }
    }
}

fn start_inside(mut created: Created, launch: &Launch<'_>) -> std::result::Result<Started, Refusal> {
    let group = created.group.clone().expect("it is taken only below");
    let failed = |what: &str, error: io::Error| {
        Refusal::new(
            format!("{what} in the group {} failed: {error}", group.dir().display()),
            "run it where you may move your own processes between groups",
        )
    };
    let guardian = Guardian::start(launch.exe, &group)
        .map_err(|error| failed("starting the process that watches the worker", error))?;
    let procs = group.dir().join("cgroup.procs");
    let started = File::options().write(true).open(procs).and_then(|procs| {
        let setup = Setup {
            cgroup_procs: Some(procs.as_fd()),
            inherit: launch.inherit.to_vec(),
            die_with_parent: true,
        };
        spawn(launch.worker_command(), &setup)
    });
    match started {
        Ok(worker) => {
            created.group = None;
            Ok(Started { worker, group, guardian, swap_limited: created.swap_limited })
        }
        Err(error) => {
            let refusal = failed("starting the worker", error);
            guardian.dismiss();
            Err(refusal)
        }
    }
}

fn skipped(refusals: &[(Backend, Refusal)]) -> Vec<String> {
    refusals.iter().map(|(backend, refusal)| format!("{backend} was not used: {}", refusal.reason)).collect()
}

fn no_backend(limit_bytes: u64, refusals: &[(Backend, Refusal)]) -> Error {
    let mut message =
        format!("nothing here can make the kernel enforce {}", crate::size::readable(limit_bytes));
    for (backend, refusal) in refusals {
        message.push_str(&format!("\n  {backend}: {}", refusal.reason));
    }
    let error = Error::failed(message);
    refusals
        .iter()
        .fold(error, |error, (backend, refusal)| error.hint(format!("{backend}: {}", refusal.remedy)))
}
