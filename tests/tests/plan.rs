//! Plans and refusals of the real program, against what runs then hold and what the kernel shows.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use ramforge::observe::cgroup::Level;
use ramforge::observe::host::{Groups, Host};
use ramforge::plan::{self, Budget, Plan};
use ramforge_tests::gguf_writer::TensorType;
use ramforge_tests::shapes::{self, ModelSpec};
use ramforge_tests::{cache, programs, real, schema};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn planned(model: &Path, arguments: &[&str]) -> Value {
    let output = programs::ramforge().unwrap().arg("plan").arg(model).args(arguments).arg("--json").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Has the kernel forget the file's pages, as far as nobody else uses them.
fn forget(model: &Path) {
    let file = File::open(model).unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}

/// A copy of `model` in `folder`: the pages of a file that another test has mapped are on that test's account.
fn own(model: io::Result<PathBuf>, folder: &Path) -> PathBuf {
    let model = model.unwrap();
    let copy = folder.join(model.file_name().unwrap());
    io::copy(&mut File::open(&model).unwrap(), &mut File::create(&copy).unwrap()).unwrap();
    File::open(&copy).unwrap().sync_all().unwrap();
    copy
}

/// What a model is called, and its file.
fn models(folder: &Path) -> Vec<(&'static str, PathBuf)> {
    let generated = |spec: ModelSpec| (spec.name, cache::model(&spec).unwrap());
    let middling = |name, base: ModelSpec| ModelSpec {
        name,
        layers: 8,
        embd: 1024,
        ff: 2816,
        heads: 16,
        kv_heads: 4,
        head_dim: 64,
        vocab: 16_000,
        context: 4096,
        ..base
    };
    vec![
        ("smollm2", own(real::smollm2(), folder)),
        ("gemma3", own(real::gemma3(), folder)),
        generated(middling("llama-100m", shapes::tiny_llama())),
        generated(middling("qwen2-100m", ModelSpec { kind: TensorType::Q4_0, ..shapes::tiny_qwen2() })),
        generated(shapes::pythia_70m_shape()),
        generated(ModelSpec { ff: 512, ..middling("moe-130m", shapes::tiny_moe()) }),
    ]
}

/// A run of so many characters of prompt that everything fits into, with the kernel counting.
fn resident(model: &Path, characters: usize, context: u32) -> (Output, Value) {
    let text = "The capital of France is Paris, and the river through it is the Seine. ".repeat(200);
    let (model, context) = (model.to_str().unwrap(), context.to_string());
    let arguments = ["run", model, "--prompt", &text[..characters], "-n", "2", "--ctx", &context];
    let budget = ["--ram", "8G", "--enforce-ram", "--residency-policy", "off"];
    programs::ramforge_with_report(&[&arguments[..], &budget].concat()).unwrap()
}

#[test]
fn the_terms_add_up_to_the_peak_of_a_resident_run() {
    let skip = |why| println!("SKIP the_terms_add_up_to_the_peak_of_a_resident_run: {why}");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (name, model) in models(folder.path()) {
        // The buffers are touched as far as the largest batch needs them: the prompt should make a whole one.
        let (output, report) = resident(&model, 500, 512);
        if text(&output.stderr).contains("nothing here can make the kernel enforce") {
            return skip("no back end measures a peak here");
        }
        let tokens = report["output"]["prompt_tokens"].as_f64().unwrap_or_else(|| panic!("{report:#}"));
        for context in [512_u32, 1024, 2048] {
            let wanted = f64::from((context - 8).min(600));
            let (output, report) = resident(&model, (500.0 * wanted / tokens * 0.98) as usize, context);
            assert!(output.status.success(), "{name}: {}", text(&output.stderr));
            let Some(measured) = report["enforcement"]["peak_bytes"].as_u64() else {
                return skip("this kernel shows no peak");
            };
            let plan = planned(&model, &["--ctx", &context.to_string(), "--ram", "8G"]);
            let terms = plan["terms"].as_array().unwrap();
            let sum: u64 = terms.iter().map(|term| term["bytes"].as_u64().unwrap()).sum();
            let predicted = plan["peak_bytes"].as_u64().unwrap();
            assert_eq!(sum, predicted);
            let off = (predicted as f64 - measured as f64) / measured as f64 * 100.0;
            println!(
                "{name}, context {context}, prompt {}: predicted {predicted}, measured {measured}, {off:+.2} %",
                report["output"]["prompt_tokens"]
            );
            assert!((-2.0..=5.0).contains(&off), "{name}, context {context}: {off:+.2} %: {terms:#?}");
        }
    }
}

/// A machine whose kernel's files are in a folder.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new(available: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Self { folder };
        let kib = |bytes: u64| format!("{} kB", bytes / 1024);
        let zeros: String = [
            "Buffers",
            "Cached",
            "SwapCached",
            "Active",
            "Inactive",
            "SwapTotal",
            "SwapFree",
            "Dirty",
            "Writeback",
            "Mapped",
            "Slab",
            "Committed_AS",
            "VmallocTotal",
            "VmallocUsed",
            "VmallocChunk",
        ]
        .iter()
        .map(|name| format!("{name}: 0 kB\n"))
        .collect();
        let available = available.map_or(String::new(), |bytes| format!("MemAvailable: {}\n", kib(bytes)));
        machine.file(
            "proc/meminfo",
            &format!("MemTotal: {}\nMemFree: 0 kB\n{available}{zeros}", kib(880 * GIB)),
        );
        machine
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Mounts a version 2 hierarchy, of which the process sees `root` as the root and is in `group`.
    fn v2(self, root: &str, group: &str) -> Self {
        let mount = self.folder.path().join("cgroup");
        self.file("proc/self/cgroup", &format!("0::{group}\n"));
        let line = format!("26 23 0:22 {root} {} rw shared:4 - cgroup2 cgroup2 rw\n", mount.display());
        self.file("proc/self/mountinfo", &line);
        self
    }

    fn v1(self, root: &str, group: &str) -> Self {
        let mount = self.folder.path().join("cgroup");
        self.file("proc/self/cgroup", &format!("4:memory:{group}\n0::/\n"));
        let line = format!("35 31 0:32 {root} {} rw - cgroup cgroup rw,memory\n", mount.display());
        self.file("proc/self/mountinfo", &line);
        self
    }

    /// Adds the files of a version 2 group: its limit, use, and the file cache in it.
    fn group(self, dir: &str, max: &str, current: u64, cache: u64) -> Self {
        self.file(&format!("cgroup/{dir}/memory.max"), &format!("{max}\n"));
        self.file(&format!("cgroup/{dir}/memory.current"), &format!("{current}\n"));
        let stat = format!("anon 0\ninactive_file {}\nactive_file {}\n", cache / 2, cache - cache / 2);
        self.file(&format!("cgroup/{dir}/memory.stat"), &stat);
        self
    }

    fn budget(&self, ram: Option<u64>) -> Budget {
        let proc = self.folder.path().join("proc");
        let levels = Level::sample_all(&Groups::own(&proc).unwrap()).unwrap();
        Budget::new(&Host::sample(&proc).unwrap(), &levels, ram)
    }

    /// What is free, in bytes.
    fn free(&self) -> u64 {
        self.budget(None).bounds[0].bytes
    }
}

