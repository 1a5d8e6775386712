//! The memory controller of version 1, below the caller's own group.

use std::fmt::Display;
use std::io;

use super::cgroup_v2::writable;
use super::group::{Group, Hierarchy};
use super::{Created, Refusal};
use crate::observe::host;

/// The group below which one can be made, as far as that can be told without making one.
pub(super) fn place(own: Option<&host::Group>) -> Result<&host::Group, Refusal> {
    let Some(own) = own else {
        return Err(Refusal::new(
            "the version 1 memory controller is not mounted here",
            "nothing to do if this machine has the unified hierarchy: see the other back ends",
        ));
    };
    if own.read_only {
        return Err(Refusal::new(
            format!("{} is mounted read-only", own.mount_point.display()),
            "mount it read-write; a container has to be started with a writable cgroup mount",
        ));
    }
    if !writable(&own.dir) {
        return Err(cannot_make(own, "Permission denied"));
    }
    Ok(own)
}

fn cannot_make(own: &host::Group, error: impl Display) -> Refusal {
    let dir = own.dir.display();
    Refusal::new(
        format!("cannot make a group in {dir}: {error}"),
        format!("run as root, or have root give you {dir} (chown)"),
    )
}

/// Makes a group with the limit.
pub(super) fn create(own: Option<&host::Group>, limit_bytes: u64) -> Result<Created, Refusal> {
    let own = place(own)?;
    let group = Group::create_below(&own.dir, Hierarchy::V1).map_err(|error| cannot_make(own, error))?;
    let mut created = Created { group: Some(group.clone()), swap_limited: false };
    created.swap_limited = limit(&group, limit_bytes).map_err(|error| {
        Refusal::new(
            format!("cannot limit the group {}: {error}", group.dir().display()),
            "run as root, or ask for a size the kernel accepts",
        )
    })?;
    Ok(created)
}

/// Memory first: the kernel wants the limit on memory and swap to be at or above the one on memory. It is one
/// page above, because charges that fail are counted (`memory.failcnt`) only where the limit on memory is the
/// first to be met, and of two equal ones it is not. Without swappiness, meeting it makes nothing swap.
fn limit(group: &Group, limit_bytes: u64) -> io::Result<bool> {
    if !group.set("memory.limit_in_bytes", limit_bytes)? {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it has no memory.limit_in_bytes"));
    }
    group.set("memory.swappiness", 0)?;
    group.set("memory.memsw.limit_in_bytes", limit_bytes.saturating_add(procfs::page_size()))
}
