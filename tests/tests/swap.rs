//! The tripwire under real swap pressure. It makes the whole machine swap, so it runs in a guest of
//! `tests/vm/run` and nowhere else.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ramforge::observe::host::Host;
use ramforge_tests::{programs, real};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A swap file that is in use while this lives.
struct SwapFile(PathBuf);

impl SwapFile {
    fn on(path: PathBuf, bytes: u64) -> Self {
        let file = File::create(&path).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        drop(file);
        for command in [
            vec!["fallocate", "--length", &bytes.to_string(), path.to_str().unwrap()],
            vec!["/sbin/mkswap", path.to_str().unwrap()],
            vec!["/sbin/swapon", path.to_str().unwrap()],
        ] {
            let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
            assert!(output.status.success(), "{command:?}: {output:?}");
        }
        Self(path)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let _ = Command::new("/sbin/swapoff").arg(&self.0).status();
    }
}

fn swapped() -> u64 {
    let host = Host::sample(Path::new("/proc")).unwrap();
    host.swap_bytes - host.swap_free_bytes
}

/// What was seen of the machine's swap.
struct Seen {
    /// The most that was in use.
    most: u64,
    /// How long it can have been more than the limit, until the end: from the last look before.
    above: Duration,
}

/// Looks until `end`.
fn watch(limit: u64, end: &AtomicBool) -> Seen {
    let (mut most, mut below, mut longest) = (0, Instant::now(), Duration::ZERO);
    let mut crossed = None;
    while !end.load(Ordering::Relaxed) {
        let used = swapped();
        most = most.max(used);
        if used > limit {
            crossed.get_or_insert(below);
        }
        // What happens between two looks is over by the second.
        longest = longest.max(below.elapsed());
        below = Instant::now();
        thread::sleep(Duration::from_millis(20));
    }
    Seen { most, above: crossed.map_or(longest, |crossed| crossed.elapsed()) }
}

#[test]
fn a_run_that_makes_the_machine_swap_is_stopped() {
    let guest = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("User Mode Linux"));
    if !guest {
        println!(
            "SKIP a_run_that_makes_the_machine_swap_is_stopped: it runs in a guest of tests/vm/run only"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = real::smollm2().unwrap();
    let _swap = SwapFile::on(folder.path().join("swap"), 3 * GIB / 2);
    let before = swapped();
    // A KV cache of 1.4 GiB on a machine with half a GiB.
    let report = folder.path().join("report.json");
    let mut command = programs::ramforge().unwrap();
    command.arg("run").arg(&model).args(["--prompt", "a", "--ctx", "65536", "--threads", "1"]);
    command.args(["--residency-policy", "off", "--no-fit-guard", "--residency-report-json"]).arg(&report);

    let end = AtomicBool::new(false);
    let (output, seen) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(before + 512 * MIB, &end));
        let output = command.output().unwrap();
        end.store(true, Ordering::Relaxed);
        (output, watcher.join().unwrap())
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    for part in ["the machine had swapped out", "KV cache for 65536 tokens", "hint: --swap-limit"] {
        assert!(said.contains(part), "{part:?}: {said}");
    }
    let report: serde_json::Value = serde_json::from_reader(File::open(&report).unwrap()).unwrap();
    assert_eq!(report["outcome"]["result"], "refused", "{report:#}");
    let growth = report["swap"]["growth_bytes"].as_u64().unwrap();
    assert!(growth > 512 * MIB && growth < GIB, "{growth}");
    assert!(seen.most < before + GIB, "{} were swapped out", seen.most);
    assert!(seen.above < Duration::from_secs(2), "{:?}", seen.above);
    // The memory is returned with the process.
    assert!(swapped() < before + 100 * MIB, "{} are still swapped out", swapped());
    println!("gone at most {:?} after the limit, at {growth} bytes: {said}", seen.above);
}

#[test]
fn on_a_machine_without_swap_the_tripwire_says_it_is_idle() {
    if Host::sample(Path::new("/proc")).unwrap().swap_bytes > 0 {
        println!("SKIP on_a_machine_without_swap_the_tripwire_says_it_is_idle: this machine has swap");
        return;
    }
    let model = real::smollm2().unwrap();
    let arguments = ["run", model.to_str().unwrap(), "--prompt", "a", "--max-tokens", "1", "--ram", "4G"];
    let (output, report) = programs::ramforge_with_report(&arguments).unwrap();
    assert!(output.status.success());
    assert_eq!(report["swap"]["idle_reason"], "this machine has no swap");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
