//! The `ramforge` command: parse, call the library, exit code.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write, stderr, stdin, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, FromArgMatches};
use ramforge::cli::Cli;
use ramforge::commands::{Terminal, execute, long_version};
use ramforge::{Error, Result};
use signal_hook::consts::SIGXFSZ;

fn main() -> ExitCode {
    // A file that reaches the shell's limit would end the process before it can say so. With a handler, which
    // has nothing to do, the write fails. Without one, everything else still works.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::<AtomicBool>::default());
    let matches = Cli::command().long_version(long_version()).get_matches();
    let result =
        Cli::from_arg_matches(&matches).map_err(|error| Error::usage(error.to_string())).and_then(run);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_said() {
                // When standard error is closed, the exit code still says it.
                let _ = print(&error);
            }
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let exe = std::env::current_exe()
        .map_err(|error| Error::failed("cannot find this program's own file").caused_by(error))?;
    let mut terminal = Terminal {
        out: &mut stdout().lock(),
        err: &mut stderr(),
        input_is_terminal: stdin().is_terminal(),
        err_is_terminal: stderr().is_terminal(),
        exe,
    };
    execute(cli, &mut terminal)
}

fn print(error: &Error) -> std::io::Result<()> {
    let mut err = stderr().lock();
    writeln!(err, "error: {error}")?;
    for hint in error.hints() {
        writeln!(err, "  hint: {hint}")?;
    }
    Ok(())
}
