//! `ramforge support`.

use crate::Result;
use crate::cli::SupportArgs;
use crate::commands::Terminal;
use crate::support::Support;

pub fn support(args: &SupportArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    let support = Support::of_this_build()?;
    if args.json {
        return terminal.print_json(&support);
    }
    let mut text = Vec::new();
    support.write_human(&mut text).map_err(Terminal::cannot_write)?;
    terminal.print(&text)
}
