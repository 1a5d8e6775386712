//! Running the model in a process of its own, so that whatever happens to it is explained.
//!
//! [`supervise`] starts a worker (the same executable), reads the [`Record`]s it sends over a pipe, passes
//! signals on, ends it when it takes too long, and comes back with a [`Report`] however the worker ended.
//! With an [`EnforceRequest`] the worker lives, from its first instruction, in a memory group whose limit
//! the kernel enforces.
//!
//! The executable has three hidden commands, each with one argument that only this module makes:
//!
//! | command | what it calls |
//! |---|---|
//! | [`worker::COMMAND`] | [`worker::attach`], which gives the settings and the [`RecordSink`]; then it runs |
//! | [`guardian::COMMAND`] | [`guardian::run`] |
//! | [`scope::COMMAND`] | [`scope::enter`] |
//!
//! A worker ends with exit code 0 when it did what was asked. Otherwise it sends its error
//! ([`RecordSink::send_error`]) and ends with any other code. On SIGINT or SIGTERM it has
//! [`INTERRUPT_GRACE`] to stop by itself; on a terminal it may get the signal twice.

mod ending;
mod enforce;
mod evidence;
mod model_files;
mod page_cache;
pub mod records;
mod story;
mod tripwire;
pub mod worker;

use std::ffi::OsString;
use std::io::{self, BufReader, PipeReader, pipe};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use forge_core::spawn::{Setup, spawn};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::observe::cgroup::{Memory, MemoryV1, MemoryV2};
use crate::observe::host::{Groups, Host};
use crate::observe::process::{Process, Which};
use crate::report::{Backend, Outcome, Report, RunResult};
use crate::size::exact;
use crate::{Error, Result};
use ending::{Ending, OuterKills, Stop};
use enforce::guardian::inherited_path;
use enforce::{HeldGroup, Launch, Surroundings};
use model_files::ModelFiles;
use story::Story;

pub use enforce::{EnforceRequest, ORDER as BACKENDS, Readiness, readiness};
pub use records::{LogLevel, Record, RecordSink, Sizes};

/// The hidden command that cleans up after a supervisor killed with SIGKILL.
pub mod guardian {
    pub use super::enforce::guardian::{COMMAND, run};
}

/// The hidden command that runs inside a systemd scope before it becomes the worker.
pub mod scope {
    pub use super::enforce::systemd::{COMMAND, enter};
}

/// How long an enforced run may take unless the user says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(900);

/// How long a worker may take to stop after it was asked to.
pub const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// How long the records may take to arrive after the worker has ended: they lie in the pipe already.
const RECORDS_GRACE: Duration = Duration::from_secs(1);

/// A run to supervise.
#[derive(Clone, Debug)]
pub struct Request {
    /// The executable with the hidden commands.
    pub exe: PathBuf,
    /// The worker's program and its arguments; one more argument, for [`worker::attach`], is added.
    /// Normally `exe` and [`worker::COMMAND`].
    pub worker: Vec<OsString>,
    /// The worker's settings, as [`worker::attach`] gives them back.
    pub settings: serde_json::Value,
    /// The model's files, whose cached pages are dropped before an enforced load.
    pub model_files: Vec<PathBuf>,
    /// The limit for the kernel to enforce.
    pub enforcement: Option<EnforceRequest>,
    /// After how long the run is ended.
    pub timeout: Option<Duration>,
    /// How much more of the machine's swap may come into use before the run is stopped; `None` does not look.
    pub swap_limit_bytes: Option<u64>,
    /// The sizes known before the load, to explain a kill for memory; the worker's own replace them.
    pub sizes: Option<Sizes>,
    /// Set when a signal to stop has arrived before the run is supervised.
    pub stopped: Arc<AtomicBool>,
}

/// A run that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The report, complete.
    pub report: Report,
    /// The error the run ended in, if it did: its kind is the exit code, its message is in the report.
    pub error: Option<Error>,
}

/// Runs the worker to its end, whatever that is, and completes `report`, which comes with tool, model and
/// request filled in. `on_record` sees each record as it arrives.
///
/// The worker inherits the standard streams. While this runs, SIGINT, SIGTERM and SIGHUP are passed on to
/// the worker. The worker is tied to the calling thread: it is killed when that ends.
pub fn supervise(request: &Request, mut report: Report, on_record: &mut dyn FnMut(&Record)) -> Finished {
    let mut signal = None;
    let error = match Run::start(request, &mut report) {
        Ok(mut run) => {
            if let Some(text) = uncounted_pages(&report) {
                on_record(&Record::Warning { text });
            }
            run.until_end(&mut report, on_record).and_then(|ended| {
                signal = ended.status.signal();
                run.explain(&ended, &mut report).map_or(Ok(()), Err)
            })
        }
        Err(error) => Err(error),
    }
    .err();
    report.outcome = match &error {
        None => Outcome { result: RunResult::Ok, exit_code: 0, signal, message: None },
        Some(error) => Outcome {
            result: error.kind().into(),
            exit_code: error.kind().exit_code(),
            signal,
            message: Some(error.to_string()),
        },
    };
    Finished { report, error }
}

