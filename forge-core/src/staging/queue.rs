//! The readers: threads that fill blocks with the units' pages, in order, ahead of the computation.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::kept::{Home, Own, yield_to_others};
use super::memory::{ALIGNMENT, Anonymous};
use super::plan::{Region, StreamPlan, Unit};
use super::reader::{ReadAt, Target};

/// A unit's pages, read.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Each piece of the unit, and where it was read to; none when the unit was in memory.
    pub(super) pieces: Vec<Placed>,
    /// The unit's own memory, if it was not read to blocks of the pool.
    own: Option<Own>,
}

/// A piece of a unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// The pages and where they belong.
    pub(super) region: Region,
    /// Where they were read to.
    pub(super) source: usize,
    /// The block of the pool they are in.
    block: Option<usize>,
}

impl Loaded {
    /// Whether the unit stays where it is laid.
    pub(super) const fn stays(&self) -> bool {
        self.own.is_some()
    }

    /// The pieces, joined where both the pages and the places in the pool follow each other: moving pages costs by
    /// the call, not by the page.
    pub(super) fn runs(&self) -> Vec<(Region, usize)> {
        let mut runs: Vec<(Region, usize)> = Vec::new();
        for piece in &self.pieces {
            match runs.last_mut() {
                Some((region, source))
                    if region.file == piece.region.file
                        && region.end() == piece.region.address
                        && region.offset + region.bytes as u64 == piece.region.offset
                        && *source + region.bytes == piece.source =>
                {
                    region.bytes += piece.region.bytes;
                }
                _ => runs.push((piece.region, piece.source)),
            }
        }
        runs
    }
}

/// Blocks that hold nothing of use. They are handed out round and round, so that those of a unit follow each other.
#[derive(Debug)]
struct FreeBlocks {
    free: BTreeSet<usize>,
    next: usize,
}

impl FreeBlocks {
    fn take(&mut self) -> Option<usize> {
        let block = self.free.range(self.next..).next().or_else(|| self.free.first()).copied()?;
        self.free.remove(&block);
        self.next = block + 1;
        Some(block)
    }

    fn give_back(&mut self, pieces: &[Placed]) {
        self.free.extend(pieces.iter().filter_map(|piece| piece.block));
    }
}

/// A unit being read.
#[derive(Debug)]
struct Load {
    /// Which, counted from the start and across passes.
    number: u64,
    pieces: Vec<Placed>,
    /// Where it is read to, if not to the pool.
    own: Option<Own>,
    /// Pieces handed to readers.
    issued: usize,
    /// Pieces that have arrived.
    arrived: usize,
    total: usize,
}

#[derive(Debug)]
struct State {
    free: FreeBlocks,
    /// Where each unit is, in order of use.
    homes: Vec<Home>,
    /// Units being read or waiting to be used, in order.
    loads: VecDeque<Load>,
    /// The number of the next unit to begin reading.
    next: u64,
    /// The pass in which all experts are read. Others are taken to be for one token.
    whole_pass: Option<u64>,
    /// Units whose experts are read when they are chosen, which is why nothing else is read of them.
    chosen: BTreeSet<u64>,
    /// Reads that come first, not begun yet.
    first_of_all: VecDeque<Job>,
    /// Those of them that have not arrived.
    awaited: usize,
    /// Reads under way.
    under_way: usize,
    /// Nothing new is read while this is set.
    paused: bool,
    stop: bool,
    error: Option<io::Error>,
}

struct Shared {
    state: Mutex<State>,
    /// Readers wait here for something to read.
    work: Condvar,
    /// The computation waits here for what it needs.
    arrived: Condvar,
    /// The pieces of each unit, in order of use.
    units: Vec<Vec<Region>>,
    /// The units that are to stay, by their position in the order of use.
    kept: Vec<(usize, Unit)>,
    /// Which units have experts, in order of use.
    experts: Vec<bool>,
    /// No more memory is to be made ready for units.
    provided: AtomicBool,
    reader: Arc<dyn ReadAt>,
    pool: Anonymous,
    block_bytes: usize,
    read_bytes: usize,
    bytes_read: Arc<AtomicU64>,
    bytes_kept: Arc<AtomicU64>,
    bytes_provided: Arc<AtomicU64>,
}

