//! Reports: what a dashboard reads, and what `ramforge report` does with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramforge::report::Report;
use ramforge_tests::programs::ramforge;
use ramforge_tests::{cache, real, schema, shapes};
use serde_json::Value;

fn report_command(arguments: &[&str]) -> (Output, String) {
    let output = ramforge().unwrap().arg("report").args(arguments).output().unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    (output, said)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A report of a short run, and the folder it lies in.
fn short_run(more: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let model = cache::model(&shapes::tiny_llama()).unwrap();
    let mut command = ramforge().unwrap();
    command.args([
        "run",
        text(&model),
        "--prompt",
        "Hello",
        "-n",
        "6",
        "--residency-report-json",
        text(&path),
    ]);
    assert!(command.args(more).output().unwrap().status.success());
    schema::check_report(&read(&path));
    (folder, path)
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_schema_is_committed_and_printed() {
    schema::committed::<Report>("report");
    let (output, _) = report_command(&["schema"]);
    let committed = include_str!("../../ramforge-cli/schemas/report.json");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), committed);
}

#[test]
fn the_schema_refuses_what_is_no_report() {
    let schema = schema::committed::<Report>("report");
    let (_folder, path) = short_run(&[]);
    let good = read(&path);
    assert!(schema.holds(&good));
    let spoil = |pointer: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert!(!schema.holds(&bad), "{pointer}");
    };
    spoil("/outcome/result", "fine".into());
    spoil("/enforcement/backend", "magic".into());
    spoil("/inventory/file_backed_bytes", Value::Null);
    spoil("/ledger/0/category", "other".into());
    spoil("/timing/load_ms", "fast".into());
    let mut bad = good.clone();
    bad.as_object_mut().unwrap().remove("io");
    assert!(!schema.holds(&bad));
}

/// The process that `ramforge run` has started to run the model.
fn worker_of(pid: u32) -> Option<Pid> {
    let children = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let folder = entry.ok()?.path();
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        let parent: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        let line = fs::read_to_string(folder.join("cmdline")).ok()?;
        let id = folder.file_name()?.to_str()?.parse().ok()?;
        (parent == pid && line.split('\0').nth(1) == Some("worker")).then_some(Pid::from_raw(id))
    });
    children.into_iter().next()
}

#[test]
fn a_worker_killed_in_the_middle_leaves_a_valid_report() {
    let model = real::smollm2().unwrap();
    for (signal, result, code) in [(Signal::SIGKILL, "error", 1), (Signal::SIGABRT, "native-abort", 134)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let mut command: Command = ramforge().unwrap();
        command.args([
            "run",
            text(&model),
            "--prompt",
            "Once",
            "-n",
            "4000",
            "--ctx",
            "4096",
            "--threads",
            "1",
        ]);
        command.args(["--residency-policy", "memory-bound", "--residency-target", "80M", "--no-repack"]);
        command.args(["--residency-report-json", text(&path)]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = command.spawn().unwrap();
        // The first byte of text: it is in the middle of generating.
        let mut byte = [0];
        std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut byte).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let worker = loop {
            match worker_of(run.id()) {
                Some(worker) => break worker,
                None => assert!(Instant::now() < deadline, "there is no worker"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(!path.exists(), "the report is written at the end");
        kill(worker, signal).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(code));
        let report = read(&path);
        schema::check_report(&report);
        assert_eq!(report["outcome"]["result"], result, "{}", report["outcome"]);
        assert_eq!(report["outcome"]["signal"], signal as i32);
        assert!(report["outcome"]["message"].as_str().unwrap().contains("while generating"));
        // What was said before still counts.
        assert!(report["inventory"]["file_backed_bytes"].as_u64().unwrap() > 90_000_000);
        assert!(!report["ledger"].as_array().unwrap().is_empty());
        assert!(!report["operations"].as_array().unwrap().is_empty());
        assert!(report["output"].is_null());
        let (shown, _) = report_command(&["show", text(&path)]);
        assert!(String::from_utf8(shown.stdout).unwrap().contains(result));
    }
}

#[test]
fn check_ends_with_1_when_a_bound_is_broken() {
    let (_folder, path) = short_run(&[]);
    let kept =
        ["check", text(&path), "--require-outcome", "ok", "--max-peak", "1G", "--min-decode-rate", "0.01"];
    let (output, said) = report_command(&kept);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().matches("kept").count(), 3);

    let broken =
        ["check", text(&path), "--require-outcome", "ok", "--max-peak", "1M", "--min-decode-rate", "1e9"];
    let (output, said) = report_command(&broken);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("does not keep its bounds: peak, decode rate"), "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().matches("BROKEN").count(), 2);

    let fingerprint = read(&path)["output"]["token_fingerprint"].as_str().unwrap().to_owned();
    for (hash, code) in [(fingerprint.as_str(), 0), ("0000000000000000", 1)] {
        let (output, said) = report_command(&["check", text(&path), "--require-fingerprint", hash]);
        assert_eq!(output.status.code(), Some(code), "{said}");
    }
    let (output, said) = report_command(&["check", text(&path)]);
    assert_eq!(output.status.code(), Some(2), "{said}");
}

#[test]
fn diff_shows_what_changed() {
    let (_a, old) = short_run(&[]);
    let (_b, new) = short_run(&["--no-repack", "--ctx", "512"]);
    let (output, said) = report_command(&["diff", text(&old), text(&new)]);
    assert!(output.status.success(), "{said}");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.lines().any(|line| line.starts_with("request.repack ") && line.ends_with("false")),
        "{shown}"
    );
    assert!(shown.contains("ledger.kv-cache.bytes"), "{shown}");
    assert!(!shown.contains("request.device"), "{shown}");
    let (output, _) = report_command(&["diff", text(&old), text(&old)]);
    assert_eq!(output.stdout, b"no difference\n");
}

