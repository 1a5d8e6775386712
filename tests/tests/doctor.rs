//! What the doctor says of this machine and of models, and the exit codes.

use std::fs;
use std::process::{Command, Output};

use ramforge::doctor::Examination;
use ramforge_tests::{programs, real, schema, shapes};
use serde_json::Value;

const IDS: [&str; 15] = [
    "native-build",
    "cpu-features",
    "enforcement",
    "cgroup-v2",
    "systemd-scope",
    "cgroup-v1",
    "free-memory",
    "swap",
    "memory-pressure",
    "transparent-huge-pages",
    "locked-memory",
    "model-header",
    "direct-io",
    "disk-bandwidth",
    "model-fit",
];

fn doctor(arguments: &[&str]) -> (Output, Value) {
    let output = programs::ramforge().unwrap().arg("doctor").args(arguments).arg("--json").output().unwrap();
    let found = serde_json::from_slice(&output.stdout);
    let found = found.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output, found)
}

fn finding<'a>(found: &'a Value, id: &str) -> &'a Value {
    let findings = found["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("{id}: {found:#}"))
}

#[test]
fn a_machine_and_a_model_that_are_well() {
    let schema = schema::committed::<Examination>("doctor");
    for (arguments, looked_at) in
        [(vec![], false), (vec![real::smollm2().unwrap().display().to_string()], true)]
    {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (output, found) = doctor(&arguments);
        assert!(output.status.success(), "{found:#}");
        schema.check(&found);
        let findings = found["findings"].as_array().unwrap();
        let ids: Vec<_> = findings.iter().map(|finding| finding["id"].as_str().unwrap()).collect();
        assert_eq!(ids, IDS);
        assert_eq!(finding(&found, "model-header")["status"] != "skipped", looked_at);
        for finding in findings {
            let status = finding["status"].as_str().unwrap();
            let bad = ["warning", "failure"].contains(&status);
            assert!(!bad || finding["remedy"].is_string(), "it does not say what to do: {finding:#}");
        }
    }
    let mut wrong = doctor(&[]).1;
    wrong["findings"][0]["status"] = Value::from("splendid");
    assert!(!schema.holds(&wrong), "the schema allows everything");
}

#[test]
fn a_file_that_is_no_model_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, "GGUF").unwrap();
    let (output, found) = doctor(&[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(finding(&found, "model-header")["status"], "failure");
    assert_eq!(finding(&found, "model-fit")["status"], "skipped");
    assert_eq!(found["failures"], 1);
}

#[test]
fn a_model_larger_than_any_machine_is_a_warning_with_the_way_it_would_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let spec =
        shapes::ModelSpec { embd: 16_384, heads: 512, kv_heads: 8, layers: 400, ..shapes::tiny_llama() };
    spec.write_sparse(&path).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 200 << 30);
    let (output, found) = doctor(&[path.to_str().unwrap()]);
    let fit = finding(&found, "model-fit");
    assert_eq!((output.status.code(), fit["status"].as_str()), (Some(0), Some("warning")), "{found:#}");
    let message = fit["message"].as_str().unwrap();
    assert!(message.contains("streaming") && message.contains("limited by the disk"), "{message}");
}

/// A container without a writable cgroup mount: a warning, which is no failure.
#[test]
fn a_machine_that_can_enforce_nothing_is_warned_about() {
    let isolated =
        |script: &str| Command::new("unshare").args(["--mount", "sh", "-c", script, "sh"]).output();
    if !isolated("true").is_ok_and(|output| output.status.success()) {
        println!(
            "SKIP a_machine_that_can_enforce_nothing_is_warned_about: no mount name space may be made here"
        );
        return;
    }
    let program = programs::ramforge().unwrap();
    let script = "for mount in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts); do \
         mount -o remount,bind,ro $mount || exit 99; done; exec \"$0\" doctor --json";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(program.get_program())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    if finding(&found, "systemd-scope")["status"] == "ok" {
        println!("SKIP a_machine_that_can_enforce_nothing_is_warned_about: systemd makes scopes here");
        return;
    }
    let enforcement = finding(&found, "enforcement");
    assert_eq!(enforcement["status"], "warning", "{found:#}");
    for id in ["cgroup-v2", "cgroup-v1"] {
        assert_eq!(finding(&found, id)["status"], "note");
        assert!(finding(&found, id)["remedy"].is_string());
    }
}

#[test]
fn the_doctor_reads_little_of_a_model() {
    let model = real::gemma3().unwrap();
    let program = programs::ramforge().unwrap();
    let output = Command::new("sh")
        .args(["-c", "\"$@\" >/dev/null || exit; cat /proc/$$/io", "sh"])
        .arg(program.get_program())
        .arg("doctor")
        .arg(&model)
        .output()
        .unwrap();
    let counters = String::from_utf8_lossy(&output.stdout);
    let read = counters.lines().find_map(|line| line.strip_prefix("rchar: ")).expect(&counters);
    let read: u64 = read.parse().unwrap();
    println!("{read} bytes read");
    assert!(read < 128 << 20, "{read}");
}
