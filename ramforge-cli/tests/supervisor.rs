//! The supervisor against the real kernel: groups, limits, signals, and what is left behind.
//!
//! This program is its own supervisor: with `supervise` as its first argument it runs a worker as the
//! `ramforge` command does, so that the tests can kill it. The workers are shells. Back ends that the
//! machine does not have are skipped, and said to be.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use ramforge::observe::cgroup::{Memory, MemoryV1, MemoryV2};
use ramforge::observe::host::Groups;
use ramforge::report::{Backend, Model, Report, Request, RunResult, Tool};
use ramforge::supervisor::{self, EnforceRequest, guardian, scope, supervise};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some(guardian::COMMAND) => code_of(guardian::run(&arguments[2])),
        Some(scope::COMMAND) => code_of(scope::enter(&arguments[2]).map(|_| ())),
        Some("supervise") => run(&arguments[2]),
        _ => libtest_mimic::run(&Arguments::from_args(), trials()).exit_code(),
    }
}

fn code_of(result: ramforge::Result<()>) -> ExitCode {
    result.map_or_else(|error| ExitCode::from(error.kind().exit_code()), |()| ExitCode::SUCCESS)
}

/// A run, as a test asks its supervisor for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Spec {
    script: String,
    backend: Option<Backend>,
    limit_bytes: Option<u64>,
    timeout_ms: Option<u64>,
    model_files: Vec<PathBuf>,
    /// Instead of a shell with the script.
    program: Option<PathBuf>,
}

/// The supervisor process: the report on standard output, the outcome's exit code.
fn run(spec: &str) -> ExitCode {
    let spec: Spec = serde_json::from_str(spec).expect("the test wrote it");
    let program = spec.program.map_or(OsString::from("/bin/sh"), OsString::from);
    let request = supervisor::Request {
        exe: std::env::current_exe().expect("it runs"),
        worker: vec![program, "-c".into(), spec.script.into(), "worker".into()],
        settings: serde_json::json!({"prompt": "hello"}),
        model_files: spec.model_files,
        enforcement: spec
            .limit_bytes
            .map(|limit_bytes| EnforceRequest { limit_bytes, backend: spec.backend }),
        timeout: spec.timeout_ms.map(Duration::from_millis),
        swap_limit_bytes: None,
        sizes: None,
        stopped: std::sync::Arc::default(),
    };
    let report = Report::new(Tool::default(), Model::default(), Request::default());
    let finished = supervise(&request, report, &mut |_| ());
    println!("{}", serde_json::to_string(&finished.report).expect("it is plain data"));
    if let Some(error) = &finished.error {
        eprintln!("{error}");
        error.hints().iter().for_each(|hint| eprintln!("hint: {hint}"));
    }
    ExitCode::from(finished.report.outcome.exit_code)
}

impl Spec {
    fn shell(script: &str) -> Self {
        Self { script: script.to_owned(), ..Self::default() }
    }

    fn limited(self, backend: Backend, limit_bytes: u64) -> Self {
        Self { backend: Some(backend), limit_bytes: Some(limit_bytes), ..self }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("it runs"));
        command.arg("supervise").arg(serde_json::to_string(self).expect("it is plain data"));
        command
    }

    fn start(&self) -> Supervisor {
        Supervisor::start(self.command())
    }

    fn finish(&self) -> Finished {
        self.start().finish()
    }
}

/// A supervisor process, under the eyes of a test.
struct Supervisor {
    process: Child,
    started: Instant,
}

impl Supervisor {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { process: command.spawn().expect("it is this executable"), started: Instant::now() }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().cast_signed()).expect("it is not 0");
        kill_process(pid, signal).expect("it has not been reaped");
    }

    fn finish(self) -> Finished {
        let pid = self.process.id();
        let output = self.process.wait_with_output().expect("it is a child");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = text.lines().last().unwrap_or_default();
        let report = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}{stderr}"));
        let code = output.status.code();
        Finished { pid, code, report, text, stderr, took: self.started.elapsed() }
    }
}

/// What a test sees of a supervisor that has ended.
#[derive(Debug)]
struct Finished {
    pid: u32,
    code: Option<i32>,
    report: Report,
    /// What it and its worker wrote, the report in the last line.
    text: String,
    stderr: String,
    took: Duration,
}

