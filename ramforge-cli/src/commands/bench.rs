//! `ramforge bench`: runs of `ramforge run`, in turn, and the disk between them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forge_core::Threads;
use forge_core::spawn::{Setup, spawn};
use forge_core::staging::{direct_reader, measure_bandwidth};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, Measured, Request, Subject, Way};
use crate::cli::BenchArgs;
use crate::commands::run::tool;
use crate::commands::{Terminal, interrupt};
use crate::engine::BATCH_TOKENS;
use crate::gguf::Model;
use crate::report::{Report, RunResult};
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
    let folder = tempfile::tempdir().map_err(|error| {
        Error::failed("cannot make a folder for the reports of the runs").caused_by(error)
    })?;
    let stopped = interrupt::flag()?;
    let runs = Runs { args, exe: &terminal.exe, report: folder.path().join("report.json"), stopped };
    let bench = runs.rounds(&model, terminal.err_is_terminal)?;
    if let Some(path) = &args.json {
        let text = serde_json::to_vec_pretty(&bench).map_err(|error| cannot_write(path, error.into()))?;
        std::fs::write(path, text).map_err(|error| cannot_write(path, error))?;
    }
    let mut text = Vec::new();
    bench.write_human(&mut text).map_err(Terminal::cannot_write)?;
    terminal.print(&text)
}

fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    Error::failed(format!("cannot write {}", path.display())).caused_by(error)
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
    /// Where each run writes its report.
    report: PathBuf,
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
        let bar = bar(progress, u64::from(self.args.rounds) * (ways.len() as u64 + 1));
        // What is streamed is in the file's own layout, and so is what it is compared with.
        let mut repack = !self.args.no_repack;
        for round in 0..self.args.rounds {
            for measured in &mut ways {
                bar.set_message(format!("round {}: {}", round + 1, name(measured.way)));
                if measured.goes_on() {
                    let report = self.run(measured.way, repack)?;
                    measured.add(&report);
                    if measured.way == Way::Policy {
                        // Nothing is comparable with a policy that does not run.
                        if let Some(reason) = measured.reason.as_ref().filter(|_| measured.rounds.is_empty())
                        {
                            return Err(Error::failed(format!("the run in the budget failed: {reason}")));
                        }
                        repack &= report.streaming.is_none();
                    }
                }
                bar.inc(1);
            }
            bar.set_message(format!("round {}: disk", round + 1));
            disk = disk.and_then(|rounds| self.disk(model, rounds));
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

    /// Runs the model one `way`, and returns the report, whatever is in it.
    fn run(&self, way: Way, repack: bool) -> Result<Report> {
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
            Way::Resident => command.args(["--residency-policy", "off", "--warm-up"]),
        };
        command.arg("--residency-report-json").arg(&self.report);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let failed = |error: std::io::Error| Error::failed("cannot start a run").caused_by(error);
        let setup = Setup { die_with_parent: true, ..Setup::default() };
        spawn(command, &setup).and_then(|child| self.wait(child)).map_err(failed)?;
        let text = std::fs::read(&self.report)
            .map_err(|error| Error::failed("a run left no report").caused_by(error))?;
        let report: Report = serde_json::from_slice(&text)
            .map_err(|error| Error::failed("a run's report cannot be read").caused_by(error))?;
        if self.stopped.load(Ordering::Relaxed) || report.outcome.result == RunResult::Interrupted {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        Ok(report)
    }

    /// Waits for a run, and passes an interrupt on to it.
    fn wait(&self, mut run: Child) -> std::io::Result<()> {
        let mut passed_on = false;
        while run.try_wait()?.is_none() {
            if self.stopped.load(Ordering::Relaxed) && !passed_on {
                passed_on = true;
                // If it has just ended, that is seen next.
                let _ = kill_process(Pid::from_child(&run), Signal::INT);
            }
            std::thread::sleep(POLL_TIME);
        }
        Ok(())
    }

    /// Adds a measurement of the disk to `rounds`.
    fn disk(&self, model: &Model, mut rounds: Vec<f64>) -> std::result::Result<Vec<f64>, String> {
        let paths: Vec<PathBuf> = model.files().iter().map(|file| file.path.clone()).collect();
        let bytes: Vec<u64> = model.files().iter().map(|file| file.bytes).collect();
        let reader =
            direct_reader(&paths).map_err(|error| format!("its file system has no direct reads: {error}"))?;
        let Means { read_bytes, readers, .. } = Means::LARGE;
        // No small file is without a read.
        let read_bytes = read_bytes.min(bytes.iter().copied().min().unwrap_or(0) / 4096 * 4096);
        let measured = measure_bandwidth(&*reader, &bytes, read_bytes as usize, readers as usize, DISK_TIME)
            .map_err(|error| error.to_string())?;
        rounds.push(measured.bytes_per_second());
        Ok(rounds)
    }
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
