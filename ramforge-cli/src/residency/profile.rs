//! What a complete trace of one token's graph says about the weights: when each is needed.

use std::collections::BTreeMap;

/// The place of each weight in the order in which a token's graph reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    nodes: u64,
    uses: BTreeMap<String, (u64, u64)>,
}

impl Profile {
    /// A profile of the nodes of one complete graph execution: each node's place, and the names of what it
    /// reads.
    pub fn new<'a>(nodes: impl IntoIterator<Item = (u64, &'a [Box<str>])>) -> Self {
        let mut profile = Self::default();
        for (index, sources) in nodes {
            profile.nodes = profile.nodes.max(index + 1);
            for source in sources {
                let uses = profile.uses.entry(source.to_string()).or_insert((index, index));
                uses.1 = uses.1.max(index);
            }
        }
        profile
    }

    /// The first node that reads `weight`; `None` when no node does.
    pub fn first_use(&self, weight: &str) -> Option<u64> {
        self.uses.get(weight).map(|uses| uses.0)
    }

    /// The last node that reads `weight`; `None` when no node does.
    pub fn last_use(&self, weight: &str) -> Option<u64> {
        self.uses.get(weight).map(|uses| uses.1)
    }

    /// Nodes of the graph.
    pub const fn nodes(&self) -> u64 {
        self.nodes
    }
}
