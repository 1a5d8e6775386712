//! Which units are streamed: as few bytes as a token can read, spread over the depth.

use super::Unit;

/// Chooses at least `bytes` bytes of `units` to stream, and little more, evenly spread over their order of use.
/// Experts are streamed first: a token reads few of them. Units much larger than the others are streamed last: they
/// would need a larger pool.
pub(super) fn spread(units: &[Unit], bytes: u64) -> Vec<Unit> {
    let mut in_order: Vec<&Unit> = units.iter().collect();
    in_order.sort_by_key(|unit| unit.used);
    let typical = in_order.iter().filter(|unit| unit.layer.is_some()).map(|unit| unit.page_bytes()).max();
    let is_large = |unit: &Unit| typical.is_some_and(|typical| unit.page_bytes() > typical + typical / 2);
    let kind = |unit: &Unit| match unit.experts {
        Some(_) => Kind::Experts,
        None if is_large(unit) => Kind::Large,
        None => Kind::Ordinary,
    };

    let mut streamed: Vec<bool> = vec![false; in_order.len()];
    let mut missing = bytes;
    for wanted in [Kind::Experts, Kind::Ordinary] {
        let all = in_order.iter().filter(|unit| kind(unit) == wanted).map(|unit| unit.page_bytes()).sum();
        let from_these = missing.min(all);
        missing -= from_these;
        // Bresenham's line: the share of bytes chosen so far stays as close as it can to the share wanted.
        let mut owed: i128 = 0;
        for (chosen, unit) in streamed.iter_mut().zip(&in_order).filter(|(_, unit)| kind(unit) == wanted) {
            let size = i128::from(unit.page_bytes());
            owed += size * i128::from(from_these) / i128::from(all.max(1));
            if owed * 2 >= size {
                *chosen = true;
                owed -= size;
            }
        }
    }
    for (chosen, unit) in streamed.iter_mut().zip(&in_order) {
        if kind(unit) == Kind::Large && missing > 0 {
            *chosen = true;
            missing = missing.saturating_sub(unit.page_bytes());
        }
    }
    settle(&in_order, &mut streamed, bytes);
    in_order.iter().zip(&streamed).filter(|(_, chosen)| **chosen).map(|(unit, _)| (*unit).clone()).collect()
}

/// Units that are streamed in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Experts,
    Ordinary,
    Large,
}

/// Streams more units until `bytes` are reached, the one that costs a token least first, and then pins every unit that
/// is more than needed, the one that costs most first.
fn settle(units: &[&Unit], streamed: &mut [bool], bytes: u64) {
    let total = |streamed: &[bool]| -> u64 {
        units.iter().zip(streamed).filter(|(_, chosen)| **chosen).map(|(unit, _)| unit.page_bytes()).sum()
    };
    loop {
        let missing = bytes.saturating_sub(total(streamed));
        if missing == 0 {
            break;
        }
        let pinned = || (0..units.len()).filter(|&index| !streamed[index]);
        let enough = pinned().filter(|&index| units[index].page_bytes() >= missing);
        let next = enough
            .min_by_key(|&index| units[index].token_bytes())
            .or_else(|| pinned().max_by_key(|&index| units[index].page_bytes()));
        match next {
            Some(index) => streamed[index] = true,
            None => break,
        }
    }
    loop {
        let spare = total(streamed).saturating_sub(bytes);
        let fits = |&index: &usize| streamed[index] && units[index].page_bytes() <= spare;
        match (0..units.len()).filter(fits).max_by_key(|&index| units[index].token_bytes()) {
            Some(index) => streamed[index] = false,
            None => break,
        }
    }
}
