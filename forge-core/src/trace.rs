//! A bounded record of what the scheduler computes.

use std::mem;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::error::Result;
use crate::graph::{Node, Observer};

/// One node of one graph execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The execution, counted from 0.
    pub execution: u64,
    /// The node's place among those of its execution that compute something, counted from 0.
    pub index: u64,
    /// Its name, such as `ffn_out-3`.
    pub name: Box<str>,
    /// Its operation's native name, such as `MUL_MAT`.
    pub operation: &'static str,
    /// The names of what it reads; a view is named as the tensor it shows.
    pub sources: Box<[Box<str>]>,
    /// Bytes of its result.
    pub bytes: u64,
    /// How long it took; known only when nodes are computed one by one.
    pub elapsed: Option<Duration>,
}

/// One execution of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// Counted from 0.
    pub number: u64,
    /// Tokens of the batch it belongs to.
    pub tokens: usize,
    /// Nodes that compute something, recorded or not.
    pub nodes: u64,
    /// Those for which there was no room.
    pub dropped: u64,
    /// From the trace's start to the execution's.
    pub started: Duration,
    /// How long it took; `None` while it lasts.
    pub elapsed: Option<Duration>,
}

impl Execution {
    /// Whether every node was recorded and the execution came to its end.
    pub const fn is_complete(&self) -> bool {
        self.dropped == 0 && self.nodes > 0 && self.elapsed.is_some()
    }
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Executions of which at least one node was recorded, in order.
    pub executions: Vec<Execution>,
    /// Executions there were.
    pub execution_count: u64,
    /// The nodes, in the order in which they were computed.
    pub events: Vec<Event>,
    /// Nodes for which there was no room.
    pub dropped: u64,
}

impl Trace {
    /// The events of one execution.
    pub fn events_of(&self, execution: u64) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.execution == execution)
    }
}

/// Reads a trace while it grows.
#[derive(Clone, Debug)]
pub struct TraceHandle(Arc<Mutex<Trace>>);

impl TraceHandle {
    /// What has been recorded so far.
    pub fn read<R>(&self, reader: impl FnOnce(&Trace) -> R) -> R {
        reader(&lock(&self.0))
    }
}

fn lock(trace: &Mutex<Trace>) -> MutexGuard<'_, Trace> {
    trace.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records up to `room` nodes of what `context` decodes from now on. With `one_by_one` each node is computed
/// alone, which tells how long it takes and makes the whole slower. An observer that the context has already
/// goes on watching.
///
/// # Errors
/// [`crate::ErrorKind::Limit`] when the context was not made to be observed.
pub fn trace(context: &mut Context<'_>, room: usize, one_by_one: bool) -> Result<TraceHandle> {
    let trace = Arc::new(Mutex::new(Trace::default()));
    let tracer = |inner| Tracer {
        inner,
        inner_wants: false,
        trace: Arc::clone(&trace),
        room,
        one_by_one,
        origin: Instant::now(),
        tokens: 0,
        present: None,
        first: Box::default(),
        mark: Instant::now(),
    };
    if let Some(inner) = context.observe(Box::new(tracer(None)))? {
        context.observe(Box::new(tracer(Some(inner))))?;
    }
    Ok(TraceHandle(trace))
}

struct Tracer<'model> {
    inner: Option<Box<dyn Observer + 'model>>,
    /// Whether the other observer wants the node that was asked about last.
    inner_wants: bool,
    trace: Arc<Mutex<Trace>>,
    room: usize,
    one_by_one: bool,
    origin: Instant,
    /// Tokens of the present batch.
    tokens: usize,
    present: Option<Execution>,
    /// The name of the first node of the present execution: when it comes again, so does the graph.
    first: Box<str>,
    /// When the computation of the present node began.
    mark: Instant,
}

impl Tracer<'_> {
    fn record(&mut self, node: Node<'_>) {
        let name = name_of(node);
        if self.present.as_ref().is_none_or(|present| present.nodes > 0 && name == self.first) {
            self.finish();
            let number = lock(&self.trace).execution_count;
            let started = self.origin.elapsed();
            self.present = Some(Execution { number, tokens: self.tokens, started, ..Execution::default() });
            self.first.clone_from(&name);
            lock(&self.trace).execution_count += 1;
        }
        let Some(present) = self.present.as_mut() else { return };
        let mut trace = lock(&self.trace);
        if trace.events.len() < self.room {
            trace.events.push(Event {
                execution: present.number,
                index: present.nodes,
                name,
                operation: node.operation(),
                sources: node.sources().map(name_of).collect(),
                bytes: node.bytes() as u64,
                elapsed: None,
            });
        } else {
            present.dropped += 1;
            trace.dropped += 1;
        }
        present.nodes += 1;
    }

    /// Closes the present execution.
    fn finish(&mut self) {
        if let Some(mut done) = self.present.take().filter(|done| done.nodes > done.dropped) {
            done.elapsed = Some(self.origin.elapsed().saturating_sub(done.started));
            lock(&self.trace).executions.push(done);
        }
    }
}

fn name_of(node: Node<'_>) -> Box<str> {
    node.name().to_string_lossy().into()
}

impl Observer for Tracer<'_> {
    fn begin(&mut self, tokens: usize) -> Result<()> {
        self.tokens = tokens;
        self.present = None;
        self.mark = Instant::now();
        self.inner.as_mut().map_or(Ok(()), |inner| inner.begin(tokens))
    }

    fn wants(&mut self, node: Node<'_>) -> bool {
        let computes = !node.computes_nothing();
        if computes {
            self.record(node);
        }
        self.inner_wants = self.inner.as_mut().is_some_and(|inner| inner.wants(node));
        if self.one_by_one && computes {
            self.mark = Instant::now();
        }
        self.inner_wants || (self.one_by_one && computes)
    }

    fn computed(&mut self, node: Node<'_>) -> ControlFlow<()> {
        if self.one_by_one && !node.computes_nothing() {
            let elapsed = self.mark.elapsed();
            let present = self.present.as_ref();
            if let Some((execution, index)) = present.map(|now| (now.number, now.nodes - 1)) {
                let mut trace = lock(&self.trace);
                let last = trace.events.last_mut();
                if let Some(event) = last.filter(|last| (last.execution, last.index) == (execution, index)) {
                    event.elapsed = Some(elapsed);
                }
            }
        }
        match self.inner.as_mut().filter(|_| mem::take(&mut self.inner_wants)) {
            Some(inner) => inner.computed(node),
            None => ControlFlow::Continue(()),
        }
    }

    fn end(&mut self) -> Result<()> {
        self.finish();
        self.inner.as_mut().map_or(Ok(()), |inner| inner.end())
    }
}
