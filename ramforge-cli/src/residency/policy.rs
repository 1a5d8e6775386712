//! The policies between operations: from a snapshot to a plan, the same for the same snapshot.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::page_sets::{around, bytes, first, union, without};
use super::plan::{Kind, Plan};
use super::snapshot::{PagedTensor, Snapshot};
use super::stream::Pages;

/// Which tensors give their pages back after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Rule {
    /// Only those that share no page with another tensor that is read.
    Conservative,
    /// In a fixed order: what nobody reads, then layers from the last to the first, then everything outside
    /// layers.
    MemoryBound,
    /// What the next token needs latest, first, by the profile of the graph.
    ReuseAware,
}

/// Releases as many tensors as bring the run to its target, and no more.
pub fn release(rule: Rule, snapshot: &Snapshot<'_>) -> Plan {
    let shared = shared_pages(snapshot.tensors);
    let mut order: Vec<usize> = (0..snapshot.tensors.len())
        .filter(|&index| rule != Rule::Conservative || is_alone(&snapshot.tensors[index], &shared))
        .collect();
    let nobody_is_alone = order.is_empty();
    order.retain(|&index| {
        pages_of(&snapshot.tensors[index]).is_some_and(|own| snapshot.resident.bytes_of(&own) > 0)
    });
    let (profile_used, mut reason) = sort(rule, snapshot, &mut order);
    if rule == Rule::Conservative && nobody_is_alone {
        reason = Some("every tensor shares a page with another one".to_owned());
    }

    let mut selected = BTreeSet::new();
    let mut missing = snapshot.excess_bytes();
    for index in order {
        if missing == 0 {
            break;
        }
        let tensor = &snapshot.tensors[index];
        // What this tensor adds: its own pages, and those it shares with selected ones only.
        selected.insert(index);
        let near = neighbourhood(snapshot.tensors, index);
        let own = pages_of(tensor).map_or(Vec::new(), |pages| vec![pages]);
        let others = near
            .filter(|other| !selected.contains(other))
            .filter_map(|other| read_pages(&snapshot.tensors[other]));
        missing = missing.saturating_sub(resident(snapshot, &without(&own, &union(others))));
    }
    let mut plan = release_exactly(snapshot, selected);
    plan.profile_used = profile_used;
    plan.reason = reason;
    plan
}

/// Releases the pages of `selected`, as far as nothing else is read from them.
pub fn release_exactly(snapshot: &Snapshot<'_>, selected: BTreeSet<usize>) -> Plan {
    let (pages, skipped) = exclusive_pages(snapshot.tensors, &selected);
    let estimate_bytes = snapshot.resident.bytes() - resident(snapshot, &pages);
    Plan {
        generation: snapshot.generation,
        kind: Kind::Release,
        selected: selected.into_iter().collect(),
        skipped_shared_bytes: bytes(&skipped),
        pages,
        estimate_bytes,
        profile_used: None,
        reason: None,
    }
}

/// Begins to read the first `bound` bytes of the weights' pages, layers in order, each page once.
pub fn prefetch(snapshot: &Snapshot<'_>, bound: u64) -> Plan {
    let tensors = snapshot.tensors;
    let mut order: Vec<usize> = (0..tensors.len()).filter(|&index| tensors[index].read).collect();
    // The embedding and the output come after the layers: only single rows of the former are read.
    order.sort_by_key(|&index| (tensors[index].layer.is_none(), tensors[index].layer, index));
    let mut selected = Vec::new();
    let mut chosen: Vec<Pages> = Vec::new();
    for index in order {
        let own = union(pages_of(&tensors[index]));
        let taken = first(&without(&own, &chosen), bound - bytes(&chosen));
        if taken.is_empty() {
            continue;
        }
        selected.push(index);
        chosen = union(chosen.into_iter().chain(taken));
    }
    selected.sort_unstable();
    let estimate_bytes = snapshot.resident.bytes() + bytes(&chosen) - resident(snapshot, &chosen);
    Plan {
        generation: snapshot.generation,
        kind: Kind::Prefetch,
        selected,
        pages: chosen,
        skipped_shared_bytes: 0,
        estimate_bytes,
        profile_used: None,
        reason: None,
    }
}

/// The pages of `selected` from which nothing else is read, and those from which something is.
pub fn exclusive_pages(tensors: &[PagedTensor], selected: &BTreeSet<usize>) -> (Vec<Pages>, Vec<Pages>) {
    let own = union(selected.iter().filter_map(|&index| pages_of(&tensors[index])));
    let others = (0..tensors.len()).filter(|index| !selected.contains(index));
    let others = union(others.filter_map(|index| read_pages(&tensors[index])));
    let exclusive = without(&own, &others);
    let shared = without(&own, &exclusive);
    (exclusive, shared)
}

