//! Measures `ramforge run` against the same work done directly with llama.cpp's C API.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{io, thread};

use clap::Parser;
use ramforge_tests::programs::{direct, fingerprint, ramforge_with_report};
use ramforge_tests::{cache, real, shapes};

/// Run `ramforge` and a loop written directly against llama.cpp in turn, and compare their speeds.
///
/// Machines are shared, so only the ratios of runs that follow each other mean much; the medians of those are
/// the result.
#[derive(Parser)]
struct Arguments {
    /// A GGUF file or the name of a generated shape, such as qwen2-1.5b-shape; by default SmolLM2.
    model: Option<String>,

    /// Rounds that count; one more comes before them.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// The prompt counts up to this number.
    #[arg(long, default_value_t = 100)]
    count_to: u32,

    /// Tokens to generate.
    #[arg(short = 'n', long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..))]
    max_tokens: u32,

    /// Compute threads; by default the processors this process may use.
    #[arg(short, long)]
    threads: Option<usize>,

    /// Keep the weights in the file's own layout, in both programs.
    #[arg(long)]
    no_repack: bool,

    /// Give the direct loop a thread pool, as llama.cpp's own tools do; without it, it keeps the default of
    /// llama.cpp's library, which starts threads anew for every graph.
    #[arg(long)]
    thread_pool: bool,
}

/// Tokens a second of one run.
#[derive(Clone, Copy)]
struct Speed {
    prompt: f64,
    decode: f64,
}

fn main() -> ExitCode {
    match bench(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-direct: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &Arguments) -> io::Result<()> {
    let model = model(arguments.model.as_deref())?;
    let model = model.to_str().ok_or_else(|| io::Error::other("the model's path is no text"))?;
    let prompt: String = (1..=arguments.count_to).map(|number| format!("{number}, ")).collect();
    let threads = match arguments.threads {
        Some(threads) => threads,
        None => thread::available_parallelism()?.get(),
    };
    let (max_tokens, threads) = (arguments.max_tokens.to_string(), threads.to_string());
    let mut shared = vec!["--prompt", &prompt, "--max-tokens", &max_tokens, "--threads", &threads];
    if arguments.no_repack {
        shared.push("--no-repack");
    }

    println!("{model}, {threads} threads");
    println!("round   prompt tokens/s: ramforge  direct   ratio   decode tokens/s: ramforge  direct   ratio");
    let mut rounds = Vec::new();
    for round in 0..=arguments.rounds {
        // Who goes first changes, so that neither always finds the caches the other left.
        let pair = if round % 2 == 0 {
            let ours = ours(model, &shared)?;
            (ours, theirs(model, &shared, arguments.thread_pool)?)
        } else {
            let theirs = theirs(model, &shared, arguments.thread_pool)?;
            (ours(model, &shared)?, theirs)
        };
        let ((ours, our_tokens), (theirs, their_tokens)) = pair;
        if our_tokens != their_tokens {
            return Err(io::Error::other("the two programs generated different tokens"));
        }
        let name = if round == 0 { "warm-up".to_owned() } else { round.to_string() };
        print_row(&name, ours, theirs, ours.prompt / theirs.prompt, ours.decode / theirs.decode);
        if round > 0 {
            rounds.push((ours, theirs));
        }
    }

    let median_of = |value: &dyn Fn(&(Speed, Speed)) -> f64| median(rounds.iter().map(value).collect());
    let ours = Speed { prompt: median_of(&|r| r.0.prompt), decode: median_of(&|r| r.0.decode) };
    let theirs = Speed { prompt: median_of(&|r| r.1.prompt), decode: median_of(&|r| r.1.decode) };
    // The median of the ratios, not the ratio of the medians: the two runs of a round saw the same machine.
    let prompt = median_of(&|r| r.0.prompt / r.1.prompt);
    let decode = median_of(&|r| r.0.decode / r.1.decode);
    print_row("median", ours, theirs, prompt, decode);
    Ok(())
}

/// The path of the model that the command line names.
fn model(name: Option<&str>) -> io::Result<PathBuf> {
    match name {
        None => real::smollm2(),
        Some(name) => match shapes::named().into_iter().find(|spec| spec.name == name) {
            Some(spec) => cache::model(&spec),
            None => Ok(PathBuf::from(name)),
        },
    }
}

fn ours(model: &str, shared: &[&str]) -> io::Result<(Speed, String)> {
    let (output, report) = ramforge_with_report(&[&["run", model], shared].concat())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("ramforge ended with {}: {said}", output.status)));
    }
    let measured = || {
        let tokens = report["output"]["prompt_tokens"].as_f64()?;
        let prompt = tokens * 1000.0 / report["timing"]["prompt_ms"].as_f64()?;
        let decode = report["timing"]["decode_tokens_per_second"].as_f64()?;
        let fingerprint = report["output"]["token_fingerprint"].as_str()?;
        Some((Speed { prompt, decode }, fingerprint.to_owned()))
    };
    measured().ok_or_else(|| io::Error::other("the report of ramforge lacks a figure"))
}

fn theirs(model: &str, shared: &[&str], thread_pool: bool) -> io::Result<(Speed, String)> {
    let pool: &[&str] = if thread_pool { &["--thread-pool"] } else { &[] };
    let run = direct(&[&[model], shared, pool].concat())?;
    let prompt = run.prompt_tokens as f64 * 1000.0 / run.prompt_ms;
    let decode = run
        .decode_tokens_per_second
        .ok_or_else(|| io::Error::other("the model ended the text before the second token"))?;
    Ok((Speed { prompt, decode }, fingerprint(&run.tokens)))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

fn print_row(name: &str, ours: Speed, theirs: Speed, prompt: f64, decode: f64) {
    println!(
        "{name:7} {:25.1} {:7.1} {prompt:7.3} {:26.2} {:7.2} {decode:7.3}",
        ours.prompt, theirs.prompt, ours.decode, theirs.decode
    );
}
