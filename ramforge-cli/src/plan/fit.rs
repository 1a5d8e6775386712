//! Whether a run fits in a budget, in which ways, and what would make it fit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::footprint::with_page_tables;
use super::streaming::{self, Streaming};
use super::{Footprint, Weights};
use crate::gguf;
use crate::residency::stream::Weight;
use crate::size::readable;

/// Room for pages of the file that kernel paging needs beside anonymous memory. With less, the kernel finds no
/// page to take back while others are being read, and kills: measured on Linux 6.18, where 12 MiB were enough
/// and 8 were not.
const PAGING_ROOM: u64 = 16 << 20;

/// What a worker that streams measured of itself beyond the helper's measurement, when a budget was divided to the
/// last page: stacks and buffers of the threads. It was 1 MiB.
const STREAM_ROOM: u64 = 2 << 20;

/// The reserve is this part of a budget, within these bounds.
const RESERVE_PART: u64 = 64;
const RESERVE_LEAST: u64 = 16 << 20;
const RESERVE_MOST: u64 = 64 << 20;

/// What the headers say about a model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its path.
    pub path: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Bytes of its weights.
    pub weights: Weights,
    streamed: Vec<Weight>,
}

impl Model {
    /// The facts of `model`.
    pub fn of(model: &gguf::Model) -> Self {
        Self {
            path: model.files()[0].path.display().to_string(),
            architecture: gguf::printable(model.architecture()).to_string(),
            file_bytes: model.file_bytes(),
            weights: Weights::of(model),
            streamed: streaming::weights(model),
        }
    }
}

/// A way to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// All weights in memory, those that can be in the layout that computes fastest.
    ResidentRepacked,
    /// All weights in memory, in the file's layout.
    Resident,
    /// Some weights in memory, the others read ahead of the computation.
    Streaming,
    /// The kernel reads the file's pages when they are touched, and drops others.
    KernelPaging,
}

impl Way {
    /// The name in reports and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ResidentRepacked => "resident-repacked",
            Self::Resident => "resident",
            Self::Streaming => "streaming",
            Self::KernelPaging => "kernel-paging",
        }
    }

    /// Whether all weights stay in memory.
    pub const fn is_resident(self) -> bool {
        matches!(self, Self::ResidentRepacked | Self::Resident)
    }
}

/// Whether a way works in the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It does.
    Works,
    /// What cannot be dropped fits, with too little room beside it to be sure.
    MayBeKilled,
    /// What cannot be dropped is more than the budget.
    TooLarge,
}

/// What one way takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WayVerdict {
    /// The way.
    pub way: Way,
    /// Whether it works.
    pub verdict: Verdict,
    /// The smallest budget in which it does, the reserve included.
    pub needs_bytes: u64,
    /// The part of `needs_bytes` that is not for anything named.
    pub reserve_bytes: u64,
    /// Bytes of weights that stay in memory; null where the way does not work, and where the kernel decides.
    pub pinned_bytes: Option<u64>,
    /// Bytes read from the files for each token; null where the way does not work. For kernel paging it is
    /// everything that a token uses: the kernel drops what was used longest ago, which is what comes next.
    pub read_per_token_bytes: Option<u64>,
}

/// A run with one context in one budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// What it holds.
    pub footprint: Footprint,
    /// What it may use.
    pub budget_bytes: u64,
    /// The ways, the fastest first.
    pub ways: Vec<WayVerdict>,
}

impl Fit {
    /// Weighs the ways to run `model` with `footprint` in `budget_bytes`.
    pub fn new(model: &Model, footprint: Footprint, budget_bytes: u64) -> Self {
        let mut ways = Vec::new();
        if footprint.sizes.repacked_weights_bytes > 0 {
            ways.push(resident(Way::ResidentRepacked, model, &footprint, budget_bytes));
        }
        ways.push(resident(Way::Resident, model, &footprint, budget_bytes));
        ways.push(stream(model, &footprint, budget_bytes));
        ways.push(kernel_paging(model, &footprint, budget_bytes));
        Self { footprint, budget_bytes, ways }
    }

    /// The fastest of `allowed` that works, or else one that may.
    pub fn best(&self, allowed: &[Way]) -> Option<&WayVerdict> {
        let with =
            |verdict| self.ways.iter().find(|way| way.verdict == verdict && allowed.contains(&way.way));
        with(Verdict::Works).or_else(|| with(Verdict::MayBeKilled))
    }

    /// Whether one of `allowed` surely works.
    pub fn works(&self, allowed: &[Way]) -> bool {
        self.best(allowed).is_some_and(|way| way.verdict == Verdict::Works)
    }

