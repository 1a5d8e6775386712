use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What holds the run to its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Nothing: the budget is a plan, not a promise.
    #[default]
    None,
    /// A group of the unified hierarchy, below the caller's own.
    CgroupV2,
    /// A group inside a transient, delegated systemd scope.
    SystemdScope,
    /// A group of the version 1 memory controller.
    CgroupV1,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::CgroupV2 => "cgroup-v2",
            Self::SystemdScope => "systemd-scope",
            Self::CgroupV1 => "cgroup-v1",
        })
    }
}

/// How the kernel held the run to its budget. The numbers are the kernel's files after the worker ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Enforcement {
    /// What held the run.
    pub backend: Backend,
    /// The limit the kernel held, read back from it.
    pub limit_bytes: Option<u64>,
    /// The most the group ever held: `memory.peak`, or `memory.max_usage_in_bytes`.
    pub peak_bytes: Option<u64>,
    /// Allocations that met the limit: `max` of `memory.events`, or the two `failcnt` files together where
    /// the kernel counts in them.
    pub limit_events: Option<u64>,
    /// Processes of the group killed for memory.
    pub oom_kills: Option<u64>,
    /// The most that was swapped out: `memory.swap.peak`; version 1 has no such file.
    pub swap_peak_bytes: Option<u64>,
    /// Why a number above is null, under its name.
    pub reasons: BTreeMap<String, String>,
    /// Selected counters of `memory.stat`, under the kernel's names for the hierarchy's version.
    pub stat: BTreeMap<String, u64>,
    /// What was done about the model's cached pages before the load.
    pub page_cache: Option<PageCache>,
    /// What the kernel could not be asked to hold, and why the back ends tried before were not used.
    pub notes: Vec<String>,
}

/// What the tripwire saw of the machine's swap while the worker ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Swap {
    /// `--swap-limit`: how much more swap may be in use before the run is stopped.
    pub limit_bytes: Option<u64>,
    /// Swap in use at the start.
    pub start_bytes: Option<u64>,
    /// The most that was in use beyond that.
    pub growth_bytes: Option<u64>,
    /// The most time that some task waited for memory, in percent of 10 seconds.
    pub pressure_some_percent: Option<f32>,
    /// The most time that all tasks waited for memory, in percent of 10 seconds.
    pub pressure_full_percent: Option<f32>,
    /// Why nothing was watched.
    pub idle_reason: Option<String>,
}

/// The model's pages in the page cache around the drop before an enforced load. Pages that another group
/// has paid for do not count against the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PageCache {
    /// Cached bytes before the drop.
    pub before_bytes: Option<u64>,
    /// Cached bytes after it.
    pub after_bytes: Option<u64>,
    /// Why a number is absent.
    pub reason: Option<String>,
}
