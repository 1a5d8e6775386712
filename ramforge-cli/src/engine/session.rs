//! One run, from loading to the last token.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forge_core::{
    Backend, Batch, Context, ContextParams, ErrorKind as ForgeErrorKind, LoadMode, Model, ModelParams,
    Sampler, SamplerChain, Threads, Token, Vocab,
};

use crate::engine::fit::{self, Way};
use crate::engine::generate::{Generated, Request, StopReason, generate};
use crate::engine::{PromptSource, Sampling, Settings, prompt, require_cpu};
use crate::gguf;
use crate::observe::process::{Process, Which};
use crate::report::Output;
use crate::residency::Inventory;
use crate::residency::operations::{Failed, Operations};
use crate::residency::streaming::{self, Budget, Streaming};
use crate::supervisor::{Record, RecordSink, Sizes};
use crate::{Error, ErrorKind, Result};

/// Most tokens computed at once, and in one call. A shorter prompt is one batch: buffers are no larger than it
/// needs.
pub(crate) const BATCH_TOKENS: u32 = 512;

/// Tokens the repetition penalty looks back.
const PENALTY_TOKENS: u32 = 64;

/// Shows how far the slow parts are. Methods are called often and must be cheap.
pub trait Progress {
    /// The model is loaded to this share, 0 to 1.
    fn loading(&mut self, share: f32);
    /// So many of the prompt's tokens are processed.
    fn prompt(&mut self, done: usize, total: usize);
    /// Nothing may be on the screen any more: the text begins.
    fn clear(&mut self);
}

/// What the caller provides for a run.
pub struct Surroundings<'run> {
    /// Where the prompt is read from when it comes from standard input.
    pub input: &'run mut dyn Read,
    /// Where the model's text goes, and nothing else.
    pub out: &'run mut dyn Write,
    /// Shows progress.
    pub progress: &'run mut dyn Progress,
    /// Where records go.
    pub records: &'run RecordSink,
    /// Set when the run should stop.
    pub stop: Arc<AtomicBool>,
}