/// The pool with its readers.
pub(super) struct Queue {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    provider: Option<JoinHandle<()>>,
}

/// What a reader does next.
#[derive(Debug)]
struct Job {
    /// The unit that it is for, if somebody does not wait for it alone.
    number: Option<u64>,
    file: usize,
    offset: u64,
    targets: Vec<Target>,
}

impl Queue {
    /// Starts reading the plan's units in `order`, those that stay after the others, over and over.
    pub(super) fn start(plan: &StreamPlan, order: &[usize], reader: Arc<dyn ReadAt>) -> io::Result<Self> {
        // In huge pages, into which direct reads are twice as fast.
        let pool = Anonymous::map(plan.blocks * plan.block_bytes, 0, plan.block_bytes.max(ALIGNMENT))?;
        // Its pages come with the first reads, of which there are several at once.
        pool.advise_huge();
        let units = plan.all_units();
        let pieces = |&unit: &usize| {
            let regions = &units[unit].regions;
            regions.iter().flat_map(|region| region.pieces(plan.block_bytes)).collect()
        };
        let stays = |&(_, &unit): &(usize, &usize)| unit >= plan.units.len();
        let kept = order.iter().enumerate().filter(stays);
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                free: FreeBlocks { free: (0..plan.blocks).collect(), next: 0 },
                homes: order.iter().map(|_| Home::Disk(None)).collect(),
                loads: VecDeque::new(),
                next: 0,
                whole_pass: Some(0),
                chosen: BTreeSet::new(),
                first_of_all: VecDeque::new(),
                awaited: 0,
                under_way: 0,
                paused: false,
                stop: false,
                error: None,
            }),
            work: Condvar::new(),
            arrived: Condvar::new(),
            experts: order.iter().map(|&unit| units[unit].expert_bytes.is_some()).collect(),
            units: order.iter().map(pieces).collect(),
            kept: kept.map(|(position, &unit)| (position, units[unit].clone())).collect(),
            provided: AtomicBool::new(false),
            reader,
            pool,
            block_bytes: plan.block_bytes,
            read_bytes: plan.read_bytes,
            bytes_read: Arc::default(),
            bytes_kept: Arc::default(),
            bytes_provided: Arc::default(),
        });
        // Mapped before anything moves: while pages do, an address can be free that is not to be taken.
        let own = shared.kept.iter().map(|(position, unit)| Ok((*position, Own::map(unit)?)));
        let own = own.collect::<io::Result<Vec<_>>>()?;
        let mut queue = Self { shared, threads: Vec::new(), provider: None };
        if order.is_empty() {
            return Ok(queue);
        }
        for index in 0..plan.readers {
            let shared = Arc::clone(&queue.shared);
            let name = format!("reader-{index}");
            queue.threads.push(thread::Builder::new().name(name).spawn(move || shared.read_until_stopped())?);
        }
        let shared = Arc::clone(&queue.shared);
        let name = "memory-provider".to_owned();
        queue.provider = Some(thread::Builder::new().name(name).spawn(move || shared.provide(own))?);
        Ok(queue)
    }

    /// Says whether the pass that begins with unit `first` is for one token: what was read ahead for another kind of
    /// pass is forgotten.
    pub(super) fn expect(&self, first: u64, single: bool) {
        if !self.shared.experts.contains(&true) {
            return;
        }
        let pass = self.shared.pass(first);
        if (self.shared.lock().whole_pass == Some(pass)) == single {
            let mut state = self.shared.forget(first);
            state.whole_pass = (!single).then_some(pass);
            state.paused = false;
            drop(state);
            self.shared.work.notify_all();
        }
    }

    /// Whether the unit at `position` is in memory to stay.
    pub(super) fn in_memory(&self, position: usize) -> bool {
        matches!(self.shared.lock().homes[position], Home::Memory)
    }

    /// Whether the chosen experts of unit `number` have to be read: it is not in memory, and will not be by the time
    /// it is needed.
    pub(super) fn needs_experts(&self, number: u64) -> bool {
        let mut state = self.shared.lock();
        if matches!(state.homes[self.shared.position(number)], Home::Memory) {
            return false;
        }
        if number >= state.next {
            state.chosen.insert(number);
            return true;
        }
        // For one token a unit is read whole only where it stays, and is in memory once it was taken.
        state.loads.iter().find(|load| load.number == number).is_none_or(|load| load.total == 0)
    }

    /// Reads regions to their places before anything else, and waits for that; returns how long it took.
    ///
    /// # Safety
    /// The places are mapped, writable, and used by nobody else until this returns.
    pub(super) unsafe fn read_first(&self, places: &[(Region, usize)]) -> io::Result<Duration> {
        let started = Instant::now();
        let most = self.shared.read_bytes;
        let jobs = places.iter().flat_map(|&(region, place)| {
            (0..region.bytes).step_by(most).map(move |skip| {
                let bytes = most.min(region.bytes - skip);
                let targets = vec![Target { address: place + skip, bytes }];
                Job { number: None, file: region.file, offset: region.offset + skip as u64, targets }
            })
        });
        let mut state = self.shared.lock();
        state.first_of_all.extend(jobs);
        state.awaited = state.first_of_all.len();
        self.shared.work.notify_all();
        loop {
            if state.error.is_some() {
                // What is under way still has its place.
                state.awaited -= state.first_of_all.len();
                state.first_of_all.clear();
            }
            if state.awaited == 0 {
                break;
            }
            state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.shared.failed(&state).map(|()| started.elapsed())
    }

    /// Takes the next unit, which must be `number`, if it has arrived.
    pub(super) fn try_take(&self, number: u64) -> io::Result<Option<Loaded>> {
        self.shared.take(&mut self.shared.lock(), number)
    }

    /// Takes the next unit, which must be `number`, waiting for it; returns how long that took.
    pub(super) fn take(&self, number: u64) -> io::Result<(Loaded, Duration)> {
        let started = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(loaded) = self.shared.take(&mut state, number)? {
                return Ok((loaded, started.elapsed()));
            }
            state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a unit's blocks back; their pages are in the pool again.
    pub(super) fn give_back(&self, loaded: &Loaded) {
        let mut state = self.shared.lock();
        state.free.give_back(&loaded.pieces);
        drop(state);
        self.shared.work.notify_all();
    }

    /// Forgets what was read ahead and starts again with the first unit as `number`: after a pass that did
    /// not come to its end.
    pub(super) fn restart(&self, number: u64) {
        self.shared.forget(number).paused = false;
        self.shared.work.notify_all();
    }

    /// What is to stay and is not in memory yet, for the caller to bring there while nothing computes: the next
    /// unit is `number`. Nothing is read until [`Queue::resume`].
    pub(super) fn missing(&mut self, number: u64) -> Vec<Region> {
        self.end_provider();
        let mut state = self.shared.forget(number);
        let mut missing = Vec::new();
        for (position, unit) in &self.shared.kept {
            let home = &mut state.homes[*position];
            if !matches!(home, Home::Memory) {
                // Its memory, if it has some, would be one too many.
                *home = Home::Disk(None);
                missing.extend_from_slice(&unit.regions);
            }
        }
        missing
    }

    /// Goes on after [`Queue::missing`], of which all or nothing `stays` now.
    pub(super) fn resume(&self, stays: bool) {
        let mut state = self.shared.lock();
        for (position, _) in self.shared.kept.iter().filter(|_| stays) {
            state.homes[*position] = Home::Memory;
        }
        if stays {
            let bytes = self.shared.kept.iter().map(|(_, unit)| unit.bytes() as u64).sum();
            self.shared.bytes_kept.store(bytes, Ordering::Relaxed);
            self.shared.bytes_provided.store(bytes, Ordering::Relaxed);
        }
        state.paused = false;
        drop(state);
        self.shared.work.notify_all();
    }

    /// Bytes that stay in memory so far, as they are counted.
    pub(super) fn bytes_kept(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.bytes_kept)
    }

    /// Bytes of memory that what is to stay has, as they are counted.
    pub(super) fn bytes_provided(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.bytes_provided)
    }

    /// Has no more memory made ready for units.
    pub(super) fn end_provider(&mut self) {
        self.shared.provided.store(true, Ordering::Relaxed);
        if let Some(provider) = self.provider.take() {
            // One that panicked provides nothing more either.
            let _ = provider.join();
        }
    }

    /// Bytes read so far, as they are counted.
    pub(super) fn bytes_read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.bytes_read)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        self.end_provider();
        for thread in self.threads.drain(..) {
            // A reader that panicked has nothing left to do either.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The position of a unit in the order of use.
    fn position(&self, number: u64) -> usize {
        (number % self.units.len() as u64) as usize
    }

    /// The pass that a unit is read for.
    fn pass(&self, number: u64) -> u64 {
        number / self.units.len() as u64
    }

    fn failed(&self, state: &State) -> io::Result<()> {
        state.error.as_ref().map_or(Ok(()), |error| Err(io::Error::new(error.kind(), error.to_string())))
    }

    /// Forgets what was read ahead; the next unit is `number`. Nothing is read any more.
    fn forget(&self, number: u64) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.paused = true;
        while state.under_way > 0 {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let State { free, loads, homes, .. } = &mut *state;
        for load in loads.drain(..) {
            free.give_back(&load.pieces);
            if let Some(own) = load.own {
                homes[self.position(load.number)] = Home::Disk(Some(own));
            }
        }
        state.next = number;
        state.chosen.clear();
        state
    }

    fn take(&self, state: &mut State, number: u64) -> io::Result<Option<Loaded>> {
        self.failed(state)?;
        let next = state.loads.front();
        if next.is_none_or(|load| load.number != number || load.arrived < load.total) {
            return Ok(None);
        }
        if state.loads.len() == self.units.len() {
            // That had kept the readers from going on.
            self.work.notify_all();
        }
        let loaded = state.loads.pop_front().map(|load| Loaded { pieces: load.pieces, own: load.own });
        if let Some(loaded) = loaded.as_ref().filter(|loaded| loaded.stays()) {
            state.homes[self.position(number)] = Home::Memory;
            let bytes = loaded.pieces.iter().map(|piece| piece.region.bytes as u64).sum();
            self.bytes_kept.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(loaded)
    }

    /// Gets memory ready for the units that stay. The last of a pass first: the readers begin with the others.
    fn provide(&self, all: Vec<(usize, Own)>) {
        yield_to_others();
        for (position, own) in all.into_iter().rev() {
            if self.provided.load(Ordering::Relaxed) {
                return;
            }
            own.populate();
            self.bytes_provided.fetch_add(own.bytes(), Ordering::Relaxed);
            self.lock().homes[position] = Home::Disk(Some(own));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_until_stopped(&self) {
        let mut state = self.lock();
        while !state.stop && state.error.is_none() {
            let Some(job) = self.next_job(&mut state) else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.under_way += 1;
            drop(state);
            // SAFETY: the targets are blocks of the pool that were taken off the free list for this job, parts of a
            // unit's own memory that belong to this load, or the places of `read_first`, which waits: no other reader
            // has them, and the computation gets them only once they have arrived.
            let read = unsafe { self.reader.read(job.file, job.offset, &job.targets) };
            state = self.lock();
            state.under_way -= 1;
            if job.number.is_none() {
                state.awaited -= 1;
            }
            match read {
                Ok(()) => {
                    let bytes = job.targets.iter().map(|target| target.bytes as u64).sum();
                    self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
                    if let Some(load) = state.loads.iter_mut().find(|load| Some(load.number) == job.number) {
                        load.arrived += job.targets.len();
                    }
                }
                Err(error) => {
                    state.error.get_or_insert(error);
                    self.work.notify_all();
                }
            }
            self.arrived.notify_all();
        }
    }

    /// The next read: pieces that follow each other in the file, as many as one read may have and as there
    /// are free blocks for. In order, so that the unit needed first never waits for blocks that a later one
    /// holds.
    fn next_job(&self, state: &mut State) -> Option<Job> {
        if let Some(job) = state.first_of_all.pop_front() {
            return Some(job);
        }
        if state.paused {
            return None;
        }
        while state.loads.back().is_none_or(|load| load.issued == load.total) {
            // What is in memory takes no blocks: only this keeps the order of use from going round and round.
            if state.loads.len() >= self.units.len() {
                return None;
            }
            self.begin_load(state);
        }
        let load = state.loads.back_mut()?;
        let unit = &self.units[self.position(load.number)];
        let first = unit[load.issued];
        let mut job =
            Job { number: Some(load.number), file: first.file, offset: first.offset, targets: Vec::new() };
        let mut bytes = 0;
        while let Some(&region) = unit.get(load.issued) {
            let follows = region.file == job.file && region.offset == job.offset + bytes as u64;
            if !follows || bytes + region.bytes > self.read_bytes.max(first.bytes) {
                break;
            }
            let (source, block) = match load.own.as_ref().and_then(|own| own.place(&region)) {
                Some(source) => (source, None),
                None => {
                    let Some(block) = state.free.take() else { break };
                    let window = self.pool.address() + block * self.block_bytes;
                    // The offset in the block is the address's in its window: pages then move in whole page tables.
                    (window + region.address % self.block_bytes, Some(block))
                }
            };
            load.pieces.push(Placed { region, source, block });
            job.targets.push(Target { address: source, bytes: region.bytes });
            bytes += region.bytes;
            load.issued += 1;
        }
        (bytes > 0).then_some(job)
    }

    /// The next unit in order is read now, unless it is in memory.
    fn begin_load(&self, state: &mut State) {
        let number = state.next;
        state.next += 1;
        let position = self.position(number);
        let chosen = state.chosen.remove(&number);
        let one_token = state.whole_pass != Some(self.pass(number));
        let (total, own) = match &mut state.homes[position] {
            // One that gets memory to stay in is read whole, unless its experts are read already.
            Home::Disk(own) if self.experts[position] && one_token && (own.is_none() || chosen) => (0, None),
            Home::Disk(own) => (self.units[position].len(), own.take()),
            Home::Memory => (0, None),
        };
        let pieces = Vec::with_capacity(total);
        state.loads.push_back(Load { number, pieces, own, issued: 0, arrived: 0, total });
        if total == 0 {
            self.arrived.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(page: usize, source: usize, block: usize) -> Placed {
        let region = Region { file: 0, offset: page as u64 * 4096, address: page * 4096, bytes: 4096 };
        Placed { region, source: source * 4096, block: Some(block) }
    }

    #[test]
    fn pieces_that_follow_each_other_on_both_sides_are_one_run() {
        let pieces = vec![placed(0, 10, 0), placed(1, 11, 1), placed(2, 20, 2), placed(4, 21, 3)];
        let runs = Loaded { pieces, own: None }.runs();
        let found: Vec<_> =
            runs.iter().map(|(run, source)| (run.address / 4096, run.bytes / 4096, source / 4096)).collect();
        assert_eq!(found, [(0, 2, 10), (2, 1, 20), (4, 1, 21)]);
    }

    #[test]
    fn blocks_are_handed_out_round_and_round() {
        let mut free = FreeBlocks { free: (0..4).collect(), next: 0 };
        assert_eq!([free.take(), free.take(), free.take()], [Some(0), Some(1), Some(2)]);
        free.give_back(&[placed(0, 0, 1), placed(0, 0, 0)]);
        assert_eq!([free.take(), free.take(), free.take(), free.take()], [Some(3), Some(0), Some(1), None]);
    }
}