    /// The smallest budget in which one of `allowed` works, in whole MiB.
    pub fn smallest_ram_bytes(&self, allowed: &[Way]) -> Option<u64> {
        let needs = self.ways.iter().filter(|way| allowed.contains(&way.way)).map(|way| way.needs_bytes);
        needs.min().map(|bytes| bytes.next_multiple_of(1 << 20))
    }

    /// What limits the speed of `way`.
    pub fn bottleneck(&self, way: &WayVerdict) -> String {
        match way.read_per_token_bytes {
            Some(0) => "the processor and the memory's bandwidth: nothing is read after the load".to_owned(),
            Some(bytes) => format!("the disk: {} are read for each token", readable(bytes)),
            None => "it does not run".to_owned(),
        }
    }
}

fn resident(way: Way, model: &Model, footprint: &Footprint, budget_bytes: u64) -> WayVerdict {
    let sizes = &footprint.sizes;
    let held = match way {
        // The repacked weights' own pages of the file are not used any more.
        Way::ResidentRepacked => with_page_tables(
            footprint.repacked_anonymous_bytes() + sizes.mapped_weights_bytes + header_bytes(model),
        ),
        _ => footprint.resident_bytes(),
    };
    let (needs_bytes, reserve_bytes) = with_reserve(held);
    let works = needs_bytes <= budget_bytes;
    WayVerdict {
        way,
        verdict: if works { Verdict::Works } else { Verdict::TooLarge },
        needs_bytes,
        reserve_bytes,
        pinned_bytes: works.then_some(model.weights.total_bytes),
        read_per_token_bytes: works.then_some(0),
    }
}

fn stream(model: &Model, footprint: &Footprint, budget_bytes: u64) -> WayVerdict {
    let beside = footprint.anonymous_bytes() + page_tables(footprint);
    let chosen = budget_bytes
        .checked_sub(beside + reserve(budget_bytes))
        .and_then(|budget| streaming::stream(&model.streamed, budget).ok());
    let (needs_bytes, reserve_bytes) = with_reserve(beside + smallest_stream(&model.streamed) + STREAM_ROOM);
    let verdict = match chosen {
        Some(_) if needs_bytes <= budget_bytes => Verdict::Works,
        Some(_) => Verdict::MayBeKilled,
        None => Verdict::TooLarge,
    };
    let bytes = |get: fn(Streaming) -> u64| chosen.map(get);
    WayVerdict {
        way: Way::Streaming,
        verdict,
        needs_bytes,
        reserve_bytes,
        pinned_bytes: bytes(|chosen| chosen.pinned_bytes),
        read_per_token_bytes: bytes(|chosen| chosen.read_per_token_bytes),
    }
}

/// The smallest budget for weights in which streaming works.
fn smallest_stream(weights: &[Weight]) -> u64 {
    let mut budget = 0;
    // What the policy says it needs grows until it holds: which units there are depends on the budget.
    while let Err(needed) = streaming::stream(weights, budget) {
        budget = needed.max(budget + 1);
    }
    budget
}

fn kernel_paging(model: &Model, footprint: &Footprint, budget_bytes: u64) -> WayVerdict {
    let held = footprint.anonymous_bytes() + page_tables(footprint);
    let needs_bytes = held + PAGING_ROOM;
    let verdict = match budget_bytes {
        budget if budget >= needs_bytes => Verdict::Works,
        budget if budget >= held => Verdict::MayBeKilled,
        _ => Verdict::TooLarge,
    };
    let read =
        if footprint.resident_bytes() <= budget_bytes { 0 } else { model.weights.used_per_token_bytes };
    WayVerdict {
        way: Way::KernelPaging,
        verdict,
        needs_bytes,
        reserve_bytes: PAGING_ROOM,
        pinned_bytes: None,
        read_per_token_bytes: (verdict != Verdict::TooLarge).then_some(read),
    }
}

fn header_bytes(model: &Model) -> u64 {
    model.file_bytes.saturating_sub(model.weights.total_bytes)
}

/// The page tables of everything that is mapped, whether it is in memory or not.
fn page_tables(footprint: &Footprint) -> u64 {
    footprint.resident_bytes() - footprint.anonymous_bytes() - footprint.file_bytes
}

/// The reserve within `budget_bytes`: stacks, reads under way, and what the prediction misses.
pub fn reserve(budget_bytes: u64) -> u64 {
    (budget_bytes / RESERVE_PART).clamp(RESERVE_LEAST, RESERVE_MOST)
}

/// The smallest budget that holds `bytes` and its own reserve, and that reserve.
fn with_reserve(bytes: u64) -> (u64, u64) {
    let reserve = (bytes / (RESERVE_PART - 1) + 1).clamp(RESERVE_LEAST, RESERVE_MOST);
    (bytes + reserve, reserve)
}
