//! The process that outlives a supervisor killed with SIGKILL just long enough to clean up after it.
//!
//! It lives outside the group, in a session of its own, and reads a pipe whose only writer is the
//! supervisor. A byte means that the supervisor has removed the group itself; the end of the pipe without
//! one means that the supervisor is gone.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use forge_core::spawn::{Setup, spawn};
use serde::{Deserialize, Serialize};

use super::group::Group;
use crate::{Error, Result};

/// The name of the hidden command that [`run`] implements.
pub const COMMAND: &str = "guardian";

/// What the guardian is told in its only argument.
#[derive(Serialize, Deserialize)]
pub(super) struct Charge {
    /// The supervisor's pipe.
    pub pipe: PathBuf,
    /// The group to remove.
    pub group: Group,
}

/// A running guardian, in the supervisor's hands.
pub(super) struct Guardian {
    /// Reaped by whoever is its parent: in a systemd scope that is the worker.
    process: Option<Child>,
    pipe: PipeWriter,
}

impl Guardian {
    /// Starts a guardian for `group`.
    pub fn start(exe: &Path, group: &Group) -> io::Result<Self> {
        let (reader, writer) = pipe()?;
        let path = inherited_path(&reader);
        let charge = Charge { pipe: path, group: group.clone() };
        let setup = Setup { inherit: vec![reader.as_fd()], ..Setup::default() };
        let process = spawn(command(exe, &charge)?, &setup)?;
        Ok(Self { process: Some(process), pipe: writer })
    }

    /// Takes charge of a guardian that reads the other end of `pipe` and is not a child of ours.
    pub fn elsewhere(pipe: PipeWriter) -> Self {
        Self { process: None, pipe }
    }

    /// Sends it home: there is nothing left to do.
    pub fn dismiss(mut self) {
        // A guardian that is gone already cannot be told, and needs not.
        let _ = self.pipe.write_all(b".");
        drop(self.pipe);
        if let Some(mut process) = self.process {
            let _ = process.wait();
        }
    }
}

/// The command that starts a guardian. It keeps none of the caller's standard streams open.
pub(super) fn command(exe: &Path, charge: &Charge) -> io::Result<Command> {
    let mut command = Command::new(exe);
    command.arg(COMMAND).arg(OsStr::new(&serde_json::to_string(charge)?));
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// The path under which a child that inherits `fd` can open it.
pub(in crate::supervisor) fn inherited_path(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// The hidden command's whole life; `charge` is its argument.
///
/// # Errors
/// The argument is not one that the supervisor gave, or the group cannot be removed.
pub fn run(charge: &str) -> Result<()> {
    let failed = |error: io::Error| Error::failed("the guardian failed").caused_by(error);
    let charge: Charge = serde_json::from_str(charge)
        .map_err(|error| Error::usage("the guardian is started by a run, not by hand").caused_by(error))?;
    // Fails only for a process that leads a group already, and that one is nobody's background job.
    let _ = rustix::process::setsid();
    let mut said = Vec::new();
    File::open(&charge.pipe).and_then(|mut pipe| pipe.read_to_end(&mut said)).map_err(failed)?;
    if said.is_empty() {
        let removed = charge.group.remove();
        charge.group.leave_home();
        removed.map_err(failed)?;
    }
    Ok(())
}
