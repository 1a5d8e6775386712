//! `ramforge inspect`.

use crate::Result;
use crate::cli::InspectArgs;
use crate::commands::Terminal;

pub fn inspect(args: &InspectArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    let summary = crate::inspect::inspect(&args.model)?;
    if args.json {
        return terminal.print_json(&summary);
    }
    let mut text = Vec::new();
    summary.write_human(&mut text).map_err(Terminal::cannot_write)?;
    terminal.print(&text)
}
