//! What to pin, what to stream, and with which means: data that a policy makes and the mechanism checks.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Bytes of a page. Regions and blocks are whole pages.
pub const PAGE_BYTES: usize = 4096;

/// Whole pages of a file, and where the model's mapping has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region {
    /// The file, by its index in [`StreamPlan::files`].
    pub file: usize,
    /// The first byte in the file, a multiple of the page size.
    pub offset: u64,
    /// The first byte in memory, a multiple of the page size.
    pub address: usize,
    /// Bytes, a multiple of the page size. The last page may reach past the end of the file.
    pub bytes: usize,
}

impl Region {
    /// The address after the last byte.
    pub const fn end(&self) -> usize {
        self.address + self.bytes
    }

    /// The part that begins `skip` bytes in and has `bytes` bytes.
    pub(super) const fn part(&self, skip: usize, bytes: usize) -> Self {
        Self { file: self.file, offset: self.offset + skip as u64, address: self.address + skip, bytes }
    }

    /// Cut at every address that is a multiple of `block`.
    pub(super) fn pieces(&self, block: usize) -> impl Iterator<Item = Self> + '_ {
        let mut skip = 0;
        std::iter::from_fn(move || {
            let address = self.address + skip;
            let bytes = (block - address % block).min(self.bytes - skip);
            let piece = self.part(skip, bytes);
            skip += bytes;
            (bytes > 0).then_some(piece)
        })
    }
}

/// Pages that are read, used and given back together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Its pages.
    pub regions: Vec<Region>,
    /// Addresses of the tensors that are in use when the unit is: their first and last use in the graph are
    /// the unit's.
    pub tensors: Vec<usize>,
    /// Whether single rows of it are read through the mapping too, while it is not staged.
    pub rows: bool,
    /// Bytes of one matrix, when it is a tensor of several of which a token uses some: its experts. For a batch of
    /// one token only those are read, once they are known.
    pub expert_bytes: Option<usize>,
}

impl Unit {
    /// Bytes read in a pass, for more than one token.
    pub fn bytes(&self) -> usize {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    /// Blocks it takes: each block holds pages of one aligned window of addresses.
    pub fn blocks(&self, block_bytes: usize) -> usize {
        self.regions.iter().map(|region| region.pieces(block_bytes).count()).sum()
    }
}

/// A complete choice: what is pinned, what is streamed, and with which means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// The model's files.
    pub files: Vec<PathBuf>,
    /// Pages kept in anonymous memory from the start.
    pub pinned: Vec<Region>,
    /// What is kept in anonymous memory once it has been read for the computation. Before there is memory for
    /// it, it is streamed. No single rows are read of it.
    pub kept: Vec<Unit>,
    /// Pages that are read one by one through the mapping, without readahead, and dropped after each pass.
    pub rows: Vec<Region>,
    /// What is read in every pass.
    pub units: Vec<Unit>,
    /// Bytes of a block, a power of two.
    pub block_bytes: usize,
    /// Blocks in the pool.
    pub blocks: usize,
    /// Bytes of memory for the experts that a token uses at once.
    pub experts_bytes: usize,
    /// Most bytes in one read.
    pub read_bytes: usize,
    /// Reads under way at once.
    pub readers: usize,
}

impl StreamPlan {
    /// Bytes pinned from the start.
    pub fn pinned_bytes(&self) -> usize {
        self.pinned.iter().map(|region| region.bytes).sum()
    }

    /// The same with everything pinned that is kept.
    pub(super) fn with_all_pinned(&self) -> Self {
        let kept = self.kept.iter().flat_map(|unit| &unit.regions);
        let pinned = self.pinned.iter().chain(kept).copied().collect();
        Self { pinned, kept: Vec::new(), ..self.clone() }
    }

    /// What is read in every pass, and after it what is kept.
    pub(super) fn all_units(&self) -> Vec<Unit> {
        self.units.iter().chain(&self.kept).cloned().collect()
    }

    /// Bytes read in every pass.
    pub fn streamed_bytes(&self) -> usize {
        self.units.iter().map(Unit::bytes).sum()
    }