#[test]
fn what_is_no_report_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, contents: &str| {
        let path = folder.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    };
    let newer = write("newer.json", r#"{"schema_version": 2}"#);
    for (path, part) in [
        (folder.path().join("none.json"), "No such file"),
        (write("text.json", "hello"), "expected value"),
        (write("other.json", "{}"), "it has no schema_version"),
        (newer, "schema version 2, this program knows version 1"),
    ] {
        let (output, said) = report_command(&["show", text(&path)]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains(part) && said.contains(text(&path)), "{said}");
    }
}

#[test]
fn reports_with_fields_of_a_newer_program_are_read() {
    let (folder, path) = short_run(&[]);
    let mut report = read(&path);
    report["new_part"] = serde_json::json!({"a": 1});
    report["timing"]["new_ms"] = 5.into();
    // And those of an older one, which had no tensors and no mappings.
    let inventory = report["inventory"].as_object_mut().unwrap();
    inventory.remove("tensors");
    inventory.remove("mappings");
    let changed = folder.path().join("changed.json");
    fs::write(&changed, report.to_string()).unwrap();
    let (output, said) = report_command(&["show", text(&changed)]);
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_report_replaces_nothing_that_the_run_uses() {
    let folder = tempfile::tempdir().unwrap();
    let [model, prompt, out] = ["model.gguf", "prompt.txt", "out.txt"].map(|name| folder.path().join(name));
    fs::copy(cache::model(&shapes::tiny_llama()).unwrap(), &model).unwrap();
    fs::write(&prompt, "Hello").unwrap();
    let before = fs::read(&model).unwrap();
    for report in [model.as_path(), prompt.as_path(), out.as_path(), Path::new("/dev/stdout")] {
        let mut command = ramforge().unwrap();
        command.args(["run", text(&model), "-n", "1", "--prompt-file", text(&prompt)]);
        command.args(["--residency-report-json", text(report)]);
        let output = command.stdout(fs::File::create(&out).unwrap()).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("is in use by this command"), "{said}");
    }
    assert_eq!(fs::read(&model).unwrap(), before);
    assert_eq!(fs::read_to_string(&prompt).unwrap(), "Hello");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_report_beyond_the_limit_on_files_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let program = ramforge().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0; exec \"$@\"", "sh"]).arg(program.get_program());
    command.args(["run", "missing.gguf", "--prompt", "x", "--residency-report-json", text(&path)]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{}: File too large", path.display())), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn native_messages_are_shown_with_verbose_only() {
    let model = cache::model(&shapes::tiny_llama()).unwrap();
    let said = |more: &[&str]| {
        let mut command = ramforge().unwrap();
        command.args(["run", text(&model), "--prompt", "x", "-n", "1", "--ctx", "2048"]).args(more);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let quiet = said(&[]);
    assert!(quiet.contains("warning: a context of 2048 tokens"), "{quiet}");
    assert!(!quiet.contains("n_ctx"), "{quiet}");
    assert!(said(&["--verbose"]).contains("n_ctx"));
}
