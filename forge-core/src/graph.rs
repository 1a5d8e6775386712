//! The compute graph: what it will compute, and what watches it while it does.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ops::ControlFlow;

use forge_sys as sys;

use crate::callback;
use crate::context::Context;
use crate::error::{Error, Result, native_call};

/// One node of a graph that exists now.
#[derive(Clone, Copy)]
pub struct Node<'graph> {
    raw: *const sys::ggml_tensor,
    _graph: PhantomData<&'graph ()>,
}

impl<'graph> Node<'graph> {
    /// # Safety
    /// `raw` is a tensor of a graph that lives for `'graph`.
    const unsafe fn new(raw: *const sys::ggml_tensor) -> Self {
        Self { raw, _graph: PhantomData }
    }

    const fn tensor(&self) -> &sys::ggml_tensor {
        // SAFETY: the promise of `new`.
        unsafe { &*self.raw }
    }

    /// The name, such as `ffn_out-3`.
    pub fn name(&self) -> &CStr {
        let bytes = &self.tensor().name;
        // SAFETY: upstream keeps the array NUL-terminated (ggml_set_name, ggml_format_name).
        unsafe { CStr::from_ptr(bytes.as_ptr()) }
    }

    /// The operation's native name, such as `MUL_MAT`.
    pub fn operation(&self) -> &'static str {
        // SAFETY: the operation of a tensor is below GGML_OP_COUNT, the length of the table of names.
        let name = unsafe { CStr::from_ptr(sys::ggml_op_name(self.tensor().op)) };
        name.to_str().unwrap_or("unknown")
    }

    /// Bytes of the result.
    pub fn bytes(&self) -> usize {
        // SAFETY: the tensor is alive.
        unsafe { sys::ggml_nbytes(self.raw) }
    }

    /// Address of the result's first byte.
    pub fn address(&self) -> usize {
        self.tensor().data.addr()
    }

    /// Whether the operation only describes other data, and computes nothing.
    pub const fn computes_nothing(&self) -> bool {
        matches!(
            self.tensor().op,
            sys::GGML_OP_NONE
                | sys::GGML_OP_RESHAPE
                | sys::GGML_OP_VIEW
                | sys::GGML_OP_PERMUTE
                | sys::GGML_OP_TRANSPOSE
        )
    }

    /// Whether the operation reads single rows of its first source, which other sources name.
    pub const fn reads_rows(&self) -> bool {
        self.tensor().op == sys::GGML_OP_GET_ROWS
    }

    /// Whether the operation reads some of the matrices in its first source, which another source names: experts.
    pub const fn reads_experts(&self) -> bool {
        self.tensor().op == sys::GGML_OP_MUL_MAT_ID
    }

    /// What names the experts that are read.
    fn chosen(&self) -> Option<&sys::ggml_tensor> {
        // SAFETY: a source of a graph's tensor lives as long as the graph.
        self.reads_experts().then(|| unsafe { self.tensor().src[2].as_ref() }).flatten()
    }

    /// The node itself as what names experts.
    pub(crate) fn as_expert_numbers(&self) -> Option<ExpertNumbers> {
        let tensor = self.tensor();
        let fits = tensor.type_ == sys::GGML_TYPE_I32 && tensor.ne[2..] == [1, 1] && !tensor.data.is_null();
        fits.then(|| ExpertNumbers {
            address: tensor.data.expose_provenance(),
            counts: [tensor.ne[0] as usize, tensor.ne[1] as usize],
            strides: [tensor.nb[0], tensor.nb[1]],
        })
    }

    /// What the operation reads. A view is given as the tensor it shows, unless it is a piece of a split matrix
    /// ([`crate::Model::split_matrix`]).
    pub fn sources(&self) -> impl Iterator<Item = Self> + '_ {
        self.tensor().src.iter().filter(|source| !source.is_null()).map(|&source| {
            // SAFETY: sources of a graph's tensor live as long as the graph, and so does what they show.
            unsafe { Self::new(sys::forge_shown(source)) }
        })
    }
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.operation(), self.name())
    }
}

/// Numbers of experts for each token, as a node of a graph that exists now has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertNumbers {
    address: usize,
    /// For a token, and tokens.
    counts: [usize; 2],
    /// Bytes from one to the next.
    strides: [usize; 2],
}

impl ExpertNumbers {
    /// The numbers, each once and in order.
    ///
    /// # Safety
    /// The graph still exists, the node is computed, nodes that use it are not, and no thread computes now.
    pub(crate) unsafe fn read(&self) -> BTreeSet<usize> {
        let data = std::ptr::with_exposed_provenance::<u8>(self.address);
        let mut numbers = BTreeSet::new();
        for token in 0..self.counts[1] {
            for place in 0..self.counts[0] {
                let offset = token * self.strides[1] + place * self.strides[0];
                // SAFETY: the offset is an element's by the tensor's own shape and strides; its data is this machine's
                // memory, because only the CPU computes, and holds the node's result by the caller's promise.
                let number = unsafe { data.byte_add(offset).cast::<i32>().read_unaligned() };
                numbers.extend(usize::try_from(number));
            }
        }
        numbers
    }
}

/// Watches the nodes of decode calls, in the order in which they are computed.
///
/// Everything runs on the thread that decodes, while no compute thread is working.
pub trait Observer: Send {
    /// A batch of `tokens` tokens is about to be computed.
    ///
    /// # Errors
    /// Nothing is computed, and the decode returns the error.
    fn begin(&mut self, tokens: usize) -> Result<()>;

