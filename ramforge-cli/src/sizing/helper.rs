//! The helper's side: the model without its weights, one context after the other.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use forge_core::native_log::{self, Level, Message};
use forge_core::{Backend, Context, ContextParams, LoadMode, Model, ModelParams, Threads};

use super::Answer;
use crate::engine::{PromptSource, Settings, context_params, prompt};
use crate::observe::process::{Process, Which};
use crate::plan::{ContextRequest, ContextTokens, NativeSizes};
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
    let asked: super::Subject = serde_json::from_str(argument).map_err(by_hand)?;
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

/// The model without its weights, and the prompt of the run it is for.
struct Subject {
    model: Model,
    run: Option<Run>,
}

struct Run {
    context_tokens: u32,
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
    let batch_tokens = run.as_ref().map_or(request.batch_tokens, |run| {
        run.prompt_tokens.map_or(1, |tokens| tokens.clamp(1, request.batch_tokens))
    });
    let params = ContextParams {
        context_tokens: match (request.context, run.as_ref()) {
            (ContextTokens::Exactly(tokens), _) => tokens,
            (ContextTokens::Run, Some(run)) => run.context_tokens,
            (ContextTokens::Trained | ContextTokens::Run, _) => model.trained_context().max(1),
        },
        batch_tokens,
        micro_batch_tokens: batch_tokens,
        threads: Threads { decode: request.threads, prompt: request.threads, ..Threads::default() },
        key_type: request.kv_type.into(),
        value_type: request.kv_type.into(),
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

/// The context that `settings` come to. A prompt from standard input is the worker's to read: it is taken for the
/// shortest there is.
fn run_of(settings: &Settings, model: &Model) -> Result<Run> {
    let prompt_tokens = match &settings.prompt {
        PromptSource::StandardInput => None,
        source => {
            let text = prompt::read(source, &mut std::io::empty())?;
            Some(prompt::tokens(settings, model, &text)?.len())
        }
    };
    let params = context_params(settings, model, prompt_tokens.unwrap_or(1))?;
    let prompt_tokens = prompt_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    Ok(Run { context_tokens: params.context_tokens, prompt_tokens })
}
