//! What people type: sizes, devices, and whole command lines, one argument a line.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use ramforge::cli::{Cli, Command, RunArgs};
use ramforge::engine::DeviceChoice;
use ramforge::{ErrorKind, size};
use ramforge_fuzz::bounded;

/// What the arguments may cost whatever their size, and for each of their bytes; the description of all
/// options is among it.
const FIXED_BYTES: usize = 4 << 20;
const BYTES_PER_BYTE: usize = 256;

fuzz_target!(|input: &[u8]| {
    bounded(FIXED_BYTES + BYTES_PER_BYTE * input.len(), || {
        if let Ok(text) = str::from_utf8(input) {
            check_size(text);
            check_device(text);
        }
        check_arguments(input);
    });
});

/// What is a size is one when it is printed, too.
fn check_size(text: &str) {
    match size::parse(text) {
        Ok(bytes) => {
            assert!(bytes > 0);
            assert_eq!(size::parse(&bytes.to_string()).ok(), Some(bytes));
            assert!(size::exact(bytes).contains(&format!("{bytes} bytes")));
            // Two decimals of what is at least 1 are less than a hundredth off; the largest round up to 2^64.
            match size::parse(&size::readable(bytes)) {
                Ok(read) => assert!(read.abs_diff(bytes) <= bytes / 100, "{bytes}: {read}"),
                Err(_) => assert!(bytes > u64::MAX / 100 * 99, "{bytes}"),
            }
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Usage),
    }
}

fn check_device(text: &str) {
    if let Ok(device) = text.parse::<DeviceChoice>() {
        assert_eq!(device.to_string().parse(), Ok(device));
    }
}

fn check_arguments(input: &[u8]) {
    let lines = input.split(|&byte| byte == b'\n').map(OsStr::from_bytes);
    match Cli::try_parse_from([OsStr::new("ramforge")].into_iter().chain(lines)) {
        Ok(Cli { command: Command::Run(run) }) => check_run(&run),
        Ok(Cli { command: Command::Plan(plan) }) => {
            assert!(plan.ram != Some(0) && plan.ctx != Some(0));
            assert!(plan.threads.is_none_or(|threads| (1..=512).contains(&threads)));
        }
        Ok(_) => {}
        Err(error) => {
            // Help and version end well, everything else is the user's mistake.
            assert!([0, 2].contains(&error.exit_code()), "{error}");
            assert!(!error.to_string().is_empty());
        }
    }
}

/// What the help text promises of every run.
fn check_run(run: &RunArgs) {
    let sizes = [run.ram, run.residency_target, run.residency_reserve, run.residency_prefetch];
    assert!(!sizes.contains(&Some(0)) && run.swap_limit.0 != Some(0));
    assert!(run.threads.is_none_or(|threads| (1..=512).contains(&threads)));
    assert!(run.ctx != Some(0));
    assert!(run.temperature.is_finite() && run.temperature >= 0.0);
    assert!([run.top_p, run.min_p].iter().all(|share| (0.0..=1.0).contains(share)));
    assert!(run.repeat_penalty.is_finite() && run.repeat_penalty > 0.0);
    assert!(run.prompt.is_none() || run.prompt_file.is_none());
    assert!(run.system.is_none() || run.chat);
    if run.enforce_ram {
        assert!(run.ram.is_some() && run.enforce_timeout.is_some_and(|timeout| !timeout.is_zero()));
    }
    assert!(run.enforce_ram || run.enforce_backend.is_none());
}
