//! The guard: whether a run may start, how, and what to say.

use super::{Budget, Fit, Term, Verdict, Way, WayVerdict};
use crate::report::{Admission, AdmissionTerm};
use crate::size::{exact, readable};
use crate::{Error, ErrorKind};

/// How a run is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The ways the policy allows, the one that is wanted first.
    pub allowed: &'a [Way],
    /// Whether a slower way may be taken than the first that the layout allows.
    pub slower: bool,
}

/// What the guard says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The way the run may take; `None` refuses it.
    pub way: Option<Way>,
    /// For the report.
    pub admission: Admission,
    /// What the user should know of a run that is admitted.
    pub warning: Option<String>,
}

impl Decision {
    /// Decides for `fit`.
    pub fn new(fit: &Fit, budget: &Budget, asked: Asked<'_>) -> Self {
        let best = fit.best(asked.allowed);
        let wanted = fit.ways.iter().find(|way| asked.allowed.contains(&way.way));
        let slower = best.zip(wanted).is_some_and(|(best, wanted)| best.way != wanted.way);
        match best {
            Some(best) if asked.slower || !slower => Self {
                way: Some(best.way),
                admission: admission(fit, best.way.name(), Some((best, admitted(fit, best, budget)))),
                warning: (best.verdict == Verdict::MayBeKilled).then(|| tight(best, budget)),
            },
            _ => {
                let allowed = fit.ways.iter().filter(|way| asked.allowed.contains(&way.way));
                let least = allowed.min_by_key(|way| way.needs_bytes).filter(|_| asked.slower);
                let reason = least.or(wanted).map(|way| (way, refused(way, budget)));
                Self { way: None, admission: admission(fit, "refused", reason), warning: None }
            }
        }
    }
}

/// The error of a refused run, without hints.
pub fn refusal(admission: &Admission) -> Error {
    let known = |term: &AdmissionTerm| Some(format!("\n  {}: {}", term.name, exact(term.bytes?)));
    let terms: String = admission.terms.iter().filter_map(known).collect();
    let reason = admission.reason.as_deref().unwrap_or_default();
    Error::new(ErrorKind::Refused, format!("refused before loading: {reason}{terms}"))
}

fn admission(fit: &Fit, verdict: &str, reason: Option<(&WayVerdict, String)>) -> Admission {
    let (terms, reason) = reason.map_or((Vec::new(), None), |(way, text)| (terms(fit, way), Some(text)));
    Admission { verdict: verdict.to_owned(), reason, terms }
}

/// What `way` needs, term by term.
fn terms(fit: &Fit, way: &WayVerdict) -> Vec<AdmissionTerm> {
    let mut terms = fit.footprint.anonymous_terms(way.way == Way::ResidentRepacked);
    let anonymous: u64 = terms.iter().map(|term| term.bytes).sum();
    let (rest, reserve) = match way.way {
        Way::ResidentRepacked | Way::Resident => ("model files and page tables", "reserve"),
        Way::Streaming => ("smallest set of weights to stream with, and page tables", "reserve"),
        Way::KernelPaging => ("page tables", "room for pages of the model files"),
    };
    terms.push(Term::new(rest, way.needs_bytes - way.reserve_bytes - anonymous, "the headers"));
    terms.push(Term::new(reserve, way.reserve_bytes, "this program's rule"));
    let into =
        |term: Term| AdmissionTerm { name: term.name, bytes: Some(term.bytes), source: Some(term.source) };
    terms.into_iter().map(into).collect()
}

fn admitted(fit: &Fit, best: &WayVerdict, budget: &Budget) -> String {
    format!(
        "needs {} of a budget of {} ({}); its speed is limited by {}",
        readable(best.needs_bytes),
        readable(budget.bytes),
        budget.reason,
        fit.bottleneck(best)
    )
}

fn tight(best: &WayVerdict, budget: &Budget) -> String {
    format!(
        "the kernel may kill this run: to be sure it needs {}, and the budget is {} ({})",
        readable(best.needs_bytes),
        readable(budget.bytes),
        budget.reason
    )
}

fn refused(way: &WayVerdict, budget: &Budget) -> String {
    let what = if way.way.is_resident() { "to keep all weights in memory" } else { "at least" };
    format!(
        "it needs {} {what}, and the budget is {} ({}), {} less",
        readable(way.needs_bytes),
        exact(budget.bytes),
        budget.reason,
        readable(way.needs_bytes.saturating_sub(budget.bytes))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::builder::Builder;
    use crate::plan::{Footprint, Model, NativeSizes};

    const MIB: u64 = 1 << 20;

    fn fit(budget_bytes: u64) -> (Fit, Budget) {
        let mut model = Model::of(&Builder::llama().open().unwrap());
        model.file_bytes = 1000 * MIB;
        let sizes = NativeSizes { kv_bytes: 50 * MIB, base_bytes: 10 * MIB, ..NativeSizes::default() };
        let budget = Budget { bytes: budget_bytes, reason: "--ram".to_owned(), bounds: Vec::new() };
        (Fit::new(&model, Footprint { file_bytes: model.file_bytes, sizes }, budget_bytes), budget)
    }

    fn decide(budget_bytes: u64, slower: bool) -> Decision {
        let (fit, budget) = fit(budget_bytes);
        let allowed = [Way::ResidentRepacked, Way::Resident, Way::KernelPaging];
        Decision::new(&fit, &budget, Asked { allowed: &allowed, slower })
    }

    #[test]
    fn the_fastest_way_that_works_is_taken() {
        assert_eq!(decide(2000 * MIB, true).way, Some(Way::Resident));
        let slower = decide(500 * MIB, true);
        assert_eq!(slower.way, Some(Way::KernelPaging));
        assert_eq!(slower.admission.verdict, "kernel-paging");
        assert_eq!(slower.warning, None);
    }

    #[test]
    fn a_slower_way_is_refused_where_none_is_wanted() {
        let decision = decide(500 * MIB, false);
        assert_eq!(decision.way, None);
        let reason = decision.admission.reason.unwrap();
        assert!(reason.contains("to keep all weights in memory"), "{reason}");
        assert_eq!(decide(2000 * MIB, false).way, Some(Way::Resident));
    }

    #[test]
    fn between_surely_and_never_there_is_a_warning() {
        let decision = decide(65 * MIB, true);
        assert_eq!(decision.way, Some(Way::KernelPaging));
        assert!(decision.warning.unwrap().contains("may kill"));
        assert_eq!(decide(59 * MIB, true).way, None);
    }

    #[test]
    fn a_refusal_has_terms_that_add_up_to_what_is_needed() {
        let (fit, _) = fit(59 * MIB);
        let decision = decide(59 * MIB, true);
        assert_eq!(decision.admission.verdict, "refused");
        let sum: u64 = decision.admission.terms.iter().filter_map(|term| term.bytes).sum();
        assert_eq!(sum, fit.ways.last().unwrap().needs_bytes);
        let error = refusal(&decision.admission);
        assert_eq!(error.kind().exit_code(), 3);
        assert!(error.to_string().contains("KV cache for 0 tokens: 50 MiB"), "{error}");
    }
}
