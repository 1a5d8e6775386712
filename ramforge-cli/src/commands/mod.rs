//! One file a subcommand: glue between the command line and the library, nothing more.

mod admission;
mod bench;
mod completions;
mod doctor;
mod inspect;
mod interrupt;
mod plan;
mod progress;
mod report;
mod run;
mod sizing;
mod support;
mod terminal;
mod version;
mod worker;

use std::io::stdin;

use crate::cli::{Cli, Command};
use crate::{Result, supervisor};

pub use terminal::Terminal;
pub use version::long_version;

/// Carries out a parsed command line.
///
/// # Errors
/// What the command failed with; its kind is the exit code.
pub fn execute(cli: Cli, terminal: &mut Terminal<'_>) -> Result<()> {
    match cli.command {
        Command::Run(args) => run::run(*args, terminal),
        Command::Plan(args) => plan::plan(&args, terminal),
        Command::Bench(args) => bench::bench(&args, terminal),
        Command::Doctor(args) => doctor::doctor(&args, terminal),
        Command::Inspect(args) => inspect::inspect(&args, terminal),
        Command::Report(args) => report::report(&args, terminal),
        Command::Support(args) => support::support(&args, terminal),
        Command::Completions(args) => completions::completions(&args, terminal),
        Command::Worker(args) => worker::worker(&args.channel, terminal),
        Command::Sizing(args) => sizing::sizing(&args.channel, terminal),
        Command::Rendering => crate::engine::rendering::run(&mut stdin().lock(), terminal.out),
        Command::Guardian(args) => supervisor::guardian::run(&args.channel),
        Command::Scope(args) => match supervisor::scope::enter(&args.channel)? {},
    }
}
