//! The helper's side: the model without its weights, one context after the other.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use forge_core::native_log::{self, Level, Message};
use forge_core::{Backend, Context, ContextParams, LoadMode, Model, ModelParams, Threads};

use super::Answer;
use crate::engine::{PromptSource, Settings, context_params, prompt};
use crate::observe::host::Host;
use crate::observe::process::{Process, Which};
use crate::plan::{ContextRequest, ContextTokens, NativeSizes};
use crate::size::readable;
use crate::{Error, ErrorKind, Result};

/// Even to size a context, the native library allocates some 50 bytes for each of its tokens. For so many, that is
/// little.
const CHEAP_TOKENS: u32 = 1 << 20;

/// No model is trained with more tokens of context; a header may say so.
const MOST_TRAINED_TOKENS: u32 = 1 << 24;

/// The native library rounds up to a multiple of 256, in 32 bits.
const MOST_TOKENS: u32 = u32::MAX - 255;

/// Answers every request about the subject in the file `channel` on `input` with a line on `out`, until the input
/// ends. What native code says goes to `say`.
///
/// # Errors
/// The subject or a request is no one's of ours, or nobody listens. What is wrong with the model is an
/// answer.
pub fn run(
    channel: &str,
    input: &mut dyn BufRead,
    out: &mut dyn Write,
    say: Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<()> {
    let unheard = |error: std::io::Error| Error::failed("cannot answer with sizes").caused_by(error);
    let asked = std::fs::read(channel).map_err(by_hand)?;
    let asked: super::Subject = serde_json::from_slice(&asked).map_err(by_hand)?;
    native_log::set_sink(Some(Arc::new(move |message: &Message| {
        if message.level >= Level::Error {
            say(&message.text);
        }
    })));
    let mut subject = None;
    for line in input.lines() {
        let request = serde_json::from_str(&line.map_err(unheard)?).map_err(by_hand)?;
        let answer = match answer(&asked, &mut subject, &request) {
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

fn by_hand(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::usage("the sizing process is started by `ramforge plan` and `ramforge run`, not by hand")
        .caused_by(error)
}

/// The model without its weights, and the prompt of the run it is for.
struct Subject {
    model: Model,
    run: Option<Run>,
}

struct Run {
    context_tokens: u32,
    /// With the longest prompt.
    longest_context_tokens: u32,
    /// `None` while it is not known.
    prompt_tokens: Option<u32>,
}

fn answer(
    asked: &super::Subject,
    subject: &mut Option<Subject>,
    request: &ContextRequest,
) -> Result<NativeSizes> {
    let Subject { model, run } = match subject {
        Some(subject) => subject,
        None => subject.insert(load(asked)?),
    };
    // A prompt shorter than a batch is computed in one piece, and touches no more of the buffers than that.
    let batch_tokens = match (request.context, run.as_ref()) {
        (ContextTokens::Longest, _) | (_, None) => request.batch_tokens,
        (_, Some(run)) => run.prompt_tokens.map_or(1, |tokens| tokens.clamp(1, request.batch_tokens)),
    };
    let params = ContextParams {
        context_tokens: match (request.context, run.as_ref()) {
            (ContextTokens::Exactly(tokens), _) => tokens,
            (ContextTokens::Run, Some(run)) => run.context_tokens,
            (ContextTokens::Longest, Some(run)) => run.longest_context_tokens,
            (ContextTokens::Trained | ContextTokens::Run | ContextTokens::Longest, _) => {
                model.trained_context().max(1)
            }
        },
        batch_tokens,
        micro_batch_tokens: batch_tokens,
        threads: Threads { decode: request.threads, prompt: request.threads, ..Threads::default() },
        key_type: request.kv_type.into(),
        value_type: request.kv_type.into(),
        ..ContextParams::default()
    };
    check_context(model, &params)?;
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
        batch_tokens,
        prompt_tokens: run.as_ref().and_then(|run| run.prompt_tokens),
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

/// Refuses a context that this machine's memory could never hold, before the native library allocates for it.
fn check_context(model: &Model, params: &ContextParams) -> Result<()> {
    let (tokens, trained) = (params.context_tokens, model.trained_context());
    if tokens <= CHEAP_TOKENS.max(trained.min(MOST_TRAINED_TOKENS)) {
        return Ok(());
    }
    let kv_bytes = |context_tokens| -> Result<u64> {
        let context = Context::new(model, &ContextParams { context_tokens, ..params.clone() })?;
        Ok(context.memory_breakdown()?.context_bytes())
    };
    let needed = kv_bytes_of(tokens, kv_bytes(CHEAP_TOKENS / 2)?, kv_bytes(CHEAP_TOKENS)?);
    let memory = Host::sample(Path::new("/proc"))?.memory_bytes;
    let why = if needed > memory {
        format!("needs {} for its KV cache, and this machine has {}", readable(needed), readable(memory))
    } else if tokens > MOST_TOKENS {
        "is more than the native library can count".to_owned()
    } else {
        return Ok(());
    };
    let message = format!("a context of {tokens} tokens {why}; the model was trained with {trained} tokens");
    Err(Error::new(ErrorKind::Refused, message).hint("use a smaller --ctx"))
}

/// Bytes of the KV cache for `tokens`, given those for [`CHEAP_TOKENS`] and for half as many: no window of
/// attention is that long, so from there on each token takes the same.
fn kv_bytes_of(tokens: u32, half: u64, whole: u64) -> u64 {
    let each = whole.saturating_sub(half) / u64::from(CHEAP_TOKENS / 2);
    whole.saturating_add(each.saturating_mul(u64::from(tokens.saturating_sub(CHEAP_TOKENS))))
}

fn load(asked: &super::Subject) -> Result<Subject> {
    let params = ModelParams {
        // Nothing is read or mapped but the header; the native library sizes without a mapping only.
        load_mode: LoadMode::Read,
        no_alloc: true,
        extra_buffers: asked.repack,
        ..ModelParams::default()
    };
    let model = Model::load(Backend::init(), &asked.files, params, None)?;
    let run = asked.run.as_ref().map(|settings| run_of(settings, &model)).transpose()?;
    Ok(Subject { model, run })
}

/// The context that `settings` come to. A prompt that can be read only once is the worker's to read: it is taken for
/// the shortest there is.
fn run_of(settings: &Settings, model: &Model) -> Result<Run> {
    let prompt_tokens = match &settings.prompt {
        PromptSource::StandardInput => None,
        // A pipe, a terminal or this process's own input; what is missing is for the worker to explain.
        PromptSource::File(path) if !path.is_file() => None,
        source => {
            let text = prompt::read(source, &mut std::io::empty())?;
            Some(prompt::tokens(settings, model, &text)?.len())
        }
    };
    let params = context_params(settings, model, prompt_tokens.unwrap_or(1))?;
    let prompt_tokens = prompt_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    let longest_context_tokens = settings.context_tokens.unwrap_or_else(|| model.trained_context().max(1));
    Ok(Run { context_tokens: params.context_tokens, longest_context_tokens, prompt_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kv_cache_grows_by_the_same_for_each_token() {
        let window = 1000_u64;
        let bytes = |tokens: u32| window + 6 * u64::from(tokens);
        let of = |tokens| kv_bytes_of(tokens, bytes(CHEAP_TOKENS / 2), bytes(CHEAP_TOKENS));
        assert_eq!(of(CHEAP_TOKENS + 1), bytes(CHEAP_TOKENS + 1));
        assert_eq!(of(u32::MAX), bytes(u32::MAX));
        // A recurrent state does not grow.
        assert_eq!(kv_bytes_of(u32::MAX, window, window), window);
    }

    #[test]
    fn a_helper_started_by_hand_is_told_so() {
        let error = run("model.gguf", &mut std::io::empty(), &mut std::io::sink(), Arc::new(|_: &str| {}))
            .unwrap_err();
        assert!(error.to_string().contains("not by hand"), "{error}");
    }
}
