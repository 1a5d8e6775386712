//! `ramforge run`: options to settings, a supervised worker, and what is said about it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forge_core::Threads;

use crate::cli::RunArgs;
use crate::commands::admission::admit;
use crate::commands::{Terminal, interrupt};
use crate::engine::{Policy, PromptSource, Sampling, Settings};
use crate::gguf::{Model, harmless, printable};
use crate::ledger;
use crate::report::file::ReportFile;
use crate::report::{self, Outcome, Report};
use crate::residency;
use crate::size::exact;
use crate::supervisor::{self, EnforceRequest, Finished, Record, Request, worker};
use crate::{Error, ErrorKind, Result};

pub fn run(args: RunArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    let prompt = prompt_source(&args, terminal)?;
    check_target(&args)?;
    // Sizing a run takes a moment in which nothing is supervised yet.
    let stopped = interrupt::flag()?;
    let model = Model::open(&args.model);
    // A report that cannot be written should not cost a run.
    let report_file = match &args.residency_report_json {
        Some(target) => Some(ReportFile::prepare(target, &inputs(&args, model.as_ref().ok()))?),
        None => None,
    };
    let mut report = Report::new(tool(), report::Model::default(), request(&args));
    report.model.path = args.model.display().to_string();

    let mut finished = match model {
        Ok(model) => supervised(&args, prompt, &model, report, stopped, terminal),
        Err(error) => not_started(report, error),
    };
    ledger::complete(&mut finished.report);
    if finished.error.is_some() && terminal.err_is_terminal {
        // The worker may have died with a progress bar on the screen.
        let _ = write!(terminal.err, "\r\x1b[K");
    }
    let said = finished.report.output.is_some();
    let reports = args.profile || args.memory_report || args.residency_report || args.inspect_layer.is_some();
    if said && (reports || terminal.err_is_terminal) {
        // The text has no end of line of its own.
        terminal.note("");
    }
    if args.profile {
        profile(&finished.report, terminal);
    }
    let report = &finished.report;
    if args.memory_report {
        terminal.note_all(|out| report::human::memory(report, out))?;
    }
    if args.residency_report {
        terminal.note_all(|out| report::residency_view::residency(report, out))?;
    }
    if let Some(layer) = args.inspect_layer {
        terminal.note_all(|out| report::residency_view::layer(report, layer, out))?;
    }
    let written = report_file.map_or(Ok(()), |file| file.write(&finished.report));
    match (finished.error, written) {
        (None, written) => written,
        (Some(error), Ok(())) => Err(error),
        (Some(error), Err(unwritten)) => Err(error.hint(format!("the report is missing too: {unwritten}"))),
    }
}

fn prompt_source(args: &RunArgs, terminal: &Terminal<'_>) -> Result<PromptSource> {
    if let Some(tokens) = args.measure {
        return Ok(PromptSource::Measured { tokens, warm_up: args.warm_up });
    }
    match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => Ok(PromptSource::Text(text.clone())),
        (None, Some(file)) => Ok(PromptSource::File(file.clone())),
        (None, None) if terminal.input_is_terminal => Err(Error::usage("there is no prompt")
            .hint("give one with --prompt TEXT or --prompt-file FILE, or pipe it in")),
        (None, None) => Ok(PromptSource::StandardInput),
    }
}

/// The files the run reads.
fn inputs(args: &RunArgs, model: Option<&Model>) -> Vec<PathBuf> {
    let shards = model.into_iter().flat_map(Model::files).map(|file| file.path.clone());
    [args.model.clone()].into_iter().chain(args.prompt_file.clone()).chain(shards).collect()
}

pub(super) fn tool() -> report::Tool {
    let origin = forge_core::backend::origin();
    report::Tool {
        name: "ramforge".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        native: report::Native {
            source: origin.source.to_owned(),
            source_version: origin.source_version.to_owned(),
            llama_cpp: Some(origin.llama_cpp.to_owned()),
            ggml: Some(origin.ggml.to_owned()),
            patches: origin.patches.iter().map(|&patch| patch.to_owned()).collect(),
        },
    }
}

fn request(args: &RunArgs) -> report::Request {
    report::Request {
        ram_bytes: args.ram,
        enforce_ram: args.enforce_ram,
        context_tokens: args.ctx,
        kv_type: Some(args.kv_type.to_string()),
        repack: Some(!args.no_repack),
        policy: Some(args.residency_policy.name()),
        target_bytes: args.residency_target.or(args.ram),
        reserve_bytes: args.residency_reserve,
        prefetch: Some(!args.no_prefetch),
        threads: Some(threads(args)),
        device: Some(args.device.to_string()),
    }
}

