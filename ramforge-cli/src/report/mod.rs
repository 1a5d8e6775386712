//! The report: what was asked, what happened and what the kernel showed, in one structure.
//!
//! These types are schema version 1, a contract with whoever reads the JSON: within the version fields
//! are added, never renamed and never retyped. Sizes are integers in bytes, times are milliseconds. A
//! fact that is not known is null.

pub mod check;
pub mod diff;
mod enforcement;
pub mod file;
pub mod human;
mod outcome;
mod residency;
pub mod residency_view;
pub mod schema;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use enforcement::{Backend, Enforcement, PageCache, Swap};
pub use outcome::{Outcome, RunResult};
pub use residency::{
    Backing, Difference, GraphExecution, GraphNode, GraphTrace, Inventory, LastUse, Layer, LedgerEntry,
    LedgerTerm, Mapping, Operation, Provenance, Reconciliation, ResidencySample, Streaming, Tensor,
    TensorPages,
};

/// The version these types describe.
pub const SCHEMA_VERSION: u32 = 1;

/// A run, from its request to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The program that ran.
    pub tool: Tool,
    /// The model that was asked for.
    pub model: Model,
    /// The settings of the run after defaults were filled in.
    pub request: Request,
    /// How the kernel held the run to its budget.
    pub enforcement: Enforcement,
    /// What the tripwire saw, once a worker was started.
    pub swap: Option<Swap>,
    /// Where the model's tensors lie, once it was loaded.
    pub inventory: Option<Inventory>,
    /// Every known amount of memory, and the unknown ones with a reason.
    pub ledger: Vec<LedgerEntry>,
    /// What the ledger explains of what the kernel showed.
    pub reconciliation: Option<Reconciliation>,
    /// What the fit guard said before the load.
    pub admission: Option<Admission>,
    /// Page operations, in the order they happened.
    pub operations: Vec<Operation>,
    /// Streaming inside the decode, where it was used.
    pub streaming: Option<Streaming>,
    /// The trace of the graph, where one was asked for.
    pub graph_trace: Option<GraphTrace>,
    /// How long things took.
    pub timing: Timing,
    /// What was read, and the faults.
    pub io: Io,
    /// What was generated.
    pub output: Option<Output>,
    /// How the run ended.
    pub outcome: Outcome,
}

impl Report {
    /// A report with what is known before the run; everything else is absent until it happens.
    pub fn new(tool: Tool, model: Model, request: Request) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            tool,
            model,
            request,
            enforcement: Enforcement::default(),
            swap: None,
            inventory: None,
            ledger: Vec::new(),
            reconciliation: None,
            admission: None,
            operations: Vec::new(),
            streaming: None,
            graph_trace: None,
            timing: Timing::default(),
            io: Io::default(),
            output: None,
            outcome: Outcome::default(),
        }
    }
}

/// The program that ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The native code inside it.
    pub native: Native,
}

/// The native code inside the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Native {
    /// Where it comes from.
    pub source: String,
    /// The version of that source.
    pub source_version: String,
    /// The version llama.cpp calls itself.
    pub llama_cpp: Option<String>,
    /// The version ggml calls itself.
    pub ggml: Option<String>,
    /// The patches applied, in order.
    pub patches: Vec<String>,
}

/// The model that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// The path as it was given.
    pub path: String,
    /// All its files, the shards in their order.
    pub files: Vec<ModelFile>,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// Tensors in all files.
    pub tensor_count: Option<u64>,
    /// Their bytes.
    pub tensor_bytes: Option<u64>,
    /// A value that two files share only when they are the same model.
    pub identity: Option<String>,
}

/// One file of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelFile {
    /// Its path.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

/// The settings of the run after defaults were filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// `--ram`.
    pub ram_bytes: Option<u64>,
    /// `--enforce-ram`.
    pub enforce_ram: bool,
    /// Tokens the context holds.
    pub context_tokens: Option<u32>,
    /// The type of the keys and values of past tokens.
    pub kv_type: Option<String>,
    /// The residency policy.
    pub policy: Option<String>,
    /// `--residency-target`.
    pub target_bytes: Option<u64>,
    /// `--residency-reserve`.
    pub reserve_bytes: Option<u64>,
    /// Whether weights may be repacked.
    pub repack: Option<bool>,
    /// Whether the mapping is prefetched at load.
    pub prefetch: Option<bool>,
    /// Compute threads.
    pub threads: Option<u32>,
    /// The device the model runs on.
    pub device: Option<String>,
}

/// What the fit guard said before the load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Admission {
    /// The verdict.
    pub verdict: String,
    /// Why.
    pub reason: Option<String>,
    /// The sizes it rests on.
    pub terms: Vec<AdmissionTerm>,
}

/// One size the fit guard added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionTerm {
    /// What it is.
    pub name: String,
    /// Its bytes.
    pub bytes: Option<u64>,
    /// Where the number comes from, or why there is none.
    pub source: Option<String>,
}

/// How long things took, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    /// Loading the model.
    pub load_ms: Option<f64>,
    /// Processing the prompt.
    pub prompt_ms: Option<f64>,
    /// From the start of the worker to the first generated token.
    pub time_to_first_token_ms: Option<f64>,
    /// Reading what is to stay in memory and did not yet, after the first token: for measurements only, as the
    /// later tokens do it otherwise.
    #[serde(default)]
    pub settle_ms: Option<f64>,
    /// Tokens a second after the first one.
    pub decode_tokens_per_second: Option<f64>,
    /// From the start of the worker to its end.
    pub wall_ms: Option<f64>,
    /// The worker's processor time in user mode.
    pub user_ms: Option<f64>,
    /// The worker's processor time in the kernel.
    pub system_ms: Option<f64>,
}

/// What the worker read, and its page faults, as the kernel counted them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Io {
    /// Bytes the storage layer read for it.
    pub read_bytes: Option<u64>,
    /// Those read while the prompt was processed.
    pub prompt_read_bytes: Option<u64>,
    /// Those read while the tokens after the first were generated.
    pub decode_read_bytes: Option<u64>,
    /// Faults that had to read from a device.
    pub major_faults: Option<u64>,
    /// Faults that did not.
    pub minor_faults: Option<u64>,
}

/// What was generated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Why generation stopped.
    pub stop_reason: Option<String>,
    /// A hash over the generated tokens: equal for equal texts.
    pub token_fingerprint: Option<String>,
    /// A hash over the bits of all logits the tokens were chosen from; in measured runs only.
    pub logits_fingerprint: Option<String>,
}
