//! The guard before a run: sizes from the helper, a decision, and what to type instead of what is refused.

use crate::cli::{FitChoice, RunArgs};
use crate::commands::Terminal;
use crate::commands::plan::budget;
use crate::engine::{BATCH_TOKENS, Policy, PromptSource, Settings};
use crate::gguf;
use crate::plan::{
    Asked, Budget, ContextRequest, ContextTokens, Decision, Fit, Footprint, KvType, Model, NativeSizes, Way,
    largest_context, refusal,
};
use crate::report::Admission;
use crate::sizing::{Sizer, Subject, check_name};
use crate::supervisor::Sizes;
use crate::{Error, ErrorKind, Result};

/// What the guard found out.
pub struct Admitted {
    /// For the report.
    pub admission: Admission,
    /// To explain a kill for memory.
    pub sizes: Sizes,
    /// The settings with which the worker takes the way that was chosen.
    pub settings: Settings,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Why the run must not start.
    pub refused: Option<Error>,
}

/// Prices the run that `settings` describe against what it may use. A model that the native library cannot size
/// is for the worker to explain: nothing is refused for it, unless its context can never be held.
///
/// # Errors
/// What is free cannot be found out, or a file's name cannot be passed on to the worker.
pub fn admit(
    args: &RunArgs,
    mut settings: Settings,
    model: &gguf::Model,
    terminal: &Terminal<'_>,
) -> Result<Admitted> {
    let prompt_file = match &settings.prompt {
        PromptSource::File(path) => Some(path),
        _ => None,
    };
    settings.files.iter().chain(prompt_file).try_for_each(|path| check_name(path))?;
    let budget = budget(args.ram)?;
    let mut guard = match Guard::new(&settings, model, terminal) {
        Ok(guard) => guard,
        Err(error) => return Ok(without_sizes(settings, model, &error, args.no_fit_guard)),
    };
    let allowed = allowed(&settings);
    let fit = Fit::new(&guard.model, guard.footprint, budget.bytes);
    let slower = args.fit == FitChoice::Auto;
    let mut decision = Decision::new(&fit, &budget, Asked { allowed, slower });
    let refused = match decision.way {
        Some(_) => None,
        None if args.no_fit_guard => {
            let reason = decision.admission.reason.clone().unwrap_or_default();
            decision.admission.verdict = "overridden".to_owned();
            decision.warning = Some(format!("loading although {reason} (--no-fit-guard)"));
            None
        }
        None => Some(guard.hints(args, &fit, &budget, allowed, refusal(&decision.admission))),
    };
    let repacked = guard.footprint.sizes.repacked_weights_bytes > 0;
    let way = decision.way;
    let any_prompt = guard.holds_for_any_prompt(way, budget.bytes, allowed);
    if !any_prompt {
        undecided(&mut decision.admission);
    }
    settings.repack &= way.is_none_or(|way| way == Way::ResidentRepacked || !repacked);
    let mut notes: Vec<String> =
        decision.warning.iter().map(|warning| format!("warning: {warning}")).collect();
    if let Some(way) = way.filter(|way| !way.is_resident() && settings.policy != Policy::Stream) {
        notes.push(slower_note(&fit, way, &budget));
    }
    match (settings.policy, way) {
        (Policy::Auto, Some(Way::Streaming)) => {
            settings.policy = Policy::Stream;
            settings.ram_bytes = Some(budget.bytes);
        }
        // The worker is the first to know the prompt, and decides.
        (Policy::Auto, Some(_)) if !any_prompt => {
            settings.ram_bytes = Some(budget.bytes);
            settings.must_fit = !slower;
        }
        (Policy::Auto, Some(_)) => settings.policy = Policy::Off,
        _ => {}
    }
    Ok(Admitted {
        admission: decision.admission,
        sizes: sizes(&fit, model, settings.repack, allowed),
        settings,
        notes,
        refused,
    })
}

/// The ways the policy allows, the fastest first.
const fn allowed(settings: &Settings) -> &'static [Way] {
    match (settings.policy, settings.repack) {
        (Policy::Stream, _) => &[Way::Streaming],
        (Policy::Auto, true) => &[Way::ResidentRepacked, Way::Resident, Way::Streaming],
        (Policy::Auto, false) => &[Way::Resident, Way::Streaming],
        (_, true) => &[Way::ResidentRepacked, Way::Resident, Way::KernelPaging],
        (_, false) => &[Way::Resident, Way::KernelPaging],
    }
}