fn residency(args: &RunArgs) -> residency::Settings {
    let policy = args.residency_policy;
    let rule = policy.rule();
    // The order of reuse comes from a trace.
    let traced = args.graph_trace || policy == Policy::ReuseAware;
    let settings = residency::Settings {
        look: false,
        own_group: args.enforce_ram,
        policy: policy.name(),
        rule,
        only_observe: policy == Policy::Observe,
        target_bytes: args.residency_target.or(args.ram),
        reserve_bytes: args.residency_reserve.unwrap_or(0),
        release_mapping: args.release_mapping_pages,
        release_layers: args.release_layer.clone(),
        prefetch_bytes: args.residency_prefetch,
        trace: traced.then_some(residency::TraceSettings {
            events: args.graph_trace_events,
            detail: args.graph_trace_detail,
        }),
    };
    let asked = args.residency_report || args.inspect_layer.is_some() || args.residency_report_json.is_some();
    residency::Settings { look: asked || settings.rule.is_some() || settings.acts(), ..settings }
}

/// A policy that releases needs to know down to what, and the others do nothing with a target.
fn check_target(args: &RunArgs) -> Result<()> {
    let policy = args.residency_policy;
    let reserve = args.residency_reserve.map(|_| "--residency-reserve".to_owned());
    if policy.rule().is_none() {
        let target = args.residency_target.map(|_| "--residency-target".to_owned());
        return target.or(reserve).map_or(Ok(()), |option| {
            Err(Error::usage(format!("{option} does nothing with --residency-policy {}", policy.name()))
                .hint("add --residency-policy memory-bound")
                .hint(format!("leave out {option}")))
        });
    }
    let needs = match policy {
        Policy::Observe => reserve,
        _ => Some(format!("--residency-policy {}", policy.name())),
    };
    match needs.filter(|_| args.residency_target.or(args.ram).is_none()) {
        None => Ok(()),
        Some(option) => Err(Error::usage(format!("{option} needs a target"))
            .hint("give one with --residency-target SIZE or --ram SIZE")),
    }
}

fn threads(args: &RunArgs) -> u32 {
    args.threads.unwrap_or_else(|| Threads::default().decode)
}

/// What was asked for that works, but worse than the user may know.
fn warnings(args: &RunArgs, trained_context: Option<u32>, processors: u32) -> Vec<String> {
    let threads = args.threads.filter(|&threads| threads > processors).map(|threads| {
        format!("warning: {threads} threads on {processors} processors wait for each other, and are slower")
    });
    let context = args.ctx.zip(trained_context).filter(|(asked, trained)| asked > trained);
    let context = context.map(|(asked, trained)| {
        format!("warning: a context of {asked} tokens is longer than the {trained} the model was trained for")
    });
    threads.into_iter().chain(context).collect()
}

fn not_started(mut report: Report, error: Error) -> Finished {
    report.outcome = Outcome {
        result: error.kind().into(),
        exit_code: error.kind().exit_code(),
        signal: None,
        message: Some(error.to_string()),
    };
    Finished { report, error: Some(error) }
}

