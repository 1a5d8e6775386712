//! Why a worker ended, and what to say about it: pure, from what was seen.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;

use super::model_files::Shrunk;
use super::records::Sizes;
use super::story::Story;
use crate::report::Enforcement;
use crate::size::{exact, readable};
use crate::{Error, ErrorKind};

/// Why the supervisor itself ended the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It took longer than this.
    Timeout(Duration),
    /// This signal asked for it.
    Signal(i32),
    /// The machine's swap in use grew by so many bytes.
    Swap(u64),
}

/// Everything that was seen of the end.
#[derive(Debug)]
pub(super) struct Ending<'a> {
    pub status: ExitStatus,
    pub stop: Option<Stop>,
    /// Whether the supervisor sent SIGKILL.
    pub killed: bool,
    /// Whether the kernel was to hold a limit, and what it says.
    pub enforcement: Option<&'a Enforcement>,
    /// How many processes the kernel killed for memory meanwhile, outside any group of ours.
    pub outer_kills: OuterKills,
    /// A model file that has become shorter meanwhile.
    pub shrunk: Option<Shrunk>,
    pub story: &'a Story,
}

/// Kills for memory seen from an unenforced run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OuterKills {
    /// In the group that the supervisor itself lives in.
    pub group: u64,
    /// On the whole machine.
    pub host: u64,
}

impl OuterKills {
    /// What has been added since `before`.
    pub const fn since(self, before: Self) -> Self {
        Self { group: self.group.saturating_sub(before.group), host: self.host.saturating_sub(before.host) }
    }
}

impl Ending<'_> {
    /// The error the run ended in, if it did.
    pub fn error(&self) -> Option<Error> {
        if self.status.success() && self.story.failed.is_none() {
            return None;
        }
        Some(self.kernel_kill().or_else(|| self.stopped()).unwrap_or_else(|| self.own_end()))
    }

    /// SIGKILL that the supervisor did not send, while the kernel was killing for memory.
    fn kernel_kill(&self) -> Option<Error> {
        if self.status.signal() != Some(Signal::KILL.as_raw()) || self.killed {
            return None;
        }
        match self.enforcement {
            Some(enforcement) if enforcement.oom_kills > Some(0) => Some(self.out_of_memory(enforcement)),
            Some(_) => None,
            None => self.outer_kill(),
        }
    }

    fn out_of_memory(&self, enforcement: &Enforcement) -> Error {
        let amount = |bytes: Option<u64>| bytes.map_or("not known".to_owned(), exact);
        let limit_bytes = enforcement.limit_bytes.unwrap_or(0);
        let mut message = format!(
            "killed by the kernel for memory {}: the limit is {}, the group's peak was {}",
            self.story.phase.describe(),
            amount(enforcement.limit_bytes),
            amount(enforcement.peak_bytes),
        );
        if enforcement.limit_events == Some(0) {
            message.push_str("; it never met its own limit, so a group above it or the machine ran out");
            return Error::new(ErrorKind::OomKilled, message).hint("free memory outside this run");
        }
        let needs = self.story.sizes.as_ref().map(Needs::of).unwrap_or_default();
        message.push_str(&needs.describe(limit_bytes));
        let error = Error::new(ErrorKind::OomKilled, message);
        needs.hints(limit_bytes).into_iter().fold(error, Error::hint)
    }

    fn outer_kill(&self) -> Option<Error> {
        let OuterKills { group, host } = self.outer_kills;
        let whose = match (group, host) {
            (0, 0) => return None,
            (0, _) => "the machine ran out of memory",
            _ => "the group this command runs in ran out of memory",
        };
        let message = format!("killed by the kernel for memory {}: {whose}", self.story.phase.describe());
        Some(
            Error::new(ErrorKind::OomKilled, message)
                .hint("give the run a budget that fits what is free: --ram SIZE --enforce-ram"),
        )
    }

    fn stopped(&self) -> Option<Error> {
        match self.stop? {
            Stop::Timeout(limit) => Some(
                Error::new(
                    ErrorKind::Timeout,
                    format!("stopped {} after {} s", self.story.phase.describe(), limit.as_secs_f64()),
                )
                .hint("--enforce-timeout SECONDS allows more"),
            ),
            Stop::Signal(signal) => Some(self.interrupted(signal)),
            Stop::Swap(growth) => Some(self.swapping(growth)),
        }
    }

    fn swapping(&self, growth: u64) -> Error {
        let needs = self.story.sizes.as_ref().map(Needs::of).unwrap_or_default();
        let message = format!(
            "stopped {}: the machine had swapped out {} since the start{}",
            self.story.phase.describe(),
            exact(growth),
            needs.list().map(|terms| format!("; the run holds {terms}")).unwrap_or_default(),
        );
        Error::new(ErrorKind::Refused, message)
            .hint("give the run less: --ram SIZE, or a smaller --ctx; `ramforge plan` says what works")
            .hint("--swap-limit SIZE allows more swapping, --swap-limit off any")
    }

    fn interrupted(&self, signal: i32) -> Error {
        let message = format!("interrupted by {} {}", signal_name(signal), self.story.phase.describe());
        Error::new(ErrorKind::Interrupted, message)
    }

    /// The worker ended by itself, or by somebody else's hand.
    fn own_end(&self) -> Error {
        let during = self.story.phase.describe();
        let signal = self.status.signal();
        if let Some(shrunk) = &self.shrunk
            && (signal == Some(Signal::BUS.as_raw()) || self.story.failed.is_some())
        {
            return Error::failed(shrunk.describe())
                .hint("run again once the file is whole, and replace model files by renaming");
        }
        let Some(signal) = signal else {
            return self.story.failed.as_ref().map_or_else(
                || Error::failed(format!("the worker ended ({}) without saying why, {during}", self.status)),
                Error::from,
            );
        };
        match Signal::from_named_raw(signal) {
            Some(Signal::INT | Signal::TERM | Signal::HUP) => self.interrupted(signal),
            Some(
                Signal::ABORT
                | Signal::SEGV
                | Signal::ILL
                | Signal::FPE
                | Signal::BUS
                | Signal::TRAP
                | Signal::SYS,
            ) => self.native_abort(signal),
            _ => Error::failed(format!("the worker was ended by {} {during}", signal_name(signal)))
                .hint("something outside this run sent that signal"),
        }
    }

    fn native_abort(&self, signal: i32) -> Error {
        let what = format!(
            "native code aborted the worker ({}) {}",
            signal_name(signal),
            self.story.phase.describe()
        );
        let message = match self.story.native.back() {
            Some(last) => format!("{what}: {}", last.trim()),
            None => format!("{what}, without a message"),
        };
        Error::new(ErrorKind::NativeAbort, message)
            .hint("check the model file: `ramforge inspect` reads its header, a checksum shows damage")
    }
}

