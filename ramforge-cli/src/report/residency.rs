use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AdmissionTerm;

/// Where the model's tensors lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Inventory {
    /// Counts the inventories taken; a plan belongs to one of them.
    pub generation: u64,
    /// Bytes of tensors that are pages of the model's files.
    pub file_backed_bytes: u64,
    /// Bytes of tensors copied to anonymous memory, repacked ones for instance.
    pub anonymous_bytes: u64,
    /// Bytes of tensors whose place is not known.
    pub unknown_bytes: u64,
    /// Bytes of second copies, in anonymous memory, of tensors that are also read from the files.
    #[serde(default)]
    pub copy_bytes: u64,
    /// The mappings of the model's files, in the order of the shards.
    #[serde(default)]
    pub mappings: Vec<Mapping>,
    /// The layers in order; tensors outside any layer are not among them.
    pub layers: Vec<Layer>,
    /// The tensors, in the order of their files and offsets.
    #[serde(default)]
    pub tensors: Vec<Tensor>,
}

/// The mapping of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mapping {
    /// The file.
    pub path: String,
    /// Its length.
    pub file_bytes: u64,
    /// Where in the file the first page begins that a tensor is read from; null when none is.
    pub mapped_offset: Option<u64>,
    /// Bytes of the pages from there to the last one.
    pub mapped_bytes: u64,
    /// Bytes of those in memory when they were last looked at.
    pub resident_bytes: Option<u64>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its layer.
    pub layer: Option<u32>,
    /// The native name of its type.
    pub tensor_type: String,
    /// Elements in each dimension, innermost first; unused dimensions are 1.
    pub shape: [u64; 4],
    /// Its bytes.
    pub bytes: u64,
    /// The native name of its buffer; null for a tensor that is not loaded.
    pub buffer: Option<String>,
    /// What kind of memory it is read from.
    pub backing: Backing,
    /// The file that has it, by its place among the mappings.
    pub file: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Its pages, when it is read from the mapping.
    pub pages: Option<TensorPages>,
}

/// What kind of memory a tensor is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// Pages of the file.
    File,
    /// Anonymous memory.
    Anonymous,
    /// It is not known, or not loaded.
    Unknown,
}

/// The pages that hold a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TensorPages {
    /// Where in the file the first one begins.
    pub start: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of those from which other tensors are read too.
    pub shared_bytes: u64,
    /// Bytes of those in memory when they were last looked at.
    pub resident_bytes: Option<u64>,
}

/// One layer, `blk.N.*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Bytes of both in memory when they were last looked at.
    #[serde(default)]
    pub resident_bytes: Option<u64>,
}

/// How a number of the ledger is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LedgerTerm {
    /// Tensors that are pages of the model's files: the kernel may drop and read them again.
    FileBackedWeights,
    /// Tensors in anonymous memory: repacked, or pinned while others are streamed.
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
    /// The largest its anonymous part was at a safe boundary.
    ProcessPeakRssAnonymous,
    /// The largest its file part was at a safe boundary.
    ProcessPeakRssFile,
    /// Its anonymous part now.
    ProcessRssAnonymous,
    /// Its file part now.
    ProcessRssFile,
    /// Anonymous memory of the program itself, before it loaded anything.
    Program,
    /// Pages of files charged to the group beside those of the mappings: the program, the model's header.
    OtherFilePages,
    /// Kernel memory charged to the group, such as page tables.
    GroupKernel,
    /// What the memory group holds now.
    GroupCurrent,
    /// The most it ever held.
    GroupPeak,
}

/// What the ledger explains of what the kernel showed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reconciliation {
    /// Signed differences.
    pub differences: Vec<Difference>,
    /// The part of the group's peak (or the process's) that nothing in the ledger explains.
    pub unexplained_bytes: Option<i64>,
}

/// An amount explained beside the amount seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    /// Release or prefetch.
    pub kind: String,
    /// The policy that planned it.
    pub policy: String,
    /// After what: `load`, `prompt` or `decode`.
    #[serde(default)]
    pub phase: String,
    /// Tensors it was for.
    pub selected_tensors: u64,
    /// Bytes the plan names. A policy that only observes asks for none of them.
    #[serde(default)]
    pub planned_bytes: u64,
    /// What the mappings' resident bytes would be if the kernel did all the plan names.
    #[serde(default)]
    pub estimate_bytes: Option<u64>,
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
    /// Whether a profile of the graph decided the order; null for a policy that needs none.
    #[serde(default)]
    pub profile_used: Option<bool>,
    /// What should be known about the choice, or the kernel's first refusal.
    #[serde(default)]
    pub reason: Option<String>,
}

