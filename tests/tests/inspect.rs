//! `ramforge inspect` on a large file. Alone in its program: the kernel keeps one peak for all children of a process.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use ramforge_tests::{programs, shapes};

#[test]
fn thirteen_gigabytes_are_inspected_in_no_time_and_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    shapes::gptneox_20b_shape().write_sparse(&path).unwrap();
    assert!(path.metadata().unwrap().len() > 12_000_000_000);
    let time = |_| {
        let started = Instant::now();
        let output = programs::ramforge().unwrap().arg("inspect").arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        started.elapsed()
    };
    let fastest = (0..5).map(time).min().expect("five were made");
    let peak_kib = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    println!("{fastest:?}, {peak_kib} KiB at the peak");
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
    assert!(peak_kib < 32 << 10, "{peak_kib} KiB");
}
