//! The log bridge: native messages are captured here, and nothing reaches the terminal unless a sink puts it
//! there.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forge_sys as sys;

use crate::callback;

/// How grave a native message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Details for maintainers.
    Debug,
    /// What the library does.
    Info,
    /// Something that may surprise.
    Warning,
    /// Why an operation failed.
    Error,
    /// The last words before the process aborts.
    Abort,
}

/// One complete line that the native library said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// How grave it is.
    pub level: Level,
    /// The text, without its line end.
    pub text: String,
}

/// Receives every complete line as it is said. It runs inside native calls, possibly just before an abort.
pub type Sink = Arc<dyn Fn(&Message) + Send + Sync>;

/// Lines kept for the errors of operations that fail.
const KEPT: usize = 64;

struct State {
    sink: Option<Sink>,
    recent: VecDeque<(u64, Message)>,
    said: u64,
    unfinished: Option<Message>,
}

static STATE: Mutex<State> =
    Mutex::new(State { sink: None, recent: VecDeque::new(), said: 0, unfinished: None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends every later line to `sink` as well; `None` captures only.
pub fn set_sink(sink: Option<Sink>) {
    state().sink = sink;
}

/// A moment in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

/// The present moment.
pub(crate) fn mark() -> Mark {
    Mark(state().said)
}

/// The errors said since `mark`, joined with "; ", without the function names that upstream puts first.
pub(crate) fn errors_since(mark: Mark) -> Option<String> {
    let state = state();
    let mut texts: Vec<&str> = Vec::new();
    for (said, message) in &state.recent {
        let text = without_function_name(&message.text);
        if *said > mark.0 && message.level >= Level::Error && !texts.contains(&text) {
            texts.push(text);
        }
    }
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Upstream starts most lines with `function: `; the user has no use for it.
fn without_function_name(text: &str) -> &str {
    match text.split_once(": ") {
        Some((name, rest)) if name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') => rest,
        _ => text,
    }
}

/// Takes over the native log and the abort message. Called once, by the backend.
pub(crate) fn install() {
    // SAFETY: both callbacks are plain functions that live as long as the process and take no user data.
    unsafe {
        sys::llama_log_set(Some(on_log), std::ptr::null_mut());
        sys::ggml_set_abort_callback(Some(on_abort));
    }
}

extern "C" fn on_log(level: sys::ggml_log_level, text: *const c_char, _user: *mut c_void) {
    callback::guard(|| {
        if text.is_null() {
            return;
        }
        // SAFETY: upstream passes a NUL-terminated string that lives for the duration of this call.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let level = match level {
            sys::GGML_LOG_LEVEL_DEBUG => Some(Level::Debug),
            sys::GGML_LOG_LEVEL_WARN => Some(Level::Warning),
            sys::GGML_LOG_LEVEL_ERROR => Some(Level::Error),
            sys::GGML_LOG_LEVEL_CONT => None,
            _ => Some(Level::Info),
        };
        record(level, &text);
    });
}

extern "C" fn on_abort(text: *const c_char) {
    callback::guard(|| {
        if !text.is_null() {
            // SAFETY: ggml_abort passes its NUL-terminated message buffer.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            // Some messages end their line, others do not.
            record(Some(Level::Abort), &format!("{text}\n"));
        }
    });
}

/// Adds a piece of text: `level` is `None` where it continues the line before it. Empty lines say nothing.
fn record(level: Option<Level>, text: &str) {
    for piece in text.split_inclusive('\n') {
        let (finished, sink) = {
            let mut state = state();
            let mut line = state
                .unfinished
                .take()
                .unwrap_or_else(|| Message { level: level.unwrap_or(Level::Info), text: String::new() });
            // An abort may come in the middle of any other line.
            line.level = level.map_or(line.level, |level| line.level.max(level));
            line.text.push_str(piece.trim_end_matches('\n'));
            if !piece.ends_with('\n') {
                state.unfinished = Some(line);
                return;
            }
            if line.text.trim().is_empty() {
                continue;
            }
            state.said += 1;
            let said = state.said;
            if state.recent.len() == KEPT {
                state.recent.pop_front();
            }
            state.recent.push_back((said, line.clone()));
            (line, state.sink.clone())
        };
        // Outside the lock: a sink may call back into this module.
        if let Some(sink) = sink {
            sink(&finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_empty_ones_dropped_and_errors_found_since_a_mark() {
        let before = mark();
        record(Some(Level::Error), "llama_model_load: no ");
        record(None, "such model\n");
        record(Some(Level::Info), "unrelated: 3\n");
        assert_eq!(errors_since(before).as_deref(), Some("no such model"));
        assert_eq!(errors_since(mark()), None);
        record(Some(Level::Info), "...");
        record(Some(Level::Abort), "a.c:1: x failed\n\n");
        assert_eq!(errors_since(before).as_deref(), Some("no such model; ...a.c:1: x failed"));
    }

    #[test]
    fn only_a_function_name_is_cut_off() {
        assert_eq!(without_function_name("load_tensors: missing x"), "missing x");
        assert_eq!(without_function_name("src/ggml.c:12: assert: x"), "src/ggml.c:12: assert: x");
    }
}
