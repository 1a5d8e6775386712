//! A run of `ramforge` under the eyes of a test.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramforge_tests::{cache, programs, schema, shapes};
use serde_json::Value;
use tempfile::TempDir;

use crate::kernel::{self, Kernel};

pub const MIB: u64 = 1 << 20;

/// `ramforge run` to be started, with a folder of its own for its report and its temporary files.
pub struct Run {
    pub command: Command,
    folder: TempDir,
}

impl Run {
    /// A run of `model` on one thread, so that it does not matter how busy the machine is.
    pub fn new(model: &Path, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = programs::ramforge().unwrap();
        command.arg("run").arg(model).args(["--threads", "1"]).args(arguments);
        Self::of(command, folder)
    }

    /// The run inside `sh -c script`, which finds the run in `"$@"`, in mount name space of its own.
    pub fn isolated(self, script: &str) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]);
        command.arg(self.command.get_program()).args(self.command.get_args());
        Self::of(command, self.folder)
    }

    fn of(mut command: Command, folder: TempDir) -> Self {
        let temporary = folder.path().join("temporary");
        fs::create_dir_all(&temporary).unwrap();
        command.env("TMPDIR", temporary).env("ENFORCEMENT_TEST", folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, folder }
    }

    /// Adds a budget in MiB, and the report.
    pub fn limited(self, mib: u64) -> Self {
        self.limited_to(&format!("{mib}M")).reported()
    }

    /// Adds a budget. These tests are about what the kernel does with it: it pages, and nobody refuses a run that
    /// cannot work before the kernel does.
    pub fn limited_to(mut self, size: &str) -> Self {
        self.command.args(["--no-fit-guard", "--residency-policy", "off", "--enforce-ram", "--ram", size]);
        self
    }

    /// In a budget of so many MiB, streamed.
    pub fn streamed(mut self, mib: u64) -> Self {
        self.command.args(["--residency-policy", "stream", "--enforce-ram", "--ram", &format!("{mib}M")]);
        self.reported()
    }

    pub fn reported(mut self) -> Self {
        self.command.arg("--residency-report-json").arg(self.folder.path().join("report.json"));
        self
    }

    pub fn start(mut self) -> Running {
        let process = self.command.spawn().unwrap();
        Running { process, folder: self.folder, started: Instant::now() }
    }

    pub fn finish(self) -> Finished {
        self.start().finish()
    }
}

/// A run that has been started. A test that fails ends it.
pub struct Running {
    pub process: Child,
    folder: TempDir,
    started: Instant,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
    }

    /// Whether the command has a handler for the signal.
    pub fn catches(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
    }

    /// Waits for the first byte of the text.
    pub fn first_output(&mut self) -> u8 {
        let mut byte = [0];
        let read = self.process.stdout.as_mut().unwrap().read_exact(&mut byte);
        read.unwrap_or_else(|error| {
            let mut said = String::new();
            self.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("no text: {error}: {said}");
        });
        byte[0]
    }

    pub fn finish(mut self) -> Finished {
        let mut err = self.process.stderr.take().unwrap();
        let err = thread::spawn(move || {
            let mut text = String::new();
            err.read_to_string(&mut text).map(|_| text)
        });
        let mut out = Vec::new();
        if let Some(pipe) = &mut self.process.stdout {
            pipe.read_to_end(&mut out).unwrap();
        }
        let status = self.process.wait().unwrap();
        let took = self.started.elapsed();
        Finished {
            pid: self.process.id(),
            status,
            out: String::from_utf8_lossy(&out).into_owned(),
            err: err.join().unwrap().unwrap(),
            took,
            folder: self.folder,
        }
    }

    /// Kills the supervisor with SIGKILL and waits until everything is gone.
    pub fn kill_supervisor(mut self, kernel: &Kernel) {
        self.signal(Signal::SIGKILL);
        self.process.wait().unwrap();
        wait_for("everything to go", || left_behind(kernel, self.process.id(), &self.folder).is_none());
    }
}

/// A run that has ended.
#[derive(Debug)]
pub struct Finished {
    pub pid: u32,
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
    pub took: Duration,
    folder: TempDir,
}

impl Finished {
    pub fn report(&self) -> Value {
        let path = self.folder.path().join("report.json");
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("no report: {error}: {self:#?}"));
        let report = serde_json::from_str(&text).unwrap();
        schema::check_report(&report);
        report
    }

    /// The exit code, and that the report tells the same end; gives the report.
    pub fn assert_end(&self, code: i32, result: &str) -> Value {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        let report = self.report();
        assert_eq!(report["outcome"]["exit_code"], code, "{report:#}");
        assert_eq!(report["outcome"]["result"], result, "{report:#}");
        let message = report["outcome"]["message"].as_str();
        match message {
            None => assert_eq!(code, 0, "{report:#}"),
            Some(message) => assert!(self.err.contains(message), "{message}\n{}", self.err),
        }
        report
    }

    /// That no process, no group and no temporary file is left.
    pub fn assert_nothing_left(&self, kernel: &Kernel) {
        if let Some(left) = left_behind(kernel, self.pid, &self.folder) {
            panic!("{left}\n{self:#?}");
        }
    }
}

fn left_behind(kernel: &Kernel, supervisor: u32, folder: &TempDir) -> Option<String> {
    let groups = kernel.groups_of(supervisor);
    let processes = kernel::processes_with(&folder.path().display().to_string());
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let mut files = names(folder.path());
    files.retain(|name| name != "report.json" && name != "temporary");
    files.extend(names(&folder.path().join("temporary")));
    let nothing = groups.is_empty() && processes.is_empty() && files.is_empty();
    (!nothing).then(|| format!("left behind: groups {groups:?}, processes {processes:?}, files {files:?}"))
}

pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A copy of a model that nobody else reads, on a disk, so that what is cached of it is this test's business.
pub struct OwnModel(tempfile::NamedTempFile);

impl OwnModel {
    pub fn copy(model: &Path) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        // In a guest, this machine's folders are read-only and the temporary one is not.
        let file = tempfile::NamedTempFile::new_in(folder).or_else(|_| tempfile::NamedTempFile::new());
        let mut file = file.unwrap();
        io::copy(&mut fs::File::open(model).unwrap(), &mut file).unwrap();
        file.as_file().sync_all().unwrap();
        Self(file)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn bytes(&self) -> u64 {
        self.0.as_file().metadata().unwrap().len()
    }

    pub fn shrink(&self, bytes: u64) {
        self.0.as_file().set_len(bytes).unwrap();
    }
}

pub fn tiny() -> PathBuf {
    cache::model(&shapes::tiny_llama()).unwrap()
}
