//! Rendering a chat template in a process of its own: templates come with models, and a hostile one takes any
//! time and memory for a single step, or overflows the stack.
//!
//! The process is this executable with the hidden command [`COMMAND`]. It gets one JSON document on standard
//! input and answers with one on standard output.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use serde::{Deserialize, Serialize};

use super::chat::{Message, Template, cannot};
use crate::{Error, Result};

/// The name of the hidden command.
pub const COMMAND: &str = "rendering";

/// How long a template may take. One of a real model takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How much private memory the process may have, besides a small multiple of what it is asked.
const MOST_BYTES: u64 = 256 << 20;

/// How much stack: values in values are dropped and printed recursively.
const MOST_STACK_BYTES: u64 = 64 << 20;

/// What is to be rendered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// The source of the template, the `tokenizer.chat_template` of a model.
    pub template: String,
    /// The messages so far, the oldest first.
    pub messages: Vec<Message>,
    /// The text of the token that begins a text; empty without one.
    pub bos: String,
    /// The text of the token that ends a text; empty without one.
    pub eos: String,
}

/// What the process answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Text(String),
    Failed { message: String, hints: Vec<String> },
}

/// The text for `conversation`, ending where the assistant's answer begins; `exe` is the executable with the
/// hidden command.
///
/// # Errors
/// When the template cannot be parsed, refuses the messages, fails, does not come to an end, or ends the process;
/// or the process cannot be started.
pub fn render(exe: &Path, conversation: &Conversation) -> Result<String> {
    let failed = |error: io::Error| Error::failed("cannot start the template's process").caused_by(error);
    let document = serde_json::to_vec(conversation).map_err(|error| failed(error.into()))?;
    let mut command = Command::new(exe);
    // What it says when it overflows its stack is no help to anybody.
    command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let answer = converse(&mut child, document);
    // It has ended, or is not wanted any more.
    let _ = child.kill();
    let status = child.wait().map_err(failed)?;
    let why = match answer {
        Ok(Some(Answer::Text(text))) => return Ok(text),
        Ok(Some(Answer::Failed { message, hints })) => {
            return Err(hints.into_iter().fold(Error::failed(message), Error::hint));
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            "it does not come to an end".to_owned()
        }
        // What Rust and the kernel do to a program without memory, or without stack.
        Ok(None)
            if [Signal::ABORT, Signal::SEGV]
                .map(|signal| Some(signal.as_raw()))
                .contains(&status.signal()) =>
        {
            "it takes too much memory, or puts values into values without end".to_owned()
        }
        Ok(None) => format!("its process ended without an answer ({status})"),
    };
    Err(cannot("render", &why))
}

/// The answer of `child` to `document`, if there is one in time.
fn converse(child: &mut Child, document: Vec<u8>) -> Result<Option<Answer>, RecvTimeoutError> {
    let mut input = child.stdin.take().expect("it is piped");
    let mut output = child.stdout.take().expect("it is piped");
    // One that does not take its input gives no answer either.
    thread::spawn(move || drop(input.write_all(&document)));
    let (sender, answer) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Nobody listens any more when it has been given up.
        drop(sender.send(output.read_to_end(&mut bytes).map(|_| bytes)));
    });
    let bytes = answer.recv_timeout(PATIENCE)?;
    Ok(bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Answers the conversation on `input` on `out`.
///
/// # Errors
/// The input is no one's of ours, or nobody listens. What is wrong with the template is an answer.
pub fn run(input: &mut dyn Read, out: &mut dyn Write) -> Result<()> {
    let by_hand = |error: serde_json::Error| {
        Error::usage("the rendering process is started by `ramforge run`, not by hand").caused_by(error)
    };
    let unheard =
        |error: io::Error| Error::failed("cannot answer with the rendered template").caused_by(error);
    let mut document = Vec::new();
    input.read_to_end(&mut document).map_err(unheard)?;
    let Conversation { template, messages, bos, eos } = serde_json::from_slice(&document).map_err(by_hand)?;
    // The text is 64 copies of what was asked at most, in the answer once more, escaped.
    confine(MOST_BYTES + 256 * document.len() as u64).map_err(unheard)?;
    drop(document);
    let answer = match Template::parse(template).and_then(|template| template.render(&messages, &bos, &eos)) {
        Ok(text) => Answer::Text(text),
        Err(error) => Answer::Failed { message: error.to_string(), hints: error.hints().to_vec() },
    };
    let answer = serde_json::to_vec(&answer).map_err(|error| unheard(error.into()))?;
    out.write_all(&answer).and_then(|()| out.flush()).map_err(unheard)
}

/// Keeps what this process does to itself: it ends with its parent, when it takes more than `bytes` of private
/// memory or stack, or the processor for too long, and leaves no core file.
fn confine(bytes: u64) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let seconds = PATIENCE.as_secs() + 1;
    let limits = [
        (Resource::Data, bytes),
        (Resource::Stack, MOST_STACK_BYTES),
        (Resource::Cpu, seconds),
        (Resource::Core, 0),
    ];
    for (resource, most) in limits {
        let allowed = getrlimit(resource).maximum.map_or(most, |allowed| allowed.min(most));
        setrlimit(resource, Rlimit { current: Some(allowed), maximum: Some(allowed) })?;
    }
    Ok(())
}
