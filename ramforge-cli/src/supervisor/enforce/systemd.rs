//! A transient systemd scope with delegation: what an ordinary login has, whose own group is not its own
//! to change.
//!
//! `systemd-run --scope` moves itself into the new scope and becomes the command it was given. That is the
//! hidden command [`enter`], which makes the limited group inside the scope, starts the guardian beside it,
//! and becomes the worker; so the worker is the supervisor's own child all the way, and the scope lives
//! until the guardian has seen the supervisor end.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, pipe};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forge_core::spawn::{Setup, spawn};
use serde::{Deserialize, Serialize};

use super::cgroup_v2::{create_limited, enter_leaf, lists_memory};
use super::group::{Around, Group};
use super::guardian::{self, Charge, Guardian, inherited_path};
use super::{Launch, Refusal, Started, Surroundings};
use crate::observe::host::Groups;
use crate::{Error, Result};

/// The name of the hidden command that [`enter`] implements.
pub const COMMAND: &str = "scope";

/// How long systemd may take to make the scope.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the command inside the scope is told in its only argument.
#[derive(Serialize, Deserialize)]
struct Entry {
    limit_bytes: u64,
    exe: PathBuf,
    worker: Vec<OsString>,
    /// The guardian's pipe.
    guardian: PathBuf,
    /// Where the answer goes.
    answer: PathBuf,
    proc: PathBuf,
}

/// Its answer, one line of JSON.
type Answer = std::result::Result<Ready, Refusal>;

#[derive(Serialize, Deserialize)]
struct Ready {
    group: Group,
    swap_limited: bool,
}

/// Starts the worker inside a limited group of a new scope.
pub(super) fn start(
    limit_bytes: u64,
    launch: &Launch<'_>,
    surroundings: &Surroundings,
) -> std::result::Result<Started, Refusal> {
    let root = rustix::process::geteuid().is_root();
    let probe = systemd_run(root, &unit_name(), [OsStr::new("true")]).stdin(Stdio::null()).output();
    usable(probe, root, surroundings)?;
    let failed = |error: io::Error| {
        Refusal::new(format!("starting the worker in a systemd scope failed: {error}"), remedy(root))
    };
    let (guardian_reader, guardian_writer) = pipe().map_err(failed)?;
    let (answer_reader, answer_writer) = pipe().map_err(failed)?;
    let entry = Entry {
        limit_bytes,
        exe: launch.exe.to_owned(),
        worker: launch.worker.to_vec(),
        guardian: inherited_path(&guardian_reader),
        answer: inherited_path(&answer_writer),
        proc: surroundings.proc.clone(),
    };
    let entry = serde_json::to_string(&entry).map_err(|error| failed(error.into()))?;
    let inside = [launch.exe.as_os_str(), OsStr::new(COMMAND), OsStr::new(&entry)];
    let mut inherit = launch.inherit.to_vec();
    inherit.extend([guardian_reader.as_fd(), answer_writer.as_fd()]);
    let setup = Setup { cgroup_procs: None, inherit, die_with_parent: true };
    let mut worker = spawn(systemd_run(root, &unit_name(), inside), &setup).map_err(failed)?;
    drop((guardian_reader, answer_writer));
    match wait_for_answer(answer_reader) {
        Ok(Ok(Ready { group, swap_limited })) => {
            Ok(Started { worker, group, guardian: Guardian::elsewhere(guardian_writer), swap_limited })
        }
        Ok(Err(refusal)) => {
            reap(&mut worker);
            Err(refusal)
        }
        Err(error) => {
            reap(&mut worker);
            Err(failed(error))
        }
    }
}

fn reap(process: &mut Child) {
    // Whether it has ended by itself does not matter: the refusal is what is reported.
    let _ = process.kill();
    let _ = process.wait();
}

/// The request for a scope: delegated, gone without a trace when its last process ends.
fn systemd_run<'a>(root: bool, unit: &str, inside: impl IntoIterator<Item = &'a OsStr>) -> Command {
    let mut command = Command::new("systemd-run");
    if !root {
        command.arg("--user");
    }
    command.args(["--scope", "--quiet", "--collect", "--property=Delegate=yes"]);
    command.arg(format!("--unit={unit}")).arg("--").args(inside);
    command
}

fn unit_name() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    format!("ramforge-{}-{}.scope", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// Whether there is a manager that could be asked for a scope, without asking for one.
pub(super) fn reachable(surroundings: &Surroundings) -> std::result::Result<(), Refusal> {
    let root = rustix::process::geteuid().is_root();
    let mut command = Command::new("systemctl");
    if !root {
        command.arg("--user");
    }
    usable(command.args(["show", "--property=Version"]).stdin(Stdio::null()).output(), root, surroundings)
}

/// Judges an answer of systemd: to a scope around nothing, or to a question.
fn usable(
    probe: io::Result<Output>,
    root: bool,
    surroundings: &Surroundings,
) -> std::result::Result<(), Refusal> {
    match probe {
        Ok(output) if output.status.success() => Ok(()),
        _ if !surroundings.systemd.exists() => {
            Err(Refusal::new("systemd does not manage this machine", remedy(true)))
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().lines().next().unwrap_or("it said nothing").to_owned();
            Err(Refusal::new(format!("systemd makes no scope: {said}"), remedy(root)))
        }
        Err(error) => Err(Refusal::new(format!("cannot run systemd-run: {error}"), remedy(root))),
    }
}

fn remedy(root: bool) -> String {
    if root {
        "run on a machine that systemd manages; in a container, use another back end".to_owned()
    } else {
        "log in through a session that starts a user manager (loginctl enable-linger gives you one), with \
         XDG_RUNTIME_DIR=/run/user/$(id -u) set"
            .to_owned()
    }
}

fn wait_for_answer(pipe: PipeReader) -> io::Result<Answer> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(pipe).read_line(&mut line).map(|_| line);
        // Nobody listens any more when it took too long.
        let _ = sender.send(read);
    });
    let line = receiver.recv_timeout(PATIENCE).map_err(|_| io::ErrorKind::TimedOut)??;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "systemd-run ended without an answer"));
    }
    Ok(serde_json::from_str(&line)?)
}

