//! What a run is asked to do about its pages between operations.

use serde::{Deserialize, Serialize};

use super::policy::Rule;
use crate::{Error, Result};

/// What a run is asked to do about its pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether inventory, ledger and samples are wanted at all; looking costs a little.
    pub look: bool,
    /// Whether the run has a memory group of its own, so that the group's numbers are the run's.
    pub own_group: bool,
    /// The name of the policy, for reports.
    pub policy: String,
    /// What is released after each operation.
    pub rule: Option<Rule>,
    /// Whether the rule's plans are only made, and not carried out.
    pub only_observe: bool,
    /// What the run should hold between operations.
    pub target_bytes: Option<u64>,
    /// Bytes to stay below the target.
    pub reserve_bytes: u64,
    /// Release every page of the mappings after the load.
    pub release_mapping: bool,
    /// Release these layers after the load.
    pub release_layers: Vec<u32>,
    /// Begin to read so many bytes of weights after the load.
    pub prefetch_bytes: Option<u64>,
    /// Trace the graph.
    pub trace: Option<TraceSettings>,
}

impl Settings {
    /// Whether something is to be done after the load.
    pub const fn acts(&self) -> bool {
        self.release_mapping || !self.release_layers.is_empty() || self.prefetch_bytes.is_some()
    }

    /// Checks that nothing is asked for that needs the mapping as the native library made it, which streaming
    /// rearranges, or watches the graph, which streaming does itself.
    ///
    /// # Errors
    /// Names the option.
    pub fn check_streaming(&self) -> Result<()> {
        let asked = [
            (self.release_mapping, "--release-mapping-pages"),
            (!self.release_layers.is_empty(), "--release-layer"),
            (self.prefetch_bytes.is_some(), "--residency-prefetch"),
            (self.trace.is_some(), "--graph-trace"),
        ];
        match asked.iter().find(|(asked, _)| *asked) {
            None => Ok(()),
            Some((_, option)) => Err(Error::usage(format!("{option} does not work with streaming"))
                .hint("add --residency-policy off (pages the weights through the kernel)")
                .hint(format!("leave out {option}"))),
        }
    }
}

/// How the graph is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSettings {
    /// Events there is room for.
    pub events: usize,
    /// Compute nodes one by one, which tells how long each takes, and report each.
    pub detail: bool,
}
