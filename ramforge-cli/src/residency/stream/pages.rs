//! Whole pages of a file.

use super::Weight;
use crate::residency::inventory::PAGE;

/// Whole pages of a file: `start` and `end` are multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pages {
    /// The file.
    pub file: usize,
    /// The first byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
}

impl Pages {
    /// The pages that hold nothing but bytes from `start` to `end`; `None` when there is none.
    pub fn within(file: usize, start: u64, end: u64) -> Option<Self> {
        let (start, end) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
        (start < end).then_some(Self { file, start, end })
    }

    /// The pages that hold nothing but the weight's bytes.
    pub fn inside(weight: &Weight) -> Option<Self> {
        Self::within(weight.file, weight.offset, weight.end())
    }

    /// The pages that hold any of the weight's bytes.
    pub fn around(weight: &Weight) -> Self {
        let (start, end) = (weight.offset / PAGE * PAGE, weight.end().next_multiple_of(PAGE));
        Self { file: weight.file, start, end }
    }

    /// Bytes.
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether both have a page.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.file == other.file && self.start < other.end && other.start < self.end
    }

    /// Blocks of `block_bytes` for these pages. A block holds one aligned window of addresses; mappings begin
    /// at a page and not at a block, so the worst place is assumed.
    pub const fn blocks(&self, block_bytes: u64) -> u64 {
        (self.bytes() + block_bytes - PAGE).div_ceil(block_bytes)
    }
}

/// The pages of every weight in use, without `excluded`: sorted, disjoint, and joined where they touch.
pub fn pinned_pages(weights: &[Weight], excluded: &[Pages]) -> Vec<Pages> {
    let used = weights.iter().filter(|weight| weight.used.is_some() || weight.rows);
    let mut wanted: Vec<Pages> = used.filter(|weight| weight.bytes > 0).map(Pages::around).collect();
    wanted.sort_unstable();
    let mut excluded = excluded.to_vec();
    excluded.sort_unstable();
    let mut pinned: Vec<Pages> = Vec::new();
    for wanted in wanted {
        let mut pages = wanted;
        if let Some(last) = pinned.last().filter(|last| last.file == pages.file) {
            pages.start = pages.start.max(last.end);
        }
        for hole in excluded.iter().filter(|hole| hole.overlaps(&wanted)) {
            if hole.end <= pages.start {
                continue;
            }
            add(&mut pinned, Pages { end: hole.start, ..pages });
            pages.start = hole.end;
        }
        add(&mut pinned, pages);
    }
    pinned
}

fn add(pinned: &mut Vec<Pages>, pages: Pages) {
    if pages.start >= pages.end {
        return;
    }
    match pinned.last_mut().filter(|last| last.file == pages.file && last.end == pages.start) {
        Some(last) => last.end = pages.end,
        None => pinned.push(pages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(offset: u64, bytes: u64) -> Weight {
        let used = Some((0, 0));
        Weight { file: 0, tensor: 0, offset, bytes, layer: None, used, rows: false, experts: None }
    }

    fn pages(start: u64, end: u64) -> Pages {
        Pages { file: 0, start: start * PAGE, end: end * PAGE }
    }

    #[test]
    fn edges_stay_when_the_inside_is_excluded() {
        let weights = [weight(100, 3 * PAGE), weight(3 * PAGE + 100, 2 * PAGE), weight(9 * PAGE, 10)];
        let inside = Pages::inside(&weights[0]).unwrap();
        assert_eq!(inside, pages(1, 3));
        assert_eq!(pinned_pages(&weights, &[inside]), [pages(0, 1), pages(3, 6), pages(9, 10)]);
        assert_eq!(pinned_pages(&weights, &[]), [pages(0, 6), pages(9, 10)]);
    }

    #[test]
    fn blocks_are_counted_for_the_worst_place() {
        assert_eq!(pages(0, 1).blocks(4 * PAGE), 1);
        assert_eq!(pages(0, 2).blocks(4 * PAGE), 2);
        assert_eq!(pages(0, 5).blocks(4 * PAGE), 2);
        assert_eq!(pages(0, 6).blocks(4 * PAGE), 3);
    }

    #[test]
    fn what_no_page_lies_in_has_no_inside() {
        assert_eq!(Pages::inside(&weight(100, PAGE)), None);
        assert_eq!(Pages::inside(&weight(PAGE, PAGE)), Some(pages(1, 2)));
    }
}
