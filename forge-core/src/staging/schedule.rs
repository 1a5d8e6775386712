//! When each unit is needed: the planned graph's nodes, with the units each one uses first and last.

use std::collections::HashMap;
use std::ffi::CStr;

use super::plan::Unit;
use crate::graph::PlannedNode;

/// The nodes of a graph and the units they use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) steps: Vec<Step>,
    /// The units, in the order of their first use.
    pub(super) order: Vec<usize>,
}

/// One node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) name: Box<CStr>,
    /// How many units are used for the first time here or before.
    pub(super) begun: usize,
    /// Positions in the order of the units whose last use is here.
    pub(super) ends: Vec<usize>,
}

impl Schedule {
    /// Finds the first and last use of each unit. Operations that read single rows, or nothing, use nothing.
    pub(super) fn new(nodes: &[PlannedNode], units: &[Unit]) -> Self {
        let mut unit_of = HashMap::new();
        for (index, unit) in units.iter().enumerate() {
            for &address in &unit.tensors {
                unit_of.insert(address, index);
            }
        }
        let mut order = Vec::new();
        let mut last_use = HashMap::new();
        let mut steps: Vec<Step> = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            for (source, address) in node.reads.iter().enumerate() {
                let unused = node.computes_nothing || (node.reads_rows && source == 0);
                let unit = unit_of.get(address).filter(|_| !unused);
                if let Some(&unit) = unit
                    && last_use.insert(unit, index).is_none()
                {
                    order.push(unit);
                }
            }
            steps.push(Step { name: node.name.clone(), begun: order.len(), ends: Vec::new() });
        }
        for (position, unit) in order.iter().enumerate() {
            steps[last_use[unit]].ends.push(position);
        }
        Self { steps, order }
    }

    /// The most blocks that are in use at once, when each unit is there from its first to its last use.
    pub(super) fn most_blocks(&self, units: &[Unit], block_bytes: usize) -> usize {
        let blocks: Vec<usize> = self.order.iter().map(|&unit| units[unit].blocks(block_bytes)).collect();
        let mut held = 0;
        let mut most = 0;
        let mut begun = 0;
        for step in &self.steps {
            held += blocks[begun..step.begun].iter().sum::<usize>();
            begun = step.begun;
            most = most.max(held);
            held -= step.ends.iter().map(|&position| blocks[position]).sum::<usize>();
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{PAGE_BYTES, Region};
    use super::*;

    fn node(name: &CStr, reads: &[usize]) -> PlannedNode {
        PlannedNode { name: name.into(), computes_nothing: false, reads_rows: false, reads: reads.to_vec() }
    }

    fn unit(tensors: &[usize], pages: usize) -> Unit {
        let region = Region { file: 0, offset: 0, address: 0, bytes: pages * PAGE_BYTES };
        Unit { regions: vec![region], tensors: tensors.to_vec(), rows: false }
    }

    #[test]
    fn units_are_ordered_by_first_use_and_end_at_their_last() {
        let rows = PlannedNode { reads_rows: true, ..node(c"embd", &[30]) };
        let view = PlannedNode { computes_nothing: true, ..node(c"view", &[10]) };
        let nodes =
            [rows, view, node(c"a", &[20]), node(c"b", &[10, 5]), node(c"c", &[21]), node(c"d", &[30])];
        let units = [unit(&[10], 1), unit(&[20, 21], 2), unit(&[30], 4)];
        let schedule = Schedule::new(&nodes, &units);
        assert_eq!(schedule.order, [1, 0, 2]);
        let begun: Vec<usize> = schedule.steps.iter().map(|step| step.begun).collect();
        assert_eq!(begun, [0, 0, 1, 2, 2, 3]);
        let ends: Vec<&[usize]> = schedule.steps.iter().map(|step| step.ends.as_slice()).collect();
        assert_eq!(ends, [&[][..], &[], &[], &[1], &[0], &[2]]);
        assert_eq!(schedule.most_blocks(&units, PAGE_BYTES), 4);
    }
}