#[test]
fn what_is_free_is_the_least_that_anything_allows() {
    // No limit anywhere.
    let machine =
        Machine::new(Some(20 * GIB)).v2("/", "/a/b").group("a/b", "max", GIB, 0).group("a", "max", GIB, 0);
    assert_eq!(machine.free(), 20 * GIB);
    // A limit below what the machine has, and what is used of it.
    let limit = (4 * GIB).to_string();
    let machine = Machine::new(Some(20 * GIB)).v2("/", "/a/b").group("a/b", &limit, GIB, 0);
    assert_eq!(machine.free(), 3 * GIB);
    // The limit of a group far above counts too.
    let machine = Machine::new(Some(20 * GIB))
        .v2("/", "/a/b/c")
        .group("a/b/c", "max", GIB, 0)
        .group("a/b", &(10 * GIB).to_string(), GIB, 0)
        .group("a", &(2 * GIB).to_string(), 3 * GIB / 2, 0);
    assert_eq!(machine.free(), GIB / 2);
    assert!(machine.budget(None).reason.contains("cgroup/a still allows"), "{:?}", machine.budget(None));
    // A group that is full of file cache has all of it to give.
    let machine = Machine::new(Some(20 * GIB)).v2("/", "/a").group("a", &limit, 4 * GIB, 4 * GIB - 100 * MIB);
    assert_eq!(machine.free(), 4 * GIB - 100 * MIB);
    // A group over its limit allows nothing.
    let machine = Machine::new(Some(20 * GIB)).v2("/", "/a").group("a", &limit, 5 * GIB, 0);
    assert_eq!(machine.free(), 0);
    // What slows a group down bounds it as well.
    let machine = Machine::new(Some(20 * GIB)).v2("/", "/a").group("a", "max", GIB, 0);
    machine.file("cgroup/a/memory.high", &(3 * GIB).to_string());
    assert_eq!(machine.free(), 2 * GIB);
}

