//! The observer that stages units before their first use and takes them away after their last.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::eviction::Evicting;
use super::experts::Experts;
use super::memory::{advise_random, drop_pages, lay_over, map_file};
use super::pin::pin;
use super::plan::{Region, StreamPlan};
use super::queue::{Loaded, Queue};
use super::reader::ReadAt;
use super::schedule::Schedule;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{ExpertNumbers, Node, Observer, PlannedNode};
use crate::mapping::require_mapped;
use crate::model::Claim;

/// What streaming has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Batches computed.
    pub passes: u64,
    /// Bytes read for units, whether used yet or not; those that stay, too, until they do.
    pub bytes_read: u64,
    /// Bytes of memory that left the processor's caches before they were read to, which was found to be faster, or
    /// tried.
    pub bytes_evicted: u64,
    /// Bytes that were in memory to stay before the first batch.
    pub bytes_pinned: u64,
    /// Bytes that are in memory to stay.
    pub bytes_kept: u64,
    /// Bytes of memory for them and for what is to stay and does not yet.
    pub bytes_provided: u64,
    /// How long the computation waited for units.
    pub stalled: Duration,
    /// Batches whose graph was not the planned one: right, but slow, because units were read through the
    /// mapping.
    pub unplanned_passes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    passes: AtomicU64,
    stalled_ns: AtomicU64,
    unplanned_passes: AtomicU64,
}

/// Reads the statistics of a streamer that a context owns.
#[derive(Clone, Debug)]
pub struct StreamHandle {
    counters: Arc<Counters>,
    bytes_read: Arc<AtomicU64>,
    bytes_evicted: Arc<AtomicU64>,
    bytes_kept: Arc<AtomicU64>,
    bytes_provided: Arc<AtomicU64>,
    bytes_pinned: u64,
}

impl StreamHandle {
    /// What streaming has done so far.
    pub fn stats(&self) -> StreamStats {
        StreamStats {
            passes: self.counters.passes.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_evicted: self.bytes_evicted.load(Ordering::Relaxed),
            bytes_pinned: self.bytes_pinned,
            bytes_kept: self.bytes_pinned + self.bytes_kept.load(Ordering::Relaxed),
            bytes_provided: self.bytes_pinned + self.bytes_provided.load(Ordering::Relaxed),
            stalled: Duration::from_nanos(self.counters.stalled_ns.load(Ordering::Relaxed)),
            unplanned_passes: self.counters.unplanned_passes.load(Ordering::Relaxed),
        }
    }
}

/// Streams a model's units while its only context decodes.
struct Streamer<'model> {
    queue: Queue,
    reader: Arc<dyn ReadAt>,
    readers: usize,
    files: Vec<File>,
    /// Pages of which rows are read through the mapping.
    rows: Vec<Region>,
    /// The schedules of batches of one token, and of more.
    one: Schedule,
    many: Schedule,
    counters: Arc<Counters>,
    /// The number of the unit that the present pass begins with, counted across passes.
    first: u64,
    /// Whether the present batch has one token.
    single: bool,
    /// The experts that it uses.
    experts: Experts,
    /// What names them: the step, and where its result is.
    numbers: Option<(usize, ExpertNumbers)>,
    /// Units that are laid over the mapping, by their position in the order of use.
    staged: HashMap<usize, Loaded>,
    /// Units staged in this pass so far, whether they still are or not.
    begun: usize,
    /// Nodes of this pass that the scheduler has asked about.
    asked: usize,
    /// Whether this pass's graph has been the planned one so far.
    planned: bool,
    error: Option<Error>,
    /// Given up for ever when the mapping could not be put right again.
    claim: Option<Claim<'model>>,
}

