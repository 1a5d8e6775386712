//! Writes the generated seeds of the fuzz targets into a folder, such as `fuzz/corpus`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::Parser;
use ramforge_tests::fuzz_seeds::{Seed, seeds};

/// Write the tiny models that the fuzz targets start from.
#[derive(Parser)]
struct Arguments {
    /// The folder, which has or gets one for each target.
    corpus: PathBuf,
}

fn main() -> ExitCode {
    let corpus = Arguments::parse().corpus;
    match write(&corpus) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generate-fuzz-seeds: cannot write to {}: {error}", corpus.display());
            ExitCode::FAILURE
        }
    }
}

fn write(corpus: &Path) -> io::Result<()> {
    for Seed { target, name, bytes } in seeds() {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}
