//! Units: neighbouring tensors of a layer that are read, used and given back together.

use super::{Experts, Pages, Weight};

/// Tensors smaller than this are not worth a read of their own.
const SMALLEST: u64 = 64 << 10;

/// Weights that are streamed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The whole pages that hold nothing but its weights.
    pub pages: Pages,
    /// The weights, by their index.
    pub weights: Vec<usize>,
    /// The first and the last node that uses any of them.
    pub used: (usize, usize),
    /// The layer, if it belongs to one.
    pub layer: Option<u32>,
    /// The matrices it consists of, if a token uses only some of them.
    pub experts: Option<Experts>,
}

impl Unit {
    /// Bytes read for it in a pass for more than one token.
    pub const fn page_bytes(&self) -> u64 {
        self.pages.bytes()
    }

    /// Bytes read for it in a pass for one token.
    pub const fn token_bytes(&self) -> u64 {
        match self.experts {
            Some(experts) => experts.share(self.page_bytes()),
            None => self.page_bytes(),
        }
    }
}

/// Cuts the weights into units: neighbours in the file and of one layer, or one matrix, are joined as long as they
/// are no larger than `most` bytes, so that 0 makes a unit of each weight. Experts stay alone. Tensors that are small and alone, or that no
/// node reads whole, are in no unit.
pub fn units(weights: &[Weight], most: u64) -> Vec<Unit> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&index| (weights[index].file, weights[index].offset));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in order {
        let weight = &weights[index];
        if weight.used.is_none() {
            continue;
        }
        let joins = groups.last().is_some_and(|group| {
            let (first, last) = (&weights[group[0]], &weights[group[group.len() - 1]]);
            let together = weight.layer.is_some() && last.layer == weight.layer;
            (together || last.tensor == weight.tensor)
                && weight.experts.is_none()
                && last.experts.is_none()
                && last.file == weight.file
                // The writer may pad between tensors, by less than a page.
                && weight.offset - last.end() < crate::residency::inventory::PAGE
                && weight.end() - first.offset <= most
        });
        match groups.last_mut().filter(|_| joins) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups.into_iter().filter_map(|group| unit(weights, group)).collect()
}

fn unit(weights: &[Weight], group: Vec<usize>) -> Option<Unit> {
    let (first, last) = (&weights[*group.first()?], &weights[*group.last()?]);
    let pages = Pages::within(first.file, first.offset, last.end())?;
    let uses = || group.iter().filter_map(|&index| weights[index].used);
    let used = (uses().map(|used| used.0).min()?, uses().map(|used| used.1).max()?);
    let (layer, experts) = (first.layer, first.experts);
    (pages.bytes() >= SMALLEST).then_some(Unit { pages, used, layer, experts, weights: group })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(offset: u64, bytes: u64, layer: u32, node: usize) -> Weight {
        let tensor = offset as usize;
        let (layer, used) = (Some(layer), Some((node, node)));
        Weight { file: 0, tensor, offset, bytes, layer, used, rows: false, experts: None }
    }

    #[test]
    fn neighbours_of_a_layer_are_joined_up_to_the_size() {
        const M: u64 = 1 << 20;
        let weights = [
            weight(0, M, 0, 5),
            weight(M, 100, 0, 1),
            weight(M + 128, M, 0, 3),
            weight(2 * M + 128, M, 1, 9),
            weight(3 * M + 128, 100, 1, 8),
        ];
        let joined = units(&weights, 4 * M);
        assert_eq!(
            joined.iter().map(|unit| unit.weights.clone()).collect::<Vec<_>>(),
            [vec![0, 1, 2], vec![3, 4]]
        );
        assert_eq!(joined[0].used, (1, 5));
        let single = units(&weights, 0);
        assert_eq!(
            single.iter().map(|unit| unit.weights.clone()).collect::<Vec<_>>(),
            [vec![0], vec![2], vec![3]]
        );
    }
}
