//! The policy that streams: what is pinned, what is read in every pass, and with how large a pool.
//!
//! A pass over the graph is a cyclic scan of the weights, which defeats every cache that keeps what was used
//! last. A fixed set of pinned weights is optimal for it: bytes read per pass = weights − pinned. What is left
//! to decide is how to cut the weights into units (small units leave less over and need a smaller pool), and
//! which of them to pin (spread over the depth, so that reading hides behind computing).
//!
//! Pure: facts in, choice out, the same for the same facts.

use std::collections::HashMap;

use super::inventory::PAGE;

mod pages;
mod split;
mod spread;
mod units;

pub use pages::{Pages, pinned_pages};
pub use split::{piece_rows, pieces};
use spread::spread;
pub use units::{Unit, units};

/// A tensor, or a piece of one that is computed in pieces, as far as streaming is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The file that has it.
    pub file: usize,
    /// The tensor it is, or is a piece of.
    pub tensor: usize,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its layer, if it belongs to one.
    pub layer: Option<u32>,
    /// The first and the last node of the graph that reads all of it.
    pub used: Option<(usize, usize)>,
    /// Whether a node reads single rows of it.
    pub rows: bool,
    /// The matrices it consists of, if a token uses only some of them.
    pub experts: Option<Experts>,
}

/// Matrices of one size in a tensor, of which a token uses some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Matrices.
    pub count: u64,
    /// Those that a token uses.
    pub used: u64,
}

impl Experts {
    /// `used` of the `count` matrices in a tensor of `bytes` bytes; nothing when that is no choice.
    pub fn new(bytes: u64, count: u64, used: u64) -> Option<Self> {
        (used > 0 && used < count && bytes.is_multiple_of(count)).then_some(Self { count, used })
    }

    /// The bytes of those that a token uses, of all `bytes`.
    const fn share(self, bytes: u64) -> u64 {
        (bytes as u128 * self.used as u128 / self.count as u128) as u64
    }
}

impl Weight {
    /// The byte in the file after its last one.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Bytes of a huge page. A read into small ones is half as fast.
const HUGE_PAGE: u64 = 2 << 20;

/// What a machine is good at; the defaults were measured (see `ramforge bench`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    /// Bytes of a block of the pool.
    pub block_bytes: u64,
    /// Most bytes in one read.
    pub read_bytes: u64,
    /// Reads under way at once.
    pub readers: u64,
}

impl Default for Means {
    fn default() -> Self {
        Self { block_bytes: 2 << 20, read_bytes: 4 << 20, readers: 3 }
    }
}

impl Means {
    /// For budgets in which the reads under way are little.
    pub const LARGE: Self = Self { block_bytes: 2 << 20, read_bytes: 4 << 20, readers: 6 };

    /// For budgets in which a block of the usual size is much.
    pub const SMALL: Self = Self { block_bytes: 256 << 10, read_bytes: 1 << 20, readers: 3 };
}

/// What the policy chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Units that are read in every pass, in the order of their first use.
    pub streamed: Vec<Unit>,
    /// Pages that are in memory from the start, sorted and disjoint.
    pub pinned: Vec<Pages>,
    /// Units that stay in memory from one of their first uses on, in the order of use.
    pub kept: Vec<Unit>,
    /// Pages of which single rows are read through the mapping.
    pub rows: Vec<Pages>,
    /// Pages too large for any pool, left to the kernel's paging.
    pub paged: Vec<Pages>,
    /// Blocks of the pool.
    pub blocks: u64,
    /// Bytes of memory for the experts of a token.
    pub experts_bytes: u64,
    /// The means.
    pub means: Means,
}

impl Choice {
    /// Bytes of memory pinned, in the end.
    pub fn pinned_bytes(&self) -> u64 {
        let kept: u64 = self.kept.iter().map(Unit::page_bytes).sum();
        self.pinned.iter().map(Pages::bytes).sum::<u64>() + kept
    }

    /// Bytes read in every pass for more than one token.
    pub fn streamed_bytes(&self) -> u64 {
        self.streamed.iter().map(Unit::page_bytes).sum()
    }

    /// Bytes read in a pass for one token: of experts, those that it uses.
    pub fn token_bytes(&self) -> u64 {
        self.streamed.iter().map(Unit::token_bytes).sum()
    }

    /// Bytes read for a token, by us or by the kernel's paging, whose bytes count double: it reads less at
    /// once, and some of them twice.
    fn read_bytes(&self) -> u64 {
        self.token_bytes() + 2 * self.paged.iter().map(Pages::bytes).sum::<u64>()
    }

    /// Bytes of the memory that weights pass through.
    pub const fn pool_bytes(&self) -> u64 {
        self.blocks * self.means.block_bytes + self.experts_bytes
    }
}

