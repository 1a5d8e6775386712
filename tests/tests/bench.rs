//! `ramforge bench`: real runs of a small model, and figures that agree with each other.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramforge::bench::Bench;
use ramforge_tests::programs::ramforge;
use ramforge_tests::{real, schema};
use serde_json::Value;

#[test]
fn a_benchmark_measures_every_way_and_writes_what_its_schema_says() {
    let schema = schema::committed::<Bench>("bench");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let model = real::smollm2().unwrap();
    let output = ramforge()
        .unwrap()
        .args(["bench", model.to_str().unwrap(), "--ram", "80M", "--rounds", "2", "--threads", "1"])
        .args(["--prompt-tokens", "20", "--tokens", "4", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("no back end can enforce") {
        println!("SKIP a_benchmark_measures_every_way_and_writes_what_its_schema_says: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let bench: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    schema.check(&bench);

    assert_eq!(bench["same_logits"], true, "{bench:#}");
    let [policy, paging, resident] = [0, 1, 2].map(|way| &bench["ways"][way]);
    for measured in [policy, paging, resident] {
        assert_eq!(measured["rounds"].as_array().unwrap().len(), 2, "{bench:#}");
    }
    let median = |way: &Value, name: &str| way["median"][name].as_f64().unwrap();
    for way in [policy, paging] {
        assert!(median(way, "peak_bytes") <= f64::from(80 << 20), "{bench:#}");
    }
    // The last pass has read ahead for one that does not come.
    let pass = median(policy, "streamed_bytes_per_pass");
    let read = median(policy, "read_per_token_bytes");
    assert!(pass > 0.0 && read >= 0.9 * pass && read <= 1.3 * pass, "{read} of {pass}");
    assert_eq!(median(resident, "read_per_token_bytes"), 0.0, "{bench:#}");
    let limit = bench["limit"]["seconds_per_token"].as_f64().unwrap();
    assert!(limit >= median(resident, "seconds_per_token"));
    let over = bench["token_over_limit"].as_f64().unwrap();
    assert!((over - median(policy, "seconds_per_token") / limit).abs() < 1e-9);

    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["kernel paging", "all in memory", "x the limit", "same, bit for bit"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn an_interrupt_ends_the_benchmark_and_its_run() {
    let model = real::smollm2().unwrap();
    let mut bench = ramforge()
        .unwrap()
        .args(["bench", model.to_str().unwrap(), "--ram", "250M", "--tokens", "5000", "--ctx", "6000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    if bench.try_wait().unwrap().is_some() {
        let said = std::io::read_to_string(bench.stderr.take().unwrap()).unwrap();
        assert!(said.contains("no back end can enforce"), "{said}");
        println!("SKIP an_interrupt_ends_the_benchmark_and_its_run: {said}");
        return;
    }
    let asked = Instant::now();
    kill(Pid::from_raw(bench.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

/// Runs `bench` with `arguments`, which it does not run with; nothing where no back end can enforce a budget, as the
/// test of the name `test` says then.
fn refused(test: &str, arguments: &[&str]) -> Option<(Option<i32>, String)> {
    let model = real::smollm2().unwrap();
    let output = ramforge().unwrap().arg("bench").arg(model).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("no back end can enforce") {
        println!("SKIP {test}: {said}");
        return None;
    }
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    Some((output.status.code(), said))
}

#[test]
fn a_budget_in_which_nothing_runs_is_refused_with_what_would_work() {
    let test = "a_budget_in_which_nothing_runs_is_refused_with_what_would_work";
    let Some((code, said)) = refused(test, &["--ram", "8M"]) else { return };
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("refused before loading") && said.contains("hint: --ram "), "{said}");
    assert!(!said.contains("--no-fit-guard"), "{said}");
}

#[test]
fn a_file_that_cannot_be_written_costs_no_run() {
    let arguments = ["--ram", "80M", "--json", "/proc/bench.json"];
    let Some((code, said)) = refused("a_file_that_cannot_be_written_costs_no_run", &arguments) else {
        return;
    };
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot write"), "{said}");
}

#[test]
fn more_tokens_than_there_can_be_are_a_usage_error() {
    for option in ["--tokens", "--prompt-tokens", "--rounds"] {
        let output = ramforge().unwrap().args(["bench", "m", "--ram", "80M", option, "4294967295"]).output();
        assert_eq!(output.unwrap().status.code(), Some(2), "{option}");
    }
}

#[test]
fn what_is_compared_has_the_layout_of_the_policy() {
    let model = real::smollm2().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    // Too little for all weights, so the kernel pages, which nothing streams and nothing repacks.
    for policy in ["off", "memory-bound"] {
        let output = ramforge()
            .unwrap()
            .args(["bench", model.to_str().unwrap(), "--ram", "80M", "--policy", policy, "--rounds", "1"])
            .args(["--threads", "1", "--prompt-tokens", "4", "--tokens", "1", "--no-paging", "--json"])
            .arg(&file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("no back end can enforce") {
            println!("SKIP what_is_compared_has_the_layout_of_the_policy: {said}");
            return;
        }
        assert!(output.status.success(), "{said}");
        let bench: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(bench["same_logits"], true, "{bench:#}");
        assert_eq!(bench["ways"][2]["rounds"].as_array().unwrap().len(), 1, "{bench:#}");
    }
}