#[test]
fn a_container_is_bounded_by_its_own_limit_and_not_by_the_host() {
    // Its own part of the hierarchy, under its own root.
    let limit = (90 * GIB).to_string();
    let machine = Machine::new(Some(700 * GIB)).v2("/", "/").group("", &limit, 10 * GIB, 5 * GIB);
    assert_eq!(machine.free(), 85 * GIB);
    // The host's path of the group, of which only the group itself is shown.
    let machine =
        Machine::new(Some(700 * GIB)).v2("/docker/abc", "/docker/abc").group("", &limit, 10 * GIB, 0);
    assert_eq!(machine.free(), 80 * GIB);
    // The host's path, and a mount that does not show it.
    let machine = Machine::new(Some(700 * GIB)).v2("/", "/docker/abc").group("", &limit, 10 * GIB, 0);
    assert_eq!(machine.free(), 80 * GIB);
}

#[test]
fn version_1_has_other_names_for_the_same_facts() {
    let unlimited = "9223372036854771712";
    let machine = |limit: &str| {
        let machine = Machine::new(Some(20 * GIB)).v1("/", "/job");
        machine.file("cgroup/job/memory.limit_in_bytes", limit);
        machine.file("cgroup/job/memory.usage_in_bytes", &(2 * GIB).to_string());
        machine.file(
            "cgroup/job/memory.stat",
            &format!("cache 0\ninactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file {}\n", GIB / 2),
        );
        machine.file("cgroup/memory.limit_in_bytes", unlimited);
        machine
    };
    assert_eq!(machine(&(4 * GIB).to_string()).free(), 3 * GIB + GIB / 2);
    assert_eq!(machine(unlimited).free(), 20 * GIB);
}

#[test]
fn files_that_are_missing_bound_nothing() {
    // A root group of version 2 has no memory.max; an old kernel has no MemAvailable.
    let machine = Machine::new(Some(20 * GIB)).v2("/", "/");
    machine.file("cgroup/memory.stat", "anon 5\n");
    assert_eq!(machine.free(), 20 * GIB);
    let machine = Machine::new(None).v2("/", "/");
    assert_eq!(machine.free(), 880 * GIB);
    // A limit without the use of it allows, as far as is known, all of it.
    let machine = Machine::new(Some(20 * GIB)).v2("/", "/a");
    machine.file("cgroup/a/memory.max", &GIB.to_string());
    assert_eq!(machine.free(), GIB);
}

