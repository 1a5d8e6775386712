//! The helper's side: the model without its weights, one context after the other.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use forge_core::native_log::{self, Level, Message};
use forge_core::{Backend, Context, ContextParams, LoadMode, Model, ModelParams, Threads};

use super::{Answer, Subject};
use crate::observe::process::{Process, Which};
use crate::plan::{ContextRequest, ContextTokens, KvType, NativeSizes};
use crate::{Error, Result};

/// Answers every request on `input` with a line on `out`, until the input ends. Native messages go to `err`.
///
/// # Errors
/// The argument or a request is no one's of ours, or nobody listens. What is wrong with the model is an
/// answer.
pub fn run(
    argument: &str,
    input: &mut dyn BufRead,
    out: &mut dyn Write,
    say: Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<()> {
    let by_hand = |error: serde_json::Error| {
        Error::usage("the sizing process is started by `ramforge plan` and `ramforge run`, not by hand")
            .caused_by(error)
    };
    let unheard = |error: std::io::Error| Error::failed("cannot answer with sizes").caused_by(error);
    let subject: Subject = serde_json::from_str(argument).map_err(by_hand)?;
    native_log::set_sink(Some(Arc::new(move |message: &Message| {
        if message.level >= Level::Error {
            say(&message.text);
        }
    })));
    let mut model = None;
    for line in input.lines() {
        let request = serde_json::from_str(&line.map_err(unheard)?).map_err(by_hand)?;
        let answer = match answer(&subject, &mut model, &request) {
            Ok(sizes) => Answer::Sizes(sizes),
            Err(error) => Answer::Failed {
                kind: error.kind(),
                message: error.to_string(),
                hints: error.hints().to_vec(),
            },
        };
        let mut line = serde_json::to_vec(&answer).map_err(|error| unheard(error.into()))?;
        line.push(b'\n');
        out.write_all(&line).and_then(|()| out.flush()).map_err(unheard)?;
    }
    Ok(())
}

fn answer(subject: &Subject, model: &mut Option<Model>, request: &ContextRequest) -> Result<NativeSizes> {
    let model = match model {
        Some(model) => model,
        None => model.insert(load(subject)?),
    };
    let context_tokens = match request.context {
        ContextTokens::Exactly(tokens) => tokens,
        ContextTokens::Trained => model.trained_context().max(1),
        ContextTokens::Prompt(more) => more.min(model.trained_context()).max(1),
    };
    let params = ContextParams {
        context_tokens,
        batch_tokens: request.batch_tokens,
        micro_batch_tokens: request.batch_tokens,
        threads: Threads { decode: request.threads, prompt: request.threads, ..Threads::default() },
        key_type: native(request.kv_type),
        value_type: native(request.kv_type),
        ..ContextParams::default()
    };
    let context = Context::new(model, &params)?;
    let memory = context.memory_breakdown()?;
    let repacked: u64 = memory
        .buffers
        .iter()
        .filter(|buffer| buffer.buffer.contains("REPACK"))
        .map(|buffer| buffer.model_bytes)
        .sum();
    let sizes = context.sizes();
    // The native library has one row of logits for each output, in 32-bit floats, and has touched them.
    let output_bytes = u64::from(sizes.outputs.max(1)) * model.vocab().len() as u64 * 4;
    let process = Process::sample(Path::new("/proc"), Which::Own)?;
    let anonymous = process
        .rss_anonymous_bytes
        .ok_or_else(|| Error::failed("this kernel does not show a process's anonymous memory"))?;
    Ok(NativeSizes {
        context_tokens: sizes.context_tokens,
        trained_context_tokens: model.trained_context(),
        mapped_weights_bytes: memory.model_bytes() - repacked,
        repacked_weights_bytes: repacked,
        kv_bytes: memory.context_bytes(),
        compute_bytes: memory.compute_bytes(),
        work_bytes: context.work_bytes()?,
        output_bytes,
        base_bytes: anonymous.saturating_sub(output_bytes),
    })
}

fn load(subject: &Subject) -> Result<Model> {
    let params = ModelParams {
        // Nothing is read or mapped but the header; the native library sizes without a mapping only.
        load_mode: LoadMode::Read,
        no_alloc: true,
        extra_buffers: subject.repack,
        ..ModelParams::default()
    };
    Ok(Model::load(Backend::init(), &subject.files, params, None)?)
}

const fn native(kv_type: KvType) -> forge_core::KvType {
    match kv_type {
        KvType::F32 => forge_core::KvType::F32,
        KvType::F16 => forge_core::KvType::F16,
        KvType::Bf16 => forge_core::KvType::Bf16,
        KvType::Q8_0 => forge_core::KvType::Q8_0,
        KvType::Q5_1 => forge_core::KvType::Q5_1,
        KvType::Q5_0 => forge_core::KvType::Q5_0,
        KvType::Q4_1 => forge_core::KvType::Q4_1,
        KvType::Q4_0 => forge_core::KvType::Q4_0,
    }
}
