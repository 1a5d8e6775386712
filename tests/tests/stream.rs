//! Streaming: the same bits as with everything in memory, whatever the budget, however slow the disk is, and a
//! clean end when it breaks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forge_core::staging::preceded_reader;
use forge_core::{Backend, Batch, Context, ContextParams, ErrorKind, LoadMode, Model, ModelParams, Threads};
use ramforge::gguf;
use ramforge::residency::Inventory;
use ramforge::residency::streaming::{self, Budget, Opened, Streaming};
use ramforge_tests::gguf_writer::TensorType;
use ramforge_tests::programs::{ramforge, ramforge_with_report};
use ramforge_tests::shapes::{self, ModelSpec};
use ramforge_tests::{cache, real};
use serde_json::Value;

/// Tests run side by side, and threads that spin while they wait for each other stand in the way of all of them:
/// most use one thread. Tokens of the prompt, and those generated from the logits that are compared.
const MEASURE: [&str; 4] = ["--measure", "100", "--max-tokens", "33"];

/// Runs `ramforge run` to measure, and gives the report.
fn measured(model: &Path, more: &[&str]) -> Value {
    let arguments = [&["run", model.to_str().unwrap(), "--no-repack"], &MEASURE[..], more].concat();
    let (output, report) = ramforge_with_report(&arguments).unwrap();
    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(report["output"]["generated_tokens"], 33, "{report:#}");
    report
}

/// The smallest budget in bytes, and what the run takes with everything in memory.
fn bounds(model: &Path) -> (u64, u64) {
    let model = model.to_str().unwrap();
    let output = ramforge().unwrap().args(["plan", model, "--ctx", "256", "--json"]).output().unwrap();
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ways = plan["ways"].as_array().unwrap();
    let streaming = ways.iter().find(|way| way["way"] == "streaming").unwrap();
    (streaming["needs_bytes"].as_u64().unwrap(), plan["peak_bytes"].as_u64().unwrap())
}

fn number(report: &Value, section: &str, name: &str) -> u64 {
    report[section][name].as_u64().unwrap_or_else(|| panic!("no {section}.{name}: {report:#}"))
}

/// Streams `model` in the smallest budget and in ones above it.
fn same_logits(model: &Path, threads: &str) {
    let measured = |more: &[&str]| measured(model, &[&["--threads", threads], more].concat());
    let expected = measured(&["--residency-policy", "off"]);
    let expected = expected["output"]["logits_fingerprint"].as_str().unwrap();
    let (smallest, all) = bounds(model);
    for parts in [0, 1, 3] {
        let ram = (smallest + (all - smallest) * parts / 4).to_string();
        let report = measured(&["--residency-policy", "stream", "--ram", &ram]);
        let streaming = |name| number(&report, "streaming", name);
        println!(
            "{} in {ram} bytes: {} pinned, {} a pass, {} ms stalled",
            model.display(),
            streaming("pinned_bytes"),
            streaming("streamed_bytes_per_pass"),
            report["streaming"]["stall_ms"]
        );
        assert_eq!(report["output"]["logits_fingerprint"], expected, "{ram}: {report:#}");
        // The prompt is one pass, and each token after the first one.
        assert_eq!((streaming("passes"), streaming("unplanned_passes")), (33, 0));
        // What is read ahead for a pass that does not come is at most all of it; what stays is read in the first
        // pass, and read ahead for the second one at most.
        let read = streaming("bytes_read");
        let (pass, token) = (streaming("streamed_bytes_per_pass"), streaming("streamed_bytes_per_token"));
        // An expert lies in whole pages, which are a few more or less than its share of the tensor.
        let few = if token < pass { token / 10 } else { 0 };
        let least = pass + 32 * (token - few);
        let most = 2 * pass + 33 * (token + few) + 2 * streaming("pinned_bytes");
        assert!(read >= least && read <= most, "{read} for {pass} and {token}: {least} to {most}");
        // Both ways are tried in the first GiB.
        let evicted = streaming("evicted_bytes");
        let tried = cfg!(target_arch = "x86_64") && read > 1 << 30;
        assert!(evicted <= read && (evicted > 0 || !tried), "{evicted} of {read} evicted");
        // A measured run has everything that stays in memory after the first token.
        assert_eq!(streaming("kept_bytes"), streaming("pinned_bytes"));
        if parts == 0 {
            assert!(pass > 0, "{report:#}");
        }
    }
}

