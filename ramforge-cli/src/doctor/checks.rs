//! The checks, in the order of the report.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forge_core::backend::Origin;
use procfs::{CpuInfo, FromRead};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use rustix::process::{Resource, getrlimit};

use super::{Examination, Finding};
use crate::observe::host::{Host, Pressure};
use crate::plan::{Budget, Plan};
use crate::report::Backend;
use crate::size::readable;
use crate::supervisor::Readiness;
use crate::{Error, Result};

/// How much of a model is read to measure the disk, and for how long at most.
const PROBE_BYTES: u64 = 64 << 20;
const PROBE_TIME: Duration = Duration::from_millis(500);

/// Bytes in one read of the probe, and what its buffer and offsets must be multiples of.
const READ_BYTES: usize = 4 << 20;
const ALIGNMENT: usize = 4096;

/// Slower disks than this make streaming no fun: a gigabyte then takes more than five seconds.
const SLOW_BYTES_A_SECOND: f64 = 200e6;

/// Less free memory than this is little for any model.
const LITTLE_MEMORY: u64 = 512 << 20;

/// What is known about the model when the checks begin.
#[derive(Debug)]
pub struct ModelFacts {
    /// What its header says, in a line, or what is wrong with it.
    pub header: Result<String>,
    /// The model's first file, if its header is valid.
    pub file: Option<PathBuf>,
    /// How it would run.
    pub plan: Option<Result<Plan>>,
}

/// Makes every check. `features` are those that the native code uses; the proc and sys file systems are
/// mounted at `proc` and `sys`.
pub fn examine(
    origin: &Origin,
    features: &[&str],
    backends: Result<Vec<Readiness>>,
    budget: Result<Budget>,
    model: Option<&ModelFacts>,
    (proc, sys): (&Path, &Path),
) -> Examination {
    let mut findings = vec![build(origin), cpu(features, proc)];
    findings.extend(enforcement(backends));
    findings.push(memory(budget));
    findings.push(swap(proc));
    findings.push(pressure(proc));
    findings.push(huge_pages(sys));
    findings.push(locked_memory());
    findings.extend(files(model));
    Examination::new(findings)
}

fn build(origin: &Origin) -> Finding {
    let patches = match origin.patches {
        [] => "no patches".to_owned(),
        patches => format!("patches {}", patches.join(", ")),
    };
    let text = format!(
        "llama.cpp {} and ggml {} from {} {}, {patches}",
        origin.llama_cpp, origin.ggml, origin.source, origin.source_version
    );
    match origin.patches {
        [] => {
            Finding::warning("native-build", text, "build with the patch series: build-scripts/patches apply")
        }
        _ => Finding::ok("native-build", text),
    }
}

/// What the kernel calls a feature that the native library calls otherwise.
fn kernel_names(feature: &str) -> &'static [&'static str] {
    match feature {
        "avx" => &["avx"],
        "avx2" => &["avx2"],
        "avx-vnni" => &["avx_vnni"],
        "avx512" => &["avx512f"],
        "avx512-vbmi" => &["avx512vbmi", "avx512_vbmi"],
        "avx512-vnni" => &["avx512_vnni"],
        "avx512-bf16" => &["avx512_bf16"],
        "amx-int8" => &["amx_int8"],
        "bmi2" => &["bmi2"],
        "f16c" => &["f16c"],
        "fma" => &["fma"],
        "neon" => &["asimd", "neon"],
        "dotprod" => &["asimddp"],
        "matmul-int8" => &["i8mm"],
        "sve" => &["sve"],
        _ => &[],
    }
}

