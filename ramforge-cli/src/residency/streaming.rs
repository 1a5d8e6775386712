//! Streaming carried out: facts of the loaded model → policy → plan → the native pages.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forge_core::staging::{ReadAt, Region, StreamHandle, StreamPlan, Unit, buffered_reader, direct_reader};
use forge_core::{Context, Model, PlannedNode};

use super::inventory::{Backing, Inventory, PAGE};
use super::stream::{self, Choice, Experts, Pages, Weight, choose, piece_rows, pieces};
use crate::observe::process::{Process, Which};
use crate::plan::reserve;
use crate::report::{self, AdmissionTerm};
use crate::size::exact;
use crate::{Error, ErrorKind, Result};

/// What a run's memory is spent on besides the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What the run may use.
    pub ram_bytes: u64,
    /// The terms, which are subtracted from it.
    pub terms: Vec<AdmissionTerm>,
}

impl Budget {
    /// Measures what the process holds now, with a model mapped and a context made, and adds what it will
    /// need: the context's compute buffers, which are not touched yet, the scratch memory of its threads, which
    /// the first decode allocates, and page tables for the weights.
    ///
    /// # Errors
    /// When the kernel does not show this process's memory, or the native library fails.
    pub fn measure(ram_bytes: u64, context: &Context<'_>, weight_bytes: u64) -> Result<Self> {
        let compute_bytes = context.memory_breakdown()?.compute_bytes();
        let scratch_bytes = context.work_bytes()?;
        let process = Process::sample(Path::new("/proc"), Which::Own)?;
        let anonymous = process
            .rss_anonymous_bytes
            .ok_or_else(|| Error::failed("the kernel does not show this process's anonymous memory"))?;
        let term = |name: &str, bytes, source: &str| AdmissionTerm {
            name: name.to_owned(),
            bytes: Some(bytes),
            source: Some(source.to_owned()),
        };
        let terms = vec![
            term("process, vocabulary and KV cache", anonymous, "kernel: anonymous memory before pinning"),
            term("compute buffers", compute_bytes, "native library"),
            term("scratch memory of the threads", scratch_bytes, "native library"),
            term("page tables", weight_bytes / 512, "8 bytes a page of weights"),
            // Stacks, pages of the program itself, and what the kernel keeps for reads under way.
            term("reserve", reserve(ram_bytes), "1/64 of the budget, at least 16 MiB"),
        ];
        Ok(Self { ram_bytes, terms })
    }

    /// Bytes left for weights: pinned, and in the pool.
    pub fn for_weights(&self) -> u64 {
        self.ram_bytes.saturating_sub(self.taken())
    }

    /// Bytes of all terms.
    pub fn taken(&self) -> u64 {
        self.terms.iter().filter_map(|term| term.bytes).sum()
    }
}

/// Has the large matrices outside the layers computed in pieces, so that they can be streamed in pieces: before a
/// context is made.
///
/// # Errors
/// What the native library says.
pub fn split(model: &mut Model, inventory: &Inventory) -> Result<()> {
    for tensor in inventory.tensors.iter().filter(|tensor| tensor.layer.is_none()) {
        if let (Backing::File(address), Some(rows)) =
            (&tensor.backing, piece_rows(tensor.bytes, tensor.shape[1]))
        {
            // A matrix that cannot be split is used whole, which the graph will show.
            model.split_matrix(*address, rows)?;
        }
    }
    Ok(())
}

/// Streaming that has started.
#[derive(Debug)]
pub struct Streaming {
    handle: StreamHandle,
    choice: Choice,
    budget: Budget,
    direct: bool,
    /// Something the user should know, such as reads that go through the page cache.
    pub warning: Option<String>,
}