/// What is to be said about pages of the model that stayed in the cache.
fn uncounted_pages(report: &Report) -> Option<String> {
    let cached = report.enforcement.page_cache.as_ref()?.after_bytes.filter(|bytes| *bytes > 0)?;
    let cached = exact(cached);
    Some(format!(
        "{cached} of the model stay in memory that somebody else uses; the limit does not count them"
    ))
}

/// What the threads around a run have to say.
enum Event {
    Record(Box<Record>),
    /// No more records will come.
    RecordsEnd,
    Signal(i32),
    /// A look at the machine's swap.
    Swap(tripwire::Sample),
    /// The worker has ended and waits to be reaped.
    WorkerEnd,
}

/// A worker that runs.
struct Run {
    worker: Child,
    group: Option<HeldGroup>,
    events: Receiver<Event>,
    signals: Handle,
    timeout: Option<Duration>,
    started: Instant,
    story: Story,
    kills_before: OuterKills,
    model_files: ModelFiles,
}

/// A worker that has ended.
struct Ended {
    status: ExitStatus,
    stop: Option<Stop>,
    killed: bool,
}

impl Run {
    fn start(request: &Request, report: &mut Report) -> Result<Self> {
        let surroundings = Surroundings::default();
        let failed = |error: io::Error| Error::failed("cannot start the worker").caused_by(error);
        let (sender, events) = mpsc::channel();
        let signals = listen_to_signals(sender.clone()).map_err(failed)?;
        if request.stopped.load(Ordering::Relaxed) {
            let _ = sender.send(Event::Signal(SIGINT));
        }
        if request.enforcement.is_some() {
            report.enforcement.page_cache = Some(page_cache::drop_pages(&request.model_files));
        }
        let (reader, records) = pipe().map_err(failed)?;
        let settings = worker::settings_file(&request.settings).map_err(failed)?;
        let channel =
            worker::Channel { records: inherited_path(&records), settings: inherited_path(&settings) };
        let mut command = request.worker.clone();
        command.push(channel.argument().map_err(failed)?);
        let inherit = [records.as_fd(), settings.as_fd()];
        let launch = Launch { exe: &request.exe, worker: &command, inherit: &inherit };
        let kills_before = outer_kills(&surroundings.proc);
        let model_files = ModelFiles::open(&request.model_files);
        let started = Instant::now();
        let (worker, group) = match &request.enforcement {
            None => (start_free(&launch).map_err(failed)?, None),
            Some(enforcement) => {
                let enforced = enforce::start(enforcement, &launch, &surroundings)?;
                report.enforcement.backend = enforced.backend;
                report.enforcement.notes = enforced.notes;
                (enforced.worker, Some(enforced.group))
            }
        };
        // The worker's copy is the only writer now, so the pipe ends with it.
        drop(records);
        read_records(reader, sender.clone());
        wait_for_end(worker.id(), sender.clone());
        report.swap = Some(tripwire::watch(surroundings.proc, request.swap_limit_bytes, sender));
        let story = Story { sizes: request.sizes.clone(), ..Story::default() };
        let timeout = request.timeout;
        Ok(Self { worker, group, events, signals, timeout, started, story, kills_before, model_files })
    }

    fn until_end(&mut self, report: &mut Report, on_record: &mut dyn FnMut(&Record)) -> Result<Ended> {
        let mut stop = None;
        let mut killed = false;
        let mut records_end = false;
        // `None`: nothing to do but wait.
        let mut deadline = self.timeout.map(|timeout| self.started + timeout);
        loop {
            match self.next_event(deadline) {
                Some(Event::Record(record)) => self.take(*record, report, on_record),
                Some(Event::RecordsEnd) => records_end = true,
                Some(Event::WorkerEnd) => break,
                Some(Event::Signal(signal)) if stop.is_none() => {
                    stop = Some(Stop::Signal(signal));
                    self.pass_on(signal);
                    deadline = Some(Instant::now() + INTERRUPT_GRACE);
                }
                Some(Event::Swap(sample)) => {
                    let growth = report.swap.as_mut().and_then(|swap| tripwire::trips(swap, sample));
                    if let Some(growth) = growth.filter(|_| !killed) {
                        stop.get_or_insert(Stop::Swap(growth));
                        killed = true;
                        self.kill();
                        deadline = None;
                    }
                }
                // The second one, or the end of patience.
                Some(Event::Signal(_)) | None => {
                    let timeout = || Stop::Timeout(self.timeout.unwrap_or_default());
                    stop.get_or_insert_with(timeout);
                    killed = true;
                    self.kill();
                    deadline = None;
                }
            }
        }
        report.timing.wall_ms = Some(self.started.elapsed().as_secs_f64() * 1000.0);
        // A process keeps its counters until it is reaped.
        if let Ok(process) = Process::sample(Path::new("/proc"), Which::Pid(self.worker.id())) {
            evidence::record_process(&mut report.timing, &mut report.io, &process);
        }
        let status = self.worker.wait();
        let status = status.map_err(|error| Error::failed("cannot wait for the worker").caused_by(error))?;
        if let Some(group) = self.group.take() {
            close_group(group, report);
        }
        let deadline = Instant::now() + RECORDS_GRACE;
        while !records_end {
            match self.next_event(Some(deadline)) {
                Some(Event::Record(record)) => self.take(*record, report, on_record),
                Some(Event::RecordsEnd) | None => records_end = true,
                Some(Event::Signal(_) | Event::Swap(_) | Event::WorkerEnd) => {}
            }
        }
        Ok(Ended { status, stop, killed })
    }

