//! `ramforge completions`.

use clap::CommandFactory;

use crate::Result;
use crate::cli::{Cli, CompletionsArgs};
use crate::commands::Terminal;

pub fn completions(args: &CompletionsArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    // Into memory first: the generator panics when the reader closes the pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ramforge", &mut script);
    terminal.print(&script)
}
