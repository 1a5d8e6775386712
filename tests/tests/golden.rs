//! What people read: the help of each command, and errors, against files that are committed.

use std::fs;
use std::path::Path;

use ramforge_tests::programs;

/// What `ramforge` writes with `arguments`, to both streams, and its exit code.
fn said(arguments: &[&str]) -> String {
    let output = programs::ramforge().unwrap().args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap();
    let shown = arguments.join(" ");
    format!("$ ramforge {shown}\n{}{}exit code {code}\n", text(&output.stdout), text(&output.stderr))
}

/// Compares with the file `name`; with `UPDATE_GOLDEN` in the environment it is written anew.
fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name).with_extension("txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{} has other text: run this test with UPDATE_GOLDEN=1 and look at the difference\n{found}",
        path.display()
    );
}

#[test]
fn help_is_what_was_agreed() {
    for command in ["run", "plan", "bench", "doctor", "inspect", "report", "support", "completions"] {
        check(&format!("help-{command}"), &said(&[command, "--help"]));
    }
    check("help", &said(&["--help"]));
}

#[test]
fn errors_say_what_to_do() {
    let errors = [
        &["run", "missing.gguf", "--prompt", "x"][..],
        &["run", "missing.gguf"],
        &["run", "m.gguf", "--prompt", "x", "--ram", "8 bananas"],
        &["run", "m.gguf", "--prompt", "x", "--ram", "0"],
        &["run", "m.gguf", "--prompt", "x", "--ram", "-5"],
        &["run", "m.gguf", "--prompt", "x", "--enforce-ram"],
        &["run", "m.gguf", "--prompt", "x", "--device", "gpu"],
        &["run", "m.gguf", "--prompt", "x", "--temperature", "NaN"],
        &["run", "m.gguf", "--prompt", "x", "--prompt-file", "y"],
        &["run", "m.gguf", "--prompt", "x", "--residency-policy", "fast"],
        &["run", "m.gguf", "--prompt", "x", "--residency-reserve", "1M"],
        &["run", "m.gguf", "--prompt", "x", "--graph-trace-events", "10"],
        &["bench", "m.gguf"],
        &["inspect", "missing.gguf"],
        &["plan", "missing.gguf"],
        &["report", "show", "missing.json"],
        &["report", "check", "missing.json"],
        &["report", "check", "missing.json", "--min-decode-rate", "nan"],
    ];
    check("errors", &errors.map(said).join("\n"));
}