fn middling(name: &'static str, spec: ModelSpec) -> PathBuf {
    let spec =
        ModelSpec { name, embd: 1024, ff: 2816, heads: 16, kv_heads: 4, head_dim: 64, layers: 8, ..spec };
    cache::model(&ModelSpec { kind: TensorType::Q4_0, ..spec }).unwrap()
}

#[test]
fn the_real_models_have_the_same_logits() {
    same_logits(&real::smollm2().unwrap(), "1");
    same_logits(&real::gemma3().unwrap(), "1");
}

#[test]
fn generated_models_of_every_kind_have_the_same_logits() {
    same_logits(&middling("stream-llama", shapes::tiny_llama()), "2");
    same_logits(&middling("stream-qwen2", shapes::tiny_qwen2()), "1");
    same_logits(&cache::model(&shapes::pythia_70m_shape()).unwrap(), "1");
}

fn mixture_of_experts() -> PathBuf {
    let spec =
        ModelSpec { name: "stream-moe", embd: 1024, ff: 512, heads: 16, head_dim: 64, ..shapes::tiny_moe() };
    cache::model(&spec).unwrap()
}

#[test]
fn a_mixture_of_experts_has_the_same_logits() {
    same_logits(&mixture_of_experts(), "1");
}

#[test]
fn shards_have_the_same_logits() {
    let folder = tempfile::tempdir().unwrap();
    let spec =
        ModelSpec { embd: 1024, ff: 2816, heads: 16, kv_heads: 4, head_dim: 64, ..shapes::tiny_llama() };
    let shards = spec.write_shards(&folder.path().join("model"), 3).unwrap();
    same_logits(&shards[0], "1");
}

/// A model in this process.
struct Loaded {
    model: Model,
    inventory: Inventory,
}

impl Loaded {
    fn new(path: &Path) -> Self {
        let params = ModelParams {
            load_mode: LoadMode::Mmap,
            extra_buffers: false,
            prefetch: false,
            ..ModelParams::default()
        };
        let files = [path.to_owned()];
        let mut model = Model::load(Backend::init(), &files, params, None).unwrap();
        let header = gguf::Model::open(path).unwrap();
        let inventory = Inventory::new(&header, &model.tensors().unwrap()).unwrap();
        streaming::split(&mut model, &inventory).unwrap();
        Self { model, inventory }
    }

    fn context(&self) -> Context<'_> {
        let params = ContextParams {
            context_tokens: 256,
            batch_tokens: 16,
            micro_batch_tokens: 16,
            threads: Threads { decode: 1, prompt: 1, polling: 0 },
            observed: true,
            ..ContextParams::default()
        };
        Context::new(&self.model, &params).unwrap()
    }

    /// Streams with a third of the weights pinned; `before` runs ahead of each read.
    fn stream(
        &self,
        context: &mut Context<'_>,
        before: impl Fn(usize, u64) -> io::Result<()> + Send + Sync + 'static,
    ) -> ramforge::Result<Streaming> {
        let budget = Budget { ram_bytes: self.model.bytes() / 3 + (16 << 20), terms: Vec::new() };
        let open = |paths: &[PathBuf]| {
            let Opened { reader, warning } = streaming::open_files(paths)?;
            Ok(Opened { reader: preceded_reader(reader, before), warning })
        };
        streaming::start(context, &self.inventory, budget, open, &mut |_| true)
    }
}