impl Finished {
    fn assert_end(&self, result: RunResult, code: i32) {
        assert_eq!((self.report.outcome.result, self.code), (result, Some(code)), "{self:#?}");
        assert_eq!(i32::from(self.report.outcome.exit_code), code);
    }

    fn message(&self) -> &str {
        self.report.outcome.message.as_deref().unwrap_or_default()
    }
}

/// Where the groups of a back end are made on this machine, if it can be used: version 2 from the root
/// group, scopes from a scope, as in the guests of tests/vm/run.
fn base(backend: Backend) -> Result<PathBuf, String> {
    let groups = Groups::own(Path::new("/proc")).map_err(|error| error.to_string())?;
    if backend == Backend::SystemdScope {
        let scope = groups.v2.map(|own| own.dir).filter(|dir| dir.extension().is_some_and(|e| e == "scope"));
        let slice = scope.as_deref().and_then(Path::parent).filter(|_| manager_runs());
        return slice.map(Path::to_owned).ok_or("not in a scope of a systemd manager that runs".to_owned());
    }
    let group = if backend == Backend::CgroupV1 { groups.v1_memory } else { groups.v2 };
    let dir = group.ok_or("its hierarchy is not mounted")?.dir;
    if backend == Backend::CgroupV2 {
        let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        if !controllers.split_whitespace().any(|name| name == "memory") {
            return Err(format!("{} has no memory controller", dir.display()));
        }
        if dir.join("cgroup.type").exists() {
            return Err(format!("{} is not the root group", dir.display()));
        }
    }
    let trial = dir.join(format!("trial-{}", std::process::id()));
    fs::create_dir(&trial).map_err(|error| format!("{}: {error}", trial.display()))?;
    fs::remove_dir(&trial).map_err(|error| error.to_string())?;
    Ok(dir)
}

/// The groups that a supervisor has made, anywhere below `base`.
fn groups_of(base: &Path, supervisor: u32) -> Vec<PathBuf> {
    let prefix = format!("ramforge-{supervisor}-");
    let entries = fs::read_dir(base).expect("the base is there").filter_map(Result::ok);
    let named = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)) && path.is_dir()
    };
    entries.map(|entry| entry.path()).filter(named).collect()
}