fn cpu(features: &[&str], proc: &Path) -> Finding {
    let id = "cpu-features";
    let used = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let flags = CpuInfo::from_file(proc.join("cpuinfo")).ok().and_then(|info| {
        let fields = info.fields.get("flags").or_else(|| info.fields.get("Features")).cloned();
        fields.or_else(|| {
            info.cpus.first()?.get("flags").or_else(|| info.cpus.first()?.get("Features")).cloned()
        })
    });
    let Some(flags) = flags else {
        return Finding::note(
            id,
            format!("the native code uses {used}; the kernel does not say what there is"),
        );
    };
    let has = |feature: &str| {
        let names = kernel_names(feature);
        names.is_empty() || flags.split_whitespace().any(|flag| names.contains(&flag))
    };
    let missing: Vec<&str> = features.iter().copied().filter(|feature| !has(feature)).collect();
    if !missing.is_empty() {
        return Finding::failure(
            id,
            format!("the native code uses {}, which this processor does not have", missing.join(", ")),
            "build on this machine, or with the feature portable",
        );
    }
    let better = ["avx2", "fma", "f16c", "neon"].into_iter().filter(|feature| has(feature));
    let unused: Vec<&str> = better.filter(|feature| !features.contains(feature)).collect();
    match unused.as_slice() {
        [] => Finding::ok(id, format!("the native code uses {used}")),
        unused => Finding::warning(
            id,
            format!("this processor has {}, and the native code does not use it", unused.join(", ")),
            "build on this machine, for this machine",
        ),
    }
}

fn enforcement(backends: Result<Vec<Readiness>>) -> Vec<Finding> {
    let backends = match backends {
        Ok(backends) => backends,
        Err(error) => {
            let remedy = "mount the proc file system";
            return vec![Finding::failure("enforcement", error.to_string(), remedy)];
        }
    };
    let usable: Vec<Backend> =
        backends.iter().filter(|one| one.obstacle.is_none()).map(|one| one.backend).collect();
    let summary = match usable.first() {
        Some(first) => Finding::ok("enforcement", format!("--enforce-ram would use {first}")),
        None => Finding::warning(
            "enforcement",
            "nothing here can make the kernel enforce a budget",
            "see what the back ends below need, or run without --enforce-ram",
        ),
    };
    let each = backends.into_iter().map(|Readiness { backend, obstacle }| match obstacle {
        None => Finding::ok(&backend.to_string(), "usable"),
        Some((reason, remedy)) => {
            Finding { remedy: Some(remedy), ..Finding::note(&backend.to_string(), reason) }
        }
    });
    std::iter::once(summary).chain(each).collect()
}

fn memory(budget: Result<Budget>) -> Finding {
    let id = "free-memory";
    match budget {
        Err(error) => Finding::failure(id, error.to_string(), "mount the proc file system"),
        Ok(budget) => {
            let bounds: Vec<String> = budget
                .bounds
                .iter()
                .map(|bound| format!("{}: {}", bound.name, readable(bound.bytes)))
                .collect();
            let free = budget.bounds.first().map_or(budget.bytes, |bound| bound.bytes);
            let text = bounds.join("; ");
            if free < LITTLE_MEMORY {
                Finding::warning(id, text, "end other programs, or raise the limit of the group named first")
            } else {
                Finding::ok(id, text)
            }
        }
    }
}

fn swap(proc: &Path) -> Finding {
    let id = "swap";
    match Host::sample(proc) {
        Err(error) => Finding::failure(id, error.to_string(), "mount the proc file system"),
        Ok(host) if host.swap_bytes == 0 => {
            Finding::ok(id, "there is none: nothing can be swapped out, and the tripwire is idle")
        }
        Ok(host) => {
            let used = host.swap_bytes.saturating_sub(host.swap_free_bytes);
            let text = format!("{} of {} in use", readable(used), readable(host.swap_bytes));
            if used > host.swap_bytes / 2 {
                Finding::warning(id, text, "end programs that were swapped out before a large run")
            } else {
                Finding::ok(id, text)
            }
        }
    }
}

fn pressure(proc: &Path) -> Finding {
    let id = "memory-pressure";
    match Pressure::sample(proc) {
        None => Finding::note(id, "this kernel does not count it: the tripwire looks at swap alone"),
        Some(pressure) => {
            let text = format!(
                "some task waited for memory in {} % of the last 10 seconds, every task in {} %",
                pressure.some_avg10, pressure.full_avg10
            );
            if pressure.full_avg10 > 10.0 {
                Finding::warning(id, text, "the machine is short of memory now: wait, or end other programs")
            } else {
                Finding::ok(id, text)
            }
        }
    }
}

