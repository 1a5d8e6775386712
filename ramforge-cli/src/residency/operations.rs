//! A run's operations, and what is done between them: look, plan, carry out, look again, and say so.

use std::collections::BTreeSet;

use forge_core::sizing::MemoryBreakdown;
use forge_core::trace::trace;
use forge_core::{Batch, Context, MappedPages, Model, TraceHandle};

use super::execute::{Executed, execute};
use super::inventory::Inventory;
use super::lifecycle::{Lifecycle, ModelReady, SafeBoundary};
use super::plan::Plan;
use super::policy::{prefetch, release, release_exactly};
use super::profile::Profile;
use super::resident::Resident;
use super::sample::{Sampler, Seen, mapping_pss_bytes};
use super::settings::Settings;
use super::snapshot::{PagedTensor, Snapshot};
use super::traced;
use crate::ledger::{self, Facts, Moment};
use crate::observe::process::Process;
use crate::report;
use crate::supervisor::{Record, RecordSink};
use crate::{Error, Result};

/// Everything that is known and done between the operations of one context.
#[derive(Debug)]
pub struct Operations<'run> {
    settings: &'run Settings,
    records: &'run RecordSink,
    looking: Option<Looking<'run>>,
    trace: Option<TraceHandle>,
}

/// What it takes to look at the pages.
#[derive(Debug)]
struct Looking<'run> {
    inventory: Inventory,
    tensors: Vec<PagedTensor>,
    pages: MappedPages<'run>,
    sampler: Sampler,
    facts: Facts,
}

impl<'run> Operations<'run> {
    /// Operations of a context of `model`, whose inventory is `inventory` where anybody wants to look; `before`
    /// is the process as it was before the load.
    ///
    /// # Errors
    /// When the files cannot be opened, or the supervisor is gone.
    pub fn new(
        settings: &'run Settings,
        records: &'run RecordSink,
        model: &'run Model,
        inventory: Option<Inventory>,
        before: &Process,
    ) -> Result<Self> {
        let looking = inventory
            .map(|inventory| -> Result<_> {
                let files: Vec<_> = inventory.mappings.iter().map(|mapping| mapping.path.clone()).collect();
                let looking = Looking {
                    tensors: inventory.paged(),
                    pages: MappedPages::open(model, &files)?,
                    sampler: Sampler::new(settings.own_group)?,
                    facts: Facts { program_bytes: before.rss_anonymous_bytes, ..Facts::default() },
                    inventory,
                };
                let seen = looking.look()?;
                records.send(&Record::Inventory(looking.inventory.report(seen.resident.as_ref())))?;
                Ok(Looking { facts: with_load(looking.facts.clone(), &seen), ..looking })
            })
            .transpose()?;
        Ok(Self { settings, records, looking, trace: None })
    }

    /// Takes in a context that has computed nothing yet, and how its weights are streamed: its sizes, its trace,
    /// and the page actions that were asked for.
    ///
    /// # Errors
    /// When an action matches no tensor or is not possible, or the supervisor is gone.
    pub fn begin(&mut self, context: &mut Context<'_>, streaming: Option<&report::Streaming>) -> Result<()> {
        if let Some(settings) = self.settings.trace {
            self.trace = Some(trace(context, settings.events, settings.detail)?);
        }
        let Some(looking) = self.looking.as_mut() else { return Ok(()) };
        with_context(&mut looking.facts, &context.memory_breakdown()?, streaming);
        let boundary = Lifecycle::<_, ModelReady>::new(context).at_rest();
        if let Some(plan) = self.action()? {
            let before = self.look()?;
            self.carry_out(boundary, &plan, "load", before)?;
        }
        let seen = self.look()?;
        self.say_ledger(seen.as_ref())
    }

