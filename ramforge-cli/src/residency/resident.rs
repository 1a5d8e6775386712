//! Which pages of the model's files are in memory.

use super::inventory::PAGE;
use super::stream::Pages;

/// A sample of the mappings' pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    files: Vec<FileBits>,
}

/// One bit a page, from the page that `start` names on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FileBits {
    start: u64,
    words: Vec<u64>,
}

impl Resident {
    /// A sample in which nothing of `files` files is in memory.
    pub fn none(files: usize) -> Self {
        Self { files: vec![FileBits::default(); files] }
    }

    /// Takes in what was seen of a file from byte `start`, a multiple of the page size, on.
    pub fn set(&mut self, file: usize, start: u64, words: Vec<u64>) {
        self.files[file] = FileBits { start, words };
    }

    /// Bytes of `pages` that are in memory; pages that were not sampled count as absent.
    pub fn bytes_of(&self, pages: &Pages) -> u64 {
        let Some(bits) = self.files.get(pages.file) else { return 0 };
        let first = pages.start.saturating_sub(bits.start) / PAGE;
        let last = (pages.end.saturating_sub(bits.start) / PAGE).min(bits.words.len() as u64 * 64);
        let mut count = 0;
        let mut at = first;
        while at < last {
            let upto = (at / 64 * 64 + 64).min(last);
            let mask = (u64::MAX >> (64 - (upto - at))) << (at % 64);
            count += u64::from((bits.words[(at / 64) as usize] & mask).count_ones());
            at = upto;
        }
        count * PAGE
    }

    /// Bytes in memory, of all files.
    pub fn bytes(&self) -> u64 {
        let words = self.files.iter().flat_map(|bits| &bits.words);
        words.map(|word| u64::from(word.count_ones())).sum::<u64>() * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_are_what_counting_bits_gives(
            words in proptest::collection::vec(any::<u64>(), 1..6),
            sampled in 0_u64..20,
            start in 0_u64..400,
            count in 1_u64..300,
        ) {
            let mut resident = Resident::none(2);
            resident.set(1, sampled * PAGE, words.clone());
            let bit = |page: u64| page
                .checked_sub(sampled)
                .and_then(|at| words.get((at / 64) as usize).map(|word| word >> (at % 64) & 1))
                .unwrap_or(0);
            let expected: u64 = (start..start + count).map(bit).sum();
            let pages = Pages { file: 1, start: start * PAGE, end: (start + count) * PAGE };
            prop_assert_eq!(resident.bytes_of(&pages), expected * PAGE);
            prop_assert_eq!(resident.bytes_of(&Pages { file: 0, ..pages }), 0);
            let all: u32 = words.iter().map(|word| word.count_ones()).sum();
            prop_assert_eq!(resident.bytes(), u64::from(all) * PAGE);
        }
    }
}
