//! What a policy decided: data, for `execute` to carry out.

use super::stream::Pages;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Give the memory of pages back.
    Release,
    /// Begin to read pages.
    Prefetch,
}

impl Kind {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Prefetch => "prefetch",
        }
    }
}

/// A choice of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The inventory it was made for; it is refused with any other.
    pub generation: u64,
    /// What to do.
    pub kind: Kind,
    /// The tensors it is for, by their place in the snapshot, sorted.
    pub selected: Vec<usize>,
    /// The pages: sorted, disjoint, and of no tensor that was not selected and is read.
    pub pages: Vec<Pages>,
    /// Bytes of the selected tensors' pages left alone because others are read from them.
    pub skipped_shared_bytes: u64,
    /// Resident bytes of the mappings once it is carried out and the kernel does all it was asked.
    pub estimate_bytes: u64,
    /// Whether a profile of the graph decided the order; `None` for a policy that needs none.
    pub profile_used: Option<bool>,
    /// What should be known about the choice.
    pub reason: Option<String>,
}

impl Plan {
    /// Bytes of the pages.
    pub fn bytes(&self) -> u64 {
        self.pages.iter().map(Pages::bytes).sum()
    }
}