fn slower_note(fit: &Fit, way: Way, budget: &Budget) -> String {
    let needed = fit.ways.iter().find(|way| way.way.is_resident()).map_or(0, |way| way.needs_bytes);
    let read = fit.ways.iter().find(|candidate| candidate.way == way);
    format!(
        "the model needs {} to stay in memory and may use {} ({}): it is limited by {}",
        crate::size::readable(needed),
        crate::size::readable(budget.bytes),
        budget.reason,
        read.map_or(String::new(), |way| fit.bottleneck(way))
    )
}

fn sizes(fit: &Fit, model: &gguf::Model, repack: bool, allowed: &[Way]) -> Sizes {
    let native = &fit.footprint.sizes;
    Sizes {
        context_tokens: Some(native.context_tokens),
        file_weights_bytes: Some(model.tensor_bytes()),
        anonymous_weights_bytes: Some(if repack { native.repacked_weights_bytes } else { 0 }),
        kv_bytes: Some(native.kv_bytes),
        compute_bytes: Some(native.compute_bytes + native.work_bytes + native.output_bytes),
        other_bytes: Some(native.base_bytes),
        // The whole prompt may need more.
        smallest_ram_bytes: native.prompt_tokens.and_then(|_| fit.smallest_ram_bytes(allowed)),
    }
}

/// Says that `admission` rests on a prompt that is not known yet.
fn undecided(admission: &mut Admission) {
    let reason = admission.reason.take().unwrap_or_default();
    admission.verdict = "unknown".to_owned();
    admission.reason =
        Some(format!("the prompt is not known before the run; with a prompt of one token it {reason}"));
}

fn without_sizes(settings: Settings, model: &gguf::Model, error: &Error, no_fit_guard: bool) -> Admitted {
    let (verdict, note, refused) = weigh_unsized(error, no_fit_guard);
    Admitted {
        admission: Admission {
            verdict: verdict.to_owned(),
            reason: Some(error.to_string()),
            terms: Vec::new(),
        },
        sizes: Sizes { file_weights_bytes: Some(model.tensor_bytes()), ..Sizes::default() },
        settings,
        notes: note.into_iter().collect(),
        refused,
    }
}

/// What becomes of a run that could not be sized because of `error`: the verdict, what the user should know, and why
/// it must not start.
fn weigh_unsized(error: &Error, no_fit_guard: bool) -> (&'static str, Option<String>, Option<Error>) {
    match (error.kind(), no_fit_guard) {
        (ErrorKind::Refused, false) => {
            let refused = Error::new(ErrorKind::Refused, format!("refused before loading: {error}"));
            let refused = error.hints().iter().fold(refused, Error::hint);
            ("refused", None, Some(refused.hint("--no-fit-guard (loads anyway)")))
        }
        (ErrorKind::Refused, true) => {
            ("overridden", Some(format!("warning: loading although {error} (--no-fit-guard)")), None)
        }
        _ => ("unknown", Some(format!("warning: the fit guard cannot size this run: {error}")), None),
    }
}

/// The helper, and what it said of the run.
struct Guard {
    sizer: Sizer,
    model: Model,
    request: ContextRequest,
    footprint: Footprint,
}

impl Guard {
    fn new(settings: &Settings, model: &gguf::Model, terminal: &Terminal<'_>) -> Result<Self> {
        let subject = Subject {
            files: settings.files.clone(),
            repack: settings.repack,
            run: Some(Box::new(settings.clone())),
        };
        let mut sizer = Sizer::start(&terminal.exe, &subject)?;
        let request = ContextRequest {
            context: ContextTokens::Run,
            batch_tokens: BATCH_TOKENS,
            kv_type: settings.kv_type,
            threads: settings.threads,
        };
        let sizes = sizer.sizes(&request)?;
        let footprint = Footprint { file_bytes: model.file_bytes(), sizes };
        Ok(Self { sizer, model: Model::of(model), request, footprint })
    }

    /// Whether `way` is also the one for the longest prompt that the context can hold, if the prompt is not known.
    fn holds_for_any_prompt(&mut self, way: Option<Way>, budget: u64, allowed: &[Way]) -> bool {
        let known = self.footprint.sizes.prompt_tokens.is_some();
        known || way.is_none() || {
            let request = ContextRequest { context: ContextTokens::Longest, ..self.request };
            let fits = |sizes| Fit::new(&self.model, Footprint { sizes, ..self.footprint }, budget);
            let best = |fit: Fit| fit.best(allowed).map(|best| best.way);
            self.sizer.sizes(&request).is_ok_and(|sizes| best(fits(sizes)) == way)
        }
    }