fn supervised(
    args: &RunArgs,
    prompt: PromptSource,
    model: &Model,
    mut report: Report,
    stopped: Arc<AtomicBool>,
    terminal: &mut Terminal<'_>,
) -> Finished {
    let files: Vec<_> = model.files().iter().map(|file| file.path.clone()).collect();
    report.model.files = model
        .files()
        .iter()
        .map(|file| report::ModelFile { path: file.path.display().to_string(), bytes: file.bytes })
        .collect();
    report.model.architecture = Some(printable(model.architecture()).to_string());
    report.model.tensor_count = Some(model.tensor_count() as u64);
    report.model.tensor_bytes = Some(model.tensor_bytes());

    let settings = Settings {
        files: files.clone(),
        prompt,
        chat: args.chat,
        system: args.system.clone(),
        max_tokens: args.max_tokens,
        context_tokens: args.ctx,
        kv_type: args.kv_type,
        threads: threads(args),
        ram_bytes: args.ram,
        must_fit: false,
        weight_bytes: model.tensor_bytes(),
        policy: args.residency_policy,
        residency: residency(args),
        sampling: Sampling {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repeat_penalty: args.repeat_penalty,
            seed: args.seed,
        },
        repack: !args.no_repack,
        prefetch: !args.no_prefetch,
        device: args.device.clone(),
        progress: terminal.err_is_terminal,
        verbose: args.verbose,
    };
    let admitted = match admit(args, settings, model, terminal) {
        Ok(admitted) => admitted,
        Err(error) => return not_started(report, error),
    };
    report.admission = Some(admitted.admission);
    if stopped.load(Ordering::Relaxed) {
        return not_started(report, Error::new(ErrorKind::Interrupted, "interrupted"));
    }
    if let Some(refused) = admitted.refused {
        return not_started(report, refused);
    }
    let trained_context = model.hyperparameters().map(|numbers| numbers.context_length);
    let warnings = warnings(args, trained_context, Threads::default().decode);
    warnings.iter().chain(&admitted.notes).for_each(|note| terminal.note(note));
    let settings = match serde_json::to_value(admitted.settings) {
        Ok(settings) => settings,
        Err(error) => {
            return not_started(report, Error::failed("cannot pass on the settings").caused_by(error));
        }
    };
    let exe = terminal.exe.clone();
    let request = Request {
        worker: vec![OsString::from(&exe), OsString::from(worker::COMMAND)],
        exe,
        settings,
        model_files: files,
        enforcement: args
            .ram
            .filter(|_| args.enforce_ram)
            .map(|limit_bytes| EnforceRequest { limit_bytes, backend: args.enforce_backend.map(Into::into) }),
        timeout: args.enforce_timeout,
        swap_limit_bytes: args.swap_limit.0,
        sizes: Some(admitted.sizes),
        stopped,
    };
    let verbose = args.verbose;
    supervisor::supervise(&request, report, &mut |record| match record {
        Record::NativeLog { text, .. } if verbose => terminal.note(&harmless(text)),
        Record::Note { text } => terminal.note(text),
        Record::Warning { text } => terminal.note(&format!("warning: {text}")),
        _ => {}
    })
}

/// How long each part took, on standard error.
fn profile(report: &Report, terminal: &mut Terminal<'_>) {
    let timing = &report.timing;
    let milliseconds = |ms: Option<f64>| ms.map_or("not reached".to_owned(), |ms| format!("{ms:.1} ms"));
    let prompt_tokens = report.output.as_ref().map(|output| output.prompt_tokens);
    let prompt_rate = match (prompt_tokens, timing.prompt_ms) {
        (Some(tokens), Some(ms)) if ms > 0.0 => {
            format!(" ({tokens} tokens, {:.1} tokens/s)", tokens as f64 * 1000.0 / ms)
        }
        _ => String::new(),
    };
    let decode = timing
        .decode_tokens_per_second
        .map_or("fewer than two tokens".to_owned(), |rate| format!("{rate:.2} tokens/s"));
    terminal.note(&format!("load                 {}", milliseconds(timing.load_ms)));
    terminal.note(&format!("prompt               {}{prompt_rate}", milliseconds(timing.prompt_ms)));
    terminal.note(&format!("time to first token  {}", milliseconds(timing.time_to_first_token_ms)));
    terminal.note(&format!("generation           {decode}"));
    if let Some(read) = report.io.read_bytes {
        terminal.note(&format!("read from disk       {}", exact(read)));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(options: &[&str]) -> RunArgs {
        let arguments = ["ramforge", "run", "m.gguf", "--prompt", "x"].iter().chain(options).copied();
        match Cli::try_parse_from(arguments).unwrap().command {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_target_that_does_nothing_or_is_missing_is_refused() {
        for (options, reason) in [
            (&["--residency-target", "1G"][..], "--residency-target does nothing"),
            (&["--residency-reserve", "1M"], "--residency-reserve does nothing"),
            (&["--residency-policy", "active"], "--residency-policy active needs a target"),
            (&["--residency-policy", "observe", "--residency-reserve", "1M"], "--residency-reserve needs"),
        ] {
            let error = check_target(&args(options)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(reason), "{error}");
        }
        check_target(&args(&["--residency-policy", "observe"])).unwrap();
        check_target(&args(&["--residency-policy", "active", "--residency-target", "1G"])).unwrap();
    }

    #[test]
    fn what_makes_a_run_worse_is_warned_of() {
        assert!(warnings(&args(&["--threads", "2", "--ctx", "2048"]), Some(2048), 2).is_empty());
        let both = warnings(&args(&["--threads", "3", "--ctx", "2049"]), Some(2048), 2);
        assert!(
            both[0].contains("3 threads on 2 processors") && both[1].contains("2048 the model was trained")
        );
        assert_eq!(both.len(), 2);
    }
}
