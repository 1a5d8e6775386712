//! The worker's side: how the process that the supervisor started finds its settings and its voice.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::records::RecordSink;
use crate::{Error, Result};

/// The name of the hidden command that runs a worker; its only argument goes to [`attach`].
pub const COMMAND: &str = "worker";

/// The argument: descriptors the worker has inherited, as paths it can open.
#[derive(Serialize, Deserialize)]
pub(super) struct Channel {
    pub records: PathBuf,
    pub settings: PathBuf,
}

impl Channel {
    pub fn argument(&self) -> io::Result<OsString> {
        Ok(serde_json::to_string(self)?.into())
    }
}

/// The settings as a file in memory, for a child to inherit.
pub(super) fn settings_file(settings: &serde_json::Value) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("ramforge-settings", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(settings)?)?;
    Ok(file.into())
}

/// Opens the way to the supervisor and reads the settings it has for this worker.
///
/// # Errors
/// `channel` is not an argument that a supervisor gave, or the settings are not a `T`.
pub fn attach<T: DeserializeOwned>(channel: &str) -> Result<(RecordSink, T)> {
    let by_hand =
        |error: serde_json::Error| Error::usage("a worker is started by a run, not by hand").caused_by(error);
    let unreachable = |error: io::Error| Error::failed("cannot reach the supervisor").caused_by(error);
    let channel: Channel = serde_json::from_str(channel).map_err(by_hand)?;
    let records = File::options().write(true).open(&channel.records).map_err(unreachable)?;
    let settings = File::open(&channel.settings).map_err(unreachable)?;
    let settings = serde_json::from_reader(BufReader::new(settings)).map_err(by_hand)?;
    Ok((RecordSink::new(records), settings))
}

#[cfg(test)]
mod tests {
    use super::super::enforce::guardian::inherited_path;
    use super::*;
    use crate::supervisor::records::{self, Record};

    #[test]
    fn settings_and_records_pass_through_inherited_descriptors() {
        let settings = settings_file(&serde_json::json!({"prompt": "x".repeat(200_000)})).unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let channel = Channel { records: inherited_path(&writer), settings: inherited_path(&settings) };
        let argument = channel.argument().unwrap();
        let (sink, read): (_, serde_json::Value) = attach(argument.to_str().unwrap()).unwrap();
        assert_eq!(read["prompt"].as_str().unwrap().len(), 200_000);
        sink.send(&Record::Loaded { load_ms: 1.0 }).unwrap();
        drop((sink, writer));
        let mut seen = Vec::new();
        records::read(BufReader::new(reader), |record| seen.push(record));
        assert_eq!(seen, [Record::Loaded { load_ms: 1.0 }]);
    }

    #[test]
    fn a_worker_started_by_hand_is_told_so() {
        let error = attach::<serde_json::Value>("model.gguf").unwrap_err();
        assert!(error.to_string().contains("not by hand"), "{error}");
    }
}
