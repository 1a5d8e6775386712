//! What a model's speed is in a budget, beside what it could be: figures of runs, and the limit they make.
//!
//! Pure: `ramforge bench` starts the runs and measures the disk; here the rounds become medians and ratios.
//!
//! The limit is what no way to stream can beat: a pass over the model takes as long as its computation with
//! everything in memory, or as long as the disk takes for the bytes that do not fit, whichever is longer.

mod human;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan;
use crate::report::{Report, Tool};

/// The version of [`Bench`]: within it fields are added, never renamed or retyped.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bench {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The program that ran.
    pub tool: Tool,
    /// What was asked for.
    pub request: Request,
    /// The disk with the reads that streaming makes, in bytes a second: one figure a round, in order.
    pub disk_bytes_per_second: Option<Vec<f64>>,
    /// Why the disk was not measured.
    pub disk_reason: Option<String>,
    /// The ways that were compared: the policy first.
    pub ways: Vec<Measured>,
    /// What no way can beat, where it could be measured.
    pub limit: Option<Limit>,
    /// The policy's seconds for a token over the limit's.
    pub token_over_limit: Option<f64>,
    /// The policy's time for the prompt over the limit's.
    pub prompt_over_limit: Option<f64>,
    /// The policy's time to the first token over the limit's.
    pub first_token_over_limit: Option<f64>,
    /// Kernel paging's seconds for a token over the policy's.
    pub times_as_fast_as_paging: Option<f64>,
    /// Whether the logits of all runs were the same, bit for bit.
    pub same_logits: Option<bool>,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// The model's path as it was given.
    pub model: String,
    /// The budget.
    pub ram_bytes: u64,
    /// The policy.
    pub policy: String,
    /// Rounds.
    pub rounds: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated after the first.
    pub tokens: u32,
    /// Compute threads.
    pub threads: u32,
}

/// One way to run the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Which.
    pub way: Way,
    /// The figures of each round, in order.
    pub rounds: Vec<Figures>,
    /// Each figure's median.
    pub median: Figures,
    /// The fingerprint of each round's logits.
    pub logits: Vec<String>,
    /// Why there are no rounds, or no more of them.
    pub reason: Option<String>,
}

/// A way to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The policy, in the budget.
    Policy,
    /// As the native library does it, in the budget: the kernel decides what stays.
    KernelPaging,
    /// Everything in memory, without a budget.
    Resident,
}

/// The figures of a run. One that the run did not come to, or the kernel does not show, is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Seconds for a token after the first.
    pub seconds_per_token: Option<f64>,
    /// Bytes read from storage for each of them.
    pub read_per_token_bytes: Option<f64>,
    /// Milliseconds for the prompt.
    pub prompt_ms: Option<f64>,
    /// Bytes read for the prompt.
    pub prompt_read_bytes: Option<f64>,
    /// Milliseconds from the start to the first token.
    pub first_token_ms: Option<f64>,
    /// Milliseconds after it for what is to stay in memory and did not yet. A token's figures do not have them.
    #[serde(default)]
    pub settle_ms: Option<f64>,
    /// The most memory the group held.
    pub peak_bytes: Option<f64>,
    /// How often the group met its limit.
    pub limit_events: Option<f64>,
    /// Bytes of weights that stay in memory, by the policy's own account.
    pub pinned_bytes: Option<f64>,
    /// Bytes of them read before the prompt.
    #[serde(default)]
    pub pinned_from_start_bytes: Option<f64>,
    /// Bytes the policy reads in every pass for more than one token.
    pub streamed_bytes_per_pass: Option<f64>,
    /// Bytes the policy reads in a pass for one token: of experts, those that it uses.
    #[serde(default)]
    pub streamed_bytes_per_token: Option<f64>,
    /// Bytes the policy leaves to the kernel's paging, which reads them in every pass.
    #[serde(default)]
    pub paged_bytes_per_pass: Option<f64>,
    /// Milliseconds the computation waited for reads.
    pub stall_ms: Option<f64>,
}

