//! Starting a process that is accounted for from its first instruction.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// What happens in the child between `fork` and `exec`.
#[derive(Debug, Default)]
pub struct Setup<'fd> {
    /// An open, writable `cgroup.procs`: the child joins that group before it becomes the new program,
    /// so nothing the program does is charged elsewhere.
    pub cgroup_procs: Option<BorrowedFd<'fd>>,
    /// Descriptors the new program keeps, under the numbers they have here. Only the child's copies
    /// lose their close-on-exec flag, so processes started by other threads do not inherit them.
    pub inherit: Vec<BorrowedFd<'fd>>,
    /// Have the kernel kill the child with SIGKILL when the thread that calls [`spawn`] ends.
    pub die_with_parent: bool,
}

/// Starts `command` after `setup` has been applied in the child.
///
/// # Errors
/// What `fork`, `exec` or a step of the setup failed with. The kernel's refusal to let the process join
/// the group (EACCES, EBUSY, EOPNOTSUPP, …) comes back as it is.
pub fn spawn(mut command: Command, setup: &Setup<'_>) -> io::Result<Child> {
    let cgroup_procs = setup.cgroup_procs.map(|fd| fd.as_raw_fd());
    let inherit: Vec<RawFd> = setup.inherit.iter().map(AsRawFd::as_raw_fd).collect();
    let parent = setup.die_with_parent.then(std::process::id);
    // SAFETY: the closure runs in the forked child of a possibly threaded process, where only
    // async-signal-safe functions may run. It calls prctl, getppid, write and fcntl, reads memory that
    // was allocated before the fork, and builds its errors from errno, which does not allocate. The
    // descriptors are open: `setup` borrows them until this function returns, and `command`, which owns
    // the closure, is consumed here, so it cannot run later.
    unsafe {
        command.pre_exec(move || {
            if let Some(parent) = parent {
                die_with(parent)?;
            }
            for &fd in &inherit {
                keep_across_exec(fd)?;
            }
            cgroup_procs.map_or(Ok(()), join_group)
        });
    }
    command.spawn()
}

/// Asks for SIGKILL at the parent's end, and fails if the parent has ended already.
fn die_with(parent: u32) -> io::Result<()> {
    let signal = libc::SIGKILL as libc::c_ulong;
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) })?;
    // SAFETY: getppid has no preconditions.
    if unsafe { libc::getppid() } as u32 == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Writes the calling process into the group whose `cgroup.procs` is `fd`; "0" means "the writer".
fn join_group(fd: RawFd) -> io::Result<()> {
    // SAFETY: the buffer is a static of the given length.
    let written = unsafe { libc::write(fd, b"0".as_ptr().cast(), 1) };
    if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn keep_across_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD changes a flag of this process's own descriptor table and touches no memory.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};
    use std::os::fd::AsFd;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn only_inherited_descriptors_reach_the_child() {
        let (mut reader, kept) = pipe().unwrap();
        let (_other, dropped) = pipe().unwrap();
        let script = format!(
            "test -e /proc/self/fd/{} && test ! -e /proc/self/fd/{} && echo yes >/proc/self/fd/{0}",
            kept.as_raw_fd(),
            dropped.as_raw_fd()
        );
        let setup = Setup { inherit: vec![kept.as_fd()], ..Setup::default() };
        let mut child = spawn(shell(&script), &setup).unwrap();
        drop(kept);
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(said, "yes\n");
    }

    #[test]
    fn the_child_writes_itself_into_the_group_before_it_runs() {
        let procs = tempfile::NamedTempFile::new().unwrap();
        let setup = Setup { cgroup_procs: Some(procs.as_file().as_fd()), ..Setup::default() };
        let script = format!("test \"$(cat {})\" = 0", procs.path().display());
        assert!(spawn(shell(&script), &setup).unwrap().wait().unwrap().success());
    }

    #[test]
    fn a_group_that_refuses_fails_the_spawn() {
        let unwritable = std::fs::File::open("/dev/null").unwrap();
        let setup = Setup { cgroup_procs: Some(unwritable.as_fd()), ..Setup::default() };
        let error = spawn(shell("true"), &setup).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn the_child_dies_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(|| {
            let setup = Setup { die_with_parent: true, ..Setup::default() };
            let mut command = Command::new("sleep");
            command.arg("1000");
            spawn(command, &setup).unwrap()
        })
        .join()
        .unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