/// Chooses for weights in `budget` bytes, which the pinned pages and the pool must not exceed.
///
/// # Errors
/// The smallest budget that would do.
pub fn choose(weights: &[Weight], budget: u64) -> Result<Choice, u64> {
    // Larger units mean fewer stops of the computation and longer reads, smaller ones a smaller pool.
    let cuts = [
        (Means::LARGE, 16 << 20),
        (Means::default(), 4 << 20),
        (Means::default(), 0),
        (Means::SMALL, 4 << 20),
        (Means::SMALL, 0),
    ];
    let mut best: Option<Choice> = None;
    let mut smallest = u64::MAX;
    let mut consider = |choice: Result<Choice, u64>| match choice {
        // Two in a hundred fewer bytes to read are worth more stops.
        Ok(choice) if best.as_ref().is_none_or(|best| choice.read_bytes() < best.read_bytes() / 50 * 49) => {
            best = Some(choice);
        }
        Ok(_) => {}
        Err(needed) => smallest = smallest.min(needed),
    };
    for (means, together) in cuts {
        consider(choose_from(weights, units(weights, together), &[], means, budget));
    }
    let (giants, rest) = without_giants(weights, budget);
    if !giants.is_empty() {
        consider(choose_from(weights, rest, &giants, Means::SMALL, budget));
    }
    best.ok_or(smallest)
}

/// The units without matrices outside the layers (output, embedding) that are larger than half the budget. Those
/// can be left to the kernel's paging: they are used once a pass, from one end to the other.
fn without_giants(weights: &[Weight], budget: u64) -> (Vec<Pages>, Vec<Unit>) {
    let (giants, rest): (Vec<Unit>, Vec<Unit>) = units(weights, 0)
        .into_iter()
        .partition(|unit| unit.layer.is_none() && unit.page_bytes() > budget / 2);
    (giants.iter().map(|unit| unit.pages).collect(), rest)
}

/// Chooses among the units `cut`; `paged` belongs to no unit and is not in memory either.
fn choose_from(
    weights: &[Weight],
    cut: Vec<Unit>,
    paged: &[Pages],
    means: Means,
    budget: u64,
) -> Result<Choice, u64> {
    let rows = row_pages(weights, &cut, paged);
    let excluded = |streamed: &[Unit]| -> Vec<Pages> {
        streamed
            .iter()
            .map(|unit| unit.pages)
            .chain(rows.iter().copied())
            .chain(paged.iter().copied())
            .collect()
    };
    // What is pinned whatever is chosen: everything that is in no unit.
    let always: u64 = pinned_pages(weights, &excluded(&cut)).iter().map(Pages::bytes).sum();
    let all: u64 = cut.iter().map(Unit::page_bytes).sum();
    if budget.checked_sub(always).is_some_and(|room| room >= all) {
        let pinned = pinned_pages(weights, &excluded(&[]));
        return Ok(Choice {
            streamed: Vec::new(),
            pinned,
            kept: Vec::new(),
            rows,
            paged: paged.to_vec(),
            blocks: 0,
            experts_bytes: 0,
            means,
        });
    }
    let experts_bytes = experts_bytes(weights, &cut);
    let room_for = |pool: u64| budget.checked_sub(always + experts_bytes + pool);
    // The pool that would do for all units does for any of them.
    let mut blocks = pool_blocks(&cut, means);
    let missing = |blocks: u64| Some(all.saturating_sub(room_for(blocks * means.block_bytes)?));
    let needed = always + experts_bytes + blocks * means.block_bytes;
    let mut streamed = spread(&cut, missing(blocks).ok_or(needed)?);
    // Without the largest units it may be smaller, which leaves more room.
    loop {
        let fewer = pool_blocks(&streamed, means);
        let Some(again) = missing(fewer).map(|bytes| spread(&cut, bytes)) else { break };
        if fewer >= blocks || pool_blocks(&again, means) > fewer {
            break;
        }
        (blocks, streamed) = (fewer, again);
    }
    streamed.sort_by_key(|unit| unit.used);
    let kept = kept(weights, &cut, &streamed, blocks, means);
    let pinned = pinned_pages(weights, &excluded(&[streamed.as_slice(), &kept].concat()));
    Ok(Choice { streamed, pinned, kept, rows, paged: paged.to_vec(), blocks, experts_bytes, means })
}

/// The most that the experts of a token take in a layer, each in pages of its own.
fn experts_bytes(weights: &[Weight], cut: &[Unit]) -> u64 {
    let mut layers: HashMap<Option<u32>, u64> = HashMap::new();
    for unit in cut {
        if let (Some(experts), [weight]) = (unit.experts, &unit.weights[..]) {
            let one = (weights[*weight].bytes / experts.count).next_multiple_of(PAGE) + PAGE;
            *layers.entry(unit.layer).or_default() += (experts.used * one).min(unit.page_bytes());
        }
    }
    layers.into_values().max().unwrap_or(0)
}

