//! Writes one of the named shapes to a file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use ramforge_tests::shapes;

/// Write a model with seeded random weights in the shape of a real one.
#[derive(Parser)]
struct Arguments {
    /// Which shape.
    #[arg(value_parser = PossibleValuesParser::new(shapes::named().into_iter().map(|spec| spec.name)))]
    name: String,

    /// The file to write; with --shards, what the names of the files start with.
    out: PathBuf,

    /// Start the weights from another seed.
    #[arg(long)]
    seed: Option<u64>,

    /// Write only the header, and leave the weights a hole of zeros that takes no room on the disk.
    #[arg(long, conflicts_with = "shards")]
    sparse: bool,

    /// Split the model into this many files, OUT-00001-of-0000N.gguf and so on.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    shards: Option<u16>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut spec = shapes::named()
        .into_iter()
        .find(|spec| spec.name == arguments.name)
        .expect("the parser accepts only these names");
    spec.seed = arguments.seed.unwrap_or(spec.seed);
    let written = match arguments.shards {
        Some(count) => spec.write_shards(&arguments.out, count).map(drop),
        None if arguments.sparse => spec.write_sparse(&arguments.out).map(drop),
        None => spec.write(&arguments.out).map(drop),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generate-model: cannot write {}: {error}", arguments.out.display());
            ExitCode::FAILURE
        }
    }
}