/// Pins what `plan` pins, starts reading what it streams, and stages it whenever `context` decodes, which must
/// be its model's only one, made to be observed, and with batches as large as its micro-batches. `progress` is
/// called with the bytes pinned so far; `false` gives up with [`ErrorKind::Cancelled`].
///
/// # Errors
/// [`ErrorKind::Limit`] for a plan that makes no sense, whose pool is too small for what is used at once, or
/// whose regions are not the model's mapping; [`ErrorKind::System`] when reading or mapping fails.
pub fn stream(
    context: &mut Context<'_>,
    plan: &StreamPlan,
    reader: Arc<dyn ReadAt>,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<StreamHandle> {
    plan.check()?;
    let sizes = context.sizes();
    if sizes.batch_tokens > sizes.micro_batch_tokens {
        return Err(Error::limit("streaming needs a batch no larger than the micro-batch"));
    }
    if sizes.sequences > 1 {
        return Err(Error::limit(
            "streaming needs a context with one sequence: a batch of several is several graphs",
        ));
    }
    let claim = context.model().claim()?;
    let files = plan.files.iter().map(File::open).collect::<io::Result<Vec<_>>>();
    let files = files.map_err(|error| system("open the model's files", &error))?;
    require_mapped(&plan.regions(), &files)?;
    let nodes = [context.planned_nodes(1)?, context.planned_nodes(sizes.micro_batch_tokens)?];
    let all_pinned;
    let (plan, [one, many]) = match schedules(&nodes, plan) {
        Err(_) if !plan.kept.is_empty() => {
            // What cannot be streamed for a while is in memory from the start.
            all_pinned = plan.with_all_pinned();
            (&all_pinned, schedules(&nodes, &all_pinned)?)
        }
        found => (plan, found?),
    };
    // SAFETY: the regions were just compared with the kernel's own list of this process's mappings; the claim
    // keeps every other context of the model away, and this one does not decode now.
    if let Err(error) = unsafe { pin(&plan.pinned, plan.readers, &*reader, progress) } {
        if error.kind() != io::ErrorKind::Interrupted {
            // There may be a place where nothing is mapped now: nobody may use the model any more.
            std::mem::forget(claim);
        }
        return Err(cannot_pin(&error));
    }
    let by_rows = plan.units.iter().filter(|unit| unit.rows).flat_map(|unit| &unit.regions);
    let rows: Vec<Region> = plan.rows.iter().chain(by_rows).copied().collect();
    rows.iter().for_each(advise_random);
    let units = plan.all_units();
    let experts = Experts::map(one.order.iter().map(|&unit| &units[unit]), plan.experts_bytes)
        .map_err(|error| system("make room for experts", &error))?;
    let evicting = Arc::new(Evicting::new(Arc::clone(&reader)));
    let bytes_evicted = evicting.bytes_evicted();
    let queue = Queue::start(plan, &one.order, evicting);
    let queue = queue.map_err(|error| system("start reading", &error))?;
    let counters = Arc::new(Counters::default());
    let handle = StreamHandle {
        counters: Arc::clone(&counters),
        bytes_read: queue.bytes_read(),
        bytes_evicted,
        bytes_kept: queue.bytes_kept(),
        bytes_provided: queue.bytes_provided(),
        bytes_pinned: plan.pinned_bytes() as u64,
    };
    context.observe(Box::new(Streamer {
        queue,
        reader,
        readers: plan.readers,
        files,
        rows,
        one,
        many,
        counters,
        first: 0,
        single: true,
        experts,
        numbers: None,
        staged: HashMap::new(),
        begun: 0,
        asked: 0,
        planned: true,
        error: None,
        claim: Some(claim),
    }))?;
    Ok(handle)
}

/// When each unit is needed in batches of one token, and of more.
fn schedules(nodes: &[Vec<PlannedNode>; 2], plan: &StreamPlan) -> Result<[Schedule; 2]> {
    let units = plan.all_units();
    let schedules = [Schedule::new(&nodes[0], &units), Schedule::new(&nodes[1], &units)];
    if schedules[0].order != schedules[1].order || schedules[0].order.len() != units.len() {
        return Err(Error::limit("the graphs for one and for many tokens use the units in another order"));
    }
    let experts = schedules[0].most_expert_bytes(&units);
    if experts > plan.experts_bytes {
        return Err(Error::limit(format!(
            "memory for {} bytes of experts is too small: a token uses {experts}",
            plan.experts_bytes
        )));
    }
    for schedule in &schedules {
        let needed = schedule.most_blocks(&units, plan.block_bytes);
        if needed > plan.blocks {
            return Err(Error::limit(format!(
                "a pool of {} blocks is too small for the units in use at once, which take {needed}",
                plan.blocks
            )));
        }
    }
    Ok(schedules)
}

impl Streamer<'_> {
    const fn schedule(&self) -> &Schedule {
        if self.single { &self.one } else { &self.many }
    }

    /// Stages units until `count` have been staged in this pass, waiting for them, and whatever else has
    /// arrived already.
    fn stage(&mut self, count: usize) -> Result<()> {
        let units = self.schedule().order.len();
        while self.begun < units {
            let number = self.first + self.begun as u64;
            let arrived = if self.begun < count {
                self.queue.take(number).map(|(loaded, waited)| {
                    self.count_stall(waited);
                    Some(loaded)
                })
            } else {
                self.queue.try_take(number)
            };
            let arrived = arrived.map_err(|error| system("read the weights", &error))?;
            let Some(loaded) = arrived else { return Ok(()) };
            for (region, source) in loaded.runs() {
                // SAFETY: the pages hold what the mapping shows at the address, because their reads have
                // completed; no compute thread is working while an observer runs.
                unsafe { self.lay(&region, source) }?;
            }
            if !loaded.stays() && !loaded.pieces.is_empty() {
                self.staged.insert(self.begun, loaded);
            }
            self.begun += 1;
        }
        Ok(())
    }

    /// Lays pages over the mapping.
    ///
    /// # Safety
    /// As for [`lay_over`].
    unsafe fn lay(&mut self, region: &Region, source: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { lay_over(source, region.address, region.bytes) }.map_err(|error| {
            // Nothing may be mapped there now.
            std::mem::forget(self.claim.take());
            system("stage the weights", &error)
        })
    }

    /// Whether the step at `at` is the first with experts that are not in memory.
    fn chooses(&self, at: usize) -> bool {
        let used =
            self.schedule().steps.get(at).and_then(|step| step.experts.as_ref()).filter(|_| self.single);
        used.is_some_and(|used| used.positions.iter().any(|&position| !self.queue.in_memory(position)))
    }

    /// Reads the experts that the step to come and later ones use, and lays them over the mapping.
    fn stage_experts(&mut self) -> Result<()> {
        // Those before have been used.
        let laid = std::mem::take(&mut self.experts.laid);
        self.take_away(&laid)?;
        let used = self.schedule().steps[self.asked].experts.as_ref();
        let Some((used, numbers)) = used.zip(self.numbers) else { return Ok(()) };
        if numbers.0 != used.named_by {
            return Ok(());
        }
        // SAFETY: the node was asked for in this decode, and is computed, because the one that was computed last is
        // not before it; what uses it comes next. No compute thread is working while an observer runs.
        let numbers = unsafe { numbers.1.read() };
        let on_disk = |position: &usize| self.queue.needs_experts(self.first + *position as u64);
        let positions: Vec<usize> = used.positions.iter().copied().filter(on_disk).collect();
        let places = self.experts.places(&positions, &numbers);
        let places = places.map_err(|error| system("make room for experts", &error))?;
        // SAFETY: the places are the experts' own memory, which is not laid over anything now.
        let waited = unsafe { self.queue.read_first(&places) };
        let waited = waited.map_err(|error| system("read the weights", &error))?;
        self.count_stall(waited);
        for (region, source) in places {
            // SAFETY: the pages hold what the mapping shows at the address, because their reads have completed; no
            // compute thread is working while an observer runs.
            unsafe { self.lay(&region, source) }?;
            self.experts.laid.push((region, source));
        }
        Ok(())
    }

    fn count_stall(&self, waited: Duration) {
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.counters.stalled_ns.fetch_add(waited, Ordering::Relaxed);
    }

    /// Takes the unit at `position` away: its pages go back to the pool.
    fn release(&mut self, position: usize) -> Result<()> {
        let Some(loaded) = self.staged.remove(&position) else { return Ok(()) };
        self.take_away(&loaded.runs())?;
        self.queue.give_back(&loaded);
        Ok(())
    }

    /// Moves pages back to where they were read to, and maps the file there again.
    fn take_away(&mut self, laid: &[(Region, usize)]) -> Result<()> {
        for &(region, source) in laid {
            // SAFETY: no compute thread is working while an observer runs, so nobody sees the moment between
            // the two; the address range is the model's mapping of this file.
            let restored = unsafe {
                lay_over(region.address, source, region.bytes)
                    .and_then(|()| map_file(&region, &self.files[region.file]))
            };
            if let Err(error) = restored {
                // From here on the address may show empty pages: nothing may ever compute on them.
                std::mem::forget(self.claim.take());
                return Err(system("put the mapping back", &error));
            }
        }
        Ok(())
    }

    /// Keeps the error for [`Observer::end`], and stops the decode.
    fn give_up(&mut self, error: Error) -> ControlFlow<()> {
        self.error = Some(error);
        ControlFlow::Break(())
    }
}

