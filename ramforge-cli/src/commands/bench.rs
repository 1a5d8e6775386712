//! `ramforge bench`: runs of `ramforge run`, in turn, and the disk between them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use forge_core::Threads;
use forge_core::spawn::{Setup, spawn};
use forge_core::staging::{direct_reader, measure_bandwidth};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::Builder;

use crate::bench::{Bench, Measured, Request, Subject, Way, is_repacked};
use crate::cli::BenchArgs;
use crate::commands::run::tool;
use crate::commands::{Terminal, interrupt};
use crate::engine::BATCH_TOKENS;
use crate::gguf::Model;
use crate::report::file::ReportFile;
use crate::report::{Report, RunResult};
use crate::residency::inventory::PAGE;
use crate::residency::stream::Means;
use crate::supervisor::readiness;
use crate::{Error, ErrorKind, Result};

/// How often a run that goes on is looked at.
const POLL_TIME: Duration = Duration::from_millis(20);

/// How long the disk is read in a round.
const DISK_TIME: Duration = Duration::from_secs(1);

pub fn bench(args: &BenchArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    let model = Model::open(&args.model)?;
    can_enforce()?;
    // Figures that cannot be written should not cost the runs.
    let json = args.json.as_deref().map(|path| Json::prepare(path, &model)).transpose()?;
    let runs = Runs { args, exe: &terminal.exe, stopped: interrupt::flag()? };
    let bench = runs.rounds(&model, terminal.err_is_terminal)?;
    let mut text = Vec::new();
    bench.write_human(&mut text).map_err(Terminal::cannot_write)?;
    let printed = terminal.print(&text);
    printed.and(json.map_or(Ok(()), |json| json.write(&bench)))
}

/// Where the figures go.
enum Json<'path> {
    /// A file, replaced in one step.
    File(ReportFile),
    /// What is there and is no file, such as a pipe.
    Stream(&'path Path),
}

impl<'path> Json<'path> {
    fn prepare(path: &'path Path, model: &Model) -> Result<Self> {
        if fs::metadata(path).is_ok_and(|existing| !existing.is_file() && !existing.is_dir()) {
            return Ok(Self::Stream(path));
        }
        let inputs: Vec<PathBuf> = model.files().iter().map(|file| file.path.clone()).collect();
        ReportFile::prepare(path, &inputs).map(Self::File)
    }

    fn write(self, bench: &Bench) -> Result<()> {
        match self {
            Self::File(file) => file.write(bench),
            Self::Stream(path) => {
                let text = serde_json::to_string_pretty(bench).map_err(std::io::Error::from);
                text.and_then(|text| fs::write(path, text + "\n")).map_err(|error| {
                    Error::failed(format!("cannot write {}", path.display())).caused_by(error)
                })
            }
        }
    }
}

/// Without a limit that the kernel enforces, nothing here would mean anything.
fn can_enforce() -> Result<()> {
    let all = readiness()?;
    if all.iter().any(|back_end| back_end.obstacle.is_none()) {
        return Ok(());
    }
    let error = Error::failed("no back end can enforce a budget here, so nothing can be measured in one");
    Err(all.into_iter().fold(error, |error, back_end| match back_end.obstacle {
        Some((reason, remedy)) => error.hint(format!("{}: {reason}; {remedy}", back_end.backend)),
        None => error,
    }))
}

/// The runs of a benchmark.
struct Runs<'bench> {
    args: &'bench BenchArgs,
    exe: &'bench Path,
    stopped: Arc<AtomicBool>,
}