    /// The page action that was asked for after the load.
    fn action(&self) -> Result<Option<Plan>> {
        let (settings, Some(looking)) = (self.settings, &self.looking) else { return Ok(None) };
        if !settings.acts() {
            return Ok(None);
        }
        let seen = looking.look()?;
        let nothing = Resident::none(looking.inventory.mappings.len());
        let snapshot =
            looking.snapshot(settings, seen.resident.as_ref().unwrap_or(&nothing), &seen, Err(String::new()));
        let tensors = &looking.tensors;
        if let Some(bound) = settings.prefetch_bytes {
            return Ok(Some(prefetch(&snapshot, bound)));
        }
        if settings.release_mapping {
            return Ok(Some(release_exactly(&snapshot, (0..tensors.len()).collect())));
        }
        for &layer in &settings.release_layers {
            if !tensors.iter().any(|tensor| tensor.layer == Some(layer)) {
                return Err(Error::failed(format!("no tensor of layer {layer} is in a file's mapping"))
                    .hint("`ramforge inspect` shows the layers; repacked weights are in no mapping, --no-repack keeps them there"));
            }
        }
        let chosen = |index: &usize| {
            tensors[*index].layer.is_some_and(|layer| settings.release_layers.contains(&layer))
        };
        let selected: BTreeSet<usize> = (0..tensors.len()).filter(chosen).collect();
        Ok(Some(release_exactly(&snapshot, selected)))
    }

    /// Decodes `batch`, and does afterwards what the policy says.
    ///
    /// # Errors
    /// What the decode fails with, or the policy's execution.
    pub fn decode(&mut self, context: &mut Context<'_>, batch: &mut Batch) -> Result<(), Failed> {
        let (rule, tokens) = (self.settings.rule, batch.len());
        let operation = Lifecycle::<_, ModelReady>::new(context).prepare();
        let (synchronizing, decoded) = operation.execute(|context| context.decode(batch));
        decoded.map_err(Failed::Decode)?;
        let boundary = synchronizing.synchronize();
        let Some(rule) = rule else { return Ok(()) };
        let seen = self.look().map_err(Failed::Between)?;
        let Some((looking, seen)) = self.looking.as_ref().zip(seen) else { return Ok(()) };
        let Some(resident) = &seen.resident else {
            return Err(Failed::Between(
                Error::failed("the kernel shows which pages of a file are in memory only to its owner")
                    .hint("run as the owner of the model's files, or use --residency-policy off"),
            ));
        };
        let profile = self.profile();
        let profile = profile.as_ref().map_err(Clone::clone);
        let plan = release(rule, &looking.snapshot(self.settings, resident, &seen, profile));
        let phase = if tokens > 1 { "prompt" } else { "decode" };
        self.carry_out(boundary, &plan, phase, Some(seen)).map_err(Failed::Between)
    }

    /// Says what there is to say at the end; `provided_bytes` is the memory that streaming has given to weights.
    ///
    /// # Errors
    /// When looking fails or the supervisor is gone.
    pub fn finish(&mut self, provided_bytes: Option<u64>) -> Result<()> {
        if let (Some(trace), Some(settings)) = (&self.trace, self.settings.trace) {
            let report = trace.read(|trace| traced::report(trace, settings.detail));
            self.records.send(&Record::GraphTrace(report))?;
        }
        let seen = self.look()?;
        if let (Some(looking), Some(seen)) = (&self.looking, &seen) {
            self.records.send(&Record::Inventory(looking.inventory.report(seen.resident.as_ref())))?;
        }
        if let Some(looking) = self.looking.as_mut() {
            looking.facts.pss_bytes = mapping_pss_bytes(&looking.inventory);
            if let Some(provided) = provided_bytes {
                // What is to stay may not have all its memory yet.
                looking.facts.anonymous_weight_bytes =
                    looking.facts.repacked_bytes.map(|repacked| repacked + provided);
            }
        }
        self.say_ledger(seen.as_ref())
    }

    /// Plans, carries out unless the policy only observes, and reports.
    fn carry_out(
        &mut self,
        boundary: Lifecycle<'_, Context<'_>, SafeBoundary>,
        plan: &Plan,
        phase: &str,
        before: Option<Seen>,
    ) -> Result<()> {
        let Some(looking) = self.looking.as_mut() else { return Ok(()) };
        let planning = boundary.plan();
        let executed = if self.settings.only_observe && phase != "load" || plan.pages.is_empty() {
            planning.finish();
            Executed::default()
        } else {
            let mut applying = planning.apply();
            let executed = execute(plan, &looking.inventory, &looking.pages, applying.token())?;
            applying.finish();
            executed
        };
        let after = self.look()?;
        let resident = |seen: &Option<Seen>| seen.as_ref().and_then(Seen::mapping_bytes);
        let delta = resident(&before).zip(resident(&after)).map(|(before, after)| {
            i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
        });
        let policy = if phase == "load" { "request" } else { self.settings.policy.as_str() };
        let reason = executed.refused.map(|error| format!("the kernel refused: {error}"));
        self.records.send(&Record::Operation(report::Operation {
            kind: plan.kind.name().to_owned(),
            policy: policy.to_owned(),
            phase: phase.to_owned(),
            selected_tensors: plan.selected.len() as u64,
            planned_bytes: plan.bytes(),
            estimate_bytes: Some(plan.estimate_bytes)
                .filter(|_| before.as_ref().is_some_and(|b| b.resident.is_some())),
            requested_bytes: executed.requested_bytes,
            accepted_bytes: executed.accepted_bytes,
            observed_delta_bytes: delta,
            skipped_shared_bytes: plan.skipped_shared_bytes,
            before: before.as_ref().map(Seen::report),
            after: after.as_ref().map(Seen::report),
            profile_used: plan.profile_used,
            reason: reason.or_else(|| plan.reason.clone()),
        }))
    }

