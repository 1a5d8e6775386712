//! Options of `run`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::ArgPredicate;

use crate::engine::{DeviceChoice, Policy};
use crate::plan::KvType;
use crate::report::Backend;
use crate::{Error, size};

/// Options of `run`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct RunArgs {
    /// A GGUF file, any shard of a split model, or a folder with exactly one model.
    pub model: PathBuf,

    /// The text to continue, or with --chat the message to answer. Without it the text is read from
    /// standard input.
    #[arg(short, long, value_name = "TEXT", conflicts_with = "prompt_file", help_heading = "Prompt")]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the prompt from a file.
    #[arg(long, value_name = "FILE", help_heading = "Prompt")]
    pub prompt_file: Option<PathBuf>,
    /// Measure with a prompt of N tokens, and write no text; for `bench`.
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt", "prompt_file", "chat"], hide = true)]
    pub measure: Option<u32>,
    /// Compute once before measuring, so that everything that fits is in memory.
    #[arg(long, requires = "measure", hide = true)]
    pub warm_up: bool,
    /// Render the prompt with the model's own chat template.
    #[arg(long, help_heading = "Prompt")]
    pub chat: bool,
    /// The system message of the chat.
    #[arg(long, value_name = "TEXT", requires = "chat", help_heading = "Prompt")]
    #[arg(allow_hyphen_values = true)]
    pub system: Option<String>,

    /// Most tokens to generate.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, help_heading = "Generation")]
    pub max_tokens: u32,
    /// 0 always takes the most probable token; above 0, tokens are drawn by probability.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = at_least_zero::<f32>)]
    #[arg(help_heading = "Generation")]
    pub temperature: f32,
    /// Draw from the K most probable tokens; 0 draws from all.
    #[arg(long, value_name = "K", default_value_t = 40, help_heading = "Generation")]
    pub top_k: u32,
    /// Draw from the most probable tokens whose probabilities add up to P.
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = share, help_heading = "Generation")]
    pub top_p: f32,
    /// Draw from tokens at least P times as probable as the most probable one.
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = share, help_heading = "Generation")]
    pub min_p: f32,
    /// Make recent tokens less probable; 1 changes nothing.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = above_zero)]
    #[arg(help_heading = "Generation")]
    pub repeat_penalty: f32,
    /// The same seed draws the same tokens.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Generation")]
    pub seed: u32,

    /// The memory the run may use: 8G, 512MiB, 1.5G. All units are powers of 1024.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Memory")]
    pub ram: Option<u64>,
    /// Have the kernel enforce --ram for the run and everything it starts.
    #[arg(long, requires = "ram", help_heading = "Memory")]
    pub enforce_ram: bool,
    /// How the weights are held in memory.
    #[arg(long, value_name = "POLICY", value_enum, default_value = "auto", help_heading = "Memory")]
    pub residency_policy: Policy,
    /// What the run should hold between operations, anonymous memory and resident pages of the model's files
    /// together; by default --ram. Policies that release work down to it.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Memory")]
    pub residency_target: Option<u64>,
    /// How far below the target to stay.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Memory")]
    pub residency_reserve: Option<u64>,
    /// Release every page of the model's mappings once after the load.
    #[arg(long, conflicts_with_all = ["release_layer", "residency_prefetch"], help_heading = "Memory")]
    pub release_mapping_pages: bool,
    /// Release the pages of layer N once after the load, but for those shared with other layers. May be
    /// repeated.
    #[arg(long, value_name = "N", conflicts_with = "residency_prefetch", help_heading = "Memory")]
    pub release_layer: Vec<u32>,
    /// Begin to read so many bytes of weights after the load, layers in order.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Memory")]
    pub residency_prefetch: Option<u64>,
    /// Enforce with this back end only, instead of the first that is usable.
    #[arg(long, value_name = "NAME", requires = "enforce_ram", value_enum, help_heading = "Memory")]
    pub enforce_backend: Option<EnforceBackend>,
    /// End the run after so many seconds, with exit code 124. With --enforce-ram it is 900 unless you say
    /// otherwise.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Memory")]
    #[arg(default_value_if("enforce_ram", ArgPredicate::IsPresent, "900"))]
    pub enforce_timeout: Option<Duration>,
    /// Tokens of context; by default what the prompt and --max-tokens need.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help_heading = "Memory")]
    pub ctx: Option<u32>,
    /// How the keys and values of past tokens are stored.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_enum, help_heading = "Memory")]
    pub kv_type: KvType,
    /// What to do when the model does not fit as fast as it could run: auto takes a slower way, off refuses.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_enum, help_heading = "Memory")]
    pub fit: FitChoice,
    /// Load even when the run cannot work in the budget, and warn.
    #[arg(long, help_heading = "Memory")]
    pub no_fit_guard: bool,
    /// Stop the run when so much more of the machine's swap is in use than at the start, or never with off.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = swap_limit, help_heading = "Memory")]
    pub swap_limit: SwapLimit,
    /// Keep the weights in the file's own layout. By default weights are copied into the layout the CPU
    /// computes fastest with, where there is one.
    #[arg(long, help_heading = "Memory")]
    pub no_repack: bool,
    /// Do not ask the kernel to read the whole file ahead while loading.
    #[arg(long, help_heading = "Memory")]
    pub no_prefetch: bool,

    /// Compute threads; by default the processors this process may use.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    #[arg(help_heading = "Computation")]
    pub threads: Option<u32>,
    /// The device: cpu, id:ID or backend:NAME:N. Models run on the CPU only; another device is refused.
    #[arg(long, value_name = "DEVICE", default_value = "cpu", help_heading = "Computation")]
    pub device: DeviceChoice,
    /// The engine.
    #[arg(long, value_name = "NAME", default_value = "forgecore", value_enum)]
    #[arg(help_heading = "Computation")]
    pub backend: Engine,

    /// Show the native library's messages.
    #[arg(short, long, help_heading = "Reports")]
    pub verbose: bool,
    /// Print how long loading, the prompt and generation took.
    #[arg(long, help_heading = "Reports")]
    pub profile: bool,
    /// Print where the memory was: limit, peak, faults, bytes read.
    #[arg(long, help_heading = "Reports")]
    pub memory_report: bool,
    /// Print where the weights were, what was done about them, and what explains the memory.
    #[arg(long, help_heading = "Reports")]
    pub residency_report: bool,
    /// Print the tensors of layer N: where each is in its file and in memory.
    #[arg(long, value_name = "N", help_heading = "Reports")]
    pub inspect_layer: Option<u32>,
    /// Record what the graph computes, in order: operations, what they read, when each weight is used last.
    #[arg(long, help_heading = "Reports")]
    pub graph_trace: bool,
    /// How many events there is room for; more are counted and dropped.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = events, help_heading = "Reports")]
    #[arg(requires = "graph_trace")]
    pub graph_trace_events: usize,
    /// Compute nodes one by one, and put each with its time into the report.
    #[arg(long, requires = "graph_trace", help_heading = "Reports")]
    pub graph_trace_detail: bool,
    /// Write the whole report as JSON, whatever happens to the run.
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub residency_report_json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  Continue a text:
    ramforge run model.gguf --prompt \"The capital of France is\"
  Ask a chat model, inside a budget that the kernel enforces:
    ramforge run model.gguf --chat --prompt \"Why is the sky blue?\" --ram 8G --enforce-ram
  Read the prompt from a file and keep the report for a dashboard:
    ramforge run model.gguf --prompt-file letter.txt --residency-report-json report.json";

