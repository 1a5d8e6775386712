//! What is done to a model's pages between operations: what was asked, what the kernel accepted and what was
//! then seen, and that the model computes the same bits whatever is done.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forge_core::pages::cached_bytes;
use forge_core::{
    Backend, Batch, Context, ContextParams, LoadMode, MappedPages, Model, ModelParams, Threads, Token,
};
use ramforge::gguf;
use ramforge::observe::process::{Process, Which};
use ramforge::report::Operation;
use ramforge::residency::policy::Rule;
use ramforge::residency::{Inventory, Operations, Settings, TraceSettings};
use ramforge::supervisor::{Record, RecordSink};
use ramforge_tests::shapes::{self, ModelSpec};
use ramforge_tests::{cache, programs, real};
use tempfile::TempDir;

/// Tests that look at this process's memory take turns.
static TURN: Mutex<()> = Mutex::new(());

/// A copy of a model that nobody else reads, so that its pages are this test's alone.
struct OwnModel {
    _turn: MutexGuard<'static, ()>,
    _folder: TempDir,
    path: PathBuf,
}

impl OwnModel {
    fn copy(model: &Path) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::copy(model, &path).unwrap();
        // Dirty pages cannot be dropped.
        File::open(&path).unwrap().sync_all().unwrap();
        Self { _turn: turn, _folder: folder, path }
    }

    fn load(&self, load_mode: LoadMode) -> Model {
        let params = ModelParams { load_mode, extra_buffers: false, ..ModelParams::default() };
        Model::load(Backend::init(), std::slice::from_ref(&self.path), params, None).unwrap()
    }

    fn inventory(&self, model: &Model) -> Inventory {
        Inventory::new(&gguf::Model::open(&self.path).unwrap(), &model.tensors().unwrap()).unwrap()
    }
}

/// What a few operations gave.
struct Ran {
    /// The bits of every logit of every operation.
    logits: Vec<Vec<u32>>,
    operations: Vec<Operation>,
}

/// Decodes a prompt and eight more tokens under `settings`; `look` is called after the page actions that follow
/// the load.
fn run(
    own: &OwnModel,
    load_mode: LoadMode,
    settings: &Settings,
    look: impl FnOnce(&Model, &Inventory),
) -> Ran {
    let before = Process::sample(Path::new("/proc"), Which::Own).unwrap();
    let model = own.load(load_mode);
    let inventory = own.inventory(&model);
    let mut said = tempfile::tempfile().unwrap();
    let sink = RecordSink::new(said.try_clone().unwrap());
    let mut operations = Operations::new(settings, &sink, &model, Some(inventory.clone()), &before).unwrap();
    let params = ContextParams {
        context_tokens: 256,
        threads: Threads { decode: 1, prompt: 1, polling: 0 },
        observed: settings.trace.is_some(),
        ..ContextParams::default()
    };
    let mut context = Context::new(&model, &params).unwrap();
    operations.begin(&mut context, None).unwrap();
    look(&model, &inventory);

    let mut logits = Vec::new();
    let mut batch = Batch::new(16, 1);
    let mut tokens: Vec<Token> = model.vocab().encode("The capital of France", true, false).unwrap();
    let mut position = 0;
    for _ in 0..9 {
        batch.clear();
        for (place, &token) in tokens.iter().enumerate() {
            batch.push(token, position, &[0], place + 1 == tokens.len()).unwrap();
            position += 1;
        }
        operations.decode(&mut context, &mut batch).map_err(ramforge::Error::from).unwrap();
        let found = context.logits(batch.len() - 1).unwrap();
        logits.push(found.as_slice().iter().map(|logit| logit.to_bits()).collect());
        tokens = vec![found.best().unwrap()];
    }
    operations.finish(None).unwrap();
    said.rewind().unwrap();
    let records = BufReader::new(said).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
    let operations = records.filter_map(|record| match record {
        Record::Operation(operation) => Some(operation),
        _ => None,
    });
    Ran { logits, operations: operations.collect() }
}

fn off() -> Settings {
    Settings { look: true, policy: "off".to_owned(), ..Settings::default() }
}

fn rule(rule: Rule, policy: &str, target_bytes: u64) -> Settings {
    let trace = TraceSettings { events: 100_000, detail: false };
    Settings {
        rule: Some(rule),
        policy: policy.to_owned(),
        target_bytes: Some(target_bytes),
        trace: (rule == Rule::ReuseAware).then_some(trace),
        ..off()
    }
}

fn smollm2() -> OwnModel {
    OwnModel::copy(&real::smollm2().unwrap())
}

