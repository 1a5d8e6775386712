//! Options of `plan`.

use std::path::PathBuf;

use crate::plan::KvType;
use crate::size;

/// Options of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct PlanArgs {
    /// A GGUF file, any shard of a split model, or a folder with exactly one model.
    pub model: PathBuf,
    /// The memory the run may use: 8G, 512MiB, 1.5G. Without it, 70 % of what is free now.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub ram: Option<u64>,
    /// Tokens of context; by default as many as the model was trained with, or the largest that fits.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// How the keys and values of past tokens are stored.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_enum)]
    pub kv_type: KvType,
    /// Compute threads; by default the processors this process may use.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub threads: Option<u32>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  What a model takes, and how it would run with what is free now:
    ramforge plan model.gguf
  The same for a budget and a long context:
    ramforge plan model.gguf --ram 8G --ctx 32768";
