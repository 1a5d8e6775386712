//! Looking: which pages are in memory, and what the kernel charges for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use forge_core::MappedPages;

use super::inventory::Inventory;
use super::resident::Resident;
use crate::observe::cgroup::{Memory, MemoryV1, MemoryV2};
use crate::observe::host::Groups;
use crate::observe::process::{Process, Which};
use crate::report::ResidencySample;
use crate::{Error, Result};

/// Looks at one process's pages and its group.
#[derive(Debug)]
pub struct Sampler {
    group: Option<GroupDir>,
}

#[derive(Debug)]
enum GroupDir {
    V1(PathBuf),
    V2(PathBuf),
}

/// What was seen at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Which pages of the mappings are in memory; `None` when the kernel does not tell this user.
    pub resident: Option<Resident>,
    /// The process.
    pub process: Process,
    /// The run's group.
    pub group: Option<GroupSeen>,
    /// How long looking took.
    pub sampling_ms: f64,
}

/// What a group's files say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSeen {
    /// All it holds.
    pub current_bytes: Option<u64>,
    /// The most it ever held.
    pub peak_bytes: Option<u64>,
    /// Pages of files in what it holds.
    pub file_bytes: Option<u64>,
    /// Kernel memory in that.
    pub kernel_bytes: Option<u64>,
}

impl Sampler {
    /// A sampler for the calling process; `own_group` says whether its memory group is the run's alone.
    ///
    /// # Errors
    /// When the kernel does not say which groups the process is in.
    pub fn new(own_group: bool) -> Result<Self> {
        if !own_group {
            return Ok(Self { group: None });
        }
        let groups = Groups::own(Path::new("/proc"))?;
        let v1 = groups.v1_memory.map(|group| GroupDir::V1(group.dir));
        Ok(Self { group: v1.or(groups.v2.map(|group| GroupDir::V2(group.dir))) })
    }

    /// Looks.
    ///
    /// # Errors
    /// When the kernel's files cannot be read.
    pub fn look(&self, inventory: &Inventory, pages: &MappedPages<'_>) -> Result<Seen> {
        let started = Instant::now();
        let resident = resident(inventory, pages)?;
        let process = Process::sample(Path::new("/proc"), Which::Own)?;
        let group = self.group.as_ref().map(GroupDir::look).transpose()?;
        Ok(Seen { resident, process, group, sampling_ms: started.elapsed().as_secs_f64() * 1000.0 })
    }
}

fn resident(inventory: &Inventory, pages: &MappedPages<'_>) -> Result<Option<Resident>> {
    let mut resident = Resident::none(inventory.mappings.len());
    for file in 0..inventory.mappings.len() {
        let Some(mapped) = inventory.mapped(file) else { continue };
        let Some(region) = inventory.region(&mapped) else { continue };
        match pages.resident(&region)? {
            Some(words) => resident.set(file, mapped.start, words),
            None => return Ok(None),
        }
    }
    Ok(Some(resident))
}

impl GroupDir {
    fn look(&self) -> Result<GroupSeen> {
        let failed =
            |error: std::io::Error| Error::failed("cannot look at the memory group").caused_by(error);
        let memory = match self {
            Self::V1(dir) => Memory::V1(MemoryV1::sample(dir).map_err(failed)?),
            Self::V2(dir) => Memory::V2(MemoryV2::sample(dir).map_err(failed)?),
        };
        Ok(GroupSeen::of(&memory))
    }
}

impl GroupSeen {
    fn of(memory: &Memory) -> Self {
        let sum = |stat: Option<&BTreeMap<String, u64>>, names: &[&str]| -> Option<u64> {
            let stat = stat?;
            names.iter().map(|&name| stat.get(name).copied()).sum()
        };
        match memory {
            Memory::V2(v2) => Self {
                current_bytes: v2.current,
                peak_bytes: v2.peak,
                file_bytes: sum(v2.stat.as_ref(), &["file"]),
                kernel_bytes: sum(v2.stat.as_ref(), &["kernel"]),
            },
            // Version 1 counts kernel memory in the usage, and shows only what is neither cached nor
            // anonymous.
            Memory::V1(v1) => Self {
                current_bytes: v1.usage,
                peak_bytes: v1.max_usage,
                file_bytes: sum(v1.stat.as_ref(), &["cache"]),
                kernel_bytes: v1
                    .usage
                    .zip(sum(v1.stat.as_ref(), &["rss", "cache"]))
                    .and_then(|(usage, pages)| usage.checked_sub(pages)),
            },
        }
    }
}

impl Seen {
    /// The mappings' resident bytes.
    pub fn mapping_bytes(&self) -> Option<u64> {
        self.resident.as_ref().map(Resident::bytes)
    }

    /// For the report.
    pub fn report(&self) -> ResidencySample {
        ResidencySample {
            mapping_resident_bytes: self.mapping_bytes(),
            process_rss_bytes: self.process.rss_bytes,
            group_current_bytes: self.group.and_then(|group| group.current_bytes),
            process_anonymous_bytes: self.process.rss_anonymous_bytes,
            sampling_ms: Some(self.sampling_ms),
        }
    }
}

/// The process's proportional share of the mappings' pages, from `smaps`; `None` where the kernel does not
/// show it. It walks the page tables of the whole process.
pub fn mapping_pss_bytes(inventory: &Inventory) -> Option<u64> {
    let maps = procfs::process::Process::myself().and_then(|process| process.smaps()).ok()?;
    let ranges: Vec<(u64, u64)> = (0..inventory.mappings.len())
        .filter_map(|file| inventory.mapped(file).and_then(|pages| inventory.region(&pages)))
        .map(|region| (region.address as u64, region.end() as u64))
        .collect();
    let of_model =
        |address: (u64, u64)| ranges.iter().any(|range| range.0 <= address.0 && address.1 <= range.1);
    let maps = maps.0.iter().filter(|map| map.inode != 0 && of_model(map.address));
    maps.map(|map| map.extension.map.get("Pss").copied()).sum()
}
