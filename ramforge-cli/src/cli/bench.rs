//! Options of `bench`.

use std::path::PathBuf;

use crate::engine::Policy;
use crate::size;

/// As many as the longest contexts hold.
const MOST_TOKENS: i64 = 10_000_000;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct BenchArgs {
    /// A GGUF file, any shard of a split model, or a folder with exactly one model.
    pub model: PathBuf,
    /// The memory the model may use: 8G, 512MiB, 1.5G. The kernel enforces it.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub ram: u64,
    /// The policy to measure against kernel paging and against everything in memory.
    #[arg(long, value_name = "POLICY", value_enum, default_value = "auto")]
    pub policy: Policy,
    /// How often each is measured, in turn. The figures are medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    pub prompt_tokens: u32,
    /// Tokens to generate after the first, for the time a token takes.
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    pub tokens: u32,
    /// Tokens of context; by default what the prompt and the tokens need.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// Compute threads; by default the processors this process may use.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub threads: Option<u32>,
    /// Keep the weights in the file's own layout everywhere. What is streamed always is, and is then compared
    /// with the same layout.
    #[arg(long)]
    pub no_repack: bool,
    /// Leave kernel paging out: it can take very long.
    #[arg(long)]
    pub no_paging: bool,
    /// Write all figures of all rounds as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  What to expect of a model in 8 GiB, on this machine, now:
    ramforge bench model.gguf --ram 8G
  Quickly, generation only:
    ramforge bench model.gguf --ram 8G --rounds 1 --prompt-tokens 1";
