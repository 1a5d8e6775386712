//! Asking the native library for sizes, in a process of its own: it aborts on some files, and what a
//! process like the worker holds besides the sized buffers can then be measured.
//!
//! The process is this executable with the hidden command [`COMMAND`], whose argument is the path of the
//! [`Subject`]. It gets one JSON line for each context on standard input and answers each with one on standard
//! output; native messages go to its standard error.

mod helper;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forge_core::spawn::{Setup, spawn};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::engine::Settings;
use crate::plan::{ContextRequest, KvType, NativeSizes};
use crate::{Error, ErrorKind, Result};

pub use helper::run;

/// The name of the hidden command.
pub const COMMAND: &str = "sizing";

/// How long one answer may take. The header of the largest vocabulary takes under a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// The model to size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The model's files, the shards in their order.
    pub files: Vec<PathBuf>,
    /// Whether weights are repacked.
    pub repack: bool,
    /// The run that [`ContextTokens::Run`](crate::plan::ContextTokens::Run) stands for.
    pub run: Option<Box<Settings>>,
}

/// What a helper answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Sizes(NativeSizes),
    Failed { kind: ErrorKind, message: String, hints: Vec<String> },
}

impl From<KvType> for forge_core::KvType {
    fn from(kv_type: KvType) -> Self {
        match kv_type {
            KvType::F32 => Self::F32,
            KvType::F16 => Self::F16,
            KvType::Bf16 => Self::Bf16,
            KvType::Q8_0 => Self::Q8_0,
            KvType::Q5_1 => Self::Q5_1,
            KvType::Q5_0 => Self::Q5_0,
            KvType::Q4_1 => Self::Q4_1,
            KvType::Q4_0 => Self::Q4_0,
        }
    }
}

/// A helper process that holds one model's header. It ends when this is dropped.
#[derive(Debug)]
pub struct Sizer {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Receiver<io::Result<String>>,
    native: Option<JoinHandle<String>>,
    name: String,
}

impl Sizer {
    /// Starts a helper; `exe` is the executable with the hidden command.
    ///
    /// # Errors
    /// The process cannot be started, or a file's name cannot be passed on. What is wrong with the model comes
    /// with the first answer.
    pub fn start(exe: &Path, subject: &Subject) -> Result<Self> {
        let failed = |error: io::Error| Error::failed("cannot start the sizing process").caused_by(error);
        subject.files.iter().try_for_each(|file| check_name(file))?;
        let file = subject_file(subject).map_err(failed)?;
        let mut command = Command::new(exe);
        command.arg(COMMAND).arg(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let setup = Setup { inherit: vec![file.as_fd()], die_with_parent: true, ..Setup::default() };
        let mut child = spawn(command, &setup).map_err(failed)?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || lines.for_each(|line| drop(sender.send(line))));
        let native = last_message(child.stderr.take().expect("it is piped"));
        let name = subject.files.first().map(|file| file.display().to_string()).unwrap_or_default();
        Ok(Self { requests: child.stdin.take(), child, answers, native: Some(native), name })
    }

    /// The sizes of the model with one context.
    ///
    /// # Errors
    /// The native library refuses the model or the context, or aborts the helper: the error has its message. It is
    /// of the kind [`ErrorKind::Refused`] when there cannot be enough memory for the context.
    pub fn sizes(&mut self, request: &ContextRequest) -> Result<NativeSizes> {
        // Without an answer the helper has ended, or hangs.
        let line = self.ask(request).map_err(|silence| self.ended(&silence))?;
        let answer = serde_json::from_str(&line)
            .map_err(|error| Error::failed("cannot understand the sizing process").caused_by(error))?;
        match answer {
            Answer::Sizes(sizes) => Ok(sizes),
            Answer::Failed { message, .. } if short_of_memory(&message) => {
                Err(out_of_memory(&self.name, &message))
            }
            Answer::Failed { kind, message, hints } => {
                Err(hints.into_iter().fold(Error::new(kind, message), Error::hint))
            }
        }
    }

