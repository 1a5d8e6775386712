//! Budgets that the kernel enforces, end to end: the real program, a real model, and what the kernel shows.
//!
//! The back end is the one this machine has: version 1 of the memory controller, or version 2, as in the
//! guests of `tests/vm/run`. Every end is checked against its exit code, its report, and what it leaves.

mod kernel;
mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kernel::Kernel;
use nix::sys::signal::Signal;
use ramforge_tests::real;
use run::{MIB, OwnModel, Run, Running, tiny, wait_for};
use serde_json::Value;

/// SmolLM2's weights are 94 MiB: in this budget they cannot all be in memory.
const SMALLER_THAN_THE_WEIGHTS: u64 = 64;

/// Smaller too, with room to stream through a context of 1024 tokens.
const ROOM_TO_STREAM: u64 = 90;

/// Room for everything.
const AMPLE: u64 = 512;

const PROMPT: &str = "The capital of France is";

/// The kernel to test on, or what to skip.
fn kernel(test: &str) -> Option<Kernel> {
    Kernel::here().inspect_err(|reason| println!("SKIP {test}: {reason}")).ok()
}

/// A run of SmolLM2 that answers with a few tokens.
fn short(model: &Path, more: &[&str]) -> Run {
    Run::new(model, &[&["--prompt", PROMPT, "--max-tokens", "6"], more].concat())
}

/// A run of SmolLM2 that takes longer than any test waits for it.
fn long(model: &Path) -> Run {
    Run::new(model, &["--prompt", PROMPT, "--max-tokens", "100000", "--ctx", "1024", "--no-repack"])
}