    fn works(&self, sizes: NativeSizes, budget: u64, allowed: &[Way]) -> bool {
        Fit::new(&self.model, Footprint { sizes, ..self.footprint }, budget).works(allowed)
    }

    /// Adds to `error` what would work, as far as there is something.
    fn hints(
        &mut self,
        args: &RunArgs,
        fit: &Fit,
        budget: &Budget,
        allowed: &[Way],
        mut error: Error,
    ) -> Error {
        // Without a slower way, only what is wanted helps.
        let wanted = fit.ways.iter().map(|way| way.way).find(|way| allowed.contains(way));
        let allowed = match args.fit {
            FitChoice::Auto => allowed,
            FitChoice::Off => wanted.as_slice(),
        };
        if let Some(tokens) = self.smaller_context(budget.bytes, allowed) {
            error = error.hint(format!("--ctx {tokens} (the largest context that fits)"));
        }
        if self.request.kv_type == KvType::F16 && self.quantized_works(budget.bytes, allowed) {
            error = error.hint("--kv-type q8_0 (keys and values of half the size)");
        }
        if let Some(bytes) = fit.smallest_ram_bytes(allowed) {
            let ram = format!("--ram {}M (the smallest that works)", bytes >> 20);
            error = error.hint(match budget.bounds.first() {
                Some(free) if free.bytes < bytes => {
                    format!(
                        "{ram}, once there is room: {} is {}",
                        free.name,
                        crate::size::readable(free.bytes)
                    )
                }
                _ => ram,
            });
        }
        if args.fit == FitChoice::Off {
            error = error.hint("--fit auto (takes a slower way that fits, if there is one)");
        }
        error.hint("--no-fit-guard (loads anyway)")
    }

    /// The largest context that works and holds the prompt, if it is smaller than the one that was asked for.
    fn smaller_context(&mut self, budget: u64, allowed: &[Way]) -> Option<u32> {
        let asked = self.footprint.sizes.context_tokens;
        let (model, footprint, request) = (&self.model, self.footprint, self.request);
        let fits = |sizes| Fit::new(model, Footprint { sizes, ..footprint }, budget).works(allowed);
        let mut sizes =
            |tokens| self.sizer.sizes(&ContextRequest { context: ContextTokens::Exactly(tokens), ..request });
        // A hint that cannot be found is not given; the refusal stands without it.
        let largest = largest_context(asked, &mut sizes, &fits).ok()??;
        (largest < asked && largest > footprint.sizes.prompt_tokens.unwrap_or(0)).then_some(largest)
    }

    fn quantized_works(&mut self, budget: u64, allowed: &[Way]) -> bool {
        let request = ContextRequest { kv_type: KvType::Q8_0, ..self.request };
        self.sizer.sizes(&request).is_ok_and(|sizes| self.works(sizes, budget, allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_cannot_be_sized_starts_with_a_warning_unless_memory_is_why() {
        let (verdict, note, refused) = weigh_unsized(&Error::failed("no such tokenizer"), false);
        assert_eq!((verdict, refused.is_none()), ("unknown", true));
        assert_eq!(note.unwrap(), "warning: the fit guard cannot size this run: no such tokenizer");

        let error = Error::new(ErrorKind::Refused, "a context is too large").hint("use a smaller --ctx");
        let (verdict, note, refused) = weigh_unsized(&error, false);
        let refused = refused.unwrap();
        assert_eq!((verdict, note, refused.kind()), ("refused", None, ErrorKind::Refused));
        assert_eq!(refused.to_string(), "refused before loading: a context is too large");
        assert_eq!(refused.hints(), ["use a smaller --ctx", "--no-fit-guard (loads anyway)"]);

        let (verdict, note, refused) = weigh_unsized(&error, true);
        assert_eq!((verdict, refused.is_none()), ("overridden", true));
        assert!(note.unwrap().contains("although a context is too large"));
    }

    #[test]
    fn a_verdict_for_a_prompt_nobody_has_read_is_none() {
        let mut admission = Admission {
            verdict: "resident".to_owned(),
            reason: Some("needs 1 MiB".to_owned()),
            terms: Vec::new(),
        };
        undecided(&mut admission);
        assert_eq!(admission.verdict, "unknown");
        assert!(admission.reason.unwrap().ends_with("with a prompt of one token it needs 1 MiB"));
    }
}
