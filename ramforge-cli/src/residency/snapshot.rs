//! What a policy sees.

use super::profile::Profile;
use super::resident::Resident;

/// The facts of one safe boundary.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// The inventory they belong to.
    pub generation: u64,
    /// The tensors with pages in the mappings, in the order of their files and offsets.
    pub tensors: &'a [PagedTensor],
    /// Which pages are in memory.
    pub resident: &'a Resident,
    /// Anonymous memory of the process, which no policy can release.
    pub anonymous_bytes: u64,
    /// What the run should hold between operations: anonymous memory and resident pages of the model's files
    /// together.
    pub target_bytes: Option<u64>,
    /// Bytes to stay below the target.
    pub reserve_bytes: u64,
    /// When each weight is needed, or why that is not known.
    pub profile: Result<&'a Profile, String>,
}

impl Snapshot<'_> {
    /// Bytes above what the run should hold.
    pub fn excess_bytes(&self) -> u64 {
        let held = self.anonymous_bytes.saturating_add(self.resident.bytes());
        self.target_bytes.map_or(0, |target| held.saturating_sub(target.saturating_sub(self.reserve_bytes)))
    }
}

/// A tensor with pages in a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedTensor {
    /// Its name.
    pub name: String,
    /// Its layer.
    pub layer: Option<u32>,
    /// Its file.
    pub file: usize,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Whether anything reads it from there: a repacked tensor has pages that nobody needs.
    pub read: bool,
}
