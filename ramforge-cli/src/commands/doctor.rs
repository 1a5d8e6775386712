//! `ramforge doctor`.

use std::path::Path;

use forge_core::{backend, capability};

use crate::cli::DoctorArgs;
use crate::commands::Terminal;
use crate::commands::plan::{Wanted, budget, of_model};
use crate::doctor::{ModelFacts, examine};
use crate::gguf::{self, printable};
use crate::size::readable;
use crate::supervisor::readiness;
use crate::{Error, Result};

pub fn doctor(args: &DoctorArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    let opened = args.model.as_deref().map(gguf::Model::open);
    let facts = opened.map(|opened| facts(opened, terminal));
    let examination = examine(
        &backend::origin(),
        &capability::cpu_features(),
        readiness(),
        budget(None),
        facts.as_ref(),
        (Path::new("/proc"), Path::new("/sys")),
    );
    if args.json {
        terminal.print_json(&examination)?;
    } else {
        let mut text = Vec::new();
        examination.write_human(&mut text).map_err(Terminal::cannot_write)?;
        terminal.print(&text)?;
    }
    match examination.failures {
        0 => Ok(()),
        1 => Err(Error::failed("one check failed")),
        failures => Err(Error::failed(format!("{failures} checks failed"))),
    }
}

fn facts(opened: Result<gguf::Model>, terminal: &Terminal<'_>) -> ModelFacts {
    match opened {
        Ok(model) => ModelFacts {
            header: Ok(describe(&model)),
            file: Some(model.files()[0].path.clone()),
            plan: Some(of_model(&model, Wanted::default(), &terminal.exe)),
        },
        Err(error) => ModelFacts { header: Err(error), file: None, plan: None },
    }
}

fn describe(model: &gguf::Model) -> String {
    let shards = match model.files().len() {
        1 => String::new(),
        count => format!(" in {count} shards"),
    };
    format!(
        "{}, {} tensors, {}{shards}",
        printable(model.architecture()),
        model.tensor_count(),
        readable(model.file_bytes())
    )
}