#[test]
fn the_budget_is_what_the_user_says_or_a_share_of_what_is_free() {
    let machine = Machine::new(Some(20 * GIB)).v2("/", "/");
    assert_eq!(machine.budget(Some(8 * GIB)).bytes, 8 * GIB);
    assert_eq!(machine.budget(Some(8 * GIB)).reason, "--ram");
    let more_than_there_is = machine.budget(Some(30 * GIB));
    assert_eq!(more_than_there_is.bytes, 20 * GIB);
    assert!(more_than_there_is.reason.contains("less than --ram"), "{more_than_there_is:?}");
    let share = machine.budget(None);
    assert_eq!(share.bytes, 20 * GIB / 100 * 70);
    assert!(share.reason.starts_with("70 % of what this machine has available"), "{share:?}");
}

/// A run, how long it took, and the bytes it and its processes read, by the kernel's counts.
fn counted(arguments: &[&str]) -> (Output, Duration, u64) {
    let program = programs::ramforge().unwrap();
    let started = Instant::now();
    // A shell's own counters have those of every process it has waited for.
    let script = "\"$@\"; code=$?; cat /proc/$$/io; exit $code";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(program.get_program())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let took = started.elapsed();
    let counters = text(&output.stdout);
    let counter = |name: &str| -> u64 {
        let line = counters.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim().parse().unwrap()
    };
    let read = counter("rchar:").max(counter("read_bytes:"));
    (output, took, read)
}

fn swapped_out() -> io::Result<u64> {
    let vmstat = fs::read_to_string("/proc/vmstat")?;
    let line = vmstat.lines().find_map(|line| line.strip_prefix("pswpout "));
    line.and_then(|number| number.parse().ok()).ok_or_else(|| io::Error::other("no pswpout"))
}

#[test]
fn a_model_four_times_the_budget_is_refused_with_the_sum_and_without_reading_it() {
    let model = real::smollm2().unwrap();
    forget(&model);
    let before = swapped_out().unwrap();
    let run = ["run", model.to_str().unwrap(), "--prompt", "a", "--ram", "23M"];
    // Other tests take turns with this one: the fastest of a few is what the program takes.
    let (output, took, read) =
        (0..3).map(|_| counted(&run)).min_by_key(|(_, took, _)| *took).expect("three were made");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(read < 32 * MIB, "{read}");
    assert_eq!(swapped_out().unwrap(), before);
    let said = text(&output.stderr);
    for part in ["refused before loading", "KV cache for 512 tokens", "the budget is 23 MiB", "hint: --ram "]
    {
        assert!(said.contains(part), "{part:?}: {said}");
    }
    println!("{took:?}, {read} bytes read: {said}");
}

#[test]
fn a_context_too_large_is_refused_with_the_largest_that_fits_which_then_runs() {
    let model = real::smollm2().unwrap();
    let run = |context: &str| {
        let arguments = ["run", model.to_str().unwrap(), "--prompt", "The capital of France is", "-n", "3"];
        let budget = ["--ctx", context, "--ram", "512M", "--residency-policy", "off"];
        programs::ramforge_with_report(&[&arguments[..], &budget].concat()).unwrap()
    };
    let (output, report) = run("131072");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(report["outcome"]["result"], "refused");
    assert_eq!(report["admission"]["verdict"], "refused");
    let terms = report["admission"]["terms"].as_array().unwrap();
    assert!(terms.iter().any(|term| term["name"] == "KV cache for 131072 tokens"), "{report:#}");
    let said = text(&output.stderr);
    let hint = said.lines().find_map(|line| line.trim().strip_prefix("hint: --ctx ")).expect(&said);
    let largest = hint.split(' ').next().unwrap();
    let (output, report) = run(largest);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(report["admission"]["verdict"], "kernel-paging");
    // A little more might work, with a warning; much more cannot.
    let (output, _) = run(&(largest.parse::<u32>().unwrap() + 2048).to_string());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn a_context_that_no_memory_holds_is_refused_before_it_costs_any() {
    let model = real::smollm2().unwrap();
    let model = model.to_str().unwrap();
    for context in ["300000000", "2000000000", "4294967295"] {
        for command in [&["plan", model][..], &["run", model, "--prompt", "a", "-n", "1"]] {
            let output =
                programs::ramforge().unwrap().args(command).args(["--ctx", context]).output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{said}");
            for part in [context, "for its KV cache", "was trained with", "hint: use a smaller --ctx"] {
                assert!(said.contains(part), "{part:?}: {said}");
            }
        }
    }
}

/// A prompt may nearly fill an argument; what is said of it to the helper does not fit into one.
#[test]
fn a_long_prompt_is_sized_as_well() {
    let model = real::smollm2().unwrap();
    let prompt = "a \"b\"\n".repeat(17_000);
    let arguments = ["run", model.to_str().unwrap(), "--prompt", &prompt, "--ctx", "131072", "--ram", "23M"];
    let (output, report) = programs::ramforge_with_report(&arguments).unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(report["admission"]["verdict"], "refused");
}

#[test]
fn a_run_that_cannot_be_sized_says_so() {
    let model = real::smollm2().unwrap();
    let arguments = ["run", model.to_str().unwrap(), "--prompt", "one two three", "--ctx", "1"];
    let (output, report) = programs::ramforge_with_report(&arguments).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("warning: the fit guard cannot size this run: the prompt has"), "{said}");
    assert_eq!(report["admission"]["verdict"], "unknown");
}

