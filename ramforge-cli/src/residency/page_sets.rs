//! Sets of whole pages: sorted, disjoint, and joined where they touch.

use super::inventory::PAGE;
use super::stream::Pages;

/// The pages that hold any of `bytes` bytes from `offset` on; `None` when there are no bytes.
pub fn around(file: usize, offset: u64, bytes: u64) -> Option<Pages> {
    let end = (offset + bytes).next_multiple_of(PAGE);
    (bytes > 0).then_some(Pages { file, start: offset / PAGE * PAGE, end })
}

/// All pages of `parts`, each once.
pub fn union(parts: impl IntoIterator<Item = Pages>) -> Vec<Pages> {
    let mut parts: Vec<Pages> = parts.into_iter().collect();
    parts.sort_unstable();
    let mut set: Vec<Pages> = Vec::with_capacity(parts.len());
    for part in parts {
        match set.last_mut().filter(|last| last.file == part.file && part.start <= last.end) {
            Some(last) => last.end = last.end.max(part.end),
            None => set.push(part),
        }
    }
    set
}

/// The pages of `set` that are not in `other`; both are sets.
pub fn without(set: &[Pages], other: &[Pages]) -> Vec<Pages> {
    let mut left = Vec::new();
    let mut others = other.iter().peekable();
    for &pages in set {
        let mut rest = pages;
        while others.next_if(|hole| (hole.file, hole.end) <= (rest.file, rest.start)).is_some() {}
        let mut holes = others.clone();
        while let Some(hole) = holes.next_if(|hole| hole.overlaps(&rest)) {
            if hole.start > rest.start {
                left.push(Pages { end: hole.start, ..rest });
            }
            rest.start = hole.end.min(rest.end);
        }
        if rest.start < rest.end {
            left.push(rest);
        }
    }
    left
}

/// Bytes of a set.
pub fn bytes(set: &[Pages]) -> u64 {
    set.iter().map(Pages::bytes).sum()
}

/// The first pages of a set, no more than `bound` bytes of them.
pub fn first(set: &[Pages], bound: u64) -> Vec<Pages> {
    let mut room = bound / PAGE * PAGE;
    let mut chosen = Vec::new();
    for &pages in set {
        let taken = pages.bytes().min(room);
        if taken > 0 {
            chosen.push(Pages { end: pages.start + taken, ..pages });
        }
        room -= taken;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The pages of a list one by one: the obvious model that the sets are compared with.
    fn each(list: &[Pages]) -> BTreeSet<(usize, u64)> {
        list.iter().flat_map(|p| (p.start / PAGE..p.end / PAGE).map(move |page| (p.file, page))).collect()
    }

    fn list() -> impl Strategy<Value = Vec<Pages>> {
        let pages = (0_usize..2, 0_u64..60, 1_u64..9).prop_map(|(file, start, count)| Pages {
            file,
            start: start * PAGE,
            end: (start + count) * PAGE,
        });
        proptest::collection::vec(pages, 0..12)
    }

    fn is_set(set: &[Pages]) -> bool {
        set.windows(2).all(|pair| (pair[0].file, pair[0].end) < (pair[1].file, pair[1].start))
            && set.iter().all(|pages| pages.start < pages.end)
    }

    proptest! {
        #[test]
        fn sets_are_what_counting_pages_one_by_one_gives(a in list(), b in list(), bound in 0_u64..300_000) {
            let (a_set, b_set) = (union(a.iter().copied()), union(b.iter().copied()));
            prop_assert!(is_set(&a_set));
            prop_assert_eq!(each(&a_set), each(&a));
            let left = without(&a_set, &b_set);
            prop_assert!(is_set(&left));
            prop_assert_eq!(each(&left), &each(&a) - &each(&b));
            let first = first(&a_set, bound);
            prop_assert!(bytes(&first) <= bound);
            prop_assert!(bytes(&a_set) <= bound || bytes(&first) + PAGE > bound);
            prop_assert!(each(&first).is_subset(&each(&a)));
        }

        #[test]
        fn the_pages_around_bytes_are_the_fewest_that_hold_them(offset in 0_u64..100_000, count in 1_u64..50_000) {
            let pages = around(0, offset, count).unwrap();
            prop_assert!(pages.start <= offset && offset < pages.start + PAGE);
            prop_assert!(pages.end >= offset + count && pages.end - PAGE < offset + count);
        }
    }
}