fn huge_pages(sys: &Path) -> Finding {
    let id = "transparent-huge-pages";
    let path = sys.join("kernel/mm/transparent_hugepage/enabled");
    match fs::read_to_string(&path) {
        Err(_) => Finding::note(id, "this kernel has none"),
        Ok(text) => {
            let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
            match chosen {
                Some((chosen, _)) => Finding::ok(id, chosen),
                None => Finding::note(id, format!("{} says {:?}", path.display(), text.trim())),
            }
        }
    }
}

fn locked_memory() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let text = limit.map_or("no limit".to_owned(), |bytes| format!("at most {}", readable(bytes)));
    Finding::ok("locked-memory", format!("{text}; runs lock none"))
}

fn files(model: Option<&ModelFacts>) -> Vec<Finding> {
    const IDS: [&str; 4] = ["model-header", "direct-io", "disk-bandwidth", "model-fit"];
    let skipped = |ids: &[&str], why: &str| -> Vec<Finding> {
        ids.iter().map(|id| Finding::new(id, super::Status::Skipped, why)).collect()
    };
    let Some(model) = model else { return skipped(&IDS, "give a model to look at: ramforge doctor MODEL") };
    let header = match &model.header {
        Ok(text) => Finding::ok(IDS[0], text),
        Err(error) => Finding::failure(IDS[0], error.to_string(), first_hint(error, "use another file")),
    };
    let mut findings = vec![header];
    let Some(file) = &model.file else {
        findings.extend(skipped(&IDS[1..], "the header is not valid"));
        return findings;
    };
    findings.extend(disk(file));
    findings.push(match &model.plan {
        None => Finding::new(IDS[3], super::Status::Skipped, "it was not planned"),
        Some(Err(error)) => {
            Finding::failure(IDS[3], error.to_string(), first_hint(error, "`ramforge plan` says more"))
        }
        Some(Ok(plan)) => fit(plan),
    });
    findings
}

fn first_hint(error: &Error, otherwise: &str) -> String {
    error.hints().first().map_or(otherwise, |hint| hint).to_owned()
}

fn fit(plan: &Plan) -> Finding {
    let id = "model-fit";
    let place = format!("{} tokens of context in {}", plan.context_tokens, readable(plan.budget.bytes));
    match (plan.best, &plan.bottleneck) {
        (Some(way), Some(bottleneck)) if way.is_resident() => {
            Finding::ok(id, format!("{place}: {}; its speed is limited by {bottleneck}", way.name()))
        }
        (Some(way), Some(bottleneck)) => Finding::warning(
            id,
            format!("{place}: {}; its speed is limited by {bottleneck}", way.name()),
            "a smaller model or context, or more free memory; `ramforge plan` has the sums",
        ),
        _ => Finding::failure(
            id,
            format!("{place}: it does not run"),
            format!("free memory until {} are to be had", readable(plan.smallest_ram_bytes)),
        ),
    }
}