    fn ask(&mut self, request: &ContextRequest) -> io::Result<String> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let pipe = self.requests.as_mut().expect("it is open until this is dropped");
        pipe.write_all(&line)?;
        self.answers.recv_timeout(PATIENCE).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(io::ErrorKind::TimedOut.into()),
            RecvTimeoutError::Disconnected => Err(io::ErrorKind::UnexpectedEof.into()),
        })
    }

    /// The error of a helper that gave no answer.
    fn ended(&mut self, silence: &io::Error) -> Error {
        // One that hangs is ended; one that has ended keeps its status.
        let _ = self.child.kill();
        let status = self.child.wait().ok();
        let native = self.native.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if silence.kind() == io::ErrorKind::TimedOut {
            let seconds = PATIENCE.as_secs();
            return Error::failed(format!("native code does not size {} within {seconds} s", self.name));
        }
        crashed(&self.name, status, native.trim())
    }
}

/// Refuses a file that cannot be named to another process: what they are told is JSON, which is UTF-8.
pub(crate) fn check_name(path: &Path) -> Result<()> {
    if path.to_str().is_some() {
        return Ok(());
    }
    // The debug form shows the bytes that are wrong.
    Err(Error::failed(format!("{path:?}: the name is not UTF-8")).hint("rename the file or its folder"))
}

/// The subject as a file in memory, for the helper to inherit: a prompt may be longer than an argument.
fn subject_file(subject: &Subject) -> io::Result<File> {
    let mut file = File::from(memfd_create("ramforge-sizing", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(subject)?)?;
    Ok(file)
}

/// Whether native code, or Rust's allocator, says so.
fn short_of_memory(said: &str) -> bool {
    ["bad_alloc", "failed to allocate", "memory allocation of", "out of memory", "Cannot allocate memory"]
        .iter()
        .any(|words| said.contains(words))
}

/// The error of a helper that did not get the memory: it holds no weights, so it is the context that takes much.
fn out_of_memory(name: &str, how: &str) -> Error {
    let message = format!("there is not enough memory to size {name} ({how}): its context takes the most");
    Error::new(ErrorKind::Refused, message).hint("use a smaller --ctx")
}

fn crashed(name: &str, status: Option<ExitStatus>, native: &str) -> Error {
    let signal = status.and_then(|status| status.signal());
    let how = signal.map_or("ended".to_owned(), |signal| {
        signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
    });
    // Nobody but the kernel, short of memory, ends a helper this way.
    if signal == Some(Signal::KILL.as_raw()) {
        return out_of_memory(name, &how);
    }
    if short_of_memory(native) {
        return out_of_memory(name, native);
    }
    let message = match native {
        "" => format!("native code cannot size {name} ({how}, without a message)"),
        said => format!("native code cannot size {name} ({how}): {said}"),
    };
    Error::new(ErrorKind::NativeAbort, message)
        .hint("check the model file: `ramforge inspect` reads its header, a checksum shows damage")
}

impl Drop for Sizer {
    fn drop(&mut self) {
        // The helper ends at the end of its input; the kill is for one that is in the middle of something.
        self.requests = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Remembers the last line said on `stderr`, so that the pipe never fills up.
fn last_message(stderr: ChildStderr) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut last = String::new();
        for line in BufReader::new(stderr).split(b'\n').map_while(io::Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if !line.trim().is_empty() {
                last = line.into_owned();
            }
        }
        last
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_subject_may_be_longer_than_an_argument() {
        let files = vec![PathBuf::from("x".repeat(200_000))];
        let subject = Subject { files, repack: true, run: None };
        let file = subject_file(&subject).unwrap();
        let read = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(serde_json::from_slice::<Subject>(&read).unwrap(), subject);
    }

    #[test]
    fn a_helper_without_memory_is_about_the_context_and_not_about_the_file() {
        let killed = crashed("m.gguf", Some(ExitStatus::from_raw(9)), "");
        let aborted = crashed("m.gguf", Some(ExitStatus::from_raw(6)), "memory allocation of 8 bytes failed");
        for error in [killed, aborted] {
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert_eq!(error.hints(), ["use a smaller --ctx"]);
        }
        let error = crashed("m.gguf", Some(ExitStatus::from_raw(6)), "GGML_ASSERT(n > 0) failed");
        assert_eq!(error.kind(), ErrorKind::NativeAbort);
        assert!(error.hints()[0].contains("check the model file"), "{:?}", error.hints());
    }

    #[test]
    fn a_name_that_cannot_be_passed_on_is_shown_with_its_bytes() {
        let error = check_name(Path::new(OsStr::from_bytes(b"m\xff.gguf"))).unwrap_err();
        assert!(error.to_string().contains("m\\xFF.gguf"), "{error}");
        check_name(Path::new("größer.gguf")).unwrap();
    }
}