/// What was resident at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResidencySample {
    /// The file mappings' resident bytes.
    pub mapping_resident_bytes: Option<u64>,
    /// The process's resident bytes.
    pub process_rss_bytes: Option<u64>,
    /// The group's bytes.
    pub group_current_bytes: Option<u64>,
    /// The process's anonymous resident bytes.
    #[serde(default)]
    pub process_anonymous_bytes: Option<u64>,
    /// How long looking took.
    #[serde(default)]
    pub sampling_ms: Option<f64>,
}

/// Streaming inside the decode, as it was at the end of the run: of a worker that was killed, before the prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Streaming {
    /// Bytes of weights that stay in memory, by the plan: some of them from when they are first read on.
    pub pinned_bytes: u64,
    /// Bytes of them that were read before the prompt.
    #[serde(default)]
    pub pinned_from_start_bytes: u64,
    /// Bytes of them that stayed in memory when this was written.
    #[serde(default)]
    pub kept_bytes: u64,
    /// Bytes of units that pass through the slots each time the graph runs for more than one token.
    pub streamed_bytes_per_pass: u64,
    /// Bytes of them that are read when the graph runs for one token: of experts, those that it uses.
    #[serde(default)]
    pub streamed_bytes_per_token: u64,
    /// Batches given to the graph, those among them that were given up.
    pub passes: u64,
    /// Bytes read for units, whether used or not: without `pinned_from_start_bytes`, which were read before, and
    /// without what the kernel's paging reads.
    pub bytes_read: u64,
    /// Slots.
    pub slots: u32,
    /// Bytes of one slot.
    pub slot_bytes: u64,
    /// Bytes of memory for the experts that a token uses.
    #[serde(default)]
    pub experts_bytes: u64,
    /// Time the computation waited for a read.
    pub stall_ms: f64,
    /// How the reads are done.
    pub io: String,
    /// Whether they bypass the page cache.
    pub direct_io: bool,
    /// Units that are streamed.
    pub units: u64,
    /// Bytes too large for any pool, which the kernel's paging reads each time the graph runs.
    pub paged_bytes_per_pass: u64,
    /// Reads under way at once.
    pub readers: u64,
    /// Most bytes in one read.
    pub read_bytes: u64,
    /// Bytes of memory that left the processor's caches before they were read to: that was faster, or tried.
    #[serde(default)]
    pub evicted_bytes: u64,
    /// Times the graph was not the planned one, and was read through the mapping.
    pub unplanned_passes: u64,
    /// The budget that was divided.
    pub budget_bytes: u64,
    /// What it is spent on besides weights.
    pub terms: Vec<AdmissionTerm>,
}

/// The bounded trace of the graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphTrace {
    /// Whether no event was dropped: only then is it evidence.
    pub complete: bool,
    /// Graph executions seen.
    pub executions: u64,
    /// Events recorded.
    pub events: u64,
    /// Events dropped for want of room.
    pub dropped_events: u64,
    /// The executions of which something was recorded, in order.
    #[serde(default)]
    pub graphs: Vec<GraphExecution>,
    /// The last node that reads each weight, in a complete execution for one token; empty when there is none.
    #[serde(default)]
    pub last_uses: Vec<LastUse>,
    /// Why there are no last uses.
    #[serde(default)]
    pub reason: Option<String>,
    /// The events themselves, when the detail was asked for.
    #[serde(default)]
    pub nodes: Vec<GraphNode>,
}

/// One execution of a graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphExecution {
    /// Counted from 0.
    pub number: u64,
    /// `prompt` for a batch of several tokens, `decode` for one.
    pub phase: String,
    /// Tokens of the batch.
    pub tokens: u64,
    /// Nodes that compute something.
    pub nodes: u64,
    /// Those for which there was no room.
    pub dropped: u64,
    /// From the beginning of the trace.
    pub started_ms: f64,
    /// How long it took; null when it did not end.
    pub elapsed_ms: Option<f64>,
    /// Whether all of it was recorded.
    pub complete: bool,
}

/// The last node that reads a weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastUse {
    /// The tensor.
    pub weight: String,
    /// The node's place in the execution.
    pub index: u64,
    /// Its name.
    pub node: String,
}

/// One node of one execution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphNode {
    /// The execution.
    pub execution: u64,
    /// The node's place in it.
    pub index: u64,
    /// Its name.
    pub name: String,
    /// Its operation.
    pub operation: String,
    /// What it reads.
    pub sources: Vec<String>,
    /// Bytes of its result.
    pub bytes: u64,
    /// How long it took.
    pub elapsed_ms: Option<f64>,
}