/// What no way can beat.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// Seconds for a token: the longer of computing it and reading what does not fit.
    pub seconds_per_token: Option<f64>,
    /// Milliseconds for the prompt: the longer of computing it and reading once what was not read before it, and what
    /// does not fit for each further batch.
    pub prompt_ms: Option<f64>,
    /// Milliseconds to the first token: the same with every weight read once.
    pub first_token_ms: Option<f64>,
}

impl Figures {
    /// The figures of a run that ended well.
    pub fn of(report: &Report) -> Self {
        let timing = &report.timing;
        let output = report.output.as_ref();
        let decoded = output.map(|output| output.generated_tokens.saturating_sub(1)).filter(|&n| n > 0);
        let streaming = report.streaming.as_ref();
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        Self {
            seconds_per_token: timing.decode_tokens_per_second.filter(|&rate| rate > 0.0).map(f64::recip),
            read_per_token_bytes: bytes(report.io.decode_read_bytes)
                .zip(decoded)
                .map(|(bytes, tokens)| bytes / tokens as f64),
            prompt_ms: timing.prompt_ms,
            prompt_read_bytes: bytes(report.io.prompt_read_bytes),
            first_token_ms: timing.time_to_first_token_ms,
            settle_ms: timing.settle_ms.filter(|_| report.streaming.is_some()),
            peak_bytes: bytes(report.enforcement.peak_bytes),
            limit_events: bytes(report.enforcement.limit_events),
            pinned_bytes: bytes(streaming.map(|streaming| streaming.pinned_bytes)),
            pinned_from_start_bytes: bytes(streaming.map(|streaming| streaming.pinned_from_start_bytes)),
            streamed_bytes_per_pass: bytes(streaming.map(|streaming| streaming.streamed_bytes_per_pass)),
            streamed_bytes_per_token: bytes(streaming.map(|streaming| streaming.streamed_bytes_per_token)),
            paged_bytes_per_pass: bytes(streaming.map(|streaming| streaming.paged_bytes_per_pass)),
            stall_ms: streaming.map(|streaming| streaming.stall_ms),
        }
    }

    /// Each figure's median over the rounds that have it.
    pub fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> Option<f64>| median(rounds.iter().filter_map(figure).collect());
        Self {
            seconds_per_token: of(|round| round.seconds_per_token),
            read_per_token_bytes: of(|round| round.read_per_token_bytes),
            prompt_ms: of(|round| round.prompt_ms),
            prompt_read_bytes: of(|round| round.prompt_read_bytes),
            first_token_ms: of(|round| round.first_token_ms),
            settle_ms: of(|round| round.settle_ms),
            peak_bytes: of(|round| round.peak_bytes),
            limit_events: of(|round| round.limit_events),
            pinned_bytes: of(|round| round.pinned_bytes),
            pinned_from_start_bytes: of(|round| round.pinned_from_start_bytes),
            streamed_bytes_per_pass: of(|round| round.streamed_bytes_per_pass),
            streamed_bytes_per_token: of(|round| round.streamed_bytes_per_token),
            paged_bytes_per_pass: of(|round| round.paged_bytes_per_pass),
            stall_ms: of(|round| round.stall_ms),
        }
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], upper) } else { upper })
}

impl Measured {
    /// A way that no run was made of yet.
    pub fn new(way: Way) -> Self {
        Self { way, rounds: Vec::new(), median: Figures::default(), logits: Vec::new(), reason: None }
    }

    /// Takes in a run that ended well, to be compared with runs whose weights are `repacked` or not. One that is not
    /// what it is measured for is the last, and not among the rounds.
    pub fn add(&mut self, report: &Report, repacked: bool) {
        self.reason = incomparable(self.way, report, repacked);
        if self.reason.is_some() {
            return;
        }
        let figures = Figures::of(report);
        // What is in memory already has no load worth a figure.
        let first_token_ms = figures.first_token_ms.filter(|_| self.way != Way::Resident);
        self.rounds.push(Figures { first_token_ms, ..figures });
        self.median = Figures::median(&self.rounds);
        let output = report.output.as_ref();
        self.logits.extend(output.and_then(|output| output.logits_fingerprint.clone()));
    }