    fn profile(&self) -> Result<Profile, String> {
        let Some(trace) = &self.trace else { return Err("the graph was not traced".to_owned()) };
        trace.read(traced::profile)
    }

    /// Looks, and remembers what the peak was made of.
    fn look(&mut self) -> Result<Option<Seen>> {
        let Some(looking) = self.looking.as_mut() else { return Ok(None) };
        let seen = looking.look()?;
        looking.facts.notice(moment(&seen));
        Ok(Some(seen))
    }

    fn say_ledger(&self, seen: Option<&Seen>) -> Result<()> {
        let (Some(looking), Some(seen)) = (&self.looking, seen) else { return Ok(()) };
        let ledger = ledger::entries(&looking.facts, &looking.inventory.report(None), moment(seen));
        self.records.send(&Record::Reconciliation(ledger::reconcile(&ledger, looking.facts.fullest)))?;
        self.records.send(&Record::Ledger(ledger))
    }
}

impl Looking<'_> {
    fn look(&self) -> Result<Seen> {
        self.sampler.look(&self.inventory, &self.pages)
    }

    fn snapshot<'a>(
        &'a self,
        settings: &Settings,
        resident: &'a Resident,
        seen: &Seen,
        profile: Result<&'a Profile, String>,
    ) -> Snapshot<'a> {
        Snapshot {
            generation: self.inventory.generation,
            tensors: &self.tensors,
            resident,
            anonymous_bytes: seen.process.rss_anonymous_bytes.unwrap_or(0),
            target_bytes: settings.target_bytes,
            reserve_bytes: settings.reserve_bytes,
            profile,
        }
    }
}

fn with_load(facts: Facts, seen: &Seen) -> Facts {
    Facts { loaded_bytes: seen.process.rss_anonymous_bytes, ..facts }
}

/// Takes in the sizes of the context's buffers. Weights that are no file's pages are repacked or pinned.
fn with_context(facts: &mut Facts, memory: &MemoryBreakdown, streaming: Option<&report::Streaming>) {
    let repacked = memory.buffers.iter().filter(|buffer| buffer.buffer.contains("REPACK"));
    let repacked: u64 = repacked.map(|buffer| buffer.model_bytes).sum();
    facts.repacked_bytes = Some(repacked);
    facts.anonymous_weight_bytes = Some(repacked + streaming.map_or(0, |streaming| streaming.pinned_bytes));
    facts.kv_bytes = Some(memory.context_bytes());
    facts.compute_bytes = Some(memory.compute_bytes());
    facts.staging_bytes =
        Some(streaming.map_or(0, |streaming| {
            u64::from(streaming.slots) * streaming.slot_bytes + streaming.experts_bytes
        }));
}

fn moment(seen: &Seen) -> Moment {
    let group = seen.group.unwrap_or_default();
    Moment {
        anonymous_bytes: seen.process.rss_anonymous_bytes,
        file_bytes: seen.process.rss_file_bytes,
        mapping_bytes: seen.mapping_bytes(),
        rss_bytes: seen.process.rss_bytes,
        peak_rss_bytes: seen.process.peak_rss_bytes,
        group_bytes: group.current_bytes,
        group_peak_bytes: group.peak_bytes,
        group_file_bytes: group.file_bytes,
        kernel_bytes: group.kernel_bytes,
    }
}

/// Why an operation failed.
#[derive(Debug)]
pub enum Failed {
    /// The decode itself.
    Decode(forge_core::Error),
    /// What was to be done after it.
    Between(Error),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Decode(error) => error.into(),
            Failed::Between(error) => error,
        }
    }
}