    /// Checks the plan's own sense; whether the addresses are the model's is checked when it starts.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::limit(format!("a stream plan {what}")));
        if !self.block_bytes.is_power_of_two() || self.block_bytes < PAGE_BYTES {
            return wrong("has blocks that are no power of two pages");
        }
        if self.readers == 0 || self.read_bytes < self.block_bytes {
            return wrong("has no readers, or reads smaller than a block");
        }
        if self.kept.iter().any(|unit| unit.rows) {
            return wrong("keeps units of which rows are read");
        }
        let whole = |unit: &Unit| {
            unit.expert_bytes
                .is_none_or(|bytes| bytes > 0 && unit.regions.len() == 1 && unit.tensors.len() == 1)
        };
        if !self.units.iter().chain(&self.kept).all(whole) {
            return wrong("has units with experts that are not one tensor");
        }
        let regions = self.regions();
        let aligned = |region: &Region| {
            region.address.is_multiple_of(PAGE_BYTES)
                && region.bytes.is_multiple_of(PAGE_BYTES)
                && region.offset.is_multiple_of(PAGE_BYTES as u64)
                && region.bytes > 0
                && region.file < self.files.len()
                && region.address.checked_add(region.bytes).is_some()
        };
        if !regions.iter().all(aligned) {
            return wrong("has regions that are not whole pages of a file");
        }
        let mut sorted = regions;
        sorted.sort_by_key(|region| region.address);
        if sorted.windows(2).any(|pair| pair[0].end() > pair[1].address) {
            return wrong("has regions that overlap");
        }
        Ok(())
    }

    /// Every region there is.
    pub(super) fn regions(&self) -> Vec<Region> {
        let units = self.units.iter().chain(&self.kept).flat_map(|unit| &unit.regions);
        self.pinned.iter().chain(&self.rows).chain(units).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(address: usize, bytes: usize) -> Region {
        Region { file: 0, offset: address as u64, address, bytes }
    }

    fn plan(pinned: Vec<Region>) -> StreamPlan {
        StreamPlan {
            files: vec!["m.gguf".into()],
            pinned,
            kept: Vec::new(),
            rows: Vec::new(),
            units: Vec::new(),
            block_bytes: 1 << 21,
            blocks: 1,
            experts_bytes: 0,
            read_bytes: 1 << 21,
            readers: 1,
        }
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        assert!(plan(vec![region(0, 8192), region(8192, 4096)]).check().is_ok());
        assert!(plan(vec![region(0, 8192), region(4096, 4096)]).check().is_err());
        assert!(plan(vec![region(0, 100)]).check().is_err());
        assert!(plan(vec![region(0, 0)]).check().is_err());
        assert!(plan(vec![Region { file: 1, ..region(0, 4096) }]).check().is_err());
        assert!(plan(vec![region(usize::MAX - 4095, 4096)]).check().is_err());
        assert!(StreamPlan { block_bytes: 12288, ..plan(vec![]) }.check().is_err());
        assert!(StreamPlan { readers: 0, ..plan(vec![]) }.check().is_err());
        let unit = |rows| Unit { regions: vec![region(0, 4096)], rows, ..Unit::default() };
        assert!(StreamPlan { kept: vec![unit(false)], ..plan(vec![]) }.check().is_ok());
        assert!(StreamPlan { kept: vec![unit(false)], ..plan(vec![region(0, 4096)]) }.check().is_err());
        assert!(StreamPlan { kept: vec![unit(true)], ..plan(vec![]) }.check().is_err());
        let experts = |bytes, tensors| Unit { expert_bytes: Some(bytes), tensors, ..unit(false) };
        assert!(StreamPlan { units: vec![experts(64, vec![9])], ..plan(vec![]) }.check().is_ok());
        assert!(StreamPlan { units: vec![experts(0, vec![9])], ..plan(vec![]) }.check().is_err());
        assert!(StreamPlan { units: vec![experts(64, vec![9, 10])], ..plan(vec![]) }.check().is_err());
    }

    proptest! {
        #[test]
        fn pieces_cover_the_region_and_cross_no_block(start in 0_usize..2000, pages in 1_usize..3000, shift in 0_u32..10) {
            let block = PAGE_BYTES << shift;
            let whole = region(start * PAGE_BYTES, pages * PAGE_BYTES);
            let mut next = whole.address;
            for piece in whole.pieces(block) {
                prop_assert_eq!(piece.address, next);
                prop_assert_eq!(piece.offset, next as u64);
                prop_assert_eq!(piece.address / block, (piece.end() - 1) / block);
                next = piece.end();
            }
            prop_assert_eq!(next, whole.end());
        }
    }
}
