//! `ramforge worker`: the process that runs the model.

use std::io::stdin;
use std::sync::Arc;

use forge_core::native_log::{self, Level, Message};

use crate::Result;
use crate::commands::progress::Bars;
use crate::commands::{Terminal, interrupt};
use crate::engine::{Settings, Surroundings, run};
use crate::supervisor::{LogLevel, Record, RecordSink, worker};

pub fn worker(channel: &str, terminal: &mut Terminal<'_>) -> Result<()> {
    let (records, settings): (RecordSink, Settings) = worker::attach(channel)?;
    work(&settings, &records, terminal).map_err(|error| match records.send_error(&error) {
        // The supervisor prints it.
        Ok(()) => error.already_said(),
        Err(_) => error,
    })
}

fn work(settings: &Settings, records: &RecordSink, terminal: &mut Terminal<'_>) -> Result<()> {
    let stop = interrupt::flag()?;
    report_native_log(settings.verbose, records.clone());
    let surroundings = Surroundings {
        input: &mut stdin().lock(),
        out: terminal.out,
        progress: &mut Bars::new(settings.progress),
        records,
        stop,
    };
    run(settings, surroundings)
}

/// Native messages that explain an end go to the supervisor, which shows them when it comes to that, and all
/// of them when the user asked.
fn report_native_log(verbose: bool, records: RecordSink) {
    native_log::set_sink(Some(Arc::new(move |message: &Message| {
        let level = match message.level {
            Level::Debug => LogLevel::Debug,
            Level::Info => LogLevel::Info,
            Level::Warning => LogLevel::Warn,
            Level::Error | Level::Abort => LogLevel::Error,
        };
        if verbose || level >= LogLevel::Warn {
            // Without a supervisor the run is about to end; the message has no reader.
            let _ = records.send(&Record::NativeLog { level, text: message.text.clone() });
        }
    })));
}
