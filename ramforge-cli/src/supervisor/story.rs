//! What the worker has said so far, and what of it goes into the report.

use std::collections::VecDeque;

use super::records::{LogLevel, Record, Sizes};
use crate::report::Report;
use crate::{Error, ErrorKind};

/// Native errors kept to explain an abort; what is less grave explains none.
const NATIVE_MESSAGES: usize = 8;

/// How far the worker had come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Starting,
    Loading,
    Prompt,
    Generating,
    Done,
}

impl Phase {
    /// For the sentence "it was killed …".
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Starting => "before the load had begun",
            Self::Loading => "while loading the model",
            Self::Prompt => "while processing the prompt",
            Self::Generating => "while generating",
            Self::Done => "after the last token",
        }
    }
}

/// What is remembered of the records.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub phase: Phase,
    pub sizes: Option<Sizes>,
    pub native: VecDeque<String>,
    /// How the worker itself says that it failed.
    pub failed: Option<Failure>,
}

/// A [`Record::Failed`].
#[derive(Debug)]
pub(super) struct Failure {
    pub kind: ErrorKind,
    pub message: String,
    pub hints: Vec<String>,
}

impl From<&Failure> for Error {
    fn from(failure: &Failure) -> Self {
        let error = Self::new(failure.kind, &failure.message);
        failure.hints.iter().fold(error, |error, hint| error.hint(hint))
    }
}

impl Story {
    /// Takes in one record.
    pub fn add(&mut self, record: Record, report: &mut Report) {
        match record {
            Record::Loading { .. } => self.phase = Phase::Loading,
            Record::Admission(admission) => report.admission = Some(admission),
            Record::Sizes(sizes) => self.sizes = Some(sizes.or(self.sizes.take().unwrap_or_default())),
            Record::Loaded { load_ms } => {
                self.phase = Phase::Prompt;
                report.timing.load_ms = Some(load_ms);
            }
            Record::PromptDone { ms, read_bytes, .. } => {
                self.phase = Phase::Generating;
                report.timing.prompt_ms = Some(ms);
                report.io.prompt_read_bytes = read_bytes;
            }
            Record::Settled { ms } => report.timing.settle_ms = Some(ms),
            Record::FirstToken { ms } => report.timing.time_to_first_token_ms = Some(ms),
            Record::Inventory(inventory) => report.inventory = Some(inventory),
            Record::Operation(operation) => report.operations.push(operation),
            Record::Streaming(streaming) => report.streaming = Some(streaming),
            Record::GraphTrace(trace) => report.graph_trace = Some(trace),
            Record::Ledger(ledger) => report.ledger = ledger,
            Record::Reconciliation(reconciliation) => report.reconciliation = Some(reconciliation),
            Record::NativeLog { level, text } => self.remember_native(level, text),
            Record::Note { .. } | Record::Warning { .. } => {}
            Record::Finished { output, decode_tokens_per_second, read_bytes } => {
                self.phase = Phase::Done;
                report.io.decode_read_bytes = read_bytes;
                report.output = Some(output);
                report.timing.decode_tokens_per_second = decode_tokens_per_second;
            }
            Record::Failed { kind, message, hints } => {
                self.failed = Some(Failure { kind, message, hints });
            }
        }
    }

    fn remember_native(&mut self, level: LogLevel, text: String) {
        if level < LogLevel::Error {
            return;
        }
        if self.native.len() == NATIVE_MESSAGES {
            self.native.pop_front();
        }
        self.native.push_back(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Model, Output, Request, Streaming, Tool};

    #[test]
    fn records_fill_the_report_and_the_story() {
        let mut report = Report::new(Tool::default(), Model::default(), Request::default());
        let mut story = Story::default();
        let output = Output { generated_tokens: 4, ..Output::default() };
        for record in [
            Record::Loading { progress: 0.5 },
            Record::Streaming(Streaming::default()),
            Record::Loaded { load_ms: 3.0 },
            Record::Streaming(Streaming { passes: 4, ..Streaming::default() }),
            Record::PromptDone { tokens: 7, ms: 2.0, read_bytes: Some(5) },
            Record::FirstToken { ms: 6.0 },
            Record::Finished {
                output: output.clone(),
                decode_tokens_per_second: Some(9.0),
                read_bytes: Some(6),
            },
        ] {
            story.add(record, &mut report);
        }
        assert_eq!(story.phase, Phase::Done);
        assert_eq!(report.timing.load_ms, Some(3.0));
        assert_eq!(report.timing.decode_tokens_per_second, Some(9.0));
        assert_eq!((report.io.prompt_read_bytes, report.io.decode_read_bytes), (Some(5), Some(6)));
        assert_eq!(report.output, Some(output));
        assert_eq!(report.streaming.unwrap().passes, 4);
    }

    #[test]
    fn the_last_native_errors_are_kept() {
        let mut report = Report::new(Tool::default(), Model::default(), Request::default());
        let mut story = Story::default();
        for number in 0..20 {
            let level = if number % 2 == 0 { LogLevel::Warn } else { LogLevel::Error };
            story.add(Record::NativeLog { level, text: number.to_string() }, &mut report);
        }
        assert_eq!(story.native.len(), NATIVE_MESSAGES);
        assert_eq!(story.native.back().unwrap(), "19");
        assert_eq!(story.native.front().unwrap(), "5");
    }
}