    /// Whether it is worth another run.
    pub const fn goes_on(&self) -> bool {
        self.reason.is_none()
    }
}

/// Whether a run computed with copies of weights in another layout than the file's, whatever was asked for: they
/// round differently.
pub fn is_repacked(report: &Report) -> bool {
    report.inventory.as_ref().is_some_and(|inventory| inventory.anonymous_bytes + inventory.copy_bytes > 0)
}

/// Why a run's figures are not those of `way`, or not to be compared with runs whose weights are `repacked` or not.
fn incomparable(way: Way, report: &Report, repacked: bool) -> Option<String> {
    let verdict = report.admission.as_ref().map_or("unknown", |admission| &admission.verdict);
    let resident = [plan::Way::ResidentRepacked, plan::Way::Resident];
    if way == Way::Resident && resident.iter().all(|way| way.name() != verdict) {
        return Some(format!("the weights were not surely in memory: the guard's verdict is {verdict}"));
    }
    (is_repacked(report) != repacked)
        .then(|| "the weights were in another layout than in the policy's first run".to_owned())
}

/// What the runs were of, for [`Bench::new`].
#[derive(Clone, Debug)]
pub struct Subject {
    /// The program that ran.
    pub tool: Tool,
    /// What was asked for.
    pub request: Request,
    /// Bytes of the model's weights.
    pub weight_bytes: u64,
    /// Most tokens computed in one pass.
    pub batch_tokens: u32,
}

impl Bench {
    /// Puts the rounds in relation. `disk` has bytes a second of each round, or why they are missing.
    pub fn new(subject: Subject, disk: Result<Vec<f64>, String>, ways: Vec<Measured>) -> Self {
        let median_of = |way| {
            let measured = ways.iter().find(|measured| measured.way == way && !measured.rounds.is_empty());
            measured.map(|measured| measured.median)
        };
        let policy = median_of(Way::Policy).unwrap_or_default();
        let paging = median_of(Way::KernelPaging).unwrap_or_default();
        let limit = median_of(Way::Resident)
            .map(|resident| limit(&subject, &resident, &policy, disk.as_ref().ok().cloned()));
        let over =
            |value: Option<f64>, limit: Option<f64>| value.zip(limit).map(|(value, limit)| value / limit);
        Self {
            schema_version: SCHEMA_VERSION,
            tool: subject.tool,
            request: subject.request,
            disk_reason: disk.as_ref().err().cloned(),
            disk_bytes_per_second: disk.ok(),
            token_over_limit: over(policy.seconds_per_token, limit.and_then(|limit| limit.seconds_per_token)),
            prompt_over_limit: over(policy.prompt_ms, limit.and_then(|limit| limit.prompt_ms)),
            first_token_over_limit: over(policy.first_token_ms, limit.and_then(|limit| limit.first_token_ms)),
            times_as_fast_as_paging: over(paging.seconds_per_token, policy.seconds_per_token),
            same_logits: same(ways.iter().flat_map(|measured| &measured.logits)),
            limit,
            ways,
        }
    }
}

/// Whether all are the same; nothing to say of none.
fn same<'logits>(mut all: impl Iterator<Item = &'logits String>) -> Option<bool> {
    let first = all.next()?;
    Some(all.all(|other| other == first))
}

