//! Options of `doctor`.

use std::path::PathBuf;

/// Options of `doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// A model to look at too: its header, its disk, and how it would run with what is free now.
    pub model: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}
