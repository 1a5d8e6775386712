//! Memory for units that stay once they are read. A thread of its own gives it pages while the computation goes
//! on: the first touch of memory can be slower than the disk, where a hypervisor has taken the pages back.

use std::io;

use super::memory::{ALIGNMENT, Anonymous};
use super::plan::{Region, Unit};

/// Where a unit is between its uses.
#[derive(Debug)]
pub(super) enum Home {
    /// On disk. Its next read goes to memory of its own, where it stays, once there is some.
    Disk(Option<Own>),
    /// In memory, at the tensors' own addresses.
    Memory,
}

/// Memory of a unit's own.
#[derive(Debug)]
pub(super) struct Own(Vec<(Region, Anonymous)>);

impl Own {
    /// Addresses for `unit`, without memory yet.
    pub(super) fn map(unit: &Unit) -> io::Result<Self> {
        let parts = unit.regions.iter().map(|region| {
            let memory = Anonymous::map(region.bytes, region.address, ALIGNMENT)?;
            memory.advise_huge();
            Ok((*region, memory))
        });
        parts.collect::<io::Result<_>>().map(Self)
    }

    /// Gives every page memory.
    pub(super) fn populate(&self) {
        self.0.iter().for_each(|(_, memory)| memory.populate());
    }

    /// Bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(region, _)| region.bytes as u64).sum()
    }

    /// Where `piece`, a part of one of the regions, is read to.
    pub(super) fn place(&self, piece: &Region) -> Option<usize> {
        let (region, memory) = self
            .0
            .iter()
            .find(|(region, _)| region.address <= piece.address && piece.end() <= region.end())?;
        Some(memory.address() + (piece.address - region.address))
    }
}

/// Makes the calling thread one that runs when no other wants to. It does without where that is refused.
pub(super) fn yield_to_others() {
    const LAST: libc::c_int = 19;
    // SAFETY: the call takes numbers and touches no memory; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
}

#[cfg(test)]
mod tests {
    use super::super::plan::PAGE_BYTES;
    use super::*;

    #[test]
    fn each_piece_has_its_place_congruent_to_its_address() {
        let region = |page: usize, pages: usize| Region {
            file: 0,
            offset: (page * PAGE_BYTES) as u64,
            address: 0x7000_0000_0000 + page * PAGE_BYTES,
            bytes: pages * PAGE_BYTES,
        };
        let unit = Unit { regions: vec![region(3, 4), region(9, 1)], ..Unit::default() };
        let own = Own::map(&unit).unwrap();
        own.populate();
        assert_eq!(own.bytes(), 5 * PAGE_BYTES as u64);
        for piece in [region(3, 4), region(5, 2), region(9, 1)] {
            let place = own.place(&piece).unwrap();
            assert_eq!(place % ALIGNMENT, piece.address % ALIGNMENT);
        }
        assert_eq!(own.place(&region(5, 1)).unwrap() - own.place(&region(3, 1)).unwrap(), 2 * PAGE_BYTES);
        assert_eq!(own.place(&region(6, 2)), None);
        assert_eq!(own.place(&region(8, 1)), None);
    }
}
