//! The readers: threads that fill blocks with the units' pages, in order, ahead of the computation.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::memory::Anonymous;
use super::plan::{Region, StreamPlan};
use super::reader::{ReadAt, Target};

/// A unit's pages in blocks of the pool.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Each piece of the unit, and where in the pool it is.
    pub(super) pieces: Vec<Placed>,
}

/// A piece of a unit in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// The pages and where they belong.
    pub(super) region: Region,
    /// Where they are in the pool.
    pub(super) source: usize,
    block: usize,
}

impl Loaded {
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
        self.free.extend(pieces.iter().map(|piece| piece.block));
    }
}

/// A unit being read.
#[derive(Debug)]
struct Load {
    /// Which, counted from the start and across passes.
    number: u64,
    pieces: Vec<Placed>,
    /// Pieces handed to readers.
    issued: usize,
    /// Pieces that have arrived.
    arrived: usize,
    total: usize,
}

#[derive(Debug)]
struct State {
    free: FreeBlocks,
    /// Units being read or waiting to be used, in order.
    loads: VecDeque<Load>,
    /// The number of the next unit to begin reading.
    next: u64,
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
    reader: Arc<dyn ReadAt>,
    pool: Anonymous,
    block_bytes: usize,
    read_bytes: usize,
    bytes_read: Arc<AtomicU64>,
}

/// The pool with its readers.
pub(super) struct Queue {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What a reader does next.
struct Job {
    number: u64,
    file: usize,
    offset: u64,
    targets: Vec<Target>,
}

impl Queue {
    /// Starts reading `units`, the plan's in order of use, over and over.
    pub(super) fn start(plan: &StreamPlan, order: &[usize], reader: Arc<dyn ReadAt>) -> io::Result<Self> {
        let pool = Anonymous::map(plan.blocks * plan.block_bytes, 0, plan.block_bytes)?;
        pool.advise_huge();
        pool.populate()?;
        let pieces = |&unit: &usize| {
            let regions = &plan.units[unit].regions;
            regions.iter().flat_map(|region| region.pieces(plan.block_bytes)).collect()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                free: FreeBlocks { free: (0..plan.blocks).collect(), next: 0 },
                loads: VecDeque::new(),
                next: 0,
                under_way: 0,
                paused: false,
                stop: false,
                error: None,
            }),
            work: Condvar::new(),
            arrived: Condvar::new(),
            units: order.iter().map(pieces).collect(),
            reader,
            pool,
            block_bytes: plan.block_bytes,
            read_bytes: plan.read_bytes,
            bytes_read: Arc::default(),
        });
        let mut queue = Self { shared, threads: Vec::new() };
        if order.is_empty() {
            return Ok(queue);
        }
        for index in 0..plan.readers {
            let shared = Arc::clone(&queue.shared);
            let name = format!("reader-{index}");
            queue.threads.push(thread::Builder::new().name(name).spawn(move || shared.read_until_stopped())?);
        }
        Ok(queue)
    }

    /// Takes the next unit, which must be `number`, if it has arrived.
    pub(super) fn try_take(&self, number: u64) -> io::Result<Option<Loaded>> {
        take(&mut self.shared.lock(), number)
    }

    /// Takes the next unit, which must be `number`, waiting for it; returns how long that took.
    pub(super) fn take(&self, number: u64) -> io::Result<(Loaded, Duration)> {
        let started = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(loaded) = take(&mut state, number)? {
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
        let mut state = self.shared.lock();
        state.paused = true;
        while state.under_way > 0 {
            state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let State { free, loads, .. } = &mut *state;
        for load in loads.drain(..) {
            free.give_back(&load.pieces);
        }
        state.next = number;
        state.paused = false;
        drop(state);
        self.shared.work.notify_all();
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
        for thread in self.threads.drain(..) {
            // A reader that panicked has nothing left to do either.
            let _ = thread.join();
        }
    }
}

fn take(state: &mut State, number: u64) -> io::Result<Option<Loaded>> {
    if let Some(error) = &state.error {
        return Err(io::Error::new(error.kind(), error.to_string()));
    }
    match state.loads.front() {
        Some(load) if load.number == number && load.arrived == load.total => {
            Ok(state.loads.pop_front().map(|load| Loaded { pieces: load.pieces }))
        }
        _ => Ok(None),
    }
}

impl Shared {
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
            // SAFETY: the targets are blocks of the pool that were taken off the free list for this job: no
            // other reader has them, and the computation gets them only once they have arrived.
            let read = unsafe { self.reader.read(job.file, job.offset, &job.targets) };
            state = self.lock();
            state.under_way -= 1;
            match read {
                Ok(()) => {
                    let bytes = job.targets.iter().map(|target| target.bytes as u64).sum();
                    self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
                    if let Some(load) = state.loads.iter_mut().find(|load| load.number == job.number) {
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
        if state.paused || state.free.free.is_empty() {
            return None;
        }
        if state.loads.back().is_none_or(|load| load.issued == load.total) {
            let number = state.next;
            let unit = &self.units[(number % self.units.len() as u64) as usize];
            state.next += 1;
            let pieces = Vec::with_capacity(unit.len());
            state.loads.push_back(Load { number, pieces, issued: 0, arrived: 0, total: unit.len() });
        }
        let load = state.loads.back_mut()?;
        let unit = &self.units[(load.number % self.units.len() as u64) as usize];
        let first = unit[load.issued];
        let mut job =
            Job { number: load.number, file: first.file, offset: first.offset, targets: Vec::new() };
        let mut bytes = 0;
        while let Some(&region) = unit.get(load.issued) {
            let follows = region.file == job.file && region.offset == job.offset + bytes as u64;
            if !follows || bytes + region.bytes > self.read_bytes.max(first.bytes) {
                break;
            }
            let Some(block) = state.free.take() else { break };
            // The offset in the block is the address's in its window: pages then move in whole page tables.
            let source = self.pool.address() + block * self.block_bytes + region.address % self.block_bytes;
            load.pieces.push(Placed { region, source, block });
            job.targets.push(Target { address: source, bytes: region.bytes });
            bytes += region.bytes;
            load.issued += 1;
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(page: usize, source: usize, block: usize) -> Placed {
        let region = Region { file: 0, offset: page as u64 * 4096, address: page * 4096, bytes: 4096 };
        Placed { region, source: source * 4096, block }
    }

    #[test]
    fn pieces_that_follow_each_other_on_both_sides_are_one_run() {
        let pieces = vec![placed(0, 10, 0), placed(1, 11, 1), placed(2, 20, 2), placed(4, 21, 3)];
        let runs = Loaded { pieces }.runs();
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