impl Runs<'_> {
    fn rounds(&self, model: &Model, progress: bool) -> Result<Bench> {
        let mut ways: Vec<Measured> =
            [Way::Policy, Way::KernelPaging, Way::Resident].map(Measured::new).into();
        if self.args.no_paging {
            ways[1].reason = Some("left out (--no-paging)".to_owned());
        }
        let mut disk = Ok(Vec::new());
        let mut means = Means::LARGE;
        let bar = bar(progress, u64::from(self.args.rounds) * (ways.len() as u64 + 1));
        // What the policy's first run does is what it is compared with.
        let mut repack = !self.args.no_repack;
        for round in 0..self.args.rounds {
            for measured in &mut ways {
                bar.set_message(format!("round {}: {}", round + 1, name(measured.way)));
                if measured.goes_on() {
                    let first = measured.way == Way::Policy && measured.rounds.is_empty();
                    match self.run(measured.way, repack) {
                        Ok(report) => {
                            if first {
                                repack = is_repacked(&report);
                            }
                            means = report.streaming.as_ref().map_or(means, |streaming| Means {
                                read_bytes: streaming.read_bytes,
                                readers: streaming.readers,
                                ..means
                            });
                            measured.add(&report, repack);
                        }
                        // Nothing is comparable with a policy that does not run.
                        Err(error) if first || error.kind() == ErrorKind::Interrupted => return Err(error),
                        Err(error) => measured.reason = Some(error.to_string()),
                    }
                }
                bar.inc(1);
            }
            bar.set_message(format!("round {}: disk", round + 1));
            disk = disk.and_then(|rounds| add_disk(model, means, rounds));
            bar.inc(1);
        }
        bar.finish_and_clear();
        let request = Request {
            model: self.args.model.display().to_string(),
            ram_bytes: self.args.ram,
            policy: self.args.policy.name(),
            rounds: self.args.rounds,
            prompt_tokens: self.args.prompt_tokens,
            tokens: self.args.tokens,
            threads: self.threads(),
        };
        let subject =
            Subject { tool: tool(), request, weight_bytes: model.tensor_bytes(), batch_tokens: BATCH_TOKENS };
        Ok(Bench::new(subject, disk, ways))
    }

    fn threads(&self) -> u32 {
        self.args.threads.unwrap_or_else(|| Threads::default().decode)
    }

    /// Runs the model one `way`, and returns the report of a run that ended well.
    fn run(&self, way: Way, repack: bool) -> Result<Report> {
        let failed = |error: std::io::Error| Error::failed("cannot start a run").caused_by(error);
        // One for each run, which cannot find the report of another in it.
        let folder = Builder::new().prefix("ramforge-").tempdir().map_err(failed)?;
        let path = folder.path().join("report.json");
        let said = folder.path().join("said");
        let mut command = self.command(way, repack);
        command.arg("--residency-report-json").arg(&path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said).map_err(failed)?);
        let setup = Setup { die_with_parent: true, ..Setup::default() };
        let status = spawn(command, &setup).and_then(|child| self.wait(child)).map_err(failed)?;
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        // What cannot be read only has no hints.
        let said = fs::read(&said).unwrap_or_default();
        outcome(fs::read(&path), status, &String::from_utf8_lossy(&said))
    }

    fn command(&self, way: Way, repack: bool) -> Command {
        let mut command = Command::new(self.exe);
        command.arg("run").arg(&self.args.model);
        command.args(["--measure", &self.args.prompt_tokens.to_string()]);
        command.args(["--max-tokens", &(self.args.tokens + 1).to_string()]);
        command.args(["--threads", &self.threads().to_string()]);
        if let Some(tokens) = self.args.ctx {
            command.args(["--ctx", &tokens.to_string()]);
        }
        if !repack {
            command.arg("--no-repack");
        }
        let in_budget = ["--enforce-ram".to_owned(), "--ram".to_owned(), self.args.ram.to_string()];
        match way {
            Way::Policy => command.args(in_budget).args(["--residency-policy", &self.args.policy.name()]),
            Way::KernelPaging => {
                command.args(in_budget).args(["--residency-policy", "off", "--no-fit-guard"])
            }
            // What does not fit is refused, not paged.
            Way::Resident => command.args(["--residency-policy", "off", "--warm-up", "--fit", "off"]),
        };
        command
    }

    /// Waits for a run, and passes an interrupt on to it.
    fn wait(&self, mut run: Child) -> std::io::Result<ExitStatus> {
        let mut passed_on = false;
        loop {
            if let Some(status) = run.try_wait()? {
                return Ok(status);
            }
            if self.stopped.load(Ordering::Relaxed) && !passed_on {
                passed_on = true;
                // If it has just ended, that is seen next.
                let _ = kill_process(Pid::from_child(&run), Signal::INT);
            }
            std::thread::sleep(POLL_TIME);
        }
    }
}

/// The report of a run that ended with `status` and wrote `text`, or the error it ended in, with what it `said`.
fn outcome(text: std::io::Result<Vec<u8>>, status: ExitStatus, said: &str) -> Result<Report> {
    let report = text.and_then(|text| Ok(serde_json::from_slice::<Report>(&text)?));
    let error = match report {
        Ok(report) if report.outcome.result == RunResult::Ok && status.success() => return Ok(report),
        Ok(Report { outcome, .. }) => {
            let message = outcome.message.unwrap_or_else(|| format!("the run ended with {status}"));
            Error::new(kind(outcome.result), message)
        }
        Err(error) => {
            let said = said.lines().find_map(|line| line.strip_prefix("error: "));
            let cause = said.map_or_else(|| error.to_string(), str::to_owned);
            Error::failed(format!("the run ended with {status} and left no report")).caused_by(cause)
        }
    };
    let hints = said.lines().filter_map(|line| line.strip_prefix("  hint: "));
    Err(hints.filter(|hint| is_for_bench(hint)).fold(error, |error, hint| error.hint(hint)))
}