/// What a run has to hold in memory at once, as far as it is known.
#[derive(Debug, Default)]
struct Needs {
    /// Name and bytes of what the kernel can neither drop nor, under a limit on swap, move away.
    held: Vec<(String, u64)>,
    smallest_ram_bytes: Option<u64>,
    kv: Option<(u32, u64)>,
}

/// Contexts are offered in steps of this many tokens.
const CONTEXT_STEP: u64 = 256;

impl Needs {
    fn of(sizes: &Sizes) -> Self {
        let kv_name = match sizes.context_tokens {
            Some(tokens) => format!("KV cache for {tokens} tokens"),
            None => "KV cache".to_owned(),
        };
        let terms = [
            ("weights in anonymous memory".to_owned(), sizes.anonymous_weights_bytes),
            (kv_name, sizes.kv_bytes),
            ("compute buffers".to_owned(), sizes.compute_bytes),
            ("vocabulary, metadata and program".to_owned(), sizes.other_bytes),
        ];
        Self {
            held: terms
                .into_iter()
                .filter_map(|(name, bytes)| Some((name, bytes.filter(|b| *b > 0)?)))
                .collect(),
            smallest_ram_bytes: sizes.smallest_ram_bytes,
            kv: sizes.context_tokens.zip(sizes.kv_bytes),
        }
    }

    fn total(&self) -> u64 {
        self.held.iter().map(|(_, bytes)| bytes).sum()
    }

    /// What is held, with its sizes; `None` when none is known.
    fn list(&self) -> Option<String> {
        let terms = self.held.iter().map(|(name, bytes)| format!("{name} {}", exact(*bytes)));
        (!self.held.is_empty()).then(|| terms.collect::<Vec<_>>().join(", "))
    }

    fn describe(&self, limit_bytes: u64) -> String {
        let Some(terms) = self.list() else { return "; its sizes were not known yet".to_owned() };
        let total = self.total();
        let verdict = match total.checked_sub(limit_bytes) {
            Some(over) if over > 0 => format!("{} more than the limit", readable(over)),
            _ => "under the limit, so what was not measured took the rest".to_owned(),
        };
        format!("; it has to hold {terms}: together {}, {verdict}", readable(total))
    }