/// Runs `settings` to its end.
///
/// # Errors
/// Whatever went wrong; [`ErrorKind::Interrupted`] when `stop` was set, after what was generated until then
/// has been recorded.
pub fn run(settings: &Settings, surroundings: Surroundings<'_>) -> Result<()> {
    let Surroundings { input, out, progress, records, stop } = surroundings;
    let started = Instant::now();
    let backend = Backend::init();
    require_cpu(backend, &settings.device)?;
    // Before the load: a prompt that cannot be read should not cost it.
    let prompt = prompt::read(&settings.prompt, input)?;
    let (way, reason) = fit::way(backend, settings, &prompt)?;
    if way != Way::Resident {
        settings.residency.check_streaming()?;
    }

    records.send(&Record::Loading { progress: 0.0 })?;
    let before = Process::sample(Path::new("/proc"), Which::Own)?;
    let mut model = load(backend, settings, &way, progress, &stop)?;
    let inventory = match way != Way::Resident || settings.residency.look {
        true => Some(inventory(settings, &model)?),
        false => None,
    };
    if let (Way::Stream(_), Some(inventory)) = (&way, &inventory) {
        streaming::split(&mut model, inventory)?;
    }
    let looked_at = inventory.clone().filter(|_| settings.residency.look);
    let mut operations = Operations::new(&settings.residency, records, &model, looked_at, &before)?;
    let tokens = prompt::tokens(settings, &model, &prompt)?;
    let mut params = ContextParams {
        observed: way != Way::Resident || settings.residency.trace.is_some(),
        cancel: Some(Arc::clone(&stop)),
        ..context_params(settings, &model, tokens.len())?
    };
    if way != Way::Resident {
        // Threads that spin while they wait for a unit take the processor from those that read it.
        params.threads.polling = 0;
    }
    let mut context = Context::new(&model, &params).map_err(native)?;
    let sizes = sizes(settings, &context)?;
    records.send(&Record::Sizes(sizes.clone()))?;
    let streaming = match (way, &inventory) {
        (Way::Stream(ram), Some(inventory)) => {
            Some(start_streaming(settings, &mut context, inventory, ram, progress, &stop)?)
        }
        _ => None,
    };
    drop(inventory);
    let _last_word = streaming.as_ref().map(|streaming| LastWord { streaming, records });
    operations.begin(&mut context, streaming.as_ref().map(Streaming::report).as_ref())?;
    if let Some(streaming) = &streaming {
        // A worker that is killed has no last word.
        records.send(&Record::Streaming(streaming.report()))?;
        let anonymous_weights_bytes = Some(streaming.anonymous_bytes());
        records.send(&Record::Sizes(Sizes { anonymous_weights_bytes, ..sizes }))?;
        let why = reason.map_or(String::new(), |reason| format!(" ({reason})"));
        progress.clear();
        records.send(&Record::Note { text: format!("{}{why}", streaming.summary()) })?;
        if let Some(warning) = &streaming.warning {
            records.send(&Record::Warning { text: warning.clone() })?;
        }
    }
    records.send(&Record::Loaded { load_ms: milliseconds(started) })?;
    let mut sampler = sampler(settings.sampling, model.vocab())?;
    let mut batch = Batch::new(context.sizes().batch_tokens as usize, 1);

    if let PromptSource::Measured { warm_up: true, .. } = settings.prompt {
        process_prompt(&mut context, &mut operations, &mut batch, &tokens[..1], progress)?;
        context.clear();
        // Its bar has the length of its own prompt.
        progress.clear();
    }
    let prompt_started = Instant::now();
    let loaded = bytes_read();
    let last_output = process_prompt(&mut context, &mut operations, &mut batch, &tokens, progress)?;
    let ms = milliseconds(prompt_started);
    let prompted = bytes_read();
    progress.clear();
    let read_bytes = since(prompted, loaded);
    records.send(&Record::PromptDone { tokens: tokens.len() as u64, ms, read_bytes })?;

    let measured = matches!(settings.prompt, PromptSource::Measured { .. });
    let mut nowhere = std::io::sink();
    let request = Request {
        operations: &mut operations,
        sampler: &mut sampler,
        out: if measured { &mut nowhere } else { out },
        position: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
        last_output,
        max_tokens: settings.max_tokens,
        measured,
    };
    let mut decoding_from = prompted;
    let generated = generate(&mut context, &mut batch, request, |context| {
        records.send(&Record::FirstToken { ms: milliseconds(started) })?;
        if measured {
            // What the first tokens cost because of what stays in memory is not what the later ones cost.
            let settling = Instant::now();
            context.settle(&mut || !stop.load(Ordering::Relaxed)).map_err(native)?;
            records.send(&Record::Settled { ms: milliseconds(settling) })?;
            decoding_from = bytes_read();
        }
        Ok(())
    })?;
    // The last look would otherwise be at memory that still grows.
    context.quiesce();
    operations.finish(streaming.as_ref().map(Streaming::provided_bytes))?;
    records.send(&finished(&generated, tokens.len(), since(bytes_read(), decoding_from)))?;
    if generated.stop == StopReason::Interrupted { Err(interrupted()) } else { Ok(()) }
}

/// Says what streaming did, however the run ends.
struct LastWord<'run> {
    streaming: &'run Streaming,
    records: &'run RecordSink,
}

impl Drop for LastWord<'_> {
    fn drop(&mut self) {
        // Without a supervisor nobody reads it.
        let _ = self.records.send(&Record::Streaming(self.streaming.report()));
    }
}