/// A run whose prompt comes through a pipe, and its report.
fn piped(arguments: &[&str], prompt: &str) -> (Output, Value) {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let mut command = programs::ramforge().unwrap();
    command.args(arguments).arg("--residency-report-json").arg(&report);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    run.stdin.take().unwrap().write_all(prompt.as_bytes()).unwrap();
    let output = run.wait_with_output().unwrap();
    (output, serde_json::from_reader(File::open(&report).unwrap()).unwrap())
}

#[test]
fn a_prompt_that_can_be_read_once_is_the_runs_to_read() {
    let model = real::smollm2().unwrap();
    let prompt = "The capital of France is";
    let arguments = ["run", model.to_str().unwrap(), "-n", "4", "--prompt-file", "/dev/stdin"];
    let (output, report) = piped(&arguments, prompt);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let arguments = ["run", model.to_str().unwrap(), "-n", "4", "--prompt", prompt];
    let (given, of_given) = programs::ramforge_with_report(&arguments).unwrap();
    assert_eq!(output.stdout, given.stdout);
    assert_eq!(report["output"]["prompt_tokens"], of_given["output"]["prompt_tokens"]);
}

#[test]
fn auto_is_decided_by_the_run_when_only_that_knows_the_prompt() {
    let model = real::smollm2().unwrap();
    let prompt = "The capital of France is Paris, and the river through it is the Seine. ".repeat(70);
    // The weights and a short prompt fit; the keys and values of the long one do not.
    let arguments = ["run", model.to_str().unwrap(), "-n", "2", "--ram", "170M", "--kv-type", "f32"];
    let (short, report) = piped(&arguments, "The capital of France is");
    assert!(short.status.success(), "{}", text(&short.stderr));
    assert!(report["streaming"].is_null(), "{report:#}");
    let (long, report) = piped(&arguments, &prompt);
    assert!(long.status.success(), "{}", text(&long.stderr));
    assert!(report["streaming"].is_object(), "{}", text(&long.stderr));
    assert_eq!(report["admission"]["verdict"], "unknown");
    let reason = report["admission"]["reason"].as_str().unwrap();
    assert!(reason.contains("with a prompt of one token it needs"), "{reason}");
}

#[test]
fn what_does_not_fit_with_its_own_prompt_is_refused_by_the_run() {
    let model = real::smollm2().unwrap();
    let prompt = "The capital of France is Paris, and the river through it is the Seine. ".repeat(70);
    let run = |ram: &str, more: &[&str]| {
        let arguments = ["run", model.to_str().unwrap(), "-n", "2", "--ram", ram, "--kv-type", "f32"];
        let (output, report) = piped(&[&arguments[..], more].concat(), &prompt);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        assert_eq!(report["outcome"]["result"], "refused", "{report:#}");
        assert_eq!(report["admission"]["verdict"], "unknown", "{report:#}");
    };
    run("170M", &["--fit", "off"]);
    run("60M", &["--residency-policy", "stream"]);
}