/// The engine names of `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The patched llama.cpp in this program.
    Forgecore,
}

/// The choices of `--fit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FitChoice {
    /// The fastest way that works in the budget.
    Auto,
    /// The fastest way there is, or none.
    Off,
}

/// `--swap-limit`: a size in bytes, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapLimit(pub Option<u64>);

/// The names of `--enforce-backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EnforceBackend {
    /// A cgroup v2 below this process's own, delegated one.
    CgroupV2,
    /// A transient scope of the user's systemd.
    SystemdScope,
    /// The cgroup v1 memory controller.
    CgroupV1,
}

impl From<EnforceBackend> for Backend {
    fn from(name: EnforceBackend) -> Self {
        match name {
            EnforceBackend::CgroupV2 => Self::CgroupV2,
            EnforceBackend::SystemdScope => Self::SystemdScope,
            EnforceBackend::CgroupV1 => Self::CgroupV1,
        }
    }
}

fn number<T>(text: &str, expected: &str, holds: impl Fn(f64) -> bool) -> Result<T, String>
where
    T: FromStr + Copy + Into<f64>,
{
    let holds = |value: f64| value.is_finite() && holds(value);
    text.parse().ok().filter(|&value: &T| holds(value.into())).ok_or(format!("expected {expected}"))
}

fn swap_limit(text: &str) -> Result<SwapLimit, Error> {
    if text == "off" { Ok(SwapLimit(None)) } else { size::parse(text).map(|bytes| SwapLimit(Some(bytes))) }
}

pub(super) fn at_least_zero<T: FromStr + Copy + Into<f64>>(text: &str) -> Result<T, String> {
    number(text, "a number from 0 up", |value| value >= 0.0)
}

fn above_zero(text: &str) -> Result<f32, String> {
    number(text, "a number above 0", |value| value > 0.0)
}

fn share(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

fn events(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&value: &usize| value > 0).ok_or("expected a whole number above 0".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&value: &f64| value > 0.0);
    seconds
        .and_then(|value| Duration::try_from_secs_f64(value).ok())
        .ok_or("expected a number of seconds above 0".to_owned())
}