impl Observer for Streamer<'_> {
    fn quiesce(&mut self) {
        self.queue.end_provider();
    }

    fn settle(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let missing = self.queue.missing(self.first);
        // SAFETY: the regions are the plan's, which are the model's mapping, and are not staged between two
        // decodes. The claim keeps every other context of the model away, and this one does not decode now.
        let pinned = unsafe { pin(&missing, self.readers, &*self.reader, &mut |_| go_on()) };
        self.queue.resume(pinned.is_ok());
        pinned.map_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                // There may be a place where nothing is mapped now.
                std::mem::forget(self.claim.take());
            }
            cannot_pin(&error)
        })
    }

    fn begin(&mut self, tokens: usize) -> Result<()> {
        if self.claim.is_none() {
            return Err(Error::new(ErrorKind::System, "the model's mapping is damaged by an earlier error"));
        }
        self.single = tokens == 1;
        self.begun = 0;
        self.asked = 0;
        self.planned = true;
        self.numbers = None;
        self.queue.expect(self.first, self.single);
        let count = self.schedule().steps.first().map_or(0, |step| step.begun);
        self.stage(count).or_else(|error| {
            // Nothing will be computed, and nobody calls for what was staged to be taken away.
            self.error = Some(error);
            self.end()
        })
    }

    fn wants(&mut self, node: Node<'_>) -> bool {
        let steps = &self.schedule().steps;
        let step = steps.get(self.asked).filter(|step| self.planned && *step.name == *node.name());
        let Some(step) = step else {
            // Another graph than the planned one: what is not staged is read through the mapping.
            self.planned = false;
            return false;
        };
        let next = steps.get(self.asked + 1);
        let next_begins = next.is_some_and(|next| next.begun > self.begun);
        // A stop of the computation takes time: what is in memory to stay is no reason for one.
        let ends = step.ends.iter().any(|position| self.staged.contains_key(position));
        let names_experts = step.names_experts;
        if names_experts && self.single {
            self.numbers = node.as_expert_numbers().map(|numbers| (self.asked, numbers));
        }
        self.asked += 1;
        next_begins || ends || self.chooses(self.asked)
    }

    fn computed(&mut self, _: Node<'_>) -> ControlFlow<()> {
        let steps = &self.schedule().steps;
        let ends = steps[self.asked - 1].ends.clone();
        let count = steps.get(self.asked).map_or(0, |next| next.begun);
        for position in ends {
            if let Err(error) = self.release(position) {
                return self.give_up(error);
            }
        }
        let mut staged = self.stage(count);
        if staged.is_ok() && self.chooses(self.asked) {
            staged = self.stage_experts();
        }
        match staged {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => self.give_up(error),
        }
    }

    fn end(&mut self) -> Result<()> {
        let laid = std::mem::take(&mut self.experts.laid);
        if let Err(error) = self.take_away(&laid) {
            self.error.get_or_insert(error);
        }
        let mut positions: Vec<usize> = self.staged.keys().copied().collect();
        positions.sort_unstable();
        for position in positions {
            if let Err(error) = self.release(position) {
                self.error.get_or_insert(error);
            }
        }
        let units = self.one.order.len();
        self.first += units as u64;
        if self.begun < units {
            self.queue.restart(self.first);
        }
        let whole = self.claim.is_some();
        for region in self.rows.iter().filter(|_| whole) {
            drop_pages(region, &self.files[region.file]);
            // A mapping that was put back has forgotten the advice.
            advise_random(region);
        }
        self.counters.passes.fetch_add(1, Ordering::Relaxed);
        if !self.planned {
            self.counters.unplanned_passes.fetch_add(1, Ordering::Relaxed);
        }
        self.error.take().map_or(Ok(()), Err)
    }
}

fn cannot_pin(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::Interrupted => Error::new(ErrorKind::Cancelled, "pinning the weights was cancelled"),
        _ => system("pin the weights", error),
    }
}

fn system(what: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::System, format!("cannot {what}: {error}"))
}
