//! When each unit is needed: the planned graph's nodes, with the units each one uses first and last.

use std::collections::HashMap;
use std::ffi::CStr;

use super::experts;
use super::plan::Unit;
use crate::graph::{ChosenExperts, PlannedNode};

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
    /// Whether its result names experts.
    pub(super) names_experts: bool,
    /// The experts that are used here and not before.
    pub(super) experts: Option<ExpertUse>,
}

/// Experts of several units with the same numbers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExpertUse {
    /// The step that names them.
    pub(super) named_by: usize,
    /// How many of each unit a token uses.
    pub(super) for_a_token: usize,
    /// Positions of the units in the order.
    pub(super) positions: Vec<usize>,
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
        let mut choices: HashMap<usize, usize> = HashMap::new();
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
            steps.push(Step {
                name: node.name.clone(),
                begun: order.len(),
                ends: Vec::new(),
                names_experts: false,
                experts: None,
            });
            let unit = node.reads.first().and_then(|address| unit_of.get(address));
            let position = unit.filter(|&&unit| units[unit].expert_bytes.is_some());
            let position = position.and_then(|unit| order.iter().position(|other| other == unit));
            if let (Some(chosen), Some(position)) = (node.experts, position) {
                let first = *choices.entry(chosen.by).or_insert(index);
                let ChosenExperts { by: named_by, for_a_token } = chosen;
                let none = ExpertUse { named_by, for_a_token, positions: Vec::new() };
                steps[first].experts.get_or_insert(none).positions.push(position);
                steps[named_by].names_experts = true;
            }
        }
        for (position, unit) in order.iter().enumerate() {
            steps[last_use[unit]].ends.push(position);
        }
        Self { steps, order }
    }

    /// The most bytes of experts that a token uses at once.
    pub(super) fn most_expert_bytes(&self, units: &[Unit]) -> usize {
        let bytes = |used: &ExpertUse| {
            let units = used.positions.iter().map(|&position| &units[self.order[position]]);
            units.map(|unit| experts::most_bytes(unit, used.for_a_token)).sum()
        };
        self.steps.iter().filter_map(|step| step.experts.as_ref()).map(bytes).max().unwrap_or(0)
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
        PlannedNode {
            name: name.into(),
            computes_nothing: false,
            reads_rows: false,
            experts: None,
            reads: reads.to_vec(),
        }
    }

    fn unit(tensors: &[usize], pages: usize) -> Unit {
        let region = Region { file: 0, offset: 0, address: 0, bytes: pages * PAGE_BYTES };
        Unit { regions: vec![region], tensors: tensors.to_vec(), ..Unit::default() }
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
        assert_eq!(schedule.most_expert_bytes(&units), 0);
    }

    #[test]
    fn experts_are_needed_where_the_first_node_with_their_choice_is() {
        let chosen = |by, name, reads: &[usize]| PlannedNode {
            experts: Some(ChosenExperts { by, for_a_token: 2 }),
            ..node(name, reads)
        };
        let nodes = [
            node(c"q", &[10]),
            node(c"numbers", &[]),
            chosen(1, c"gate", &[20]),
            chosen(1, c"up", &[30]),
            chosen(0, c"other", &[40]),
            chosen(1, c"down", &[50]),
        ];
        let experts = |address| Unit { expert_bytes: Some(PAGE_BYTES), ..unit(&[address], 8) };
        let units = [experts(50), experts(20), unit(&[10], 1), experts(30)];
        let schedule = Schedule::new(&nodes, &units);
        assert_eq!(schedule.order, [2, 1, 3, 0]);
        let names: Vec<bool> = schedule.steps.iter().map(|step| step.names_experts).collect();
        assert_eq!(names, [false, true, false, false, false, false]);
        let uses =
            schedule.steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.experts.as_ref()?)));
        // The matrix at 40 is no unit: it is in memory.
        let used = ExpertUse { named_by: 1, for_a_token: 2, positions: vec![1, 2, 3] };
        assert_eq!(uses.collect::<Vec<_>>(), [(2, &used)]);
        // Two experts of three tensors, each a page that may lie across two.
        assert_eq!(schedule.most_expert_bytes(&units), 3 * 2 * 2 * PAGE_BYTES);
    }
}
