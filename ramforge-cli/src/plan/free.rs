//! What a run may use: the least of what the machine, its groups and the user allow.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::cgroup::{Level, Memory};
use crate::observe::host::Host;

/// The share of free memory that a run without `--ram` is planned for: others want some too, and what is free
/// changes.
const SHARE_PERCENT: u64 = 70;

/// One thing that allows so many bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bound {
    /// What it is.
    pub name: String,
    /// What it still allows.
    pub bytes: u64,
    /// How that was found.
    pub source: String,
}

/// The memory a run may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// Its bytes.
    pub bytes: u64,
    /// Why so many, in words.
    pub reason: String,
    /// Everything that bounds it, the tightest first; `--ram` is not among them.
    pub bounds: Vec<Bound>,
}

impl Budget {
    /// The budget with `ram` as the user gave it.
    pub fn new(host: &Host, levels: &[Level], ram: Option<u64>) -> Self {
        let bounds = bounds(host, levels);
        // There is always one: the machine has so much memory.
        let (free, tightest) = bounds.first().map_or((u64::MAX, ""), |bound| (bound.bytes, &bound.name));
        let (bytes, reason) = match ram {
            Some(ram) if ram <= free => (ram, "--ram".to_owned()),
            Some(_) => (free, format!("{tightest}, which is less than --ram")),
            None => {
                let bytes = free / 100 * SHARE_PERCENT;
                (bytes, format!("{SHARE_PERCENT} % of {tightest}, because there is no --ram"))
            }
        };
        Self { bytes, reason, bounds }
    }
}

fn bounds(host: &Host, levels: &[Level]) -> Vec<Bound> {
    let machine = match host.available_bytes {
        Some(bytes) => Bound {
            name: "what this machine has available".to_owned(),
            bytes,
            source: "MemAvailable of /proc/meminfo".to_owned(),
        },
        None => Bound {
            name: "the memory of this machine".to_owned(),
            bytes: host.memory_bytes,
            source: "MemTotal of /proc/meminfo; this kernel has no MemAvailable".to_owned(),
        },
    };
    let mut bounds: Vec<Bound> = levels.iter().filter_map(group).chain([machine]).collect();
    bounds.sort_by_key(|bound| bound.bytes);
    bounds
}

/// What a group still allows. File cache counts as free: the kernel drops it before it refuses memory.
fn group(level: &Level) -> Option<Bound> {
    let limit = level.memory.tightest_limit()?;
    // A group whose use is not shown allows, as far as is known, all of its limit.
    let used = level.memory.limit_and_usage().1.unwrap_or(0);
    let (files, cache) = match &level.memory {
        Memory::V2(memory) => {
            ("active_file and inactive_file", sum(&memory.stat, ["active_file", "inactive_file"]))
        }
        Memory::V1(memory) => (
            "total_active_file and total_inactive_file",
            sum(&memory.stat, ["total_active_file", "total_inactive_file"]),
        ),
    };
    let held = used.saturating_sub(cache);
    Some(Bound {
        name: format!("what the group {} still allows", level.dir.display()),
        bytes: limit.saturating_sub(held),
        source: format!("limit {limit} - usage {used} + {files} {cache}"),
    })
}

fn sum(stat: &Option<std::collections::BTreeMap<String, u64>>, names: [&str; 2]) -> u64 {
    names.iter().filter_map(|name| stat.as_ref()?.get(*name)).sum()
}
