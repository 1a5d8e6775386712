//! What the worker tells the supervisor while it runs: JSON, one record a line.
//!
//! Both ends are the same executable, so records carry no version. They are small lines written in one
//! piece each, because the worker may be killed at any moment: everything said before counts.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::report::{
    Admission, GraphTrace, Inventory, LedgerEntry, Operation, Output, Reconciliation, Streaming,
};
use crate::{Error, ErrorKind, Result};

/// One thing the worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// The model is being loaded.
    Loading {
        /// How far, from 0 to 1.
        progress: f32,
    },
    /// What the fit guard said.
    Admission(Admission),
    /// The sizes of this run as the native code allocates them, as soon as they are known and before
    /// they are touched: they explain a kill for memory.
    Sizes(Sizes),
    /// The model is loaded.
    Loaded {
        /// Milliseconds it took.
        load_ms: f64,
    },
    /// The prompt has been processed.
    PromptDone {
        /// Its tokens.
        tokens: u64,
        /// Milliseconds it took.
        ms: f64,
        /// Bytes the process read meanwhile, as the kernel counts them.
        read_bytes: Option<u64>,
    },
    /// What is to stay in memory is there: of a measured run, after its first token.
    Settled {
        /// Milliseconds it took.
        ms: f64,
    },
    /// The first token was generated.
    FirstToken {
        /// Milliseconds since the worker started.
        ms: f64,
    },
    /// Where the tensors lie; replaces the inventory before it.
    Inventory(Inventory),
    /// A page operation.
    Operation(Operation),
    /// What streaming did; replaces what was said before.
    Streaming(Streaming),
    /// What the graph trace holds; replaces what was said before.
    GraphTrace(GraphTrace),
    /// The ledger; replaces the ledger before it.
    Ledger(Vec<LedgerEntry>),
    /// What the ledger explains; replaces what was said before.
    Reconciliation(Reconciliation),
    /// A message of the native code.
    NativeLog {
        /// Its level.
        level: LogLevel,
        /// Its text, without the line's end.
        text: String,
    },
    /// What the run does, in one line for people.
    Note {
        /// What.
        text: String,
    },
    /// Something the user should know that does not end the run.
    Warning {
        /// What.
        text: String,
    },
    /// The run ended as asked.
    Finished {
        /// What was generated.
        output: Output,
        /// Tokens a second after the first.
        decode_tokens_per_second: Option<f64>,
        /// Bytes the process read since the prompt was processed, or had settled, as the kernel counts them.
        read_bytes: Option<u64>,
    },
    /// The run ended in an error.
    Failed {
        /// Which kind, that is, which exit code.
        kind: ErrorKind,
        /// The message and its causes.
        message: String,
        /// What the user can do.
        hints: Vec<String>,
    },
}

/// How serious a message of the native code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LogLevel {
    /// For developers.
    Debug,
    /// Ordinary.
    Info,
    /// Unexpected.
    Warn,
    /// Wrong.
    Error,
}

/// The sizes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Tokens the context holds.
    pub context_tokens: Option<u32>,
    /// Bytes of weights that are pages of the model's files, which the kernel can drop and read again.
    pub file_weights_bytes: Option<u64>,
    /// Bytes of weights in anonymous memory: repacked, pinned or staged.
    pub anonymous_weights_bytes: Option<u64>,
    /// Bytes of the KV cache, for `context_tokens`.
    pub kv_bytes: Option<u64>,
    /// Bytes of the compute and output buffers.
    pub compute_bytes: Option<u64>,
    /// Bytes of the vocabulary, the metadata and the program itself, where measured.
    pub other_bytes: Option<u64>,
    /// The smallest `--ram` this run can work in, as the plan computes it.
    pub smallest_ram_bytes: Option<u64>,
}

impl Sizes {
    /// These, and where something is not known, what `before` had.
    #[must_use]
    pub fn or(self, before: Self) -> Self {
        Self {
            context_tokens: self.context_tokens.or(before.context_tokens),
            file_weights_bytes: self.file_weights_bytes.or(before.file_weights_bytes),
            anonymous_weights_bytes: self.anonymous_weights_bytes.or(before.anonymous_weights_bytes),
            kv_bytes: self.kv_bytes.or(before.kv_bytes),
            compute_bytes: self.compute_bytes.or(before.compute_bytes),
            other_bytes: self.other_bytes.or(before.other_bytes),
            smallest_ram_bytes: self.smallest_ram_bytes.or(before.smallest_ram_bytes),
        }
    }
}

/// The worker's end of the pipe. Clones write to the same pipe.
#[derive(Clone, Debug)]
pub struct RecordSink(Arc<Mutex<File>>);

impl RecordSink {
    /// A sink that writes to `file`.
    pub fn new(file: File) -> Self {
        Self(Arc::new(Mutex::new(file)))
    }

    /// Says `record`.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub fn send(&self, record: &Record) -> Result<()> {
        let cannot = |error: io::Error| Error::failed("cannot reach the supervisor").caused_by(error);
        let mut line = serde_json::to_vec(record).map_err(|error| cannot(error.into()))?;
        line.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).map_err(cannot)
    }

    /// Says how the worker ends: `Finished` has been sent by a run that is `Ok`.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub fn send_error(&self, error: &Error) -> Result<()> {
        let hints = error.hints().to_vec();
        self.send(&Record::Failed { kind: error.kind(), message: error.to_string(), hints })
    }
}

/// Reads records until the pipe closes and hands them to `each`. Lines that are no record, such as the
/// half of one that a killed worker was writing, are skipped.
pub(crate) fn read(mut pipe: impl BufRead, mut each: impl FnMut(Record)) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match pipe.read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {
                if let Ok(record) = serde_json::from_slice(&line) {
                    each(record);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    #[test]
    fn what_is_sent_is_read() {
        let mut file = tempfile::tempfile().unwrap();
        let sink = RecordSink::new(file.try_clone().unwrap());
        let error = Error::new(ErrorKind::Refused, "it does not fit").hint("use less");
        sink.send(&Record::Loaded { load_ms: 1.5 }).unwrap();
        sink.clone().send(&Record::Ledger(Vec::new())).unwrap();
        sink.send_error(&error).unwrap();
        file.rewind().unwrap();
        let mut text = Vec::new();
        file.read_to_end(&mut text).unwrap();
        let mut records = Vec::new();
        read(text.as_slice(), |record| records.push(record));
        assert_eq!(
            records,
            [
                Record::Loaded { load_ms: 1.5 },
                Record::Ledger(Vec::new()),
                Record::Failed {
                    kind: ErrorKind::Refused,
                    message: "it does not fit".to_owned(),
                    hints: vec!["use less".to_owned()]
                },
            ]
        );
    }

    #[test]
    fn garbage_and_a_torn_line_are_skipped() {
        let text =
            b"\xff\xfe not json\n{\"Unknown\":1}\n\n{\"Loaded\":{\"load_ms\":2.0}}\n{\"Warning\":{\"te";
        let mut records = Vec::new();
        read(text.as_slice(), |record| records.push(record));
        assert_eq!(records, [Record::Loaded { load_ms: 2.0 }]);
    }
}
