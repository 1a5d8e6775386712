//! The unified hierarchy, where the caller may make groups with a limit.
//!
//! Three rules of the kernel decide where that is. A group other than the root that has processes cannot
//! have children with controllers. A process may be moved only by someone who may write the `cgroup.procs`
//! of the closest group that both ends have in common. And on a machine managed by systemd, only the
//! inside of a delegated unit may be changed at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat, getxattr};

use super::group::{Around, Group, Hierarchy, leave_leaf};
use super::{Created, Refusal, Surroundings};
use crate::observe::host;

const DELEGATE: &str = "start it in a delegated group: systemd-run --user --scope -p Delegate=yes ramforge …";

/// Makes a group with the limit.
pub(super) fn create(
    own: Option<&host::Group>,
    limit_bytes: u64,
    surroundings: &Surroundings,
) -> Result<Created, Refusal> {
    place(own, surroundings)?.create(limit_bytes)
}

/// Where a group can be made, without making one.
pub(super) fn place(own: Option<&host::Group>, surroundings: &Surroundings) -> Result<Place, Refusal> {
    let Some(own) = own else {
        return Err(Refusal::new(
            "no cgroup2 file system shows this process's group",
            "mount one on /sys/fs/cgroup; a container has to be started with one",
        ));
    };
    if own.read_only {
        return Err(Refusal::new(
            format!("{} is mounted read-only", own.mount_point.display()),
            "mount it read-write; a container has to be started with a writable cgroup mount",
        ));
    }
    if !lists_memory(&own.dir.join("cgroup.controllers")) {
        return Err(Refusal::new(
            format!("{} has no memory controller", own.dir.display()),
            "write +memory to the cgroup.subtree_control of the groups above it; where version 1 has the \
             controller, boot with systemd.unified_cgroup_hierarchy=1",
        ));
    }
    choose_place(own, surroundings)
}

/// Where a group with a limit can be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Below this group: the root, or the parent of the caller's own.
    Below(PathBuf),
    /// Below the caller's own group, once the caller has moved into a leaf of it.
    Home(PathBuf),
}

fn choose_place(own: &host::Group, surroundings: &Surroundings) -> Result<Place, Refusal> {
    let systemd = surroundings.systemd.exists();
    // Only the root of the whole hierarchy has no type.
    if !own.dir.join("cgroup.type").exists() {
        return Ok(Place::Below(own.dir.clone()));
    }
    let parent = own.dir.parent().filter(|_| own.dir != own.mount_point);
    if let Some(parent) = parent
        && lists_memory(&parent.join("cgroup.subtree_control"))
        && is_delegated(parent, &own.mount_point, systemd)
        && writable(parent)
        && writable(&parent.join("cgroup.procs"))
    {
        return Ok(Place::Below(parent.to_owned()));
    }
    let dir = own.dir.display();
    if !is_delegated(&own.dir, &own.mount_point, systemd) || !writable(&own.dir) {
        return Err(Refusal::new(format!("the group {dir} is not delegated to you"), DELEGATE));
    }
    match others_in(&own.dir) {
        Ok(0) => Ok(Place::Home(own.dir.clone())),
        Ok(others) => Err(Refusal::new(
            format!("the group {dir} holds {others} other processes, and so can have no limited children"),
            format!(
                "start it alone in its group (systemd-run --user --scope -p Delegate=yes ramforge …), or \
                 first move those processes: mkdir {dir}/leaf; for p in $(cat {dir}/cgroup.procs); do echo \
                 $p >{dir}/leaf/cgroup.procs; done; echo +memory >{dir}/cgroup.subtree_control"
            ),
        )),
        Err(error) => Err(Refusal::new(format!("cannot read the processes of {dir}: {error}"), DELEGATE)),
    }
}

