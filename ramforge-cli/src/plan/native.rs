//! What the native library is asked about a model, and what it answers.

use serde::{Deserialize, Serialize};

use super::KvType;

/// How many tokens of context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ContextTokens {
    /// So many.
    Exactly(u32),
    /// As many as the model was trained with.
    Trained,
    /// As many as the run that the process was started for.
    Run,
    /// As many as that run with the longest prompt it can have, in batches as large as asked for.
    Longest,
}

/// The context whose sizes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextRequest {
    /// Tokens of context.
    pub context: ContextTokens,
    /// Most tokens computed at once.
    pub batch_tokens: u32,
    /// The type of keys and values.
    pub kv_type: KvType,
    /// Compute threads.
    pub threads: u32,
}

/// The bytes of one model with one context, as the native library would allocate them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeSizes {
    /// Tokens of context, as the native library rounds them.
    pub context_tokens: u32,
    /// Most tokens computed at once.
    pub batch_tokens: u32,
    /// Tokens of the run's prompt; `None` when it is not known yet, or there is no run.
    pub prompt_tokens: Option<u32>,
    /// Tokens of context the model was trained with.
    pub trained_context_tokens: u32,
    /// Weights computed in the file's own layout.
    pub mapped_weights_bytes: u64,
    /// Weights copied into a layout that computes faster.
    pub repacked_weights_bytes: u64,
    /// KV cache or recurrent state.
    pub kv_bytes: u64,
    /// Buffers of the compute graph.
    pub compute_bytes: u64,
    /// Scratch memory of the compute threads, which the native library allocates when it computes.
    pub work_bytes: u64,
    /// Logits handed out.
    pub output_bytes: u64,
    /// Everything else the process holds in anonymous memory, measured in a process that had loaded the
    /// header and made the context: vocabulary, metadata, graph, program.
    pub base_bytes: u64,
}