/// Sorts into the order in which tensors are released; says whether a profile decided, and why not.
fn sort(rule: Rule, snapshot: &Snapshot<'_>, order: &mut [usize]) -> (Option<bool>, Option<String>) {
    let tensors = snapshot.tensors;
    order.sort_by_key(|&index| {
        let tensor = &tensors[index];
        (tensor.read, tensor.layer.is_none(), Reverse(tensor.layer), Reverse(index))
    });
    match (rule, &snapshot.profile) {
        (Rule::Conservative | Rule::MemoryBound, _) => (None, None),
        (Rule::ReuseAware, Err(reason)) => (Some(false), Some(reason.clone())),
        (Rule::ReuseAware, Ok(profile)) => {
            // What no node reads is needed latest of all. The sort is stable: ties keep the fixed order.
            order.sort_by_key(|&index| {
                let tensor = &tensors[index];
                Reverse(if tensor.read {
                    profile.first_use(&tensor.name).unwrap_or(u64::MAX)
                } else {
                    u64::MAX
                })
            });
            (Some(true), None)
        }
    }
}

fn pages_of(tensor: &PagedTensor) -> Option<Pages> {
    around(tensor.file, tensor.offset, tensor.bytes)
}

fn read_pages(tensor: &PagedTensor) -> Option<Pages> {
    pages_of(tensor).filter(|_| tensor.read)
}

/// Pages from which several tensors are read.
fn shared_pages(tensors: &[PagedTensor]) -> Vec<Pages> {
    let mut shared = Vec::new();
    let mut last: Option<Pages> = None;
    for pages in tensors.iter().filter_map(read_pages) {
        if let Some(last) = last.filter(|last| last.overlaps(&pages)) {
            shared.push(Pages { end: last.end.min(pages.end), ..pages });
        }
        let reaches_further = last.is_none_or(|last| (last.file, last.end) < (pages.file, pages.end));
        last = if reaches_further { Some(pages) } else { last };
    }
    union(shared)
}

fn is_alone(tensor: &PagedTensor, shared: &[Pages]) -> bool {
    pages_of(tensor).is_some_and(|pages| !tensor.read || !shared.iter().any(|other| other.overlaps(&pages)))
}

/// The tensors around the one at `index` that can have a page with it.
fn neighbourhood(tensors: &[PagedTensor], index: usize) -> impl Iterator<Item = usize> + '_ {
    let own = pages_of(&tensors[index]);
    let touches = move |other: &usize| {
        own.is_some_and(|own| pages_of(&tensors[*other]).is_none_or(|pages| pages.overlaps(&own)))
    };
    let before = (0..index).rev().take_while(touches);
    let after = (index + 1..tensors.len()).take_while(touches);
    before.chain(after)
}