/// The limited group among them; in a scope, what becomes the worker has made it.
fn run_group_of(base: &Path, supervisor: u32) -> Option<PathBuf> {
    let group = groups_of(base, supervisor).pop()?;
    if group.extension().is_none_or(|extension| extension != "scope") {
        return Some(group);
    }
    let inside = fs::read_dir(group).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    inside.into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with("ramforge-"))
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn number_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn is_gone(pid: u32) -> bool {
    // A zombie whose new parent has not looked yet does nothing any more.
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

type Test = fn(Backend, &Path);

fn trials() -> Vec<Trial> {
    let of_each: [(&str, Test); 14] = [
        ("a_run_lives_in_its_group_from_the_start", lives_in_its_group),
        ("a_worker_that_takes_too_much_is_explained", killed_for_memory),
        ("the_report_is_what_the_kernel_says", kernel_facts),
        ("pages_somebody_else_has_warmed_count", warm_pages_count),
        ("a_timeout_ends_everything", timeout_ends_everything),
        ("sigterm_lets_the_worker_stop", sigterm),
        ("a_worker_that_does_not_stop_is_killed", stubborn_worker),
        ("a_second_interrupt_kills_at_once", second_interrupt),
        ("a_killed_supervisor_leaves_nothing", killed_supervisor),
        ("what_a_worker_leaves_behind_is_ended", orphans_are_ended),
        ("a_worker_that_cannot_start_leaves_nothing", cannot_start),
        ("a_native_abort_is_one", native_abort),
        ("a_hundred_runs_leave_nothing", hundred_in_a_row),
        ("ten_at_once_do_not_disturb_each_other", ten_at_once),
    ];
    let alone: [(&str, fn()); 5] = [
        ("records_reach_the_report", records_reach_the_report),
        ("a_free_worker_dies_with_its_supervisor", free_worker_dies),
        ("read_only_groups_are_refused_with_reasons", read_only_groups),
        ("a_scope_holds_the_limit", scope_holds_the_limit),
        ("a_group_delegated_to_a_user_is_enough", delegated_to_a_user),
    ];
    let mut trials: Vec<_> = alone
        .map(|(name, test)| {
            Trial::test(name, move || {
                test();
                Ok(())
            })
        })
        .into();
    for backend in [Backend::CgroupV1, Backend::CgroupV2, Backend::SystemdScope] {
        match base(backend) {
            Ok(base) => trials.extend(of_each.map(|(name, test)| {
                let base = base.clone();
                Trial::test(format!("{backend}::{name}"), move || {
                    test(backend, &base);
                    Ok(())
                })
            })),
            Err(reason) => skip(&format!("{backend}::* ({} tests)", of_each.len()), &reason),
        }
    }
    trials
}

fn skip(name: &str, reason: &str) {
    eprintln!("SKIP {name}: {reason}");
}

fn lives_in_its_group(backend: Backend, base: &Path) {
    let finished = Spec::shell("cat /proc/self/cgroup").limited(backend, 64 * MIB).finish();
    finished.assert_end(RunResult::Ok, 0);
    assert!(finished.text.contains(&format!("/ramforge-{}-", finished.pid)), "{}", finished.text);
    let enforcement = &finished.report.enforcement;
    assert_eq!((enforcement.backend, enforcement.limit_bytes), (backend, Some(64 * MIB)));
    assert!(enforcement.peak_bytes.is_none_or(|peak| peak > 0 && peak < 64 * MIB), "{enforcement:?}");
    assert_eq!(enforcement.oom_kills, Some(0));
    assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
}

fn killed_for_memory(backend: Backend, base: &Path) {
    let finished = Spec::shell("exec tail /dev/zero").limited(backend, 16 * MIB).finish();
    finished.assert_end(RunResult::OomKilled, 137);
    assert_eq!(finished.report.outcome.signal, Some(9));
    let enforcement = &finished.report.enforcement;
    assert!(enforcement.oom_kills >= Some(1), "{enforcement:?}");
    assert!(enforcement.limit_events >= Some(1), "{enforcement:?}");
    assert!(enforcement.peak_bytes <= Some(16 * MIB), "{enforcement:?}");
    let message = finished.message();
    assert!(message.starts_with("killed by the kernel for memory before the load"), "{message}");
    assert!(message.contains("the limit is 16 MiB (16777216 bytes)"), "{message}");
    assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
}

/// A sleeping worker's files, read by the test, equal what is then reported.
fn kernel_facts(backend: Backend, base: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let (ready, go) = (folder.path().join("ready"), folder.path().join("go"));
    let script = format!(
        "head -c 20M /dev/zero | tail >/dev/null; echo >{}; until test -e {}; do sleep 0.05; done",
        ready.display(),
        go.display()
    );
    let running = Spec::shell(&script).limited(backend, 64 * MIB).start();
    wait_for("the worker", || ready.exists().then_some(()));
    let dir = run_group_of(base, running.process.id()).expect("its group is there");
    let seen = match backend {
        Backend::CgroupV1 => Memory::V1(MemoryV1::sample(&dir).unwrap()),
        _ => Memory::V2(MemoryV2::sample(&dir).unwrap()),
    };
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let peak = number(if backend == Backend::CgroupV1 { "memory.max_usage_in_bytes" } else { "memory.peak" });
    fs::write(&go, "").unwrap();
    let finished = running.finish();
    finished.assert_end(RunResult::Ok, 0);
    let enforcement = &finished.report.enforcement;
    assert_eq!(enforcement.peak_bytes, peak);
    assert!(peak.is_none_or(|peak| peak > 20 * MIB), "{peak:?}");
    assert_eq!(enforcement.oom_kills, seen.oom_kills());
    assert!(finished.report.timing.wall_ms.unwrap() > 0.0);
    assert!(finished.report.io.minor_faults.unwrap() > 0);
}

/// Pages in the cache on another group's account do not count, so they are dropped before; without that
/// the same run seems to need nothing.
fn warm_pages_count(backend: Backend, _base: &Path) {
    // Memory-backed file systems have nothing to drop.
    let Some(mut model) = on_disk() else {
        return skip("pages_somebody_else_has_warmed_count", "no folder here is on a disk");
    };
    let length = 24 * MIB;
    model.write_all(&vec![1; length as usize]).unwrap();
    model.as_file().sync_all().unwrap();
    let spec = Spec::shell(&format!("cat {} >/dev/null", model.path().display())).limited(backend, 64 * MIB);
    let peak = |finished: &Finished| finished.report.enforcement.peak_bytes.unwrap_or(length);
    let blind = spec.finish();
    let seeing = Spec { model_files: vec![model.path().to_owned()], ..spec }.finish();
    let cache = seeing.report.enforcement.page_cache.clone().unwrap();
    assert_eq!(cache.before_bytes, Some(length), "{cache:?}");
    assert!(cache.after_bytes.unwrap() < length / 8, "{cache:?}");
    assert!(peak(&seeing) > length - cache.after_bytes.unwrap(), "{seeing:?}");
    if blind.report.enforcement.peak_bytes.is_some() {
        assert!(peak(&blind) < length / 2, "{blind:?}");
    }
}

/// A file whose pages the kernel can drop.
fn on_disk() -> Option<tempfile::NamedTempFile> {
    let folders =
        [std::env::temp_dir(), PathBuf::from("/var/tmp"), std::env::current_exe().ok()?.parent()?.into()];
    folders.into_iter().find_map(|folder| {
        let mut file = tempfile::NamedTempFile::new_in(folder).ok()?;
        file.write_all(&[1; 1 << 16]).ok()?;
        file.as_file().sync_all().ok()?;
        rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).ok()?;
        let cached = forge_core::pages::cached_bytes(file.as_file()).ok()??;
        file.as_file().set_len(0).ok()?;
        use std::io::Seek;
        file.rewind().ok()?;
        (cached == 0).then_some(file)
    })
}