/// Whether reads can bypass the page cache, and how fast they are: a short look at the model's beginning.
fn disk(file: &Path) -> [Finding; 2] {
    let direct = open(file, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
        .map(File::from)
        .and_then(|file| read(&file));
    let speed = |(bytes, took): (u64, Duration)| bytes as f64 / took.as_secs_f64().max(1e-9);
    match direct {
        Ok(read) => {
            let text = format!("{} a second, in reads past the page cache", readable(speed(read) as u64));
            let bandwidth = if speed(read) < SLOW_BYTES_A_SECOND {
                Finding::warning("disk-bandwidth", text, "put the model on a faster disk")
            } else {
                Finding::ok("disk-bandwidth", text)
            };
            [Finding::ok("direct-io", "reads can bypass the page cache"), bandwidth]
        }
        Err(error) => [
            Finding::warning(
                "direct-io",
                format!("reads cannot bypass the page cache: {error}"),
                "put the model on a local disk; streaming works without, and slower",
            ),
            Finding::new(
                "disk-bandwidth",
                super::Status::Skipped,
                "it can be measured past the page cache only",
            ),
        ],
    }
}

/// Reads from the beginning of `file` until enough was read or it took long enough.
fn read(file: &File) -> io::Result<(u64, Duration)> {
    let mut memory = vec![0_u8; READ_BYTES + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[start..start + READ_BYTES];
    let started = Instant::now();
    let mut bytes = 0;
    while bytes < PROBE_BYTES && started.elapsed() < PROBE_TIME {
        match pread(file, &mut *buffer, bytes)? {
            0 => break,
            read => bytes += read as u64,
        }
    }
    Ok((bytes, started.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;
    use crate::plan::Bound;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn features_the_processor_lacks_are_a_failure_and_unused_ones_a_warning() {
        let proc = machine(&[("cpuinfo", "processor\t: 0\nflags\t\t: fpu avx avx2 fma f16c bmi2\n\n")]);
        let check = |features: &[&str]| cpu(features, proc.path());
        assert_eq!(check(&["avx", "avx2", "fma", "f16c"]).status, Status::Ok);
        let missing = check(&["avx2", "fma", "f16c", "avx512-vnni"]);
        assert_eq!(missing.status, Status::Failure);
        assert!(missing.message.contains("avx512-vnni") && missing.remedy.is_some(), "{missing:?}");
        let unused = check(&["avx"]);
        assert_eq!(unused.status, Status::Warning);
        assert!(unused.message.contains("avx2, fma, f16c"), "{unused:?}");
        assert_eq!(cpu(&["avx"], Path::new("/nonexistent")).status, Status::Note);
    }

    #[test]
    fn no_back_end_is_a_warning_with_the_obstacles_as_notes() {
        let obstacle = Some(("it is read-only".to_owned(), "mount it read-write".to_owned()));
        let all = [Backend::CgroupV2, Backend::CgroupV1];
        let backends = all.map(|backend| Readiness { backend, obstacle: obstacle.clone() });
        let findings = enforcement(Ok(backends.to_vec()));
        assert_eq!(findings[0].status, Status::Warning);
        assert_eq!((findings[1].id.as_str(), findings[1].status), ("cgroup-v2", Status::Note));
        assert_eq!(findings[1].remedy.as_deref(), Some("mount it read-write"));
        let usable = Readiness { backend: Backend::CgroupV1, obstacle: None };
        let findings = enforcement(Ok(vec![usable]));
        assert_eq!(findings[0].message, "--enforce-ram would use cgroup-v1");
        assert!(findings.iter().all(|finding| finding.status == Status::Ok));
    }

    #[test]
    fn little_memory_is_a_warning() {
        let budget = |bytes| {
            let bound = Bound { name: "this".to_owned(), bytes, source: String::new() };
            Ok(Budget { bytes, reason: String::new(), bounds: vec![bound] })
        };
        assert_eq!(memory(budget(100 << 20)).status, Status::Warning);
        assert_eq!(memory(budget(8 << 30)).status, Status::Ok);
    }

    #[test]
    fn the_chosen_mode_of_huge_pages_is_named() {
        let sys = machine(&[("kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")]);
        assert_eq!(huge_pages(sys.path()).message, "madvise");
        assert_eq!(huge_pages(Path::new("/nonexistent")).status, Status::Note);
    }

    #[test]
    fn pressure_that_stops_everything_is_a_warning() {
        let line = |full: &str| {
            format!(
                "some avg10=40.00 avg60=0.00 avg300=0.00 total=0\nfull avg10={full} avg60=0.00 avg300=0.00 total=0\n"
            )
        };
        let proc = machine(&[("pressure/memory", &line("30.50"))]);
        assert_eq!(pressure(proc.path()).status, Status::Warning);
        let proc = machine(&[("pressure/memory", &line("0.00"))]);
        assert_eq!(pressure(proc.path()).status, Status::Ok);
        assert_eq!(pressure(Path::new("/nonexistent")).status, Status::Note);
    }

    #[test]
    fn without_a_model_its_checks_are_skipped() {
        let findings = files(None);
        assert_eq!(findings.len(), 4);
        assert!(findings.iter().all(|finding| finding.status == Status::Skipped));
    }
}
