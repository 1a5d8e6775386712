//! Experts: matrices of a tensor of which a token uses some. Which ones is known only when the graph has chosen them;
//! they are read then, all at once, into memory that nothing else uses.

use std::collections::{BTreeSet, HashMap};
use std::io;

use super::memory::{ALIGNMENT, Anonymous};
use super::plan::{PAGE_BYTES, Region, Unit};

/// The units that have experts, and the memory for those of a token.
#[derive(Debug)]
pub(super) struct Experts {
    /// By their position in the order of use.
    units: HashMap<usize, Unit>,
    memory: Anonymous,
    bytes: usize,
    /// What is laid over the mapping now, and where its pages belong.
    pub(super) laid: Vec<(Region, usize)>,
}

impl Experts {
    /// Addresses for `bytes` bytes of experts of those `units` that have some; they are in the order of use.
    pub(super) fn map<'unit>(units: impl Iterator<Item = &'unit Unit>, bytes: usize) -> io::Result<Self> {
        let units = units.enumerate().filter(|(_, unit)| unit.expert_bytes.is_some());
        let memory = Anonymous::map(bytes.max(PAGE_BYTES), 0, ALIGNMENT)?;
        memory.advise_huge();
        let units = units.map(|(position, unit)| (position, unit.clone())).collect();
        Ok(Self { units, memory, bytes, laid: Vec::new() })
    }

    /// The pages with the experts `chosen` of the units at `positions`, and where to read each run of them to.
    ///
    /// # Errors
    /// They take more memory than there is.
    pub(super) fn places(
        &self,
        positions: &[usize],
        chosen: &BTreeSet<usize>,
    ) -> io::Result<Vec<(Region, usize)>> {
        let units = positions.iter().filter_map(|position| self.units.get(position));
        let mut used = 0;
        let mut places = Vec::new();
        for region in units.flat_map(|unit| pages(unit, chosen)) {
            places.push((region, self.memory.address() + used));
            used += region.bytes;
        }
        if used > self.bytes {
            return Err(io::Error::other(format!("experts of {used} bytes, with memory for {}", self.bytes)));
        }
        Ok(places)
    }
}

/// The pages of `unit` with the matrices `chosen`, in order, and joined where they touch.
fn pages(unit: &Unit, chosen: &BTreeSet<usize>) -> Vec<Region> {
    let (Some(bytes), [tensor], [whole]) = (unit.expert_bytes, &unit.tensors[..], &unit.regions[..]) else {
        return Vec::new();
    };
    let mut pages: Vec<Region> = Vec::new();
    for &expert in chosen {
        let first = tensor.saturating_add(expert.saturating_mul(bytes));
        let mut start = (first / PAGE_BYTES * PAGE_BYTES).max(whole.address);
        let end = first.saturating_add(bytes).min(whole.end()).next_multiple_of(PAGE_BYTES);
        if let Some(last) = pages.last_mut().filter(|last| last.end() >= start) {
            start = last.end();
            last.bytes += end.saturating_sub(start);
        } else if start < end {
            pages.push(whole.part(start - whole.address, end - start));
        }
    }
    pages
}

/// Most bytes of the pages of `count` of the unit's matrices.
pub(super) fn most_bytes(unit: &Unit, count: usize) -> usize {
    let one = unit.expert_bytes.unwrap_or(0).next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
    count.saturating_mul(one).min(unit.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A tensor at `address`, of which the pages inside are a unit.
    fn unit(address: usize, matrices: usize, bytes: usize) -> Unit {
        let start = address.next_multiple_of(PAGE_BYTES);
        let end = (address + matrices * bytes) / PAGE_BYTES * PAGE_BYTES;
        let region = Region { file: 0, offset: 0, address: start, bytes: end.saturating_sub(start) };
        Unit { regions: vec![region], tensors: vec![address], rows: false, expert_bytes: Some(bytes) }
    }

    proptest! {
        #[test]
        fn the_pages_of_the_chosen_experts_are_those_with_their_bytes(
            address in 1_usize << 20..1 << 21, matrices in 2_usize..20, bytes in 1_usize..20_000,
            chosen in proptest::collection::btree_set(0_usize..25, 0..8),
        ) {
            let unit = unit(address, matrices, bytes);
            prop_assume!(unit.bytes() > 0);
            let found = pages(&unit, &chosen);
            for pair in found.windows(2) {
                prop_assert!(pair[0].end() < pair[1].address);
            }
            let whole = unit.regions[0];
            for page in (whole.address..whole.end()).step_by(PAGE_BYTES) {
                let has = |expert: &usize| {
                    let first = address + expert * bytes;
                    first < page + PAGE_BYTES && page < first + bytes
                };
                let found = found.iter().any(|region| region.address <= page && page < region.end());
                prop_assert_eq!(found, chosen.iter().any(has), "page {:#x}", page);
            }
            let total: usize = found.iter().map(|region| region.bytes).sum();
            prop_assert!(total <= most_bytes(&unit, chosen.len()));
            prop_assert!(found.iter().all(|r| r.offset == (r.address - whole.address) as u64));
        }
    }

    #[test]
    fn more_experts_than_there_is_memory_for_are_an_error() {
        let unit = unit(1 << 20, 8, 2 * PAGE_BYTES);
        let experts = Experts::map([&Unit::default(), &unit].into_iter(), 4 * PAGE_BYTES).unwrap();
        let two = experts.places(&[0, 1], &BTreeSet::from([1, 5])).unwrap();
        assert_eq!(two.len(), 2);
        assert_eq!(two[1].1 - two[0].1, 2 * PAGE_BYTES);
        assert!(experts.places(&[1], &BTreeSet::from([1, 3, 5])).is_err());
    }
}