fn resident(snapshot: &Snapshot<'_>, pages: &[Pages]) -> u64 {
    pages.iter().map(|pages| snapshot.resident.bytes_of(pages)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::inventory::PAGE;
    use crate::residency::profile::Profile;
    use crate::residency::resident::Resident;
    use proptest::prelude::*;

    fn tensors(sizes: &[(u64, bool)], layers: u32) -> Vec<PagedTensor> {
        let mut offset = 1234 * 32;
        let each = (sizes.len() as u32 / layers.max(1)).max(1);
        let tensor = |(index, &(bytes, read)): (usize, &(u64, bool))| {
            let layer = Some(index as u32 / each).filter(|&layer| layer < layers);
            let tensor = PagedTensor { name: format!("t{index}"), layer, file: 0, offset, bytes, read };
            offset += bytes.next_multiple_of(32);
            tensor
        };
        sizes.iter().enumerate().map(tensor).collect()
    }

    fn all_resident(tensors: &[PagedTensor]) -> Resident {
        let pages = tensors.last().map_or(0, |last| (last.offset + last.bytes).div_ceil(PAGE));
        let words = (0..pages.div_ceil(64)).map(|word| match pages - word * 64 {
            left @ 1..64 => u64::MAX >> (64 - left),
            _ => u64::MAX,
        });
        let mut resident = Resident::none(1);
        resident.set(0, 0, words.collect());
        resident
    }

    fn snapshot<'a>(tensors: &'a [PagedTensor], resident: &'a Resident, target: u64) -> Snapshot<'a> {
        Snapshot {
            generation: 7,
            tensors,
            resident,
            anonymous_bytes: 0,
            target_bytes: Some(target),
            reserve_bytes: 0,
            profile: Err("no profile".to_owned()),
        }
    }

    #[test]
    fn memory_bound_takes_dead_pages_first_and_the_first_layers_last() {
        let tensors = tensors(&[(9 * PAGE, true), (9 * PAGE, true), (9 * PAGE, false), (9 * PAGE, true)], 2);
        let resident = all_resident(&tensors);
        let chosen = |target| release(Rule::MemoryBound, &snapshot(&tensors, &resident, target)).selected;
        let all = resident.bytes();
        assert_eq!(chosen(all), [] as [usize; 0]);
        assert_eq!(chosen(all - 1), [2]);
        assert_eq!(chosen(all - 10 * PAGE), [2, 3]);
        assert_eq!(chosen(all - 20 * PAGE), [1, 2, 3]);
        assert_eq!(chosen(0), [0, 1, 2, 3]);
    }

    #[test]
    fn conservative_says_when_every_tensor_shares_a_page() {
        let small = tensors(&[(PAGE + 100, true), (PAGE + 100, true), (300, true)], 1);
        let resident = all_resident(&small);
        let plan = release(Rule::Conservative, &snapshot(&small, &resident, 0));
        assert!(plan.selected.is_empty() && plan.pages.is_empty());
        assert!(plan.reason.unwrap().contains("every tensor shares a page"));
    }

    #[test]
    fn reuse_aware_releases_what_is_needed_latest_or_says_why_it_cannot() {
        let tensors = tensors(&[(9 * PAGE, true); 3], 0);
        let resident = all_resident(&tensors);
        let mut snapshot = snapshot(&tensors, &resident, resident.bytes() - 1);
        let plan = release(Rule::ReuseAware, &snapshot);
        assert_eq!((plan.profile_used, plan.reason.as_deref()), (Some(false), Some("no profile")));
        let reads: [Box<str>; 3] = ["t1".into(), "t2".into(), "t0".into()];
        let profile = Profile::new([(0, &reads[..1]), (1, &reads[1..2]), (2, &reads[2..])]);
        snapshot.profile = Ok(&profile);
        let plan = release(Rule::ReuseAware, &snapshot);
        assert_eq!((plan.profile_used, plan.selected), (Some(true), vec![0]));
    }

    #[test]
    fn prefetch_takes_layers_in_order_and_every_page_once() {
        let tensors = tensors(&[(3 * PAGE, true), (PAGE / 2, true), (5 * PAGE, true), (9 * PAGE, true)], 3);
        let resident = Resident::none(1);
        let plan = prefetch(&snapshot(&tensors, &resident, 0), 7 * PAGE + 5);
        assert_eq!(plan.bytes(), 7 * PAGE);
        assert_eq!(plan.selected, [0, 1, 2]);
        assert_eq!(plan.pages.len(), 1);
    }

    proptest! {
        #[test]
        fn plans_keep_their_bounds(
            sizes in proptest::collection::vec((0_u64..60_000, proptest::bool::weighted(0.8)), 1..40),
            layers in 0_u32..6,
            share in 0_u64..=100,
            rule in prop_oneof![Just(Rule::Conservative), Just(Rule::MemoryBound), Just(Rule::ReuseAware)],
        ) {
            let tensors = tensors(&sizes, layers);
            let resident = all_resident(&tensors);
            let target = resident.bytes() * share / 100;
            let snapshot = snapshot(&tensors, &resident, target);
            let plan = release(rule, &snapshot);
            prop_assert_eq!(&plan, &release(rule, &snapshot));
            prop_assert_eq!(plan.generation, 7);

            // Sorted, disjoint, page-aligned, within the file, and never another tensor's.
            let end = tensors.last().map_or(0, |last| (last.offset + last.bytes).next_multiple_of(PAGE));
            for pages in &plan.pages {
                prop_assert!(pages.start % PAGE == 0 && pages.end % PAGE == 0 && pages.start < pages.end);
                prop_assert!(pages.end <= end);
            }
            prop_assert!(plan.pages.windows(2).all(|pair| pair[0].end < pair[1].start));
            for (index, tensor) in tensors.iter().enumerate() {
                let touched = plan.pages.iter().any(|pages| pages_of(tensor).is_some_and(|own| own.overlaps(pages)));
                prop_assert!(!touched || !tensor.read || plan.selected.contains(&index));
            }

            // The tensors' bytes on those pages are no more than the tensors have, and no more is released
            // than the target asks for, but for a part of the last tensor.
            let around_selected: u64 = plan.selected.iter().filter_map(|&i| pages_of(&tensors[i])).map(|p| p.bytes()).sum();
            prop_assert!(plan.bytes() <= around_selected);
            let largest = plan.selected.iter().map(|&i| tensors[i].bytes + 2 * PAGE).max().unwrap_or(0);
            prop_assert!(plan.bytes() < snapshot.excess_bytes() + largest.max(1));
            prop_assert_eq!(plan.estimate_bytes, resident.bytes() - plan.bytes());

            let bound = target;
            let reading = prefetch(&snapshot, bound);
            prop_assert!(reading.bytes() <= bound);
            prop_assert!(reading.pages.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