    /// Whether [`Observer::computed`] should be called after `node`. Asked for every node before it is
    /// computed; nodes up to one that is wanted are computed in one go.
    fn wants(&mut self, node: Node<'_>) -> bool;

    /// The node that was wanted, and all before it, are computed. `Break` stops the decode, whose error
    /// [`Observer::end`] gives.
    fn computed(&mut self, node: Node<'_>) -> ControlFlow<()>;

    /// The batch is computed, or was given up.
    ///
    /// # Errors
    /// What made the observer stop the decode.
    fn end(&mut self) -> Result<()>;

    /// Comes to the state that it would come to after many batches; called between two. `go_on` is asked now and
    /// then.
    ///
    /// # Errors
    /// What keeps it from that.
    fn settle(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let _ = go_on;
        Ok(())
    }

    /// Ends what goes on between batches; later ones do without.
    fn quiesce(&mut self) {}
}

/// The observer of a context, at an address that native code keeps.
pub(crate) struct Hook<'model> {
    observer: Option<Box<dyn Observer + 'model>>,
    stopped: bool,
}

impl<'model> Hook<'model> {
    pub(crate) const fn new() -> Self {
        Self { observer: None, stopped: false }
    }

    pub(crate) fn set(&mut self, observer: Box<dyn Observer + 'model>) -> Option<Box<dyn Observer + 'model>> {
        self.observer.replace(observer)
    }

    /// What the observer's `begin` says.
    pub(crate) fn begin(&mut self, tokens: usize) -> Result<()> {
        self.stopped = false;
        self.observer.as_mut().map_or(Ok(()), |observer| observer.begin(tokens))
    }

    pub(crate) fn quiesce(&mut self) {
        if let Some(observer) = self.observer.as_mut() {
            observer.quiesce();
        }
    }

    pub(crate) fn settle(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        self.observer.as_mut().map_or(Ok(()), |observer| observer.settle(go_on))
    }

    pub(crate) fn end(&mut self) -> Result<()> {
        let ended = self.observer.as_mut().map_or(Ok(()), |observer| observer.end());
        if self.stopped && ended.is_ok() {
            return Err(Error::limit("an observer stopped the decode without a reason"));
        }
        ended
    }
}

impl std::fmt::Debug for Hook<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hook").field("observed", &self.observer.is_some()).finish()
    }
}

/// The scheduler's evaluation callback. After a stop or a panic it asks to be called after every node and
/// answers "stop" each time: the scheduler leaves its loop only from there.
pub(crate) extern "C" fn on_node(tensor: *mut sys::ggml_tensor, ask: bool, user: *mut c_void) -> bool {
    // SAFETY: `user` is the Hook that the context owns; a decode borrows the context mutably, so nothing
    // else refers to it now.
    let hook = unsafe { &mut *user.cast::<Hook<'_>>() };
    if hook.stopped {
        return ask;
    }
    let Some(observer) = hook.observer.as_mut() else {
        return !ask;
    };
    // SAFETY: the scheduler passes a tensor of the graph it computes.
    let node = unsafe { Node::new(tensor) };
    let answer =
        callback::guard(|| if ask { observer.wants(node) } else { observer.computed(node).is_continue() });
    match answer {
        Some(answer) => {
            hook.stopped |= !ask && !answer;
            answer
        }
        None => {
            hook.stopped = true;
            ask
        }
    }
}

/// A node of a graph that was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNode {
    /// The name.
    pub name: Box<CStr>,
    /// Whether it computes nothing.
    pub computes_nothing: bool,
    /// Whether it reads single rows of its first source.
    pub reads_rows: bool,
    /// Which of the matrices in its first source it reads, if not all.
    pub experts: Option<ChosenExperts>,
    /// Addresses of the data it reads that exists already, which is to say of weights and state.
    pub reads: Vec<usize>,
}

/// A choice of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenExperts {
    /// The index of the node that names them.
    pub by: usize,
    /// Experts for a token.
    pub for_a_token: usize,
}

impl Context<'_> {
    /// The nodes that a batch of `tokens` tokens with one output will compute, in order.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Limit`] when the context cannot take such a batch, otherwise what the native
    /// library says.
    pub fn planned_nodes(&mut self, tokens: u32) -> Result<Vec<PlannedNode>> {
        if tokens == 0 || tokens > self.sizes().micro_batch_tokens {
            return Err(Error::limit(format!("a graph for {tokens} tokens cannot be planned")));
        }
        let mut graph = std::ptr::null_mut();
        native_call(
            || format!("cannot plan the graph for {tokens} tokens"),
            // SAFETY: the context is alive; `graph` outlives the call.
            |error| unsafe { sys::forge_graph_reserve(self.as_ptr(), tokens, 1, &raw mut graph, error) },
        )?;
        // SAFETY: the graph lives until the context builds another, which needs `&mut self`.
        let count = unsafe { sys::ggml_graph_n_nodes(graph) };
        // SAFETY: the index is below the count.
        let nodes = (0..count).map(|index| unsafe { Node::new(sys::ggml_graph_node(graph, index)) });
        let nodes: Vec<Node<'_>> = nodes.collect();
        let indices: HashMap<*const sys::ggml_tensor, usize> =
            nodes.iter().enumerate().map(|(index, node)| (node.raw, index)).collect();
        let nodes = nodes.iter().map(|node| {
            let chosen =
                node.chosen().and_then(|chosen| Some((chosen, *indices.get(&std::ptr::from_ref(chosen))?)));
            PlannedNode {
                name: node.name().into(),
                computes_nothing: node.computes_nothing(),
                reads_rows: node.reads_rows(),
                experts: chosen.map(|(chosen, by)| ChosenExperts { by, for_a_token: chosen.ne[0] as usize }),
                reads: node
                    .sources()
                    .map(|source| source.address())
                    .filter(|&address| address != 0)
                    .collect(),
            }
        });
        Ok(nodes.collect())
    }
}