fn number(report: &Value, name: &str) -> u64 {
    report["enforcement"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {report:#}"))
}

#[test]
fn a_model_answers_inside_less_memory_than_its_weights() {
    let Some(kernel) = kernel("a_model_answers_inside_less_memory_than_its_weights") else { return };
    let model = OwnModel::copy(&real::smollm2().unwrap());
    for layout in [&[][..], &["--no-repack"]] {
        let free = short(model.path(), layout).reported().finish();
        let expected = free.assert_end(0, "ok");
        assert!(free.out.contains("Paris"), "{free:#?}");

        let limited = short(model.path(), layout).limited(SMALLER_THAN_THE_WEIGHTS).finish();
        let report = limited.assert_end(0, "ok");
        limited.assert_nothing_left(&kernel);
        assert_eq!(limited.out, free.out);
        assert_eq!(report["output"], expected["output"]);
        assert_eq!(report["enforcement"]["backend"], kernel.backend);
        let limit = SMALLER_THAN_THE_WEIGHTS * MIB;
        assert_eq!(number(&report, "limit_bytes"), limit);
        let peak = number(&report, "peak_bytes");
        assert!(peak <= limit && peak > limit - MIB, "{peak}");
        assert!(number(&report, "limit_events") > 100, "{report:#}");
        assert_eq!(number(&report, "oom_kills"), 0);
        println!(
            "{:?}: peak {peak} of {limit} bytes, {} limit events",
            layout, report["enforcement"]["limit_events"]
        );
    }
}

/// As anybody types it: the program chooses how to live in the budget.
#[test]
fn the_default_run_answers_inside_its_budget() {
    let Some(kernel) = kernel("the_default_run_answers_inside_its_budget") else { return };
    let model = OwnModel::copy(&real::smollm2().unwrap());
    let free = short(model.path(), &["--no-repack"]).finish();
    for _ in 0..5 {
        let mut run = short(model.path(), &[]).reported();
        run.command.args(["--ram", "64M", "--enforce-ram"]);
        let limited = run.finish();
        let report = limited.assert_end(0, "ok");
        limited.assert_nothing_left(&kernel);
        assert_eq!(limited.out, free.out);
        let peak = number(&report, "peak_bytes");
        assert!(peak <= SMALLER_THAN_THE_WEIGHTS * MIB, "{peak}");
        assert_eq!(number(&report, "oom_kills"), 0);
        println!("{}: peak {peak} bytes", report["admission"]["verdict"]);
    }
}

/// The same assertions of pressure do not hold where there is none.
#[test]
fn a_budget_with_room_is_never_met() {
    let Some(kernel) = kernel("a_budget_with_room_is_never_met") else { return };
    let model = OwnModel::copy(&real::smollm2().unwrap());
    let limited = short(model.path(), &["--no-repack"]).limited(AMPLE).finish();
    let report = limited.assert_end(0, "ok");
    limited.assert_nothing_left(&kernel);
    let peak = number(&report, "peak_bytes");
    assert!(peak > model.bytes() && peak < AMPLE * MIB, "{peak}");
    assert_eq!((number(&report, "limit_events"), number(&report, "oom_kills")), (0, 0));
}

#[test]
fn too_small_a_budget_ends_in_the_kernels_verdict() {
    let Some(kernel) = kernel("too_small_a_budget_ends_in_the_kernels_verdict") else { return };
    let run = short(&real::smollm2().unwrap(), &[]).limited(16).finish();
    let report = run.assert_end(137, "oom-killed");
    run.assert_nothing_left(&kernel);
    assert!(number(&report, "oom_kills") >= 1);
    assert!(number(&report, "limit_events") >= 1);
    assert!(number(&report, "peak_bytes") <= 16 * MIB);
    assert_eq!(report["outcome"]["signal"], 9);
    assert_eq!(run.out, "");
    for part in [
        "killed by the kernel for memory while loading the model",
        "the limit is 16 MiB (16777216 bytes)",
        "it has to hold KV cache for ",
        " more than the limit",
        "hint: --ram ",
    ] {
        assert!(run.err.contains(part), "{part:?}: {}", run.err);
    }
}

/// A group that holds another one cannot be removed, so that its files can be read after the run's end.
struct HeldGroup {
    group: PathBuf,
    held: PathBuf,
}

impl HeldGroup {
    fn of(kernel: &Kernel, running: &Running) -> Self {
        let mut found = None;
        wait_for("the group", || {
            found = kernel.groups_of(running.pid()).pop();
            found.is_some()
        });
        let group = found.unwrap();
        let held = group.join("held");
        fs::create_dir(&held).unwrap();
        Self { group, held }
    }
}

impl Drop for HeldGroup {
    fn drop(&mut self) {
        // The run removes the group when it can; a test that failed has nothing to add.
        let _ = fs::remove_dir(&self.held);
    }
}

#[test]
fn the_report_is_what_the_kernels_files_say() {
    let Some(kernel) = kernel("the_report_is_what_the_kernels_files_say") else { return };
    let model = OwnModel::copy(&real::smollm2().unwrap());
    for (limit, code, result) in
        [(SMALLER_THAN_THE_WEIGHTS, 0, "ok"), (16, 137, "oom-killed"), (AMPLE, 0, "ok")]
    {
        let running = short(model.path(), &["--no-repack"]).limited(limit).start();
        let group = HeldGroup::of(&kernel, &running);
        wait_for("the worker", || !kernel::processes(&group.group).is_empty());
        let ended = Instant::now() + Duration::from_secs(300);
        while !kernel::processes(&group.group).is_empty() {
            assert!(Instant::now() < ended, "the worker does not end");
            thread::sleep(Duration::from_millis(5));
        }
        let facts = kernel.facts(&group.group);
        drop(group);
        let finished = running.finish();
        let report = finished.assert_end(code, result);
        finished.assert_nothing_left(&kernel);
        assert_eq!(facts.len(), 4, "{facts:?}");
        for (name, value) in &facts {
            assert_eq!(number(&report, name), *value, "{name} of {facts:?}");
        }
        println!("{limit} MiB: {facts:?}");
    }
}

#[test]
fn a_timeout_ends_everything_in_time() {
    let Some(kernel) = kernel("a_timeout_ends_everything_in_time") else { return };
    let mut run = long(&real::smollm2().unwrap()).limited(AMPLE);
    run.command.args(["--enforce-timeout", "1"]);
    let finished = run.finish();
    let report = finished.assert_end(124, "timeout");
    finished.assert_nothing_left(&kernel);
    assert!(
        finished.took > Duration::from_secs(1) && finished.took < Duration::from_secs(3),
        "{finished:#?}"
    );
    assert!(report["timing"]["wall_ms"].as_f64() >= Some(1000.0), "{report:#}");
    println!("ended after {:?}", finished.took);
}

/// Starts a long run and waits until it generates.
fn generating(model: &Path) -> Running {
    let mut running = long(model).limited(AMPLE).start();
    running.first_output();
    running
}

#[test]
fn signals_end_everything() {
    let Some(kernel) = kernel("signals_end_everything") else { return };
    let model = real::smollm2().unwrap();
    for (signal, name) in
        [(Signal::SIGINT, "SIGINT"), (Signal::SIGTERM, "SIGTERM"), (Signal::SIGHUP, "SIGHUP")]
    {
        let running = generating(&model);
        running.signal(signal);
        let asked = Instant::now();
        let finished = running.finish();
        let took = asked.elapsed();
        finished.assert_end(130, "interrupted");
        finished.assert_nothing_left(&kernel);
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert!(finished.err.contains(name), "{}", finished.err);
        println!("{name}: ended after {took:?}");
    }
}

#[test]
fn a_killed_supervisor_leaves_nothing() {
    let Some(kernel) = kernel("a_killed_supervisor_leaves_nothing") else { return };
    let running = generating(&real::smollm2().unwrap());
    assert_eq!(kernel.groups_of(running.pid()).len(), 1);
    let killed = Instant::now();
    running.kill_supervisor(&kernel);
    println!("gone after {:?}", killed.elapsed());
}

#[test]
fn pages_warm_in_another_groups_cache_are_paid_for_again() {
    let Some(kernel) = kernel("pages_warm_in_another_groups_cache_are_paid_for_again") else { return };
    let model = OwnModel::copy(&real::smollm2().unwrap());
    fs::read(model.path()).unwrap();
    let finished = short(model.path(), &["--no-repack"]).limited(AMPLE).finish();
    let report = finished.assert_end(0, "ok");
    finished.assert_nothing_left(&kernel);
    let cache = &report["enforcement"]["page_cache"];
    // The kernel may have taken some pages back since.
    let before = cache["before_bytes"].as_u64().unwrap();
    assert!(before > model.bytes() / 10 * 9 && before <= model.bytes(), "{cache}");
    assert_eq!(cache["after_bytes"], 0, "{cache}");
    let peak = number(&report, "peak_bytes");
    assert!(peak > model.bytes(), "{peak}");
    println!("peak {peak}, all of the model's {} bytes in it", model.bytes());
}

/// What another process has mapped cannot be dropped: the report and a warning say so.
#[test]
fn pages_that_cannot_be_dropped_are_reported() {
    let Some(kernel) = kernel("pages_that_cannot_be_dropped_are_reported") else { return };
    let model = OwnModel::copy(&real::smollm2().unwrap());
    let mut other = long(model.path()).reported().start();
    other.first_output();
    let finished = short(model.path(), &["--no-repack"]).limited(AMPLE).finish();
    other.signal(Signal::SIGKILL);
    other.finish();
    let report = finished.assert_end(0, "ok");
    finished.assert_nothing_left(&kernel);
    let after = report["enforcement"]["page_cache"]["after_bytes"].as_u64().unwrap();
    assert!(after > model.bytes() / 2, "{after}");
    assert!(number(&report, "peak_bytes") < model.bytes(), "{report:#}");
    let warning = format!("({after} bytes) of the model stay in memory that somebody else uses");
    assert!(finished.err.contains(&warning), "{}", finished.err);
}

fn may_unshare(test: &str) -> bool {
    let probe = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    let may = probe.is_ok_and(|status| status.success());
    if !may {
        println!("SKIP {test}: this user may not make a mount name space");
    }
    may
}

#[test]
fn without_a_back_end_nothing_runs() {
    let test = "without_a_back_end_nothing_runs";
    let Some(kernel) = kernel(test).filter(|_| may_unshare(test)) else { return };
    let read_only = "for point in $(awk '/ - cgroup2? / { print $5 }' /proc/self/mountinfo); do \
                     mount -o remount,bind,ro $point || exit 99; done; exec \"$@\"";
    let finished = short(&tiny(), &[]).limited(64).isolated(read_only).finish();
    let report = finished.assert_end(1, "error");
    finished.assert_nothing_left(&kernel);
    assert_eq!(finished.out, "");
    assert_eq!(report["enforcement"]["backend"], "none");
    for backend in ["cgroup-v2", "systemd-scope", "cgroup-v1"] {
        let line = |start: String| finished.err.lines().any(|line| line.trim_start().starts_with(&start));
        assert!(line(format!("{backend}: ")), "the obstacle of {backend}: {}", finished.err);
        assert!(line(format!("hint: {backend}: ")), "the remedy of {backend}: {}", finished.err);
    }
    assert!(finished.err.contains("is mounted read-only"), "{}", finished.err);
    println!("{}", finished.err);
}

#[test]
fn a_run_that_never_starts_leaves_nothing() {
    let Some(kernel) = kernel("a_run_that_never_starts_leaves_nothing") else { return };
    let missing = Run::new(Path::new("/nonexistent.gguf"), &["--prompt", PROMPT]).limited(64).finish();
    missing.assert_end(1, "error");
    missing.assert_nothing_left(&kernel);
    // Not even the program fits.
    let finished = short(&tiny(), &[]).limited_to("4K").reported().finish();
    finished.assert_end(137, "oom-killed");
    finished.assert_nothing_left(&kernel);
}

#[test]
fn ten_side_by_side_do_not_disturb_each_other() {
    let Some(kernel) = kernel("ten_side_by_side_do_not_disturb_each_other") else { return };
    let model = tiny();
    let expected = short(&model, &[]).finish().out;
    let limit = |number: u64| if number.is_multiple_of(2) { 64 + number } else { 2 };
    let running: Vec<_> = (0..10).map(|number| short(&model, &[]).limited(limit(number)).start()).collect();
    for (number, running) in (0..).zip(running) {
        let finished = running.finish();
        let report = if number % 2 == 0 {
            assert_eq!(finished.out, expected);
            finished.assert_end(0, "ok")
        } else {
            finished.assert_end(137, "oom-killed")
        };
        finished.assert_nothing_left(&kernel);
        assert_eq!(self::number(&report, "limit_bytes"), limit(number) * MIB);
        assert_eq!(self::number(&report, "oom_kills") > 0, number % 2 == 1, "{report:#}");
    }
}

#[test]
fn a_hundred_one_after_another_leave_nothing() {
    let Some(kernel) = kernel("a_hundred_one_after_another_leave_nothing") else { return };
    let model = tiny();
    let expected = short(&model, &[]).finish().out;
    for _ in 0..100 {
        let finished = short(&model, &[]).limited(64).finish();
        finished.assert_end(0, "ok");
        finished.assert_nothing_left(&kernel);
        assert_eq!(finished.out, expected);
    }
}

#[test]
fn a_model_that_shrinks_under_the_run_is_explained() {
    let Some(kernel) = kernel("a_model_that_shrinks_under_the_run_is_explained") else { return };
    let model = OwnModel::copy(&tiny());
    let bytes = model.bytes();
    let arguments = ["--prompt", "a", "--max-tokens", "900", "--no-repack", "--no-prefetch"];
    let mut running = Run::new(model.path(), &arguments).limited(64).start();
    running.first_output();
    model.shrink(bytes / 2);
    let finished = running.finish();
    finished.assert_end(1, "error");
    finished.assert_nothing_left(&kernel);
    let said = format!("the file {} shrank from ", model.path().display());
    assert!(finished.err.contains(&said), "{}", finished.err);
    for bytes in [bytes, bytes / 2] {
        assert!(finished.err.contains(&format!("({bytes} bytes)")), "{}", finished.err);
    }
    assert!(finished.err.contains("while it was read"), "{}", finished.err);
}

/// What was read before does not matter: a page that is missing is met, and nothing is computed without it.
#[test]
fn a_streamed_model_that_shrinks_ends_within_two_seconds() {
    let Some(kernel) = kernel("a_streamed_model_that_shrinks_ends_within_two_seconds") else { return };
    let model = OwnModel::copy(&real::smollm2().unwrap());
    let mut running = long(model.path()).streamed(ROOM_TO_STREAM).start();
    running.first_output();
    let shrunk = Instant::now();
    model.shrink(model.bytes() / 2);
    let finished = running.finish();
    let took = shrunk.elapsed();
    finished.assert_end(1, "error");
    finished.assert_nothing_left(&kernel);
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(finished.err.contains("shrank from "), "{}", finished.err);
}

#[test]
fn an_interrupt_at_any_moment_ends_a_streamed_run_within_two_seconds() {
    let test = "an_interrupt_at_any_moment_ends_a_streamed_run_within_two_seconds";
    let Some(kernel) = kernel(test) else { return };
    let model = OwnModel::copy(&real::smollm2().unwrap());
    for moment in [0, 50, 120, 200, 300, 450, 700, 1100] {
        let running = long(model.path()).streamed(ROOM_TO_STREAM).start();
        // Before it listens there is nothing to end.
        wait_for("the command to listen", || running.catches(Signal::SIGINT));
        thread::sleep(Duration::from_millis(moment));
        let asked = Instant::now();
        running.signal(Signal::SIGINT);
        let finished = running.finish();
        let took = asked.elapsed();
        finished.assert_end(130, "interrupted");
        finished.assert_nothing_left(&kernel);
        assert!(took < Duration::from_secs(2), "{moment} ms: {took:?}");
    }
}

/// The report does not fit on the disk: the command fails and says so, and leaves no half of it.
#[test]
fn a_full_disk_fails_the_command() {
    let test = "a_full_disk_fails_the_command";
    let Some(kernel) = kernel(test).filter(|_| may_unshare(test)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let script = format!(
        "mount -t tmpfs -o size=4k none {place} && head -c 4096 /dev/zero >{place}/full; \
         \"$@\"; code=$?; ls -A {place}; exit $code"
    );
    let mut run = short(&tiny(), &[]);
    run.command.args(["--enforce-ram", "--ram", "64M"]);
    run.command.arg("--residency-report-json").arg(folder.path().join("report.json"));
    let finished = run.isolated(&script).finish();
    assert_eq!(finished.status.code(), Some(1), "{finished:#?}");
    let said = format!("cannot write {place}/report.json: No space left on device");
    assert!(finished.err.contains(&said), "{}", finished.err);
    assert!(finished.out.ends_with("full\n") && !finished.out.contains("report"), "{}", finished.out);
    finished.assert_nothing_left(&kernel);
}

/// A reader that has seen enough ends the run, without an error; a disk that is full is one.
#[test]
fn standard_output_that_takes_no_more() {
    let Some(kernel) = kernel("standard_output_that_takes_no_more") else { return };
    let endless = |model: &Path| {
        Run::new(model, &["--prompt", "a", "--max-tokens", "100000", "--ctx", "1024"]).limited(64)
    };
    let mut running = endless(&tiny()).start();
    running.first_output();
    drop(running.process.stdout.take());
    let finished = running.finish();
    let report = finished.assert_end(0, "ok");
    assert_eq!(report["output"]["stop_reason"], "output-closed", "{report:#}");
    assert_eq!(finished.err, "");
    finished.assert_nothing_left(&kernel);

    let mut run = endless(&tiny());
    run.command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let finished = run.finish();
    finished.assert_end(1, "error");
    assert!(finished.err.contains("standard output: No space left"), "{}", finished.err);
    finished.assert_nothing_left(&kernel);
}
