//! `ramforge plan`: what a load would take, from the headers and the native library's sizes.

use std::path::Path;

use forge_core::Threads;

use crate::cli::PlanArgs;
use crate::commands::Terminal;
use crate::engine::BATCH_TOKENS;
use crate::gguf;
use crate::observe::cgroup::Level;
use crate::observe::host::{Groups, Host};
use crate::plan::{Budget, ContextRequest, ContextTokens, KvType, Model, Plan};
use crate::sizing::{Sizer, Subject};
use crate::{Error, Result};

pub fn plan(args: &PlanArgs, terminal: &mut Terminal<'_>) -> Result<()> {
    let model = gguf::Model::open(&args.model)?;
    let wanted =
        Wanted { ram: args.ram, context_tokens: args.ctx, kv_type: args.kv_type, threads: args.threads };
    let plan = of_model(&model, wanted, &terminal.exe)?;
    if args.json {
        return terminal.print_json(&plan);
    }
    let mut text = Vec::new();
    plan.write_human(&mut text).map_err(Terminal::cannot_write)?;
    terminal.print(&text)
}

/// What a plan is asked for; what is absent has a default.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub ram: Option<u64>,
    pub context_tokens: Option<u32>,
    pub kv_type: KvType,
    pub threads: Option<u32>,
}

/// Plans `model`; `exe` is this program.
pub(super) fn of_model(model: &gguf::Model, wanted: Wanted, exe: &Path) -> Result<Plan> {
    let files = model.files().iter().map(|file| file.path.clone()).collect();
    let mut sizer = Sizer::start(exe, &Subject { files, repack: true, run: None })?;
    let request = ContextRequest {
        context: wanted.context_tokens.map_or(ContextTokens::Trained, ContextTokens::Exactly),
        batch_tokens: BATCH_TOKENS,
        kv_type: wanted.kv_type,
        threads: wanted.threads.unwrap_or_else(|| Threads::default().decode),
    };
    Plan::new(&Model::of(model), budget(wanted.ram)?, &request, &mut |request| sizer.sizes(request))
}

/// What a run may use here and now.
pub(super) fn budget(ram: Option<u64>) -> Result<Budget> {
    let proc = Path::new("/proc");
    let host = Host::sample(proc)?;
    let levels = Level::sample_all(&Groups::own(proc)?)
        .map_err(|error| Error::failed("cannot read what this process's groups allow").caused_by(error))?;
    Ok(Budget::new(&host, &levels, ram))
}