/// The units that are not streamed, as far as they can be until there is memory for them: the pool must do for
/// them too. The first pass then reads every weight once, as fast as the disk gives it.
fn kept(weights: &[Weight], cut: &[Unit], streamed: &[Unit], blocks: u64, means: Means) -> Vec<Unit> {
    let largest = streamed.iter().map(Unit::page_bytes).max().unwrap_or(0);
    let fits = |unit: &&Unit| {
        unit.page_bytes() <= largest
            && !streamed.contains(unit)
            && unit.weights.iter().all(|&index| !weights[index].rows)
    };
    let mut kept: Vec<Unit> = cut.iter().filter(fits).cloned().collect();
    kept.sort_by_key(|unit| unit.used);
    if pool_blocks(&[streamed, &kept].concat(), means) > blocks {
        kept.clear();
    }
    kept
}

/// Whole pages of tensors that are only read by rows.
fn row_pages(weights: &[Weight], cut: &[Unit], paged: &[Pages]) -> Vec<Pages> {
    weights
        .iter()
        .filter(|weight| weight.rows && weight.used.is_none())
        .filter_map(Pages::inside)
        .filter(|pages| cut.iter().all(|unit| !unit.pages.overlaps(pages)))
        .filter(|pages| paged.iter().all(|giant| !giant.overlaps(pages)))
        .collect()
}

