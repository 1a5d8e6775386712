//! `ramforge sizing`: the process that asks the native library for sizes.

use std::io::{Write, stderr, stdin};
use std::sync::Arc;

use crate::Result;
use crate::commands::Terminal;

pub fn sizing(channel: &str, terminal: &mut Terminal<'_>) -> Result<()> {
    // Said inside native calls on any thread, so not through the terminal, which this one holds.
    let say = Arc::new(|text: &str| drop(writeln!(stderr(), "{text}")));
    crate::sizing::run(channel, &mut stdin().lock(), terminal.out, say)
}
