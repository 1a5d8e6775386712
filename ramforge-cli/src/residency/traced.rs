//! The trace of the graph: its report, and the profile that it gives.

use std::time::Duration;

use forge_core::trace::{Event, Execution, Trace};

use super::profile::Profile;
use crate::report::{GraphExecution, GraphNode, GraphTrace, LastUse};

/// The report of a trace; with `detail` each node is in it.
pub fn report(trace: &Trace, detail: bool) -> GraphTrace {
    let last_uses = last_uses(trace);
    GraphTrace {
        complete: trace.dropped == 0 && trace.execution_count > 0,
        executions: trace.execution_count,
        events: trace.events.len() as u64,
        dropped_events: trace.dropped,
        graphs: trace.executions.iter().map(execution).collect(),
        reason: last_uses.as_ref().err().cloned(),
        last_uses: last_uses.unwrap_or_default(),
        nodes: if detail { trace.events.iter().map(node).collect() } else { Vec::new() },
    }
}

/// The profile of the last complete execution for one token.
///
/// # Errors
/// Why there is none.
pub fn profile(trace: &Trace) -> Result<Profile, String> {
    let execution = evidence(trace)?;
    Ok(Profile::new(trace.events_of(execution.number).map(|event| (event.index, &*event.sources))))
}

/// Only an execution of which nothing was dropped is evidence; graphs for several tokens differ.
fn evidence(trace: &Trace) -> Result<&Execution, String> {
    let complete =
        trace.executions.iter().rev().find(|execution| execution.tokens == 1 && execution.is_complete());
    complete.ok_or_else(|| match trace.executions.iter().find(|execution| execution.dropped > 0) {
        Some(cut) => format!(
            "the trace is incomplete: it has room for {} of the graph's {} nodes",
            cut.nodes - cut.dropped,
            cut.nodes
        ),
        None => "no graph for one token has been traced yet".to_owned(),
    })
}

/// Weights are what no node of the execution computes and whose name ends as tensors of files do.
fn last_uses(trace: &Trace) -> Result<Vec<LastUse>, String> {
    let execution = evidence(trace)?;
    let events: Vec<&Event> = trace.events_of(execution.number).collect();
    let profile = profile(trace)?;
    let is_weight = |name: &str| name.ends_with(".weight") || name.ends_with(".bias");
    let mut names: Vec<&str> = events
        .iter()
        .flat_map(|event| &event.sources)
        .map(|name| &**name)
        .filter(|name| is_weight(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    let last_use = |name: &str| {
        let index = profile.last_use(name)?;
        let node = events.iter().find(|event| event.index == index)?;
        Some(LastUse { weight: name.to_owned(), index, node: node.name.to_string() })
    };
    Ok(names.into_iter().filter_map(last_use).collect())
}

fn execution(execution: &Execution) -> GraphExecution {
    GraphExecution {
        number: execution.number,
        phase: if execution.tokens > 1 { "prompt" } else { "decode" }.to_owned(),
        tokens: execution.tokens as u64,
        nodes: execution.nodes,
        dropped: execution.dropped,
        started_ms: milliseconds(execution.started),
        elapsed_ms: execution.elapsed.map(milliseconds),
        complete: execution.is_complete(),
    }
}

fn node(event: &Event) -> GraphNode {
    GraphNode {
        execution: event.execution,
        index: event.index,
        name: event.name.to_string(),
        operation: event.operation.to_owned(),
        sources: event.sources.iter().map(ToString::to_string).collect(),
        bytes: event.bytes,
        elapsed_ms: event.elapsed.map(milliseconds),
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