fn limit(subject: &Subject, resident: &Figures, policy: &Figures, disk: Option<Vec<f64>>) -> Limit {
    let disk = disk.and_then(median).filter(|&bytes| bytes > 0.0);
    // Without streaming nothing has to be read after the load.
    let paged = policy.paged_bytes_per_pass.unwrap_or(0.0);
    let token = policy.streamed_bytes_per_token.unwrap_or(0.0) + paged;
    let pass = policy.streamed_bytes_per_pass.unwrap_or(0.0) + paged;
    let reading = |bytes: f64| match disk {
        _ if bytes == 0.0 => Some(0.0),
        disk => disk.map(|disk| bytes / disk),
    };
    let longer = |computing: Option<f64>, reading: Option<f64>| {
        computing.zip(reading).map(|(computing, reading)| computing.max(reading))
    };
    let (prompt, batch) = (subject.request.prompt_tokens, subject.batch_tokens.max(1));
    // The last batch may have one token.
    let single = f64::from(u8::from(prompt % batch == 1));
    let passes = (f64::from(prompt.div_ceil(batch)) - single) * pass + single * token;
    // What stays of experts is read when a batch of more tokens needs all of them, or not before the first token.
    let all_of_kept = prompt > 1 || token == pass;
    let milliseconds = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1000.0);
    // Without streaming the load reads the weights, before the prompt. Rows that are read one by one are in neither.
    let kept = policy.pinned_bytes.unwrap_or(subject.weight_bytes as f64);
    let before = policy.pinned_from_start_bytes.unwrap_or(kept);
    let for_prompt = |once: f64| {
        let reading = milliseconds(reading(once + passes)).filter(|_| all_of_kept);
        longer(resident.prompt_ms, reading)
    };
    Limit {
        seconds_per_token: longer(resident.seconds_per_token, reading(token)),
        prompt_ms: for_prompt(kept - before),
        first_token_ms: for_prompt(kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Admission, Inventory, Model, Output, Request as RunRequest, Streaming, Timing};

    fn report(rate: f64, streamed: Option<u64>) -> Report {
        let mut report = Report::new(Tool::default(), Model::default(), RunRequest::default());
        report.timing = Timing {
            decode_tokens_per_second: Some(rate),
            prompt_ms: Some(1000.0),
            time_to_first_token_ms: Some(3000.0),
            ..Timing::default()
        };
        report.io.decode_read_bytes = Some(4000);
        report.output = Some(Output {
            generated_tokens: 5,
            logits_fingerprint: Some("one".to_owned()),
            ..Output::default()
        });
        report.streaming = streamed.map(|bytes| Streaming {
            pinned_bytes: 2000,
            pinned_from_start_bytes: 500,
            streamed_bytes_per_pass: bytes,
            streamed_bytes_per_token: bytes / 2,
            ..Streaming::default()
        });
        report.admission = Some(Admission { verdict: "resident".to_owned(), ..Admission::default() });
        report
    }

    fn subject() -> Subject {
        let request = Request { prompt_tokens: 600, ..Request::default() };
        Subject { tool: Tool::default(), request, weight_bytes: 3000, batch_tokens: 512 }
    }

    fn measured(way: Way, rates: &[f64], streamed: Option<u64>) -> Measured {
        let mut measured = Measured::new(way);
        rates.iter().for_each(|&rate| measured.add(&report(rate, streamed), false));
        measured
    }

    #[test]
    fn the_limit_is_the_longer_of_computing_and_reading() {
        let ways = vec![
            measured(Way::Policy, &[1.0, 2.0, 4.0], Some(1000)),
            measured(Way::KernelPaging, &[0.5], None),
            measured(Way::Resident, &[10.0], None),
        ];
        let bench = Bench::new(subject(), Ok(vec![2000.0, 4000.0]), ways);
        // 500 bytes at 3000 bytes a second take longer than a tenth of a second.
        let limit = bench.limit.unwrap();
        assert_eq!(limit.seconds_per_token, Some(0.5 / 3.0));
        // 2000 bytes once, and 1000 in each of two passes, take longer than computing for a second; 500 of them are
        // read before the prompt.
        assert_eq!(limit.prompt_ms, Some(3500.0 / 3.0));
        assert_eq!(limit.first_token_ms, Some(4000.0 / 3.0));
        assert_eq!((bench.token_over_limit, bench.same_logits), (Some(3.0), Some(true)));
        assert_eq!(bench.times_as_fast_as_paging, Some(4.0));
        assert_eq!(bench.ways[0].median.read_per_token_bytes, Some(1000.0));
    }

    #[test]
    fn what_is_left_to_paging_is_read_too() {
        let mut paging = report(1.0, Some(1000));
        paging.streaming.as_mut().unwrap().paged_bytes_per_pass = 1000;
        let mut policy = Measured::new(Way::Policy);
        policy.add(&paging, false);
        let ways = vec![policy, measured(Way::Resident, &[10.0], None)];
        let limit = Bench::new(subject(), Ok(vec![1000.0]), ways).limit.unwrap();
        assert_eq!(limit.seconds_per_token, Some(1.5));
        // 2000 bytes once, of which 500 before the prompt, and 2000 in each of two passes.
        assert_eq!((limit.prompt_ms, limit.first_token_ms), (Some(5500.0), Some(6000.0)));
    }

    #[test]
    fn a_run_that_was_not_surely_in_memory_makes_no_limit() {
        for verdict in ["kernel-paging", "unknown"] {
            let mut paging = report(9.0, None);
            paging.admission.as_mut().unwrap().verdict = verdict.to_owned();
            let mut resident = Measured::new(Way::Resident);
            resident.add(&paging, false);
            assert!(!resident.goes_on() && resident.reason.as_ref().unwrap().contains(verdict));
            let ways = vec![measured(Way::Policy, &[2.0], Some(10)), resident];
            let bench = Bench::new(subject(), Ok(vec![1000.0]), ways);
            assert_eq!((bench.limit, bench.token_over_limit), (None, None));
        }
    }

    #[test]
    fn runs_of_another_layout_are_not_compared() {
        let mut repacked = report(9.0, None);
        repacked.inventory = Some(Inventory { copy_bytes: 1, ..Inventory::default() });
        repacked.output.as_mut().unwrap().logits_fingerprint = Some("other".to_owned());
        assert!(is_repacked(&repacked));
        let mut resident = Measured::new(Way::Resident);
        resident.add(&repacked, false);
        assert!(resident.rounds.is_empty() && resident.reason.as_ref().unwrap().contains("layout"));
        let ways = vec![measured(Way::Policy, &[2.0], None), resident];
        let bench = Bench::new(subject(), Ok(vec![1000.0]), ways);
        assert_eq!((bench.same_logits, bench.limit), (Some(true), None));
        let mut resident = Measured::new(Way::Resident);
        resident.add(&repacked, true);
        assert!(resident.goes_on());
    }

    #[test]
    fn what_could_not_be_measured_is_absent() {
        let mut failed = Measured::new(Way::KernelPaging);
        failed.reason = Some("killed".to_owned());
        assert!(!failed.goes_on());
        let ways =
            vec![measured(Way::Policy, &[2.0], Some(10)), failed, measured(Way::Resident, &[9.0], None)];
        let bench = Bench::new(subject(), Err("no direct reads".to_owned()), ways);
        assert_eq!(bench.times_as_fast_as_paging, None);
        assert_eq!(bench.token_over_limit, None);
        assert_eq!(bench.disk_bytes_per_second, None);
        assert_eq!(bench.ways[1].reason.as_deref(), Some("killed"));
    }

    #[test]
    fn other_logits_are_told() {
        let mut other = report(1.0, None);
        other.output.as_mut().unwrap().logits_fingerprint = Some("other".to_owned());
        let mut resident = Measured::new(Way::Resident);
        resident.add(&other, false);
        let ways = vec![measured(Way::Policy, &[2.0], None), resident];
        assert_eq!(Bench::new(subject(), Ok(vec![1000.0]), ways).same_logits, Some(false));
    }

    #[test]
    fn without_streaming_the_limit_is_the_computation() {
        let ways = vec![measured(Way::Policy, &[2.0], None), measured(Way::Resident, &[4.0], None)];
        let bench = Bench::new(subject(), Ok(vec![1000.0]), ways);
        assert_eq!(bench.token_over_limit, Some(2.0));
    }
}