/// Starts streaming for `context`, from the readers of `open` ([`open_files`]); `progress` is called with the share
/// of the pinned weights that is in memory, and gives up when it says `false`.
///
/// # Errors
/// When the budget is too small for any pool, or reading fails.
pub fn start(
    context: &mut Context<'_>,
    inventory: &Inventory,
    budget: Budget,
    open: impl FnOnce(&[PathBuf]) -> Result<Opened>,
    progress: &mut dyn FnMut(f32) -> bool,
) -> Result<Streaming> {
    let nodes = context.planned_nodes(1)?;
    let (weights, addresses) = weights(inventory, &nodes);
    let choice = choose(&weights, budget.for_weights()).map_err(|needed| {
        let ram = (needed + budget.taken()).next_multiple_of(1 << 20);
        Error::new(
            ErrorKind::Refused,
            format!("{} are too small to stream this model: beside {} for everything else, the weights in use at once \
             need {}",
            exact(budget.ram_bytes),
            exact(budget.taken()),
            exact(needed)
            ),
        )
        .hint(format!("use --ram {}M or more", ram >> 20))
    })?;
    let plan = plan(inventory, &choice, &weights, &addresses)?;
    let Opened { reader, warning } = open(&plan.files)?;
    let direct = reader.is_direct();
    let pinned = plan.pinned_bytes().max(1);
    let handle = forge_core::staging::stream(context, &plan, reader, &mut |bytes| {
        progress(bytes as f32 / pinned as f32)
    })?;
    Ok(Streaming { handle, choice, budget, direct, warning })
}

/// The model's files, open for streaming.
pub struct Opened {
    /// Reads them.
    pub reader: Arc<dyn ReadAt>,
    /// What the user should know of it.
    pub warning: Option<String>,
}

/// Opens the files for direct reads, or, where their file system has none, through the page cache.
///
/// # Errors
/// A file cannot be opened.
pub fn open_files(paths: &[PathBuf]) -> Result<Opened> {
    match direct_reader(paths) {
        Ok(reader) => Ok(Opened { reader, warning: None }),
        Err(error) => {
            let warning =
                format!("the file system has no direct reads ({error}); reading through the page cache");
            let reader = buffered_reader(paths).map_err(|error| {
                Error::failed("cannot open the model's files for streaming").caused_by(error)
            })?;
            Ok(Opened { reader, warning: Some(warning) })
        }
    }
}

impl Streaming {
    /// One line for people: what is pinned and what is read.
    pub fn summary(&self) -> String {
        format!(
            "streaming: {} of weights stay in memory, {} are read for each token",
            crate::size::readable(self.choice.pinned_bytes()),
            crate::size::readable(self.choice.token_bytes() + self.paged_bytes()),
        )
    }

    /// Bytes that the kernel's paging reads each time the graph runs.
    fn paged_bytes(&self) -> u64 {
        self.choice.paged.iter().map(Pages::bytes).sum()
    }

    /// Bytes of weights in memory of their own: pinned, and passing through.
    pub fn anonymous_bytes(&self) -> u64 {
        self.choice.pinned_bytes() + self.choice.pool_bytes()
    }

    /// Bytes of memory that weights have which stay, or will.
    pub fn provided_bytes(&self) -> u64 {
        self.handle.stats().bytes_provided
    }

    /// What it did so far, for the report.
    pub fn report(&self) -> report::Streaming {
        let stats = self.handle.stats();
        report::Streaming {
            pinned_bytes: self.choice.pinned_bytes(),
            pinned_from_start_bytes: stats.bytes_pinned,
            kept_bytes: stats.bytes_kept,
            streamed_bytes_per_pass: self.choice.streamed_bytes(),
            streamed_bytes_per_token: self.choice.token_bytes(),
            passes: stats.passes,
            bytes_read: stats.bytes_read,
            slots: u32::try_from(self.choice.blocks).unwrap_or(u32::MAX),
            slot_bytes: self.choice.means.block_bytes,
            experts_bytes: self.choice.experts_bytes,
            stall_ms: stats.stalled.as_secs_f64() * 1000.0,
            io: "threads".to_owned(),
            direct_io: self.direct,
            units: self.choice.streamed.len() as u64,
            paged_bytes_per_pass: self.paged_bytes(),
            readers: self.choice.means.readers,
            read_bytes: self.choice.means.read_bytes,
            evicted_bytes: stats.bytes_evicted,
            unplanned_passes: stats.unplanned_passes,
            budget_bytes: self.budget.ram_bytes,
            terms: self.budget.terms.clone(),
        }
    }
}

