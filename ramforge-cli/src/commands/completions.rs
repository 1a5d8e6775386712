//! `ramforge completions`.

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::Result;
use crate::cli::{Cli, CompletionsArgs};
use crate::commands::Terminal;

pub fn completions(args: &CompletionsArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    terminal.print(&script(args.shell))
}

/// In memory: the generator panics when the reader closes the pipe.
fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&Cli::command()), "ramforge", &mut script);
    script
}

/// `command` without what is hidden, which the generators would offer.
fn visible(command: &Command) -> Command {
    let mut shown = Command::new(command.get_name().to_owned())
        .disable_help_subcommand(true)
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(visible));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_not_offered() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let script = String::from_utf8(script(shell)).unwrap();
            for shown in ["completions", "residency-policy", "memory-bound", "max-peak", "version"] {
                assert!(script.contains(shown), "{shell}: {shown}");
            }
            for hidden in ["guardian", "rendering", "warm-up", "--measure"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
        }
    }
}