impl Place {
    fn create(self, limit_bytes: u64) -> Result<Created, Refusal> {
        match self {
            Self::Below(parent) => {
                enable_memory(&parent)?;
                create_limited(&parent, limit_bytes, Around::Existing)
            }
            Self::Home(own) => {
                let leaf = enter_leaf(&own)?;
                let around = Around::Home { own: own.clone(), leaf: leaf.clone() };
                create_limited(&own, limit_bytes, around).inspect_err(|_| {
                    // The refusal matters more than a leaf that cannot be left again.
                    let _ = leave_leaf(&own, &leaf);
                })
            }
        }
    }
}

/// Moves the calling process, alone in `own`, into a leaf, so that `own` can have limited children.
pub(super) fn enter_leaf(own: &Path) -> Result<PathBuf, Refusal> {
    let leaf = own.join("supervisor");
    let refuse = |error: io::Error| {
        Refusal::new(format!("cannot move this process to {}: {error}", leaf.display()), DELEGATE)
    };
    fs::create_dir(&leaf).map_err(refuse)?;
    let entered = fs::write(leaf.join("cgroup.procs"), "0").map_err(refuse).and_then(|()| enable_memory(own));
    if let Err(refusal) = entered {
        let _ = leave_leaf(own, &leaf);
        return Err(refusal);
    }
    Ok(leaf)
}

fn enable_memory(parent: &Path) -> Result<(), Refusal> {
    let control = parent.join("cgroup.subtree_control");
    if lists_memory(&control) {
        return Ok(());
    }
    fs::write(&control, "+memory").map_err(|error| {
        Refusal::new(format!("cannot write +memory to {}: {error}", control.display()), DELEGATE)
    })
}

/// Makes a group below `parent`, which hands the memory controller down.
pub(super) fn create_limited(parent: &Path, limit_bytes: u64, around: Around) -> Result<Created, Refusal> {
    let mut group = Group::create_below(parent, Hierarchy::V2).map_err(|error| {
        Refusal::new(format!("cannot make a group in {}: {error}", parent.display()), DELEGATE)
    })?;
    let limited = limit(&group, limit_bytes);
    group.around = around;
    match limited {
        Ok(swap_limited) => Ok(Created { group: Some(group), swap_limited }),
        Err(error) => {
            let _ = group.remove();
            Err(Refusal::new(format!("cannot limit the group {}: {error}", group.dir().display()), DELEGATE))
        }
    }
}

fn limit(group: &Group, limit_bytes: u64) -> io::Result<bool> {
    if !group.set("memory.max", limit_bytes)? {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it has no memory.max"));
    }
    group.set("memory.oom.group", 1)?;
    group.set("memory.swap.max", 0)
}

/// Whether one of the words of a controllers file is `memory`.
pub(super) fn lists_memory(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|words| words.split_whitespace().any(|word| word == "memory"))
}

/// Whether someone who may write `dir` may also change what lies in it: inside a unit of systemd only when
/// the unit is delegated, which systemd marks on its group.
fn is_delegated(dir: &Path, mount_point: &Path, systemd: bool) -> bool {
    let is_unit = |dir: &&Path| {
        let extension = dir.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| ["slice", "scope", "service"].contains(&extension))
    };
    let below_mount = dir.ancestors().take_while(|ancestor| *ancestor != mount_point);
    match { below_mount }.find(is_unit) {
        Some(unit) => ["user.delegate", "trusted.delegate"].iter().any(|name| {
            let mut value = [0_u8; 1];
            getxattr(unit, *name, &mut value).is_ok_and(|length| &value[..length] == b"1")
        }),
        None => !systemd || dir != mount_point,
    }
}