#[test]
fn a_file_whose_name_is_no_text_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(OsStr::from_bytes(b"m\xff.gguf"));
    fs::copy(cache::model(&shapes::tiny_llama()).unwrap(), &path).unwrap();
    for arguments in [&["plan"][..], &["run", "--prompt", "a"]] {
        let output = programs::ramforge().unwrap().args(arguments).arg(&path).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("m\\xFF.gguf") && said.contains("hint: rename"), "{said}");
    }
}

#[test]
fn a_slower_way_is_refused_with_fit_off_and_anything_is_loaded_without_the_guard() {
    let model = real::smollm2().unwrap();
    let run = |more: &[&str]| {
        let arguments = [
            "run",
            model.to_str().unwrap(),
            "--prompt",
            "The capital of France is",
            "-n",
            "3",
            "--ctx",
            "256",
        ];
        programs::ramforge_with_report(&[&arguments[..], more].concat()).unwrap()
    };
    let paging = ["--ram", "64M", "--residency-policy", "off"];
    let (output, report) = run(&paging);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("limited by the disk"), "{}", text(&output.stderr));
    assert_eq!(report["admission"]["verdict"], "kernel-paging");
    let (output, _) = run(&[&paging[..], &["--fit", "off"]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("to keep all weights in memory"), "{}", text(&output.stderr));
    let (output, report) = run(&["--ram", "8M", "--no-fit-guard", "--residency-policy", "off"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("warning: loading although it needs"), "{}", text(&output.stderr));
    assert_eq!(report["admission"]["verdict"], "overridden");
}

/// The model's header does not decide in the worker what the helper could not size.
#[test]
fn a_file_that_native_code_gives_up_on_is_explained_by_a_plan() {
    let spec = shapes::tiny_llama();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut contents = spec.contents().unwrap();
    // Without a pre-tokenizer of that name, native code throws.
    for (key, value) in &mut contents.metadata {
        if key == "tokenizer.ggml.pre" {
            *value = ramforge_tests::gguf_writer::Value::String("no-such-tokenizer".to_owned());
        }
    }
    contents.write(&path, ramforge_tests::gguf_writer::Data::Sparse).unwrap();
    let output = programs::ramforge().unwrap().arg("plan").arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("no-such-tokenizer"), "{}", text(&output.stderr));
}

#[test]
fn a_plan_of_thirteen_gigabytes_is_made_in_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    shapes::gptneox_20b_shape().write_sparse(&path).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 12_000_000_000);
    let fastest = |work: &dyn Fn()| {
        let time = || {
            let started = Instant::now();
            work();
            started.elapsed()
        };
        (0..5).map(|_| time()).min().expect("five were made")
    };
    let headers = fastest(&|| drop(plan::Model::of(&ramforge::gguf::Model::open(&path).unwrap())));
    let whole = fastest(&|| drop(planned(&path, &["--ram", "8G"])));
    println!("headers {headers:?}, with the native library's sizes {whole:?}");
    assert!(headers < Duration::from_millis(200), "{headers:?}");
    assert!(whole < Duration::from_secs(2), "{whole:?}");
}

#[test]
fn a_plan_is_what_its_schema_says() {
    let schema = schema::committed::<Plan>("plan");
    for arguments in [&["--ram", "60M"][..], &[], &["--ram", "20M", "--ctx", "4096", "--kv-type", "q8_0"]] {
        schema.check(&planned(&real::smollm2().unwrap(), arguments));
    }
    let mut wrong = planned(&real::smollm2().unwrap(), &[]);
    wrong["peak_bytes"] = Value::from("many");
    assert!(!schema.holds(&wrong), "the schema allows everything");
}