/// Decodes a prompt and `more` tokens after it; gives the bits of all logits.
fn decode(context: &mut Context<'_>, more: usize) -> forge_core::Result<Vec<u32>> {
    context.clear();
    let mut bits = Vec::new();
    let mut batch = Batch::new(16, 1);
    let mut tokens = context.model().vocab().encode("The capital of France", true, false)?;
    let mut position = 0;
    for _ in 0..=more {
        batch.clear();
        for (place, &token) in tokens.iter().enumerate() {
            batch.push(token, position, &[0], place + 1 == tokens.len())?;
            position += 1;
        }
        context.decode(&mut batch)?;
        let logits = context.logits(batch.len() - 1)?;
        bits.extend(logits.as_slice().iter().map(|logit| logit.to_bits()));
        tokens = vec![logits.best().unwrap()];
    }
    Ok(bits)
}

/// How long the disk is made slow; `RAMFORGE_STRESS_SECONDS` makes it longer.
fn stress_time() -> Duration {
    let seconds = std::env::var("RAMFORGE_STRESS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

#[test]
fn reads_that_take_their_time_change_no_bit() {
    let half = stress_time() / 2;
    slow_reads_change_no_bit(&real::smollm2().unwrap(), half);
    slow_reads_change_no_bit(&mixture_of_experts(), half);
}

fn slow_reads_change_no_bit(path: &Path, how_long: Duration) {
    let expected = decode(&mut Loaded::new(path).context(), 4).unwrap();
    let loaded = Loaded::new(path);
    let mut context = loaded.context();
    let seed = AtomicU64::new(1);
    let slow = AtomicU64::new(0);
    let streaming = loaded
        .stream(&mut context, move |_, _| {
            // Half of the reads are late, by up to 2 ms, and a few by up to 20 ms.
            let mut random = seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            random ^= random >> 31;
            let most = if random.is_multiple_of(32) { 20_000 } else { 2_000 };
            if random & 32 == 0 {
                slow.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros((random >> 8) % most));
            }
            Ok(())
        })
        .unwrap();
    let started = Instant::now();
    let mut rounds = 0;
    while rounds == 0 || started.elapsed() < how_long {
        assert!(decode(&mut context, 4).unwrap() == expected, "round {rounds} has other logits");
        rounds += 1;
    }
    let report = streaming.report();
    println!("{rounds} rounds, {} passes, {:.0} ms stalled", report.passes, report.stall_ms);
    assert!(report.stall_ms > 0.0 && report.unplanned_passes == 0);
}

#[test]
fn a_read_that_fails_stops_the_decode_and_nothing_is_computed_from_it() {
    a_failing_read_stops_the_decode(&real::smollm2().unwrap());
    a_failing_read_stops_the_decode(&mixture_of_experts());
}

fn a_failing_read_stops_the_decode(path: &Path) {
    let loaded = Loaded::new(path);
    let mut context = loaded.context();
    let broken = Arc::new(AtomicBool::new(false));
    let breaks = Arc::clone(&broken);
    let fails = move |_, offset| match breaks.load(Ordering::Relaxed) {
        true => Err(io::Error::other(format!("no bytes at {offset}"))),
        false => Ok(()),
    };
    let _streaming = loaded.stream(&mut context, fails).unwrap();
    decode(&mut context, 1).unwrap();
    broken.store(true, Ordering::Relaxed);
    let started = Instant::now();
    let error = decode(&mut context, 8).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().contains("no bytes at "), "{error}");
    // What was read before is not enough to go on with.
    assert!(decode(&mut context, 0).is_err());
}

#[test]
fn a_read_that_fails_while_pinning_is_an_error_too() {
    let loaded = Loaded::new(&real::smollm2().unwrap());
    let mut context = loaded.context();
    let error = loaded.stream(&mut context, |_, _| Err(io::Error::other("broken"))).err().unwrap();
    assert!(error.to_string().contains("cannot pin the weights: broken"), "{error}");
}