pub(super) fn writable(path: &Path) -> bool {
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// How many processes other than the calling one are in the group, seen from here or not.
fn others_in(dir: &Path) -> io::Result<usize> {
    let own = std::process::id().to_string();
    let procs = fs::read_to_string(dir.join("cgroup.procs"))?;
    Ok(procs.lines().filter(|pid| *pid != own).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of directories that looks like a hierarchy to everything but the kernel.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            tree.write("cgroup.controllers", "cpu memory pids");
            tree.write("cgroup.subtree_control", "cpu memory pids");
            tree.write("cgroup.procs", "");
            tree
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn group(&self, path: &str, controllers: &str, procs: &str) -> host::Group {
            self.write(&format!("{path}/cgroup.type"), "domain");
            self.write(&format!("{path}/cgroup.controllers"), controllers);
            self.write(&format!("{path}/cgroup.subtree_control"), "");
            self.write(&format!("{path}/cgroup.procs"), procs);
            host::Group {
                path: format!("/{path}"),
                dir: self.0.path().join(path),
                mount_point: self.0.path().to_owned(),
                read_only: false,
            }
        }

        fn surroundings(&self, systemd: bool) -> Surroundings {
            let systemd = self.0.path().join(if systemd { "" } else { "no-systemd" });
            Surroundings { systemd, ..Surroundings::default() }
        }
    }

    fn reason(result: Result<Place, Refusal>) -> String {
        result.unwrap_err().reason
    }

    #[test]
    fn a_login_session_is_not_delegated() {
        let tree = Tree::new();
        let own = tree.group("user.slice/user-1000.slice/session-2.scope", "memory", "1\n");
        tree.write("user.slice/user-1000.slice/cgroup.subtree_control", "memory");
        tree.write("user.slice/user-1000.slice/cgroup.procs", "");
        let refused = reason(choose_place(&own, &tree.surroundings(true)));
        assert!(refused.contains("session-2.scope is not delegated"), "{refused}");
    }

    #[test]
    fn a_delegated_unit_is_home_when_nobody_else_lives_there() {
        let tree = Tree::new();
        let own = tree.group("user.slice/run-1.scope", "memory", &format!("{}\n", std::process::id()));
        rustix::fs::setxattr(&own.dir, "user.delegate", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        assert_eq!(choose_place(&own, &tree.surroundings(true)), Ok(Place::Home(own.dir.clone())));
        fs::write(own.dir.join("cgroup.procs"), "1\n0\n").unwrap();
        let refused = reason(choose_place(&own, &tree.surroundings(true)));
        assert!(refused.contains("holds 2 other processes"), "{refused}");
    }

    #[test]
    fn a_leaf_of_a_delegated_unit_has_room_beside_it() {
        let tree = Tree::new();
        let own = tree.group("a.service/leaf", "memory", "1\n2\n");
        tree.write("a.service/cgroup.subtree_control", "memory");
        tree.write("a.service/cgroup.procs", "");
        let unit = own.dir.parent().unwrap();
        assert!(choose_place(&own, &tree.surroundings(true)).is_err());
        rustix::fs::setxattr(unit, "user.delegate", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        assert_eq!(choose_place(&own, &tree.surroundings(true)), Ok(Place::Below(unit.to_owned())));
    }

    #[test]
    fn a_container_without_systemd_is_free_to_use_what_it_may_write() {
        let tree = Tree::new();
        let own = tree.group("jobs", "memory", "1\n");
        let root = own.mount_point.clone();
        assert_eq!(choose_place(&own, &tree.surroundings(false)), Ok(Place::Below(root)));
        assert!(choose_place(&own, &tree.surroundings(true)).is_err(), "the root is systemd's");
    }

    #[test]
    fn what_cannot_work_at_all_is_refused_with_the_reason() {
        let tree = Tree::new();
        let surroundings = tree.surroundings(false);
        let refuse = |own: Option<&host::Group>| create(own, 1 << 20, &surroundings).err().unwrap().reason;
        assert!(refuse(None).contains("no cgroup2 file system"));
        let own = tree.group("jobs", "cpu", "");
        assert!(refuse(Some(&own)).contains("jobs has no memory controller"));
        let own = host::Group { read_only: true, ..own };
        assert!(refuse(Some(&own)).contains("mounted read-only"));
    }
}