fn load(
    backend: Backend,
    settings: &Settings,
    way: &Way,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<Model> {
    let params = ModelParams {
        load_mode: LoadMode::Mmap,
        // What is streamed must be in the file's own layout, and is not to be read before its time.
        prefetch: settings.prefetch && *way == Way::Resident,
        extra_buffers: settings.repack && *way == Way::Resident,
        ..ModelParams::default()
    };
    let mut on_progress = |share| {
        progress.loading(share);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    Model::load(backend, &settings.files, params, Some(&mut on_progress)).map_err(native)
}

/// The sizes of the context for a prompt of so many tokens.
pub(crate) fn context_params(
    settings: &Settings,
    model: &Model,
    prompt_tokens: usize,
) -> Result<ContextParams> {
    let prompt_tokens = u32::try_from(prompt_tokens)
        .map_err(|_| Error::failed(format!("a prompt of {prompt_tokens} tokens is too long")))?;
    let needed = prompt_tokens.saturating_add(settings.max_tokens);
    let context_tokens =
        settings.context_tokens.unwrap_or_else(|| needed.min(model.trained_context()).max(1));
    if prompt_tokens > context_tokens {
        return Err(Error::failed(format!(
            "the prompt has {prompt_tokens} tokens and the context holds {context_tokens}"
        ))
        .hint(format!("use --ctx {needed}, or shorten the prompt")));
    }
    Ok(ContextParams {
        context_tokens,
        batch_tokens: BATCH_TOKENS.min(prompt_tokens),
        micro_batch_tokens: BATCH_TOKENS.min(prompt_tokens),
        threads: Threads { decode: settings.threads, prompt: settings.threads, ..Threads::default() },
        key_type: settings.kv_type.into(),
        value_type: settings.kv_type.into(),
        ..ContextParams::default()
    })
}

fn inventory(settings: &Settings, model: &Model) -> Result<Inventory> {
    let header = gguf::Model::open(&settings.files[0])?;
    Inventory::new(&header, &model.tensors()?)
}

/// Pins and streams the weights of the loaded model, whose mapping nothing has read yet.
fn start_streaming(
    settings: &Settings,
    context: &mut Context<'_>,
    inventory: &Inventory,
    ram: u64,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<Streaming> {
    let budget = Budget::measure(ram, context, settings.weight_bytes)?;
    let mut on_progress = |share| {
        progress.loading(share);
        !stop.load(Ordering::Relaxed)
    };
    streaming::start(context, inventory, budget, streaming::open_files, &mut on_progress)
}

/// The sizes of this run as the native library allocated them.
fn sizes(settings: &Settings, context: &Context<'_>) -> Result<Sizes> {
    let memory = context.memory_breakdown()?;
    let anonymous: u64 = memory
        .buffers
        .iter()
        .filter(|buffer| settings.repack && buffer.buffer.contains("REPACK"))
        .map(|buffer| buffer.model_bytes)
        .sum();
    Ok(Sizes {
        context_tokens: Some(context.sizes().context_tokens),
        file_weights_bytes: Some(memory.model_bytes().saturating_sub(anonymous)),
        anonymous_weights_bytes: Some(anonymous),
        kv_bytes: Some(memory.context_bytes()),
        compute_bytes: Some(memory.compute_bytes()),
        ..Sizes::default()
    })
}

fn sampler(sampling: Sampling, vocab: Vocab<'_>) -> Result<Sampler<'_>> {
    let mut chain = SamplerChain::new(vocab)?;
    if sampling.repeat_penalty != 1.0 {
        chain = chain.repetition_penalty(PENALTY_TOKENS, sampling.repeat_penalty)?;
    }
    if sampling.temperature == 0.0 {
        return Ok(chain.greedy()?);
    }
    let chain = chain.top_k(sampling.top_k)?.top_p(sampling.top_p)?.min_p(sampling.min_p)?;
    Ok(chain.temperature(sampling.temperature)?.seeded(sampling.seed)?)
}

/// Decodes the prompt in batches; returns the index of its last token in the last batch.
fn process_prompt(
    context: &mut Context<'_>,
    operations: &mut Operations<'_>,
    batch: &mut Batch,
    tokens: &[Token],
    progress: &mut dyn Progress,
) -> Result<usize> {
    let at_once = context.sizes().batch_tokens as usize;
    let mut position = 0;
    progress.prompt(0, tokens.len());
    for chunk in tokens.chunks(at_once) {
        batch.clear();
        for &token in chunk {
            let is_last = position as usize + 1 == tokens.len();
            batch.push(token, position, &[0], is_last)?;
            position += 1;
        }
        operations.decode(context, batch).map_err(|failed| match failed {
            Failed::Decode(error) => native(error),
            Failed::Between(error) => error,
        })?;
        progress.prompt(position as usize, tokens.len());
    }
    Ok(batch.len() - 1)
}

fn finished(generated: &Generated, prompt_tokens: usize, read_bytes: Option<u64>) -> Record {
    Record::Finished {
        output: Output {
            prompt_tokens: prompt_tokens as u64,
            generated_tokens: generated.tokens.len() as u64,
            stop_reason: Some(generated.stop.name().to_owned()),
            token_fingerprint: Some(generated.fingerprint()),
            logits_fingerprint: generated.logits.map(|logits| logits.text()),
        },
        decode_tokens_per_second: generated.tokens_per_second(),
        read_bytes,
    }
}

/// Bytes this process has read from storage so far, where the kernel shows it.
fn bytes_read() -> Option<u64> {
    Process::sample(Path::new("/proc"), Which::Own).ok()?.read_bytes
}

fn since(now: Option<u64>, before: Option<u64>) -> Option<u64> {
    now.zip(before).map(|(now, before)| now.saturating_sub(before))
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted")
}

fn native(error: forge_core::Error) -> Error {
    match error.kind() {
        ForgeErrorKind::Cancelled => interrupted(),
        _ => error.into(),
    }
}