/// Blocks for what is in use at once, and for reading ahead of it: the largest unit of a layer again, or as much
/// as the readers can have under way. Together they are whole huge pages.
fn pool_blocks(units: &[Unit], means: Means) -> u64 {
    let blocks = |unit: &Unit| unit.pages.blocks(means.block_bytes);
    let mut edges: Vec<(usize, u8, u64)> = Vec::new();
    for unit in units {
        // A unit is there before its first node and until after its last.
        edges.push((unit.used.0, 0, blocks(unit)));
        edges.push((unit.used.1, 1, blocks(unit)));
    }
    edges.sort_unstable();
    let (mut held, mut most) = (0, 0);
    for (_, ends, blocks) in edges {
        if ends == 0 {
            held += blocks;
            most = most.max(held);
        } else {
            held -= blocks;
        }
    }
    let largest = units.iter().filter(|unit| unit.layer.is_some()).map(blocks).max().unwrap_or(0);
    let under_way = (means.readers * means.read_bytes).div_ceil(means.block_bytes);
    let huge = (HUGE_PAGE / means.block_bytes).max(1);
    if units.is_empty() { 0 } else { (most + largest.max(under_way)).next_multiple_of(huge) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Layers of two large tensors and a small one, an embedding read by rows, and an output matrix.
    fn model(layers: u32, large: u64, output: u64) -> Vec<Weight> {
        let mut weights = Vec::new();
        let mut offset = 4000;
        let mut add = |bytes, layer, used: Option<(usize, usize)>, rows| {
            let tensor = weights.len();
            weights.push(Weight { file: 0, tensor, offset, bytes, layer, used, rows, experts: None });
            offset += bytes;
        };
        add(output, None, None, true);
        for layer in 0..layers {
            let node = 1 + layer as usize * 10;
            add(4096 * 2 + 32, Some(layer), Some((node, node)), false);
            add(large, Some(layer), Some((node + 2, node + 2)), false);
            add(large / 3, Some(layer), Some((node + 5, node + 5)), false);
        }
        let end = 1 + layers as usize * 10;
        add(output, None, Some((end, end)), false);
        weights
    }

    fn memory(choice: &Choice) -> u64 {
        choice.pinned_bytes() + choice.pool_bytes()
    }

    #[test]
    fn a_budget_that_holds_everything_streams_nothing() {
        let weights = model(4, 3 << 20, 5 << 20);
        let choice = choose(&weights, 1 << 30).unwrap();
        assert!(choice.streamed.is_empty());
        assert_eq!(choice.blocks, 0);
    }

    #[test]
    fn streamed_units_are_spread_over_the_depth() {
        let weights = model(40, 30 << 20, 60 << 20);
        let choice = choose(&weights, 1100 << 20).unwrap();
        assert!(memory(&choice) <= 1100 << 20);
        assert!(memory(&choice) >= 1060 << 20, "{}", memory(&choice) >> 20);
        // Each quarter of the depth streams about a quarter of the bytes.
        let nodes = 401;
        for quarter in 0..4 {
            let share: u64 = choice
                .streamed
                .iter()
                .filter(|unit| unit.used.0 * 4 / nodes == quarter)
                .map(Unit::page_bytes)
                .sum();
            let all = choice.streamed_bytes();
            assert!(share * 100 > all * 20 && share * 100 < all * 30, "{quarter}: {share} of {all}");
        }
    }

    #[test]
    fn what_stays_is_streamed_first_without_a_larger_pool() {
        let weights = model(40, 30 << 20, 60 << 20);
        let choice = choose(&weights, 1100 << 20).unwrap();
        let kept: u64 = choice.kept.iter().map(Unit::page_bytes).sum();
        // Left are the small tensors, which are in no unit.
        assert!(kept * 100 > choice.pinned_bytes() * 90, "{kept} of {}", choice.pinned_bytes());
        let at_first = [choice.streamed.as_slice(), &choice.kept].concat();
        assert!(pool_blocks(&at_first, choice.means) <= choice.blocks);
    }

    #[test]
    fn experts_are_streamed_before_what_every_token_reads() {
        let mut weights = model(40, 30 << 20, 60 << 20);
        let large = weights.iter_mut().filter(|weight| weight.layer.is_some() && weight.bytes == 30 << 20);
        large.for_each(|weight| weight.experts = Experts::new(weight.bytes, 64, 4));
        let choice = choose(&weights, 1100 << 20).unwrap();
        assert!(choice.streamed.iter().all(|unit| unit.experts.is_some()));
        assert_eq!(choice.token_bytes(), choice.streamed_bytes() / 16);
        // Four of 480 KiB, which can lie across one page more.
        assert_eq!(choice.experts_bytes, 4 * (484 << 10));
        assert!(memory(&choice) <= 1100 << 20 && memory(&choice) >= 1060 << 20);
        let small = choose(&weights, 90 << 20).unwrap();
        assert!(small.streamed.iter().any(|unit| unit.experts.is_none()));
        assert_eq!(small.streamed.iter().filter(|unit| unit.experts.is_some()).count(), 40);
    }

    #[test]
    fn a_choice_of_all_experts_or_none_is_no_choice() {
        assert_eq!(Experts::new(64, 8, 2), Some(Experts { count: 8, used: 2 }));
        assert_eq!(Experts::new(64, 8, 8), None);
        assert_eq!(Experts::new(64, 8, 0), None);
        assert_eq!(Experts::new(63, 8, 2), None);
        assert_eq!(Experts::new(64, 0, 0), None);
    }

    #[test]
    fn a_budget_too_small_says_how_much_would_do() {
        let weights = model(10, 30 << 20, 1 << 20);
        let needed = choose(&weights, 1 << 20).unwrap_err();
        assert!(needed > 1 << 20);
        assert!(choose(&weights, needed).is_ok());
    }

    #[test]
    fn a_giant_is_left_to_paging_when_nothing_else_is_possible() {
        let weights = model(10, 3 << 20, 500 << 20);
        let choice = choose(&weights, 40 << 20).unwrap();
        assert_eq!(choice.paged.len(), 1);
        assert!(memory(&choice) <= 40 << 20);
    }

    proptest! {
        #[test]
        fn a_choice_never_exceeds_its_budget_and_covers_every_byte(
            layers in 1_u32..30,
            large in 10_000_u64..40_000_000,
            output in 10_000_u64..90_000_000,
            budget in 1_000_000_u64..2_000_000_000,
        ) {
            let weights = model(layers, large, output);
            if let Ok(choice) = choose(&weights, budget) {
                prop_assert!(memory(&choice) <= budget);
                let at_first = [choice.streamed.as_slice(), &choice.kept].concat();
                prop_assert!(pool_blocks(&at_first, choice.means) <= choice.blocks || choice.kept.is_empty());
                let mut all: Vec<Pages> = choice.pinned.clone();
                all.extend(choice.streamed.iter().chain(&choice.kept).map(|unit| unit.pages));
                all.extend(&choice.rows);
                all.extend(&choice.paged);
                all.sort();
                for pair in all.windows(2) {
                    prop_assert!(pair[0].end <= pair[1].start);
                }
                for weight in &weights {
                    let mut at = weight.offset;
                    for pages in &all {
                        if pages.start <= at && at < pages.end {
                            at = pages.end;
                        }
                    }
                    prop_assert!(at >= weight.end());
                }
            }
        }

        #[test]
        fn more_memory_is_never_worse(layers in 2_u32..20, budget in 80_000_000_u64..800_000_000) {
            let weights = model(layers, 25 << 20, 70 << 20);
            if let (Ok(less), Ok(more)) = (choose(&weights, budget), choose(&weights, budget + (64 << 20))) {
                let (more, less) = (more.read_bytes(), less.read_bytes());
                prop_assert!(more <= less, "{more} after {less}");
            }
        }
    }
}