/// Whether every option in a run's hint is one of `bench` too.
fn is_for_bench(hint: &str) -> bool {
    let bench = BenchArgs::augment_args(clap::Command::new("bench"));
    let options = hint.split_whitespace().filter_map(|word| word.strip_prefix("--"));
    let mut names = options.map(|option| option.trim_end_matches([',', ';']));
    names.all(|name| bench.get_arguments().any(|argument| argument.get_long() == Some(name)))
}

const fn kind(result: RunResult) -> ErrorKind {
    match result {
        RunResult::Ok | RunResult::Error => ErrorKind::Failed,
        RunResult::Refused => ErrorKind::Refused,
        RunResult::Timeout => ErrorKind::Timeout,
        RunResult::Interrupted => ErrorKind::Interrupted,
        RunResult::OomKilled => ErrorKind::OomKilled,
        RunResult::NativeAbort => ErrorKind::NativeAbort,
    }
}

/// Adds a measurement of the disk, with the reads of `means`, to `rounds`.
fn add_disk(model: &Model, means: Means, mut rounds: Vec<f64>) -> std::result::Result<Vec<f64>, String> {
    let paths: Vec<PathBuf> = model.files().iter().map(|file| file.path.clone()).collect();
    let bytes: Vec<u64> = model.files().iter().map(|file| file.bytes).collect();
    let reader =
        direct_reader(&paths).map_err(|error| format!("its file system has no direct reads: {error}"))?;
    let read_bytes = read_bytes(means, &bytes) as usize;
    let measured = measure_bandwidth(&*reader, &bytes, read_bytes, means.readers as usize, DISK_TIME)
        .map_err(|error| error.to_string())?;
    rounds.push(measured.bytes_per_second());
    Ok(rounds)
}

/// A read of `means`, or all whole pages of the largest file when that has no such read. Smaller files have none then.
fn read_bytes(means: Means, file_bytes: &[u64]) -> u64 {
    let largest = file_bytes.iter().copied().max().unwrap_or(0);
    means.read_bytes.min(largest / PAGE * PAGE)
}

const fn name(way: Way) -> &'static str {
    match way {
        Way::Policy => "the policy in the budget",
        Way::KernelPaging => "kernel paging in the budget",
        Way::Resident => "everything in memory",
    }
}

fn bar(shown: bool, length: u64) -> ProgressBar {
    if !shown {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    // The template is a constant of this file, and a bar without style is a bar all the same.
    if let Ok(style) = ProgressStyle::with_template("{msg:40} {bar:32} {pos}/{len}, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{self, Outcome, Tool};
    use std::os::unix::process::ExitStatusExt;

    const SAID: &str = "\
error: it does not fit
  hint: --ram 9M (the smallest that works), once there is room
  hint: --no-fit-guard (loads anyway)
  hint: give the run less: --ram SIZE, or a smaller --ctx; `ramforge plan` says what works
";

    fn ended(result: RunResult, exit_code: i32) -> Result<Report> {
        let mut report = Report::new(Tool::default(), report::Model::default(), report::Request::default());
        report.outcome = Outcome { result, message: None, ..Outcome::default() };
        outcome(Ok(serde_json::to_vec(&report).unwrap()), ExitStatus::from_raw(exit_code << 8), SAID)
    }

    #[test]
    fn a_run_that_failed_keeps_its_kind_and_the_hints_that_bench_can_follow() {
        let error = ended(RunResult::Refused, 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(error.hints().len(), 2, "{:?}", error.hints());
        assert!(error.hints()[0].starts_with("--ram 9M") && error.hints()[1].starts_with("give"));
    }

    #[test]
    fn only_a_report_and_a_status_that_agree_are_a_success() {
        assert!(ended(RunResult::Ok, 0).is_ok());
        assert!(ended(RunResult::Ok, 1).unwrap_err().to_string().contains("exit status: 1"));
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = outcome(Err(missing), ExitStatus::from_raw(1 << 8), SAID).unwrap_err().to_string();
        assert!(error.contains("no report") && error.contains("it does not fit"), "{error}");
    }

    #[test]
    fn a_small_file_does_not_make_the_reads_small() {
        let read = Means::LARGE.read_bytes;
        assert_eq!(read_bytes(Means::LARGE, &[read, 100]), read);
        assert_eq!(read_bytes(Means::LARGE, &[3 * PAGE + 1, 100]), 3 * PAGE);
        assert_eq!(read_bytes(Means::LARGE, &[100]), 0);
    }
}
