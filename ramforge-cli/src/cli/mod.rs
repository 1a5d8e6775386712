//! The command line. The doc comments here are the help text.

mod bench;
mod doctor;
mod plan;
mod report;
mod run;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

pub use bench::BenchArgs;
pub use doctor::DoctorArgs;
pub use plan::PlanArgs;
pub use report::{CheckArgs, ReportArgs, ReportCommand};
pub use run::{FitChoice, RunArgs, SwapLimit};

/// Run GGUF language models larger than the memory you allow, and see exactly where every byte was.
///
/// Start with: ramforge run MODEL.gguf --prompt "The capital of France is"
#[derive(Debug, Parser)]
#[command(name = "ramforge", version, max_term_width = 100, arg_required_else_help = true)]
#[command(disable_help_subcommand = true, mut_subcommands = with_negative_numbers)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Takes a negative number as the value of the option before it, which says what is wrong with it.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let options = command.mut_args(|arg| match arg.is_positional() || !arg.get_action().takes_values() {
        true => arg,
        false => arg.allow_negative_numbers(true),
    });
    options.mut_subcommands(with_negative_numbers)
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt with a model, inside a memory budget if you give one.
    Run(Box<RunArgs>),
    /// Say what a model takes in memory and how it would run, without loading it.
    Plan(PlanArgs),
    /// Measure how fast a model runs in a budget, beside what is possible.
    Bench(BenchArgs),
    /// Check that this machine is ready, and that a model fits it.
    Doctor(DoctorArgs),
    /// Show what a model file holds, reading its header only.
    Inspect(InspectArgs),
    /// Show, compare and check the reports of runs.
    Report(ReportArgs),
    /// List the architectures and tensor types that run, and for which of them there is evidence.
    Support(SupportArgs),
    /// Print the completion script for a shell.
    Completions(CompletionsArgs),
    /// The process that runs the model, started by `run`.
    #[command(hide = true)]
    Worker(HiddenArgs),
    /// Asks the native library for sizes, for `plan` and `run`.
    #[command(hide = true)]
    Sizing(HiddenArgs),
    /// Renders the model's chat template.
    #[command(hide = true)]
    Rendering,
    /// Cleans up after a supervisor that was killed.
    #[command(hide = true)]
    Guardian(HiddenArgs),
    /// Enters a systemd scope before it becomes the worker.
    #[command(hide = true)]
    Scope(HiddenArgs),
}

/// Options of `inspect`.
#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// A GGUF file, any shard of a split model, or a folder with exactly one model.
    pub model: PathBuf,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Options of `support`.
#[derive(Debug, clap::Args)]
pub struct SupportArgs {
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Options of `completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// The one argument that the supervisor gives to a process of its own.
#[derive(Debug, clap::Args)]
pub struct HiddenArgs {
    /// Written and read by the supervisor.
    pub channel: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_prompt_may_begin_with_a_hyphen() {
        let arguments = ["ramforge", "run", "m.gguf", "-p", "- Hi", "--chat", "--system", "--x"];
        let Command::Run(run) = Cli::try_parse_from(arguments).unwrap().command else { panic!() };
        assert_eq!((run.prompt.as_deref(), run.system.as_deref()), (Some("- Hi"), Some("--x")));
    }

    #[test]
    fn what_is_wrong_with_a_value_is_said_by_its_option() {
        for (options, reason) in [
            (["--ram", "-5"], "it is negative; write a size like 8G"),
            (["--residency-target", "8X"], "write a size like 8G"),
            (["--temperature", "-1"], "expected a number from 0 up"),
            (["--graph-trace-events", "0"], "expected a whole number above 0"),
            (["--graph-trace-events", "10"], "--graph-trace"),
            (["--threads", "-1"], "-1 is not in 1..=512"),
        ] {
            let arguments = ["ramforge", "run", "m.gguf", "--prompt", "- Hi"].into_iter().chain(options);
            let said = Cli::try_parse_from(arguments).unwrap_err().to_string();
            assert!(said.contains(reason) && !said.contains("tip:"), "{said}");
        }
    }
}