    /// The smallest changes that would help, as far as the sizes tell.
    fn hints(&self, limit_bytes: u64) -> Vec<String> {
        let total = self.total();
        let needed = self.smallest_ram_bytes.unwrap_or(total);
        let mut hints = Vec::new();
        if needed > limit_bytes {
            let least = if self.smallest_ram_bytes.is_some() { "the smallest that fits" } else { "at least" };
            hints.push(format!("--ram {}M ({least})", needed.div_ceil(1 << 20)));
            hints.extend(self.smaller_context(needed - limit_bytes));
        } else {
            hints.push("a larger --ram; `ramforge plan` says what this model needs".to_owned());
        }
        hints
    }

    /// A context whose KV cache is smaller by `shortfall` bytes.
    fn smaller_context(&self, shortfall: u64) -> Option<String> {
        let (tokens, kv_bytes) = self.kv?;
        let left = kv_bytes.checked_sub(shortfall)?;
        let fitting = u128::from(tokens) * u128::from(left) / u128::from(kv_bytes.max(1));
        let tokens = u64::try_from(fitting).ok()? / CONTEXT_STEP * CONTEXT_STEP;
        (tokens > 0).then(|| format!("--ctx {tokens} (a KV cache smaller by {})", readable(shortfall)))
    }
}

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::story::{Failure, Phase};
    use super::*;

    const SIGKILL: i32 = 9;
    const MIB: u64 = 1 << 20;

    fn ended(status: i32, story: &Story) -> Ending<'_> {
        Ending {
            status: ExitStatus::from_raw(status),
            stop: None,
            killed: false,
            enforcement: None,
            outer_kills: OuterKills::default(),
            shrunk: None,
            story,
        }
    }

    fn kind_and_message(ending: &Ending<'_>) -> (ErrorKind, String) {
        let error = ending.error().unwrap();
        (error.kind(), error.to_string())
    }

    fn met_its_limit(limit_bytes: u64) -> Enforcement {
        Enforcement {
            limit_bytes: Some(limit_bytes),
            peak_bytes: Some(limit_bytes),
            limit_events: Some(3),
            oom_kills: Some(1),
            ..Enforcement::default()
        }
    }

    #[test]
    fn success_is_no_error() {
        assert!(ended(0, &Story::default()).error().is_none());
    }

    #[test]
    fn a_kill_for_memory_names_what_did_not_fit_and_what_would_help() {
        let sizes = Sizes {
            context_tokens: Some(4096),
            kv_bytes: Some(90 * MIB),
            compute_bytes: Some(10 * MIB),
            ..Sizes::default()
        };
        let story = Story { phase: Phase::Loading, sizes: Some(sizes), ..Story::default() };
        let enforcement = met_its_limit(64 * MIB);
        let ending = Ending { enforcement: Some(&enforcement), ..ended(SIGKILL, &story) };
        let (kind, message) = kind_and_message(&ending);
        assert_eq!(kind, ErrorKind::OomKilled);
        for part in [
            "killed by the kernel for memory while loading the model",
            "the limit is 64 MiB (67108864 bytes)",
            "KV cache for 4096 tokens 90 MiB",
            "together 100 MiB, 36 MiB more than the limit",
        ] {
            assert!(message.contains(part), "{part:?} in {message}");
        }
        // 54 of 90 MiB are left for the cache: 2457 tokens, 2304 in whole steps.
        let error = ending.error().unwrap();
        assert_eq!(error.hints()[0], "--ram 100M (at least)");
        assert!(error.hints()[1].starts_with("--ctx 2304 "), "{:?}", error.hints());
    }

    #[test]
    fn the_smallest_budget_of_the_plan_is_what_is_offered() {
        let sizes = Sizes { smallest_ram_bytes: Some(30 * MIB + 1), ..Sizes::default() };
        let story = Story { sizes: Some(sizes), ..Story::default() };
        let enforcement = met_its_limit(16 * MIB);
        let ending = Ending { enforcement: Some(&enforcement), ..ended(SIGKILL, &story) };
        assert_eq!(ending.error().unwrap().hints(), ["--ram 31M (the smallest that fits)"]);
    }

    #[test]
    fn a_kill_without_known_sizes_says_so() {
        let story = Story::default();
        let enforcement = met_its_limit(MIB);
        let ending = Ending { enforcement: Some(&enforcement), ..ended(SIGKILL, &story) };
        let (_, message) = kind_and_message(&ending);
        assert!(message.ends_with("its sizes were not known yet"), "{message}");
    }

    #[test]
    fn a_kill_that_its_own_limit_did_not_cause_is_told_apart() {
        let story = Story::default();
        let enforcement = Enforcement { limit_events: Some(0), ..met_its_limit(MIB) };
        let ending = Ending { enforcement: Some(&enforcement), ..ended(SIGKILL, &story) };
        assert!(kind_and_message(&ending).1.contains("a group above it or the machine"));
    }

    #[test]
    fn sigkill_without_a_kill_for_memory_is_somebody_elses() {
        let story = Story::default();
        let enforcement = Enforcement { oom_kills: Some(0), ..met_its_limit(MIB) };
        let ending = Ending { enforcement: Some(&enforcement), ..ended(SIGKILL, &story) };
        assert_eq!(kind_and_message(&ending).0, ErrorKind::Failed);
        let ending = Ending { outer_kills: OuterKills { group: 0, host: 1 }, ..ended(SIGKILL, &story) };
        let (kind, message) = kind_and_message(&ending);
        assert_eq!(kind, ErrorKind::OomKilled);
        assert!(message.contains("the machine ran out of memory"), "{message}");
    }

    #[test]
    fn what_the_supervisor_did_is_what_is_reported() {
        let story = Story { phase: Phase::Generating, ..Story::default() };
        let stop = Some(Stop::Timeout(Duration::from_secs(1)));
        let ending = Ending { stop, killed: true, ..ended(SIGKILL, &story) };
        let expected = (ErrorKind::Timeout, "stopped while generating after 1 s".to_owned());
        assert_eq!(kind_and_message(&ending), expected);
        let ending = Ending { stop: Some(Stop::Signal(15)), ..ended(1 << 8, &story) };
        let expected = (ErrorKind::Interrupted, "interrupted by SIGTERM while generating".to_owned());
        assert_eq!(kind_and_message(&ending), expected);
    }

    #[test]
    fn swapping_names_the_growth_and_the_terms() {
        let sizes = Sizes { kv_bytes: Some(90 * MIB), ..Sizes::default() };
        let story = Story { phase: Phase::Loading, sizes: Some(sizes), ..Story::default() };
        let ending = Ending { stop: Some(Stop::Swap(600 * MIB)), killed: true, ..ended(SIGKILL, &story) };
        let (kind, message) = kind_and_message(&ending);
        assert_eq!(kind, ErrorKind::Refused);
        assert!(
            message.contains("while loading the model: the machine had swapped out 600 MiB"),
            "{message}"
        );
        assert!(message.ends_with("the run holds KV cache 90 MiB (94371840 bytes)"), "{message}");
    }

    #[test]
    fn a_native_abort_carries_the_last_native_message() {
        let story =
            Story { native: ["first".into(), "GGML_ASSERT(x) failed\n".into()].into(), ..Story::default() };
        for signal in [6, 11, 4, 8, 7] {
            let (kind, message) = kind_and_message(&ended(signal, &story));
            assert_eq!(kind, ErrorKind::NativeAbort);
            assert!(message.ends_with(": GGML_ASSERT(x) failed"), "{message}");
        }
        assert!(kind_and_message(&ended(6, &Story::default())).1.ends_with("without a message"));
    }

    #[test]
    fn a_file_that_shrank_explains_a_sigbus_and_an_error_and_nothing_else() {
        let story = Story::default();
        let files = tempfile::NamedTempFile::new().unwrap();
        files.as_file().set_len(2).unwrap();
        let watched = super::super::model_files::ModelFiles::open(&[files.path().to_owned()]);
        files.as_file().set_len(1).unwrap();
        let shrunk = watched.shrunk();
        let (kind, message) = kind_and_message(&Ending { shrunk: shrunk.clone(), ..ended(7, &story) });
        assert_eq!(kind, ErrorKind::Failed);
        assert!(message.ends_with("shrank from 2 bytes to 1 bytes while it was read"), "{message}");
        let aborted = Ending { shrunk: shrunk.clone(), ..ended(6, &story) };
        assert_eq!(kind_and_message(&aborted).0, ErrorKind::NativeAbort);
        let failed = Failure { kind: ErrorKind::Failed, message: "short read".into(), hints: Vec::new() };
        let story = Story { failed: Some(failed), ..Story::default() };
        assert!(kind_and_message(&Ending { shrunk, ..ended(1 << 8, &story) }).1.contains("shrank"));
    }

    #[test]
    fn an_error_of_the_worker_is_passed_on() {
        let failed = Failure { kind: ErrorKind::Refused, message: "no".into(), hints: vec!["less".into()] };
        let story = Story { failed: Some(failed), ..Story::default() };
        let error = ended(3 << 8, &story).error().unwrap();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Refused, "no"));
        assert_eq!(error.hints(), ["less"]);
        let (kind, message) = kind_and_message(&ended(5 << 8, &Story::default()));
        assert_eq!(kind, ErrorKind::Failed);
        assert!(message.contains("exit status: 5") && message.contains("before the load"), "{message}");
    }
}
