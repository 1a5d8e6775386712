use serde::{Deserialize, Serialize};

/// Where the model's tensors lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Counts the inventories taken; a plan belongs to one of them.
    pub generation: u64,
    /// Bytes of tensors that are pages of the model's files.
    pub file_backed_bytes: u64,
    /// Bytes of tensors copied to anonymous memory, repacked ones for instance.
    pub anonymous_bytes: u64,
    /// Bytes of tensors whose place is not known.
    pub unknown_bytes: u64,
    /// The layers in order; tensors outside any layer are not among them.
    pub layers: Vec<Layer>,
}

/// One layer, `blk.N.*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// N.
    pub index: u32,
    /// Its tensors.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the pages that hold nothing but this layer.
    pub exclusive_page_bytes: u64,
    /// Bytes of the pages it shares with tensors outside it.
    pub shared_page_bytes: u64,
}

/// How a number of the ledger is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provenance {
    /// The native code allocated it and says its size.
    Native,
    /// The kernel counted it.
    Kernel,
    /// The model file's header says it.
    FileHeader,
}

/// One amount of memory, or why it is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// What it is.
    pub category: LedgerTerm,
    /// Its bytes.
    pub bytes: Option<u64>,
    /// How they are known.
    pub provenance: Option<Provenance>,
    /// Why they are not.
    pub reason: Option<String>,
}

/// The categories of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LedgerTerm {
    /// Tensors that are pages of the model's files: the kernel may drop and read them again.
    FileBackedWeights,
    /// Tensors in anonymous memory.
    AnonymousWeights,
    /// The file mappings' pages in memory.
    MappingResident,
    /// This process's share of them.
    MappingPss,
    /// Keys and values of the context.
    KvCache,
    /// Intermediate results of the graph.
    ComputeBuffers,
    /// Logits and embeddings handed out.
    OutputBuffers,
    /// Slots that streamed units pass through.
    StagingSlots,
    /// The vocabulary and the other metadata as loaded.
    VocabularyAndMetadata,
    /// The process's resident memory.
    ProcessRss,
    /// The largest it ever was.
    ProcessPeakRss,
    /// Its anonymous part now.
    ProcessRssAnonymous,
    /// Its file part now.
    ProcessRssFile,
    /// What the memory group holds now.
    GroupCurrent,
    /// The most it ever held.
    GroupPeak,
}

/// What the ledger explains of what the kernel showed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// Signed differences.
    pub differences: Vec<Difference>,
    /// The part of the group's peak (or the process's) that nothing in the ledger explains.
    pub unexplained_bytes: Option<i64>,
}

/// An amount explained beside the amount seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// What is compared.
    pub name: String,
    /// The sum of the ledger's terms.
    pub explained_bytes: u64,
    /// What the kernel shows.
    pub observed_bytes: u64,
    /// `observed_bytes - explained_bytes`.
    pub difference_bytes: i64,
}

/// One page operation: what was asked, what the kernel accepted and what was then seen are three facts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Release or prefetch.
    pub kind: String,
    /// The policy that planned it.
    pub policy: String,
    /// Tensors it was for.
    pub selected_tensors: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Bytes of the calls the kernel accepted.
    pub accepted_bytes: u64,
    /// Resident bytes after, minus before.
    pub observed_delta_bytes: Option<i64>,
    /// Bytes left alone because other tensors share their pages.
    pub skipped_shared_bytes: u64,
    /// Seen before.
    pub before: Option<ResidencySample>,
    /// Seen after.
    pub after: Option<ResidencySample>,
}

/// What was resident at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidencySample {
    /// The file mappings' resident bytes.
    pub mapping_resident_bytes: Option<u64>,
    /// The process's resident bytes.
    pub process_rss_bytes: Option<u64>,
    /// The group's bytes.
    pub group_current_bytes: Option<u64>,
}

/// Streaming inside the decode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Streaming {
    /// Bytes of units held in memory for the whole run.
    pub pinned_bytes: u64,
    /// Bytes of units that pass through the slots each time the graph runs.
    pub streamed_bytes_per_pass: u64,
    /// Times the graph ran.
    pub passes: u64,
    /// Bytes read from the files.
    pub bytes_read: u64,
    /// Slots.
    pub slots: u32,
    /// Bytes of one slot.
    pub slot_bytes: u64,
    /// Time the computation waited for a read.
    pub stall_ms: f64,
    /// How the reads are done.
    pub io: String,
    /// Whether they bypass the page cache.
    pub direct_io: bool,
}

/// The bounded trace of the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphTrace {
    /// Whether no event was dropped: only then is it evidence.
    pub complete: bool,
    /// Graph executions seen.
    pub executions: u64,
    /// Events recorded.
    pub events: u64,
    /// Events dropped for want of room.
    pub dropped_events: u64,
}