/// Resident bytes of the model's mapping.
fn resident(operation: &Operation) -> (u64, u64) {
    let bytes = |sample: &Option<ramforge::report::ResidencySample>| {
        sample.as_ref().unwrap().mapping_resident_bytes.unwrap()
    };
    (bytes(&operation.before), bytes(&operation.after))
}

fn anonymous_bytes() -> u64 {
    Process::sample(Path::new("/proc"), Which::Own).unwrap().rss_anonymous_bytes.unwrap()
}

#[test]
fn releasing_a_layer_leaves_the_pages_it_shares_and_changes_no_bit() {
    let own = smollm2();
    let expected = run(&own, LoadMode::Mmap, &off(), |_, _| {});
    let file = File::open(&own.path).unwrap();
    let settings = Settings { release_layers: vec![3], ..off() };
    let mut checked = false;
    let ran = run(&own, LoadMode::Mmap, &settings, |model, inventory| {
        let pages = MappedPages::open(model, std::slice::from_ref(&own.path)).unwrap();
        let layer = &inventory.report(None).layers[3];
        assert_eq!(layer.index, 3);
        // Each page of the layer, asked for by this test.
        let own_tensors = inventory.tensors.iter().filter(|tensor| tensor.layer == Some(3));
        let all: Vec<u64> = own_tensors
            .flat_map(|tensor| tensor.offset / 4096..(tensor.offset + tensor.bytes).div_ceil(4096))
            .collect();
        let (first, last) = (*all.iter().min().unwrap(), *all.iter().max().unwrap());
        let range =
            ramforge::residency::stream::Pages { file: 0, start: first * 4096, end: (last + 1) * 4096 };
        let region = inventory.region(&range).unwrap();
        let words = pages.resident(&region).unwrap().unwrap();
        let left: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
        assert_eq!(left * 4096, layer.shared_page_bytes);
        assert!(layer.exclusive_page_bytes > 2_000_000);
        // The page cache as a whole, through another mapping.
        let cached = cached_bytes(&file).unwrap().unwrap();
        assert_eq!(cached, file.metadata().unwrap().len() - layer.exclusive_page_bytes);
        checked = true;
    });
    assert!(checked);
    assert_eq!(ran.logits, expected.logits);
    let [released] = &ran.operations[..] else { panic!("{:#?}", ran.operations) };
    assert_eq!((released.kind.as_str(), released.phase.as_str()), ("release", "load"));
    assert_eq!(released.selected_tensors, 9);
    assert_eq!(released.accepted_bytes, released.requested_bytes);
    assert_eq!(released.observed_delta_bytes, Some(-released.requested_bytes.cast_signed()));
    assert_eq!(released.skipped_shared_bytes, 8192);
}

#[test]
fn each_policy_works_towards_its_target_and_changes_no_bit() {
    let own = smollm2();
    let expected = run(&own, LoadMode::Mmap, &off(), |_, _| {});
    assert!(expected.operations.is_empty());
    let model = gguf::Model::open(&own.path).unwrap();
    let largest = model.tensors().map(|(_, tensor)| tensor.bytes).max().unwrap();
    let half = model.tensor_bytes() / 2;

    for (kind, name) in [(Rule::MemoryBound, "memory-bound"), (Rule::ReuseAware, "reuse-aware")] {
        let ran = run(&own, LoadMode::Mmap, &rule(kind, name, anonymous_bytes() + half), |_, _| {});
        assert_eq!(ran.logits, expected.logits, "{name}");
        assert_eq!(ran.operations.len(), 9);
        for operation in &ran.operations {
            let (before, after) = resident(operation);
            let estimate = operation.estimate_bytes.unwrap();
            assert!(after.abs_diff(estimate) <= largest, "{operation:#?}");
            assert!(after < before, "{operation:#?}");
            assert_eq!(operation.requested_bytes, operation.planned_bytes);
            assert_eq!(operation.observed_delta_bytes, Some(after.cast_signed() - before.cast_signed()));
        }
        let used: Vec<_> = ran.operations.iter().map(|operation| operation.profile_used).collect();
        if kind == Rule::MemoryBound {
            assert_eq!(used, [None; 9]);
        } else {
            // The prompt's graph is no evidence for the graph of one token.
            assert_eq!((used[0], used[1], used[8]), (Some(false), Some(true), Some(true)), "{used:?}");
            assert!(ran.operations[0].reason.as_ref().unwrap().contains("no graph for one token"));
        }
    }
}

#[test]
fn observing_plans_and_changes_nothing() {
    let own = smollm2();
    let expected = run(&own, LoadMode::Mmap, &off(), |_, _| {});
    let settings = Settings { only_observe: true, ..rule(Rule::MemoryBound, "observe", 1 << 20) };
    let ran = run(&own, LoadMode::Mmap, &settings, |_, _| {});
    assert_eq!(ran.logits, expected.logits);
    for operation in &ran.operations {
        let (before, after) = resident(operation);
        assert_eq!(before, after);
        assert!(operation.planned_bytes > 90_000_000, "{operation:#?}");
        assert_eq!((operation.requested_bytes, operation.accepted_bytes), (0, 0));
    }
    assert_eq!(ran.operations.len(), 9);
}