fn timeout_ends_everything(backend: Backend, base: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let child = folder.path().join("child");
    let script = format!("sleep 1000 & echo $! >{}; wait", child.display());
    let spec = Spec { timeout_ms: Some(1000), ..Spec::shell(&script).limited(backend, 64 * MIB) };
    let finished = spec.finish();
    finished.assert_end(RunResult::Timeout, 124);
    assert!(finished.took < Duration::from_secs(3), "{:?}", finished.took);
    assert!(finished.message().contains("after 1 s"), "{}", finished.message());
    assert!(is_gone(number_in(&child).expect("it was started")));
    assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
}

/// Starts a worker that runs `script` once it has said that it is ready.
fn start_ready(backend: Backend, script: &str) -> Supervisor {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = script.replace("READY", &format!("echo >{}", ready.display()));
    let running = Spec::shell(&script).limited(backend, 64 * MIB).start();
    wait_for("the worker", || ready.exists().then_some(()));
    running
}

fn sigterm(backend: Backend, base: &Path) {
    let script = "trap 'exit 3' TERM; READY; while :; do sleep 0.05; done";
    let running = start_ready(backend, script);
    running.signal(Signal::TERM);
    let asked = Instant::now();
    let finished = running.finish();
    finished.assert_end(RunResult::Interrupted, 130);
    assert!(asked.elapsed() < Duration::from_millis(900), "{:?}", asked.elapsed());
    assert_eq!(finished.report.outcome.signal, None, "it stopped by itself");
    assert!(finished.message().contains("SIGTERM"), "{}", finished.message());
    assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
}