/// The file-backed weights as the policy sees them, and the address of each. Others are in memory already.
fn weights(inventory: &Inventory, nodes: &[PlannedNode]) -> (Vec<Weight>, Vec<usize>) {
    let mut used: HashMap<usize, (usize, usize)> = HashMap::new();
    let mut rows: HashSet<usize> = HashSet::new();
    let mut experts: HashMap<usize, u64> = HashMap::new();
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| !node.computes_nothing) {
        for (source, &address) in node.reads.iter().enumerate() {
            if node.reads_rows && source == 0 {
                rows.insert(address);
            } else {
                used.entry(address).or_insert((index, index)).1 = index;
            }
            if let (Some(chosen), 0) = (node.experts, source) {
                experts.insert(address, chosen.for_a_token as u64);
            }
        }
    }
    let mut weights = Vec::new();
    let mut addresses = Vec::new();
    for (index, tensor) in inventory.tensors.iter().enumerate() {
        let Backing::File(address) = tensor.backing else { continue };
        let whole = Weight {
            file: tensor.file,
            tensor: index,
            offset: tensor.offset,
            bytes: tensor.bytes,
            layer: tensor.layer,
            used: used.get(&address).copied(),
            rows: rows.contains(&address),
            experts: experts
                .get(&address)
                .and_then(|&used| Experts::new(tensor.bytes, tensor.shape[2], used)),
        };
        let piece = piece_rows(tensor.bytes, tensor.shape[1]).filter(|_| tensor.layer.is_none());
        let parts: Vec<Weight> = piece.map_or_else(Vec::new, |piece| {
            let at = |part: &Weight| address + (part.offset - whole.offset) as usize;
            pieces(whole, tensor.shape[1], piece)
                .map(|part| Weight { used: used.get(&at(&part)).copied(), ..part })
                .collect()
        });
        // The graph shows whether it is computed in pieces: all of them are read then.
        let split = !parts.is_empty() && parts.iter().all(|part| part.used.is_some());
        for part in if split { parts } else { vec![whole] } {
            addresses.push(address + (part.offset - whole.offset) as usize);
            weights.push(part);
        }
    }
    (weights, addresses)
}

/// The choice with the addresses it has in this process.
fn plan(
    inventory: &Inventory,
    choice: &Choice,
    weights: &[Weight],
    addresses: &[usize],
) -> Result<StreamPlan> {
    let region = |pages: &Pages| -> Result<Region> {
        let base = inventory.mappings[pages.file]
            .address
            .ok_or_else(|| Error::failed("a file with weights to stream is not mapped"))?;
        Ok(Region {
            file: pages.file,
            offset: pages.start,
            address: base + pages.start as usize,
            bytes: pages.bytes() as usize,
        })
    };
    let regions = |pages: &[Pages]| pages.iter().map(region).collect::<Result<Vec<_>>>();
    let units = |units: &[stream::Unit]| -> Result<Vec<Unit>> {
        let units = units.iter().map(|unit| {
            let tensors = unit.weights.iter().map(|&index| addresses[index]).collect();
            let rows = unit.weights.iter().any(|&index| weights[index].rows);
            let one = |experts: Experts| (weights[unit.weights[0]].bytes / experts.count) as usize;
            let expert_bytes = unit.experts.map(one);
            Ok(Unit { regions: vec![region(&unit.pages)?], tensors, rows, expert_bytes })
        });
        units.collect()
    };
    Ok(StreamPlan {
        files: inventory.mappings.iter().map(|mapping| mapping.path.clone()).collect(),
        pinned: regions(&choice.pinned)?,
        // What is left to paging is read page by page too: the kernel's readahead, megabytes for each thread that
        // faults, would take a small budget's reserve and end in a kill.
        rows: regions(&[choice.rows.as_slice(), choice.paged.as_slice()].concat())?,
        units: units(&choice.streamed)?,
        kept: units(&choice.kept)?,
        block_bytes: choice.means.block_bytes as usize,
        blocks: choice.blocks as usize,
        experts_bytes: choice.experts_bytes as usize,
        read_bytes: choice.means.read_bytes as usize,
        readers: choice.means.readers as usize,
    })
}

const _: () = assert!(PAGE as usize == forge_core::staging::PAGE_BYTES);