#[test]
fn conservative_says_that_every_tensor_shares_a_page() {
    let own = smollm2();
    let expected = run(&own, LoadMode::Mmap, &off(), |_, _| {});
    let ran = run(&own, LoadMode::Mmap, &rule(Rule::Conservative, "conservative", 1 << 20), |_, _| {});
    assert_eq!(ran.logits, expected.logits);
    for operation in &ran.operations {
        assert_eq!((operation.selected_tensors, operation.requested_bytes), (0, 0));
        assert!(operation.reason.as_ref().unwrap().contains("every tensor shares a page"), "{operation:#?}");
    }
}

#[test]
fn what_is_accepted_and_what_happens_are_two_things() {
    let own = smollm2();
    let settings = Settings { release_mapping: true, ..off() };
    let params =
        ModelParams { load_mode: LoadMode::MmapLocked, extra_buffers: false, ..ModelParams::default() };
    // Another mapping holds every page in memory: the kernel accepts the release, and nothing goes.
    let locked = Model::load(Backend::init(), std::slice::from_ref(&own.path), params, None).unwrap();
    let file = File::open(&own.path).unwrap();
    let locked_bytes = Process::sample(Path::new("/proc"), Which::Own).unwrap();
    assert!(locked_bytes.rss_file_bytes.unwrap() > 90_000_000, "{locked_bytes:?}");
    let ran = run(&own, LoadMode::Mmap, &settings, |_, _| {});
    let [ignored] = &ran.operations[..] else { panic!("{:#?}", ran.operations) };
    assert!(ignored.requested_bytes > 90_000_000);
    assert_eq!(ignored.accepted_bytes, ignored.requested_bytes);
    // A few pages at the end of the file are not locked.
    let gone = -ignored.observed_delta_bytes.unwrap();
    assert!(gone.cast_unsigned() < ignored.requested_bytes / 100, "{ignored:#?}");
    assert_eq!(ignored.estimate_bytes, Some(0));

    // The mapping itself is locked: the kernel refuses.
    let ran = run(&own, LoadMode::MmapLocked, &settings, |_, _| {});
    let [refused] = &ran.operations[..] else { panic!("{:#?}", ran.operations) };
    assert_eq!((refused.accepted_bytes, refused.observed_delta_bytes), (0, Some(0)), "{refused:#?}");
    assert!(refused.requested_bytes > 90_000_000);
    assert!(refused.reason.as_ref().unwrap().contains("the kernel refused"), "{refused:#?}");

    // And without locks it happens.
    drop(locked);
    let ran = run(&own, LoadMode::Mmap, &settings, |_, _| {
        assert!(cached_bytes(&file).unwrap().unwrap() < 4_000_000);
    });
    let [done] = &ran.operations[..] else { panic!("{:#?}", ran.operations) };
    assert_eq!(done.observed_delta_bytes, Some(-done.accepted_bytes.cast_signed()));
}