fn stubborn_worker(backend: Backend, base: &Path) {
    let running = start_ready(backend, "trap '' INT TERM; READY; while :; do sleep 0.05; done");
    running.signal(Signal::INT);
    let asked = Instant::now();
    let finished = running.finish();
    finished.assert_end(RunResult::Interrupted, 130);
    assert!(asked.elapsed() > supervisor::INTERRUPT_GRACE, "{:?}", asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!(finished.report.outcome.signal, Some(9));
    assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
}

fn second_interrupt(backend: Backend, _base: &Path) {
    let running = start_ready(backend, "trap '' INT; READY; while :; do sleep 0.05; done");
    running.signal(Signal::INT);
    thread::sleep(Duration::from_millis(100));
    running.signal(Signal::INT);
    let asked = Instant::now();
    running.finish().assert_end(RunResult::Interrupted, 130);
    assert!(asked.elapsed() < Duration::from_millis(800), "{:?}", asked.elapsed());
}

fn killed_supervisor(backend: Backend, base: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let (child, own) = (folder.path().join("child"), folder.path().join("own"));
    let script = format!(
        "trap '' HUP; sleep 1000 & echo $! >{}; echo $$ >{}; wait; sleep 1000",
        child.display(),
        own.display()
    );
    let running = Spec::shell(&script).limited(backend, 64 * MIB).start();
    let pids = wait_for("the worker", || Some([number_in(&child)?, number_in(&own)?]));
    let pid = running.process.id();
    assert!(!groups_of(base, pid).is_empty());
    running.signal(Signal::KILL);
    running.process.wait_with_output().unwrap();
    wait_for("the group to go", || groups_of(base, pid).is_empty().then_some(()));
    wait_for("the processes to go", || pids.iter().all(|pid| is_gone(*pid)).then_some(()));
    wait_for("the guardian to go", || guardians_for(pid).is_empty().then_some(()));
}

/// The guardians of a supervisor's groups.
fn guardians_for(supervisor: u32) -> Vec<PathBuf> {
    let group = format!("/ramforge-{supervisor}-");
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
    processes
        .filter(|process| {
            let words = fs::read(process.join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            words.split('\0').nth(1) == Some(guardian::COMMAND) && words.contains(&group)
        })
        .collect()
}

fn orphans_are_ended(backend: Backend, base: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let child = folder.path().join("child");
    let script = format!("setsid sleep 1000 & echo $! >{}; sleep 0.2", child.display());
    let finished = Spec::shell(&script).limited(backend, 64 * MIB).finish();
    finished.assert_end(RunResult::Ok, 0);
    assert!(is_gone(number_in(&child).unwrap()));
    assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
}

fn cannot_start(backend: Backend, base: &Path) {
    let program = Some(PathBuf::from("/nonexistent/worker"));
    let finished = Spec { program, ..Spec::shell("").limited(backend, 64 * MIB) }.finish();
    finished.assert_end(RunResult::Error, 1);
    // In a scope, it is the scope's command that says so.
    let said = backend == Backend::SystemdScope || finished.message().contains("No such file");
    assert!(said, "{}", finished.message());
    assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
    assert_eq!(guardians_for(finished.pid), [] as [PathBuf; 0]);
}

fn native_abort(backend: Backend, base: &Path) {
    let finished = Spec::shell("kill -ABRT $$").limited(backend, 64 * MIB).finish();
    finished.assert_end(RunResult::NativeAbort, 134);
    assert!(finished.message().contains("SIGABRT"), "{}", finished.message());
    assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
}

fn hundred_in_a_row(backend: Backend, base: &Path) {
    for _ in 0..100 {
        let finished = Spec::shell("exit 0").limited(backend, 64 * MIB).finish();
        finished.assert_end(RunResult::Ok, 0);
        assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
        assert_eq!(guardians_for(finished.pid), [] as [PathBuf; 0]);
    }
}

fn ten_at_once(backend: Backend, base: &Path) {
    let hungry = Spec::shell("exec tail /dev/zero");
    let modest = Spec::shell("head -c 4M /dev/zero | tail >/dev/null; sleep 0.3");
    let running: Vec<_> = (0..10)
        .map(|number| {
            let spec = if number % 2 == 0 { &hungry } else { &modest };
            spec.clone().limited(backend, (16 + number) * MIB).start()
        })
        .collect();
    for (number, running) in (0_u64..).zip(running) {
        let finished = running.finish();
        assert_eq!(finished.report.enforcement.limit_bytes, Some((16 + number) * MIB));
        if number % 2 == 0 {
            finished.assert_end(RunResult::OomKilled, 137);
        } else {
            finished.assert_end(RunResult::Ok, 0);
            assert_eq!(finished.report.enforcement.oom_kills, Some(0));
        }
        assert_eq!(groups_of(base, finished.pid), [] as [PathBuf; 0]);
    }
}

fn records_reach_the_report() {
    let script = r#"
        path_of() { printf %s "$1" | sed "s/.*\"$2\":\"\([^\"]*\)\".*/\1/"; }
        cat "$(path_of "$1" settings)"; echo
        records=$(path_of "$1" records)
        echo '{"Loaded":{"load_ms":5.5}}' >$records
        echo 'no record' >$records
        echo '{"Failed":{"kind":"refused","message":"it does not fit","hints":["use less"]}}' >$records
        exit 9"#;
    let finished = Spec::shell(script).finish();
    finished.assert_end(RunResult::Refused, 3);
    assert_eq!(finished.report.timing.load_ms, Some(5.5));
    assert_eq!(finished.report.enforcement.backend, Backend::None);
    assert!(finished.text.starts_with("{\"prompt\":\"hello\"}\n"), "{}", finished.text);
    assert_eq!(finished.stderr, "it does not fit\nhint: use less\n");
}

fn free_worker_dies() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own");
    let running = Spec::shell(&format!("echo $$ >{}; exec sleep 1000", own.display())).start();
    let worker = wait_for("the worker", || number_in(&own));
    running.signal(Signal::KILL);
    running.process.wait_with_output().unwrap();
    wait_for("the worker to go", || is_gone(worker).then_some(()));
}

fn read_only_groups() {
    let groups = Groups::own(Path::new("/proc")).unwrap();
    let mounts: Vec<_> = [groups.v2, groups.v1_memory].into_iter().flatten().map(|g| g.mount_point).collect();
    let script: String =
        mounts.iter().map(|mount| format!("mount -o remount,bind,ro {} && ", mount.display())).collect();
    let spec = Spec { limit_bytes: Some(64 * MIB), ..Spec::shell("echo the worker ran") };
    let run = spec.command();
    let mut isolated = Command::new("unshare");
    isolated.args(["--mount", "sh", "-c", &format!("{script} exec \"$@\""), "sh"]);
    isolated.arg(run.get_program()).args(run.get_args());
    isolated.env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    let probe = Command::new("unshare").args(["--mount", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return skip("read_only_groups_are_refused_with_reasons", "this user may not unshare mounts");
    }
    let finished = Supervisor::start(isolated).finish();
    finished.assert_end(RunResult::Error, 1);
    assert!(!finished.text.contains("the worker ran"), "{}", finished.text);
    for backend in supervisor::BACKENDS {
        assert!(finished.message().contains(&format!("\n  {backend}: ")), "{}", finished.message());
        assert!(finished.stderr.contains(&format!("hint: {backend}: ")), "{}", finished.stderr);
    }
    assert!(finished.message().contains("mounted read-only"), "{}", finished.message());
}

/// With a user manager, a real scope; without one but with version 2, a stand-in for `systemd-run` that
/// does what matters here: it makes a group, moves into it and becomes the command.
fn scope_holds_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let script = "cat /proc/self/cgroup; exec tail /dev/zero";
    let mut spec = Spec::shell(script).limited(Backend::SystemdScope, 16 * MIB);
    // A login's own group is not delegated, so the scope is what is chosen there.
    let chosen = manager_runs();
    if chosen {
        spec.backend = None;
    }
    let mut command = spec.command();
    let mut stand_in = None;
    if !chosen {
        let base = match base(Backend::CgroupV2) {
            Ok(base) => base,
            Err(reason) => {
                let reason = format!("no systemd manager runs here, and cgroup v2 cannot stand in: {reason}");
                return skip("a_scope_holds_the_limit", &reason);
            }
        };
        stand_in_for_systemd_run(folder.path(), &base);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", folder.path().display()));
        stand_in = Some(base);
    }
    let running = Supervisor::start(command);
    if let Some(base) = stand_in {
        stand_in_for_systemd(&base, running.process.id());
    }
    let finished = running.finish();
    finished.assert_end(RunResult::OomKilled, 137);
    let enforcement = &finished.report.enforcement;
    assert_eq!(enforcement.backend, Backend::SystemdScope);
    assert!(enforcement.oom_kills >= Some(1), "{enforcement:?}");
    let explained = enforcement.notes.iter().any(|note| note.starts_with("cgroup-v2 was not used: "));
    assert_eq!(explained, chosen, "{enforcement:?}");
    let line = finished.text.lines().find(|line| line.starts_with("0::")).unwrap();
    let scope = Path::new(&line[3..]).parent().unwrap();
    assert_eq!(scope.extension().unwrap(), "scope", "{line}");
    let mount = Groups::own(Path::new("/proc")).unwrap().v2.unwrap().mount_point;
    assert!(!mount.join(scope.strip_prefix("/").unwrap()).exists(), "{line}");
}

/// Removes each scope after its last process has ended: one around the probe, one around the worker.
fn stand_in_for_systemd(base: &Path, supervisor: u32) {
    for _ in 0..2 {
        let scope = wait_for("a scope", || groups_of(base, supervisor).pop());
        let populated = |scope: &Path| fs::read_to_string(scope.join("cgroup.events")).unwrap();
        // The probe may have come and gone already; an empty directory that is about to be entered has not.
        let entered = Instant::now() + Duration::from_millis(500);
        while populated(&scope).contains("populated 0") && Instant::now() < entered {
            thread::sleep(Duration::from_millis(1));
        }
        wait_for("its last process", || populated(&scope).contains("populated 0").then_some(()));
        // The leaf is there unless it was the probe's scope.
        let _ = fs::remove_dir(scope.join("supervisor"));
        fs::remove_dir(&scope).unwrap();
    }
}

fn manager_runs() -> bool {
    let user = if rustix::process::geteuid().is_root() { "--system" } else { "--user" };
    let probe = Command::new("systemd-run").args([user, "--scope", "--quiet", "--collect", "true"]).output();
    probe.is_ok_and(|output| output.status.success())
}

fn stand_in_for_systemd_run(folder: &Path, base: &Path) {
    let program = folder.join("systemd-run");
    let script = r#"#!/bin/sh
for word in "$@"; do
    case $word in
        --unit=*) scope=BASE/${word#--unit=} ;;
        --) break ;;
    esac
done
while test "$1" != --; do shift; done
shift
echo +memory >BASE/cgroup.subtree_control
mkdir "$scope" && echo $$ >"$scope/cgroup.procs" && exec "$@"
"#;
    fs::write(&program, script.replace("BASE", &base.display().to_string())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A group of version 2 that root has given to an ordinary user.
struct Delegated(PathBuf);

const USER: u32 = 65534;

impl Delegated {
    fn new(base: &Path) -> Self {
        fs::write(base.join("cgroup.subtree_control"), "+memory").unwrap();
        let dir = base.join(format!("delegated-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        for name in ["", "cgroup.procs", "cgroup.subtree_control"] {
            std::os::unix::fs::chown(dir.join(name), Some(USER), Some(USER)).unwrap();
        }
        Self(dir)
    }

    /// Starts a supervisor as that user inside the group.
    fn start(&self, spec: &Spec) -> Supervisor {
        let enter = format!("echo $$ >{}/cgroup.procs; exec \"$@\"", self.0.display());
        let user = [format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()];
        let run = spec.command();
        let mut command = Command::new("sh");
        command.args(["-c", &enter, "sh", "setpriv"]).args(user);
        command.arg(run.get_program()).args(run.get_args());
        Supervisor::start(command)
    }

    fn is_as_before(&self) -> bool {
        let entries = fs::read_dir(&self.0).unwrap().filter_map(Result::ok);
        let control = fs::read_to_string(self.0.join("cgroup.subtree_control")).unwrap();
        entries.filter(|entry| entry.path().is_dir()).count() == 0 && control.trim().is_empty()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // A test that failed may have left something in it.
        let _ = fs::remove_dir(&self.0);
    }
}

fn delegated_to_a_user() {
    let base = match base(Backend::CgroupV2) {
        Ok(base) => base,
        Err(reason) => return skip("a_group_delegated_to_a_user_is_enough", &reason),
    };
    let group = Delegated::new(&base);
    let hungry =
        Spec::shell("cat /proc/self/cgroup; exec tail /dev/zero").limited(Backend::CgroupV2, 16 * MIB);
    let finished = group.start(&hungry).finish();
    finished.assert_end(RunResult::OomKilled, 137);
    let inside = format!("{}/ramforge-", group.0.file_name().unwrap().display());
    assert!(finished.text.contains(&inside), "{}", finished.text);
    assert!(group.is_as_before());

    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(USER), Some(USER)).unwrap();
    let ready = folder.path().join("ready");
    let patient = Spec::shell(&format!("echo >{}; exec sleep 1000", ready.display()));
    let running = group.start(&patient.limited(Backend::CgroupV2, 16 * MIB));
    wait_for("the worker", || ready.exists().then_some(()));
    assert!(!group.is_as_before());
    running.signal(Signal::KILL);
    running.process.wait_with_output().unwrap();
    wait_for("the group to be as before", || group.is_as_before().then_some(()));

    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(group.0.join("cgroup.procs"), other.id().to_string()).unwrap();
    let refused = group.start(&hungry).finish();
    other.kill().unwrap();
    other.wait().unwrap();
    refused.assert_end(RunResult::Error, 1);
    assert!(refused.message().contains("holds 1 other processes"), "{}", refused.message());
    assert!(group.is_as_before());
}