    fn take(&mut self, record: Record, report: &mut Report, on_record: &mut dyn FnMut(&Record)) {
        on_record(&record);
        self.story.add(record, report);
    }

    /// The next event, or `None` at the deadline.
    fn next_event(&self, deadline: Option<Instant>) -> Option<Event> {
        let Some(deadline) = deadline else {
            return Some(self.events.recv().unwrap_or(Event::WorkerEnd));
        };
        match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::WorkerEnd),
        }
    }

    fn pass_on(&self, signal: i32) {
        let worker = i32::try_from(self.worker.id()).ok().and_then(Pid::from_raw);
        if let Some((worker, signal)) = worker.zip(Signal::from_named_raw(signal)) {
            // It is not reaped yet, so the number is still its own; if it has ended, that is seen next.
            let _ = kill_process(worker, signal);
        }
    }

    /// Ends the worker and everything it has started.
    fn kill(&mut self) {
        let _ = self.worker.kill();
        if let Some(group) = &self.group {
            // What does not end now is met again when the group is closed, which reports it.
            let _ = group.group().kill();
        }
    }

    fn explain(&self, ended: &Ended, report: &mut Report) -> Option<Error> {
        let enforced = report.enforcement.backend != Backend::None;
        let after = outer_kills(Path::new("/proc"));
        let ending = Ending {
            status: ended.status,
            stop: ended.stop,
            killed: ended.killed,
            enforcement: enforced.then_some(&report.enforcement),
            outer_kills: after.since(self.kills_before),
            shrunk: self.model_files.shrunk(),
            story: &self.story,
        };
        ending.error()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.signals.close();
    }
}

fn start_free(launch: &Launch<'_>) -> io::Result<Child> {
    let setup = Setup { cgroup_procs: None, inherit: launch.inherit.to_vec(), die_with_parent: true };
    spawn(launch.worker_command(), &setup)
}

/// Takes the kernel's last word about the group, and removes it.
fn close_group(group: HeldGroup, report: &mut Report) {
    let notes = &mut report.enforcement.notes;
    let dir = group.group().dir().display().to_string();
    // A process the worker has left behind still counts, and must not go on after the run.
    if let Err(error) = group.group().kill() {
        notes.push(format!("processes are left in {dir}: {error}"));
    }
    match group.group().memory() {
        Ok(memory) => evidence::record_group(&mut report.enforcement, &memory),
        Err(error) => notes.push(format!("the group's files cannot be read: {error}")),
    }
    if let Err(error) = group.close() {
        report.enforcement.notes.push(format!("the group {dir} cannot be removed: {error}"));
    }
}

fn listen_to_signals(sender: Sender<Event>) -> io::Result<Handle> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    thread::spawn(move || {
        // Ends when the handle is closed, or when nobody listens any more.
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(handle)
}

fn read_records(pipe: PipeReader, sender: Sender<Event>) {
    thread::spawn(move || {
        records::read(BufReader::new(pipe), |record| {
            let _ = sender.send(Event::Record(Box::new(record)));
        });
        let _ = sender.send(Event::RecordsEnd);
    });
}

/// Says when the worker has ended, without reaping it: until that is done in the main loop, its number
/// cannot be given to another process.
fn wait_for_end(pid: u32, sender: Sender<Event>) {
    thread::spawn(move || {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == rustix::io::Errno::INTR) {}
        }
        let _ = sender.send(Event::WorkerEnd);
    });
}

/// The kernel's counters of kills for memory around a run that has no group of its own.
fn outer_kills(proc: &Path) -> OuterKills {
    let own = Groups::own(proc).unwrap_or_default();
    let v2 = own.v2.and_then(|group| MemoryV2::sample(&group.dir).ok()).map(Memory::V2);
    let v1 = own.v1_memory.and_then(|group| MemoryV1::sample(&group.dir).ok()).map(Memory::V1);
    let group = [v2, v1].iter().flatten().filter_map(Memory::oom_kills).sum();
    let host = Host::sample(proc).ok().and_then(|host| host.oom_kills).unwrap_or(0);
    OuterKills { group, host }
}
