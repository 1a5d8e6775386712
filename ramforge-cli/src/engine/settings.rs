//! What a run is asked to do, after validation.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::KvType;
use crate::residency::policy::Rule;

/// Everything the worker needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The model's files, the shards in their order.
    pub files: Vec<PathBuf>,
    /// Where the prompt comes from.
    pub prompt: PromptSource,
    /// Render the prompt with the model's chat template.
    pub chat: bool,
    /// The system message of the chat.
    pub system: Option<String>,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Tokens of context; `None` takes what the prompt and `max_tokens` need.
    pub context_tokens: Option<u32>,
    /// How the keys and values of past tokens are stored.
    pub kv_type: KvType,
    /// Compute threads.
    pub threads: u32,
    /// The memory the run may use.
    pub ram_bytes: Option<u64>,
    /// Refuse to run in another way than with everything in memory.
    pub must_fit: bool,
    /// Bytes of the model's weights, from its header.
    pub weight_bytes: u64,
    /// How the weights are held.
    pub policy: Policy,
    /// What is done about its pages between operations, and what is reported of them.
    pub residency: crate::residency::Settings,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// Repack weights into the layouts the CPU computes fastest with.
    pub repack: bool,
    /// Read the mapped file ahead while loading.
    pub prefetch: bool,
    /// The device.
    pub device: DeviceChoice,
    /// Show the native library's messages and what the run is about to do.
    pub verbose: bool,
    /// Whether progress may be drawn on standard error.
    pub progress: bool,
}

/// How the weights are held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Resident when everything fits into --ram, streamed when it does not.
    Auto,
    /// As the native library loads them, with the kernel's paging.
    Off,
    /// A fixed set stays in memory, the rest is read from disk while the model computes.
    Stream,
    /// As off; plan as memory-bound does, and change nothing.
    Observe,
    /// After each operation, release tensors that share no page with another one, down to the target.
    Conservative,
    /// After each operation, release tensors in a fixed order, down to the target.
    MemoryBound,
    /// After each operation, release what the next token needs latest, down to the target. Traces the graph.
    ReuseAware,
    /// The same as memory-bound.
    Active,
}

impl Policy {
    /// The name on the command line and in reports.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What is released after each operation.
    pub const fn rule(self) -> Option<Rule> {
        match self {
            Self::Auto | Self::Off | Self::Stream => None,
            Self::Conservative => Some(Rule::Conservative),
            Self::Observe | Self::MemoryBound | Self::Active => Some(Rule::MemoryBound),
            Self::ReuseAware => Some(Rule::ReuseAware),
        }
    }
}

/// Where the prompt comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PromptSource {
    /// The command line.
    Text(String),
    /// A file.
    File(PathBuf),
    /// Standard input, to its end.
    StandardInput,
    /// So many tokens, the same in every run: to measure with. The run generates as many tokens as it is asked
    /// to, whatever they are, and writes no text.
    Measured {
        /// How many.
        tokens: u32,
        /// Compute a token before anything is measured, so that everything that fits is in memory.
        warm_up: bool,
    },
}

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 takes the best token; above, tokens are drawn by probability.
    pub temperature: f32,
    /// Keep the best tokens only; 0 keeps all.
    pub top_k: u32,
    /// Keep the best tokens whose probabilities add up to this.
    pub top_p: f32,
    /// Keep tokens at least this share as probable as the best.
    pub min_p: f32,
    /// Divide the scores of recent tokens by this; 1 changes nothing.
    pub repeat_penalty: f32,
    /// The same seed draws the same tokens.
    pub seed: u32,
}

/// The device a run asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceChoice {
    /// `cpu`.
    Cpu,
    /// `id:ID`.
    Id(String),
    /// `backend:NAME:N`.
    Backend(String, usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.splitn(3, ':').collect();
        match parts[..] {
            ["cpu"] => Ok(Self::Cpu),
            ["id", ..] if text.len() > "id:".len() => Ok(Self::Id(text["id:".len()..].to_owned())),
            ["backend", name, index] if !name.is_empty() => match index.parse() {
                Ok(index) => Ok(Self::Backend(name.to_owned(), index)),
                Err(_) => Err(format!("'{index}' is not a device number")),
            },
            _ => Err("expected cpu, id:ID or backend:NAME:N".to_owned()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Id(id) => write!(f, "id:{id}"),
            Self::Backend(name, index) => write!(f, "backend:{name}:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_printed_as_it_was_written() {
        for text in ["cpu", "id:0000:c1:00.0", "id:CPU", "backend:CPU:0"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "id:", "backend:CPU", "backend::0", "backend:CPU:x", "CPU"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }
}