#[test]
fn prefetch_is_bounded() {
    let own = smollm2();
    let params = ModelParams { prefetch: false, extra_buffers: false, ..ModelParams::default() };
    let file = File::open(&own.path).unwrap();
    let model = Model::load(Backend::init(), std::slice::from_ref(&own.path), params, None).unwrap();
    let inventory = own.inventory(&model);
    let release = Settings { release_mapping: true, ..off() };
    run(&own, LoadMode::Mmap, &release, |_, _| {
        let before = cached_bytes(&file).unwrap().unwrap();
        let settings = Settings { prefetch_bytes: Some(10 << 20), ..off() };
        let mut said = tempfile::tempfile().unwrap();
        let sink = RecordSink::new(said.try_clone().unwrap());
        let process = Process::default();
        let mut operations = Operations::new(&settings, &sink, &model, Some(inventory), &process).unwrap();
        let mut context =
            Context::new(&model, &ContextParams { context_tokens: 256, ..ContextParams::default() }).unwrap();
        operations.begin(&mut context, None).unwrap();
        said.rewind().unwrap();
        let text = std::io::read_to_string(said).unwrap();
        let operation = text.lines().find_map(|line| match serde_json::from_str(line).unwrap() {
            Record::Operation(operation) => Some(operation),
            _ => None,
        });
        let operation = operation.unwrap();
        assert_eq!((operation.kind.as_str(), operation.requested_bytes), ("prefetch", 10 << 20));
        assert_eq!(operation.accepted_bytes, 10 << 20);
        // The reads are under way; they end, and little more than was asked for is there.
        let bound = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let read = || cached_bytes(&file).unwrap().unwrap() - before;
        while read() < 10 << 20 {
            assert!(std::time::Instant::now() < bound, "{} bytes were read", read());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(read() < 14 << 20, "{}", read());
    });
}

#[test]
fn actions_that_make_no_sense_are_refused_with_what_to_do() {
    let model = cache::model(&shapes::tiny_llama()).unwrap();
    let run = |more: &[&str]| {
        let mut command = programs::ramforge().unwrap();
        let output = command
            .args(["run", model.to_str().unwrap(), "--prompt", "x", "-n", "1"])
            .args(more)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (more, code, part) in [
        (&["--release-layer", "1", "--release-mapping-pages"][..], 2, "cannot be used with"),
        (&["--release-layer", "1", "--residency-prefetch", "1M"], 2, "cannot be used with"),
        (&["--release-mapping-pages", "--residency-prefetch", "1M"], 2, "cannot be used with"),
        (&["--graph-trace-detail"], 2, "--graph-trace"),
        (&["--residency-policy", "memory-bound"], 2, "--residency-target SIZE"),
        (&["--release-layer", "99"], 1, "no tensor of layer 99"),
        (
            &["--release-layer", "1", "--residency-policy", "stream", "--ram", "60M"],
            2,
            "does not work with streaming",
        ),
        (
            &["--graph-trace", "--residency-policy", "stream", "--ram", "60M"],
            2,
            "does not work with streaming",
        ),
    ] {
        let (found, said) = run(more);
        assert_eq!(found, Some(code), "{more:?}: {said}");
        assert!(said.contains(part), "{more:?}: {said}");
    }
}

/// A Llama of 1.04 GB.
fn one_gigabyte() -> ModelSpec {
    ModelSpec { name: "llama-1gb-shape", layers: 9, ..shapes::llama_7b_shape() }
}

#[test]
fn the_ledger_explains_the_peak_of_an_enforced_run() {
    for (model, budgets) in [
        (real::smollm2().unwrap(), ["64M", "300M"]),
        (cache::model(&one_gigabyte()).unwrap(), ["600M", "1500M"]),
    ] {
        for budget in budgets {
            let own = OwnModel::copy(&model);
            let arguments =
                ["run", own.path.to_str().unwrap(), "--prompt", "Hello", "-n", "4", "--no-repack"];
            let kernels_own = ["--residency-policy", "off", "--no-fit-guard"];
            for policy in [&kernels_own[..], &[]] {
                let enforced = ["--ram", budget, "--enforce-ram"];
                let (output, report) =
                    programs::ramforge_with_report(&[&arguments[..], &enforced, policy].concat()).unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                if said.contains("cannot be enforced") {
                    println!("SKIP the_ledger_explains_the_peak_of_an_enforced_run: {said}");
                    return;
                }
                assert!(output.status.success(), "{said}");
                let peak = report["enforcement"]["peak_bytes"].as_i64().unwrap();
                let unexplained = report["reconciliation"]["unexplained_bytes"].as_i64().unwrap();
                println!("{budget} {policy:?}: peak {peak}, unexplained {unexplained}");
                assert!(
                    unexplained.abs() * 20 <= peak,
                    "{unexplained} of {peak}: {:#}",
                    report["reconciliation"]
                );
                let entry =
                    report["ledger"].as_array().unwrap().iter().find(|e| e["category"] == "group-peak");
                assert_eq!(entry.unwrap()["bytes"], peak);
            }
        }
    }
}

/// Policies, plans, ledger and reports are functions of facts: they import neither the native library nor the
/// operating system.
#[test]
fn what_decides_does_no_io() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ramforge-cli/src");
    let pure = [
        "bench/mod.rs",
        "ledger/mod.rs",
        "report/check.rs",
        "report/diff.rs",
        "report/residency.rs",
        "residency/lifecycle.rs",
        "residency/page_sets.rs",
        "residency/plan.rs",
        "residency/policy.rs",
        "residency/profile.rs",
        "residency/resident.rs",
        "residency/settings.rs",
        "residency/snapshot.rs",
        "residency/stream/mod.rs",
        "residency/stream/pages.rs",
        "residency/stream/split.rs",
        "residency/stream/units.rs",
    ];
    let impure =
        ["forge_core", "rustix", "procfs", "std::fs", "std::os", "std::env", "std::process", "std::thread"];
    for file in pure {
        let text = fs::read_to_string(source.join(file)).unwrap();
        for name in impure {
            assert!(!text.contains(name), "{file} mentions {name}");
        }
    }
}