/// The hidden command's whole life: makes the group, starts the guardian and becomes the worker. `entry`
/// is its argument.
///
/// # Errors
/// Comes back only when it could not become the worker.
pub fn enter(entry: &str) -> Result<std::convert::Infallible> {
    let entry: Entry = serde_json::from_str(entry)
        .map_err(|error| Error::usage("the scope is entered by a run, not by hand").caused_by(error))?;
    let answer: Answer = prepare(&entry);
    let refused = answer.as_ref().err().map(|refusal| refusal.reason.clone());
    let line = serde_json::to_string(&answer).map_err(io::Error::from);
    line.and_then(|line| fs::write(&entry.answer, line + "\n"))
        .map_err(|error| Error::failed("cannot answer the supervisor").caused_by(error))?;
    if let Some(reason) = refused {
        return Err(Error::failed(reason));
    }
    let error = Command::new(&entry.worker[0]).args(&entry.worker[1..]).exec();
    Err(Error::failed(format!("cannot become {}", entry.worker[0].display())).caused_by(error))
}

fn prepare(entry: &Entry) -> Answer {
    let refuse = |what: &str, error: &dyn std::fmt::Display| {
        Refusal::new(format!("{what} in the systemd scope failed: {error}"), remedy(false))
    };
    let groups = Groups::own(&entry.proc).map_err(|error| refuse("finding the group", &error))?;
    let Some(scope) = groups.v2.map(|own| own.dir).filter(|dir| has_memory(dir)) else {
        return Err(Refusal::new(
            "systemd does not hand the memory controller of the unified hierarchy to the scope",
            "have root allow it: systemctl edit user@.service, [Service] Delegate=cpu io memory pids",
        ));
    };
    let leaf = enter_leaf(&scope)?;
    let mut created = create_limited(&scope, entry.limit_bytes, Around::Scope(scope.clone()))?;
    let group = created.group.clone().expect("it has just been made");
    let charge = Charge { pipe: entry.guardian.clone(), group: group.clone() };
    // It stays in the leaf, and is reaped by whoever adopts the worker's children.
    guardian::command(&entry.exe, &charge)
        .and_then(|mut command| command.spawn())
        .and_then(|_| fs::write(group.dir().join("cgroup.procs"), "0"))
        .map_err(|error| refuse(&format!("leaving {} for the group", leaf.display()), &error))?;
    created.group = None;
    Ok(Ready { group, swap_limited: created.swap_limited })
}

fn has_memory(scope: &Path) -> bool {
    lists_memory(&scope.join("cgroup.controllers"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn words(command: &Command) -> Vec<&str> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_str().unwrap()).collect()
    }

    #[test]
    fn a_user_asks_the_user_manager_and_root_the_machine() {
        let inside = ["/opt/ramforge", "scope", "{}"].map(OsStr::new);
        let command = systemd_run(false, "ramforge-7-0.scope", inside);
        let expected = "systemd-run --user --scope --quiet --collect --property=Delegate=yes \
                        --unit=ramforge-7-0.scope -- /opt/ramforge scope {}";
        assert_eq!(words(&command).join(" "), expected);
        assert!(!words(&systemd_run(true, "x.scope", inside)).contains(&"--user"));
    }

    #[test]
    fn units_have_names_of_their_own() {
        assert_ne!(unit_name(), unit_name());
    }

    #[test]
    fn the_reason_is_what_systemd_said() {
        let managed = Surroundings { systemd: PathBuf::from("/"), ..Surroundings::default() };
        let said = |status, stderr: &str| {
            let status = ExitStatus::from_raw(status << 8);
            usable(Ok(Output { status, stdout: Vec::new(), stderr: stderr.into() }), false, &managed)
        };
        assert_eq!(said(0, "noise"), Ok(()));
        let refusal = said(1, "Failed to connect to bus: No medium found\n").unwrap_err();
        assert_eq!(refusal.reason, "systemd makes no scope: Failed to connect to bus: No medium found");
        assert!(refusal.remedy.contains("XDG_RUNTIME_DIR"));
        let missing = |surroundings: &Surroundings| {
            usable(Err(io::ErrorKind::NotFound.into()), true, surroundings).unwrap_err().reason
        };
        assert!(missing(&managed).starts_with("cannot run systemd-run"), "{}", missing(&managed));
        let unmanaged = Surroundings { systemd: PathBuf::from("/nonexistent"), ..managed };
        assert_eq!(missing(&unmanaged), "systemd does not manage this machine");
    }

    #[test]
    fn an_answer_survives_the_pipe_and_none_is_an_error() {
        let (reader, mut writer) = pipe().unwrap();
        let refusal: Answer = Err(Refusal::new("reason", "remedy"));
        use std::io::Write;
        writeln!(writer, "{}", serde_json::to_string(&refusal).unwrap()).unwrap();
        assert_eq!(wait_for_answer(reader).unwrap().err(), refusal.err());
        let (reader, writer) = pipe().unwrap();
        drop(writer);
        assert_eq!(wait_for_answer(reader).err().unwrap().kind(), io::ErrorKind::UnexpectedEof);
    }
}
